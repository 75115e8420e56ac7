"""Diagonal and full covariances: a start from spherical components."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import as_float, positive_or_one
from latensor.decompose import Whitening
from latensor.decompose.internal import worst
from latensor.models.components import Whitened
from latensor.models.gaussian_mixture.covariance import Family, as_diagonal, from_diagonal
from latensor.models.gaussian_mixture.em import Data, em_step, prepare, variance_floor
from latensor.models.gaussian_mixture.params import GaussianMixture
from latensor.moments import Table
from latensor.moments.internal import centre, second_cumulant_diagonal


@jax.jit
def _standardized(table: Table) -> tuple[Array, Array]:
    scales = jnp.sqrt(positive_or_one(second_cumulant_diagonal(centre(table))))
    return as_float(table.x) / scales[None, :], scales


def standardize(table: Table) -> tuple[Table, Float[Array, " d"]]:
    """Return a table whose columns have unit variance, and their scales; the origin does not matter to `fit`."""
    x, scales = _standardized(table)
    return table._replace(x=x), scales


@partial(jax.jit, static_argnames="family")
def _embed(params: GaussianMixture, scales: Float[Array, " d"], family: Family) -> GaussianMixture:
    variances = as_diagonal(params.variance, params.means) * scales[None, :] ** 2
    return GaussianMixture(params.weights, params.means * scales[:, None], from_diagonal(variances, family))


@partial(jax.jit, static_argnames="family")
def _one_step(params: GaussianMixture, data: Data, family: Family) -> GaussianMixture:
    updated = em_step(params, data, variance_floor(params, data.spread)).updated
    order = jnp.argsort(-updated.weights)
    variance = updated.variance if family.shared else updated.variance[..., order]
    return GaussianMixture(updated.weights[order], updated.means[:, order], variance)


def start_in_family(
    params: GaussianMixture, table: Table, scales: Float[Array, " d"], family: Family
) -> GaussianMixture:
    """Return components of a larger family from spherical ones of the standardized table: one step of EM away.

    The step gives covariances the shape that the data have, and raises the likelihood.
    """
    wider = _embed(params, scales, family)
    return _one_step(wider, prepare(wider, table), family)


def no_directions(weights: Float[Array, " d"]) -> Whitened:
    """Return the whitened space of rank zero: that of a single component, whose centred mean is nothing."""
    none, zero = jnp.zeros((weights.shape[0], 0), weights.dtype), jnp.zeros((), weights.dtype)
    return Whitened(Whitening(none, none, none[0], zero, zero, jnp.int32(0), worst()), none)
