"""Forward and backward through hidden Markov chains: exact, scaled at every step, in many lanes at once.

A chain of N steps is cut into lanes (`lanes`), which take their steps together: L steps on arrays instead of N on
vectors. What enters each at both ends is known where a sequence begins there, or found by overlap (`boundaries`) or by
products (`products`). Sequences need no lane of their own: the chain starts afresh where one begins, wherever that is.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from latensor.base import check_option, divide, einsum, matmul
from latensor.models.hidden_markov.boundaries import (
    OVERLAP,
    Walk,
    Walked,
    derive_exactly,
    same_directions,
    walk_from,
)
from latensor.models.hidden_markov.lanes import (
    Chain,
    Lanes,
    advance,
    cut_into_lanes,
    join_lanes,
    lanes_of,
    retreat,
)
from latensor.models.hidden_markov.products import Boundaries, boundaries_by_products
from latensor.moments import Sequences

FORMS = ("auto", "sequential", "overlapping", "associative")
# Shorter lanes leave more to the scan over their products, longer ones are more steps one after the other.
_ASSOCIATIVE_LENGTH = 256
# On a CPU, states of this many lanes fill its vector units and stay in its nearest cache; fewer where lanes would be
# so short that the overlap costs as much as the rest.
_NUM_LANES, _SHORTEST_LANE = 400, 3 * OVERLAP
# Chains with fewer steps go step by step.
_FEWEST_STEPS = 10 * _SHORTEST_LANE


class Schedule(NamedTuple):
    """How a chain is cut, and how it is found out what enters its lanes."""

    length: int
    """Steps of a lane."""
    entry: Literal["known", "overlap", "products"]
    """`"known"`: every lane begins with a sequence, so that nothing enters it."""


class Smoothed(NamedTuple):
    """The distribution of the states given all observations."""

    log_scales: Float[Array, " N"]
    """`log P(x_t | x_{<t})`, up to the scale of the likelihoods."""
    posterior: Float[Array, "N k"]
    """`P(h_t | x)`."""
    pairs: Float[Array, "k k"]
    """Weighted sum of `P(h_{t−1}, h_t | x)` over the steps within sequences."""


def choose_schedule(form: str, sequences: Sequences) -> Schedule:
    """Return how the chain of some sequences is cut for a `form` of the recursions.

    Rows of equal length are lanes, one or several of them each, where that does not take more steps than overlap does.
    """
    check_option("form", form, FORMS)
    if form == "auto":
        form = "overlapping" if jax.default_backend() == "cpu" else "associative"
    size = sequences.num_steps
    if form == "sequential":
        return Schedule(size, "known")
    num_rows = sequences.x.shape[0] if sequences.is_batched else 1
    row = size // num_rows
    if form == "associative":
        return Schedule(row, "known") if row <= _ASSOCIATIVE_LENGTH else Schedule(_ASSOCIATIVE_LENGTH, "products")
    length = size if size < _FEWEST_STEPS else max(_SHORTEST_LANE, -(-size // _NUM_LANES))
    rows = row * -(-num_rows // _NUM_LANES)
    return Schedule(rows, "known") if rows <= length + OVERLAP else Schedule(length, "overlap")


def _forward_walk(chain: Chain, lanes: Lanes) -> Walk:
    """Return the walk that gives `a_t` and `c_t` in lanes: `(L, k, lanes)` and `(L, lanes)`."""

    def step(state: Array, inputs: Lanes) -> tuple[Array, tuple[Array, Array]]:
        state, scale = advance(chain, state, inputs.likelihoods, inputs.first[None, :])
        return state, (state, scale)

    anywhere = jnp.full_like(lanes.likelihoods[0], 1 / chain.initial.shape[0])
    return Walk(lambda lanes, state: lax.scan(step, state, lanes), lanes, chain.initial, anywhere, same_directions)


def _backward_walk(chain: Chain, lanes: Lanes, filtered: Array, previous: Array) -> Walk:
    """Return the walk that gives `P(h_t | x)`, `b_t ∘ β_t`, and the scale of `P(h_{t−1}, h_t | x)`."""

    def step(back: Array, inputs: tuple[Lanes, Array, Array]) -> tuple[Array, tuple[Array, Array, Array]]:
        (likelihood, first), state, previous = inputs
        posterior = state * back
        posterior = divide(posterior, jnp.sum(posterior, axis=0, keepdims=True), state)
        seen = likelihood * back
        back, onward = retreat(chain, back, likelihood, first)
        return back, (posterior, seen, jnp.sum(previous * onward, axis=0))

    return Walk(
        lambda lanes, back: lax.scan(step, back, lanes, reverse=True),
        (lanes, filtered, previous),
        jnp.ones_like(chain.initial),
        jnp.ones_like(lanes.likelihoods[0]),
        same_directions,
        reverse=True,
    )


_forward_by_overlap = derive_exactly(_forward_walk)
_backward_by_overlap = derive_exactly(_backward_walk)


def _find_boundaries(chain: Chain, lanes: Lanes, schedule: Schedule) -> Boundaries | None:
    """Return what enters the lanes; `None` where that is found on the way, by overlap."""
    if schedule.entry == "overlap":
        return None
    if schedule.entry == "products":
        return boundaries_by_products(chain, lanes)
    anything = jnp.ones_like(lanes.likelihoods[0])
    return Boundaries(anything / anything.shape[0], anything)


def _walk_forward(chain: Chain, lanes: Lanes, boundaries: Boundaries | None) -> Walked:
    if boundaries is None:
        return _forward_by_overlap(chain, lanes)
    return walk_from(_forward_walk(chain, lanes), boundaries.before)


@partial(jax.jit, static_argnames="schedule")
def forward(chain: Chain, schedule: Schedule) -> Float[Array, " N"]:
    """Return `log P(x_t | x_{<t})` for every step, up to the scale of the likelihoods."""
    lanes = lanes_of(chain, schedule.length)
    _, (_, scales) = _walk_forward(chain, lanes, _find_boundaries(chain, lanes, schedule))
    return jnp.log(join_lanes(scales, chain.first.shape[0]))


def forward_apart(chain: Chain, length: int) -> Float[Array, " N"]:
    """Return `forward` where every lane is a chain of its own: in any state before it, unless a sequence begins."""
    return forward(chain, Schedule(length, "known"))


@partial(jax.jit, static_argnames="schedule")
def forward_backward(chain: Chain, weights: Float[Array, " N"], schedule: Schedule) -> Smoothed:
    """Return the posterior of the states, and the expected number of steps from each to each.

    Args:
      chain: the model and its data.
      weights: of each step in the sum over pairs of states.
      schedule: as `choose_schedule` returns it.

    """
    lanes = lanes_of(chain, schedule.length)
    boundaries = _find_boundaries(chain, lanes, schedule)
    before, (filtered, scales) = _walk_forward(chain, lanes, boundaries)
    previous = jnp.concatenate([before[None], filtered[:-1]])
    parts = (chain, lanes, filtered, previous)
    walked = _backward_by_overlap(*parts) if boundaries is None else walk_from(_backward_walk(*parts), boundaries.after)
    posterior, seen, chance = walked.outputs
    # P(h_{t−1}, h_t | x) is proportional to `previous[i] T[i, j] seen[j]`, with the sum `chance`.
    inside = cut_into_lanes(jnp.where(chain.first, 0, weights), schedule.length)
    pairs = _sum_products(previous * divide(inside, chance)[:, None, :], seen) * chain.transition
    size = chain.first.shape[0]
    return Smoothed(jnp.log(join_lanes(scales, size)), join_lanes(posterior, size), pairs)


def _sum_products(one: Float[Array, "L i lanes"], other: Float[Array, "L j lanes"]) -> Float[Array, "i j"]:
    """Return `Σ one[i] other[j]` over all steps. As one product, or as many: a running total would lose small terms."""
    if one.shape[2] == 1:
        return matmul(one[:, :, 0].T, other[:, :, 0])
    return jnp.sum(einsum("lib,ljb->lij", one, other), axis=0)
