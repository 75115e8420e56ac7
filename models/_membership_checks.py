"""Checks of mixed-membership tables, descriptions and parameters at the boundary."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from latensor.models._checks import as_numbers, check_mask, check_matrix, check_reals, is_concrete
from latensor.models._membership import MixedMembership
from latensor.moments import Variables, as_float
from latensor.moments._variables import CATEGORICAL, REAL

_TABLE = "category codes and real values (samples, variables)"


def check_variables(variables: Any, x: Array | None = None) -> Variables:
    """Return the description of a table; read off integer codes where it is not given and they can be looked at."""
    if variables is None:
        if x is None or not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(
                "variables: expected a latensor.moments.Variables(kinds, sizes), which may be left out only where x "
                f"holds integer codes; got None{'' if x is None else f' and x of type {x.dtype}'}"
            )
        if not is_concrete(x):
            raise ValueError(
                "variables: expected a latensor.moments.Variables(kinds, sizes) under jit or vmap; got None"
            )
        sizes = tuple(int(size) for size in np.asarray(x).max(axis=0) + 1)
        variables = Variables((CATEGORICAL,) * len(sizes), sizes)
        single = [j for j, size in enumerate(sizes) if size < 2]
        if single:
            raise ValueError(
                f"x: expected at least two categories in every variable; variable {single[0]} has a single one "
                f"({len(single)} such variables in all): leave it out"
            )
    if not isinstance(variables, Variables) or len(variables.kinds) != len(variables.sizes):
        raise ValueError(
            "variables: expected a latensor.moments.Variables(kinds, sizes), one of each for every variable; "
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


def check_membership_table(x: Any, mask: Any, variables: Any) -> tuple[Array, Array | None, Variables]:
    """Return a table, its mask and its description; concrete entries are looked at where they are observed."""
    x = check_matrix("x", x, _TABLE)
    mask = check_mask(mask, x.shape)
    if variables is None and mask is not None and is_concrete(x, mask):
        with jax.ensure_compile_time_eval():
            variables = check_variables(None, jnp.where(mask, x, 0) if jnp.issubdtype(x.dtype, jnp.integer) else x)
    variables = check_variables(variables, x)
    if x.shape[1] != variables.num_variables:
        raise ValueError(f"x: expected {variables.num_variables} columns, as in variables; got {x.shape[1]}")
    if variables.real.size and jnp.issubdtype(x.dtype, jnp.integer):
        x = as_float(x)
    if is_concrete(x, mask):
        _check_entries(np.asarray(x), None if mask is None else np.asarray(mask), variables)
    return x, mask, variables


def _check_entries(x: np.ndarray, mask: np.ndarray | None, variables: Variables) -> None:
    seen = np.ones(x.shape, bool) if mask is None else mask

    def first(bad: np.ndarray) -> str:
        row, column = (int(i[0]) for i in np.nonzero(bad))
        return f"{x[row, column]} at row {row}, column {column}"

    bad = seen & ~np.isfinite(x)
    if bad.any():
        raise ValueError(f"x: expected finite numbers; got {first(bad)} (mark missing entries in mask)")
    codes = np.isin(np.arange(x.shape[1]), variables.categorical)[None, :]
    fraction = seen & codes & (x != np.floor(np.where(np.isfinite(x), x, 0)))
    if fraction.any():
        raise ValueError(f"x: expected whole category codes; got {first(fraction)}")
    outside = seen & codes & ((x < 0) | (x >= np.asarray(variables.sizes)[None, :]))
    if outside.any():
        column = int(np.nonzero(outside)[1][0])
        raise ValueError(f"x: expected category codes from 0 to {variables.sizes[column] - 1}; got {first(outside)}")


def check_all_observed(mask: Array | None) -> None:
    """Raise where a variable is never observed: nothing can be learned of it."""
    if mask is None or not is_concrete(mask):
        return
    unseen = np.flatnonzero(~np.asarray(mask).any(axis=0))
    if unseen.size:
        raise ValueError(f"mask: expected every variable to be observed somewhere; variable {unseen[0]} never is")


def check_concentration(concentration: Any) -> Any:
    """Return a total concentration above zero, or `None` where it is to be estimated."""
    if concentration is None:
        return None
    expected = "concentration: expected the sum α₀ of the Dirichlet's parameters, a number above zero, or None"
    if is_concrete(concentration):
        if np.ndim(concentration) != 0:
            raise ValueError(f"{expected}; got shape {np.shape(concentration)} (pass its sum)")
        try:
            number = float(concentration)
        except (TypeError, ValueError):
            raise ValueError(f"{expected}; got {concentration!r}") from None
        if not (number > 0 and np.isfinite(number)):
            raise ValueError(f"{expected}; got {concentration!r}")
    return concentration


def check_params(params: Any, variables: Variables, hint: str = "") -> MixedMembership:
    """Return parameters that fit the description of the variables."""
    if not isinstance(params, MixedMembership):
        raise ValueError(f"params: expected a MixedMembership; got {type(params).__name__}{hint}")
    concentration = check_reals("params.concentration", params.concentration, 1, positive=True)
    tables = check_reals("params.tables", params.tables, 2)
    if tables.shape != (variables.num_rows, concentration.shape[0]):
        raise ValueError(
            f"params.tables: expected shape {(variables.num_rows, concentration.shape[0])}, the rows of all variables "
            f"by components; got {tables.shape}"
        )
    variances = params.variances
    if variables.real.size:
        if variances is None:
            raise ValueError(f"params.variances: expected {variables.real.size}, one for each real variable; got None")
        variances = check_reals("params.variances", variances, 1, positive=True).astype(tables.dtype)
        if variances.shape != (variables.real.size,):
            raise ValueError(f"params.variances: expected shape ({variables.real.size},); got {variances.shape}")
    elif variances is not None:
        raise ValueError("params.variances: expected None where no variable is real")
    if is_concrete(tables):
        _check_blocks(np.asarray(tables), variables)
    return MixedMembership(concentration.astype(tables.dtype), tables, variances)


def _check_blocks(tables: np.ndarray, variables: Variables) -> None:
    codes = np.isin(variables.row_variables, variables.categorical)
    if codes.any() and tables[codes].min() < 0:
        raise ValueError(f"params.tables: expected probabilities ≥ 0; got {tables[codes].min()}")
    sums = np.add.reduceat(tables, variables.offsets[:-1], axis=0)[variables.categorical]
    if sums.size and np.max(np.abs(sums - 1)) > 1e-3:
        worst = int(np.argmax(np.max(np.abs(sums - 1), axis=1)))
        raise ValueError(
            "params.tables: expected columns of every categorical block to sum to one; those of variable "
            f"{variables.categorical[worst]} are off by {np.max(np.abs(sums[worst] - 1)):.3g}"
        )


def as_anchor_groups(anchors: Any) -> Sequence[Any]:
    """Return three groups of variable numbers out of whatever was given."""
    try:
        groups = [as_numbers("anchors", group, "three groups of variable numbers") for group in anchors]
    except TypeError:
        raise ValueError(f"anchors: expected three groups of variable numbers; got {anchors!r}") from None
    if not all(jnp.issubdtype(group.dtype, jnp.integer) for group in groups):
        raise ValueError("anchors: expected three groups of variable numbers; got numbers that are not integers")
    return [np.asarray(group).reshape(-1).tolist() for group in groups]
