"""Labels of items by workers: sparse triples, and sums over them."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import as_int32, as_numbers, check_integer, check_option, is_concrete
from latensor.moments._data_type import Rows, as_data, check_row_weights, register_data_type

_MEANING = "integers (labels, 3): item, worker, label"
_NAMES = ("item", "worker", "label")


@register_data_type
@dataclass(frozen=True, init=False, eq=False, repr=False)
class Labels(Rows):
    """Labels that workers gave to items: one row `(item, worker, label)` each, in any order.

    Items, workers and labels are numbered `0, 1, …`; an item below zero is padding. Nothing of size items × workers is
    ever formed.
    """

    _static: ClassVar[tuple[str, ...]] = ("num_items", "num_workers")

    x: Int[Array, "m 3"]
    num_items: int
    num_workers: int
    row_weights: Float[Array, " n"] | None
    """One weight per item; `None` means equal weights. Only their ratios matter."""

    def __init__(
        self,
        x: ArrayLike,
        num_items: int | None = None,
        num_workers: int | None = None,
        row_weights: ArrayLike | None = None,
        *,
        duplicates: Literal["error", "last"] = "error",
    ) -> None:
        """Check the triples.

        Args:
          x: `(m, 3)` integers.
          num_items: number of items. Left out, it is read off `x`, and every item must have a label.
          num_workers: number of workers, likewise.
          row_weights: one weight per item.
          duplicates: what a second label by the same worker for the same item is: an `"error"`, or a correction of the
            first, of which the `"last"` is kept.

        """
        check_option("duplicates", duplicates, ("error", "last"))
        array = _check_triples(x)
        if is_concrete(array):
            array = _check_duplicates(array, duplicates)
        elif num_items is None or num_workers is None:
            name = "num_items" if num_items is None else "num_workers"
            raise ValueError(f"{name}: expected a number, which cannot be read off x under jit or vmap; got None")
        counts = [_count(array, column, given) for column, given in enumerate((num_items, num_workers))]
        weights = check_row_weights(row_weights, counts[0], "item")
        self._set(x=array, num_items=counts[0], num_workers=counts[1], row_weights=weights)

    @property
    def num_rows(self) -> int:
        """Number of items."""
        return self.num_items

    @property
    def num_labels(self) -> int:
        """Number of labels, padding included."""
        return self.x.shape[0]

    @property
    def dtype(self) -> Any:
        """Floating type of the moments."""
        return jnp.result_type(float) if self.row_weights is None else self.row_weights.dtype


def _check_triples(x: Any) -> Int[Array, "m 3"]:
    array = as_numbers("x", x, _MEANING)
    if array.ndim != 2 or array.shape[1] != 3 or array.shape[0] == 0:
        raise ValueError(f"x: expected {_MEANING}, at least one row; got shape {array.shape}")
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"x: expected {_MEANING}; got type {array.dtype}")
    if is_concrete(array):
        values = np.asarray(array)
        bad = (values[:, 0] >= 0) & (values[:, 1:] < 0).any(axis=1)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ValueError(f"x: expected workers and labels ≥ 0; got {values[row].tolist()} at row {row}")
        if (values[:, 0] < 0).all():
            raise ValueError("x: expected at least one label; all items are below zero, which means padding")
    return as_int32(array)


def _check_duplicates(array: Int[Array, "m 3"], duplicates: str) -> Int[Array, "kept 3"]:
    """Return triples without a second label by the same worker for the same item."""
    values = np.asarray(array).astype(np.int64)
    rows = np.flatnonzero(values[:, 0] >= 0)
    pairs = values[rows, 0] * (values[rows, 1].max() + 1) + values[rows, 1]
    # Of the reversed order, the first occurrence of each pair is the last.
    _, last = np.unique(pairs[::-1], return_index=True)
    if len(last) == len(rows):
        return array
    kept = np.sort(len(rows) - 1 - last)
    if duplicates == "last":
        with jax.ensure_compile_time_eval():
            return jnp.asarray(np.asarray(array)[rows[kept]])
    _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    item, worker, _ = values[rows[first[np.argmax(counts > 1)]]]
    raise ValueError(
        f"x: expected at most one label by each worker for each item; worker {worker} labels item {item} "
        f"{counts[counts > 1][0]} times ({int(np.sum(counts > 1))} such pairs in all): "
        "pass Labels(x, duplicates='last') to keep the last"
    )


def _count(array: Int[Array, "m 3"], column: int, given: Any) -> int:
    """Return the number of items or workers, the given one or that of `x`."""
    name = _NAMES[column]
    number = None if given is None else check_integer(f"num_{name}s", given, 1)
    if not is_concrete(array):
        return int(number or 0)
    values = np.asarray(array)
    present = np.unique(values[values[:, 0] >= 0, column])
    if number is None:
        number = int(present[-1]) + 1
        if len(present) < number:
            absent = int(np.flatnonzero(present != np.arange(len(present)))[0])
            hint = (
                f"{name}s are numbered from one: subtract one; or "
                if absent == 0 and len(present) == number - 1
                else ""
            )
            raise ValueError(
                f"x: expected {name}s numbered 0, 1, … without gaps; {name} {absent} has no label "
                f"({number - len(present)} without labels in all): {hint}number those that occur, as numpy.unique("
                f"return_inverse=True) does, or pass num_{name}s={number}"
            )
    elif present[-1] >= number:
        raise ValueError(f"x: expected {name}s below num_{name}s = {number}; got {present[-1]}")
    return number


def as_labels(data: Any, **given: Any) -> Labels:
    """Return `data` if it is labels, else those of the array `data` and the fields in `given` (`num_items`, …)."""
    labels = as_data(Labels, data, given)
    if labels is None:
        return Labels(data, **given)
    if labels.x.ndim != 2:
        raise ValueError(f"x: expected one Labels, x with two axes; got a batch, {labels.x.shape}: use jax.vmap")
    return labels


def valid_labels(labels: Labels, num_classes: int) -> Bool[Array, " m"]:
    """Return which rows are labels: not padding, and within the range of items, workers and classes."""
    item, worker, label = labels.x.T
    valid = (item >= 0) & (item < labels.num_items) & (worker >= 0) & (worker < labels.num_workers)
    return valid & (label >= 0) & (label < num_classes)


def _places(labels: Labels, num_classes: int) -> tuple[Int[Array, " m"], Int[Array, " m"]]:
    """Return the item of each label, and its stacked row, `worker · classes + label`; beyond the end for padding."""
    item, worker, label = labels.x.T
    valid = valid_labels(labels, num_classes)
    row = jnp.where(valid, worker * num_classes + label, labels.num_workers * num_classes)
    return jnp.where(valid, item, labels.num_items), row


def sum_by_item(labels: Labels, values: Float[Array, "rows r"], num_classes: int) -> Float[Array, "n r"]:
    """Return for each item the sum of `values` over its labels; `rows` are `worker · classes + label`."""
    item, row = _places(labels, num_classes)
    picked = values.at[row].get(mode="fill", fill_value=0)
    return jnp.zeros((labels.num_items, values.shape[1]), values.dtype).at[item].add(picked, mode="drop")


def sum_by_label(labels: Labels, values: Float[Array, "n r"], num_classes: int) -> Float[Array, "rows r"]:
    """Return for each worker and label the sum of `values` over the items so labelled: adjoint of `sum_by_item`."""
    item, row = _places(labels, num_classes)
    picked = values.at[item].get(mode="fill", fill_value=0)
    return jnp.zeros((labels.num_workers * num_classes, values.shape[1]), values.dtype).at[row].add(picked, mode="drop")
