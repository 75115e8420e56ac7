"""Joint diagonalization of several symmetric matrices, orthogonal and not, with random and plug-in projections.

The model is `M_l ≈ U diag(d_l) Uᵀ`, `l = 1..m`, with `U (k, k)` orthogonal or only invertible. The slices
`T[:, :, l]` of a symmetric tensor are such matrices, and `T(I, I, w) = Σ_l w_l M_l` is again one. With
`A_l = B M_l Bᵀ`, a solution `B` (then `U = B⁻¹`) makes `off(A) = Σ_l Σ_{i≠j} A_l[i,j]²` small. One sweep is

1. *rotations.* For a pair `(i, j)` and `g_l = A_l[i,i] − A_l[j,j]`, `t_l = 2 A_l[i,j]`, the angle that makes `off`
   smallest is `θ = ¼ atan2(2 Σ g_l t_l, Σ g_l² − t_l²)`. Disjoint pairs do not meet, so a tournament rotates k/2 pairs
   at once. An orthogonal `U` needs nothing else;
2. *shears.* `b_i ← b_i + a b_j` for `i < j` changes row and column `i` alone, and makes `off` smallest for
   `a = −g_ij / h_ij` with `g_ij = Σ_l Σ_{n≠i} A_l[i,n] A_l[j,n]` and `h_ij = Σ_l Σ_{n≠i} A_l[j,n]²`;
3. *one step for all pairs.* Rotations and shears alone converge the slower the closer two columns of diagonals are:
   200 sweeps may not do for the slices of a tensor where the condition number of `U` is 50. Near the solution the pairs
   separate, and `[h_ij c_ij; c_ij h_ji] [a_ij; a_ji] = −[g_ij; g_ji]` with `c_ij = Σ_l A_l[i,i] A_l[j,j]` is Newton's
   step but for terms that vanish with `off`. It is taken where it does not raise `off`, and brings that to 10 sweeps.

`off` depends on the lengths of the rows of `B`, which the model leaves open. They are scaled such that
`Σ_l A_l[i,i]² = 1` before the shears and again before the step.

Source: Kuleshov, Chaganty, Liang (2015), Tensor factorization via matrix factorization, Algorithm 1 (the projections);
Cardoso, Souloumiac (1996), Jacobi angles for simultaneous diagonalization; Afsari (2006), Simple LU and QR based
non-orthogonal matrix joint diagonalization, QRJ1D (rotations and shears). The third step and the scaling are ours.
"""

from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.decompose._status import Status, status_if, worst

Method = Literal["ojd0", "ojd1", "nojd0", "nojd1"]

_MAX_SWEEPS = 100


class JointDiagonalization(NamedTuple):
    """`M_l ≈ Σ_h diagonals[l, h] u_h u_hᵀ`; the columns `u_h` of `factors` have length one.

    They come in decreasing order of the norms of their diagonals, the entry of largest magnitude positive.
    """

    factors: Float[Array, "k k"]
    diagonals: Float[Array, "m k"]
    residual: Float[Array, ""]
    """`√(Σ_l |M_l − U diag(d_l) Uᵀ|² / Σ_l |M_l|²)`, over the matrices as given."""
    num_iters: Int[Array, ""]
    """Sweeps, over both rounds."""
    status: Int[Array, ""]


class _State(NamedTuple):
    basis: Float[Array, "k k"]
    change: Float[Array, ""]
    num_iters: Int[Array, ""]


def _tournament(size: int) -> np.ndarray:
    """Return `(rounds, size)` partners: all meet once; who has no partner in a round is its own."""
    seats = list(range(size + size % 2))
    half = len(seats) // 2
    rounds = np.tile(np.arange(size), (len(seats) - 1, 1))
    for partners in rounds:
        for one, other in zip(seats[:half], reversed(seats[half:]), strict=True):
            if max(one, other) < size:
                partners[one], partners[other] = other, one
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def _congruence(basis: Array, matrices: Array) -> Array:
    """Return `B M_l Bᵀ` for every matrix."""
    half = jnp.einsum("ai,lij->laj", basis, matrices, precision="highest")
    return jnp.einsum("laj,bj->lab", half, basis, precision="highest")


def _diagonals(matrices: Array) -> Array:
    return jnp.diagonal(matrices, axis1=1, axis2=2)


def _off(matrices: Array) -> Array:
    return jnp.sum(jnp.where(jnp.eye(matrices.shape[1], dtype=bool)[None], 0, matrices) ** 2)


def _lengths(basis: Array) -> Array:
    return jnp.sqrt(jnp.sum(basis**2, axis=1))


