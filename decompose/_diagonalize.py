"""Simultaneous diagonalization of two symmetric matrices, and of the slices of a tensor.

The lemma: if `X = B D Bᵀ` and `Y = B E Bᵀ` with `B (d, k)` of full column rank and diagonal `D`, `E` whose ratios
`E_h / D_h` are distinct, then `B` is determined up to the order and scale of its columns, which are the eigenvectors of
`Y X⁻¹`. If `d > k` the matrices are singular: with `U` an orthonormal basis of the column space of `X`, the lemma holds
for `UᵀXU` and `UᵀYU`, and `B = U B̃`.

With `D > 0`, whitening by `X` turns the non-symmetric eigenproblem of `Y X⁻¹` into a symmetric one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import (
    attach_tangent,
    check_axes,
    check_key,
    divide,
    freeze,
    machine_epsilon,
    matmul,
    positive_or_one,
    small_jit,
)
from latensor.decompose._eigenspace import Eigenspace, attach_dense, eigenvectors
from latensor.decompose._linalg import check_number_of, check_rank, solve_or_zero
from latensor.decompose._power import Eigenpairs, polish_vectors
from latensor.decompose._schur import real_eigenvectors
from latensor.decompose._status import Status, status_if, worst
from latensor.decompose._whiten import whiten


class Diagonalization(NamedTuple):
    """`X ≈ B diag(second_weights) Bᵀ` and `Y ≈ B diag(slice_weights) Bᵀ`; the columns of `B` have length one."""

    factors: Float[Array, "d k"]
    """`B`."""
    second_weights: Float[Array, " k"]
    slice_weights: Float[Array, " k"]
    gap: Float[Array, ""]
    """Smallest difference of two ratios `E_h / D_h`, relative to the largest: noise above it mixes the columns."""
    residual: Float[Array, ""]
    """Larger of `|X − B D Bᵀ| / |X|` and `|Y − B E Bᵀ| / |Y|`."""
    num_iters: Int[Array, ""]
    """QR steps; zero if `definite`."""
    status: Int[Array, ""]


class _Solution(NamedTuple):
    factors: Float[Array, "d k"]
    weights: Float[Array, " k"]
    ratios: Float[Array, " k"]
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def _gap(ratios: Float[Array, " k"]) -> Float[Array, ""]:
    ordered = jnp.sort(ratios)
    largest = jnp.max(jnp.abs(ratios))
    if ratios.shape[0] == 1:
        return jnp.ones_like(largest)
    return jnp.min(jnp.diff(ordered)) / positive_or_one(largest)


def _error(matrix: Array, factors: Array, weights: Array) -> Array:
    left = matrix - matmul(factors * weights[None, :], factors.T)
    return jnp.linalg.norm(left) / positive_or_one(jnp.linalg.norm(matrix))


def _definite(second: Array, slice_: Array, rank: int) -> _Solution:
    """Whiten by `X ⪰ 0`; the eigenvectors of `WᵀYW` are those of the lemma."""
    whitening = whiten(second, rank)
    inner = matmul(whitening.whitener.T, matmul(slice_, whitening.whitener))
    ratios, rotation = eigenvectors((inner + inner.T) / 2)
    factors = matmul(whitening.unwhitener, rotation)
    return _Solution(factors, jnp.ones_like(ratios), ratios, jnp.int32(0), whitening.status)


def _indefinite(second: Array, slice_: Array, rank: int) -> _Solution:
    """Allow weights of either sign: real eigenvectors of a matrix that is symmetric up to the signs of `X`.

    With `X = U Λ Uᵀ` and `R = |Λ|^{1/2}`, `J = sign Λ`: `Y X⁻¹` is similar to `(R⁻¹ UᵀYU R⁻¹) J`. The scaling keeps the
    eigenproblem symmetric if `J = I` and close to symmetric if few signs differ.
    """
    frozen = freeze(second)
    all_values, all_vectors = jnp.linalg.eigh((frozen + frozen.T) / 2)
    keep = jnp.argsort(-jnp.abs(all_values))[:rank]
    space = attach_dense(
        second,
        Eigenspace(all_vectors[:, keep], jnp.diag(all_values[keep])),
        all_values,
        all_vectors,
        jnp.ones(second.shape[0], bool).at[keep].set(False),
    )
    seen = matmul(space.vectors.T, (slice_ + slice_.T) / 2, space.vectors)
    values, eps = all_values[keep], machine_epsilon(second.dtype)
    usable = jnp.abs(values) > second.shape[0] * eps * jnp.max(jnp.abs(values))
    root = jnp.where(usable, jnp.sqrt(jnp.where(usable, jnp.abs(values), 1)), 0)
    signs = jnp.where(values < 0, -1, 1).astype(second.dtype)

    inverse = divide(1, root)
    eigen = real_eigenvectors(inverse[:, None] * freeze(seen) * (inverse * signs)[None, :])
    # In the scaled space X is J = Ṽ D Ṽᵀ, so ṼᵀJṼ = D⁻¹ because the columns are J-orthogonal.
    inverse_weights = jnp.sum(eigen.vectors * signs[:, None] * eigen.vectors, axis=0)
    vanished = ~(jnp.abs(inverse_weights) > eps)
    weights = jnp.where(vanished, 0, 1 / jnp.where(vanished, 1, inverse_weights))
    status = worst(
        status_if(~jnp.all(usable), Status.RANK_DEFICIENT),
        # Complex eigenvalues never deflate, and make a column J-orthogonal to itself: no real B exists.
        status_if(~eigen.converged | jnp.any(vanished), Status.DEGENERATE),
    )
    solution = _Coordinates(root[:, None] * eigen.vectors, weights, eigen.values)
    coordinates, weights, ratios = attach_tangent(_indefinite_tangent, solution, (space.inner, seen))
    return _Solution(matmul(space.vectors, coordinates), weights, ratios, eigen.num_iters, status)


class _Coordinates(NamedTuple):
    """The lemma within the column space: `UᵀXU = C diag(weights) Cᵀ`, and `Uᵀ Y U` with the ratios beside them."""

    columns: Float[Array, "k k"]
    weights: Float[Array, " k"]
    ratios: Float[Array, " k"]


def _indefinite_tangent(
    solution: _Coordinates, inputs: tuple[Array, Array], changes: tuple[Array, Array]
) -> _Coordinates:
    """Differentiate `(UᵀYU) (UᵀXU)⁻¹ C = C diag(ratios)`."""
    columns, _, ratios = solution
    inner, seen = inputs
    identity = jnp.eye(inner.shape[0], dtype=inner.dtype)
    inverse, back = solve_or_zero(inner, identity), solve_or_zero(columns, identity)
    moved = matmul(changes[1] - matmul(seen, inverse, changes[0]), inverse)
    turned = matmul(back, moved, columns)
    gaps = ratios[None, :] - ratios[:, None]
    same = jnp.abs(gaps) <= 10 * machine_epsilon(gaps.dtype) * jnp.max(jnp.abs(ratios))
    change = matmul(columns, jnp.where(same, 0, turned / jnp.where(same, 1, gaps)))
    within = matmul(back, changes[0] - matmul(change, back, inner) - matmul(inner, back.T, change.T), back.T)
    return _Coordinates(change, jnp.diagonal(within), jnp.diagonal(turned))


@small_jit(static_argnames=("rank", "definite"))
def simultaneous_diagonalization(
    second: Float[Array, "d d"], slice: Float[Array, "d d"], rank: int, *, definite: bool = True
) -> Diagonalization:
    """Find `B` with `second = B D Bᵀ` and `slice = B E Bᵀ`.

    Args:
      second: symmetric, of rank `rank`.
      slice: symmetric, with the same column space.
      rank: number of columns of `B`; `rank = d` is the invertible case of the lemma.
      definite: whether all `D > 0`, as for a second moment; then a single `eigh` in the whitened space is enough.
        Otherwise weights of either sign are allowed, at the cost of `O(rank)` QR steps.

    Returns:
      `Diagonalization`, columns in increasing order of `E_h / D_h` if `definite`. The status is `DEGENERATE` where two
      ratios coincide or, if not `definite`, where no real `B` exists; `RANK_DEFICIENT` where `second` has a lower rank.

    Cost: `O(d³)`.

    """
    second, slice = check_axes("second", second, "d d"), check_axes("slice", slice, "d d")
    if slice.shape != second.shape:
        raise ValueError(f"slice: expected the shape of second, {second.shape}; got {slice.shape}")
    check_rank(rank, second.shape[0])
    solution = (_definite if definite else _indefinite)(second, slice, rank)
    lengths = jnp.sqrt(positive_or_one(jnp.sum(solution.factors**2, axis=0)))
    factors = solution.factors / lengths[None, :]
    second_weights = solution.weights * lengths**2
    slice_weights = solution.ratios * second_weights
    gap = _gap(solution.ratios)
    residual = jnp.maximum(_error(second, factors, second_weights), _error(slice, factors, slice_weights))
    return Diagonalization(
        factors,
        second_weights,
        slice_weights,
        gap,
        residual,
        solution.num_iters,
        worst(
            solution.status,
            status_if(gap <= 10 * rank * machine_epsilon(second.dtype), Status.DEGENERATE),
            status_if(~jnp.isfinite(residual), Status.NON_FINITE),
        ),
    )


@small_jit(static_argnames=("num_slices", "orthogonal", "polish"))
def diagonalize_slices(
    key: Array,
    tensor: Float[Array, "k k k"],
    num_slices: int = 32,
    *,
    orthogonal: bool = False,
    polish: bool = True,
) -> Eigenpairs:
    """Find the eigenpairs of an orthogonal tensor from one of its random slices `T(I, I, η)`.

    In the whitened space the lemma has `X = I` and `Y = T(I, I, η) = Σ_h λ_h (v_hᵀη) v_h v_hᵀ`. Of several random
    directions `η` the one whose slice has the largest gap between eigenvalues is used: the error of its eigenvectors is
    the noise divided by the gap. Power steps on the whole tensor then remove most of that error. Without random starts
    and deflation it is faster than `power_method`, but less robust if the noise is as large as the gaps.

    Args:
      key: a random key, for the directions.
      tensor: `(k, k, k)`, symmetric and nearly orthogonal.
      num_slices: number of directions `η`.
      orthogonal: as in `power_method`.
      polish: whether to take power steps on the whole tensor afterwards; they iterate. Without them the vectors are
        those of the slice, the lemma's own estimate, from eigendecompositions only.

    Returns:
      `Eigenpairs`, with statuses as for `power_method` and `simultaneous_diagonalization`.

    Cost: `num_slices` eigendecompositions of `k × k` matrices, as one batch.

    """
    key, tensor = check_key(key), check_axes("tensor", tensor, "k k k")
    check_number_of("num_slices", num_slices)
    k = tensor.shape[0]
    directions = jax.random.normal(key, (k, num_slices), tensor.dtype)
    directions = directions / jnp.linalg.norm(directions, axis=0)[None, :]
    slices = jnp.moveaxis(matmul(tensor, directions), -1, 0)
    identity = jnp.eye(k, dtype=tensor.dtype)
    trials = jax.vmap(lambda s: simultaneous_diagonalization(identity, s, k))(slices)
    best = jax.tree.map(lambda leaf: leaf[jnp.argmax(trials.gap)], trials)
    if polish:
        pairs = polish_vectors(tensor, best.factors, orthogonal)
        return pairs._replace(status=worst(pairs.status, best.status))
    pairs = polish_vectors(tensor, best.factors, max_iters=0)
    unmoved = jnp.where(pairs.status == Status.MAX_ITERS, Status.CONVERGED, pairs.status)
    return pairs._replace(status=worst(unmoved, best.status))
