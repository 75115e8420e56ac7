"""Minimization of a smooth convex function by L-BFGS with a line search."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import machine_epsilon

# Where rounding leaves nothing to gain, the line search returns tiny steps: this many in a row end the loop.
_MOST_STALLED = 5


class Minimum(NamedTuple):
    """The state of the search, and its result."""

    vector: Float[Array, " p"]
    optimizer: optax.OptState
    value: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    """The largest entry of the gradient, by its absolute value."""
    num_stalled: Int[Array, ""]
    num_iters: Int[Array, ""]


def minimize(
    loss: Callable[[Float[Array, " p"]], Float[Array, ""]],
    start: Float[Array, " p"],
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
) -> Minimum:
    """Minimize a convex function by L-BFGS, until no entry of its gradient is above `tol`."""
    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)
    eps = machine_epsilon(start.dtype)

    def unfinished(state: Minimum) -> Array:
        # Not `norm <= tol`: NaN ends the loop.
        going = (state.gradient_norm > tol) & (state.num_stalled < _MOST_STALLED)
        return going & (state.num_iters < max_iters)

    def step(state: Minimum) -> Minimum:
        value, gradient = value_and_grad(state.vector, state=state.optimizer)
        updates, memory = optimizer.update(
            gradient, state.optimizer, state.vector, value=value, grad=gradient, value_fn=loss
        )
        vector = optax.apply_updates(state.vector, updates)
        new_value = optax.tree_utils.tree_get(memory, "value")
        norm = jnp.max(jnp.abs(optax.tree_utils.tree_get(memory, "grad")))
        gained = (new_value < value - eps * jnp.abs(value)) | (norm < 0.9 * state.gradient_norm)
        stalled = jnp.where(gained, 0, state.num_stalled + 1)
        return Minimum(vector, memory, new_value, norm, stalled, state.num_iters + 1)

    value, gradient = jax.value_and_grad(loss)(start)
    first = Minimum(start, optimizer.init(start), value, jnp.max(jnp.abs(gradient)), jnp.int32(0), jnp.int32(0))
    return lax.while_loop(unfinished, step, first)
