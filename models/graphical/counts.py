"""Joint distributions of the exclusive views of sets of hidden variables, counted in one walk over the rows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from latensor.base import small_jit
from latensor.models.graphical.groups import take
from latensor.models.graphical.layout import SetBatch
from latensor.moments import sum_over_rows

# Rows that are counted at a time: single counts into large sums would lose digits.
_ROWS_PER_BLOCK = 8192
_FLOATS_PER_BLOCK = 1 << 20


class _Cells(NamedTuple):
    """Where the views of sets are counted: the tables of all sets are one vector."""

    columns: np.ndarray
    """`(sets, views)`; −1 is padding."""
    strides: np.ndarray
    """The step from one value of a view to the next; zero for a view that is not counted."""
    starts: np.ndarray
    """The first cell of each set."""
    total: int


def _lay_out(batches: Sequence[SetBatch], base: int) -> _Cells:
    """Return the places of the tables of batches of sets; every view has `base` values."""
    width = max(sum(batch.kept) for batch in batches)
    columns, strides, starts, total = [], [], [], 0
    for batch in batches:
        views = np.concatenate([part[:, :kept] for part, kept in zip(batch.columns, batch.kept, strict=True)], axis=1)
        steps = base ** np.arange(views.shape[1])[::-1]
        for row in views:
            missing = [0] * (width - len(row))
            columns.append([*row, *missing])
            strides.append([*steps, *missing])
            starts.append(total)
            total += base ** len(row)
    return _Cells(np.array(columns, np.int32), np.array(strides, np.int32), np.array(starts, np.int32), total)


@small_jit(static_argnames=("size", "total"))
def _count_cells(
    codes: Int[Array, "n p"],
    weights: Float[Array, " n"],
    columns: Int[Array, "sets views"],
    strides: Int[Array, "sets views"],
    starts: Int[Array, " sets"],
    size: int,
    total: int,
) -> Float[Array, " total"]:
    """Return the weight of the rows in every cell; see `_Cells`. What is missing, or padding, has the value `size`."""

    def block(codes: Array, weights: Array) -> Array:
        index = jnp.broadcast_to(starts[None, :], (codes.shape[0], starts.shape[0]))
        for view in range(columns.shape[1]):
            values = take(codes, columns[:, view])
            index = index + strides[None, :, view] * jnp.where(values < 0, size, values)
        return jnp.zeros(total, weights.dtype).at[index].add(weights[:, None])

    # Few rows at a time: a single weight is too small for a large sum.
    per_row = max(3 * columns.shape[0], _FLOATS_PER_BLOCK // _ROWS_PER_BLOCK)
    return sum_over_rows(block, codes, weights, floats_per_row=per_row)


def tables_of_views(
    codes: Int[Array, "n p"], weights: Float[Array, " n"], batches: Sequence[SetBatch], size: int
) -> list[Float[Array, "sets ..."] | None]:
    """Return `GraphMoments.sets` of data: `None` where a table does not stand for the samples."""
    whole = [batch for batch in batches if batch.is_whole]
    if not whole:
        return [None] * len(batches)
    cells = _lay_out(whole, size + 1)
    columns, strides, starts = map(jnp.asarray, cells[:3])
    counts = _count_cells(codes, weights, columns, strides, starts, size, cells.total)
    tables: list[Array | None] = []
    start = 0
    for batch in batches:
        shape = (len(batch.subsets), *((size + 1) ** kept for kept in batch.kept))
        end = start + math.prod(shape) if batch.is_whole else start
        tables.append(counts[start:end].reshape(shape) if batch.is_whole else None)
        start = end
    return tables
