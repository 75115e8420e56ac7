"""Derivatives of the eigenpairs of a symmetric tensor.

For one eigenvector, `λ v = T(I,v,v)` and `|v| = 1` give `dv = (λ I − 2 T(I,I,v))⁺ P dT(I,v,v)` with `P = I − vvᵀ`, and
`dλ = dT(v,v,v)`. Orthonormal vectors `V` that maximize `Σ_h λ_h²`, `λ_h = T(v_h,v_h,v_h)`, satisfy `G = V sym(VᵀG)`
with `g_h = λ_h T(I,v_h,v_h)`: one linear system for all of them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import attach_tangent, einsum, matmul, positive_or_one
from latensor.decompose._linalg import solve_or_zero
from latensor.decompose._packed import symmetric_part

_Pairs = tuple[Float[Array, " r"], Float[Array, "k r"]]


def _images(tensor: Float[Array, "k k k"], vectors: Float[Array, "k r"]) -> Float[Array, "k r"]:
    """Return `T(I,v,v)` for each column."""
    return einsum("ijl,jh,lh->ih", tensor, vectors, vectors)


def _values(tensor: Float[Array, "k k k"], vectors: Float[Array, "k r"]) -> Float[Array, " r"]:
    return jnp.sum(vectors * _images(tensor, vectors), axis=0)


def _eigenpairs_tangent(solution: _Pairs, tensor: Float[Array, "k k k"], change: Float[Array, "k k k"]) -> _Pairs:
    values, vectors = solution
    tensor, change = symmetric_part(tensor), symmetric_part(change)
    identity = jnp.eye(tensor.shape[0], dtype=tensor.dtype)

    def one(value: Array, vector: Array, image: Array) -> Array:
        along = vector[:, None] * vector[None, :]
        across = identity - along
        inner = matmul(across, value * identity - 2 * matmul(tensor, vector), across)
        # Along `v` any number does; one of the size of the others.
        return solve_or_zero(inner + positive_or_one(value) * along, image - vector * jnp.sum(vector * image))

    images = _images(change, vectors)
    moved = jax.vmap(one, in_axes=(0, 1, 1), out_axes=1)(values, vectors, images)
    return jnp.sum(vectors * images, axis=0), moved


def _stationarity(vectors: Float[Array, "k r"], tensor: Float[Array, "k k k"], unit: Array) -> Float[Array, "k r"]:
    """Return what vanishes where `V` is orthonormal and best, and only there."""
    images = _images(tensor, vectors)
    gradient = images * jnp.sum(vectors * images, axis=0)[None, :]
    within = matmul(vectors.T, gradient)
    lengths = matmul(vectors.T, vectors) - jnp.eye(vectors.shape[1], dtype=vectors.dtype)
    return gradient - matmul(vectors, (within + within.T) / 2 + unit * lengths)


def _orthogonal_tangent(solution: _Pairs, tensor: Float[Array, "k k k"], change: Float[Array, "k k k"]) -> _Pairs:
    values, vectors = solution
    tensor, change = symmetric_part(tensor), symmetric_part(change)
    unit = positive_or_one(jnp.mean(values**2))
    _, right = jax.jvp(lambda tensor: _stationarity(vectors, tensor, unit), (tensor,), (change,))
    system = jax.jacfwd(lambda vectors: _stationarity(vectors, tensor, unit))(vectors)
    size = vectors.size
    moved = -solve_or_zero(system.reshape(size, size), right.reshape(size)).reshape(vectors.shape)
    _, changes = jax.jvp(_values, (tensor, vectors), (change, moved))
    return changes, moved


def attach_eigenpairs(
    tensor: Float[Array, "k k k"], values: Float[Array, " r"], vectors: Float[Array, "k r"], orthogonal: bool
) -> _Pairs:
    """Return eigenpairs of a tensor, found from a frozen one, with their derivatives."""
    return attach_tangent(_orthogonal_tangent if orthogonal else _eigenpairs_tangent, (values, vectors), tensor)
