"""The dominant singular spaces of a matrix, with derivatives that do not care which basis they have.

`M = L K Rᵀ + (what is left)`, with orthonormal bases `L` and `R` of the spaces that belong to the k largest singular
values, and `K = LᵀMR`. As in `_eigenspace`, the bases move only out of their spaces. With `u_j`, `v_j` and `σ_j` the
other singular vectors and values, the part of `dL_i` along `u_j` is

    (σ_i u_jᵀ dM r_i + σ_j v_jᵀ dMᵀ l_i) / (σ_i² − σ_j²),

that of `dR_i` along `v_j` has `σ_i` and `σ_j` exchanged, and `dK = Lᵀ dM R`. On either side of the gap, singular values
may coincide.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from latensor.base import attach_tangent, divide, freeze, machine_epsilon, matmul


class SingularSpace(NamedTuple):
    """Bases of the two spaces, and the matrix between them."""

    left: Float[Array, "m k"]
    inner: Float[Array, "k k"]
    """`K`: the singular values on the diagonal, zeros elsewhere."""
    right: Float[Array, "n k"]


class _Factors(NamedTuple):
    """All singular vectors and values."""

    left: Float[Array, "m r"]
    values: Float[Array, " r"]
    right: Float[Array, "n r"]


def _solve(factors: _Factors, rank: int, right_sides: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the moves of both bases, given `P_L dM R` and `P_R dMᵀ L`, by the formula above."""
    values, others = factors.values[:rank], factors.values[rank:]
    rest_left, rest_right = factors.left[:, rank:], factors.right[:, rank:]
    a, b = matmul(rest_left.T, right_sides[0]), matmul(rest_right.T, right_sides[1])
    gaps = values[None, :] ** 2 - others[:, None] ** 2
    # Without a gap the spaces are not determined: finite, for the status to tell.
    gaps = jnp.where(gaps > machine_epsilon(gaps.dtype) * jnp.max(factors.values) ** 2, gaps, 0)
    by_left = divide(values[None, :] * a + others[:, None] * b, gaps)
    by_right = divide(values[None, :] * b + others[:, None] * a, gaps)

    def beyond(basis: Array, columns: Array) -> Array:
        """Return what the matrix has no singular vector for: it has more rows than columns, or fewer."""
        away = columns - matmul(basis, matmul(basis.T, columns))
        return divide(away, jnp.broadcast_to(values[None, :], away.shape))

    return (
        matmul(rest_left, by_left) + beyond(factors.left, right_sides[0]),
        matmul(rest_right, by_right) + beyond(factors.right, right_sides[1]),
    )


def _tangent(solution: SingularSpace, inputs: tuple[Array, _Factors], changes: tuple[Array, _Factors]) -> SingularSpace:
    (left, inner, right), matrix, factors, change = solution, inputs[0], freeze(inputs[1]), changes[0]

    def outside(basis: Array, columns: Array) -> Array:
        return columns - matmul(basis, matmul(basis.T, columns))

    # Both bases as one array: JAX cannot transpose a solve of several unknowns of which one is not asked for (0.5.3).
    def split(stacked: Array) -> tuple[Array, Array]:
        return stacked[: left.shape[0]], stacked[left.shape[0] :]

    # From `MR = LK` and `MᵀL = RKᵀ`. The formula solves it here; nearby, `K` is not diagonal.
    def matvec(stacked: Array) -> Array:
        moves = split(stacked)
        to_left, to_right = outside(left, moves[0]), outside(right, moves[1])
        return jnp.concatenate(
            [
                matmul(moves[0], inner) - outside(left, matmul(matrix, to_right)),
                matmul(moves[1], inner.T) - outside(right, matmul(matrix.T, to_left)),
            ]
        )

    to_left, to_right = matmul(change, right), matmul(change.T, left)
    stacked = lax.custom_linear_solve(
        matvec,
        jnp.concatenate([outside(left, to_left), outside(right, to_right)]),
        lambda _, stacked: jnp.concatenate(_solve(factors, left.shape[1], split(stacked))),
        symmetric=True,
    )
    moves = split(stacked)
    return SingularSpace(outside(left, moves[0]), matmul(left.T, to_left), outside(right, moves[1]))


def singular_space(matrix: Float[Array, "m n"], rank: int) -> tuple[SingularSpace, Float[Array, " r"]]:
    """Return the spaces of the `rank` largest singular values, and all singular values.

    These are constants to derivatives; the diagonal of `inner` is not.
    """
    left, values, right = jnp.linalg.svd(freeze(matrix), full_matrices=False)
    space = SingularSpace(left[:, :rank], jnp.diag(values[:rank]), right[:rank].T)
    return attach_tangent(_tangent, space, (matrix, _Factors(left, values, right.T))), values


def _pseudoinverse(space: SingularSpace, usable: Bool[Array, " k"]) -> Float[Array, "n m"]:
    both = usable[:, None] & usable[None, :]
    inner = jnp.where(both, space.inner, jnp.eye(usable.shape[0], dtype=space.inner.dtype))
    left = jnp.where(usable[None, :], space.left, 0)
    return matmul(space.right, jnp.linalg.solve(inner, left.T))


def _pseudoinverse_tangent(
    solution: Array, inputs: tuple[SingularSpace, Array], changes: tuple[SingularSpace, Array]
) -> Array:
    return jax.jvp(lambda space: _pseudoinverse(space, inputs[1]), (inputs[0],), (changes[0],))[1]


def pseudoinverse_of_rank(matrix: Float[Array, "m n"], rank: int) -> tuple[Float[Array, "n m"], Bool[Array, ""]]:
    """Return the pseudoinverse of the best approximation of rank `rank`, and whether the matrix has that rank.

    Directions at rounding level are left out.
    """
    space, values = singular_space(matrix, rank)
    floor = max(matrix.shape) * machine_epsilon(matrix.dtype) * values[0]
    usable = values[:rank] > floor
    inverse = divide(1, jnp.where(usable, values[:rank], 0))
    known = matmul(space.right * inverse[None, :], space.left.T)
    return attach_tangent(_pseudoinverse_tangent, known, (space, usable)), jnp.all(usable)


def pseudoinverse(matrix: Float[Array, "d k"]) -> Float[Array, "k d"]:
    """Return `(OᵀO)⁻¹Oᵀ`, leaving out directions in which the columns are linearly dependent."""
    return pseudoinverse_of_rank(matrix, min(matrix.shape))[0]
