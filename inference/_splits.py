"""Rows that are held out: divisions into folds, and means over rows with their errors.

Rows are held out by a weight of zero, so that data keep their shapes: every division runs the same compiled code.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from latensor.base import check_integer, check_number, is_concrete
from latensor.inference._data import row_sizes, row_weights_of
from latensor.moments import Sequences

# Blocks of time that a single long sequence is cut into, and how long each is at the least.
_NUM_BLOCKS, _SHORTEST_BLOCK = 100, 20
# `num_splits * holdout` may exceed one by rounding.
_ROUNDING = 1e-9


class Folds(NamedTuple):
    """Rows with weights and sizes, and groups of them that are held out in turn."""

    data: Any
    """The data type; one long sequence is cut into blocks of time."""
    weights: np.ndarray
    """`(n,)`."""
    sizes: np.ndarray
    """Observations of each row `(n,)`: one, but for sequences."""
    held_out: np.ndarray
    """Rows `(num_splits, m)`; no row is held out twice."""

    def training_weights(self, number: int) -> np.ndarray:
        """Return the weights of all rows, zero where they are held out in a division."""
        weights = self.weights.copy()
        weights[self.held_out[number]] = 0
        return weights


class Mean(NamedTuple):
    """A mean over observations, and its standard error over rows."""

    value: float
    error: float


def check_split(holdout: Any, num_splits: Any) -> tuple[float, int]:
    """Return the share of the rows that is held out, and how often; no row twice."""
    number = check_integer("num_splits", num_splits, 1)
    share = float(check_number("holdout", holdout, 0.0, 1.0)) if is_concrete(holdout) else float("nan")
    if not 0 < share < 1 or number * share > 1 + _ROUNDING:
        raise ValueError(
            f"holdout: expected a number between 0 and 1, and at most 1 / num_splits = {1 / number:g}, since no row is "
            f"held out twice; got {holdout!r}"
        )
    return share, number


def draw_folds(key: Array, data: Any, holdout: float, num_splits: int, largest: int) -> Folds:
    """Return disjoint groups of rows at random: of tables and documents rows, of sequences whole ones.

    A single sequence is cut into blocks of time, each of which then counts as a sequence.
    """
    data = _cut(data)
    number = data.num_sequences if isinstance(data, Sequences) else data.num_rows
    size = int(holdout * number + _ROUNDING)
    if size < 2 or number - size < largest:
        raise ValueError(
            f"x: expected enough rows to hold out two, and to learn from max(candidates) = {largest}; got {number}, of "
            f"which holdout = {holdout:g} leaves {number - size}"
        )
    weights = row_weights_of(data, number)
    order = np.asarray(jax.random.permutation(key, number))
    held_out = np.sort(order[: num_splits * size].reshape(num_splits, size), axis=1)
    for rows in held_out:
        if not weights[rows].any() or not np.delete(weights, rows).any():
            raise ValueError("row_weights: expected weights of which every division has some; too few are above zero")
    return Folds(data, weights, row_sizes(data, number), held_out)


def _cut(data: Any) -> Any:
    """Return a single sequence as blocks of time; all other data as they are."""
    if not isinstance(data, Sequences) or data.num_sequences > 1:
        return data
    # One row of a batch is a sequence too.
    if data.is_batched:
        length = data.x.shape[1] if data.lengths is None else int(data.lengths[0])
        mask = None if data.mask is None else data.mask[0, :length]
        data = Sequences(data.x[0, :length], mask=mask, num_symbols=data.num_symbols)
    total = data.x.shape[0] if data.lengths is None else int(data.lengths[0])
    number = max(min(_NUM_BLOCKS, total // _SHORTEST_BLOCK), 1)
    ends = np.arange(1, number + 1) * total // number
    lengths = np.diff(ends, prepend=0)
    return Sequences(data.x, lengths=lengths, mask=data.mask, num_symbols=data.num_symbols)


def mean_per_observation(values: np.ndarray, weights: np.ndarray, sizes: np.ndarray) -> Mean:
    """Return `Σ w v / Σ w m` for rows of `m` observations, and its standard error over rows (a ratio of two sums)."""
    total = np.sum(weights * sizes)
    mean = np.sum(weights * values) / total
    return Mean(float(mean), float(np.sqrt(np.sum((weights * (values - mean * sizes)) ** 2)) / total))
