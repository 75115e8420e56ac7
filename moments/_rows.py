"""Sums over rows: the one engine under every moment."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num

# Temporaries of about 4 MB stay in the cache of common CPUs; larger ones travel to memory and back.
_FLOATS_PER_BLOCK = 1 << 20


def as_float(x: Num[Array, "..."]) -> Float[Array, "..."]:
    """Return `x` in its own floating type; integers and 16-bit floats in the default one (float64 only under x64)."""
    keep = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize >= 4
    return x if keep else x.astype(jnp.result_type(float))


def average_weights(row_weights: Float[Array, " n"] | None, usable: Array, dtype: jnp.dtype) -> Float[Array, " n"]:
    """Return weights that sum to one over the `usable` rows; rows that are not usable get zero.

    Where no row is usable all weights are zero, so that the moments are zeros and never NaN.
    """
    weights = usable.astype(dtype)
    if row_weights is not None:
        weights = weights * row_weights.astype(dtype)
    total = jnp.sum(weights)
    return weights / jnp.where(total > 0, total, 1)


def sum_over_rows(function: Callable[..., Array], arrays: tuple[Array, ...], floats_per_row: int) -> Array:
    """Return the sum of `function(*blocks)` over blocks of rows of `arrays`.

    `function` maps blocks of rows to a sum over those rows. A loop walks over the blocks in place: nothing is copied
    or padded, the last, shorter block is done apart. Partial sums also keep float32 accumulation accurate.

    Args:
      function: additive over rows.
      arrays: arrays with one leading axis of `n` rows.
      floats_per_row: size of the temporaries of `function` for one row; it sets the block's length.

    """
    num_rows = arrays[0].shape[0]
    block = max(1, min(num_rows, _FLOATS_PER_BLOCK // max(1, floats_per_row)))
    num_blocks, num_left = divmod(num_rows, block)

    def part(start: Array | int, size: int) -> Array:
        return function(*(lax.dynamic_slice_in_dim(a, start, size) for a in arrays))

    total = part(0, block)
    if num_blocks > 1:
        total = lax.fori_loop(1, num_blocks, lambda i, acc: acc + part(i * block, block), total)
    if num_left:
        total = total + part(num_blocks * block, num_left)
    return total
