"""Checks of parameters, and of observed values, that several models need; see `latensor.base` for the general ones."""

from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from latensor.base import as_float, as_numbers, first_entry, is_concrete, missing_hint
from latensor.models.results import Fit, Refined
from latensor.moments import Table

Params = TypeVar("Params")


def check_type(params: Any, kind: type[Params]) -> Params:
    """Return `params` if they are of a model's own type."""
    if not isinstance(params, kind):
        hint = " (pass its .params)" if isinstance(params, Fit | Refined) else ""
        raise ValueError(f"params: expected a {kind.__name__}; got {type(params).__name__}{hint}")
    return params


def check_order(order: Any, num_components: int) -> Array:
    """Return a permutation of the components; concrete ones must be one."""
    array = as_numbers("order", order, "a permutation of the components")
    if array.shape != (num_components,) or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(
            f"order: expected a permutation of {num_components} components; got shape {array.shape}, type {array.dtype}"
        )
    if is_concrete(array) and sorted(np.asarray(array).tolist()) != list(range(num_components)):
        raise ValueError(f"order: expected each of 0 to {num_components - 1} once; got {np.asarray(array).tolist()}")
    return array


def check_probabilities(name: str, value: Any, num_axes: int, tolerance: float = 1e-3) -> Array:
    """Return probability vectors, one or the columns of a matrix; concrete ones must sum to one within `tolerance`."""
    array = as_float(as_numbers(name, value, "probabilities"))
    if array.ndim != num_axes or array.size == 0:
        raise ValueError(f"{name}: expected probabilities with {num_axes} axes, not empty; got shape {array.shape}")
    if not is_concrete(array):
        return array
    values = np.asarray(array)
    if not np.all(np.isfinite(values)):
        raise ValueError(f"{name}: expected finite probabilities; got {values[~np.isfinite(values)][0]}")
    if values.min() < 0:
        raise ValueError(f"{name}: expected probabilities ≥ 0; got {values.min()}")
    worst = np.max(np.abs(values.sum(axis=0) - 1))
    if worst > tolerance:
        raise ValueError(f"{name}: expected probabilities that sum to one; the sum is off by {worst:.3g}")
    return array


def check_reals(name: str, value: Any, num_axes: int, *, positive: bool = False) -> Array:
    """Return finite numbers with `num_axes` axes, none of them empty; above zero where `positive`."""
    meaning = "a positive number" if positive else "finite numbers"
    array = as_float(as_numbers(name, value, meaning))
    if array.ndim != num_axes or array.size == 0:
        raise ValueError(f"{name}: expected {meaning} with {num_axes} axes, not empty; got shape {array.shape}")
    if is_concrete(array):
        values = np.asarray(array)
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name}: expected finite numbers; got {values[~np.isfinite(values)][0]}")
        if positive and values.min() <= 0:
            raise ValueError(f"{name}: expected numbers above zero; got {values.min()}")
    return array


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


def check_table_for(table: Table, num_dimensions: int, field: str, *, counts: bool = False) -> Table:
    """Return a table that parameters with this many dimensions can be asked about."""
    if table.num_dimensions != num_dimensions:
        raise ValueError(f"x: expected {num_dimensions} dimensions, as in params.{field}; got {table.num_dimensions}")
    check_values(table.x, table.mask, counts=counts)
    return table
