"""Forward and backward through hidden Markov chains: exact, scaled at every step, in one pass or in many blocks.

All sequences lie end to end (`latensor.moments.internal.Observations`); where one begins the chain starts afresh. With
`b_t[h]` the likelihood of observation t in state h, scaled so that the largest is one, and one where it is missing,

    forward    a_t ∝ b_t ∘ (Tᵀ a_{t−1}),   c_t its sum before it is scaled to one: P(x_t | x_{<t})
    backward   β_{t−1} ∝ T (b_t ∘ β_t),   P(h_t | x) ∝ a_t ∘ β_t.

A chain of N steps is a product of N matrices, and products may be bracketed at will. The chain is cut into B blocks of
length L. All blocks advance together, one step at a time: first each from every state, which gives the product of its
matrices row by row; then, after an associative scan over the blocks has told what enters each at both ends, from there.
That makes L steps instead of N, each on arrays of length B, and k³ operations per step instead of k².

Arrays have the state first and the batch last: products with `T` are then `(k, k) @ (k, batch)`.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from latensor.base import check_option, divide, matmul, smallest_normal

FORMS = ("auto", "sequential", "associative")
# Steps of a block. Shorter blocks leave more to the scan over blocks, longer ones are more steps one after the other.
BLOCK_LENGTH = 256


class Chain(NamedTuple):
    """The input of the recursions: a model and its data."""

    initial: Float[Array, " k"]
    transition: Float[Array, "k k"]
    likelihoods: Float[Array, "N k"]
    """The largest of each row is one; all are one where nothing is observed."""
    first: Bool[Array, " N"]
    """Where a sequence begins; the first of all is one."""


class Smoothed(NamedTuple):
    """The distribution of the states given all observations."""

    log_scales: Float[Array, " N"]
    """`log P(x_t | x_{<t})`, up to the scale of the likelihoods."""
    posterior: Float[Array, "N k"]
    """`P(h_t | x)`."""
    pairs: Float[Array, "k k"]
    """Weighted sum of `P(h_{t−1}, h_t | x)` over the steps within sequences."""


class _Blocks(NamedTuple):
    """The chain in blocks, `(L, …, B)`."""

    likelihoods: Float[Array, "L k B"]
    first: Bool[Array, "L B"]


def choose_block_length(form: str) -> int | None:
    """Return the length of blocks for a `form` of the recursions; `None` is step by step, which is faster on CPUs."""
    check_option("form", form, FORMS)
    sequential = form == "sequential" or (form == "auto" and jax.default_backend() == "cpu")
    return None if sequential else BLOCK_LENGTH


def floor_probabilities(probabilities: Array) -> Array:
    """Return probabilities none of which is zero: an impossible step has a cost (69 nats in float32), never a NaN."""
    return jnp.maximum(probabilities, 1e-30 if probabilities.dtype == jnp.float32 else 1e-200)


def _cut(chain: Chain, block_length: int | None) -> _Blocks:
    size, k = chain.likelihoods.shape
    length = size if block_length is None else min(block_length, size)
    num_blocks = -(-size // length)
    extra = num_blocks * length - size
    likelihoods = jnp.pad(chain.likelihoods, ((0, extra), (0, 0)), constant_values=1)
    return _Blocks(
        jnp.transpose(likelihoods.reshape(num_blocks, length, k), (1, 2, 0)),
        jnp.pad(chain.first, (0, extra)).reshape(num_blocks, length).T,
    )


def _join(blocks: Float[Array, "L ... B"], size: int) -> Float[Array, "N ..."]:
    joined = jnp.moveaxis(blocks, -1, 0)
    return joined.reshape(-1, *joined.shape[2:])[:size]


def _product(matrix: Float[Array, "k k"], columns: Float[Array, "k ..."]) -> Float[Array, "k ..."]:
    return matmul(matrix, columns.reshape(columns.shape[0], -1)).reshape(columns.shape)


def _to_one(values: Float[Array, "k ..."], otherwise: Float[Array, "k ..."]) -> tuple[Array, Array]:
    """Return values scaled to sum to one over states, and their sum; `otherwise` where all are zero."""
    total = jnp.sum(values, axis=0)
    return divide(values, total[None], otherwise), total


def _advance(chain: Chain, state: Array, likelihood: Array, first: Array) -> tuple[Array, Array]:
    """Take one forward step of a batch of chains; return the states' probabilities, and their sum before scaling."""
    shape = (-1,) + (1,) * (state.ndim - 1)
    ahead = jnp.where(first, chain.initial.reshape(shape), _product(chain.transition.T, state))
    return _to_one(ahead * likelihood, ahead)


def _block_products(chain: Chain, blocks: _Blocks) -> tuple[Float[Array, "B k k"], Float[Array, "B k"]]:
    """Return each block's matrix, rows scaled to sum to one, and the logarithms of their scales, up to a constant."""
    k, size = blocks.likelihoods.shape[1:]

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        state, logs = carry
        likelihood, first = inputs
        state, scale = _advance(chain, state, likelihood[:, None, :], first[None, None, :])
        # Relative to the likeliest state to begin in: sums of logarithms of whole blocks would lose their last digits.
        return (state, logs + jnp.log(scale / jnp.max(scale, axis=0, keepdims=True))), None

    dtype = blocks.likelihoods.dtype
    # state[j, i, b]: the probability of state j after the steps so far of block b, begun in state i.
    start = jnp.broadcast_to(jnp.eye(k, dtype=dtype)[:, :, None], (k, k, size))
    (state, logs), _ = lax.scan(step, (start, jnp.zeros((k, size), dtype)), (blocks.likelihoods, blocks.first))
    return jnp.transpose(state, (2, 1, 0)), logs.T


