"""Eigenvectors of a real, non-symmetric matrix with real eigenvalues, by QR steps.

`jnp.linalg.eig` runs on the CPU only and cannot be exported for accelerators. A matrix with real eigenvalues needs no
complex arithmetic: shifted QR steps bring it to triangular form, and back-substitution gives the eigenvectors.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int

from latensor.base import machine_epsilon, matmul, smallest_normal


class RealEigen(NamedTuple):
    """Eigenvalues, eigenvectors (unit columns), number of QR steps, and whether the triangular form was reached."""

    values: Float[Array, " k"]
    vectors: Float[Array, "k k"]
    num_iters: Int[Array, ""]
    converged: Bool[Array, ""]


class _State(NamedTuple):
    matrix: Float[Array, "k k"]
    basis: Float[Array, "k k"]
    active: Int[Array, ""]
    """Size of the leading block that is not yet triangular."""
    num_iters: Int[Array, ""]


def _shift(matrix: Float[Array, "k k"], active: Int[Array, ""], num_iters: Int[Array, ""]) -> Float[Array, ""]:
    """Return the eigenvalue of the last 2 × 2 block of the active part that is closer to its last entry."""
    last = active - 1
    a, b = matrix[last - 1, last - 1], matrix[last - 1, last]
    c, d = matrix[last, last - 1], matrix[last, last]
    half = (a - d) / 2
    root = jnp.sqrt(jnp.maximum(half**2 + b * c, 0))
    shift = d + half - jnp.where(half >= 0, root, -root)
    # Every tenth step uses another shift, to break cycles.
    return jnp.where(num_iters % 10 == 9, d + jnp.abs(c), shift)


def _triangularize(matrix: Float[Array, "k k"], max_iters: int | Int[Array, ""]) -> _State:
    """Take shifted QR steps, and reduce the active block whenever its last row has become zero."""
    k, dtype = matrix.shape[0], matrix.dtype
    index, identity = jnp.arange(k), jnp.eye(k, dtype=dtype)
    negligible = machine_epsilon(dtype) * jnp.linalg.norm(matrix)

    def unfinished(state: _State) -> Array:
        return (state.active > 1) & (state.num_iters < max_iters)

    def step(state: _State) -> _State:
        inside = index < state.active
        block = inside[:, None] & inside[None, :]
        shift = _shift(state.matrix, state.active, state.num_iters)
        rotation, _ = jnp.linalg.qr(jnp.where(block, state.matrix - shift * identity, identity))
        turned = matmul(rotation.T, matmul(state.matrix, rotation))
        last_row = jnp.where(index < state.active - 1, turned[state.active - 1], 0)
        deflated = jnp.linalg.norm(last_row) <= negligible
        return _State(
            turned,
            matmul(state.basis, rotation),
            state.active - deflated.astype(state.active.dtype),
            state.num_iters + 1,
        )

    return lax.while_loop(unfinished, step, _State(matrix, identity, jnp.int32(k), jnp.int32(0)))


def real_eigenvectors(matrix: Float[Array, "k k"], max_iters: int | Int[Array, ""] | None = None) -> RealEigen:
    """Return the eigenpairs of a matrix with real, distinct eigenvalues.

    Cost: `O(k³)` per step, two or three steps per eigenvalue; at most `60 k` steps by default.
    """
    k, dtype = matrix.shape[0], matrix.dtype
    state = _triangularize(matrix, 60 * k if max_iters is None else max_iters)
    triangle = jnp.triu(state.matrix)
    values, index = jnp.diag(triangle), jnp.arange(k)
    negligible = machine_epsilon(dtype) * jnp.linalg.norm(matrix)

    def vector(j: Array) -> Array:
        # Row i < j of (R − r_jj I) y = 0 with y_j = 1 and y_i = 0 beyond j; equal eigenvalues must not divide by zero.
        before = index < j
        gap = values - values[j]
        gap = jnp.where(jnp.abs(gap) > negligible, gap, negligible + smallest_normal(dtype))
        system = jnp.where(before[:, None] & before[None, :], jnp.triu(triangle, 1), 0)
        system = system + jnp.diag(jnp.where(before, gap, 1))
        right = jnp.where(before, -triangle[:, j], jnp.where(index == j, 1, 0).astype(dtype))
        solution = matmul(state.basis, solve_triangular(system, right))
        return solution / jnp.linalg.norm(solution)

    return RealEigen(values, jax.vmap(vector, out_axes=1)(index), state.num_iters, state.active <= 1)
