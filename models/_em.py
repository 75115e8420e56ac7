"""The loop of every EM: steps until the log-likelihood stops rising."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.decompose import Status, status_if, worst
from latensor.models._checks import check_integer, check_number, is_concrete

Params = TypeVar("Params")

# A fall of so many roundings of the log-likelihood is nothing to speak of.
_ROUNDING = 100


class EMResult(NamedTuple):
    """Where EM stopped and why."""

    params: Any
    gain: Float[Array, ""]
    """Rise of the log-likelihood in the last step, relative to its size; one before two values could be compared."""
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


class _State(NamedTuple):
    params: Any
    before: Any
    """The parameters that the log-likelihood is of."""
    log_likelihood: Float[Array, ""]
    gain: Float[Array, ""]
    num_iters: Int[Array, ""]


def expectation_maximization(
    step: Callable[[Params], tuple[Params, Float[Array, ""]]],
    start: Params,
    start_log_likelihood: Float[Array, ""],
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
) -> EMResult:
    """Repeat `step` until it gains no more than `tol · |log-likelihood|`, or `max_iters` times.

    `step` maps parameters to better ones and to the log-likelihood of those it was given, which the E-step has anyway.
    Under `vmap` all lanes run until the slowest has finished; finished lanes stay as they are.
    """

    def unfinished(state: _State) -> Array:
        return (state.gain > tol) & (state.num_iters < max_iters)

    def advance(state: _State) -> _State:
        params, value = step(state.params)
        gain = (value - state.log_likelihood) / jnp.maximum(jnp.abs(value), 1)
        # The first step's value is that of the start: there is nothing to compare it with yet.
        gain = jnp.where(state.num_iters > 0, gain, 1)
        # Rounding can make a step fall, never mathematics: then the parameters before it are the better ones.
        fell = gain < 0
        better = jax.tree.map(lambda new, old: jnp.where(fell, old, new), params, state.before)
        return _State(better, state.params, value, gain, state.num_iters + 1)

    one = jnp.ones_like(start_log_likelihood)
    last = lax.while_loop(unfinished, advance, _State(start, start, start_log_likelihood, one, jnp.int32(0)))
    status = worst(
        status_if(
            ~(jnp.abs(last.gain) <= jnp.maximum(tol, _ROUNDING * float(jnp.finfo(last.gain.dtype).eps))),
            Status.MAX_ITERS,
        ),
        status_if(~jnp.isfinite(last.log_likelihood), Status.NON_FINITE),
    )
    return EMResult(last.params, last.gain, last.num_iters, status)


def em_limits(tol: Any, max_iters: Any, dtype: jnp.dtype) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Return the tolerance and the limit on the steps, checked; by default what `dtype` can resolve, or 1e-8."""
    tol = max(10 * float(jnp.finfo(dtype).eps), 1e-8) if tol is None else tol
    max_iters = check_integer("max_iters", max_iters, 0) if is_concrete(max_iters) else max_iters
    return jnp.asarray(check_number("tol", tol, 0.0), dtype), jnp.asarray(max_iters, jnp.int32)
