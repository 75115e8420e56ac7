"""Conditional distributions or means of three views given a hidden variable, from their pair and triple moments.

    M₁₂ = O₁ diag(π) O₂ᵀ,   M₁₃ = O₁ diag(π) O₃ᵀ,   M₂₃ = O₂ diag(π) O₃ᵀ,   M₁₂₃ = Σ_h π_h o₁ₕ⊗o₂ₕ⊗o₃ₕ

with `O_v = E[x_v | h]`. Each view is projected to the k directions that it shares with the others. In that space the
moments are made symmetric (`decompose_views`) and decomposed, and the factors are mapped back. Scales come from first
moments: with `o₃ₕ` known up to a factor `s_h`, regression gives the columns of the other views up to `π_h/s_h`, and
both factors follow from the means. Third moments, the noisiest, determine directions only.

A categorical view is measured in units of `√p(x)`, in which all entries have sampling noise of similar size: words that
are a thousand times rarer than others do not drown. Exact moments give exact conditionals either way.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky (2014), Tensor decompositions for learning latent variable models, §3.3.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from latensor.base import (
    check_axes,
    check_key,
    check_option,
    divide,
    einsum,
    matmul,
    positive_or_one,
    small_jit,
    square_root,
)
from latensor.decompose._linalg import check_rank, check_three, least_squares, replace_unless_finite
from latensor.decompose._simplex import project_columns_to_simplex
from latensor.decompose._singular import singular_space
from latensor.decompose._status import Status, status_if, worst
from latensor.decompose._views import VIEW_METHODS, ViewMethod, check_pairs, decompose_views

Triple = tuple[Array, Array, Array]


class Conditionals(NamedTuple):
    """Conditionals of three views given a hidden variable, whose states are in the same order in all of them."""

    conditionals: tuple[Float[Array, "d1 k"], Float[Array, "d2 k"], Float[Array, "d3 k"]]
    """`P(x_v | h)` for categorical views, `E[x_v | h]` for real ones."""
    weights: Float[Array, " k"]
    """`P(h)`."""
    simplex_distance: Float[Array, "3 k"]
    """Distance of each column from the simplex before projection, per view; zero for real views."""
    singular_values: Float[Array, " k"]
    """The k largest singular values of `M₁₂`, in units of `√p` for categorical views."""
    noise: Float[Array, ""]
    """The next singular value, which is noise; zero if there is none."""
    residual: Float[Array, ""]
    """Norm of what the decomposition of the symmetric `(k, k, k)` tensor leaves unexplained, relative to the tensor."""
    num_iters: Int[Array, ""]
    """Iterations of that decomposition."""
    status: Int[Array, ""]


def _check_means(first: Any, sizes: tuple[int, ...]) -> Triple:
    """Return the means of three views of these sizes."""
    one, two, three = check_three("first", first, "d")
    shapes = (one.shape[0], two.shape[0], three.shape[0])
    if shapes != tuple(sizes):
        raise ValueError(f"first: expected means of {sizes} dimensions, as in third; got {shapes}")
    return one, two, three


def _units(mean: Float[Array, " d"], categorical: bool) -> Float[Array, " d"]:
    """Return the units in which a view is measured: `√p`; for a real view a power of two of the size of its means.

    Powers of two cost no digits, and products of three views stay within the floating range.
    """
    if categorical:
        return square_root(mean)
    _, exponent = jnp.frexp(positive_or_one(jnp.max(jnp.abs(mean))))
    return jnp.ldexp(jnp.ones_like(mean), exponent)


class _Bases(NamedTuple):
    """An orthonormal basis of k directions for each view, and the spectrum of `M₁₂`."""

    bases: Triple
    singular_values: Float[Array, " _"]


def _shared_directions(m12: Array, m13: Array, m23: Array, rank: int) -> _Bases:
    """Return the directions that the first two views share, and those of the third that either shares with it."""
    # The second SVD waits for the first: batches of independent SVDs can deadlock on a CPU.
    pair, values = singular_space(m12, rank)
    seen = jnp.concatenate([matmul(pair.left.T, m13), matmul(pair.right.T, m23)])
    return _Bases((pair.left, pair.right, singular_space(seen, rank)[0].right), values)


def _fix_scales(factors: Triple, means: Triple) -> tuple[Triple, Float[Array, " k"], Bool[Array, ""]]:
    """Scale the columns such that they reproduce the means; also return `π` and whether a state vanished.

    The columns of the third view are `o₃ diag(s)`, those of the others `o_v diag(π/s)`; the means determine `s` and
    `π/s`. The decomposition leaves signs open: both factors are positive.
    """
    u, v, w = factors
    other = least_squares(w, means[2])
    scale = (least_squares(u, means[0]) + least_squares(v, means[1])) / 2
    sign = jnp.where(other < 0, -1, 1)
    other, scale = sign * other, sign * scale
    by_other, by_scale = (sign / positive_or_one(other))[None, :], (sign / positive_or_one(scale))[None, :]
    weights, _ = project_columns_to_simplex(jnp.maximum(other * scale, 0)[:, None])
    return (u * by_other, v * by_other, w * by_scale), weights[:, 0], jnp.any(~(other * scale > 0))


def _lift(
    columns: Float[Array, "k k"], basis: Float[Array, "d k"], unit: Float[Array, " d"], categorical: bool
) -> tuple[Float[Array, "d k"], Float[Array, " k"]]:
    """Map columns back to the space of a view; also return their distance from the simplex where it is categorical."""
    conditional = matmul(basis, columns) * unit[:, None]
    if not categorical:
        return conditional, jnp.zeros(columns.shape[1], columns.dtype)
    total = jnp.sum(conditional, axis=0)
    return project_columns_to_simplex(conditional / positive_or_one(total)[None, :])


@small_jit(static_argnames=("rank", "method", "categorical", "num_restarts"))
def conditionals_from_views(
    key: Array,
    first: tuple[Float[Array, " d1"], Float[Array, " d2"], Float[Array, " d3"]],
    second: tuple[Float[Array, "d1 d2"], Float[Array, "d1 d3"], Float[Array, "d2 d3"]],
    third: Float[Array, "d1 d2 d3"],
    rank: int,
    method: ViewMethod = "power",
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
      rank: number of hidden states, at most the dimension of the smallest view. All three `O_v` must have this rank.
      method: the decomposition of the symmetric tensor: `"power"`, the power method; or joint diagonalization, see
        `joint_diagonalization`.
      categorical: which views are indicators of categories: their conditionals are projected to the simplex.
      num_restarts: number of random starts of the power method, or of random projections.

    Returns:
      `Conditionals`. The other views are mapped to the third one, which is the most accurate. The status is
      `DEGENERATE` where two states coincide or one has no weight, `RANK_DEFICIENT` where a pair moment does not have
      rank `rank`.

    Cost: one SVD of `M₁₂`, `O(d³)`, and `O(d³ k)` for the contraction of `M₁₂₃`.

    """
    key, third = check_key(key), check_axes("third", third, "d1 d2 d3")
    first, second = _check_means(first, third.shape), check_pairs("second", second, third.shape)
    check_rank(rank, min(third.shape))
    check_option("method", method, VIEW_METHODS)
    parts, finite = replace_unless_finite((*first, *second, third))
    means, third = parts[:3], parts[6]
    units = [_units(mean, kind) for mean, kind in zip(means, categorical, strict=True)]
    inverse = [divide(1, unit) for unit in units]
    m12, m13, m23 = (
        pair * inverse[a][:, None] * inverse[b][None, :]
        for pair, (a, b) in zip(parts[3:6], ((0, 1), (0, 2), (1, 2)), strict=True)
    )
    bases, values = _shared_directions(m12, m13, m23, rank)
    down = [basis * scale[:, None] for basis, scale in zip(bases, inverse, strict=True)]
    views = decompose_views(
        key,
        (matmul(bases[0].T, m12, bases[1]), matmul(bases[0].T, m13, bases[2]), matmul(bases[1].T, m23, bases[2])),
        einsum("ijl,ia,jb,lc->abc", third, *down),
        rank,
        method,
        num_restarts=num_restarts,
    )
    m1, m2, m3 = (matmul(w.T, mean[:, None])[:, 0] for w, mean in zip(down, means, strict=True))
    columns, weights, vanished = _fix_scales(views.factors, (m1, m2, m3))
    (o1, o2, o3), distances = zip(*map(_lift, columns, bases, units, categorical), strict=True)
    finite = finite & jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in (o1, o2, o3, weights)]))
    # Back from the units of real views; those of categorical ones stay.
    for unit, kind in zip(units[:2], categorical[:2], strict=True):
        values = values if kind else values * unit[0]
    return Conditionals(
        conditionals=(o1, o2, o3),
        weights=weights,
        simplex_distance=jnp.stack(distances),
        singular_values=values[:rank],
        noise=values[rank] if values.shape[0] > rank else jnp.zeros_like(values[0]),
        residual=views.residual,
        num_iters=views.num_iters,
        status=worst(views.status, status_if(vanished, Status.DEGENERATE), status_if(~finite, Status.NON_FINITE)),
    )
