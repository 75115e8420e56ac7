"""Tables whose columns are variables of different kinds, described once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Num

from latensor.base import check_integer

CATEGORICAL, REAL, SHARE = "categorical", "real", "share"


class Variables(NamedTuple):
    """What the columns of a table are. Hashable, so that it can be a static argument.

    Stacked over variables, a parameter has one row per category of a categorical variable and one row for a real
    variable; `offsets[j]` is the first row of variable `j`.
    """

    kinds: tuple[str, ...]
    """`"categorical"`, with codes `0, 1, …` as entries; `"real"`; or `"share"`, a number `y` that enters as the pair
    `(1 − y, y)`, which sums to one like the indicator of a category."""
    sizes: tuple[int, ...]
    """Number of rows: the number of categories; 1 for a real variable; 2 for a share."""

    @property
    def num_variables(self) -> int:
        """Number of columns of the table."""
        return len(self.sizes)

    @property
    def offsets(self) -> np.ndarray:
        """First row of each variable, followed by the number of all rows."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int32)

    @property
    def num_rows(self) -> int:
        """Number of rows of all variables together."""
        return sum(self.sizes)

    @property
    def categorical(self) -> np.ndarray:
        """Which columns are categorical."""
        return np.flatnonzero(np.asarray(self.kinds) == CATEGORICAL)

    @property
    def real(self) -> np.ndarray:
        """Which columns are real."""
        return np.flatnonzero(np.asarray(self.kinds) == REAL)

    @property
    def row_variables(self) -> np.ndarray:
        """The variable that each row belongs to."""
        return np.repeat(np.arange(self.num_variables, dtype=np.int32), self.sizes)

    @property
    def row_categories(self) -> np.ndarray:
        """The category of each row; 0 for a real variable."""
        return (np.arange(self.num_rows) - np.repeat(self.offsets[:-1], self.sizes)).astype(np.int32)

    def rows_of(self, columns: Sequence[int]) -> np.ndarray:
        """Return the stacked rows of some variables."""
        offsets = self.offsets
        return np.concatenate([np.arange(offsets[j], offsets[j + 1], dtype=np.int32) for j in columns])


def check_variables(variables: Any) -> Variables:
    """Return a valid description of variables, of tuples, so that it is hashable."""
    expected = "variables: expected a latensor.moments.Variables(kinds, sizes), one of each per variable"
    fields = variables if isinstance(variables, Variables) else (None, None)
    if not all(isinstance(field, tuple | list) for field in fields) or len(variables.kinds) != len(variables.sizes):
        raise ValueError(f"{expected}; got {variables!r}")
    for j, (kind, size) in enumerate(zip(variables.kinds, variables.sizes, strict=True)):
        if kind not in (CATEGORICAL, REAL, SHARE):
            raise ValueError(f"variables.kinds: expected 'categorical', 'real' or 'share'; variable {j} is {kind!r}")
        check_integer("variables.sizes", size, 0)
        rows = {REAL: 1, SHARE: 2}.get(kind, max(size, 1))
        if size != rows:
            raise ValueError(f"variables.sizes: expected {rows} for a {kind} variable; variable {j} has {size}")
    return Variables(tuple(variables.kinds), tuple(int(size) for size in variables.sizes))


def categorical_variables(num_variables: int, size: int) -> Variables:
    """Describe categorical variables that all have `size` categories."""
    number = check_integer("num_variables", num_variables, 1, 1 << 24)
    return Variables((CATEGORICAL,) * number, (check_integer("size", size, 1, 1 << 24),) * number)


def category_rows(x: Num[Array, "n p"], variables: Variables) -> Int[Array, "n c"]:
    """Return, for each entry of the categorical columns, the stacked row of its category."""
    columns = variables.categorical
    return x[:, columns].astype(jnp.int32) + jnp.asarray(variables.offsets[:-1][columns])[None, :]