def _rotate(matrices: Array, basis: Array) -> tuple[Array, Array, Array]:
    """Rotate all pairs once; also return how far the pair that moved most has moved its entries."""
    own = jnp.arange(basis.shape[0])
    identity = jnp.eye(basis.shape[0], dtype=basis.dtype)

    def play(carry: tuple[Array, Array, Array], partner: Array) -> tuple[tuple[Array, Array, Array], None]:
        matrices, basis, change = carry
        diagonals = _diagonals(matrices)
        gap = diagonals - diagonals[:, partner]
        twice = 2 * matrices[:, own, partner]
        angle = jnp.arctan2(2 * jnp.sum(gap * twice, axis=0), jnp.sum(gap**2 - twice**2, axis=0)) / 4
        angle = jnp.where(own < partner, angle, 0)
        angle = angle - angle[partner]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        moved = jnp.max(jnp.abs(sin) * jnp.sqrt(jnp.sum(gap**2 + twice**2, axis=0)))
        # As a product with the turn: gathers of rows and columns take several times as long.
        turn = cos[:, None] * identity + sin[:, None] * identity[partner, :]
        matrices, basis = _congruence(turn, matrices), jnp.matmul(turn, basis, precision="highest")
        return (matrices, basis, jnp.maximum(change, moved)), None

    start = (matrices, basis, jnp.zeros((), basis.dtype))
    return lax.scan(play, start, jnp.asarray(_tournament(basis.shape[0])))[0]


def _scale(matrices: Array, basis: Array) -> tuple[Array, Array]:
    """Scale the rows of `B` such that every component has diagonals of norm one."""
    norms = jnp.sqrt(jnp.sum(_diagonals(matrices) ** 2, axis=0))
    scales = jnp.where(norms > 0, 1 / jnp.sqrt(jnp.where(norms > 0, norms, 1)), 1)
    return matrices * scales[None, :, None] * scales[None, None, :], basis * scales[:, None]


def _shear(matrices: Array, basis: Array) -> tuple[Array, Array]:
    """Add to each row of `B` a multiple of every later one, the best for `off` at its turn."""
    k = basis.shape[0]

    def step(carry: tuple[Array, Array], pair: Array) -> tuple[tuple[Array, Array], None]:
        matrices, basis = carry
        i, j = pair[0], pair[1]
        changed, added = (lax.dynamic_index_in_dim(matrices, at, axis=1, keepdims=False) for at in (i, j))
        others = jnp.where((jnp.arange(k) == i)[None, :], 0, added)
        size = jnp.sum(others**2)
        a = jnp.where(size > 0, -jnp.sum(changed * others) / jnp.where(size > 0, size, 1), 0)
        changed = changed + a * added
        # The row by row j; then the column likewise, which differs from the row on the diagonal alone.
        corner = lax.dynamic_index_in_dim(changed, i, axis=1) + a * lax.dynamic_index_in_dim(changed, j, axis=1)
        changed = lax.dynamic_update_slice_in_dim(changed, corner, i, axis=1)
        matrices = lax.dynamic_update_index_in_dim(matrices, changed, i, axis=1)
        matrices = lax.dynamic_update_index_in_dim(matrices, changed, i, axis=2)
        row = lax.dynamic_index_in_dim(basis, i, keepdims=False) + a * lax.dynamic_index_in_dim(
            basis, j, keepdims=False
        )
        return (matrices, lax.dynamic_update_index_in_dim(basis, row, i, axis=0)), None

    pairs = np.stack(np.triu_indices(k, 1), axis=1)
    return lax.scan(step, (matrices, basis), jnp.asarray(pairs))[0]


def _step(matrices: Array, basis: Array) -> tuple[Array, Array]:
    """Step for all pairs at once; also return, in units of what rounding leaves of a pair, how far it wanted to go."""
    eps = float(jnp.finfo(basis.dtype).eps)
    identity = jnp.eye(basis.shape[0], dtype=basis.dtype)
    diagonals = _diagonals(matrices)
    gradient = jnp.einsum("lin,ljn->ij", matrices, matrices, precision="highest")
    gradient = (gradient - jnp.sum(diagonals[:, :, None] * matrices, axis=0)) * (1 - identity)
    curvature = jnp.sum(matrices**2, axis=(0, 2))[None, :] - jnp.sum(matrices**2, axis=0)
    cross = jnp.matmul(diagonals.T, diagonals, precision="highest")
    product = curvature * curvature.T
    # Proportional diagonals leave a direction free: the floor keeps the step finite there.
    determinant = jnp.maximum(product - cross**2, 8 * eps * product)
    usable = determinant > 0
    wanted = cross * gradient.T - curvature.T * gradient
    wanted = jnp.where(usable, wanted / jnp.where(usable, determinant, 1), 0)
    stepped = identity + wanted
    # Close to the solution `off` cannot tell the two apart, and the step is the better one.
    accept = _off(_congruence(stepped, matrices)) <= (1 + 16 * eps) * _off(matrices)
    lengths = _lengths(basis)
    change = jnp.max(jnp.sqrt(jnp.abs(gradient * wanted)) / (lengths[:, None] * lengths[None, :]))
    return jnp.where(accept, jnp.matmul(stepped, basis, precision="highest"), basis), change


