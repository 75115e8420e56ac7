"""Checks of the values of data, where they can be looked at; shapes are checked by the data types themselves."""

from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from latensor.base import as_float, first_entry, is_concrete, missing_hint
from latensor.moments.data import Table, as_table

Moments = TypeVar("Moments")


@partial(jax.jit, static_argnames="counts")
def _row_summary(x: Array, mask: Array | None, counts: bool) -> tuple[Array, ...]:
    """Return each row's sum over observed entries; of `counts` also its minimum and its distance from whole numbers."""
    x = as_float(x)
    x = x if mask is None else jnp.where(mask, x, 0)
    sums = jnp.sum(x, axis=1)
    return (sums, jnp.min(x, axis=1), jnp.sum(jnp.abs(x - jnp.round(x)), axis=1)) if counts else (sums,)


def check_values(
    x: Array,
    mask: Array | None = None,
    *,
    counts: bool = False,
    hint: str = " (pass mask=isfinite(x) if it is missing)",
) -> np.ndarray | None:
    """Check concrete entries where they are observed: finite, and where `counts`, whole and not negative.

    Returns the sums of the rows, or `None` under a trace. `hint` is what to do about a NaN where there is no mask.
    """
    if not is_concrete(x, mask):
        return None
    # Concrete data may be closed over by a function that is being traced: look at them now, not in the trace.
    with jax.ensure_compile_time_eval():
        sums, *more = (np.asarray(part) for part in _row_summary(x, mask, counts))

    # A sum that is not finite may also be that of large numbers.
    rows = np.flatnonzero(~np.isfinite(sums))
    if rows.size:
        values = np.asarray(x)[rows]
        bad = ~np.isfinite(values if mask is None else np.where(np.asarray(mask)[rows], values, 0))
        if bad.any():
            kind = "counts" if counts else "numbers"
            row, column = np.argwhere(bad)[0]
            entry = f"{values[row, column]} at row {rows[row]}, column {column}"
            hint = missing_hint(np.isfinite(np.asarray(x)), mask, hint)
            raise ValueError(f"x: expected finite {kind} where observed; got {entry}{hint}")
    if not counts:
        return sums
    smallest, fraction = more

    def first(rows: np.ndarray, bad: Any) -> str:
        row = int(np.flatnonzero(rows)[0])
        seen = np.ones(x.shape[1], bool) if mask is None else np.asarray(mask)[row]
        return first_entry(x, row, lambda values: bad(values) & seen)

    if rows.size:
        raise ValueError(f"x: expected counts whose sum is finite in {sums.dtype}; that of row {rows[0]} is not")
    if np.any(smallest < 0):
        raise ValueError(f"x: expected counts ≥ 0; got {first(smallest < 0, lambda v: v < 0)}")
    if np.any(fraction > 0):
        raise ValueError(f"x: expected whole counts; got {first(fraction > 0, lambda v: v != np.round(v))}")
    return sums


def finite_moments(name: str, moments: Moments) -> Moments:
    """Return moments if they are within the floating range, or traced."""
    leaves = [leaf for leaf in jax.tree.leaves(moments) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if is_concrete(leaves) and not all(np.all(np.isfinite(leaf)) for leaf in leaves):
        raise ValueError(
            f"{name}: expected numbers whose third moments are within {leaves[0].dtype}; they are not: rescale"
        )
    return moments


def as_finite_table(data: Table | ArrayLike) -> Table:
    """Return a table whose observed entries are finite, or traced."""
    table = as_table(data)
    check_values(table.x, table.mask)
    return table
