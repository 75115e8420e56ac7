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


class _State(NamedTuple):
    params: Any
    at: Evaluation
    gain: Float[Array, ""]
    longest: Float[Array, ""]
    num_iters: Int[Array, ""]


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
      max_iters: limit on the EM steps.
      accelerate: False takes the steps as they are.

    """

    def unfinished(state: _State) -> Array:
        return ~state.at.done & (state.gain > tol) & (state.num_iters < max_iters)

    def cycle(state: _State) -> _State:
        first = state.at.updated
        at_first = step(first)
        second = at_first.updated
        change = jax.tree.map(jnp.subtract, first, state.params)
        bend = jax.tree.map(lambda b, a, r: b - a - r, second, first, change)
        length = _length(bend)
        # Steps that do not bend lead far away: as far as is allowed.
        far = length * state.longest <= _length(change)
        stride = jnp.where(far, state.longest, _length(change) / jnp.where(far, 1, length))
        stride = jnp.maximum(stride, 1)
        jump = jax.tree.map(lambda p, r, v: p + 2 * stride * r + stride**2 * v, state.params, change, bend)
        jump = feasible(jump, second)
        at_jump = step(jump)
        # A jump that is no good leaves the first of the two steps, which is known: no step is computed for nothing
        # else.
        good = at_jump.objective >= at_first.objective
        params, at = jax.tree.map(lambda a, b: jnp.where(good, a, b), (jump, at_jump), (first, at_first))
        longest = jnp.where(far & good, _GROWTH * state.longest, state.longest)
        longest = jnp.where(good, longest, jnp.maximum(stride / _GROWTH, 1))
        return _State(params, at, at.objective - state.at.objective, longest, state.num_iters + 2)

    def plain(state: _State) -> _State:
        at = step(state.at.updated)
        return _State(state.at.updated, at, at.objective - state.at.objective, state.longest, state.num_iters + 1)

    at = step(start)
    infinite, growth = jnp.full_like(at.objective, jnp.inf), jnp.full_like(at.objective, _GROWTH)
    last = lax.while_loop(unfinished, cycle if accelerate else plain, _State(start, at, infinite, growth, jnp.int32(1)))
    return Accelerated(last.params, last.at.objective, last.num_iters, last.gain, last.at.done)
