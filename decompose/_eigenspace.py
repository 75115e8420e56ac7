"""Derivatives of the dominant eigenspace of a symmetric matrix.

Eigenvectors have no derivative where eigenvalues coincide, but the space that k of them span has one as long as the
next eigenvalue is smaller, and nothing else is needed: whoever whitens may rotate within it. So the basis `U` moves
only out of its space, `UᵀdU = 0`, and column i does so by

    dU_i = (λ_i I − P S P)⁻¹ P dS u_i,   P = I − UUᵀ.

What happens within the space is in `UᵀSU`, a full matrix whose derivative is `Uᵀ dS U`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Bool, Float

from latensor.base import attach_tangent, freeze, machine_epsilon, matmul

_Product = Callable[[Any, Array], Array]
# Conjugate gradients for the complement of a space: far more than a clear gap needs.
_MAX_ITERS = 200


class Eigenspace(NamedTuple):
    """An orthonormal basis of a dominant eigenspace, and the matrix within it."""

    vectors: Float[Array, "d k"]
    """Eigenvectors, or zeros in a column that is left out."""
    inner: Float[Array, "k k"]
    """`UᵀSU`: the eigenvalues on the diagonal, zeros elsewhere."""


class _Spectrum(NamedTuple):
    """All eigenpairs of a matrix, and which of them are outside of the space."""

    values: Float[Array, " d"]
    vectors: Float[Array, "d d"]
    rest: Bool[Array, " d"]


def _dense_product(second: Float[Array, "d d"], vectors: Float[Array, "d k"]) -> Float[Array, "d k"]:
    return (matmul(second, vectors) + matmul(second.T, vectors)) / 2


def _solve_by_spectrum(spectrum: _Spectrum, values: Array, matvec: Callable[[Array], Array], right: Array) -> Array:
    """Solve `(λ_i I − PSP) x_i = b_i` for `b_i` outside of the space."""
    gaps = values[None, :] - spectrum.values[:, None]
    # Without a gap the space is not determined, and neither is its derivative: finite, for the status to tell.
    clear = spectrum.rest[:, None] & (jnp.abs(gaps) > machine_epsilon(gaps.dtype) * jnp.max(jnp.abs(spectrum.values)))
    inverse = jnp.where(clear, 1 / jnp.where(clear, gaps, 1), 0)

    def solve(_: Any, right: Array) -> Array:
        return matmul(spectrum.vectors, inverse * matmul(spectrum.vectors.T, right))

    return lax.custom_linear_solve(matvec, right, solve, symmetric=True)


def _solve_by_products(aids: None, values: Array, matvec: Callable[[Array], Array], right: Array) -> Array:
    tolerance = 10 * machine_epsilon(right.dtype)

    # Within a solve of our own: JAX cannot transpose `cg` itself (0.10.2).
    def solve(matvec: Any, right: Array) -> Array:
        return cg(matvec, right, tol=tolerance, maxiter=_MAX_ITERS)[0]

    return lax.custom_linear_solve(matvec, right, solve, symmetric=True)


def _tangent(
    product: _Product,
    solve: Callable[[Any, Array, Callable[[Array], Array], Array], Array],
    solution: Eigenspace,
    inputs: tuple[Any, Any],
    changes: tuple[Any, Any],
) -> Eigenspace:
    (vectors, inner), (parts, aids) = solution, inputs
    _, image = jax.jvp(lambda parts: product(parts, vectors), (parts,), (changes[0],))

    def outside(columns: Array) -> Array:
        return columns - matmul(vectors, matmul(vectors.T, columns))

    # With all of `UᵀSU`, which is diagonal here but not nearby: for derivatives of higher order.
    def matvec(columns: Array) -> Array:
        return matmul(columns, inner) - outside(product(parts, outside(columns)))

    within = matmul(vectors.T, image)
    return Eigenspace(
        outside(solve(freeze(aids), jnp.diagonal(inner), matvec, outside(image))), (within + within.T) / 2
    )


def attach_dense(
    second: Float[Array, "d d"],
    space: Eigenspace,
    all_values: Float[Array, " d"],
    all_vectors: Float[Array, "d d"],
    rest: Bool[Array, " d"],
) -> Eigenspace:
    """Return an eigenspace of `second` with its derivative, given all eigenpairs and which of them are outside."""
    aids = _Spectrum(freeze(all_values), freeze(all_vectors), rest)
    return attach_tangent(partial(_tangent, _dense_product, _solve_by_spectrum), space, (second, aids))


def attach_operator(product: _Product, parts: Any, space: Eigenspace) -> Eigenspace:
    """Return an eigenspace of `V ↦ product(parts, V)` with its derivative by the `parts`.

    The part of the derivative that leaves the space takes a product for each step of conjugate gradients.
    """
    return attach_tangent(partial(_tangent, product, _solve_by_products), space, (parts, None))


def _eigenvectors_tangent(solution: tuple[Array, Array], matrix: Array, change: Array) -> tuple[Array, Array]:
    values, vectors = solution
    inner = matmul(vectors.T, change, vectors)
    gaps = values[None, :] - values[:, None]
    # Vectors of values that coincide may turn into each other: they have no derivative, and get none.
    same = jnp.abs(gaps) <= 10 * machine_epsilon(gaps.dtype) * jnp.max(jnp.abs(values))
    turn = jnp.where(same, 0, (inner + inner.T) / 2 / jnp.where(same, 1, gaps))
    return jnp.diagonal(inner), matmul(vectors, turn)


def eigenvectors(matrix: Float[Array, "k k"]) -> tuple[Float[Array, " k"], Float[Array, "k k"]]:
    """Return all eigenvalues and eigenvectors of a symmetric matrix, with derivatives that are never NaN."""
    values, vectors = jnp.linalg.eigh(freeze(matrix))
    return attach_tangent(_eigenvectors_tangent, (values, vectors), matrix)


def dominant_space(matrix: Float[Array, "d d"], rank: int) -> Float[Array, "d rank"]:
    """Return an orthonormal basis of the space of the `rank` largest eigenvalues, with its derivative."""
    frozen = freeze(matrix)
    values, vectors = jnp.linalg.eigh(frozen)
    space = Eigenspace(vectors[:, -rank:], jnp.diag(values[-rank:]))
    rest = jnp.arange(matrix.shape[0]) < matrix.shape[0] - rank
    return attach_dense(matrix, space, values, vectors, rest).vectors


class Roots(NamedTuple):
    """`W = U L⁻ᵀ` and `B = U L` with `LLᵀ = UᵀSU`; zero columns where that has no positive eigenvalue."""

    whitener: Float[Array, "d k"]
    unwhitener: Float[Array, "d k"]


def _by_cholesky(usable: Bool[Array, " k"], space: Eigenspace) -> Roots:
    """Return the roots by a Cholesky factor, which has derivatives of any order, at coinciding eigenvalues too."""
    both = usable[:, None] & usable[None, :]
    factor = jnp.linalg.cholesky(jnp.where(both, space.inner, jnp.eye(usable.shape[0], dtype=space.inner.dtype)))
    vectors = jnp.where(usable[None, :], space.vectors, 0)
    return Roots(solve_triangular(factor, vectors.T, lower=True).T, matmul(vectors, factor))


def _roots_tangent(solution: Roots, inputs: tuple[Any, Eigenspace], changes: tuple[Any, Eigenspace]) -> Roots:
    return jax.jvp(partial(_by_cholesky, inputs[0]), (inputs[1],), (changes[1],))[1]


def take_roots(space: Eigenspace, usable: Bool[Array, " k"]) -> Roots:
    """Return the whitener and the unwhitener of the usable directions."""
    values = jnp.diagonal(space.inner)
    root = jnp.sqrt(jnp.where(usable, values, 1))
    down, up = jnp.where(usable, 1 / root, 0)[None, :], jnp.where(usable, root, 0)[None, :]
    # Eigenvectors and their lengths; the factor is only for the derivative.
    return attach_tangent(_roots_tangent, Roots(down * space.vectors, up * space.vectors), (usable, space))
