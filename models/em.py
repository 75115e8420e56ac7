"""What `refine` has in common: limits, a start without zeros, and the result."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import check_bool, check_integer, check_number, divide, is_concrete, machine_epsilon
from latensor.decompose.internal import EMResult
from latensor.models.results import Refined

Params = TypeVar("Params")
State = TypeVar("State")


def em_limits(tol: Any, max_iters: Any, dtype: Any) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Return the tolerance and the limit on the steps, checked; by default what `dtype` can resolve, or 1e-8."""
    tol = max(10 * machine_epsilon(dtype), 1e-8) if tol is None else tol
    if is_concrete(tol) and not np.isfinite(check_number("tol", tol, 0.0)):
        raise ValueError(f"tol: expected a finite number; got {tol!r}")
    max_iters = check_integer("max_iters", max_iters, 0) if is_concrete(max_iters) else max_iters
    return jnp.asarray(check_number("tol", tol, 0.0), dtype), jnp.asarray(max_iters, jnp.int32)


def history_length(history: Any, max_iters: Any) -> int | None:
    """Return how many steps a history has room for, or `None` where none is kept."""
    if not check_bool("history", history):
        return None
    if not is_concrete(max_iters):
        raise ValueError("history: expected False where max_iters is traced: it is the length of the history; got True")
    return check_integer("max_iters", max_iters, 0)


def blend(columns: Float[Array, "d k"], overall: Float[Array, " d"], share: Float[Array, ""]) -> Float[Array, "d k"]:
    """Return probability columns with a share of the overall frequencies in each; of counts without any, none.

    Projection to the simplex leaves exact zeros, which rule a component out for every row in which that category
    occurs, and EM never leaves a zero.
    """
    total = jnp.sum(overall)
    share = jnp.where(total > 0, share, 0)
    return (1 - share) * columns + share * divide(overall, total)[:, None]


def better_start(begin: Callable[[Params], tuple[State, Float[Array, ""]]], given: Params, blended: Params) -> State:
    """Return the state in which EM begins from the better of two parameters; the given ones where they are as good."""
    candidates = jax.tree.map(lambda one, two: jnp.stack([one, two]), given, blended)
    states, objectives = lax.map(begin, candidates)
    chosen = jnp.where(objectives[0] >= objectives[1], 0, 1)
    return jax.tree.map(lambda leaf: leaf[chosen], states)


def as_refined(result: EMResult, params: Any) -> Refined:
    """Return what `refine` returns, for EM whose objective is the mean log-likelihood of a row."""
    return Refined(params, result.status, result.num_iters, result.gain, result.objective, result.history)
