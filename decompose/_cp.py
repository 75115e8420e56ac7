"""Canonical polyadic (CP) decompositions of a third-order tensor, nonnegative or not, with restarts as a batch.

    M ≈ Σ_h w_h a_h⊗b_h⊗c_h,   the columns of A (d₁, k), B (d₂, k), C (d₃, k)

All methods alternate: they fix two factors and improve the third (see `_cp_updates`). `M` may have any number of
negative entries; nonnegative methods keep the factors nonnegative.

Source: Tan, Mukherjee (2017), Partitioned tensor factorizations for learning mixed membership models, Algorithm 1.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import check_axes, check_key, check_option, small_jit
from latensor.decompose._cp_alternation import CPFactors, Problem, alternate, finish, make_problem, scale_start
from latensor.decompose._cp_updates import (
    Factors,
    als_rows,
    hals_rows,
    multiplicative_rows,
    pqp_rows,
    sweep_modes,
    wnmf_sweep,
)
from latensor.decompose._linalg import check_number_of, check_three

CP_METHODS = ("pqp", "hals", "wnmf", "multiplicative")

# Solving one mode further costs k² per row of a factor, setting up the next one d² k.
_UPDATES_PER_MODE = {"pqp": 5, "hals": 3, "wnmf": 1, "multiplicative": 1}


def _check(tensor: Any, rank: int, num_restarts: int, start: Any) -> tuple[Array, Factors | None]:
    tensor = check_axes("tensor", tensor, "d1 d2 d3")
    check_number_of("rank", rank)
    check_number_of("num_restarts", num_restarts)
    return tensor, None if start is None else _check_factors(start, tensor.shape, rank)


def _check_factors(start: Any, sizes: tuple[int, ...], rank: int) -> Factors:
    a, b, c = check_three("start", start, "d k")
    shapes = [a.shape, b.shape, c.shape]
    if shapes != [(size, rank) for size in sizes]:
        raise ValueError(f"start: expected three factors with {rank} columns; got shapes {shapes}")
    return a, b, c


def _starts(
    key: Array, tensor: Array, rank: int, num_restarts: int, start: Factors | None, draw: Callable[..., Array]
) -> Factors:
    """Return `num_restarts` random starts; the first is replaced by `start`, if given."""
    num_random = num_restarts if start is None else num_restarts - 1
    # One draw for all, and none if none is needed: random numbers take longest to compile.
    ends = [tensor.shape[0], tensor.shape[0] + tensor.shape[1]]
    parts = []
    if num_random:
        parts.append(jnp.split(draw(key, (num_random, sum(tensor.shape), rank), tensor.dtype), ends, axis=1))
    if start is not None:
        parts.insert(0, [factor[None] for factor in start])
    a, b, c = (jnp.concatenate(mode) for mode in zip(*parts, strict=True))
    return a, b, c


def _best_of(problem: Problem, sweep: Callable[[Factors], Factors], starts: Factors, order: int) -> CPFactors:
    """Run all starts as a batch and keep the result that explains most."""
    results = jax.vmap(lambda start: finish(problem, alternate(problem, sweep, start), order))(starts)
    best = jnp.argmin(jnp.where(jnp.isfinite(results.unexplained), results.unexplained, jnp.inf))
    return jax.tree.map(lambda leaf: leaf[best], results)


@small_jit(static_argnames=("rank", "method", "num_restarts", "accelerate"))
def nonnegative_cp(
    key: Array,
    tensor: Float[Array, "d1 d2 d3"],
    rank: int,
    method: Literal["pqp", "hals", "wnmf", "multiplicative"] = "pqp",
    *,
    num_restarts: int = 1,
    accelerate: bool = True,
    start: Factors | None = None,
    num_updates: int | Int[Array, ""] | None = None,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = 1000,
) -> CPFactors:
    """Find the nonnegative factors whose CP tensor is closest to `tensor`, which may have negative entries.

    Args:
      key: a random key, for the starts.
      tensor: `(d1, d2, d3)`, entries of either sign.
      rank: number of components `k`.
      method: `"pqp"`, parallel quadratic programming; `"hals"`, exact minimization column by column;
        `"wnmf"`, which leaves negative entries out of the objective; `"multiplicative"`, Lee and Seung's updates on the
        tensor with its negative entries set to zero. None of them ever raises its objective (beyond rounding).
      num_restarts: number of random starts, run as one batch; the best result is returned.
      accelerate: for `"pqp"`: five updates with momentum per mode, then two passes in which each coordinate in turn
        goes to the limit of its own updates. Otherwise Algorithm 1 of the paper: one update with the `φ` of Theorem 6.
      start: positive factors, used instead of the first random start.
      num_updates: updates of a mode before the next one; default: 5 for accelerated `"pqp"`, 3 for `"hals"`, else 1.
      tol: stop when the relative decrease of the objective per sweep is at most this; default: 1e-6.
      max_iters: limit on the sweeps.

    Returns:
      `CPFactors`, columns summing to one. The status is `DEGENERATE` where a component vanished.

    Cost: `4 d³ k` flops per sweep and restart, and `d² k²` for solving. A batch runs to its slowest member.

    """
    tensor, start = _check(tensor, rank, num_restarts, start)
    key = check_key(key)
    check_option("method", method, CP_METHODS)
    problem = make_problem(tensor, tol, max_iters)
    if num_updates is None:
        num_updates = 1 if method == "pqp" and not accelerate else _UPDATES_PER_MODE[method]
    if method == "multiplicative":
        problem = problem._replace(tensor=jnp.maximum(problem.tensor, 0))
    elif method == "wnmf":
        problem = problem._replace(seen=(problem.tensor >= 0).astype(tensor.dtype))
    updates = {
        "pqp": pqp_rows(accelerate, num_updates),
        "hals": hals_rows(num_updates),
        "multiplicative": multiplicative_rows(num_updates),
    }

    def sweep(factors: Factors) -> Factors:
        if method == "wnmf":
            return wnmf_sweep(problem.tensor, factors, num_updates)
        return sweep_modes(problem.tensor, factors, updates[method])

    if start is not None:
        start = scale_start(start, problem.tensor)
    starts = _starts(key, tensor, rank, num_restarts, start, jax.random.uniform)
    return _best_of(problem, sweep, starts, order=1)


@small_jit(static_argnames=("rank", "num_restarts"))
def cp_als(
    key: Array,
    tensor: Float[Array, "d1 d2 d3"],
    rank: int,
    *,
    num_restarts: int = 1,
    start: Factors | None = None,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = 1000,
) -> CPFactors:
    """Find the factors of either sign whose CP tensor is closest to `tensor`, by alternating least squares.

    Args:
      key: a random key, for the starts.
      tensor: `(d1, d2, d3)`.
      rank: number of components `k`.
      num_restarts: number of random starts, run as one batch; the best result is returned.
      start: factors, used instead of the first random start.
      tol: stop when the relative decrease of the objective per sweep is at most this; default: 1e-6.
      max_iters: limit on the sweeps.

    Returns:
      `CPFactors`; columns have length one and the weights are positive.

    Cost: `4 d³ k` flops per sweep and restart. A batch runs to its slowest member.

    """
    tensor, start = _check(tensor, rank, num_restarts, start)
    key = check_key(key)
    problem = make_problem(tensor, tol, max_iters)

    def sweep(factors: Factors) -> Factors:
        return sweep_modes(problem.tensor, factors, als_rows)

    starts = _starts(key, tensor, rank, num_restarts, start, jax.random.normal)
    return _best_of(problem, sweep, starts, order=2)
