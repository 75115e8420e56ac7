"""The joint distribution of hidden variables from that of their views, given the conditionals of each view.

    M[x₁, …, x_m] = Σ_{h₁…h_m} Z[h₁, …, h_m] O₁[x₁, h₁] ⋯ O_m[x_m, h_m],   `M = Z(O₁, …, O_m)` for short

`Z` is the marginal of the hidden variables, `M` that of their exclusive views, and `O_v[x, h] = P(x_v = x | h_v = h)`.
There are two estimators of `Z`: pseudoinverses mode by mode, linear and possibly negative; or the maximum of the
composite likelihood `L(Z) = Σ_x M[x] log Z(O[x])` over the simplex (see `_composite`). `O = O₁⊗…⊗O_m` is never formed:
products go mode by mode.

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods, §4.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import (
    as_float,
    as_numbers,
    check_axes,
    einsum,
    machine_epsilon,
    matmul,
    name_bad_arguments,
    small_jit,
)
from latensor.decompose._composite import (
    Maximum,
    Objective,
    make_objective,
    maximize_by_em,
    maximize_by_newton,
    normalize,
    uniform,
)
from latensor.decompose._linalg import pseudoinverse
from latensor.decompose._status import Status, status_if, worst

# Newton systems are solved up to this number of joint states; beyond it, EM is extrapolated.
_NEWTON_UP_TO = 512
# Rows that are summed at a time.
_BLOCK = 1024


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
    matrices = _check_matrices("conditionals", conditionals, "categories states")
    sizes = tuple(matrix.shape[0] for matrix in matrices)
    table = as_float(as_numbers("counts", counts, f"numbers {sizes}"))
    if table.shape != sizes:
        raise ValueError(f"counts: expected shape {sizes}, one mode per conditional; got {table.shape}")
    return table, matrices


def _check_matrices(name: str, matrices: Any, axes: str) -> tuple[Array, ...]:
    if not isinstance(matrices, tuple | list) or not matrices:
        raise ValueError(f"{name}: expected a tuple of matrices ({axes.replace(' ', ', ')}), one per mode; got none")
    return tuple(check_axes(name, matrix, axes) for matrix in matrices)


def _tolerance(tol: float | Array | None, dtype: jnp.dtype) -> Array:
    return jnp.asarray(max(1e-6, 100 * machine_epsilon(dtype)) if tol is None else tol, dtype)


def _certify(objective: Objective, maximum: Maximum, tol: Array) -> Marginals:
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
    counts, conditionals = _check(counts, conditionals)
    transposed = tuple(matrix.T for matrix in conditionals)
    shape, tol = tuple(matrix.shape[1] for matrix in conditionals), _tolerance(tol, counts.dtype)
    objective = make_objective(
        lambda table: _apply(table, conditionals), lambda ratio: _apply(ratio, transposed), counts, shape
    )
    begin = uniform(shape, counts.dtype)
    if start is not None:
        given = as_float(as_numbers("start", start, "a distribution of the states"))
        if given.shape != shape:
            raise ValueError(f"start: expected shape {shape}, the states of the conditionals; got {given.shape}")
        begin = normalize(given, begin)
    if accelerate and math.prod(shape) <= _NEWTON_UP_TO:
        limit = jnp.asarray(max_iters, jnp.int32)
        best = maximize_by_newton(objective, lambda weights: _curvature(weights, conditionals), begin, tol, limit)
    else:
        best = maximize_by_em(objective, begin, tol, max_iters, accelerate)
    return _certify(objective, best, tol)


def _sum_of_products(left: Float[Array, "n a"], right: Float[Array, "n b"]) -> Float[Array, "a b"]:
    """Return `leftᵀ right`, summed block by block.

    XLA on CPU adds the rows of small products up one by one: in float32 a hundred thousand of them cost two digits.
    """
    n = left.shape[0]
    whole = n - n % _BLOCK
    blocks = (part[:whole].reshape(-1, _BLOCK, part.shape[1]) for part in (left, right))
    return jnp.sum(einsum("cna,cnb->cab", *blocks), axis=0) + matmul(left[whole:].T, right[whole:])


@name_bad_arguments(("accelerate", "newton"))
@partial(jax.jit, static_argnames=("accelerate", "newton"))
def composite_likelihood_em_samples(
    likelihoods: tuple[Float[Array, "n _"], ...],
    row_weights: Float[Array, " n"] | None = None,
    *,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = 1_000,
    accelerate: bool = True,
    newton: bool = False,
) -> Marginals:
    """Maximize the composite likelihood of samples: `composite_likelihood_em` without a table.

    Args:
      likelihoods: `(n, k_v)` per mode, `P(x_v | h_v)` of each sample's view for each state: rows of `O_v` for
        categorical views, densities for real ones. Rows may be scaled arbitrarily.
      row_weights: `(n,)`, how often each sample was seen; default: once. They need not sum to one.
      tol: as for `composite_likelihood_em`.
      max_iters: as for `composite_likelihood_em`.
      accelerate: extrapolate wherever that raises the likelihood. False: plain EM.
      newton: take Newton steps instead, `O(n K²)` each for `K` joint states: a dozen, where EM takes hundreds.

    Returns:
      `Marginals`; its `log_likelihood` is that of the likelihoods as given.

    Cost: `O(n Π k)` per evaluation.

    """
    likelihoods = _check_matrices("likelihoods", likelihoods, "n states")
    rows = {part.shape[0] for part in likelihoods}
    if len(rows) != 1:
        raise ValueError(f"likelihoods: expected one matrix (n, states) per mode, all with n rows; got {rows}")
    n, first = rows.pop(), likelihoods[0]
    shape = tuple(part.shape[1] for part in likelihoods)
    weights = jnp.ones(n, first.dtype) if row_weights is None else check_axes("row_weights", row_weights, "n")
    if weights.shape != (n,):
        raise ValueError(f"row_weights: expected one per row, shape ({n},); got shape {weights.shape}")
    weights = weights.astype(first.dtype)

    def predict(table: Array) -> Array:
        fitted = matmul(first, table.reshape(table.shape[0], -1))
        for part in likelihoods[1:]:
            fitted = jnp.sum(part[:, :, None] * fitted.reshape(n, part.shape[1], -1), axis=1)
        return fitted.reshape(n)

    def spread(parts: tuple[Array, ...]) -> Array:
        product = jnp.ones((n, 1), first.dtype)
        for part in parts:
            product = (product[:, :, None] * part[:, None, :]).reshape(n, -1)
        return product

    def adjoint(ratio: Array) -> Array:
        return _sum_of_products(ratio[:, None] * first, spread(likelihoods[1:])).reshape(shape)

    def curvature(ratio: Array) -> Array:
        rows = spread(likelihoods)
        return _sum_of_products(ratio[:, None] * rows, rows)

    objective = make_objective(predict, adjoint, weights, shape)
    tol, begin = _tolerance(tol, weights.dtype), uniform(shape, weights.dtype)
    if newton:
        best = maximize_by_newton(objective, curvature, begin, tol, jnp.asarray(max_iters, jnp.int32))
    else:
        best = maximize_by_em(objective, begin, tol, max_iters, accelerate)
    return _certify(objective, best, tol)
