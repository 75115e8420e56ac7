"""Simultaneous diagonalization of two symmetric matrices, and of the slices of a tensor.

The lemma: if `X = B D Bᵀ` and `Y = B E Bᵀ` with `B (d, k)` of full column rank and diagonal `D`, `E` whose ratios
`E_h / D_h` are distinct, then `B` is determined up to the order and scale of its columns, which are the eigenvectors of
`Y X⁻¹`. Where `d > k` the matrices are singular: with `U` an orthonormal basis of the column space of `X`, the lemma
holds for `UᵀXU` and `UᵀYU`, and `B = U B̃`.

With `D > 0`, whitening by `X` turns the non-symmetric eigenproblem of `Y X⁻¹` into a symmetric one.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.decompose._power import Eigenpairs, polish_vectors
from latensor.decompose._schur import real_eigenvectors
from latensor.decompose._status import Status, check_rank, status_if, worst
from latensor.decompose._whiten import whiten


class Diagonalization(NamedTuple):
    """`X ≈ B diag(second_weights) Bᵀ` and `Y ≈ B diag(slice_weights) Bᵀ`; the columns of `B` have length one."""

    factors: Float[Array, "d k"]
    second_weights: Float[Array, " k"]
    slice_weights: Float[Array, " k"]
    gap: Float[Array, ""]
    """Smallest difference of two ratios `E_h / D_h`, relative to the largest: below it, noise mixes the columns."""
    residual: Float[Array, ""]
    """Larger of `|X − B D Bᵀ| / |X|` and `|Y − B E Bᵀ| / |Y|`."""
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def _gap(ratios: Float[Array, " k"]) -> Float[Array, ""]:
    ordered = jnp.sort(ratios)
    largest = jnp.max(jnp.abs(ratios))
    if ratios.shape[0] == 1:
        return jnp.ones_like(largest)
    return jnp.min(jnp.diff(ordered)) / jnp.where(largest > 0, largest, 1)


def _miss(matrix: Array, factors: Array, weights: Array) -> Array:
    size = jnp.linalg.norm(matrix)
    left = matrix - jnp.matmul(factors * weights[None, :], factors.T, precision="highest")
    return jnp.linalg.norm(left) / jnp.where(size > 0, size, 1)


def _definite(second: Array, slice_: Array, rank: int) -> tuple[Array, Array, Array, Array, Array]:
    """Whiten by `X ⪰ 0`; the eigenvectors of `WᵀYW` are those of the lemma."""
    whitening = whiten(second, rank)
    w = whitening.whitener
    inner = jnp.matmul(w.T, jnp.matmul(slice_, w, precision="highest"), precision="highest")
    ratios, rotation = jnp.linalg.eigh((inner + inner.T) / 2)
    factors = jnp.matmul(whitening.unwhitener, rotation, precision="highest")
    return factors, jnp.ones_like(ratios), ratios, jnp.int32(0), whitening.status


def _indefinite(second: Array, slice_: Array, rank: int) -> tuple[Array, Array, Array, Array, Array]:
    """Allow weights of either sign: real eigenvectors of a matrix that is symmetric up to the signs of `X`.

    With `X = U Λ Uᵀ` and `R = |Λ|^{1/2}`, `J = sign Λ`: `Y X⁻¹` is similar to `(R⁻¹ UᵀYU R⁻¹) J`. The scaling keeps the
    eigenproblem symmetric where `J = I` and close to it where few signs differ.
    """
    values, vectors = jnp.linalg.eigh((second + second.T) / 2)
    keep = jnp.argsort(-jnp.abs(values))[:rank]
    values, vectors = values[keep], vectors[:, keep]
    floor = second.shape[0] * float(jnp.finfo(second.dtype).eps) * jnp.max(jnp.abs(values))
    usable = jnp.abs(values) > floor
    root = jnp.where(usable, jnp.sqrt(jnp.where(usable, jnp.abs(values), 1)), 0)
    inverse = jnp.where(usable, 1 / jnp.where(usable, root, 1), 0)
    signs = jnp.where(values < 0, -1, 1).astype(second.dtype)

    scaled = vectors * inverse[None, :]
    inner = jnp.matmul(scaled.T, jnp.matmul(slice_, scaled, precision="highest"), precision="highest")
    eigen = real_eigenvectors((inner + inner.T) / 2 * signs[None, :])
    factors = jnp.matmul(vectors * root[None, :], eigen.vectors, precision="highest")
    # In the scaled space X is J = Ṽ D Ṽᵀ, so ṼᵀJṼ = D⁻¹ because the columns are J-orthogonal.
    inverse_weights = jnp.sum(eigen.vectors * signs[:, None] * eigen.vectors, axis=0)
    tiny = float(jnp.finfo(second.dtype).eps)
    weights = jnp.where(jnp.abs(inverse_weights) > tiny, 1 / jnp.where(inverse_weights == 0, 1, inverse_weights), 0)
    status = worst(
        status_if(~jnp.all(usable), Status.RANK_DEFICIENT),
        # Complex eigenvalues never deflate, and make a column J-orthogonal to itself: no real B exists.
        status_if(~eigen.converged | jnp.any(jnp.abs(inverse_weights) <= tiny), Status.DEGENERATE),
    )
    return factors, weights, eigen.values, eigen.num_iters, status


@partial(jax.jit, static_argnames=("rank", "definite"))
def simultaneous_diagonalization(
    second: Float[Array, "d d"], slice: Float[Array, "d d"], rank: int, *, definite: bool = True
) -> Diagonalization:
    """Find `B` with `second = B D Bᵀ` and `slice = B E Bᵀ`.

    Args:
      second: symmetric, of rank `rank`.
      slice: symmetric, with the same column space.
      rank: number of columns of `B`; `rank = d` is the invertible case of the lemma.
      definite: whether all `D > 0`, as for a second moment. Then one `eigh` in the whitened space is all it takes.
        Otherwise weights of either sign are allowed, at the price of `O(rank)` QR steps.

    Returns:
      `Diagonalization`, columns in increasing order of `E_h / D_h` where `definite`. The status is `DEGENERATE` where
      two ratios coincide or, if not `definite`, where no real `B` exists; `RANK_DEFICIENT` where `second` has a lower
      rank.

    """
    check_rank(rank, second.shape[0])
    route = _definite if definite else _indefinite
    factors, weights, ratios, num_iters, status = route(second, slice, rank)
    lengths = jnp.linalg.norm(factors, axis=0)
    factors = factors / jnp.where(lengths > 0, lengths, 1)[None, :]
    second_weights = weights * lengths**2
    slice_weights = ratios * second_weights
    gap = _gap(ratios)
    residual = jnp.maximum(_miss(second, factors, second_weights), _miss(slice, factors, slice_weights))
    return Diagonalization(
        factors,
        second_weights,
        slice_weights,
        gap,
        residual,
        num_iters,
        worst(
            status,
            status_if(gap <= 10 * rank * float(jnp.finfo(second.dtype).eps), Status.DEGENERATE),
            status_if(~jnp.isfinite(residual), Status.NON_FINITE),
        ),
    )


@partial(jax.jit, static_argnames=("num_slices", "orthogonal"))
def diagonalize_slices(
    key: Array, tensor: Float[Array, "k k k"], num_slices: int = 32, *, orthogonal: bool = False
) -> Eigenpairs:
    """Find the eigenpairs of an orthogonal tensor from one of its random slices `T(I, I, η)`.

    In the whitened space the lemma has `X = I` and `Y = T(I, I, η) = Σ_h λ_h (v_hᵀη) v_h v_hᵀ`. Several directions `η`
    are tried at once and the slice whose eigenvalues are farthest apart is kept: the error of its vectors is the noise
    divided by the gap. Power steps on the whole tensor then take most of that error away. No random starts and no
    deflation, so it is faster than `power_method`, and less robust where the noise is as large as the gaps.
    `orthogonal` as in `power_method`.
    """
    k = tensor.shape[0]
    directions = jax.random.normal(key, (k, num_slices), tensor.dtype)
    directions = directions / jnp.linalg.norm(directions, axis=0)[None, :]
    slices = jnp.moveaxis(jnp.matmul(tensor, directions, precision="highest"), -1, 0)
    identity = jnp.eye(k, dtype=tensor.dtype)
    trials = jax.vmap(lambda s: simultaneous_diagonalization(identity, s, k))(slices)
    best = jax.tree.map(lambda leaf: leaf[jnp.argmax(trials.gap)], trials)
    pairs = polish_vectors(tensor, best.factors, orthogonal)
    return pairs._replace(status=worst(pairs.status, best.status))
