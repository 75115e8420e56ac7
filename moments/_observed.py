"""What was observed of a table: rates of the dimensions, alone and in pairs, and centring."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import as_float, matmul, positive_or_one
from latensor.moments._rows import average_weights, sum_over_rows
from latensor.moments.data import Table, as_table


class Centred(NamedTuple):
    """A table with everything that centring needs: computed once, used by all moments of second and third order."""

    table: Table
    weights: Float[Array, " n"]
    """One per row; they sum to one."""
    mean: Float[Array, " d"]
    """Of the observed entries of each dimension."""
    rates: Float[Array, " d"]
    """Share of the rows that observe each dimension: one where there is no mask."""


def observed(rows: Table, dtype: Any) -> Float[Array, "n d"]:
    """Return one where an entry is observed, else zero."""
    return jnp.ones(rows.x.shape, dtype) if rows.mask is None else rows.mask.astype(dtype)


def residuals(rows: Table, mean: Float[Array, " d"]) -> Float[Array, "n d"]:
    """Return `m (x − μ)`: zero where an entry is not observed."""
    x = as_float(rows.x)
    # The mean in place of a masked value, so that neither NaN nor its derivative can come through.
    filled = x if rows.mask is None else jnp.where(rows.mask, x, mean[None, :])
    return filled - mean[None, :]


def _counting_weights(table: Table) -> Float[Array, " n"]:
    # Ones where no weights are given: sums of ones are exact in float32, sums of 1/n are not.
    weights = table.row_weights
    return jnp.ones(table.num_rows, table.dtype) if weights is None else weights.astype(table.dtype)


def _rate_sums(rows: Table, weights: Array) -> tuple[Array, Array]:
    seen = observed(rows, weights.dtype)
    return matmul(weights, seen), matmul(weights, 1 - seen)


def _rates(seen: Array, unseen: Array) -> Float[Array, " d"]:
    """Return the share that was seen; exactly one where nothing was missing."""
    return jnp.where(unseen == 0, jnp.ones_like(seen), seen / positive_or_one(seen + unseen))


@jax.jit
def _observation_rates(table: Table) -> Float[Array, " d"]:
    if table.mask is None:
        return jnp.ones(table.num_dimensions, table.dtype)
    floats_per_row = 2 * table.num_dimensions
    return _rates(*sum_over_rows(_rate_sums, table, _counting_weights(table), floats_per_row=floats_per_row))


def observation_rates(data: Table | ArrayLike) -> Float[Array, " d"]:
    """Return the share of rows that observe each dimension; exactly one where all do."""
    return _observation_rates(as_table(data))


@jax.jit
def _joint_observation_rates(table: Table) -> Float[Array, "d d"]:
    d = table.num_dimensions
    if table.mask is None:
        return jnp.ones((d, d), table.dtype)

    def block_sum(rows: Table, weights: Array) -> tuple[Array, Array]:
        seen = observed(rows, weights.dtype)
        return matmul((weights[:, None] * seen).T, seen), jnp.sum(weights)

    seen, total = sum_over_rows(block_sum, table, _counting_weights(table), floats_per_row=2 * d)
    return seen / positive_or_one(total)


def joint_observation_rates(data: Table | ArrayLike) -> Float[Array, "d d"]:
    """Return the share of rows that observe both of two dimensions: `O(n d²)`.

    Where dimensions are missing independently it is about the product of the two rates. Zero means that a pair was
    never observed together: nothing in the data determines its covariance.
    """
    return _joint_observation_rates(as_table(data))


@jax.jit
def centre(table: Table) -> Centred:
    """Return the table with its means and observation rates. One pass over the data."""
    dtype, d = table.dtype, table.num_dimensions
    averaging = average_weights(table.row_weights, table.num_rows, dtype)
    if table.mask is None:
        # One product over all rows reads them once, and needs no temporaries.
        mean = sum_over_rows(lambda rows, w: matmul(w, as_float(rows.x)), table, averaging, floats_per_row=0)
        return Centred(table, averaging, mean, jnp.ones(d, dtype))

    def block_sum(rows: Table, weights: Array) -> tuple[Array, tuple[Array, Array]]:
        return matmul(weights, residuals(rows, jnp.zeros(d, dtype))), _rate_sums(rows, weights)

    total, (seen, unseen) = sum_over_rows(block_sum, table, _counting_weights(table), floats_per_row=3 * d)
    return Centred(table, averaging, total / positive_or_one(seen), _rates(seen, unseen))


def spread(values: Float[Array, "n r"], rows: Float[Array, "n d"]) -> Float[Array, "d r"]:
    """Return `rowsᵀ values` by the product `valuesᵀ rows`, which reads the rows in order.

    It takes little longer than `rows @ V`; `rowsᵀ values` takes twice that on a CPU, and the barrier keeps the compiler
    from turning one into the other.
    """
    return lax.optimization_barrier(matmul(values.T, rows)).T
