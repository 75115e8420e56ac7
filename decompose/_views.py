"""Three views of one hidden variable: a non-symmetric tensor, made symmetric.

    M_uv = U diag(η) Vᵀ,  M_uw = U diag(η) Wᵀ,  M_vw = V diag(η) Wᵀ,  M_uvw = Σ_h λ_h u_h⊗v_h⊗w_h

No single matrix whitens all three views. But `A = M_wv M_uv⁺` and `B = M_wu M_vu⁺`, with pseudoinverses of rank k, map
the first two views to the third: `A U = W` and `B V = W`. So `A M_uv Bᵀ = W diag(η) Wᵀ` and `M_uvw(A, B, I)` are
symmetric, and every method for symmetric tensors finds `W`; `U` and `V` follow by regression, in the same order.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky (2014), Tensor decompositions for learning latent variable models, §3.3.
"""

from typing import Any, Literal, NamedTuple, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import check_axes, check_key, check_option, einsum, matmul, small_jit, square_root
from latensor.decompose._joint import joint_diagonalization
from latensor.decompose._linalg import check_number_of, check_rank, check_three, replace_unless_finite
from latensor.decompose._power import power_method
from latensor.decompose._singular import pseudoinverse_of_rank
from latensor.decompose._status import Status, status_if, worst
from latensor.decompose._whiten import whiten

ViewMethod = Literal["power", "ojd0", "ojd1", "nojd0", "nojd1"]
VIEW_METHODS: tuple[str, ...] = get_args(ViewMethod)

Pairs = tuple[Float[Array, "d1 d2"], Float[Array, "d1 d3"], Float[Array, "d2 d3"]]


class ViewFactors(NamedTuple):
    """`U`, `V` and `W` up to the scale of their columns, which are in the same order."""

    factors: tuple[Float[Array, "d1 k"], Float[Array, "d2 k"], Float[Array, "d3 k"]]
    residual: Float[Array, ""]
    """Norm of what the decomposition of the symmetric `(k, k, k)` tensor leaves unexplained, relative to the tensor."""
    num_iters: Int[Array, ""]
    """Iterations of that decomposition."""
    status: Int[Array, ""]


def check_pairs(name: str, pairs: Any, sizes: tuple[int, ...]) -> Pairs:
    """Return the three pair moments of views of these sizes."""
    one, two, three = check_three(name, pairs, "d1 d2")
    d1, d2, d3 = sizes
    shapes = [one.shape, two.shape, three.shape]
    if shapes != [(d1, d2), (d1, d3), (d2, d3)]:
        raise ValueError(f"{name}: expected shapes {(d1, d2)}, {(d1, d3)} and {(d2, d3)}; got {shapes}")
    return one, two, three


class _Components(NamedTuple):
    """The components of a symmetric `(k, k, k)` tensor, by either method."""

    vectors: Float[Array, "k k"]
    residual: Float[Array, ""]
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def _decompose_core(key: Array, core: Float[Array, "k k k"], method: ViewMethod, num_restarts: int) -> _Components:
    if method == "power":
        pairs = power_method(key, core, core.shape[0], num_restarts, orthogonal=True)
        return _Components(pairs.vectors, pairs.unexplained, pairs.num_iters, pairs.status)
    core = (core + jnp.transpose(core, (1, 2, 0)) + jnp.transpose(core, (2, 0, 1))) / 3
    joint = joint_diagonalization(jnp.moveaxis(core, -1, 0), method, key=key, num_projections=num_restarts)
    return _Components(joint.factors, joint.residual, joint.num_iters, joint.status)


@small_jit(static_argnames=("rank", "method", "num_restarts"))
def decompose_views(
    key: Array,
    pairs: Pairs,
    triple: Float[Array, "d1 d2 d3"],
    rank: int,
    method: ViewMethod = "power",
    *,
    num_restarts: int = 20,
) -> ViewFactors:
    """Find the factors of three views from their pair and triple moments.

    Args:
      key: a random key, for the restarts or projections.
      pairs: `M_uv`, `M_uw`, `M_vw`.
      triple: `M_uvw`.
      rank: number of components, at most the dimension of the smallest view.
      method: `"power"`, the power method in the whitened space; `"ojd0"`, `"ojd1"`, joint diagonalization there by
        rotations; `"nojd0"`, `"nojd1"`, without whitening, by matrices that need not be orthogonal. See
        `joint_diagonalization`.
      num_restarts: number of random starts of the power method, or of random projections.

    Returns:
      `ViewFactors`. The status is `RANK_DEFICIENT` where a pair moment does not have rank `rank`, `DEGENERATE` where
      two components coincide.

    Cost: one SVD and one `eigh`, `O(d³)`, and `O(d³ k)` for the contraction of the triple moment.

    """
    check_option("method", method, VIEW_METHODS)
    key, triple = check_key(key), check_axes("triple", triple, "d1 d2 d3")
    pairs = check_pairs("pairs", pairs, triple.shape)
    check_number_of("num_restarts", num_restarts)
    check_rank(rank, min(triple.shape))
    (uv, uw, vw, triple), finite = replace_unless_finite((*pairs, triple))
    inverse, has_rank = pseudoinverse_of_rank(uv, rank)
    carry_u, carry_v = matmul(vw.T, inverse), matmul(uw.T, inverse.T)
    second = matmul(carry_u, uv, carry_v.T)
    whitening = whiten((second + second.T) / 2, rank)

    down, up = whitening.whitener, whitening.unwhitener
    if method.startswith("nojd"):
        # Without whitening: an orthonormal basis of the same space, in which the components are not orthogonal.
        down = up = down * square_root(whitening.eigenvalues)[None, :]
    core = einsum("ijl,ia,jb,lc->abc", triple, matmul(carry_u.T, down), matmul(carry_v.T, down), down)
    components = _decompose_core(key, core, method, num_restarts)

    w = matmul(up, components.vectors)
    w = w * jnp.where(jnp.sum(w, axis=0) < 0, -1, 1)[None, :]
    # M_uw = U diag(η) Wᵀ: regression on W gives U, up to the scale of its columns.
    inverse_w, _ = pseudoinverse_of_rank(w, rank)
    return ViewFactors(
        (matmul(uw, inverse_w.T), matmul(vw, inverse_w.T), w),
        jnp.where(finite, components.residual, jnp.nan),
        components.num_iters,
        worst(
            whitening.status,
            components.status,
            status_if(~has_rank, Status.RANK_DEFICIENT),
            status_if(~finite, Status.NON_FINITE),
        ),
    )
