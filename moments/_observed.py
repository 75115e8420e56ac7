"""What of a table was observed: rates of the dimensions, alone and in pairs, and the centring of what is there.

`mask (n, d)` is True where an entry was observed. Values under a masked entry are never looked at; they may be NaN.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Num

from latensor.moments._rows import as_float, average_weights, sum_over_rows


class Centred(NamedTuple):
    """A table with all that centring needs: computed once, used by every moment of second and third order."""

    x: Num[Array, "n d"]
    mask: Bool[Array, "n d"] | None
    row_weights: Float[Array, " n"]
    """They sum to one."""
    mean: Float[Array, " d"]
    """Of the observed entries of a dimension."""
    rates: Float[Array, " d"]
    """Share of the rows that observe a dimension: one where there is no mask."""


def _rate_sums(mask: Array, weights: Array) -> tuple[Array, Array]:
    seen = mask.astype(weights.dtype)
    return jnp.matmul(weights, seen, precision="highest"), jnp.matmul(weights, 1 - seen, precision="highest")


def _exact_rates(seen: Array, unseen: Array) -> Float[Array, " d"]:
    # A dimension that no row misses has the rate one, not a sum that rounds to nearly one.
    return jnp.where(unseen == 0, jnp.ones_like(seen), jnp.minimum(seen, 1))


@jax.jit
def observation_rates(mask: Bool[Array, "n d"], row_weights: Float[Array, " n"] | None = None) -> Float[Array, " d"]:
    """Return the share of rows that observe each dimension; exactly one where all do."""
    weights = average_weights(row_weights, jnp.ones(mask.shape[0], bool), jnp.result_type(float))
    return _exact_rates(*sum_over_rows(_rate_sums, (mask, weights), floats_per_row=2 * mask.shape[1]))


@jax.jit
def joint_observation_rates(
    mask: Bool[Array, "n d"], row_weights: Float[Array, " n"] | None = None
) -> Float[Array, "d d"]:
    """Return the share of rows that observe both of two dimensions: `O(n d²)`.

    Where dimensions are missing independently it is about the product of the two rates; zero means that a pair was
    never observed together, and nothing in the data tells its covariance.
    """
    weights = average_weights(row_weights, jnp.ones(mask.shape[0], bool), jnp.result_type(float))

    def block_sum(mask: Array, weights: Array) -> Array:
        seen = mask.astype(weights.dtype)
        return jnp.matmul((weights[:, None] * seen).T, seen, precision="highest")

    return sum_over_rows(block_sum, (mask, weights), floats_per_row=2 * mask.shape[1])


@jax.jit
def centre(
    x: Num[Array, "n d"], mask: Bool[Array, "n d"] | None = None, row_weights: Float[Array, " n"] | None = None
) -> Centred:
    """Return the table with its means and observation rates. One pass over the data.

    Args:
      x: samples in rows; integers become floats.
      mask: True where observed; `None` means everywhere.
      row_weights: a weight for each row (default: equal). They need not sum to one.

    """
    dtype = as_float(x).dtype
    d = x.shape[1]
    weights = average_weights(row_weights, jnp.ones(x.shape[0], bool), dtype)
    if mask is None:
        mean = jnp.matmul(weights, as_float(x), precision="highest")
        return Centred(x, None, weights, mean, jnp.ones(d, dtype))

    def block_sum(x: Array, mask: Array, weights: Array) -> tuple[Array, tuple[Array, Array]]:
        filled = jnp.where(mask, as_float(x), 0)
        return jnp.matmul(weights, filled, precision="highest"), _rate_sums(mask, weights)

    total, rate_sums = sum_over_rows(block_sum, (x, mask, weights), floats_per_row=3 * d)
    seen = rate_sums[0]
    mean = total / jnp.where(seen > 0, seen, 1)
    return Centred(x, mask, weights, mean, _exact_rates(*rate_sums))


def residuals(x: Num[Array, "n d"], mask: Bool[Array, "n d"] | None, mean: Float[Array, " d"]) -> Float[Array, "n d"]:
    """Return `m (x − μ)`: zero where an entry is not observed."""
    x = as_float(x)
    # The mean in place of a hidden value, so that neither NaN nor its derivative can come through.
    filled = x if mask is None else jnp.where(mask, x, mean[None, :])
    return filled - mean[None, :]


def spread(values: Float[Array, "n r"], rows: Float[Array, "n d"]) -> Float[Array, "d r"]:
    """Return `rowsᵀ values` by the product `valuesᵀ rows`, which reads the rows in order (see `spread_words`)."""
    return lax.optimization_barrier(jnp.matmul(values.T, rows, precision="highest")).T
