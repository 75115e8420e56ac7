"""What enters each lane of a chain from its neighbour, so that all lanes can take their steps together.

A positive matrix shrinks the distance `log max_h (u_h/v_h) − log min_h (u_h/v_h)` between two positive vectors
(Birkhoff 1957), so that a chain forgets how it began. Each lane is begun `OVERLAP` steps early, anywhere; then all
lanes are run, and run again from where their neighbours ended, until no beginning moves by more than rounding. Since
no matrix makes the distance larger, beginnings that agree with the ends of their neighbours are those of the whole
chain. One that does not forget (left-to-right models, states that are hardly ever left and look alike) is found out by
that, and then goes step by step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from latensor.base import machine_epsilon

# Steps that a lane is begun early. States of common models are forgotten to rounding after 20 to 50.
OVERLAP = 64
# Sweeps over the lanes before a chain counts as one that does not forget.
_MAX_SWEEPS = 4
# Beginnings may differ by this many machine epsilons.
ROUNDING = 32


class Walk(NamedTuple):
    """A recursion through lanes, in either direction."""

    run: Callable[[Any, Array], tuple[Array, Any]]
    """Takes lanes, and what enters each, through all steps; returns what leaves each, and outputs of the steps."""
    lanes: Any
    """Inputs `(L, …, lanes)`."""
    start: Array
    """What enters the whole chain."""
    anywhere: Shaped[Array, "... lanes"]
    """What lanes that are begun early begin with."""
    agree: Callable[[Array, Array], Bool[Array, ""]]
    """Whether two sets of boundaries are the same but for rounding."""
    reverse: bool = False
    """Whether the chain is walked backwards."""


class Walked(NamedTuple):
    """What entered each lane, and the outputs of the steps from there."""

    entering: Array
    outputs: Any


class _Search(NamedTuple):
    walked: Walked
    next: Array
    """What enters each lane if its neighbour is believed."""
    settled: Bool[Array, ""]
    num_sweeps: Int[Array, ""]


def walk_from(walk: Walk, entering: Shaped[Array, "... lanes"]) -> Walked:
    """Walk through lanes of which it is known what enters them."""
    return Walked(entering, walk.run(walk.lanes, entering)[1])


def walk_exactly(walk: Walk) -> Walked:
    """Walk through one lane after the other, to find out what enters each; then through all together."""
    return walk_from(walk, _enter_exactly(walk))


def walk_by_overlap(walk: Walk) -> Walked:
    """Guess what enters each lane, walk through all together, and repeat from where they end until nothing moves."""
    beginning = slice(None, OVERLAP) if walk.reverse else slice(-OVERLAP, None)
    guess = _enter(walk, walk.run(jax.tree.map(lambda part: part[beginning], walk.lanes), walk.anywhere)[0])

    def again(search: _Search) -> _Search:
        exhausted = search.num_sweeps >= _MAX_SWEEPS
        # A loop of at most one turn, not `cond`, which under `vmap` would go through the chain in any case.
        entering, _ = lax.while_loop(
            lambda one: one[1], lambda one: (_enter_exactly(walk), jnp.zeros_like(one[1])), (search.next, exhausted)
        )
        leaving, outputs = walk.run(walk.lanes, entering)
        following = _enter(walk, leaving)
        settled = exhausted | walk.agree(following, entering)
        return _Search(Walked(entering, outputs), following, settled, search.num_sweeps + 1)

    shapes = jax.eval_shape(walk.run, walk.lanes, guess)[1]
    nothing = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), shapes)
    first = _Search(Walked(guess, nothing), guess, jnp.asarray(False), jnp.int32(0))
    return lax.while_loop(lambda search: ~search.settled, again, first).walked


def _enter(walk: Walk, leaving: Shaped[Array, "... lanes"]) -> Shaped[Array, "... lanes"]:
    """Return what enters each lane from its neighbour; the first to be walked has none."""
    start = walk.start[..., None]
    if walk.reverse:
        return jnp.concatenate([leaving[..., 1:], start], axis=-1)
    return jnp.concatenate([start, leaving[..., :-1]], axis=-1)


def _enter_exactly(walk: Walk) -> Shaped[Array, "... lanes"]:
    def lane(state: Array, inputs: Any) -> tuple[Array, Array]:
        state, _ = walk.run(jax.tree.map(lambda part: part[..., None], inputs), state)
        return state, state[..., 0]

    in_turn = jax.tree.map(lambda part: jnp.moveaxis(part, -1, 0), walk.lanes)
    leaving = lax.scan(lane, walk.start[..., None], in_turn, reverse=walk.reverse)[1]
    return _enter(walk, jnp.moveaxis(leaving, 0, -1))


def same_directions(one: Float[Array, "k lanes"], other: Float[Array, "k lanes"]) -> Bool[Array, ""]:
    """Return whether the distances of all lanes are rounding. Zeros have to be in the same places."""
    both_zero = (one == 0) & (other == 0)
    ratio = jnp.where(both_zero, 1, one / jnp.where(both_zero, 1, other))
    least = jnp.min(jnp.where(both_zero, jnp.inf, ratio), axis=0)
    most = jnp.max(jnp.where(both_zero, 0, ratio), axis=0)
    return jnp.all(most - least <= ROUNDING * machine_epsilon(one.dtype) * least)


def derive_exactly(walk: Callable[..., Walk]) -> Callable[..., Walked]:
    """Return the walk by overlap with the derivatives of the exact one, both forward and reverse: a search has none."""

    def exact(*args: Any) -> Walked:
        return walk_exactly(walk(*args))

    @jax.custom_jvp
    def search(*args: Any) -> Walked:
        return walk_by_overlap(walk(*args))

    @search.defjvp
    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Walked, Walked]:
        return search(*primals), jax.jvp(exact, primals, tangents)[1]

    return search