def _diagonalize(
    matrices: Array, basis: Array, orthogonal: bool, tol: Array, max_sweeps: Int[Array, ""] | int
) -> _State:
    """Sweep until no pair moves by more than `tol`, relative to the matrices in the coordinates they came in."""
    norm = jnp.sqrt(jnp.sum(matrices**2))

    def unfinished(state: _State) -> Array:
        return (state.change > tol) & (state.num_iters < max_sweeps)

    def sweep(state: _State) -> _State:
        rotated, basis, change = _rotate(_congruence(state.basis, matrices), state.basis)
        if not orthogonal:
            basis, change = _step(*_scale(*_shear(*_scale(rotated, basis))))
        return _State(basis, change / jnp.where(norm > 0, norm, 1), state.num_iters + 1)

    return lax.while_loop(unfinished, sweep, _State(basis, jnp.full((), jnp.inf, basis.dtype), jnp.int32(0)))


def _unit_factors(basis: Array, orthogonal: bool) -> Array:
    """Return `B⁻¹`, its columns of length one."""
    if orthogonal:
        # One step towards the nearest orthogonal matrix: what a thousand rotations have added up is gone.
        gram = jnp.matmul(basis, basis.T, precision="highest")
        identity = jnp.eye(basis.shape[0], dtype=basis.dtype)
        return jnp.matmul((3 * identity - gram) / 2, basis, precision="highest").T
    factors = jnp.linalg.inv(basis / _lengths(basis)[:, None])
    factors = jnp.where(jnp.all(jnp.isfinite(factors)), factors, jnp.eye(basis.shape[0], dtype=basis.dtype))
    return factors / jnp.sqrt(jnp.sum(factors**2, axis=0))[None, :]


def _fit_diagonals(matrices: Array, factors: Array) -> Array:
    """Return the diagonals that leave the least of the matrices unexplained."""
    products = _diagonals(_congruence(factors.T, matrices))
    # The inner products of the u_h u_hᵀ. Columns that coincide share what is theirs.
    values, vectors = jnp.linalg.eigh(jnp.matmul(factors.T, factors, precision="highest") ** 2)
    usable = values > factors.shape[0] * float(jnp.finfo(factors.dtype).eps) * values[-1]
    inverse = jnp.where(usable, 1 / jnp.where(usable, values, 1), 0)
    turned = jnp.matmul(products, vectors, precision="highest") * inverse[None, :]
    return jnp.matmul(turned, vectors.T, precision="highest")


def _plug_in(diagonals: Array) -> Array:
    """Return `(k, m)` weights of length one, each orthogonal to the diagonals of all components but its own."""
    weights = jnp.linalg.pinv(diagonals)
    lengths = _lengths(weights)
    return weights / jnp.where(lengths > 0, lengths, 1)[:, None]


def _separation(diagonals: Array, orthogonal: bool) -> Array:
    """Return how far apart the two components are that are hardest to tell apart: zero where they are arbitrary.

    Orthogonal components need different diagonals, others need diagonals that are not proportional.
    """
    k = diagonals.shape[1]
    norms = jnp.sqrt(jnp.sum(diagonals**2, axis=0))
    size = norms if not orthogonal else jnp.max(norms)[None]
    unit = diagonals / jnp.where(size > 0, size, 1)[None, :]
    coefficients = jnp.ones((k, k), diagonals.dtype) if orthogonal else jnp.matmul(unit.T, unit, precision="highest")
    apart = unit[:, :, None] - unit[:, None, :] * coefficients[None, :, :]
    distances = jnp.sqrt(jnp.sum(apart**2, axis=0))
    return jnp.min(jnp.where(jnp.eye(k, dtype=bool), 1, distances))


def _has_common_null_vector(matrices: Array) -> Array:
    """Whether a component has no weight in any matrix: without orthogonality nothing says where it points."""
    k = matrices.shape[1]
    values = jnp.linalg.svd(matrices.reshape(-1, k), compute_uv=False)
    return values[-1] <= 64 * k * float(jnp.finfo(matrices.dtype).eps) * values[0]


