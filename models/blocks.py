"""Parameters of categorical and real variables in stacked blocks, and sums over the entries of a table in that form.

A categorical variable has one row per category, and the columns of its block sum to one; a real variable has one row.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from latensor.base import machine_epsilon, matmul, positive_or_one, smallest_normal
from latensor.moments import Table, Variables, sum_over_rows
from latensor.moments.internal import CATEGORICAL, category_rows, described

# A real variable's variance stays above this share of its overall variance.
_SMALLEST_VARIANCE = 1e-6


def normalize_blocks(
    counts: Float[Array, "rows m"], otherwise: Float[Array, "rows m"], variables: Variables
) -> tuple[Float[Array, "rows m"], Int[Array, ""]]:
    """Scale the columns of each block to sum to one; empty ones are taken from `otherwise`, and counted."""
    owner = variables.row_variables
    totals = jax.ops.segment_sum(counts, owner, variables.num_variables)
    # A total close to the smallest number counts as zero: its parts may have been rounded to zero.
    used = totals > smallest_normal(counts.dtype) ** 0.75
    shares = counts / jnp.where(used, totals, 1)[owner]
    return jnp.where(used[owner], shares, otherwise), jnp.sum(~used, dtype=jnp.int32)


def blend_blocks(
    tables: Float[Array, "rows k"], totals: Float[Array, "rows 1"], share: Float[Array, ""], variables: Variables
) -> Float[Array, "rows k"]:
    """Return tables with a share of the overall frequencies in every categorical block: no category is ruled out."""
    rows = variables.offsets[:-1][variables.real]
    overall, _ = normalize_blocks(jnp.broadcast_to(totals, tables.shape), tables, variables)
    return ((1 - share) * tables + share * overall).at[rows].set(tables[rows])


def observed_values(rows: Table) -> Num[Array, "n p"]:
    """Return the entries with zeros where they are not observed: valid codes and finite numbers."""
    return rows.x if rows.mask is None else jnp.where(rows.mask, rows.x, jnp.zeros((), rows.x.dtype))


def sum_by_row(values: Float[Array, "n p m"], x: Num[Array, "n p"], variables: Variables) -> Float[Array, "rows m"]:
    """Add each entry's values up in the stacked row of its category, or in the one row of its real variable."""
    categorical, real = variables.categorical, variables.real
    sums = jnp.zeros((variables.num_rows, values.shape[2]), values.dtype)
    if categorical.size:
        added = values if not real.size else values[:, categorical]
        sums = sums.at[category_rows(x, variables)].add(added, mode="drop")
    if real.size:
        sums = sums.at[variables.offsets[:-1][real]].set(jnp.sum(values[:, real], axis=0))
    return sums


def overall_counts(table: Table, weights: Float[Array, " n"]) -> tuple[Float[Array, "rows 1"], Float[Array, " r"]]:
    """Return the total weight of each stacked row, and the smallest variance that each real variable may have."""
    variables, dtype = described(table), weights.dtype
    real = variables.real

    def block(rows: Table, weights: Array) -> tuple[Array, Array, Array]:
        seen = jnp.ones(rows.x.shape, dtype) if rows.mask is None else rows.mask.astype(dtype)
        x, seen = observed_values(rows), seen * weights[:, None]
        values = x[:, real].astype(dtype)
        first = jnp.sum(seen[:, real] * values, axis=0)
        return sum_by_row(seen[:, :, None], x, variables), first, jnp.sum(seen[:, real] * values**2, axis=0)

    totals, first, second = sum_over_rows(block, table, weights, floats_per_row=3 * table.num_dimensions)
    weight = positive_or_one(totals[variables.offsets[:-1][real], 0])
    first, second = first / weight, second / weight
    # Never below the rounding of the entries themselves, so that a variable that is constant does no harm.
    rounding = machine_epsilon(dtype) ** 2 * second
    share = _SMALLEST_VARIANCE * jnp.maximum(second - first**2, 0)
    return totals, jnp.maximum(jnp.maximum(share, rounding), smallest_normal(dtype) ** 0.5)


def variable_rates(table: Table, weights: Float[Array, " n"]) -> Float[Array, " p"]:
    """Return the weighted share of samples that observe each variable."""
    if table.mask is None:
        return jnp.ones(table.num_dimensions, weights.dtype)

    def block(rows: Table, weights: Array) -> Array:
        return matmul(weights, jnp.asarray(rows.mask, weights.dtype))

    return sum_over_rows(block, table, weights, floats_per_row=table.num_dimensions)


def count_invalid(rows: Table, variables: Variables) -> Int[Array, ""]:
    """Return how many observed entries are neither a category code nor, for a share, a finite number."""
    x: Num[Array, "n p"] = rows.x
    valid = (x >= 0) & (x < jnp.asarray(variables.sizes, x.dtype)[None, :])
    if jnp.issubdtype(x.dtype, jnp.floating):
        is_code = jnp.asarray([kind == CATEGORICAL for kind in variables.kinds])[None, :]
        valid = jnp.where(is_code, valid & (x == jnp.floor(x)), jnp.isfinite(x))
    invalid = ~valid if rows.mask is None else ~valid & rows.mask
    return jnp.sum(invalid, dtype=jnp.int32)
