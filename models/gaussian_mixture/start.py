"""Diagonal and full covariances: a start from spherical components."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import as_float, matmul
from latensor.decompose import Status, Whitening
from latensor.decompose.internal import finite_status, status_if, worst
from latensor.models.components import Whitened
from latensor.models.evidence import Evidence, effective_rows, judge_gain
from latensor.models.gaussian_mixture.covariance import Family, as_diagonal, from_diagonal, smallest_variance
from latensor.models.gaussian_mixture.em import MARGIN, Data, em_step, is_regular, prepare, variance_floor
from latensor.models.gaussian_mixture.evidence import NUM_ROWS
from latensor.models.gaussian_mixture.likelihood import log_joint
from latensor.models.gaussian_mixture.params import GaussianMixture
from latensor.models.results import Fit
from latensor.moments import Table
from latensor.moments.internal import average_weights, centre, choose_rows, second_cumulant_diagonal

# The mean of a column may be off by this many roundings.
_ROUNDINGS = 16
# A component with less weight has vanished.
_SMALLEST_WEIGHT = 1e-6
# Steps of EM for full covariances: near-singular ones shrink by a bounded factor in each, whatever the data say.
_FULL_STEPS = 5


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


def _step(params: GaussianMixture, data: Data, family: Family) -> GaussianMixture:
    for _ in range(_FULL_STEPS if family.covariance == "full" else 1):
        params = _one_step(params, data, family)
    return params


@jax.jit
def _judge(
    params: GaussianMixture,
    status: Array,
    evidence: Evidence,
    gains: Float[Array, " n"] | None,
    row_weights: Float[Array, " n"],
) -> tuple[Array, Evidence]:
    status = worst(
        status,
        status_if(~(jnp.min(params.weights) > _SMALLEST_WEIGHT), Status.DEGENERATE),
        finite_status(params),
    )
    if params.variance.ndim == 3:
        # Columns that are sums of others; a constant one is not meant.
        regular = is_regular(params.variance, jnp.zeros_like(params.means[:, 0]), MARGIN)
        status = worst(status, status_if(~jnp.all(regular), Status.BOUNDARY))
    if gains is None:
        return status, evidence
    return status, judge_gain(evidence.rank, gains, _more_parameters(params), effective_rows(row_weights))


def _more_parameters(params: GaussianMixture) -> int:
    """Return how many more parameters there are than those of one component of the same family."""
    (d, k), shape = params.means.shape, params.variance.shape
    each = 0 if shape[-1:] in ((), (1,)) else {1: 1, 2: d, 3: d * (d + 1) // 2}[len(shape)]
    return (k - 1) * (1 + d + each)


def start_in_family(
    found: Fit, evidence: Evidence, table: Table, scales: Float[Array, " d"], family: Family
) -> tuple[Fit, Evidence]:
    """Return components of a larger family from spherical ones of the standardized table: a step of EM away, or a few.

    It gives covariances the shape that the data have, and raises the likelihood. The gain is that of the family
    too: several components that only follow the correlations of one are none.
    """
    wider = _embed(found.params, scales, family)
    data = prepare(wider, table)
    params, gains = _step(wider, data, family), None
    if params.weights.shape[0] > 1:
        one = _step(_embed(_single(found.params), scales, family), data, family)
        rows = choose_rows(table, NUM_ROWS)
        gains = jax.nn.logsumexp(log_joint(params, rows), axis=1) - log_joint(one, rows)[:, 0]
    row_weights = average_weights(table.row_weights, table.num_rows, params.means.dtype)
    status, evidence = _judge(params, found.status, evidence, gains, row_weights)
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
