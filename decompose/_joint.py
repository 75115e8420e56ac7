"""Joint diagonalization of several symmetric matrices, orthogonal and not, with random and plug-in projections.

The model is `M_l ≈ U diag(d_l) Uᵀ`, `l = 1..m`, with `U (k, k)` orthogonal or only invertible. The slices `T[:, :, l]`
of a symmetric tensor are such matrices, and so are their combinations `T(I, I, w) = Σ_l w_l M_l`. The sweeps that find
`U` are in `_jacobi`; here are the projections, the choice of diagonals and the checks of the result.

Source: Kuleshov, Chaganty, Liang (2015), Tensor factorization via matrix factorization, Algorithm 1.
"""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from latensor.base import (
    check_axes,
    check_key,
    check_option,
    einsum,
    freeze,
    machine_epsilon,
    matmul,
    positive_or_one,
    small_jit,
)
from latensor.decompose._jacobi import congruence, diagonals_of, row_lengths, sweep_until_diagonal
from latensor.decompose._linalg import check_number_of
from latensor.decompose._singular import pseudoinverse
from latensor.decompose._status import Status, status_if, worst

Method = Literal["ojd0", "ojd1", "nojd0", "nojd1"]

_MAX_SWEEPS = 100


class JointDiagonalization(NamedTuple):
    """`M_l ≈ Σ_h diagonals[l, h] u_h u_hᵀ`; the columns `u_h` of `factors` have length one.

    They are in decreasing order of the norms of their diagonals; the entry of largest magnitude is positive.
    """

    factors: Float[Array, "k k"]
    diagonals: Float[Array, "m k"]
    residual: Float[Array, ""]
    """`√(Σ_l |M_l − U diag(d_l) Uᵀ|² / Σ_l |M_l|²)`, over the given matrices."""
    num_iters: Int[Array, ""]
    """Sweeps, over both rounds."""
    status: Int[Array, ""]


def _unit_factors(basis: Array, orthogonal: bool) -> Array:
    """Return `B⁻¹` with columns of length one."""
    identity = jnp.eye(basis.shape[0], dtype=basis.dtype)
    if orthogonal:
        # One step towards the closest orthogonal matrix removes the accumulated rounding of many rotations.
        return matmul((3 * identity - matmul(basis, basis.T)) / 2, basis).T
    factors = jnp.linalg.inv(basis / row_lengths(basis)[:, None])
    factors = jnp.where(jnp.all(jnp.isfinite(factors)), factors, identity)
    return factors / jnp.sqrt(jnp.sum(factors**2, axis=0))[None, :]


def _fit_diagonals(matrices: Array, factors: Array) -> Array:
    """Return the diagonals that fit the matrices best, by least squares."""
    products = diagonals_of(congruence(factors.T, matrices))
    # The squared inner products are those of the u_h u_hᵀ. Columns that coincide share their diagonal.
    return matmul(products, pseudoinverse(matmul(factors.T, factors) ** 2))


def _random_weights(key: Array, num_projections: int, matrices: Array) -> Array:
    """Return `(p, m)` weights, uniform on the sphere."""
    weights = jax.random.normal(key, (num_projections, matrices.shape[0]), matrices.dtype)
    return weights / row_lengths(weights)[:, None]


def _plug_in_weights(diagonals: Array) -> Array:
    """Return `(k, m)` weights of length one, each orthogonal to the diagonals of all other components."""
    weights = pseudoinverse(diagonals)
    return weights / positive_or_one(row_lengths(weights))[:, None]


def _project(weights: Array, matrices: Array) -> Array:
    return einsum("pl,lij->pij", weights, matrices)


def _is_arbitrary(matrices: Array, diagonals: Array, orthogonal: bool) -> Bool[Array, ""]:
    """Return whether the matrices leave the components open, up to rounding."""
    k = matrices.shape[1]
    rounding = 64 * k * machine_epsilon(matrices.dtype)
    arbitrary = ~(_separation(diagonals, orthogonal) > rounding)
    if orthogonal:
        return arbitrary
    # A common null vector: a component without weight in any matrix can point anywhere unless U is orthogonal.
    values = jnp.linalg.svd(freeze(matrices).reshape(-1, k), compute_uv=False)
    return arbitrary | (values[-1] <= rounding * values[0])


def _separation(diagonals: Array, orthogonal: bool) -> Array:
    """Return the distance of the two components that are hardest to tell apart: zero if they are arbitrary.

    Orthogonal components need different diagonals, others need diagonals that are not proportional.
    """
    k = diagonals.shape[1]
    norms = jnp.sqrt(jnp.sum(diagonals**2, axis=0))
    unit = diagonals / positive_or_one(jnp.max(norms)[None] if orthogonal else norms)[None, :]
    coefficients = jnp.ones((k, k), diagonals.dtype) if orthogonal else matmul(unit.T, unit)
    apart = unit[:, :, None] - unit[:, None, :] * coefficients[None, :, :]
    distances = jnp.sqrt(jnp.sum(apart**2, axis=0))
    return jnp.min(jnp.where(jnp.eye(k, dtype=bool), 1, distances))


