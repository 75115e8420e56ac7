"""Sums over rows: the one engine under every moment."""

from collections.abc import Callable
from typing import Any

import jax
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


def _blocks(arrays: Any, floats_per_row: int, overlap: int = 0) -> tuple[int, int, int, Callable[..., Any]]:
    """Return the length of a block of rows, the number of whole blocks, the rows left, and how to cut a block out."""
    num_rows = jax.tree.leaves(arrays)[0].shape[0] - overlap
    block = max(1, min(num_rows, _FLOATS_PER_BLOCK // max(1, floats_per_row)))
    num_blocks, num_left = divmod(num_rows, block)

    def cut(start: Array | int, size: int) -> Any:
        return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size + overlap), arrays)

    return block, num_blocks, num_left, cut


def sum_over_rows(function: Callable[..., Any], arrays: tuple[Any, ...], floats_per_row: int, overlap: int = 0) -> Any:
    """Return the sum of `function(*blocks)` over blocks of rows of `arrays`.

    `function` maps blocks of rows to sums over those rows, an array or a tree of them. A loop walks over the blocks in
    place: nothing is copied or padded, the last, shorter block is done apart. Partial sums also keep float32
    accumulation accurate.

    Args:
      function: additive over rows.
      arrays: arrays with one leading axis of `n` rows; `None` stays `None`.
      floats_per_row: size of the temporaries of `function` for one row; it sets the block's length.
      overlap: rows of the next block that a block has too, for sums over windows of `overlap + 1` neighbours.

    """
    block, num_blocks, num_left, cut = _blocks(arrays, floats_per_row, overlap)

    def add(total: Any, start: Array | int, size: int) -> Any:
        return jax.tree.map(jnp.add, total, function(*cut(start, size)))

    total = function(*cut(0, block))
    if num_blocks > 1:
        total = lax.fori_loop(1, num_blocks, lambda i, total: add(total, i * block, block), total)
    if num_left:
        total = add(total, num_blocks * block, num_left)
    return total


def map_over_rows(function: Callable[..., Any], arrays: tuple[Any, ...], floats_per_row: int) -> Any:
    """Return `function(*arrays)`, which gives one output row for each row, computed block by block.

    Arguments as for `sum_over_rows`. Only the output and the temporaries of one block are ever in memory.
    """
    block, num_blocks, num_left, cut = _blocks(arrays, floats_per_row)
    num_rows = jax.tree.leaves(arrays)[0].shape[0]

    def put(outputs: Any, start: Array | int, size: int) -> Any:
        rows = function(*cut(start, size))
        return jax.tree.map(lambda out, part: lax.dynamic_update_slice_in_dim(out, part, start, 0), outputs, rows)

    if num_blocks == 1 and not num_left:
        return function(*arrays)
    shapes = jax.eval_shape(lambda: function(*cut(0, block)))
    outputs = jax.tree.map(lambda s: jnp.zeros((num_rows, *s.shape[1:]), s.dtype), shapes)
    outputs = lax.fori_loop(0, num_blocks, lambda i, outputs: put(outputs, i * block, block), outputs)
    return put(outputs, num_blocks * block, num_left) if num_left else outputs
