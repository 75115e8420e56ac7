"""The total concentration of the memberships, estimated from the likelihood of some rows."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from latensor.base import is_concrete, small_jit
from latensor.models.columns import float_type
from latensor.models.mixed_membership.likelihood import sample_likelihoods
from latensor.models.mixed_membership.params import MixedMembership
from latensor.models.results import Fit
from latensor.moments import Table
from latensor.moments.internal import choose_rows

# Smallest and largest total, and how many are tried.
_LOWEST, _HIGHEST, _NUMBER = 0.05, 20.0, 9
# Rows whose likelihood decides, and draws for each of them. The likelihood is flat where totals are small: there 256
# rows say as much for 0.05 as for the truth of 0.3.
_NUM_ROWS, _NUM_DRAWS = 1024, 200


_choose = jax.jit(choose_rows, static_argnames="number")


class ConcentrationWarning(UserWarning):
    """The estimated concentration is at the end of what was tried."""


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
    rows = _choose(table, _NUM_ROWS)
    grid = np.geomspace(_LOWEST, _HIGHEST, _NUMBER).astype(float_type(table))
    inside = jnp.asarray(np.bool_(False))

    def score(total: Any) -> Float[Array, ""]:
        return _score(key, estimate(Total(jnp.asarray(total), inside)).params, rows)

    if is_concrete(rows):
        # One after the other, in the same compiled stages as the fit itself.
        return _pick([score(total) for total in grid])
    return _pick(list(lax.map(score, jnp.asarray(grid))))


def warn_at_limit(total: Total) -> None:
    """Warn where the best total is at either end of the grid; the status says so too."""
    if total.at_limit is None or not is_concrete(total) or not bool(total.at_limit):
        return
    warnings.warn(
        f"the estimated total concentration is {float(total.value):g}, the end of the grid from {_LOWEST:g} to "
        f"{_HIGHEST:g}: samples are {'in one component each' if float(total.value) < 1 else 'all the same mixture'}, "
        "or these are too many components; pass concentration=, or ask for fewer",
        ConcentrationWarning,
        stacklevel=3,  # the line that calls `fit`
    )


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
