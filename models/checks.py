"""Checks of parameters, and of observed values, that several models need; see `latensor.base` for the general ones."""

from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from latensor.base import as_float, as_numbers, is_concrete
from latensor.models.results import Fit, Refined
from latensor.moments import Documents, Table
from latensor.moments.internal import as_table, check_values

Params = TypeVar("Params")
Counts = TypeVar("Counts", Table, Documents)


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


def spoil_bad_counts(data: Counts) -> Counts:
    """Return traced data with NaN in place of counts that are below zero or not whole; concrete data as they are.

    Nothing can be raised under a trace: the NaN shows in the status, or in the row. See `check_values` for the rest.
    """
    if is_concrete(data.x, getattr(data, "mask", None)):
        return data
    x = as_float(data.x)
    return data._replace(x=jnp.where((x >= 0) & (x == jnp.floor(x)), x, jnp.nan))


def check_no_variables(table: Table) -> None:
    """Refuse a table whose columns are said to be something else than numbers: only mixed membership reads that."""
    if table.variables is not None and set(table.variables.kinds) != {"real"}:
        kinds = ", ".join(sorted(set(table.variables.kinds)))
        raise ValueError(f"x: expected a Table of numbers; got one with variables of kind {kinds}: leave them out")


def check_moments(moments: Any, kind: type, fields: tuple[str, str, str]) -> tuple[Array, Array, Array]:
    """Return the first, second and third moments `(d,)`, `(d, d)`, `(d, d, d)` of a result type, finite or traced."""
    if not isinstance(moments, kind):
        name = kind.__name__
        raise ValueError(f"moments: expected {name}, as population_moments gives them; got {type(moments).__name__}")
    first, second, third = (
        check_reals(f"moments.{field}", getattr(moments, field), order) for order, field in enumerate(fields, 1)
    )
    d = first.shape[0]
    if (second.shape, third.shape) != ((d, d), (d, d, d)):
        raise ValueError(
            f"moments: expected shapes (d,), (d, d) and (d, d, d); got {first.shape}, {second.shape} and {third.shape}"
        )
    dtype = jnp.result_type(first, second, third)
    return first.astype(dtype), second.astype(dtype), third.astype(dtype)


def as_numeric_table(x: Any, mask: Any, row_weights: Any, *, counts: bool = False) -> Table:
    """Return a table of numbers; concrete entries are checked where they are observed."""
    table = as_table(x, mask=mask, row_weights=row_weights)
    check_no_variables(table)
    check_values(table.x, table.mask, counts=counts)
    return spoil_bad_counts(table) if counts else table


def check_dimensions(table: Table, num_dimensions: int, field: str) -> Table:
    """Return a table that parameters with this many dimensions can be asked about."""
    if table.num_dimensions != num_dimensions:
        raise ValueError(f"x: expected {num_dimensions} dimensions, as in params.{field}; got {table.num_dimensions}")
    return table
