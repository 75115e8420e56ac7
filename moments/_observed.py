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


def _counting_weights(row_weights: Array | None, num_rows: int, dtype: jnp.dtype) -> Float[Array, " n"]:
    # Ones where no weights are given: sums of ones are exact in float32, sums of 1/n are not.
    return jnp.ones(num_rows, dtype) if row_weights is None else row_weights.astype(dtype)


def _rate_sums(mask: Array, weights: Array) -> tuple[Array, Array]:
    seen = mask.astype(weights.dtype)
    return jnp.matmul(weights, seen, precision="highest"), jnp.matmul(weights, 1 - seen, precision="highest")


def _rates(seen: Array, unseen: Array) -> Float[Array, " d"]:
    """Return the share that was seen; exactly one where nothing was not."""
    total = seen + unseen
    return jnp.where(unseen == 0, jnp.ones_like(seen), seen / jnp.where(total > 0, total, 1))


@jax.jit
def observation_rates(mask: Bool[Array, "n d"], row_weights: Float[Array, " n"] | None = None) -> Float[Array, " d"]:
    """Return the share of rows that observe each dimension; exactly one where all do."""
    weights = _counting_weights(row_weights, mask.shape[0], jnp.result_type(float))
    return _rates(*sum_over_rows(_rate_sums, (mask, weights), floats_per_row=2 * mask.shape[1]))


@jax.jit
def joint_observation_rates(
    mask: Bool[Array, "n d"], row_weights: Float[Array, " n"] | None = None
) -> Float[Array, "d d"]:
    """Return the share of rows that observe both of two dimensions: `O(n d²)`.

    Where dimensions are missing independently it is about the product of the two rates; zero means that a pair was
    never observed together, and nothing in the data tells its covariance.
    """
    weights = _counting_weights(row_weights, mask.shape[0], jnp.result_type(float))

    def block_sum(mask: Array, weights: Array) -> Array:
        seen = mask.astype(weights.dtype)
        return jnp.matmul((weights[:, None] * seen).T, seen, precision="highest")

    total = jnp.sum(weights)
    seen = sum_over_rows(block_sum, (mask, weights), floats_per_row=2 * mask.shape[1])
    return seen / jnp.where(total > 0, total, 1)


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

    counting = _counting_weights(row_weights, x.shape[0], dtype)
    total, (seen, unseen) = sum_over_rows(block_sum, (x, mask, counting), floats_per_row=3 * d)
    return Centred(x, mask, weights, total / jnp.where(seen > 0, seen, 1), _rates(seen, unseen))


def residuals(x: Num[Array, "n d"], mask: Bool[Array, "n d"] | None, mean: Float[Array, " d"]) -> Float[Array, "n d"]:
    """Return `m (x − μ)`: zero where an entry is not observed."""
    x = as_float(x)
    # The mean in place of a hidden value, so that neither NaN nor its derivative can come through.
    filled = x if mask is None else jnp.where(mask, x, mean[None, :])
    return filled - mean[None, :]


def spread(values: Float[Array, "n r"], rows: Float[Array, "n d"]) -> Float[Array, "d r"]:
    """Return `rowsᵀ values` by the product `valuesᵀ rows`, which reads the rows in order (see `spread_words`)."""
    return lax.optimization_barrier(jnp.matmul(values.T, rows, precision="highest")).T
