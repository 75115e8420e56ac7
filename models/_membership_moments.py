"""Mixed membership from moments: scale real variables, choose anchors, form partitions' moments, put tables together.

A real variable enters as a share, `y = (x − low)/width` and `1 − y`, with `low` and `width` so that its conditional
means have room: then the block of *every* variable is nonnegative and its columns sum to one. Nothing is lost by that,
since the moments are linear in each variable and memberships sum to one.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Num

from latensor.decompose import solve_nonnegative_qp
from latensor.moments import (
    CrossMoments,
    Moments,
    Variables,
    as_float,
    average_weights,
    raw_cross_moments,
    row_features,
    sum_over_rows,
)
from latensor.moments._variables import REAL, SHARE

# Random combinations of all variables beyond the rank, for the space that the tables span.
_OVERSAMPLING = 8


class Scaling(NamedTuple):
    """How real variables were turned into shares; in order of their columns."""

    low: Float[Array, " r"]
    width: Float[Array, " r"]


def as_shares(variables: Variables) -> Variables:
    """Describe the table after its real variables have become shares."""
    kinds = tuple(SHARE if kind == REAL else kind for kind in variables.kinds)
    return Variables(
        kinds, tuple(2 if kind == SHARE else size for kind, size in zip(kinds, variables.sizes, strict=True))
    )


def real_scaling(mean: Float[Array, " r"], variance: Float[Array, " r"], num_components: int) -> Scaling:
    """Choose the interval of each real variable.

    A component of proportion `a` has its mean within `σ/√a` of the overall one, so `2√k σ` to both sides is room for
    all whose proportion is at least a quarter of `1/k`.
    """
    half = 2 * math.sqrt(num_components) * jnp.sqrt(jnp.maximum(variance, 0))
    half = jnp.where(half > 0, half, 1)
    return Scaling(mean - half, 2 * half)


@partial(jax.jit, static_argnames=("variables", "num_components"))
def scale_reals(
    x: Num[Array, "n p"],
    mask: Bool[Array, "n p"] | None,
    row_weights: Float[Array, " n"] | None,
    variables: Variables,
    num_components: int,
) -> tuple[Num[Array, "n p"], Scaling, Float[Array, " r"]]:
    """Return the table with shares in place of real variables, how they were scaled, and their variances."""
    real = variables.real
    if not real.size:
        empty = jnp.zeros(0, jnp.result_type(float))
        return x, Scaling(empty, empty), empty
    x = as_float(x)
    weights = average_weights(row_weights, jnp.ones(x.shape[0], bool), x.dtype)[:, None]
    values = x[:, real]
    if mask is not None:
        weights = weights * mask[:, real]
        weights = weights / jnp.maximum(jnp.sum(weights, axis=0), float(jnp.finfo(x.dtype).tiny))[None, :]
        values = jnp.where(mask[:, real], values, 0)
    mean = jnp.sum(weights * values, axis=0)
    variance = jnp.sum(weights * (values - mean[None, :]) ** 2, axis=0)
    scaling = real_scaling(mean, variance, num_components)
    return x.at[:, real].set((values - scaling.low[None, :]) / scaling.width[None, :]), scaling, variance


def unscale_tables(tables: Float[Array, "rows k"], scaling: Scaling, variables: Variables) -> Float[Array, "_ k"]:
    """Return the tables of the original variables: categories as they are, means of real ones on their own scale."""
    shares = as_shares(variables)
    # The second row of a share is the one of `y` itself.
    keep = [
        row + (kind == REAL)
        for kind, offset, size in zip(variables.kinds, shares.offsets, variables.sizes, strict=False)
        for row in range(offset, offset + size)
    ]
    kept = tables[jnp.asarray(keep)]
    real = variables.offsets[:-1][variables.real]
    return kept.at[real].set(scaling.low[:, None] + scaling.width[:, None] * kept[real]) if real.size else kept


def first_moments(
    x: Num[Array, "n p"], mask: Bool[Array, "n p"] | None, row_weights: Float[Array, " n"] | None, variables: Variables
) -> Float[Array, " rows"]:
    """Return the mean of every stacked row, over the samples that observe its variable."""
    weights = average_weights(row_weights, jnp.ones(x.shape[0], bool), as_float(x).dtype)
    every = jnp.arange(variables.num_rows)

    def block(x: Array, mask: Array | None, weights: Array) -> tuple[Array, Array | None]:
        values, _ = row_features(x, mask, every, variables)
        return jnp.matmul(weights, values), None if mask is None else jnp.matmul(weights, mask.astype(weights.dtype))

    sums, rates = sum_over_rows(block, (x, mask, weights), floats_per_row=variables.num_rows)
    return sums if rates is None else sums / jnp.where(rates > 0, rates, 1)[variables.row_variables]


@partial(jax.jit, static_argnames=("variables", "rank"))
def find_loadings(
    key: Array,
    x: Num[Array, "n p"],
    mask: Bool[Array, "n p"] | None,
    row_weights: Float[Array, " n"] | None,
    concentration: Float[Array, ""],
    variables: Variables,
    rank: int,
) -> Float[Array, "rows k"]:
    """Return an orthonormal basis of the space that the tables' columns span, from second moments.

    The leading left singular vectors of the cross-moments of every row with random combinations of all other variables:
    one pass, and nothing larger than `(rows, k)`. Missing entries count as zero, divided by their rate.
    """
    dtype = as_float(x).dtype
    num_rows, width = variables.num_rows, rank + _OVERSAMPLING
    mixing = jax.random.normal(key, (num_rows, width), dtype)
    weights = average_weights(row_weights, jnp.ones(x.shape[0], bool), dtype)
    every = jnp.arange(num_rows)
    rates = jnp.ones(variables.num_variables, dtype) if mask is None else jnp.sum(weights[:, None] * mask, axis=0)
    scale = (1 / jnp.where(rates > 0, rates, 1))[variables.row_variables]

    def block(x: Array, mask: Array | None, weights: Array) -> tuple[Array, Array, Array]:
        values, _ = row_features(x, mask, every, variables)
        values = values.astype(dtype) * scale[None, :]
        weighted = weights[:, None] * values
        mixed = jnp.matmul(values, mixing, precision="highest")
        return (
            jnp.matmul(weighted.T, mixed, precision="highest"),
            jnp.sum(weighted, axis=0),
            jnp.sum(weighted * values, axis=0),
        )

    cross, mean, squares = sum_over_rows(block, (x, mask, weights), floats_per_row=num_rows)
    # A row's product with its own variable is no cross-moment. (Categories exclude each other; the two rows of a share
    # do not, quite, but this only chooses anchors.)
    own = jax.ops.segment_sum(mean[:, None] * mixing, variables.row_variables, variables.num_variables)
    others = jnp.matmul(mean, mixing, precision="highest")[None, :] - own[variables.row_variables]
    second = cross - squares[:, None] * mixing - concentration / (concentration + 1) * mean[:, None] * others
    gram = jnp.matmul(second.T, second, precision="highest")
    gram = jnp.where(jnp.all(jnp.isfinite(gram)), gram, 0)
    values, vectors = jnp.linalg.eigh(gram)
    top, lengths = vectors[:, -rank:], jnp.sqrt(jnp.maximum(values[-rank:], 0))
    floor = float(jnp.finfo(dtype).eps) * lengths[-1]
    return jnp.matmul(second, top / jnp.where(lengths > floor, lengths, jnp.inf)[None, :], precision="highest")


def partition_moments(
    x: Num[Array, "n p"],
    mask: Bool[Array, "n p"] | None,
    row_weights: Float[Array, " n"] | None,
    rows: tuple[Array, Array, Array],
    variables: Variables,
) -> CrossMoments:
    """Return the raw cross-moments of all partitions, one after the other: each is a large product already."""

    def one(rows: tuple[Array, Array, Array]) -> CrossMoments:
        return raw_cross_moments(x, mask, row_weights, rows, variables)

    return lax.map(one, rows)


def dense_partition_moments(moments: Moments, rows: tuple[Array, Array, Array]) -> CrossMoments:
    """Return the cross-moments of all partitions out of dense, corrected ones."""

    def one(rows: tuple[Array, Array, Array]) -> CrossMoments:
        a, b, c = (jnp.maximum(r, 0) for r in rows)
        here = [(r >= 0).astype(moments.first.dtype) for r in rows]
        third = moments.third[a[:, None, None], b[None, :, None], c[None, None, :]]
        third = third * here[0][:, None, None] * here[1][None, :, None] * here[2][None, None, :]
        f, g, h = here
        return CrossMoments(
            (moments.first[a] * f, moments.first[b] * g, moments.first[c] * h),
            (
                moments.second[a[:, None], b[None, :]] * f[:, None] * g[None, :],
                moments.second[a[:, None], c[None, :]] * f[:, None] * h[None, :],
                moments.second[b[:, None], c[None, :]] * g[:, None] * h[None, :],
            ),
            third,
            jnp.int32(0),
        )

    return jax.vmap(one)(rows)


@partial(jax.jit, static_argnames=("variables", "num_components"))
def scale_dense(
    moments: Moments, concentration: Float[Array, ""], variables: Variables, num_components: int
) -> tuple[Moments, Scaling]:
    """Do to dense moments what `scale_reals` does to data.

    A share is an affine function of its variable, so its moments need those of the constant one, as if that were one
    more variable, with `θ = 1` in all components: `Σ_h η_h θ_h = μ/(α₀+1)` and `Σ_h λ_h θ_h⊗θ'_h = 2 M₂/(α₀+2)`.
    """
    real = variables.real
    rows = variables.offsets[:-1][real]
    # (α₀+1) M₂ has Σ_h a_h θ_h² on its diagonal, for proportions a.
    spread = (concentration + 1) * jnp.diagonal(moments.second)[rows] - moments.first[rows] ** 2
    scaling = real_scaling(moments.first[rows], spread, num_components)
    if not real.size:
        return moments, scaling
    shares = as_shares(variables)
    d = variables.num_rows
    first = jnp.concatenate([moments.first, jnp.ones(1, moments.first.dtype)])
    second = jnp.zeros((d + 1, d + 1), first.dtype).at[:d, :d].set(moments.second)
    second = second.at[d, :].set(first / (concentration + 1)).at[:, d].set(first / (concentration + 1))
    third = jnp.zeros((d + 1, d + 1, d + 1), first.dtype).at[:d, :d, :d].set(moments.third)
    margin = 2 / (concentration + 2) * second
    third = third.at[d].set(margin).at[:, d].set(margin).at[:, :, d].set(margin)
    change = np.zeros((shares.num_rows, d + 1))
    for j in range(variables.num_variables):
        for c in range(variables.sizes[j]):
            if variables.kinds[j] != REAL:
                change[shares.offsets[j] + c, variables.offsets[j] + c] = 1
    matrix = jnp.asarray(change, first.dtype)
    upper, lower = shares.offsets[:-1][real] + 1, shares.offsets[:-1][real]
    matrix = matrix.at[upper, rows].set(1 / scaling.width).at[upper, d].set(-scaling.low / scaling.width)
    matrix = matrix.at[lower, rows].set(-1 / scaling.width).at[lower, d].set(1 + scaling.low / scaling.width)
    return (
        Moments(
            jnp.matmul(matrix, first, precision="highest"),
            jnp.einsum("ai,ij,bj->ab", matrix, second, matrix, precision="highest"),
            jnp.einsum("ai,bj,cl,ijl->abc", matrix, matrix, matrix, third, precision="highest", optimize=True),
        ),
        scaling,
    )


def gather_rows(parts: tuple[Array, Array, Array], rows: tuple[Array, Array, Array], num_rows: int) -> Array:
    """Put what partitions have at their places back to the stacked rows; what several have is averaged."""
    values = jnp.concatenate([part.reshape(-1, *part.shape[2:]) for part in parts])
    places = jnp.concatenate([r.reshape(-1) for r in rows])
    places = jnp.where(places >= 0, places, num_rows)  # one row beyond the end takes the padding
    sums = jnp.zeros((num_rows + 1, *values.shape[1:]), values.dtype).at[places].add(values)[:num_rows]
    counts = jnp.zeros(num_rows + 1, values.dtype).at[places].add(1)[:num_rows]
    return sums / jnp.maximum(counts, 1).reshape(-1, *(1,) * (values.ndim - 1))


def flat_tables(variables: Variables, num_components: int, dtype: jnp.dtype) -> Float[Array, "rows k"]:
    """Return tables in which all categories of a variable are alike."""
    even = 1 / jnp.asarray(variables.sizes, dtype)[variables.row_variables]
    return jnp.broadcast_to(even[:, None], (variables.num_rows, num_components))


def proportions(tables: Float[Array, "rows k"], mean: Float[Array, " rows"]) -> Float[Array, " k"]:
    """Return `a ≥ 0`, `Σ a = 1`, that explain the first moments best, `Θ a ≈ μ`: the expected membership `α/α₀`."""
    quadratic = jnp.matmul(tables.T, tables, precision="highest")
    k = quadratic.shape[0]
    # Where two columns coincide their proportions are not determined; a little ridge divides them evenly.
    ridge = math.sqrt(float(jnp.finfo(tables.dtype).eps)) * jnp.trace(quadratic) / k
    quadratic = quadratic + ridge * jnp.eye(k, dtype=tables.dtype)
    found = solve_nonnegative_qp(quadratic, -jnp.matmul(mean, tables, precision="highest") - ridge / k).x
    # A component of proportion zero would be in no row, and its concentration zero: a thousandth of an even share.
    found = jnp.maximum(found, 1e-3 * jnp.maximum(jnp.sum(found), float(jnp.finfo(found.dtype).tiny)) / k)
    return found / jnp.sum(found)
