"""Real variables as shares, so that the block of *every* variable is nonnegative and its columns sum to one.

A share is `y = (x − low)/width` together with `1 − y`, with `low` and `width` so that the conditional means of `y` have
room between zero and one. Nothing is lost by that: moments are linear in each variable, and memberships sum to one.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latensor.base import as_float, divide, einsum, matmul, positive_or_one
from latensor.moments import Moments, Table, Variables, map_over_rows, sum_over_rows
from latensor.moments.internal import REAL, SHARE, average_weights, described


class Scaling(NamedTuple):
    """How real variables were turned into shares, in order of their columns."""

    low: Float[Array, " r"]
    width: Float[Array, " r"]
    variance: Float[Array, " r"] | None
    """Of the variables; `None` where only their moments are known."""


def as_shares(variables: Variables) -> Variables:
    """Describe the table after its real variables have become shares."""
    kinds = tuple(SHARE if kind == REAL else kind for kind in variables.kinds)
    return Variables(
        kinds, tuple(2 if kind == SHARE else size for kind, size in zip(kinds, variables.sizes, strict=True))
    )


def choose_interval(
    mean: Float[Array, " r"], variance: Float[Array, " r"], num_components: int
) -> tuple[Float[Array, " r"], Float[Array, " r"]]:
    """Return where the interval of each real variable begins, and its width.

    A component of proportion `a` has its mean within `σ/√a` of the overall one, so `2√k σ` to both sides is room for
    all components whose proportion is at least a quarter of `1/k`.
    """
    half = positive_or_one(2 * math.sqrt(num_components) * jnp.sqrt(jnp.maximum(variance, 0)))
    return mean - half, 2 * half


def share_table(table: Table, num_components: int) -> tuple[Table, Scaling | None]:
    """Return a table with shares in place of real variables, and how they were scaled; `None` if there are none."""
    variables = described(table)
    if not variables.real.size:
        return table, None
    x, scaling = _scale_table(table, num_components)
    return table._replace(x=x, variables=as_shares(variables)), scaling


@partial(jax.jit, static_argnames="num_components")
def _scale_table(table: Table, num_components: int) -> tuple[Float[Array, "n p"], Scaling]:
    real, dtype = described(table).real, as_float(table.x).dtype
    weights = average_weights(table.row_weights, table.num_rows, dtype)

    def values_and_weights(rows: Table, weights: Array) -> tuple[Array, Array]:
        values = as_float(rows.x)[:, real]
        if rows.mask is None:
            return values, jnp.broadcast_to(weights[:, None], values.shape)
        return jnp.where(rows.mask[:, real], values, 0), weights[:, None] * rows.mask[:, real]

    def first_sums(rows: Table, weights: Array) -> tuple[Array, Array]:
        values, seen = values_and_weights(rows, weights)
        return jnp.sum(seen * values, axis=0), jnp.sum(seen, axis=0)

    def squares(rows: Table, weights: Array) -> Array:
        values, seen = values_and_weights(rows, weights)
        return jnp.sum(seen * (values - mean[None, :]) ** 2, axis=0)

    def scale(rows: Table, weights: Array) -> Array:
        values, _ = values_and_weights(rows, weights)
        return as_float(rows.x).at[:, real].set((values - low[None, :]) / width[None, :])

    total, rates = sum_over_rows(first_sums, table, weights, floats_per_row=0)
    mean = divide(total, rates)
    variance = divide(sum_over_rows(squares, table, weights, floats_per_row=0), rates)
    low, width = choose_interval(mean, variance, num_components)
    return map_over_rows(scale, table, weights, floats_per_row=0), Scaling(low, width, variance)


def append_constant(moments: Moments, total: Float[Array, ""] | float) -> Moments:
    """Return the moments of the same features and of the constant one, as if that were one more variable.

    It has `θ = 1` in all components, so that `Σ_h η_h θ_h = μ/(α₀+1)` and `Σ_h λ_h θ_h⊗θ'_h = 2 M₂/(α₀+2)`, where `α₀`
    is `total`; zero for a mixture.
    """
    d = moments.first.shape[0]
    first = jnp.concatenate([moments.first, jnp.ones(1, moments.first.dtype)])
    second = jnp.zeros((d + 1, d + 1), first.dtype).at[:d, :d].set(moments.second)
    second = second.at[d, :].set(first / (total + 1)).at[:, d].set(first / (total + 1))
    third = jnp.zeros((d + 1, d + 1, d + 1), first.dtype).at[:d, :d, :d].set(moments.third)
    margin = 2 / (total + 2) * second
    return Moments(first, second, third.at[d].set(margin).at[:, d].set(margin).at[:, :, d].set(margin))


def share_matrix(
    variables: Variables, low: Float[Array, " r"], width: Float[Array, " r"]
) -> Float[Array, "rows columns"]:
    """Return the linear map from the stacked rows of variables, followed by the constant one, to those of shares."""
    real, d = variables.real, variables.num_rows
    rows, shares = variables.offsets[:-1][real], as_shares(variables)
    kept = np.isin(variables.row_variables, variables.categorical)
    change = np.zeros((shares.num_rows, d + 1))
    change[np.isin(shares.row_variables, variables.categorical), np.flatnonzero(kept)] = 1
    upper, lower = shares.offsets[:-1][real] + 1, shares.offsets[:-1][real]
    matrix = jnp.asarray(change, low.dtype)
    matrix = matrix.at[upper, rows].set(1 / width).at[upper, d].set(-low / width)
    return matrix.at[lower, rows].set(-1 / width).at[lower, d].set(1 + low / width)


def transform_moments(matrix: Float[Array, "rows d"], moments: Moments) -> Moments:
    """Return the moments of linear combinations of features."""
    third = moments.third
    # One mode after the other: each product is `(rows, d) @ (d, d²)`.
    for _ in range(3):
        third = jnp.moveaxis(einsum("ai,ijl->ajl", matrix, third), 0, 2)
    return Moments(matmul(matrix, moments.first), matmul(matrix, moments.second, matrix.T), third)


def unscale_tables(
    tables: Float[Array, "shares k"], scaling: Scaling | None, variables: Variables
) -> Float[Array, "rows k"]:
    """Return the blocks of shares as those of the variables: categories as they are, means in their own units."""
    if scaling is None:
        return tables
    shares, real = as_shares(variables), variables.real
    # The second row of a share is the one of `y` itself.
    is_real = np.isin(shares.row_variables, real)
    kept = tables[np.flatnonzero(~is_real | (shares.row_categories == 1))]
    rows = variables.offsets[:-1][real]
    return kept.at[rows].set(scaling.low[:, None] + scaling.width[:, None] * kept[rows])
