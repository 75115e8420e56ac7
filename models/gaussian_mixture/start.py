"""Diagonal and full covariances: a start from spherical components."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import as_float, matmul
from latensor.decompose import Status, Whitening
from latensor.decompose.internal import finite_status, status_if, worst
from latensor.models.components import Whitened
from latensor.models.evidence import Evidence, choose_rows, judge_gain
from latensor.models.gaussian_mixture.covariance import Family, as_diagonal, from_diagonal, smallest_variance
from latensor.models.gaussian_mixture.em import Data, em_step, prepare, variance_floor
from latensor.models.gaussian_mixture.evidence import NUM_ROWS
from latensor.models.gaussian_mixture.likelihood import log_joint
from latensor.models.gaussian_mixture.params import GaussianMixture
from latensor.models.results import Fit
from latensor.moments import Table
from latensor.moments.internal import centre, second_cumulant_diagonal

# The mean of a column may be off by this many roundings.
_ROUNDINGS = 16
# A component with less weight has vanished.
_SMALLEST_WEIGHT = 1e-6


@jax.jit
def _standardized(table: Table) -> tuple[Array, Array]:
    data = centre(table)
    variances = second_cumulant_diagonal(data)
    # A column that is constant up to rounding stays as it is: its rounding is no signal.
    has_spread = variances > smallest_variance(variances, _ROUNDINGS * data.mean)
    scales = jnp.sqrt(jnp.where(has_spread, variances, 1))
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
    updated = em_step(params, data, variance_floor(params, data.floor)).updated
    order = jnp.argsort(-updated.weights)
    variance = updated.variance if family.shared else updated.variance[..., order]
    return GaussianMixture(updated.weights[order], updated.means[:, order], variance)


@jax.jit
def _judge(
    params: GaussianMixture, status: Array, evidence: Evidence, gains: Float[Array, " n"] | None
) -> tuple[Array, Evidence]:
    status = worst(
        status,
        status_if(~(jnp.min(params.weights) > _SMALLEST_WEIGHT), Status.DEGENERATE),
        finite_status(params),
    )
    return status, evidence if gains is None else judge_gain(evidence.rank, gains)


def start_in_family(
    found: Fit, evidence: Evidence, table: Table, scales: Float[Array, " d"], family: Family
) -> tuple[Fit, Evidence]:
    """Return components of a larger family from spherical ones of the standardized table: one step of EM away.

    The step gives covariances the shape that the data have, and raises the likelihood. The gain is that of the family
    too: several components that only follow the correlations of one are none.
    """
    wider = _embed(found.params, scales, family)
    data = prepare(wider, table)
    params, gains = _one_step(wider, data, family), None
    if params.weights.shape[0] > 1:
        one = _one_step(_embed(_single(found.params), scales, family), data, family)
        rows = choose_rows(table, NUM_ROWS)
        gains = jax.nn.logsumexp(log_joint(params, rows), axis=1) - log_joint(one, rows)[:, 0]
    status, evidence = _judge(params, found.status, evidence, gains)
    return found._replace(params=params, status=status), evidence


@jax.jit
def _single(params: GaussianMixture) -> GaussianMixture:
    """Return one component of unit variance at the overall mean, which is that of the data."""
    mean = matmul(params.means, params.weights)[:, None]
    return GaussianMixture(jnp.ones_like(params.weights[:1]), mean, jnp.ones_like(params.weights[:1]))


def no_directions(weights: Float[Array, " d"]) -> Whitened:
    """Return the whitened space of rank zero: that of a single component, whose centred mean is nothing."""
    none, zero = jnp.zeros((weights.shape[0], 0), weights.dtype), jnp.zeros((), weights.dtype)
    return Whitened(Whitening(none, none, none[0], zero, zero, jnp.int32(0), worst()), none)