def _arrange(factors: Array, diagonals: Array) -> tuple[Array, Array]:
    """Sort the components by the norm of their diagonals and fix the signs of the columns."""
    order = jnp.argsort(-jnp.sum(diagonals**2, axis=0))
    factors, diagonals = factors[:, order], diagonals[:, order]
    peaks = jnp.take_along_axis(factors, jnp.argmax(jnp.abs(factors), axis=0)[None, :], axis=0)
    return factors * jnp.where(peaks < 0, -1, 1).astype(factors.dtype), diagonals


def _residual(matrices: Array, factors: Array, diagonals: Array) -> Array:
    left = matrices - einsum("ih,lh,jh->lij", factors, diagonals, factors)
    return jnp.sqrt(jnp.sum(left**2)) / positive_or_one(jnp.sqrt(jnp.sum(matrices**2)))


def _check(method: str, key: Array | None, num_projections: int | None) -> None:
    check_option("method", method, get_args(Method))
    if num_projections is not None:
        check_number_of("num_projections", num_projections)
        if key is None:
            raise ValueError(f"key: expected a random key to draw {num_projections} projections with; got None")


@small_jit(static_argnames=("method", "num_projections"))
def joint_diagonalization(
    matrices: Float[Array, "m k k"],
    method: Method = "nojd1",
    *,
    key: Array | None = None,
    num_projections: int | None = None,
    tol: float | Float[Array, ""] | None = None,
    max_sweeps: int | Int[Array, ""] = _MAX_SWEEPS,
) -> JointDiagonalization:
    """Find one `U` with `M_l ≈ U diag(d_l) Uᵀ` for all matrices.

    Args:
      matrices: `(m, k, k)`; their symmetric parts are diagonalized. For a symmetric tensor these are its slices.
      method: `ojd…` for an orthogonal `U`, `nojd…` for one that is only invertible. `…0` is one round, on random
        projections or on the given matrices. `…1` adds a second round, which starts from the `U` of the first, on the
        plug-in projections `Σ_l w_l M_l`: `w` is the h-th column of `pinv(D)ᵀ`, `D (m, k)` being the diagonals of the
        first round, so that only component h remains; `w` is scaled to length one, as the random ones are.
      key: a random key, for the projections. Without one, the first round uses the given matrices.
      num_projections: number of random projections `Σ_l w_l M_l` (`w` uniform on the sphere); default: m.
      tol: a round has converged when a sweep moves no pair of entries by more than this, relative to the norm of the
        matrices; default: 64 machine epsilons.
      max_sweeps: limit on the sweeps of each round.

    Returns:
      `JointDiagonalization`. The status is `DEGENERATE` where two components cannot be told apart beyond rounding:
      equal columns of `diagonals` if `U` is orthogonal; proportional or zero columns otherwise. `MAX_ITERS` where the
      last round has not met `tol`.

    The second round pays if the first had few projections. It cannot improve much on a first round with all matrices:
    for an orthogonal tensor the plug-in projections of all slices are a rotation of the slices, and otherwise they
    amplify the noise by `1/sin` of the angle between a column of `D` and *all* others, not the closest other.

    Cost: `O(m k⁴)` per sweep, as k products of `k × k` matrices with all m; if not orthogonal, k²/2 short steps more. A
    batch under `vmap` runs to its slowest lane.

    """
    matrices = check_axes("matrices", matrices, "m k k")
    key = None if key is None else check_key(key)
    _check(method, key, num_projections)
    m, k, _ = matrices.shape
    dtype = matrices.dtype
    orthogonal = method.startswith("ojd")
    tol = jnp.asarray(64 * machine_epsilon(dtype) if tol is None else tol, dtype)
    finite = jnp.all(jnp.isfinite(matrices))
    matrices = jnp.where(finite, matrices, 0)  # LAPACK may hang on a NaN
    largest = positive_or_one(jnp.max(jnp.abs(matrices)))
    matrices = matrices / largest
    matrices = (matrices + jnp.swapaxes(matrices, 1, 2)) / 2

    projected = matrices
    if key is not None:
        projected = _project(_random_weights(key, num_projections or m, matrices), matrices)
    last = sweep_until_diagonal(projected, jnp.eye(k, dtype=dtype), orthogonal, tol, max_sweeps)
    num_iters = last.num_iters
    if method.endswith("1"):
        weights = _plug_in_weights(_fit_diagonals(matrices, _unit_factors(last.basis, orthogonal)))
        last = sweep_until_diagonal(_project(weights, matrices), last.basis, orthogonal, tol, max_sweeps)
        num_iters = num_iters + last.num_iters

    factors = _unit_factors(last.basis, orthogonal)
    factors, diagonals = _arrange(factors, _fit_diagonals(matrices, factors))
    residual = _residual(matrices, factors, diagonals)
    arbitrary = _is_arbitrary(matrices, diagonals, orthogonal)
    diagonals = diagonals * largest
    good = finite & jnp.all(jnp.isfinite(diagonals)) & jnp.isfinite(residual)
    return JointDiagonalization(
        factors=jnp.where(good, factors, jnp.nan),
        diagonals=jnp.where(good, diagonals, jnp.nan),
        residual=jnp.where(good, residual, jnp.nan),
        num_iters=num_iters,
        status=worst(
            status_if(~(last.change <= tol), Status.MAX_ITERS),
            status_if(arbitrary, Status.DEGENERATE),
            status_if(~good, Status.NON_FINITE),
        ),
    )
