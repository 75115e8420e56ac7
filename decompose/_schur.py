"""Eigenvectors of a real, non-symmetric matrix whose eigenvalues are real, from QR steps alone.

`jnp.linalg.eig` runs on the CPU only and cannot be exported for accelerators. A matrix with real eigenvalues needs no
complex arithmetic: shifted QR steps bring it to triangular form, and back-substitution gives the eigenvectors.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int


class RealEigen(NamedTuple):
    """Eigenvalues, eigenvectors (unit columns), QR steps taken, and whether the triangular form was reached."""

    values: Float[Array, " k"]
    vectors: Float[Array, "k k"]
    num_iters: Int[Array, ""]
    converged: Bool[Array, ""]


class _State(NamedTuple):
    matrix: Float[Array, "k k"]
    basis: Float[Array, "k k"]
    active: Int[Array, ""]
    num_iters: Int[Array, ""]


def _shift(matrix: Float[Array, "k k"], active: Int[Array, ""], num_iters: Int[Array, ""]) -> Float[Array, ""]:
    """Return the eigenvalue of the last 2 × 2 block of the active part that is nearer to its last entry."""
    last = active - 1
    a, b = matrix[last - 1, last - 1], matrix[last - 1, last]
    c, d = matrix[last, last - 1], matrix[last, last]
    half = (a - d) / 2
    root = jnp.sqrt(jnp.maximum(half**2 + b * c, 0))
    shift = d + half - jnp.where(half >= 0, root, -root)
    # Every tenth step leaves the rule: a symmetric cycle of shifts would otherwise never end.
    return jnp.where(num_iters % 10 == 9, d + jnp.abs(c), shift)


def real_eigenvectors(matrix: Float[Array, "k k"], max_iters: int | Int[Array, ""] | None = None) -> RealEigen:
    """Return the eigenpairs of a matrix with real, distinct eigenvalues. `O(k³)` a step, two or three steps each."""
    k = matrix.shape[0]
    dtype = matrix.dtype
    max_iters = 60 * k if max_iters is None else max_iters
    eps = float(jnp.finfo(dtype).eps)
    scale = jnp.linalg.norm(matrix)
    index = jnp.arange(k)

    def unfinished(state: _State) -> Array:
        return (state.active > 1) & (state.num_iters < max_iters)

    def step(state: _State) -> _State:
        inside = index < state.active
        block = inside[:, None] & inside[None, :]
        shift = _shift(state.matrix, state.active, state.num_iters)
        shifted = jnp.where(block, state.matrix - shift * jnp.eye(k, dtype=dtype), jnp.eye(k, dtype=dtype))
        rotation, _ = jnp.linalg.qr(shifted)
        turned = jnp.matmul(rotation.T, jnp.matmul(state.matrix, rotation, precision="highest"), precision="highest")
        last_row = jnp.where(index < state.active - 1, turned[state.active - 1], 0)
        done = jnp.linalg.norm(last_row) <= eps * scale
        return _State(
            turned,
            jnp.matmul(state.basis, rotation, precision="highest"),
            state.active - done.astype(state.active.dtype),
            state.num_iters + 1,
        )

    state = lax.while_loop(unfinished, step, _State(matrix, jnp.eye(k, dtype=dtype), jnp.int32(k), jnp.int32(0)))
    triangle = jnp.triu(state.matrix)
    values = jnp.diag(triangle)

    def vector(j: Array) -> Array:
        # Row i < j of (R − r_jj I) y = 0 with y_j = 1 and y_i = 0 beyond j; equal eigenvalues must not divide by zero.
        before = index < j
        gap = values - values[j]
        gap = jnp.where(jnp.abs(gap) > eps * scale, gap, eps * scale + float(jnp.finfo(dtype).tiny))
        system = jnp.where(before[:, None] & before[None, :], jnp.triu(triangle, 1), 0)
        system = system + jnp.diag(jnp.where(before, gap, 1))
        right = jnp.where(before, -triangle[:, j], jnp.where(index == j, 1, 0).astype(dtype))
        solution = jnp.matmul(state.basis, solve_triangular(system, right), precision="highest")
        return solution / jnp.linalg.norm(solution)

    return RealEigen(values, jax.vmap(vector, out_axes=1)(index), state.num_iters, state.active <= 1)
