"""The total concentration of the memberships, estimated from the likelihood of some rows."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from latensor.base import is_concrete, small_jit
from latensor.models.mixed_membership.data import float_type
from latensor.models.mixed_membership.likelihood import sample_likelihoods
from latensor.models.mixed_membership.params import MixedMembership
from latensor.models.results import Fit
from latensor.moments import Table

# Smallest and largest total, and how many are tried.
_LOWEST, _HIGHEST, _NUMBER = 0.05, 20.0, 9
# Rows whose likelihood decides, and draws for each of them.
_NUM_ROWS, _NUM_DRAWS = 256, 100


class Total(NamedTuple):
    """The estimated total concentration."""

    value: Float[Array, ""]
    at_limit: Bool[Array, ""] | None
    """Whether the best one is at either end of the grid; `None` where it was given."""


def estimate_total(key: Array, table: Table, estimate: Callable[[Total], Fit]) -> Total:
    """Return the total concentration whose `estimate` gives some of the rows the highest likelihood.

    Third moments hardly tell it: tables that are too far apart and memberships that are too even look like the truth.
    A grid, then the top of the parabola (in the logarithm) through the best value and its neighbours. Rows are drawn
    at even distances in the sum of their weights.
    """
    rows = _choose_rows(table)
    grid = np.geomspace(_LOWEST, _HIGHEST, _NUMBER).astype(float_type(table))
    inside = jnp.asarray(np.bool_(False))

    def score(total: Any) -> Float[Array, ""]:
        return _score(key, estimate(Total(jnp.asarray(total), inside)).params, rows)

    if is_concrete(rows):
        # One after the other, in the same compiled stages as the fit itself.
        return _pick([score(total) for total in grid])
    return _pick(list(lax.map(score, jnp.asarray(grid))))


@jax.jit
def _choose_rows(table: Table) -> Table:
    n = table.num_rows
    number = min(n, _NUM_ROWS)
    index = np.arange(number) * n // number
    if table.row_weights is None:
        return jax.tree.map(lambda leaf: leaf[index], table)
    # Rows of equal weight are drawn as if they had none; rows of weight zero are never drawn.
    reached = jnp.cumsum(table.row_weights)
    # The middle of each row's share: its ends would be a matter of rounding.
    drawn = jnp.searchsorted(reached, jnp.asarray((index + 0.5) / n, reached.dtype) * reached[-1], side="right")
    return jax.tree.map(lambda leaf: leaf[drawn], table._replace(row_weights=None))


@small_jit
def _score(key: Array, params: MixedMembership, rows: Table) -> Float[Array, ""]:
    return jnp.mean(sample_likelihoods(key, params, rows, _NUM_DRAWS).value)


@small_jit
def _pick(scores: list[Float[Array, ""]]) -> Total:
    values = jnp.stack(scores)
    grid = jnp.geomspace(_LOWEST, _HIGHEST, _NUMBER, dtype=values.dtype)
    best = jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
    middle = jnp.clip(best, 1, _NUMBER - 2)
    below, here, above = values[middle - 1], values[middle], values[middle + 1]
    bend = below - 2 * here + above
    shift = jnp.where(bend < 0, (below - above) / (2 * jnp.where(bend < 0, bend, -1)), 0)
    ratio = math.log(_HIGHEST / _LOWEST) / (_NUMBER - 1)
    # At the end of the grid the parabola may point anywhere: then the end itself.
    inside = best == middle
    vertex = grid[middle] * jnp.exp(ratio * jnp.clip(shift, -1, 1))
    return Total(jnp.where(inside & jnp.isfinite(shift), vertex, grid[best]), ~inside)
