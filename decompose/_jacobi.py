"""Sweeps that bring several symmetric matrices to diagonal form at once, by an orthogonal or an invertible matrix.

With `A_l = B M_l Bᵀ`, a solution `B` (then `U = B⁻¹`) makes `off(A) = Σ_l Σ_{i≠j} A_l[i,j]²` small. One sweep is

1. *rotations.* For a pair `(i, j)` and `g_l = A_l[i,i] − A_l[j,j]`, `t_l = 2 A_l[i,j]`, the angle that minimizes `off`
   is `θ = ¼ atan2(2 Σ g_l t_l, Σ g_l² − t_l²)`. Disjoint pairs do not interfere, so a tournament schedule rotates k/2
   pairs at once. An orthogonal `U` needs nothing else;
2. *shears.* `b_i ← b_i + a b_j` for `i < j` changes row and column `i` only, and minimizes `off` for
   `a = −g_ij / h_ij` with `g_ij = Σ_l Σ_{n≠i} A_l[i,n] A_l[j,n]` and `h_ij = Σ_l Σ_{n≠i} A_l[j,n]²`;
3. *one step for all pairs.* Rotations and shears alone converge the more slowly the closer two columns of diagonals
   are: 200 sweeps may not be enough for the slices of a tensor if the condition number of `U` is 50. Near the solution
   the pairs separate, and `[h_ij c_ij; c_ij h_ji] [a_ij; a_ji] = −[g_ij; g_ji]` with `c_ij = Σ_l A_l[i,i] A_l[j,j]` is
   Newton's step up to terms that vanish with `off`. It is taken if it does not raise `off`, and reduces that to 10
   sweeps.

`off` depends on the lengths of the rows of `B`, which the model leaves open. They are scaled such that
`Σ_l A_l[i,i]² = 1` before the shears and again before the step.

Source: Cardoso, Souloumiac (1996), Jacobi angles for simultaneous diagonalization; Afsari (2006), Simple LU and QR
based non-orthogonal matrix joint diagonalization, QRJ1D (rotations and shears). The third step and the scaling are
ours.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import attach_tangent, divide, einsum, freeze, machine_epsilon, matmul, positive_or_one
from latensor.decompose._linalg import solve_or_zero


class Sweeps(NamedTuple):
    """A basis `B`, the largest relative change of a pair of entries in the last sweep, and the number of sweeps."""

    basis: Float[Array, "k k"]
    change: Float[Array, ""]
    num_iters: Int[Array, ""]


def congruence(basis: Array, matrices: Array) -> Array:
    """Return `B M_l Bᵀ` for each matrix."""
    half = einsum("ai,lij->laj", basis, matrices)
    return einsum("laj,bj->lab", half, basis)


def diagonals_of(matrices: Array) -> Array:
    """Return the diagonal of each matrix, `(m, k)`."""
    return jnp.diagonal(matrices, axis1=1, axis2=2)


def row_lengths(matrix: Array) -> Array:
    """Return the Euclidean length of each row."""
    return jnp.sqrt(jnp.sum(matrix**2, axis=1))


def sweep_until_diagonal(
    matrices: Float[Array, "m k k"],
    basis: Float[Array, "k k"],
    orthogonal: bool,
    tol: Float[Array, ""],
    max_sweeps: Int[Array, ""] | int,
) -> Sweeps:
    """Sweep until no pair moves by more than `tol`, relative to the matrices in their original coordinates.

    The derivative of the basis is that of the equations that it solves, whatever the start.
    """
    given, matrices, basis = matrices, freeze(matrices), freeze(basis)
    norm = jnp.sqrt(jnp.sum(matrices**2))

    def unfinished(state: Sweeps) -> Array:
        return (state.change > tol) & (state.num_iters < max_sweeps)

    def sweep(state: Sweeps) -> Sweeps:
        rotated, basis, change = _rotate(congruence(state.basis, matrices), state.basis)
        if not orthogonal:
            basis, change = _step(*_scale(*_shear(*_scale(rotated, basis))))
        return Sweeps(basis, change / positive_or_one(norm), state.num_iters + 1)

    last = lax.while_loop(unfinished, sweep, Sweeps(basis, jnp.full((), jnp.inf, basis.dtype), jnp.int32(0)))
    return last._replace(basis=attach_tangent(partial(_tangent, orthogonal), last.basis, given))


def _stationarity(orthogonal: bool, basis: Array, matrices: Array) -> Array:
    """Return what does not change as long as `off` is least: its derivatives, and the lengths of the rows of `B`."""
    turned = congruence(basis, matrices)
    diagonals = diagonals_of(turned)
    identity = jnp.eye(basis.shape[0], dtype=basis.dtype)
    if orthogonal:
        gaps = diagonals[:, :, None] - diagonals[:, None, :]
        unit = positive_or_one(jnp.sum(freeze(diagonals) ** 2))
        return jnp.sum(gaps * turned, axis=0) + unit * (matmul(basis, basis.T) - identity)
    return jnp.where(identity > 0, jnp.diag(jnp.sum(diagonals**2, axis=0)), _gradient(turned, diagonals))


def _tangent(orthogonal: bool, basis: Array, matrices: Array, change: Array) -> Array:
    _, right = jax.jvp(lambda matrices: _stationarity(orthogonal, basis, matrices), (matrices,), (change,))
    system = jax.jacfwd(lambda basis: _stationarity(orthogonal, basis, matrices))(basis)
    return -solve_or_zero(system.reshape(basis.size, basis.size), right.reshape(-1)).reshape(basis.shape)


def _tournament(size: int) -> np.ndarray:
    """Return `(rounds, size)` partners such that all pairs meet once; an index without a partner is its own."""
    seats = list(range(size + size % 2))
    half = len(seats) // 2
    rounds = np.tile(np.arange(size), (len(seats) - 1, 1))
    for partners in rounds:
        for one, other in zip(seats[:half], reversed(seats[half:]), strict=True):
            if max(one, other) < size:
                partners[one], partners[other] = other, one
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def _rotate(matrices: Array, basis: Array) -> tuple[Array, Array, Array]:
    """Rotate each pair once; also return the largest distance by which a pair has moved its entries."""
    own = jnp.arange(basis.shape[0])
    identity = jnp.eye(basis.shape[0], dtype=basis.dtype)

    def play(carry: tuple[Array, Array, Array], partner: Array) -> tuple[tuple[Array, Array, Array], None]:
        matrices, basis, change = carry
        diagonals = diagonals_of(matrices)
        gap = diagonals - diagonals[:, partner]
        twice = 2 * matrices[:, own, partner]
        angle = jnp.arctan2(2 * jnp.sum(gap * twice, axis=0), jnp.sum(gap**2 - twice**2, axis=0)) / 4
        angle = jnp.where(own < partner, angle, 0)
        angle = angle - angle[partner]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        moved = jnp.max(jnp.abs(sin) * jnp.sqrt(jnp.sum(gap**2 + twice**2, axis=0)))
        # As a product with the rotation matrix: gathers of rows and columns take several times as long.
        rotation = cos[:, None] * identity + sin[:, None] * identity[partner, :]
        matrices, basis = congruence(rotation, matrices), matmul(rotation, basis)
        return (matrices, basis, jnp.maximum(change, moved)), None

    start = (matrices, basis, jnp.zeros((), basis.dtype))
    return lax.scan(play, start, jnp.asarray(_tournament(basis.shape[0])))[0]


def _scale(matrices: Array, basis: Array) -> tuple[Array, Array]:
    """Scale the rows of `B` such that the diagonals of each component have norm one."""
    norms = jnp.sqrt(jnp.sum(diagonals_of(matrices) ** 2, axis=0))
    scales = 1 / jnp.sqrt(positive_or_one(norms))
    return matrices * scales[None, :, None] * scales[None, None, :], basis * scales[:, None]


def _shear(matrices: Array, basis: Array) -> tuple[Array, Array]:
    """Add to each row of `B` a multiple of each later one, chosen to minimize `off`."""
    k = basis.shape[0]

    def step(carry: tuple[Array, Array], pair: Array) -> tuple[tuple[Array, Array], None]:
        matrices, basis = carry
        i, j = pair[0], pair[1]
        changed, added = (lax.dynamic_index_in_dim(matrices, at, axis=1, keepdims=False) for at in (i, j))
        others = jnp.where((jnp.arange(k) == i)[None, :], 0, added)
        a = divide(-jnp.sum(changed * others), jnp.sum(others**2))
        changed = changed + a * added
        # Row i plus a times row j; then the same for the column, which differs from the row on the diagonal only.
        corner = lax.dynamic_index_in_dim(changed, i, axis=1) + a * lax.dynamic_index_in_dim(changed, j, axis=1)
        changed = lax.dynamic_update_slice_in_dim(changed, corner, i, axis=1)
        matrices = lax.dynamic_update_index_in_dim(matrices, changed, i, axis=1)
        matrices = lax.dynamic_update_index_in_dim(matrices, changed, i, axis=2)
        row, other = (lax.dynamic_index_in_dim(basis, at, keepdims=False) for at in (i, j))
        return (matrices, lax.dynamic_update_index_in_dim(basis, row + a * other, i, axis=0)), None

    pairs = np.stack(np.triu_indices(k, 1), axis=1)
    return lax.scan(step, (matrices, basis), jnp.asarray(pairs))[0]


def _step(matrices: Array, basis: Array) -> tuple[Array, Array]:
    """Take a Newton step for all pairs at once; also return its length, relative to what rounding leaves of a pair."""
    eps = machine_epsilon(basis.dtype)
    identity = jnp.eye(basis.shape[0], dtype=basis.dtype)
    diagonals = diagonals_of(matrices)
    gradient = _gradient(matrices, diagonals) * (1 - identity)
    curvature = jnp.sum(matrices**2, axis=(0, 2))[None, :] - jnp.sum(matrices**2, axis=0)
    cross = matmul(diagonals.T, diagonals)
    product = curvature * curvature.T
    # Proportional diagonals leave a direction free: the floor keeps the step finite there.
    determinant = jnp.maximum(product - cross**2, 8 * eps * product)
    wanted = divide(cross * gradient.T - curvature.T * gradient, determinant)
    stepped = identity + wanted
    # Close to the solution, differences of `off` are rounding, and the step is the better choice.
    accept = _off(congruence(stepped, matrices)) <= (1 + 16 * eps) * _off(matrices)
    lengths = row_lengths(basis)
    change = jnp.max(jnp.sqrt(jnp.abs(gradient * wanted)) / (lengths[:, None] * lengths[None, :]))
    return jnp.where(accept, matmul(stepped, basis), basis), change


def _gradient(matrices: Array, diagonals: Array) -> Array:
    """Return `g_ij = Σ_l Σ_{n≠i} A_l[i,n] A_l[j,n]`; meaningless on the diagonal."""
    return einsum("lin,ljn->ij", matrices, matrices) - jnp.sum(diagonals[:, :, None] * matrices, axis=0)


def _off(matrices: Array) -> Array:
    return jnp.sum(jnp.where(jnp.eye(matrices.shape[1], dtype=bool)[None], 0, matrices) ** 2)
