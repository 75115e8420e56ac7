"""What a hidden variable looks like through three views: `O_v = E[x_v | h]` from pair and triple moments.

    M₁₂ = O₁ diag(π) O₂ᵀ,   M₁₃ = O₁ diag(π) O₃ᵀ,   M₂₃ = O₂ diag(π) O₃ᵀ,   M₁₂₃ = Σ_h π_h o₁ₕ⊗o₂ₕ⊗o₃ₕ

Each view is reduced to the k directions that it shares with the others; in that space the moments are made symmetric
(`decompose_views`) and decomposed, and everything is carried back. Scales come from first moments: with `o₃ₕ` known up
to a factor `s_h`, regression gives the columns of the other views up to `π_h/s_h`, and both factors are what reproduces
the means. Third moments, the noisiest, decide on directions alone.

A categorical view is measured in units of `√p(x)`, in which the sampling noise of all entries is alike: words that are
a thousand times rarer than others do not drown. Exact moments give exact conditionals either way.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky (2014), Tensor decompositions for learning latent variable models, §3.3.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.decompose._simplex import project_columns_to_simplex
from latensor.decompose._status import Status, check_rank, status_if, worst
from latensor.decompose._views import decompose_views, times


class Conditionals(NamedTuple):
    """What three views look like given a hidden variable; the states are in the same order in all of them."""

    conditionals: tuple[Float[Array, "d1 k"], Float[Array, "d2 k"], Float[Array, "d3 k"]]
    """`P(x_v | h)` for categorical views, `E[x_v | h]` for real ones."""
    weights: Float[Array, " k"]
    """`P(h)`."""
    simplex_distance: Float[Array, "3 k"]
    """How far the columns of each view were from the simplex, where it is categorical; else zeros."""
    singular_values: Float[Array, " k"]
    """The k largest singular values of `M₁₂`, in units of `√p` for categorical views."""
    noise: Float[Array, ""]
    """The singular value after them, which is noise; zero where there is none."""
    residual: Float[Array, ""]
    """What the decomposition of the symmetric `(k, k, k)` tensor leaves unexplained, as a share of its norm."""
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def _scale(first: Float[Array, " d"], categorical: bool) -> Float[Array, " d"]:
    """Return the units in which a view is measured: `√p`, or one."""
    if not categorical:
        return jnp.ones_like(first)
    return jnp.sqrt(jnp.maximum(first, 0))


def _inverse(scale: Array) -> Array:
    return jnp.where(scale > 0, 1 / jnp.where(scale > 0, scale, 1), 0)


def _solve(columns: Float[Array, "d k"], target: Float[Array, " d"]) -> Float[Array, " k"]:
    """Return the least-squares solution of `columns y = target`."""
    gram = jnp.matmul(columns.T, columns, precision="highest")
    lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(gram), float(jnp.finfo(gram.dtype).tiny)))
    gram = gram / (lengths[:, None] * lengths[None, :])
    gram = gram + 10 * float(jnp.finfo(gram.dtype).eps) * jnp.eye(gram.shape[0], dtype=gram.dtype)
    right = jnp.matmul(columns.T, target, precision="highest") / lengths
    return jnp.linalg.solve(gram, right) / lengths


def _nonzero(values: Array) -> Array:
    """Return values that can be divided by; a state that is not there has none."""
    return jnp.where(values > 0, values, 1)


@partial(jax.jit, static_argnames=("rank", "method", "categorical", "num_restarts"))
def conditionals_from_views(
    key: Array,
    first: tuple[Float[Array, " d1"], Float[Array, " d2"], Float[Array, " d3"]],
    second: tuple[Float[Array, "d1 d2"], Float[Array, "d1 d3"], Float[Array, "d2 d3"]],
    third: Float[Array, "d1 d2 d3"],
    rank: int,
    method: Literal["tpm", "ojd0", "ojd1", "nojd0", "nojd1"] = "tpm",
    *,
    categorical: tuple[bool, bool, bool] = (True, True, True),
    num_restarts: int = 20,
) -> Conditionals:
    """Find `P(x_v | h)` or `E[x_v | h]` of three views that are independent given `h`, and `P(h)`.

    Args:
      key: a random key, for the restarts or projections.
      first: the means of the views, as in `latensor.moments.CrossMoments`.
      second: `M₁₂`, `M₁₃`, `M₂₃`.
      third: `M₁₂₃`.
      rank: number of hidden states, at most the size of the smallest view. All three `O_v` must have this rank.
      method: the decomposition of the symmetric tensor: `"tpm"`, the power method; or joint diagonalization, see
        `joint_diagonalization`.
      categorical: which views are indicators of categories: their conditionals are projected to the simplex.
      num_restarts: random starts of the power method, or random projections.

    Returns:
      `Conditionals`. The third view is the one that the others are carried over to, and the most accurate.

    Cost: one SVD of `M₁₂`, `O(d³)`, and `O(d³ k)` for the contraction of `M₁₂₃`.

    """
    check_rank(rank, min(third.shape))
    finite = jnp.all(jnp.isfinite(third))
    for part in (*first, *second):
        finite = finite & jnp.all(jnp.isfinite(part))
    first, second, third = jax.tree.map(lambda part: jnp.where(finite, part, 1), (first, second, third))
    units = [_scale(mean, kind) for mean, kind in zip(first, categorical, strict=True)]
    inverse = [_inverse(unit) for unit in units]
    m12, m13, m23 = (
        pair * inverse[a][:, None] * inverse[b][None, :]
        for pair, (a, b) in zip(second, ((0, 1), (0, 2), (1, 2)), strict=True)
    )

    # The directions that the first two views share, then those of the third that either shares with it. The second
    # SVD waits for the first: batches of independent ones can wait for each other for ever on a CPU.
    left, values, right = jnp.linalg.svd(m12, full_matrices=False)
    bases = [left[:, :rank], right[:rank].T]
    seen = jnp.concatenate([times(bases[0].T, m13), times(bases[1].T, m23)])
    bases.append(jnp.linalg.svd(seen, full_matrices=False)[2][:rank].T)

    down = [basis * scale[:, None] for basis, scale in zip(bases, inverse, strict=True)]
    small = decompose_views(
        key,
        (times(bases[0].T, m12, bases[1]), times(bases[0].T, m13, bases[2]), times(bases[1].T, m23, bases[2])),
        jnp.einsum("ijl,ia,jb,lc->abc", third, *down, optimize=True, precision="highest"),
        rank,
        method,
        num_restarts=num_restarts,
    )
    means = [times(w.T, mean[:, None])[:, 0] for w, mean in zip(down, first, strict=True)]

    # x₃'s columns are o₃ diag(s), those of the others o_v diag(π/s); means tell s and π/s. The decomposition gives no
    # sign: both factors are positive.
    u, v, w = small.factors
    other = _solve(w, means[2])
    scale = (_solve(u, means[0]) + _solve(v, means[1])) / 2
    sign = jnp.where(other < 0, -1, 1)
    other, scale = sign * other, sign * scale
    lost = jnp.any(~(other * scale > 0))
    by_other, by_scale = (sign / _nonzero(other))[None, :], (sign / _nonzero(scale))[None, :]
    columns = (u * by_other, v * by_other, w * by_scale)
    weights, _ = project_columns_to_simplex(jnp.maximum(other * scale, 0)[:, None])

    lifted, distances = [], []
    for basis, unit, column, kind in zip(bases, units, columns, categorical, strict=True):
        conditional = times(basis, column) * unit[:, None]
        distance = jnp.zeros(rank, third.dtype)
        if kind:
            total = jnp.sum(conditional, axis=0)
            conditional, distance = project_columns_to_simplex(conditional / _nonzero(total)[None, :])
        lifted.append(conditional)
        distances.append(distance)
    return Conditionals(
        (lifted[0], lifted[1], lifted[2]),
        weights[:, 0],
        jnp.stack(distances),
        values[:rank],
        values[rank] if values.shape[0] > rank else jnp.zeros_like(values[0]),
        small.residual,
        small.num_iters,
        worst(small.status, status_if(lost, Status.DEGENERATE), status_if(~finite, Status.NON_FINITE)),
    )
