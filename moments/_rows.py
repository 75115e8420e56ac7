"""Sums and maps over rows: the one engine under every moment, and the only place that walks over data.

A row is a leading index of every array of a data type (`Table`, `Documents`) and of plain arrays beside it. Streams,
shards and sparse rows will enter here, and nowhere else.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from latensor.base import positive_or_one

# Temporaries of about 4 MB stay in the cache of common CPUs; larger ones travel to memory and back.
_FLOATS_PER_BLOCK = 1 << 20


def average_weights(
    row_weights: Float[Array, " n"] | None, num_rows: int, dtype: Any, usable: Array | None = None
) -> Float[Array, " n"]:
    """Return weights that sum to one over the `usable` rows (default: all); other rows get zero.

    Where no row is usable all weights are zero, so that the moments are zeros and never NaN.
    """
    weights = jnp.ones(num_rows, dtype) if usable is None else usable.astype(dtype)
    if row_weights is not None:
        weights = weights * row_weights.astype(dtype)
    return weights / positive_or_one(sum_over_rows(jnp.sum, weights, floats_per_row=0))


def _num_rows(rows: tuple[Any, ...], overlap: int = 0) -> int:
    """Return the number of rows that blocks begin at; all arrays must have as many rows."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(rows)]
    if len({shape[:1] for shape in shapes}) != 1 or shapes[0] == ():
        raise ValueError(f"rows: expected arrays with one leading axis of the same length; got shapes {shapes}")
    if shapes[0][0] <= overlap:
        raise ValueError(f"rows: expected at least {overlap + 1} rows; got {shapes[0][0]}")
    return int(shapes[0][0]) - overlap


def _blocks(
    rows: tuple[Any, ...], floats_per_row: int, overlap: int = 0
) -> tuple[int, int, int, Callable[[Array | int, int], Any]]:
    """Return the length of a block of rows, the number of whole blocks, the rows left, and how to cut a block out."""
    num_rows = _num_rows(rows, overlap)
    block = num_rows if floats_per_row == 0 else max(1, min(num_rows, _FLOATS_PER_BLOCK // floats_per_row))
    num_blocks, num_left = divmod(num_rows, block)

    def cut(start: Array | int, size: int) -> Any:
        if size == num_rows:
            return rows
        return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size + overlap), rows)

    return block, num_blocks, num_left, cut


def sum_over_rows(function: Callable[..., Any], *rows: Any, floats_per_row: int, overlap: int = 0) -> Any:
    """Return the sum of `function(*blocks)` over blocks of rows.

    A loop walks over the blocks in place: nothing is copied or padded, and the last, shorter block is done apart.
    Partial sums also keep float32 accumulation accurate.

    Args:
      function: maps blocks of rows to a sum over those rows, an array or a tree of arrays.
      *rows: data types, or arrays with one leading axis of `n` rows; `None` stays `None`. Each block has the type of
        the whole.
      floats_per_row: size of the temporaries of `function` per row; it sets the length of a block. Zero means that
        they are negligible: one block for all rows.
      overlap: number of rows of the next block that a block includes too, for sums over windows of `overlap + 1`
        neighbours.

    """
    block, num_blocks, num_left, cut = _blocks(rows, floats_per_row, overlap)

    def add(total: Any, start: Array | int, size: int) -> Any:
        return jax.tree.map(jnp.add, total, function(*cut(start, size)))

    if num_blocks == 1 and not num_left:
        return function(*cut(0, block))
    # From zero, so that `function` is compiled for one block of full length, not for the first one apart.
    shapes = jax.eval_shape(lambda: function(*cut(0, block)))
    total = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), shapes)
    total = lax.fori_loop(0, num_blocks, lambda i, total: add(total, i * block, block), total)
    return add(total, num_blocks * block, num_left) if num_left else total


def map_over_rows(function: Callable[..., Any], *rows: Any, floats_per_row: int) -> Any:
    """Return `function(*rows)`, which gives one output row per row, computed block by block.

    Arguments as for `sum_over_rows`. Beside the output, only the temporaries of one block are ever in memory.
    """
    block, num_blocks, num_left, cut = _blocks(rows, floats_per_row)
    num_rows = _num_rows(rows)

    def put(outputs: Any, start: Array | int, size: int) -> Any:
        part = function(*cut(start, size))
        return jax.tree.map(lambda out, row: lax.dynamic_update_slice_in_dim(out, row, start, 0), outputs, part)

    if block == num_rows:
        return function(*rows)
    shapes = jax.eval_shape(lambda: function(*cut(0, block)))
    outputs = jax.tree.map(lambda s: jnp.zeros((num_rows, *s.shape[1:]), s.dtype), shapes)
    outputs = lax.fori_loop(0, num_blocks, lambda i, outputs: put(outputs, i * block, block), outputs)
    return put(outputs, num_blocks * block, num_left) if num_left else outputs
