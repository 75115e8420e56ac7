"""The likelihood of a mixture of spherical Gaussians where entries may be missing.

Given the component, dimensions are independent: missing entries drop out of the likelihood.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import matmul, smallest_normal
from latensor.models.checks import check_table_for
from latensor.models.gaussian_mixture.params import GaussianMixture, check_params
from latensor.moments import Table, map_over_rows
from latensor.moments.internal import as_table, residuals


class Joint(NamedTuple):
    """Rows of a block as EM needs them, all relative to the mixture's overall mean."""

    values: Float[Array, "n k"]
    """`log P(h, observed x)`."""
    distance: Float[Array, "n k"]
    """Squared distance of the observed part to each mean."""
    rows: Float[Array, "n d"]
    """Observed entries less the overall mean, zero where masked."""


def check_pair(params: Any, x: Any, mask: Any, row_weights: Any = None) -> tuple[GaussianMixture, Table]:
    """Return a model, and a table that it can be asked about."""
    params = check_params(params)
    table = as_table(x, mask=mask, row_weights=row_weights)
    return params, check_table_for(table, params.means.shape[0], "means")


def overall_mean(params: GaussianMixture) -> Float[Array, " d"]:
    """Return the mean of the mixture."""
    return matmul(params.means, params.weights)


def joint(params: GaussianMixture, overall: Float[Array, " d"], rows: Table) -> Joint:
    """Return `log P(h, observed x)` and what it is made of.

    `|x − a|²` over observed entries is `Σ m x² − 2 (m x)ᵀa + mᵀa²`: matrix products. Around the overall mean, so that a
    large offset costs no digits.
    """
    mask, centred = rows.mask, residuals(rows, overall)
    values = centred.astype(params.means.dtype)
    means = params.means - overall[:, None]
    squares = jnp.sum(values * values, axis=1)[:, None]
    if mask is None:
        own = jnp.sum(means * means, axis=0)[None, :]
        count = jnp.full((rows.num_rows, 1), rows.num_dimensions, values.dtype)
    else:
        seen = mask.astype(values.dtype)
        own = matmul(seen, means * means)
        count = jnp.sum(seen, axis=1)[:, None]
    distance = squares - 2 * matmul(values, means) + own
    # The products cancel where a mean is far from the overall one and near to the row: the nearest is computed anew.
    nearest = jnp.argmin(distance, axis=1)
    error = centred - (means.T[nearest] if mask is None else jnp.where(mask, means.T[nearest], 0))
    exact = jnp.sum(error * error, axis=1).astype(values.dtype)
    is_nearest = jnp.arange(means.shape[1])[None, :] == nearest[:, None]
    distance = jnp.where(is_nearest, exact[:, None], jnp.maximum(distance, exact[:, None]))
    normalizer = count * (jnp.log(params.variance) + math.log(2 * math.pi))
    prior = jnp.log(jnp.maximum(params.weights, smallest_normal(values.dtype)))[None, :]
    return Joint(prior - (distance / params.variance + normalizer) / 2, distance, values)


def _log_joint(params: GaussianMixture, table: Table) -> Float[Array, "n k"]:
    """Return `log P(h, observed x)` for every row and component."""
    overall = overall_mean(params)

    def block(rows: Table) -> Array:
        return joint(params, overall, rows).values

    return map_over_rows(block, table, floats_per_row=3 * table.num_dimensions)


@jax.jit
def _log_likelihood(params: GaussianMixture, table: Table) -> Float[Array, " n"]:
    return jax.nn.logsumexp(_log_joint(params, table), axis=1)


@jax.jit
def _posterior(params: GaussianMixture, table: Table) -> Float[Array, "n k"]:
    return jax.nn.softmax(_log_joint(params, table), axis=1)


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
    return _log_likelihood(*check_pair(params, x, mask))


def posterior(params: GaussianMixture, x: Table | ArrayLike, *, mask: ArrayLike | None = None) -> Float[Array, "n k"]:
    """Return the probability of each component given each row's observed entries."""
    return _posterior(*check_pair(params, x, mask))
