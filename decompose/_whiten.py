"""Whitening: from a rank-k second moment to a space in which its components are orthonormal.

`S = Σ_h s_h a_h a_hᵀ` with the k largest eigenpairs `(U, Λ)`: whitener `W = U Λ^{-1/2}`, unwhitener `B = U Λ^{1/2}`.
Then `Wᵀ S W = I`, the vectors `v_h = √s_h Wᵀa_h` are orthonormal, and `B v_h = √s_h a_h` maps back.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import (
    check_axes,
    check_integer,
    check_key,
    divide,
    freeze,
    machine_epsilon,
    matmul,
    open_function,
    positive_or_one,
    small_jit,
)
from latensor.decompose._eigenspace import Eigenspace, attach_dense, attach_operator, take_roots
from latensor.decompose._linalg import check_rank, orthonormal_basis
from latensor.decompose._status import Status, status_if, worst

# If the k-th direction is noise, its eigenvalue is as large as the noise itself, within a factor of two.
_NOISE_MARGIN = 2


class Whitening(NamedTuple):
    """A whitener of rank k, the map back, and the part of the spectrum that tells whether the rank is right."""

    whitener: Float[Array, "d k"]
    """`W`, with `Wᵀ S W = I`."""
    unwhitener: Float[Array, "d k"]
    """`B`, with `B Wᵀ` the projection to the column space of `W`."""
    eigenvalues: Float[Array, " k"]
    """The k largest eigenvalues, in decreasing order."""
    noise: Float[Array, ""]
    """Magnitude of the most negative eigenvalue seen. An exact second moment has none, and sampling noise is as often
    negative as positive: a k-th eigenvalue that is not well above this may be noise."""
    residual: Float[Array, ""]
    """Relative residual `|S U − U Λ| / λ_k` of eigenvectors that were computed iteratively; zero otherwise."""
    num_iters: Int[Array, ""]
    """Iterations; zero for a dense `eigh`."""
    status: Int[Array, ""]


def _from_eigenspace(space: Eigenspace, noise: Array, residual: Array, num_iters: Array, status: Array) -> Whitening:
    vectors, values = space.vectors, jnp.diagonal(space.inner)
    # Directions without variance are left out (zero columns, as in a pseudoinverse): dividing by their eigenvalue gives
    # infinities, and flooring it gives huge numbers that drown the other directions.
    # Rounding perturbs eigenvalues by about eps · λ₁; between that and d times that they are used but not trusted.
    largest = jnp.maximum(values[0], 0)
    eps = machine_epsilon(values.dtype)
    usable = values > eps * largest
    doubtful = values[-1] <= jnp.maximum(vectors.shape[0] * eps * largest, _NOISE_MARGIN * noise)
    finite = jnp.all(jnp.isfinite(values)) & jnp.all(jnp.isfinite(vectors))
    roots = take_roots(space, usable)
    return Whitening(
        whitener=roots.whitener,
        unwhitener=roots.unwhitener,
        eigenvalues=values,
        noise=noise,
        residual=residual,
        num_iters=num_iters,
        status=worst(
            status,
            status_if(doubtful, Status.RANK_DEFICIENT),
            status_if(~finite, Status.NON_FINITE),
        ),
    )


@small_jit(static_argnames="rank")
def whiten(second: Float[Array, "d d"], rank: int) -> Whitening:
    """Whiten by the `rank` largest eigenvalues of a symmetric matrix.

    Args:
      second: `(d, d)`, a second moment; its symmetric part is used.
      rank: number of directions to keep, at most d.

    Returns:
      `Whitening`. The status is `RANK_DEFICIENT` where the k-th eigenvalue is not above rounding (`d · eps · λ₁`) or
      not above twice the `noise`. Directions at rounding level get zero columns, so nothing becomes NaN.

    Derivatives are those of the space that the directions span, also where eigenvalues coincide; a whitener is one of
    many that differ by a rotation, so only what does not depend on the rotation has a derivative.

    Cost: one dense `eigh`, `O(d³)`. See `whiten_operator` for large d.

    """
    second = check_axes("second", second, "d d")
    check_rank(rank, second.shape[0])
    frozen = freeze(second)
    values, vectors = jnp.linalg.eigh((frozen + frozen.T) / 2)
    space = Eigenspace(vectors[:, ::-1][:, :rank], jnp.diag(values[::-1][:rank]))
    rest = jnp.arange(second.shape[0]) < second.shape[0] - rank
    return _from_eigenspace(
        attach_dense(second, space, values, vectors, rest),
        noise=jnp.maximum(-values[0], 0),
        residual=jnp.zeros((), second.dtype),
        num_iters=jnp.int32(0),
        status=worst(),
    )


class _Subspace(NamedTuple):
    basis: Float[Array, "d r"]
    image: Float[Array, "d r"]
    """`S` times the basis."""
    values: Float[Array, " r"]
    residual: Float[Array, ""]
    limit: Float[Array, ""]
    """The residual at which to stop: the tolerance, or rounding if that is larger."""
    num_iters: Int[Array, ""]


def _rayleigh_ritz(basis: Array, image: Array) -> tuple[Array, Array, Array]:
    """Rotate a basis and its image to the eigenvectors of `S` within the subspace, the largest eigenvalue first."""
    small = matmul(basis.T, image)
    values, rotation = jnp.linalg.eigh((small + small.T) / 2)
    values, rotation = values[::-1], rotation[:, ::-1]
    return matmul(basis, rotation), matmul(image, rotation), values


def last_direction(
    key: Array,
    first: Callable[[Float[Array, "d r"]], Float[Array, "d r"]],
    second: Callable[[Float[Array, "d r"]], Float[Array, "d r"]],
    dimension: int,
    rank: int,
    *,
    num_iters: int,
    dtype: jnp.dtype,
    oversample: int = 6,
) -> Float[Array, " d"]:
    """Return roughly the `rank`-th eigenvector of one estimate of a matrix, in which a second one can be tested.

    A few subspace iterations with the `first`. A direction of noise is never quite orthogonal to the eigenvectors
    before it, whose eigenvalues are large: what it has of them according to the `second` estimate is taken out, so
    that its quadratic form there is zero on average.
    """

    def step(_: Array | int, columns: Array) -> Array:
        basis = orthonormal_basis(columns)
        return _rayleigh_ritz(basis, first(basis))[1]

    start = jax.random.normal(key, (dimension, min(dimension, rank + oversample)), dtype)
    basis = orthonormal_basis(lax.fori_loop(0, num_iters, step, start))
    vectors, _, values = _rayleigh_ritz(basis, first(basis))
    vector, before = vectors[:, rank - 1 : rank], vectors[:, : rank - 1]
    common = divide(matmul(before.T, second(vector)), jnp.maximum(values[: rank - 1], 0)[:, None])
    return (vector - matmul(before, common))[:, 0]


def whiten_operator(
    key: Array,
    operator: Callable[[Float[Array, "d r"]], Float[Array, "d r"]],
    dimension: int,
    rank: int,
    *,
    oversample: int = 6,
    tol: float | Array | None = None,
    max_iters: int | Array = 50,
    dtype: jnp.dtype | None = None,
    start: Float[Array, "d _"] | None = None,
) -> Whitening:
    """Whiten by a symmetric matrix that is only known through products with it.

    Randomized subspace iteration with Rayleigh–Ritz: `basis ← orth(S basis)` on `r = rank + oversample` columns, until
    the eigenpairs that are kept satisfy `|S U − U Λ| ≤ tol · λ_k`. Each iteration reduces the error by the factor
    `|λ_{r+1}| / λ_k`. Never forms `(d, d)`. Call it from jitted code: on its own it compiles again in each call.

    Args:
      key: a random key, for the start.
      operator: `V ↦ S V` on `(d, r)` blocks. Wrap data in `jax.tree_util.Partial` to jit over it.
      dimension: `d`.
      rank: number of directions to keep.
      oversample: number of columns beyond `rank`; they speed up convergence and show the noise.
      tol: relative residual at which to stop, if rounding permits; default: the square root of the machine epsilon.
      max_iters: limit on the products with `S`.
      dtype: floating type; default: float64 if x64 is enabled, else float32.
      start: columns close to the dominant subspace, if some are known; the others are random.

    Returns:
      `Whitening`, with statuses as for `whiten`, and `MAX_ITERS` where the residual has not met `tol`.

    Cost: one call of `operator` on r columns per iteration, plus `O(d r²)`.

    """
    key = check_key(key)
    check_rank(rank, check_integer("dimension", dimension, 1))
    oversample = check_integer("oversample", oversample, 0)
    dtype = jnp.dtype(dtype or jnp.result_type(float))
    eps = machine_epsilon(dtype)
    tol = jnp.asarray(math.sqrt(eps) if tol is None else tol, dtype)
    columns = min(dimension, rank + oversample)
    product, parts = open_function(operator, jnp.zeros((dimension, columns), dtype))
    frozen = freeze(parts)

    def step(state: _Subspace) -> _Subspace:
        basis = orthonormal_basis(state.image)
        basis, image, values = _rayleigh_ritz(basis, product(frozen, basis))
        error = jnp.linalg.norm((image - basis * values[None, :])[:, :rank])
        # Rounding alone leaves about eps · λ₁, which further iterations do not remove.
        rounding = 4 * math.sqrt(rank) * eps * jnp.max(jnp.abs(values))
        smallest = positive_or_one(jnp.maximum(values[rank - 1], rounding))
        limit = jnp.maximum(tol, rounding / smallest)
        return _Subspace(basis, image, values, error / smallest, limit, state.num_iters + 1)

    def unfinished(state: _Subspace) -> Array:
        return (state.residual > state.limit) & (state.num_iters < max_iters)

    random = jax.random.normal(key, (dimension, columns), dtype)
    start = random if start is None else jnp.concatenate([start.astype(dtype), random], axis=1)[:, :columns]
    # There is no residual yet: one, a whole eigenvalue, is above any sensible tolerance.
    one = jnp.ones((), dtype)
    first = _Subspace(start, start, jnp.zeros(columns, dtype), one, -one, jnp.int32(0))
    state = lax.while_loop(unfinished, step, first)
    space = Eigenspace(state.basis[:, :rank], jnp.diag(state.values[:rank]))
    return _from_eigenspace(
        attach_operator(*open_function(operator, space.vectors), space),
        noise=jnp.maximum(-state.values[-1], 0),
        residual=state.residual,
        num_iters=state.num_iters,
        status=status_if(~(state.residual <= state.limit), Status.MAX_ITERS),
    )
