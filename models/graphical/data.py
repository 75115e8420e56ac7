"""Checks of data against a graph: one column per observed node, one code per entry."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from latensor.base import as_int32, is_concrete
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.params import Graphical, check_params
from latensor.moments import Table
from latensor.moments.internal import CATEGORICAL, as_table

_MOST_NAMES = 6


def check_codes(graph: Graph, x: Any, **given: Any) -> tuple[Int[Array, "n d"], Float[Array, " n"] | None]:
    """Return the codes of data, −1 where missing, and the row weights; `given` is `mask` and `row_weights`.

    Columns of a data frame that are named after the observed nodes are found by their names; all others by their
    order. Concrete codes must be in range, where they are observed; under a trace those that are too large are missing.
    """
    names = graph.observed
    x, given = _find_columns(names, x, given)
    table = as_table(x, **given)
    if table.num_dimensions != len(names):
        shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
        raise ValueError(
            f"x: expected {len(names)} columns, the observed nodes of the graph ({shown}); got {table.num_dimensions}"
        )
    sizes = tuple(graph.sizes[name] for name in names)
    if table.variables is not None and (set(table.variables.kinds), table.variables.sizes) != ({CATEGORICAL}, sizes):
        raise ValueError(f"x: expected categorical variables of sizes {sizes}, as in the graph; got {table.variables}")
    if not jnp.issubdtype(table.x.dtype, jnp.integer):
        table = _whole_numbers(table)
    _check_range(table, names, sizes)
    return _mask_codes(table, sizes), table.row_weights


def _find_columns(names: tuple[str, ...], x: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a data frame and its mask with the columns of the observed nodes, where it has columns of these names."""
    labels = list(getattr(x, "columns", ()))
    known = set(names).intersection(label for label in labels if isinstance(label, str))
    if not known or not hasattr(x, "iloc"):
        return x, given
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise ValueError(
            f"x: expected a column for every observed node of the graph, or none of their names; {missing!r} is missing"
        )
    places = [labels.index(name) for name in names]
    mask: Any = given.get("mask")
    if hasattr(mask, "iloc"):
        mask = mask.iloc[:, places]
    elif np.ndim(mask) == 2 and np.shape(mask)[1] == len(labels):
        mask = np.asarray(mask)[:, places]
    return x.iloc[:, places], given | ({} if mask is None else {"mask": mask})


def _whole_numbers(table: Table) -> Table:
    """Return a table of integers from one of whole numbers that are stored as floats."""
    if not is_concrete(table.x, table.mask):
        raise ValueError(f"x: expected integers, the values of categorical nodes; got type {table.x.dtype}")
    values = np.asarray(table.x)
    observed = np.ones(values.shape, bool) if table.mask is None else np.asarray(table.mask)
    wrong = observed & ~(np.isfinite(values) & (values == np.round(values)))
    if wrong.any():
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        value = values[row, column]
        hint = "pass mask=~np.isnan(x)" if np.isnan(value) else "categories have no decimals; code them as 0, 1, 2, …"
        raise ValueError(
            f"x: expected whole numbers, the values of categorical nodes; got {value} at row {row}, column {column}: "
            f"{hint}"
        )
    codes = np.where(observed, np.nan_to_num(values), -1).clip(-1, np.iinfo(np.int32).max)
    with jax.ensure_compile_time_eval():
        return table._replace(x=jnp.asarray(codes.astype(np.int32)))


def _mask_codes(table: Table, sizes: tuple[int, ...]) -> Int[Array, "n d"]:
    def mask(x: Array, observed: Array | None) -> Array:
        codes = as_int32(x)
        valid = (codes >= 0) & (codes < jnp.asarray(sizes, jnp.int32)[None, :])
        return jnp.where(valid if observed is None else valid & observed, codes, -1)

    if not is_concrete(table.x, table.mask):
        return mask(table.x, table.mask)
    with jax.ensure_compile_time_eval():
        return mask(table.x, table.mask)


def _check_range(table: Table, names: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    if not is_concrete(table.x, table.mask):
        return
    values = np.asarray(table.x)
    wrong = values >= np.asarray(sizes)[None, :]
    if table.mask is not None:
        wrong = wrong & np.asarray(table.mask)
    if wrong.any():
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        raise ValueError(
            f"x: expected values from 0 to {sizes[column] - 1} for {names[column]} (below zero: missing); "
            f"got {values[row, column]} at row {row}, column {column}"
        )


def check_any_observed(codes: Int[Array, "n d"], row_weights: Float[Array, " n"] | None) -> None:
    """Raise unless a row of positive weight has an observation. Traced data pass."""
    if not is_concrete(codes, row_weights):
        return
    weights: Any = 1 if row_weights is None else np.asarray(row_weights)
    if not np.any(np.sum(np.asarray(codes) >= 0, axis=1) * weights > 0):
        raise ValueError("x: expected an observation in a row of positive weight; got none")


def check_pair(params: Any, x: Any, **given: Any) -> tuple[Graphical, Int[Array, "n d"], Float[Array, " n"] | None]:
    """Return a model, and the codes and row weights of data that it can be asked about."""
    params = check_params(params)
    return params, *check_codes(params.graph, x, **given)
