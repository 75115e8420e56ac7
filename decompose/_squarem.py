"""EM, accelerated: squared extrapolation that never lets the objective fall.

An EM step moves in the right direction and, near a flat or bounded optimum, hardly at all. From two steps `θ₀ → θ₁ →
θ₂`, with `r = θ₁ − θ₀` and `v = (θ₂ − θ₁) − r`, SQUAREM jumps to `θ₀ + 2s r + s² v`, `s = |r|/|v|`: a secant estimate
of where the steps lead. The jump is taken where the objective there is no lower than at `θ₁`, else `θ₁` is; the EM step
that follows begins from there. Two EM steps a jump.

Source: Varadhan, Roland (2008), Simple and globally convergent methods for accelerating the convergence of any EM
algorithm.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

Params = TypeVar("Params")

# A jump may be this many times longer than the longest that has been tried with success.
_GROWTH = 4.0


class Evaluation(NamedTuple):
    """What one EM step tells about the parameters it was given."""

    updated: Any
    """The parameters after the step."""
    objective: Float[Array, ""]
    """The objective of those before it, which EM does not let fall."""
    done: Bool[Array, ""]
    """Whether those before it are good enough."""


class Accelerated(NamedTuple):
    """Where the iteration stopped."""

    params: Any
    objective: Float[Array, ""]
    """The objective of `params`."""
    num_iters: Int[Array, ""]
    """EM steps, those of rejected jumps included."""
    gain: Float[Array, ""]
    """Rise of the objective in the last cycle; infinite before the first."""
    done: Bool[Array, ""]
    """Whether `params` are good enough."""


# What the next step is taken from: the start, the point after the last one, or a jump.
_START, _NEXT, _JUMP = 0, 1, 2


class _State(NamedTuple):
    params: Any
    at: Evaluation
    """The step from `params`."""
    ahead: Any
    """The point one step ahead of `params`, where a jump is being tried."""
    at_ahead: Evaluation
    candidate: Any
    """What the next step is taken from."""
    phase: Int[Array, ""]
    stride: Float[Array, ""]
    longest: Float[Array, ""]
    gain: Float[Array, ""]
    num_iters: Int[Array, ""]


def _select(condition: Array, one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _length(tree: Any) -> Array:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def accelerated_em(
    step: Callable[[Params], Evaluation],
    start: Params,
    feasible: Callable[[Params, Params], Params],
    tol: Float[Array, ""] | float,
    max_iters: Int[Array, ""] | int,
    accelerate: bool = True,
) -> Accelerated:
    """Iterate `step` with squared extrapolation until it says that it is done, or gains nothing more.

    Args:
      step: an EM step.
      start: the first parameters.
      feasible: maps a jump, and the EM iterate that it starts from, to parameters that are allowed.
      tol: stop where a cycle of two steps raises the objective by no more than this.
      max_iters: limit on the EM steps; the first, from the start, tells its objective.
      accelerate: False takes the steps as they are.

    """
    max_iters = jnp.maximum(max_iters, 1)  # the objective of the start is always told

    def unfinished(state: _State) -> Array:
        return ~state.at.done & (state.gain > tol) & (state.num_iters < max_iters)

    def extrapolate(state: _State, second: Params) -> tuple[Params, Array]:
        first = state.candidate
        change = jax.tree.map(jnp.subtract, first, state.params)
        bend = jax.tree.map(lambda b, a, r: b - a - r, second, first, change)
        length = _length(bend)
        # Steps that do not bend lead far away: as far as is allowed.
        far = length * state.longest <= _length(change)
        stride = jnp.where(far, state.longest, _length(change) / jnp.where(far, 1, length))
        stride = jnp.maximum(stride, 1)
        jump = jax.tree.map(lambda p, r, v: p + 2 * stride * r + stride**2 * v, state.params, change, bend)
        return feasible(jump, second), stride

    def advance(state: _State) -> _State:
        # One step a turn, wherever it is taken from: compiled once.
        at = step(state.candidate)
        known = state.phase != _NEXT if accelerate else jnp.asarray(True)
        jumped = state.phase == _JUMP
        # A jump that is no good leaves the point one step ahead, from which the step is known too.
        good = ~jumped | (at.objective >= state.at_ahead.objective)
        params, at_params = _select(good, (state.candidate, at), (state.ahead, state.at_ahead))
        longest = jnp.where(good & (state.stride >= state.longest), _GROWTH * state.longest, state.longest)
        longest = jnp.where(good, longest, jnp.maximum(state.stride / _GROWTH, 1))
        gain = jnp.where(state.phase == _START, jnp.inf, at_params.objective - state.at.objective)
        settled = _State(
            params, at_params, params, at_params, at_params.updated, jnp.full_like(state.phase, _NEXT),
            state.stride, jnp.where(jumped, longest, state.longest), gain, state.num_iters + 1,
        )  # fmt: skip
        if not accelerate:
            return settled
        jump, stride = extrapolate(state, at.updated)
        trying = state._replace(
            ahead=state.candidate, at_ahead=at, candidate=jump, phase=jnp.full_like(state.phase, _JUMP),
            stride=stride, num_iters=state.num_iters + 1,
        )  # fmt: skip
        return _select(known, settled, trying)

    blank = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(step, start))
    one = jnp.ones_like(blank.objective)
    phase = jnp.int32(_START)
    first = _State(start, blank, start, blank, start, phase, one, _GROWTH * one, jnp.inf * one, jnp.int32(0))
    last = lax.while_loop(unfinished, advance, first)
    # Where the limit came while a jump was about to be tried, the point one step ahead is known to be better.
    params, at = _select(last.phase == _JUMP, (last.ahead, last.at_ahead), (last.params, last.at))
    return Accelerated(params, at.objective, last.num_iters, last.gain, at.done)
