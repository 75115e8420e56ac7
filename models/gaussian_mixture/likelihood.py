"""The likelihood of a mixture of Gaussians, where entries may be missing: that of the observed entries."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.models.checks import as_numeric_table, check_dimensions
from latensor.models.gaussian_mixture.density import diagonal_values, full_terms
from latensor.models.gaussian_mixture.params import GaussianMixture, check_params
from latensor.models.gaussian_mixture.tiles import Tiles, group_rows
from latensor.moments import Table, map_over_rows


def as_data(x: Table | ArrayLike, *, mask: ArrayLike | None = None, row_weights: ArrayLike | None = None) -> Table:
    """Return the data of this model: points as a `Table`, checked. Arguments as for `fit`."""
    return as_numeric_table(x, mask, row_weights)


def check_pair(params: Any, x: Any, mask: Any, row_weights: Any = None) -> tuple[GaussianMixture, Table]:
    """Return a model, and a table that it can be asked about."""
    params = check_params(params)
    return params, check_dimensions(as_data(x, mask=mask, row_weights=row_weights), params.means.shape[0], "means")


@jax.jit
def _of_rows(params: GaussianMixture, table: Table) -> Float[Array, "n k"]:
    return map_over_rows(lambda rows: diagonal_values(params, rows).T, table, floats_per_row=floats_per_row(params))


@jax.jit
def _of_tiles(params: GaussianMixture, tiles: Tiles, place: Array) -> Float[Array, "n k"]:
    values = map_over_rows(
        lambda tiles: jnp.moveaxis(full_terms(params, tiles).values, 0, -1),
        tiles,
        floats_per_row=floats_per_tile(params, tiles.x.shape[1], tiles.mask is None),
    )
    return values.reshape(-1, values.shape[-1])[place]


def floats_per_row(params: GaussianMixture) -> int:
    """Return the size of the temporaries of a row."""
    return 2 * params.means.size


def floats_per_tile(params: GaussianMixture, height: int, complete: bool) -> int:
    """Return the size of the temporaries of a tile."""
    return int(3 * params.means.size * (height + (1 if complete else params.means.shape[0])))


def log_joint(params: GaussianMixture, table: Table) -> Float[Array, "n k"]:
    """Return `log P(h, observed x)` for every row and component."""
    if params.variance.ndim < 3:
        return _of_rows(params, table)
    return _of_tiles(params, *group_rows(table, jnp.ones(table.num_rows, params.means.dtype)))


def log_likelihood(
    params: GaussianMixture, x: Table | ArrayLike, *, mask: ArrayLike | None = None, key: Array | None = None
) -> Float[Array, " n"]:
    """Return each row's log-density: that of its observed entries, where there is a mask.

    A row without any observed entry has log-density zero.

    Args:
      params: the model.
      x: a `Table`, or points in rows.
      mask: `(n, d)` bool, True where observed.
      key: ignored; models whose likelihood has to be estimated need it.

    """
    del key
    return jax.nn.logsumexp(log_joint(*check_pair(params, x, mask)), axis=1)


def posterior(params: GaussianMixture, x: Table | ArrayLike, *, mask: ArrayLike | None = None) -> Float[Array, "n k"]:
    """Return the probability of each component given each row's observed entries."""
    return jax.nn.softmax(log_joint(*check_pair(params, x, mask)), axis=1)
