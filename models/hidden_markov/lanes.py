"""A chain cut into pieces of equal length, lanes, which take their steps together.

All sequences lie end to end (`latensor.moments.internal.Observations`); where one begins the chain starts afresh. With
`b_t[h]` the likelihood of observation t in state h, scaled so that the largest is one, and one where it is missing,

    forward    a_t ∝ b_t ∘ (Tᵀ a_{t−1}),   c_t its sum before it is scaled to one: P(x_t | x_{<t})
    backward   β_{t−1} ∝ T (b_t ∘ β_t),   P(h_t | x) ∝ a_t ∘ β_t.

Arrays have the state first and the lanes last: products with `T` are then `(k, k) @ (k, lanes)`. One lane is the chain
itself, step by step.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer, Shaped

from latensor.base import divide, matmul


class Chain(NamedTuple):
    """The input of the recursions: a model and its data."""

    initial: Float[Array, " k"]
    transition: Float[Array, "k k"]
    likelihoods: Float[Array, "N k"]
    """The largest of each row is one; all are one where nothing is observed."""
    first: Bool[Array, " N"]
    """Where a sequence begins; the first of all is one."""


class Lanes(NamedTuple):
    """The steps of a chain, in lanes of `L` steps."""

    likelihoods: Float[Array, "L k lanes"]
    first: Bool[Array, "L lanes"]


def floor_probabilities(probabilities: Array) -> Array:
    """Return probabilities none of which is zero: an impossible step has a cost (69 nats in float32), never a NaN."""
    return jnp.maximum(probabilities, 1e-30 if probabilities.dtype == jnp.float32 else 1e-200)


def small_integer(size: int) -> Any:
    """Return the smallest type of integers below `size`: by those of one byte XLA looks up twice as fast on CPUs."""
    return jnp.uint8 if size <= 1 << 8 else jnp.uint16 if size <= 1 << 16 else jnp.int32


def look_up(table: Float[Array, "k size"], places: Integer[Array, " lanes"]) -> Float[Array, "k lanes"]:
    """Return columns of a table, all of which are in it."""
    return table.at[:, places.astype(jnp.int32)].get(mode="promise_in_bounds")


def cut_into_lanes(values: Shaped[Array, "N ..."], length: int, beyond: int = 0) -> Shaped[Array, "L ... lanes"]:
    """Return one value per step in lanes; `beyond` after the last step."""
    size = values.shape[0]
    num_lanes = -(-size // length)
    padding = [(0, num_lanes * length - size)] + [(0, 0)] * (values.ndim - 1)
    padded = jnp.pad(values, padding, constant_values=beyond)
    return jnp.moveaxis(padded.reshape(num_lanes, length, *values.shape[1:]), 0, -1)


def join_lanes(lanes: Shaped[Array, "L ... lanes"], size: int) -> Shaped[Array, "N ..."]:
    """Return the values of the steps one after the other: undo `cut_into_lanes`."""
    joined = jnp.moveaxis(lanes, -1, 0)
    return joined.reshape(-1, *joined.shape[2:])[:size]


def lanes_of(chain: Chain, length: int) -> Lanes:
    """Cut a chain into lanes; steps beyond its end see nothing."""
    return Lanes(cut_into_lanes(chain.likelihoods, length, 1), cut_into_lanes(chain.first, length))


def _product(matrix: Float[Array, "k k"], columns: Float[Array, "k ..."]) -> Float[Array, "k ..."]:
    return matmul(matrix, columns.reshape(columns.shape[0], -1)).reshape(columns.shape)


def _to_one(values: Float[Array, "k ..."], otherwise: Float[Array, "k ..."]) -> tuple[Array, Array]:
    """Return values scaled to sum to one over states, and their sum; `otherwise` where all are zero."""
    total = jnp.sum(values, axis=0)
    return divide(values, total[None], otherwise), total


def advance(
    chain: Chain, state: Float[Array, "k ..."], likelihood: Float[Array, "k ..."], first: Bool[Array, "..."]
) -> tuple[Float[Array, "k ..."], Float[Array, "..."]]:
    """Take one forward step of all lanes; return the states' probabilities, and their sum before scaling."""
    shape = (-1,) + (1,) * (state.ndim - 1)
    ahead = jnp.where(first, chain.initial.reshape(shape), _product(chain.transition.T, state))
    return _to_one(ahead * likelihood, ahead)


def retreat(
    chain: Chain, back: Float[Array, "k lanes"], likelihood: Float[Array, "k lanes"], first: Bool[Array, " lanes"]
) -> tuple[Float[Array, "k lanes"], Float[Array, "k lanes"]]:
    """Take one backward step of all lanes; return `β_{t−1}`, one where a sequence begins, and `T (b_t ∘ β_t)`."""
    onward = _product(chain.transition, likelihood * back)
    scaled, _ = _to_one(onward, jnp.ones_like(back))
    return jnp.where(first[None, :], 1, scaled), onward
