"""Three views of one hidden variable: a tensor that is not symmetric, made so.

    M_uv = U diag(η) Vᵀ,  M_uw = U diag(η) Wᵀ,  M_vw = V diag(η) Wᵀ,  M_uvw = Σ_h λ_h u_h⊗v_h⊗w_h

No one matrix whitens the three views. But `A = M_wv M_uv⁺` and `B = M_wu M_vu⁺`, with pseudoinverses of rank k, carry
the first two views over to the third: `A U = W` and `B V = W`. So `A M_uv Bᵀ = W diag(η) Wᵀ` and `M_uvw(A, B, I)` are
symmetric, and every method for symmetric tensors finds `W`; `U` and `V` follow by regression, in the same order.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky (2014), Tensor decompositions for learning latent variable models, §3.3.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.decompose._joint import joint_diagonalization
from latensor.decompose._power import power_method
from latensor.decompose._status import Status, check_rank, status_if, worst
from latensor.decompose._whiten import whiten

METHODS = ("tpm", "ojd0", "ojd1", "nojd0", "nojd1")


class ViewFactors(NamedTuple):
    """`U`, `V` and `W` up to the scale of their columns, which are in the same order."""

    factors: tuple[Float[Array, "d1 k"], Float[Array, "d2 k"], Float[Array, "d3 k"]]
    residual: Float[Array, ""]
    """What the decomposition of the symmetric `(k, k, k)` tensor leaves unexplained, as a share of its norm."""
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def pseudoinverse_of_rank(matrix: Float[Array, "m n"], rank: int) -> tuple[Float[Array, "n m"], Array]:
    """Return the pseudoinverse of the best approximation of rank `rank`, and whether the rank is there."""
    left, values, right = jnp.linalg.svd(matrix, full_matrices=False)
    floor = max(matrix.shape) * float(jnp.finfo(matrix.dtype).eps) * values[0]
    usable = values[:rank] > floor
    inverse = jnp.where(usable, 1 / jnp.where(usable, values[:rank], 1), 0)
    return jnp.matmul(right[:rank].T * inverse[None, :], left[:, :rank].T, precision="highest"), jnp.all(usable)


def times(*matrices: Array) -> Array:
    """Return the product of several matrices, from left to right."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = jnp.matmul(product, matrix, precision="highest")
    return product


@partial(jax.jit, static_argnames=("rank", "method", "num_restarts"))
def decompose_views(
    key: Array,
    pairs: tuple[Float[Array, "d1 d2"], Float[Array, "d1 d3"], Float[Array, "d2 d3"]],
    triple: Float[Array, "d1 d2 d3"],
    rank: int,
    method: Literal["tpm", "ojd0", "ojd1", "nojd0", "nojd1"] = "tpm",
    *,
    num_restarts: int = 20,
) -> ViewFactors:
    """Find the factors of three views from their pair and triple moments.

    Args:
      key: a random key, for the restarts or projections.
      pairs: `M_uv`, `M_uw`, `M_vw`.
      triple: `M_uvw`.
      rank: number of components, at most the size of the smallest view.
      method: `"tpm"`, the power method in the whitened space; `"ojd0"`, `"ojd1"`, joint diagonalization there by
        rotations; `"nojd0"`, `"nojd1"`, without whitening, by matrices that need not be orthogonal. See
        `joint_diagonalization`.
      num_restarts: random starts of the power method, or random projections.

    """
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(map(repr, METHODS))}; got {method!r}")
    check_rank(rank, min(triple.shape))
    uv, uw, vw = pairs
    finite = jnp.all(jnp.isfinite(triple)) & jnp.all(jnp.isfinite(uv)) & jnp.all(jnp.isfinite(uw))
    finite = finite & jnp.all(jnp.isfinite(vw))
    uv, uw, vw, triple = (jnp.where(finite, part, 1) for part in (uv, uw, vw, triple))
    inverse, there = pseudoinverse_of_rank(uv, rank)
    carry_u, carry_v = times(vw.T, inverse), times(uw.T, inverse.T)
    second = times(carry_u, uv, carry_v.T)
    second = (second + second.T) / 2

    whitening = whiten(second, rank)
    orthogonal = not method.startswith("nojd")
    # Without whitening: an orthonormal basis of the same space, in which the components are not orthogonal.
    lengths = jnp.sqrt(jnp.maximum(whitening.eigenvalues, 0))
    basis = whitening.whitener if orthogonal else whitening.whitener * lengths[None, :]
    core = jnp.einsum(
        "ijl,ia,jb,lc->abc", triple, times(carry_u.T, basis), times(carry_v.T, basis), basis, optimize=True
    )
    if method == "tpm":
        pairs_found = power_method(key, core, rank, num_restarts, orthogonal=True)
        vectors, status = pairs_found.vectors, pairs_found.status
        residual, num_iters = pairs_found.unexplained, pairs_found.num_iters
    else:
        core = (core + jnp.transpose(core, (1, 2, 0)) + jnp.transpose(core, (2, 0, 1))) / 3
        found = joint_diagonalization(jnp.moveaxis(core, -1, 0), method, key=key, num_projections=num_restarts)
        vectors, residual, num_iters, status = found.factors, found.residual, found.num_iters, found.status
    back = whitening.unwhitener if orthogonal else whitening.whitener * lengths[None, :]
    w = times(back, vectors)
    total = jnp.sum(w, axis=0)
    w = w * jnp.where(total < 0, -1, 1)[None, :]
    # M_uw = U diag(η) Wᵀ: regression on W gives U, up to the scale of its columns.
    inverse_w, _ = pseudoinverse_of_rank(w, rank)
    u, v = times(uw, inverse_w.T), times(vw, inverse_w.T)
    return ViewFactors(
        (u, v, w),
        jnp.where(finite, residual, jnp.nan),
        num_iters,
        worst(
            whitening.status,
            status,
            status_if(~there, Status.RANK_DEFICIENT),
            status_if(~finite, Status.NON_FINITE),
        ),
    )