def _combine(one: tuple[Array, Array], two: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the product of matrices `diag(eˢ) R`, rows of `R` summing to one, in the same form, up to a factor."""
    rows, logs = one
    next_rows, next_logs = two
    top = jnp.max(next_logs, axis=-1, keepdims=True)
    product = matmul(rows * jnp.exp(next_logs - top)[..., None, :], next_rows)
    scale = jnp.maximum(jnp.sum(product, axis=-1), smallest_normal(product.dtype))
    logs = logs + jnp.log(scale)
    return product / scale[..., None], logs - jnp.max(logs, axis=-1, keepdims=True)


def _boundaries(chain: Chain, blocks: _Blocks) -> tuple[Float[Array, "k B"], Float[Array, "k B"]]:
    """Return what enters each block from before, and what from after, each up to a factor."""
    k, size = blocks.likelihoods.shape[1:]
    if size == 1:
        return jnp.broadcast_to(chain.initial[:, None], (k, 1)), jnp.ones((k, 1), blocks.likelihoods.dtype)
    rows, logs = _block_products(chain, blocks)
    before, _ = lax.associative_scan(_combine, (rows, logs))
    # The first observation of all begins a sequence: what came before it does not matter, and all rows are one.
    before = jnp.concatenate([chain.initial[None, :], before[:-1, 0]])
    _, after = lax.associative_scan(lambda one, two: _combine(two, one), (rows, logs), reverse=True)
    after = jnp.concatenate([jnp.exp(after - jnp.max(after, axis=1, keepdims=True))[1:], jnp.ones((1, k), after.dtype)])
    return before.T, after.T


def _filter(chain: Chain, blocks: _Blocks, before: Float[Array, "k B"]) -> tuple[Array, Array]:
    """Return `a_t` and `c_t` in blocks: `(L, k, B)` and `(L, B)`."""

    def step(state: Array, inputs: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        likelihood, first = inputs
        state, scale = _advance(chain, state, likelihood, first[None, :])
        return state, (state, scale)

    return lax.scan(step, before, (blocks.likelihoods, blocks.first))[1]


@partial(jax.jit, static_argnames="block_length")
def forward(chain: Chain, block_length: int | None = BLOCK_LENGTH) -> Float[Array, " N"]:
    """Return `log P(x_t | x_{<t})` for every step, up to the scale of the likelihoods.

    With `block_length=None` the whole chain goes step by step.
    """
    blocks = _cut(chain, block_length)
    before, _ = _boundaries(chain, blocks)
    _, scales = _filter(chain, blocks, before)
    return jnp.log(_join(scales, chain.first.shape[0]))


def forward_apart(chain: Chain, block_length: int) -> Float[Array, " N"]:
    """Return `forward` where every block is a chain of its own: in any state before it, unless a sequence begins."""
    blocks = _cut(chain, block_length)
    k, num_blocks = blocks.likelihoods.shape[1:]
    _, scales = _filter(chain, blocks, jnp.full((k, num_blocks), 1 / k, blocks.likelihoods.dtype))
    return jnp.log(_join(scales, chain.first.shape[0]))


@partial(jax.jit, static_argnames="block_length")
def forward_backward(chain: Chain, weights: Float[Array, " N"], block_length: int | None = BLOCK_LENGTH) -> Smoothed:
    """Return the posterior of the states, and the expected number of steps from each to each.

    Args:
      chain: the model and its data.
      weights: of each step in the sum over pairs of states.
      block_length: as for `forward`.

    """
    blocks = _cut(chain, block_length)
    before, after = _boundaries(chain, blocks)
    filtered, scales = _filter(chain, blocks, before)
    previous = jnp.concatenate([before[None], filtered[:-1]])

    def step(back: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        likelihood, first = inputs
        onward, _ = _to_one(_product(chain.transition, likelihood * back), jnp.ones_like(back))
        return jnp.where(first[None, :], 1, onward), back

    _, back = lax.scan(step, after, (blocks.likelihoods, blocks.first), reverse=True)
    size = chain.first.shape[0]
    states, previous, back = _join(filtered, size), _join(previous, size), _join(back, size)
    posterior = states * back
    posterior = divide(posterior, jnp.sum(posterior, axis=1, keepdims=True), states)
    # P(h_{t−1}, h_t | x) is proportional to `previous[i] T[i, j] seen[j]`. One product over all steps: a running total
    # would lose small terms in float32.
    seen = chain.likelihoods * back
    chance = jnp.sum(previous * matmul(seen, chain.transition.T), axis=1)
    share = jnp.where(chain.first, 0, divide(weights, chance))
    pairs = matmul((previous * share[:, None]).T, seen)
    return Smoothed(jnp.log(_join(scales, size)), posterior, pairs * chain.transition)
