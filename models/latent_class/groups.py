"""Columns in three groups, and the moments of each grouping: those of the groups, and of every column with them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import divide, einsum, matmul, small_jit, square_root
from latensor.decompose.internal import anchor_capacity, dominant_space
from latensor.models.blocks import observed_values
from latensor.models.shares import (
    Scaling,
    append_constant,
    as_shares,
    choose_interval,
    share_matrix,
    transform_moments,
)
from latensor.models.views import References, combine_moments, deal, order_by_size
from latensor.moments import CrossMoments, Moments, Table, Variables, sum_over_rows
from latensor.moments.internal import SHARE, average_weights, described, feature_moments, row_features

# A group has at most so many stacked rows, unless the rank needs more: the cost of its moments grows with the cube.
_MOST_ROWS = 48
# Directions beyond twice the number of classes that the views of a complete table are projected to.
_OVERSAMPLING = 8


class Grouping(NamedTuple):
    """Moments of three groups of columns, real ones as shares."""

    columns: Int[Array, "3 q"]
    """The columns of each group; −1 is padding."""
    views: CrossMoments
    references: References
    """The stacked rows of all columns, followed by the squares of the shares of real columns, with the three groups."""


def largest_rank(shares: Variables) -> int:
    """Return how many classes three groups of the columns tell apart, dealt as evenly as can be."""
    pattern = _even_pattern(shares)
    sizes = sorted(shares.sizes)[::-1]
    return min(
        anchor_capacity([size for size, group in zip(sizes, pattern, strict=True) if group == g]) for g in range(3)
    )


def _even_pattern(shares: Variables) -> list[int]:
    """Return the group of each column, the largest first: always the one that tells fewest classes apart so far."""
    ranks, pattern = [0, 0, 0], []
    for size in sorted(shares.sizes)[::-1]:
        group = int(np.argmin(ranks))
        pattern.append(group)
        ranks[group] += size - 1
    return pattern


def _columns_per_group(shares: Variables, num_components: int) -> int | None:
    """Return how many columns each group has: a third, or as many as a table of third moments has room for.

    `None` where columns differ so much in size that groups dealt in rounds do not reach the number of classes.
    """
    sizes = sorted(shares.sizes)[::-1]
    if anchor_capacity(sizes[2::3]) < num_components:
        return None
    enough = next(q for q in range(1, len(sizes) + 1) if anchor_capacity(sizes[2 : 3 * q : 3]) >= num_components)
    return max(enough, min(-(-len(sizes) // 3), _MOST_ROWS // max(shares.sizes)))


@small_jit(static_argnames=("shares", "num_components", "num_groupings"))
def draw_groups(key: Array, shares: Variables, num_components: int, num_groupings: int) -> Int[Array, "g 3 q"]:
    """Deal the columns into three groups, several times."""
    number, sizes = _columns_per_group(shares, num_components), jnp.asarray(shares.sizes, jnp.float32)

    def one(key: Array) -> Int[Array, "3 q"]:
        if number is not None:
            return deal(key, sizes, number)
        return _by_pattern(order_by_size(key, sizes), _even_pattern(shares), 3)

    return jax.vmap(one)(jax.random.split(key, num_groupings))


def _by_pattern(order: Int[Array, " p"], pattern: list[int], num_groups: int) -> Int[Array, "groups q"]:
    """Return the columns of each group, by the group of each place in the order; −1 is padding."""
    groups = [[place for place, group in enumerate(pattern) if group == g] for g in range(num_groups)]
    width = max(map(len, groups))
    places = np.array([[*places, *[-1] * (width - len(places))] for places in groups])
    return jnp.where(places >= 0, order[np.maximum(places, 0)], -1)


def deal_halves(key: Array, shares: Variables) -> Int[Array, "2 q"]:
    """Deal all columns into two halves, in turn, the largest first."""
    order = order_by_size(key, jnp.asarray(shares.sizes, jnp.float32))
    return _by_pattern(order, [place % 2 for place in range(shares.num_variables)], 2)


def places_of(columns: Int[Array, "groups q"], shares: Variables) -> Int[Array, "groups d"]:
    """Return the stacked rows of the columns of each group; −1 is padding."""
    size = max(shares.sizes)
    column = jnp.maximum(columns, 0)[:, :, None]
    category = jnp.arange(size, dtype=jnp.int32)[None, None, :]
    exists = (columns[:, :, None] >= 0) & (category < jnp.asarray(shares.sizes, jnp.int32)[column])
    places = jnp.where(exists, jnp.asarray(shares.offsets)[column] + category, -1)
    return places.reshape(columns.shape[0], -1)


def _allowed(columns: Int[Array, "3 q"], num_columns: int, width: int) -> Any:
    """Return for each column whether the rows of each view, `width` each, are of another group than its own."""
    mine = jnp.any(columns[:, :, None] == jnp.arange(num_columns)[None, None, :], axis=1)
    return jnp.repeat(~mine.T, width, axis=1)


@small_jit(static_argnames="num_components")
def group_moments(table: Table, columns: Int[Array, "g 3 q"], num_components: int) -> Grouping:
    """Return the moments of a table of shares, with a leading axis of groupings.

    Where entries are missing, every moment averages over the rows that have it. The third moment of a complete table
    is that of its views' projections to the directions that they share, a few more than there are classes: the others
    are noise, and cost time.
    """
    shares = described(table)
    weights = average_weights(table.row_weights, table.num_rows, table.dtype)
    num_directions = 2 * num_components + _OVERSAMPLING

    def one(columns: Int[Array, "3 q"]) -> Grouping:
        places = places_of(columns, shares)
        products, seen = _references(table, weights, places.reshape(-1))
        if table.mask is None and places.shape[1] > num_directions:
            views = _projected_moments(table, weights, places, products, num_directions)
        else:
            views = _available_moments(table, weights, places, columns)
        allowed = _allowed(columns, shares.num_variables, places.shape[1])
        return Grouping(columns, views, References(products, seen, allowed))

    return lax.map(one, columns)


def _available_moments(
    table: Table, weights: Float[Array, " n"], places: Int[Array, "3 d"], columns: Int[Array, "3 q"]
) -> CrossMoments:
    def features(rows: Table) -> list[tuple[Array, Array | None]]:
        return [
            (row_features(rows, each)[0], _observed(rows, group)) for each, group in zip(places, columns, strict=True)
        ]

    return feature_moments(features, weights, table, floats_per_row=places.shape[1] ** 2)[0]


def _projected_moments(
    table: Table,
    weights: Float[Array, " n"],
    places: Int[Array, "3 d"],
    products: Float[Array, "rows m"],
    num_directions: int,
) -> CrossMoments:
    """Return the moments of a complete table; `products` are those of all stacked rows with the views."""
    width = places.shape[1]
    inside = places >= 0
    picked = jnp.where(inside.reshape(-1)[:, None], products[jnp.maximum(places.reshape(-1), 0)], 0)
    pairs = picked.reshape(3, width, 3, width)
    means = _means(table, weights, places)
    units = square_root(means)
    inverse = divide(1, units)
    scaled = pairs * inverse[:, :, None, None] * inverse[None, None, :, :]
    shared = jnp.stack([jnp.concatenate([scaled[g, :, h] for h in range(3) if h != g], axis=1) for g in range(3)])
    # One batch of all three: several batches side by side can hang on a CPU. LAPACK may hang on a NaN.
    gram = einsum("gim,gjm->gij", shared, shared)
    finite = jnp.all(jnp.isfinite(gram))
    basis = jax.vmap(lambda one: dominant_space(one, num_directions))(jnp.where(finite, gram, 0))
    down, up = inverse[:, :, None] * basis, units[:, :, None] * basis

    def features(rows: Table) -> list[tuple[Array, None]]:
        return [(matmul(row_features(rows, places[g])[0], down[g]), None) for g in range(3)]

    views, _ = feature_moments(features, weights, table, floats_per_row=num_directions**2 + 3 * width)
    third = einsum("abc,ia,jb,lc->ijl", views.third, up[0], up[1], up[2])
    second = (pairs[0, :, 1], pairs[0, :, 2], pairs[1, :, 2])
    return CrossMoments((means[0], means[1], means[2]), second, third, jnp.int32(0))


def _means(table: Table, weights: Float[Array, " n"], places: Int[Array, "3 d"]) -> Float[Array, "3 d"]:
    def block(rows: Table, weights: Array) -> Array:
        return matmul(weights, row_features(rows, places.reshape(-1))[0])

    means = sum_over_rows(block, table, weights, floats_per_row=2 * places.size)
    return means.reshape(3, -1)


def _observed(rows: Table, columns: Int[Array, " q"]) -> Any:
    """Return whether the columns of a group are observed, never where they are padding; `None` where all are."""
    return None if rows.mask is None else rows.mask[:, jnp.maximum(columns, 0)] & (columns >= 0)[None, :]


def _references(
    table: Table, weights: Float[Array, " n"], places: Int[Array, " d"]
) -> tuple[Float[Array, "rows d"], Float[Array, "p d"]]:
    """Return the sums over samples of `References`."""
    shares, dtype = described(table), weights.dtype
    every, real = jnp.arange(shares.num_rows), _share_columns(shares)

    def block(rows: Table, weights: Array) -> tuple[Array, Array]:
        views, views_seen = row_features(rows, places)
        features, _ = row_features(rows, every)
        squares = observed_values(rows)[:, real].astype(dtype) ** 2
        if rows.mask is not None:
            squares = jnp.where(rows.mask[:, real], squares, 0)
        features = weights[:, None] * jnp.concatenate([features, squares], axis=1)
        if rows.mask is None or views_seen is None:
            here, there = jnp.ones(rows.x.shape, dtype), jnp.broadcast_to((places >= 0)[None, :], views.shape)
        else:
            here, there = rows.mask.astype(dtype), views_seen
        return matmul(features.T, views), matmul((weights[:, None] * here).T, there.astype(dtype))

    width = shares.num_rows + 2 * places.shape[0] + 2 * table.num_dimensions
    return sum_over_rows(block, table, weights, floats_per_row=width)


def _share_columns(shares: Variables) -> np.ndarray:
    """Return which columns are shares."""
    return np.flatnonzero(np.asarray(shares.kinds) == SHARE)


def stacked_owner(shares: Variables) -> np.ndarray:
    """Return the column of each stacked row, and of each square."""
    return np.concatenate([shares.row_variables, _share_columns(shares)])


@small_jit(static_argnames=("variables", "num_components"))
def groups_of_moments(
    moments: Moments, columns: Int[Array, "g 3 q"], variables: Variables, num_components: int
) -> tuple[Grouping, Float[Array, " rows"], Scaling | None]:
    """Do to dense moments what `share_table` and `group_moments` do to data; also return the means of the shares."""
    moments, shares, scaling = _scale(moments, variables, num_components)
    rows = shares.num_rows

    def one(columns: Int[Array, "3 q"]) -> Grouping:
        places = places_of(columns, shares)
        picked = (places[:, :, None] == jnp.arange(moments.first.shape[0])[None, None, :]).astype(moments.first.dtype)
        views, products = combine_moments(moments, picked)
        exists = jnp.broadcast_to((places.reshape(-1) >= 0)[None, :], (shares.num_variables, places.size))
        allowed = _allowed(columns, shares.num_variables, places.shape[1])
        return Grouping(columns, views, References(products, exists.astype(products.dtype), allowed))

    return lax.map(one, columns), moments.first[:rows], scaling


def _scale(moments: Moments, variables: Variables, num_components: int) -> tuple[Moments, Variables, Scaling | None]:
    """Return the moments of shares, followed by their squares."""
    real, d = variables.real, variables.num_rows
    if not real.size:
        return moments, variables, None
    rows, squares = variables.offsets[:-1][real], np.arange(d, d + real.size)
    mean = moments.first[rows]
    variance = moments.first[squares] - mean**2
    low, width = choose_interval(mean, variance, num_components)
    matrix, last = share_matrix(variables, low, width), d + real.size
    num_shares = matrix.shape[0]
    change = jnp.zeros((num_shares + real.size, last + 1), mean.dtype)
    change = change.at[:num_shares, :d].set(matrix[:, :d]).at[:num_shares, last].set(matrix[:, d])
    below = np.arange(num_shares, num_shares + real.size)
    change = change.at[below, squares].set(1 / width**2).at[below, rows].set(-2 * low / width**2)
    change = change.at[below, last].set((low / width) ** 2)
    shares = as_shares(variables)
    return transform_moments(change, append_constant(moments, 0.0)), shares, Scaling(low, width, variance)
