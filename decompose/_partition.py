"""Dividing many variables into small tensors that share anchors: the partitions of PTPQP.

The tensor of `p` variables has `(Σ d_j)³` entries, although a few variables are enough to tell `k` components apart. So
three groups of *anchor* variables, one per mode, are joined to each partition, and the others are dealt out, each to
one mode of one partition. The tensor of each partition is identifiable if that of the anchors is. All have the same
shape (shorter ones are padded), so that they form one batch.

Source: Tan, Mukherjee (2017), Partitioned tensor factorizations for learning mixed membership models, §4.1, §4.2, §4.7.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from latensor.base import check_integer, is_concrete
from latensor.decompose._anchors import check_anchors
from latensor.decompose._linalg import check_sizes


class Partitions(NamedTuple):
    """The row of the stacked variables at each place of each mode of each partition; anchors come first."""

    rows: tuple[Int[Array, "P r1"], Int[Array, "P r2"], Int[Array, "P r3"]]
    """Rows of the variables' stacked blocks; −1 is padding."""
    is_anchor: tuple[Bool[Array, " r1"], Bool[Array, " r2"], Bool[Array, " r3"]]
    """Which rows of each mode belong to anchors; the same in all partitions."""


def partition_variables(
    sizes: tuple[int, ...], num_partitions: int, anchors: Sequence[Sequence[int]] | Int[Array, "3 q"]
) -> Partitions:
    """Deal variables out to partitions that all contain the anchors.

    Args:
      sizes: number of rows (categories) of each variable.
      num_partitions: number of partitions; at most the number of variables that are not anchors.
      anchors: three groups of variable numbers, or an array `(3, q)` of them, which may be traced if all variables have
        the same size. `choose_anchors` finds good ones.

    Returns:
      `Partitions`. Variables of similar size are spread evenly, so that there is little padding.

    """
    sizes = check_sizes(sizes)
    is_list = isinstance(anchors, tuple | list)
    if not (is_list or (isinstance(anchors, np.ndarray | jax.Array) and anchors.ndim)) or len(anchors) != 3:
        raise ValueError(f"anchors: expected three groups of variables, one per mode; got {type(anchors).__name__}")
    num_others = len(sizes) - sum(len(group) for group in anchors)
    check_integer("num_partitions", num_partitions, 1, max(1, num_others), " (the variables that are not anchors)")
    if is_concrete(anchors):
        check_anchors(sizes, anchors, 1)
        return _partition(sizes, num_partitions, anchors)
    if len(set(sizes)) > 1:
        raise ValueError("anchors: expected concrete numbers if variables differ in size; got a traced array")
    return _partition_traced(len(sizes), sizes[0], num_partitions, anchors)


def _partition(sizes: tuple[int, ...], num_partitions: int, anchors: Any) -> Partitions:
    # In NumPy: one by one, operations on arrays of many shapes take JAX a second to compile.
    groups = [np.asarray(group, np.int32).reshape(-1) for group in anchors]
    named = set(np.concatenate(groups).tolist())
    by_size = sorted((j for j in range(len(sizes)) if j not in named), key=lambda j: -sizes[j])
    slots = _deal(num_partitions, groups, np.asarray(by_size, np.int32), np)
    num_anchor_rows = [sum(sizes[j] for j in group.tolist()) for group in groups]
    return _partitions([_rows(sizes, part) for part in slots], num_anchor_rows)


def _partition_traced(num_variables: int, size: int, num_partitions: int, anchors: Any) -> Partitions:
    """Partition variables of one size whose anchors are traced."""
    groups = [jnp.asarray(group, jnp.int32).reshape(-1) for group in anchors]
    flat = jnp.concatenate(groups)
    taken = jnp.zeros(num_variables, jnp.int32).at[flat].set(1)
    others = jnp.argsort(taken, stable=True)[: num_variables - flat.shape[0]].astype(jnp.int32)
    slots = _deal(num_partitions, groups, others, jnp)
    return _partitions([_traced_rows(size, part) for part in slots], [group.shape[0] * size for group in groups])


def _partitions(rows: list[Array], num_anchor_rows: list[int]) -> Partitions:
    first, second, third = (
        jnp.asarray(np.arange(part.shape[1]) < count) for part, count in zip(rows, num_anchor_rows, strict=True)
    )
    return Partitions((rows[0], rows[1], rows[2]), (first, second, third))


def _deal(num_partitions: int, anchors: list[Any], others: Any, xp: Any) -> list[Any]:
    """Return the variables `(P, slots)` of each mode, anchors first; −1 is padding.

    The others go in turn to the partitions of the first mode, of the second, of the third, and round again.
    """
    turns = -(-others.shape[0] // (3 * num_partitions)) if others.shape[0] else 0
    padding = 3 * num_partitions * turns - others.shape[0]
    dealt = xp.concatenate([others, xp.full(padding, -1, xp.int32)]).reshape(turns, 3, num_partitions)
    slots = []
    for mode in range(3):
        # The last turn may not reach this mode at all.
        full = turns - 1 if padding >= (3 - mode) * num_partitions else turns
        shared = xp.broadcast_to(anchors[mode][None, :], (num_partitions, anchors[mode].shape[0]))
        slots.append(xp.concatenate([shared, dealt[:full, mode].T], axis=1))
    return slots


def _traced_rows(size: int, slots: Int[Array, "P s"]) -> Int[Array, "P rows"]:
    """Replace the numbers of variables of one size by those of their stacked rows; −1 is padding."""
    rows = slots[:, :, None] * size + jnp.arange(size, dtype=jnp.int32)[None, None, :]
    return jnp.where(slots[:, :, None] >= 0, rows, -1).reshape(slots.shape[0], -1)


def _rows(sizes: tuple[int, ...], slots: np.ndarray) -> Int[Array, "P rows"]:
    """Replace the numbers of variables by those of their stacked rows; −1 is padding."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    lists = [[row for j in part if j >= 0 for row in range(offsets[j], offsets[j + 1])] for part in slots.tolist()]
    longest = max(len(part) for part in lists)
    return jnp.asarray(np.asarray([part + [-1] * (longest - len(part)) for part in lists], np.int32))
