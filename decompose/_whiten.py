"""Whitening: from a rank-k second moment to a space in which its components are orthonormal.

`S = Σ_h s_h a_h a_hᵀ` with top-k eigenpairs `(U, Λ)`: whitener `W = U Λ^{-1/2}`, unwhitener `B = U Λ^{1/2}`. Then
`Wᵀ S W = I`, the vectors `v_h = √s_h Wᵀa_h` are orthonormal, and `B v_h = √s_h a_h` leads back.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.decompose._status import Status, check_rank, status_if, worst

# Where the k-th direction is noise, its eigenvalue is as large as the noise itself, give or take a factor of two.
_NOISE_MARGIN = 2


class Whitening(NamedTuple):
    """A whitener of rank k, its way back, and what the spectrum says about the rank."""

    whitener: Float[Array, "d k"]
    unwhitener: Float[Array, "d k"]
    eigenvalues: Float[Array, " k"]
    """The k largest eigenvalues, in decreasing order."""
    noise: Float[Array, ""]
    """Magnitude of the most negative eigenvalue that was seen. An exact second moment has none, and sampling noise has
    as many of either sign: a k-th eigenvalue that is not well above it may be noise."""
    residual: Float[Array, ""]
    """Relative residual `|S U − U Λ| / λ_k` of the eigenvectors where they were computed iteratively, else zero."""
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def _from_eigenpairs(
    vectors: Array, values: Array, noise: Array, residual: Array, num_iters: Array, status: Array
) -> Whitening:
    # A direction without variance is left out (zero columns, as a pseudoinverse would): dividing by it gives
    # infinities, and flooring it gives huge numbers that drown the directions which are fine.
    # Rounding leaves eigenvalues off by about eps · λ₁; between that and d times that they are used but not trusted.
    largest = jnp.maximum(values[0], 0)
    eps = float(jnp.finfo(values.dtype).eps)
    usable = values > eps * largest
    doubtful = values[-1] <= jnp.maximum(vectors.shape[0] * eps * largest, _NOISE_MARGIN * noise)
    root = jnp.sqrt(jnp.where(usable, values, 1))
    finite = jnp.all(jnp.isfinite(values)) & jnp.all(jnp.isfinite(vectors))
    return Whitening(
        whitener=jnp.where(usable, 1 / root, 0)[None, :] * vectors,
        unwhitener=jnp.where(usable, root, 0)[None, :] * vectors,
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


@partial(jax.jit, static_argnames="rank")
def whiten(second: Float[Array, "d d"], rank: int) -> Whitening:
    """Whiten by the `rank` largest eigenvalues of a symmetric matrix.

    One dense `eigh`: `O(d³)`. The status is `RANK_DEFICIENT` where the k-th eigenvalue is not above rounding
    (`d · eps · λ₁`) or not above twice the `noise`; directions at rounding level are left out and nothing becomes NaN.
    """
    check_rank(rank, second.shape[0])
    values, vectors = jnp.linalg.eigh((second + second.T) / 2)
    top_values, top_vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    return _from_eigenpairs(
        top_vectors,
        top_values,
        noise=jnp.maximum(-values[0], 0),
        residual=jnp.zeros((), second.dtype),
        num_iters=jnp.int32(0),
        status=worst(),
    )


class _SubspaceState(NamedTuple):
    basis: Float[Array, "d r"]
    image: Float[Array, "d r"]
    values: Float[Array, " r"]
    residual: Float[Array, ""]
    limit: Float[Array, ""]
    num_iters: Int[Array, ""]


def _orthonormalize(columns: Float[Array, "d r"]) -> Float[Array, "d r"]:
    """Return an orthonormal basis of the columns; a direction that is not there becomes a zero column.

    From the eigenvectors of the Gram matrix, twice (the second time removes the rounding of the first). A QR of the
    tall matrix does the same, but it is slow on GPUs, and on CPUs the LAPACK threads that it wakes keep spinning and
    take the cores from the products that follow: 130 in place of 80 ms an iteration at n = 100,000, d = 1,000.
    """
    eps = float(jnp.finfo(columns.dtype).eps)
    for _ in range(2):
        lengths = jnp.linalg.norm(columns, axis=0)
        columns = columns / jnp.where(lengths > 0, lengths, 1)[None, :]
        values, vectors = jnp.linalg.eigh(jnp.matmul(columns.T, columns, precision="highest"))
        there = values > 10 * eps * values[-1]
        scale = jnp.where(there, 1 / jnp.sqrt(jnp.where(there, values, 1)), 0)
        columns = jnp.matmul(columns, vectors * scale[None, :], precision="highest")
    return columns


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

    Randomized subspace iteration with Rayleigh–Ritz: `basis ← orth(S basis)` on `rank + oversample` columns, until the
    eigenpairs that are kept satisfy `|S U − U Λ| ≤ tol · λ_k`. The error shrinks by `|λ_{r+1}| / λ_k` an iteration,
    `r = rank + oversample`. Never forms `(d, d)`. Call it from jitted code: by itself it compiles anew each time.

    Args:
      key: a random key, for the start.
      operator: `V ↦ S V` on `(d, r)` blocks. Wrap data in `jax.tree_util.Partial` to jit over it.
      dimension: `d`.
      rank: number of directions to keep.
      oversample: columns carried beyond `rank`; they speed convergence up and show the noise.
      tol: relative residual at which to stop, if rounding lets it; default: the square root of the machine epsilon.
      max_iters: limit on the products with `S`.
      dtype: floating type; default: float64 where x64 is enabled, else float32.
      start: columns near the dominant subspace, if some are known; random ones fill up.

    Cost: one `operator` call on `rank + oversample` columns an iteration, and `O(d r²)` beside it.

    """
    check_rank(rank, dimension)
    dtype = jnp.dtype(dtype or jnp.result_type(float))
    eps = float(jnp.finfo(dtype).eps)  # a Python number: NumPy 1 makes float64 of a float32 scalar times an int
    tol = jnp.asarray(math.sqrt(eps) if tol is None else tol, dtype)
    columns = min(dimension, rank + oversample)

    def step(state: _SubspaceState) -> _SubspaceState:
        basis = _orthonormalize(state.image)
        image = operator(basis)
        small = jnp.matmul(basis.T, image, precision="highest")
        values, rotation = jnp.linalg.eigh((small + small.T) / 2)
        values, rotation = values[::-1], rotation[:, ::-1]
        basis = jnp.matmul(basis, rotation, precision="highest")
        image = jnp.matmul(image, rotation, precision="highest")
        miss = jnp.linalg.norm((image - basis * values[None, :])[:, :rank])
        # Rounding alone leaves about eps · λ₁, which no number of iterations removes.
        rounding = 4 * math.sqrt(rank) * eps * jnp.max(jnp.abs(values))
        smallest = jnp.maximum(values[rank - 1], rounding)
        smallest = jnp.where(smallest > 0, smallest, 1)
        limit = jnp.maximum(tol, rounding / smallest)
        return _SubspaceState(basis, image, values, miss / smallest, limit, state.num_iters + 1)

    def unfinished(state: _SubspaceState) -> Array:
        return (state.residual > state.limit) & (state.num_iters < max_iters)

    random = jax.random.normal(key, (dimension, columns), dtype)
    start = random if start is None else jnp.concatenate([start.astype(dtype), random], axis=1)[:, :columns]
    # No residual yet: a whole eigenvalue, which is above any sensible tolerance.
    one = jnp.ones((), dtype)
    first = _SubspaceState(start, start, jnp.zeros(columns, dtype), one, -one, jnp.int32(0))
    state = lax.while_loop(unfinished, step, first)
    return _from_eigenpairs(
        state.basis[:, :rank],
        state.values[:rank],
        noise=jnp.maximum(-state.values[-1], 0),
        residual=state.residual,
        num_iters=state.num_iters,
        status=status_if(~(state.residual <= state.limit), Status.MAX_ITERS),
    )
