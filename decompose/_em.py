"""Expectation–maximization: one loop for every model, plain or with squared extrapolation.

An EM step never lowers the objective, but near a flat or bounded optimum it hardly moves. From two steps
`θ₀ → θ₁ → θ₂`, with `r = θ₁ − θ₀` and `v = (θ₂ − θ₁) − r`, SQUAREM jumps to `θ₀ + 2s r + s² v`, `s = |r|/|v|`: a secant
estimate of where the steps lead. The jump is kept if its objective is no lower than that of `θ₁`; otherwise the
iteration continues from `θ₁`. Each cycle takes two EM steps.

Source: Varadhan, Roland (2008), Simple and globally convergent methods for accelerating the convergence of any EM
algorithm.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.base import attach_tangent, freeze, machine_epsilon, open_function, solve_fixed_point
from latensor.decompose._status import Status, status_if, worst

Params = TypeVar("Params")

# The longest stride grows by this factor after a successful jump of full length, and shrinks by it after a failure.
_GROWTH = 4.0
# Relative changes of the objective below this many machine epsilons are rounding.
_ROUNDING = 100


class Evaluation(NamedTuple):
    """The result of one EM step: the updated parameters, and the objective of the parameters before the update."""

    updated: Any
    """The parameters after the step."""
    objective: Float[Array, ""]
    """The objective of the parameters before the step."""
    done: Bool[Array, ""] | bool = False
    """Whether the parameters before the step are good enough to stop."""
    recorded: Float[Array, ""] | None = None
    """What the history keeps in place of the objective, such as a likelihood without its prior."""


class EMResult(NamedTuple):
    """The best parameters of an EM run and how it ended."""

    params: Any
    objective: Float[Array, ""]
    """The objective of `params`."""
    gain: Float[Array, ""]
    """Rise of the objective in the last cycle, divided by the scale; always finite. Zero if no two values could be
    compared; negative if the last step lowered the objective and was rejected."""
    num_iters: Int[Array, ""]
    """Number of EM updates, including rejected jumps: one less than the number of evaluations."""
    done: Bool[Array, ""]
    """Whether `step` declared `params` good enough."""
    status: Int[Array, ""]
    history: Float[Array, " steps"] | None = None
    """The objective of the parameters that the loop would have returned after no update, after one, and so on; beyond
    `num_iters`, that of `params`. `None` unless asked for."""


class _Point(NamedTuple):
    """Parameters and the EM step that starts from them."""

    params: Any
    at: Evaluation


class _Jump(NamedTuple):
    """State of the extrapolation."""

    pending: Bool[Array, ""]
    """Whether the next evaluation is that of a jump."""
    ahead: _Point
    """The point one EM step ahead of the settled one: the fallback for a jump."""
    stride: Float[Array, ""]
    longest: Float[Array, ""]


class _State(NamedTuple):
    settled: _Point
    """The best point so far."""
    candidate: Any
    """The parameters that are evaluated next."""
    gain: Float[Array, ""]
    """Relative rise of the objective in the last cycle; infinite before the first comparison."""
    num_evaluations: Int[Array, ""]
    jump: _Jump | None
    """`None` for plain EM."""
    history: Float[Array, " steps"] | None
    """`None` where none is kept."""


class _Rules(NamedTuple):
    tol: Float[Array, ""]
    scale: Float[Array, ""] | None
    max_iters: Int[Array, ""]

    def unfinished(self, state: _State) -> Array:
        # A rejected step has a gain below the tolerance, and NaN exceeds nothing: both end the loop.
        return ~state.settled.at.done & (state.gain > self.tol) & (state.num_evaluations <= self.max_iters)


def expectation_maximization(
    step: Callable[[Params], Evaluation],
    start: Params,
    *,
    tol: Float[Array, ""] | float,
    max_iters: Int[Array, ""] | int,
    scale: Float[Array, ""] | float | None = None,
    feasible: Callable[[Params, Params], Params] | None = None,
    length: Callable[[Params], Float[Array, ""]] | None = None,
    history: int | None = None,
) -> EMResult:
    """Repeat an EM step until a cycle gains no more than `tol * scale`, the step declares itself done, or the limit.

    The objective never falls: a step whose objective is lower, which only rounding can cause, or not finite is
    rejected, and the loop stops with the better parameters.

    Args:
      step: an EM step. It returns the objective of the parameters that it is given, which the E-step computes anyway.
      start: the first parameters, a pytree of arrays.
      tol: stop if a cycle (one step; with extrapolation two) raises the objective by at most `tol * scale`. If
        negative, a fall of up to `-tol * scale` is accepted; with `-inf` only `done` and the limit stop the loop.
      max_iters: limit on the updates. Zero returns the start and its objective.
      scale: the unit of `tol` and `gain`; by default `max(|objective|, 1)`.
      feasible: maps an extrapolated jump, and the EM iterate closest to it, to valid parameters. `None`: plain EM.
      length: of a change of the parameters, where they have units or weights; by default the Euclidean one.
      history: the number of updates, at least `max_iters`, whose objectives are kept, the start apart; `None` keeps
        none.

    Returns:
      `EMResult`. Its status is `MAX_ITERS` unless the step was done or `|gain| ≤ max(tol, 100 machine epsilons)`.

    The derivative of the parameters is that of a fixed point of the step, by whatever arrays `step` holds; it does not
    depend on the start. That of the objective is by these arrays alone, as at a maximum.

    Cost: one evaluation of `step` per update, and one for the start. A batch under `vmap` runs to its slowest lane;
    finished lanes keep their result.

    """
    opened, parts = open_function(step, start)
    frozen = freeze(parts)

    def evaluate(params: Params) -> _Point:
        at = opened(frozen, params)
        objective = jnp.asarray(at.objective)
        recorded = None if history is None else objective if at.recorded is None else at.recorded
        return _Point(params, Evaluation(at.updated, objective, jnp.asarray(at.done), recorded))

    # The loop holds the only copy of `step`: the start is evaluated there as well, so the first state is a placeholder.
    blank = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(evaluate, start).at)
    dtype = blank.objective.dtype
    room = None if history is None else jnp.zeros(history + 1, dtype)
    first = _first_state(_Point(start, blank), feasible is not None, room)
    rules = _Rules(
        jnp.asarray(tol, dtype), None if scale is None else jnp.asarray(scale, dtype), jnp.asarray(max_iters, jnp.int32)
    )

    def advance(state: _State) -> _State:
        point = evaluate(state.candidate)
        if state.jump is None or feasible is None:
            state = _settle(rules, state, point)
        else:
            state = _select(
                state.jump.pending | (state.num_evaluations == 0),
                _settle(rules, *_end_jump(state, state.jump, point)),
                _begin_jump(state, state.jump, point, feasible, length or _length),
            )
        if state.history is not None:
            # What would be returned now.
            last = _end(rules, state).settled.at.recorded
            state = state._replace(history=state.history.at[state.num_evaluations].set(last))
        return state._replace(num_evaluations=state.num_evaluations + 1)

    result = _result(rules, lax.while_loop(rules.unfinished, advance, freeze(first)))
    tolerance = _ROUNDING * machine_epsilon(dtype)
    params = solve_fixed_point(lambda parts, at: opened(parts, at).updated, result.params, parts, tolerance)
    objective = attach_tangent(partial(_objective_tangent, opened), result.objective, (parts, freeze(result.params)))
    return result._replace(params=params, objective=objective)


def _objective_tangent(opened: Callable[..., Evaluation], value: Array, inputs: Any, changes: Any) -> Array:
    parts, params = inputs
    return jax.jvp(lambda parts: jnp.asarray(opened(parts, params).objective), (parts,), (changes[0],))[1]


def _first_state(start: _Point, accelerate: bool, history: Array | None) -> _State:
    one = jnp.ones_like(start.at.objective)
    jump = _Jump(jnp.asarray(False), start, one, _GROWTH * one) if accelerate else None
    return _State(start, start.params, jnp.inf * one, jnp.int32(0), jump, history)


def _select(condition: Array, one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _length(tree: Any) -> Array:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def _settle(rules: _Rules, state: _State, point: _Point) -> _State:
    """End a cycle at `point`, unless the objective fell."""
    objective = point.at.objective
    unit = jnp.maximum(jnp.abs(objective), 1) if rules.scale is None else rules.scale
    is_start = state.num_evaluations == 0
    gain = jnp.where(is_start, jnp.inf, (objective - state.settled.at.objective) / unit)
    accepted = is_start | (jnp.isfinite(objective) & (gain >= jnp.minimum(rules.tol, 0)))
    settled = _select(accepted, point, state.settled)
    return state._replace(settled=settled, candidate=settled.at.updated, gain=gain)


def _begin_jump(
    state: _State, jump: _Jump, first: _Point, feasible: Callable[[Any, Any], Any], measure: Callable[[Any], Array]
) -> _State:
    """Extrapolate from the settled point and the two steps after it; the result is evaluated next."""
    origin, second = state.settled.params, first.at.updated
    change = jax.tree.map(jnp.subtract, first.params, origin)
    bend = jax.tree.map(lambda b, a, r: b - a - r, second, first.params, change)
    length = measure(bend)
    # Steps along a straight line lead arbitrarily far: the stride is limited by the longest one allowed.
    far = length * jump.longest <= measure(change)
    stride = jnp.where(far, jump.longest, measure(change) / jnp.where(far, 1, length))
    stride = jnp.maximum(stride, 1)
    target = jax.tree.map(lambda p, r, v: p + 2 * stride * r + stride**2 * v, origin, change, bend)
    pending = jump._replace(pending=jnp.ones_like(jump.pending), ahead=first, stride=stride)
    return state._replace(candidate=feasible(target, second), jump=pending)


def _end_jump(state: _State, jump: _Jump, point: _Point) -> tuple[_State, _Point]:
    """Choose between a jump and the EM iterate before it, and adapt the longest stride."""
    good = ~jump.pending | (point.at.objective >= jump.ahead.at.objective)
    full = jump.stride >= jump.longest
    longest = jnp.where(full, _GROWTH * jump.longest, jump.longest)
    longest = jnp.where(good, longest, jnp.maximum(jump.stride / _GROWTH, 1))
    longest = jnp.where(jump.pending, longest, jump.longest)
    ended = jump._replace(pending=jnp.zeros_like(jump.pending), longest=longest)
    return state._replace(jump=ended), _select(good, point, jump.ahead)


def _end(rules: _Rules, state: _State) -> _State:
    """Return the state in which the loop ends if it ends here: the fallback of a pending jump is known."""
    if state.jump is None:
        return state
    return _select(state.jump.pending, _settle(rules, state, state.jump.ahead), state)


def _result(rules: _Rules, last: _State) -> EMResult:
    last = _end(rules, last)
    params, at = last.settled
    threshold = jnp.maximum(rules.tol, _ROUNDING * machine_epsilon(last.gain.dtype))
    status = worst(
        status_if(~(at.done | (jnp.abs(last.gain) <= threshold)), Status.MAX_ITERS),
        status_if(~jnp.isfinite(at.objective), Status.NON_FINITE),
    )
    gain = jnp.where(jnp.isfinite(last.gain), last.gain, 0)
    num_iters, history = last.num_evaluations - 1, last.history
    if history is not None and at.recorded is not None:
        history = jnp.where(jnp.arange(history.shape[0]) <= num_iters, history, at.recorded)
    return EMResult(params, at.objective, gain, num_iters, jnp.asarray(at.done), status, history)
