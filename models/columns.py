"""Tables of categorical and real variables, and parameters of them, checked at the boundary."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from latensor.base import as_float, as_int32, is_concrete, missing_hint
from latensor.moments import Table, Variables
from latensor.moments.internal import CATEGORICAL, REAL, as_table

# Where more categories than this are more than the rows, they were not meant as such.
_MANY_CATEGORIES = 1000


def check_variables(variables: Any) -> Variables:
    """Return a description of categorical and real variables."""
    fields = variables if isinstance(variables, Variables) else (None, None)
    if not all(isinstance(field, tuple | list) for field in fields) or len(variables.kinds) != len(variables.sizes):
        raise ValueError(
            "variables: expected a latensor.moments.Variables(kinds, sizes), one of each per variable; "
            f"got {variables!r}"
        )
    for j, (kind, size) in enumerate(zip(variables.kinds, variables.sizes, strict=True)):
        if kind not in (CATEGORICAL, REAL):
            raise ValueError(f"variables.kinds: expected 'categorical' or 'real'; variable {j} is {kind!r}")
        if kind == REAL and size != 1:
            raise ValueError(f"variables.sizes: expected 1 for a real variable; variable {j} has {size}")
        if kind == CATEGORICAL and size < 2:
            raise ValueError(
                f"variables.sizes: expected at least two categories; variable {j} has a single one: leave it out"
            )
    return variables


def check_blocks(tables: np.ndarray, variables: Variables) -> None:
    """Raise unless the blocks of categorical variables are distributions."""
    codes = np.isin(variables.row_variables, variables.categorical)
    if codes.any() and tables[codes].min() < 0:
        raise ValueError(f"params.tables: expected probabilities ≥ 0; got {tables[codes].min()}")
    sums = np.add.reduceat(tables, variables.offsets[:-1], axis=0)[variables.categorical]
    if sums.size and np.max(np.abs(sums - 1)) > 1e-3:
        worst = int(np.argmax(np.max(np.abs(sums - 1), axis=1)))
        raise ValueError(
            "params.tables: expected columns of every categorical block to sum to one; those of variable "
            f"{variables.categorical[worst]} are off by {np.max(np.abs(sums[worst] - 1)):.3g} "
            "(pass variables= if x does not show all categories)"
        )


def as_data(
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    variables: Variables | None = None,
    row_weights: ArrayLike | None = None,
) -> Table:
    """Return the data of this model: a `Table` that says what its columns are, checked. Arguments as for `fit`.

    Where `variables` is left out, it is read off integer codes.
    """
    if variables is not None:
        variables = check_variables(variables)
    table = as_table(x, mask=mask, variables=variables, row_weights=row_weights)
    if jnp.issubdtype(table.x.dtype, jnp.integer):
        # Wide enough for the number of categories: 8-bit codes are not.
        table = table._replace(x=as_int32(table.x))
    variables = _read_variables(table) if table.variables is None else check_variables(table.variables)
    integers = jnp.issubdtype(table.x.dtype, jnp.integer)
    table = table._replace(x=as_float(table.x) if integers and variables.real.size else table.x, variables=variables)
    if is_concrete(table):
        _check_entries(np.asarray(table.x), None if table.mask is None else np.asarray(table.mask), variables)
    return table


def _read_variables(table: Table) -> Variables:
    """Return as many categories for each variable as its largest observed code tells."""
    expected = "variables: expected a latensor.moments.Variables(kinds, sizes)"
    if not jnp.issubdtype(table.x.dtype, jnp.integer):
        _refuse_fractions(table, expected)
        raise ValueError(
            f"{expected}, which may be left out only where x holds integer codes; got None and x of type "
            f"{table.x.dtype} (codes stored as floats: pass numpy.nan_to_num(x).astype(int), and a mask for NaN)"
        )
    if not is_concrete(table.x, table.mask):
        raise ValueError(f"{expected} under jit or vmap; got None")
    codes = np.asarray(table.x)
    codes = codes if table.mask is None else np.where(np.asarray(table.mask), codes, 0)
    sizes = tuple(int(size) for size in codes.max(axis=0) + 1)
    single = [j for j, size in enumerate(sizes) if size < 2]
    if single:
        raise ValueError(
            f"x: expected at least two categories in every variable; variable {single[0]} has a single one "
            f"({len(single)} such variables in all): leave it out, or pass variables=, as for fit, if it has others"
        )
    most = int(np.argmax(sizes))
    if sizes[most] > max(_MANY_CATEGORIES, table.num_rows):
        raise ValueError(
            f"x: expected codes 0, 1, … of categories; variable {most} has {sizes[most]} for {table.num_rows} rows, as "
            "identifiers have: leave it out, number the categories that occur (numpy.unique), or pass variables="
        )
    return Variables((CATEGORICAL,) * len(sizes), sizes)


def _refuse_fractions(table: Table, expected: str) -> None:
    """Raise where an observed entry is no whole number: its column is real."""
    if not is_concrete(table.x, table.mask):
        return
    x = np.asarray(table.x)
    seen = np.isfinite(x) if table.mask is None else np.isfinite(x) & np.asarray(table.mask)
    places = np.argwhere(seen & (x != np.floor(np.where(seen, x, 0))))
    if places.size:
        row, column = places[0]
        real = len(np.unique(places[:, 1]))
        raise ValueError(
            f"{expected}, with kind 'real' and size 1 for columns that hold numbers; got None, and {x[row, column]:g} "
            f"at row {row}, column {column} ({real} of {x.shape[1]} columns have fractions)"
        )


def _check_entries(x: np.ndarray, mask: np.ndarray | None, variables: Variables) -> None:
    seen = np.ones(x.shape, bool) if mask is None else mask

    def first(bad: np.ndarray) -> str:
        row, column = (int(i[0]) for i in np.nonzero(bad))
        return f"{x[row, column]} at row {row}, column {column}"

    codes = np.isin(np.arange(x.shape[1]), variables.categorical)[None, :]
    if x.dtype.kind == "f":
        bad = seen & ~np.isfinite(x)
        if bad.any():
            hint = missing_hint(np.isfinite(x), mask, " (mark missing entries in mask)")
            raise ValueError(f"x: expected finite numbers; got {first(bad)}{hint}")
        fraction = seen & codes & (x != np.floor(np.where(np.isfinite(x), x, 0)))
        if fraction.any():
            raise ValueError(f"x: expected whole category codes; got {first(fraction)}")
    outside = seen & codes & ((x < 0) | (x >= np.asarray(variables.sizes)[None, :]))
    if outside.any():
        column = int(np.nonzero(outside)[1][0])
        hint = " (mark missing entries in mask)" if (x[outside] < 0).any() and mask is None else ""
        raise ValueError(
            f"x: expected category codes from 0 to {variables.sizes[column] - 1}; got {first(outside)}{hint}"
        )


def float_type(table: Table) -> Any:
    """Return the floating type of a table's moments, without converting anything."""
    return jax.eval_shape(as_float, table.x).dtype


def check_all_observed(table: Table) -> None:
    """Raise where a variable is never observed, or only in rows of weight zero: nothing can be learned of it."""
    if table.mask is None or not is_concrete(table.mask, table.row_weights):
        return
    counted = slice(None) if table.row_weights is None else np.asarray(table.row_weights) > 0
    unseen = np.flatnonzero(~np.asarray(table.mask)[counted].any(axis=0))
    if unseen.size:
        raise ValueError(f"mask: expected every variable to be observed somewhere; variable {unseen[0]} never is")