def _check(matrices: Array, method: str, key: Array | None, num_projections: int | None) -> None:
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or 0 in matrices.shape:
        raise ValueError(f"matrices: expected shape (m, k, k) with m, k >= 1; got {matrices.shape}")
    if method not in get_args(Method):
        raise ValueError(f"method: expected one of {', '.join(get_args(Method))}; got {method!r}")
    if num_projections is not None and num_projections < 1:
        raise ValueError(f"num_projections: expected an integer of at least 1; got {num_projections}")
    if num_projections is not None and key is None:
        raise ValueError(f"key: expected a random key to draw {num_projections} projections with; got None")


@partial(jax.jit, static_argnames=("method", "num_projections"))
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
        projections or on the matrices as they are. `…1` adds a second, which starts from the first one's `U`, on the
        plug-in projections `Σ_l w_l M_l`: `w` is the h-th column of `pinv(D)ᵀ`, `D (m, k)` being the diagonals
        found, so that component h alone is left; then `w` is scaled to length one, as the random ones are.
      key: a random key, for the projections. Without one, the first round takes the matrices as they are.
      num_projections: how many random projections `Σ_l w_l M_l` (`w` uniform on the sphere); default: m.
      tol: a round has converged when a sweep moves no pair of entries by more, relative to the norm of the matrices;
        default: 64 machine epsilons.
      max_sweeps: limit on the sweeps of each round.

    Returns:
      `JointDiagonalization`. The status is `DEGENERATE` where two components cannot be told apart but by rounding:
      equal columns of `diagonals` if `U` is orthogonal; proportional ones, or one that is zero, otherwise.
      `MAX_ITERS` where the last round has not met `tol`.

    The second round pays where the first had few projections. It cannot beat a first round on all matrices by much:
    for an orthogonal tensor the plug-in projections of all slices are a rotation of the slices, and otherwise they
    amplify the noise by `1/sin` of the angle between a column of `D` and *all* others, not the closest other.

    Cost: `O(m k⁴)` a sweep, as k products of `k × k` matrices with all m; if not orthogonal, k²/2 short steps more. A
    batch under `vmap` runs to its slowest lane.

    """
    _check(matrices, method, key, num_projections)
    m, k, _ = matrices.shape
    dtype = matrices.dtype
    orthogonal = method.startswith("ojd")
    eps = float(jnp.finfo(dtype).eps)
    tol = jnp.asarray(64 * eps if tol is None else tol, dtype)
    finite = jnp.all(jnp.isfinite(matrices))
    matrices = jnp.where(finite, matrices, 0)  # LAPACK may not return from a NaN
    largest = jnp.max(jnp.abs(matrices))
    largest = jnp.where(largest > 0, largest, 1)
    matrices = matrices / largest
    matrices = (matrices + jnp.swapaxes(matrices, 1, 2)) / 2

    projected = matrices
    if key is not None:
        weights = jax.random.normal(key, (num_projections or m, m), dtype)
        projected = jnp.einsum("pl,lij->pij", weights / _lengths(weights)[:, None], matrices, precision="highest")
    last = _diagonalize(projected, jnp.eye(k, dtype=dtype), orthogonal, tol, max_sweeps)
    num_iters = last.num_iters
    if method.endswith("1"):
        weights = _plug_in(_fit_diagonals(matrices, _unit_factors(last.basis, orthogonal)))
        projected = jnp.einsum("pl,lij->pij", weights, matrices, precision="highest")
        last = _diagonalize(projected, last.basis, orthogonal, tol, max_sweeps)
        num_iters = num_iters + last.num_iters

    factors = _unit_factors(last.basis, orthogonal)
    diagonals = _fit_diagonals(matrices, factors)
    order = jnp.argsort(-jnp.sum(diagonals**2, axis=0))
    factors, diagonals = factors[:, order], diagonals[:, order]
    peaks = jnp.take_along_axis(factors, jnp.argmax(jnp.abs(factors), axis=0)[None, :], axis=0)
    factors = factors * jnp.where(peaks < 0, -1, 1).astype(dtype)
    left = matrices - jnp.einsum("ih,lh,jh->lij", factors, diagonals, factors, precision="highest")
    norm = jnp.sqrt(jnp.sum(matrices**2))
    residual = jnp.sqrt(jnp.sum(left**2)) / jnp.where(norm > 0, norm, 1)
    arbitrary = ~(_separation(diagonals, orthogonal) > 64 * k * eps)
    if not orthogonal:
        arbitrary = arbitrary | _has_common_null_vector(matrices)
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
