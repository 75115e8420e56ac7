"""The joint distribution of hidden variables from that of their views, given the conditionals of each view.

    M[x₁, …, x_m] = Σ_{h₁…h_m} Z[h₁, …, h_m] O₁[x₁, h₁] ⋯ O_m[x_m, h_m],   `M = Z(O₁, …, O_m)` for short

`Z` is the marginal of the hidden variables, `M` that of their exclusive views, and `O_v[x, h] = P(x_v = x | h_v = h)`.
There are two estimators of `Z`: pseudoinverses mode by mode, linear and possibly negative; or the maximum of the
composite likelihood `L(Z) = Σ_x M[x] log Z(O[x])` over the simplex (see `_composite`). `O = O₁⊗…⊗O_m` is never formed:
products go mode by mode.

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods, §4.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import (
    as_float,
    as_numbers,
    check_axes,
    einsum,
    freeze,
    machine_epsilon,
    small_jit,
)
from latensor.decompose._composite import (
    Maximum,
    Objective,
    attach_maximum,
    make_objective,
    maximize_by_em,
    maximize_by_newton,
    normalize,
    uniform,
)
from latensor.decompose._singular import pseudoinverse
from latensor.decompose._status import Status, status_if, worst

# Newton systems are solved up to this number of joint states; beyond it, EM is extrapolated.
_NEWTON_UP_TO = 512


class Marginals(NamedTuple):
    """A joint distribution of hidden variables, and a bound on its distance from the best."""

    table: Float[Array, "..."]
    """`Z (k₁, …, k_m)`, sums to one."""
    log_likelihood: Float[Array, ""]
    """`Σ_x M[x] log Z(O[x])`, with `M` scaled to sum to one."""
    gap: Float[Array, ""]
    """No distribution has a log-likelihood that is larger by more than this."""
    num_iters: Int[Array, ""]
    """Evaluations of the likelihood and its gradient; for plain EM, one per step."""
    status: Int[Array, ""]


def _apply(tensor: Float[Array, "..."], matrices: tuple[Array, ...]) -> Float[Array, "..."]:
    """Return `T(A₁, …, A_m)`: mode v of the tensor is contracted with the columns of `A_v`."""
    # Each turn contracts the first mode and puts the new one last: after m turns the order is as before.
    for matrix in matrices:
        tensor = einsum("ab,b...->...a", matrix, tensor)
    return tensor


def _curvature(weights: Array, conditionals: tuple[Array, ...]) -> Array:
    """Return `Oᵀ diag(weights) O`, `(K, K)` for `K = Π k`, by contracting each mode with pairs of columns of `O_v`."""
    m, shape = len(conditionals), tuple(matrix.shape[1] for matrix in conditionals)
    squares = tuple(
        (matrix.T[:, None, :] * matrix.T[None, :, :]).reshape(-1, matrix.shape[0]) for matrix in conditionals
    )
    tensor = _apply(weights, squares).reshape([k for k in shape for _ in range(2)])
    tensor = jnp.transpose(tensor, (*range(0, 2 * m, 2), *range(1, 2 * m, 2)))
    return tensor.reshape(math.prod(shape), math.prod(shape))


def _check(counts: Any, conditionals: Any) -> tuple[Array, tuple[Array, ...]]:
    matrices = check_matrices("conditionals", conditionals, "categories states")
    sizes = tuple(matrix.shape[0] for matrix in matrices)
    table = as_float(as_numbers("counts", counts, f"numbers {sizes}"))
    if table.shape != sizes:
        raise ValueError(f"counts: expected shape {sizes}, one mode per conditional; got {table.shape}")
    return table, matrices


def check_matrices(name: str, matrices: Any, axes: str) -> tuple[Array, ...]:
    """Return matrices whose axes are named by `axes`, one per mode."""
    if not isinstance(matrices, tuple | list) or not matrices:
        raise ValueError(f"{name}: expected a tuple of matrices ({axes.replace(' ', ', ')}), one per mode; got none")
    return tuple(check_axes(name, matrix, axes) for matrix in matrices)


def tolerance_of(tol: float | Array | None, dtype: jnp.dtype) -> Array:
    """Return the gap at which to stop."""
    return jnp.asarray(max(1e-6, 100 * machine_epsilon(dtype)) if tol is None else tol, dtype)


def certify(objective: Objective, maximum: Maximum, tol: Array) -> Marginals:
    """Compute the likelihood of a table and its gap, which decides on the status."""
    gradient, value = objective.multiplier(maximum.table)
    gap = jnp.maximum(jnp.max(gradient) - 1, 0)
    status = worst(
        status_if(~(gap <= tol), Status.MAX_ITERS),
        status_if(~(jnp.sum(objective.weights) > 0), Status.UNOBSERVED),
        status_if(~objective.finite | ~jnp.isfinite(gap), Status.NON_FINITE),
    )
    return Marginals(maximum.table, value, gap, maximum.num_evaluations, status)


@small_jit
def pseudoinverse_marginals(
    counts: Float[Array, "..."], conditionals: tuple[Float[Array, "_ _"], ...]
) -> Float[Array, "..."]:
    """Estimate the joint distribution of hidden variables by pseudoinverses: `M(O₁⁺, …, O_m⁺)`.

    Exact if the table is; with noise, entries may be negative and need not sum to one.

    Args:
      counts: `(d₁, …, d_m)`, a table of frequencies; counts give counts. For real-valued views, the mean of their
        products.
      conditionals: `O_v (d_v, k_v)`, one matrix per mode; for real-valued views, conditional means.

    Returns:
      The table `(k₁, …, k_m)`.

    """
    counts, conditionals = _check(counts, conditionals)
    return _apply(counts, tuple(pseudoinverse(matrix) for matrix in conditionals))


@small_jit(static_argnames="accelerate")
def composite_likelihood_em(
    counts: Float[Array, "..."],
    conditionals: tuple[Float[Array, "_ _"], ...],
    *,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = 1_000,
    accelerate: bool = True,
    start: Float[Array, "..."] | None = None,
) -> Marginals:
    """Maximize the composite likelihood of a table over the joint distributions of hidden variables.

    Args:
      counts: `(d₁, …, d_m)`, counts or frequencies of the views. Negative entries, which noisy moments may have, count
        as zero, as do entries that no state can emit; the rest is scaled to sum to one.
      conditionals: `O_v (d_v, k_v)`, `P(x_v | h_v)`, one matrix per mode; columns sum to one.
      tol: the gap at which to stop; default 1e-6, or the resolution of float32.
      max_iters: limit on the evaluations of the likelihood and its gradient, at least one.
      accelerate: use Newton steps up to 512 joint states, and extrapolation beyond, wherever they raise the likelihood.
        False: plain EM.
      start: a distribution `(k₁, …, k_m)` without zeros to start from; default: the uniform one.

    Returns:
      `Marginals` with a `table (k₁, …, k_m)`. The status is `MAX_ITERS` where the gap is above `tol`, `UNOBSERVED`
      where no count is above zero or none can come from the conditionals: the table is then uniform.

    Cost: `O(Π d · k)` per evaluation, and `O(K³)` per Newton step with `K` joint states.

    """
    given = _check(counts, conditionals)
    counts, conditionals = freeze(given)
    shape, tol = tuple(matrix.shape[1] for matrix in conditionals), tolerance_of(tol, counts.dtype)
    objective = _table_objective(counts, conditionals)
    begin = uniform(shape, counts.dtype)
    if start is not None:
        first = as_float(as_numbers("start", start, "a distribution of the states"))
        if first.shape != shape:
            raise ValueError(f"start: expected shape {shape}, the states of the conditionals; got {first.shape}")
        begin = normalize(freeze(first), begin)
    if accelerate and math.prod(shape) <= _NEWTON_UP_TO:
        limit = jnp.asarray(max_iters, jnp.int32)
        best = maximize_by_newton(objective, lambda weights: _curvature(weights, conditionals), begin, tol, limit)
    else:
        best = maximize_by_em(objective, begin, tol, max_iters, accelerate)
    marginals = certify(objective, best, tol)
    return marginals._replace(table=attach_maximum(_table_gradient, marginals.table, given))


def _table_objective(counts: Array, conditionals: tuple[Array, ...]) -> Objective:
    transposed = tuple(matrix.T for matrix in conditionals)
    return make_objective(
        lambda table: _apply(table, conditionals),
        lambda ratio: _apply(ratio, transposed),
        counts,
        tuple(matrix.shape[1] for matrix in conditionals),
    )


def _table_gradient(parts: tuple[Array, tuple[Array, ...]], table: Array) -> Array:
    return _table_objective(*parts).multiplier(table)[0]
