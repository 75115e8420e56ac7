"""The Gamma-Poisson likelihood by importance sampling, and the posterior of the topics' intensities."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_integer, check_key, matmul, smallest_normal
from latensor.models.checks import check_table_for
from latensor.models.em import em_limits
from latensor.models.gamma_poisson.inference import floats_per_row, infer, log_factorials, observed_counts
from latensor.models.gamma_poisson.params import GammaPoisson, check_params
from latensor.models.importance import Draw, importance_sample, mixture_log_density
from latensor.models.results import LogLikelihood
from latensor.moments import Table, map_over_rows
from latensor.moments.internal import as_table

# The variational posterior is too narrow and knows no dependence between topics; draws come from wider and wider
# copies of it in turn, and are weighed against the mixture of all.
_WIDER = (2.0, 6.0, 18.0, 54.0)
# Proposals need no exact optimum.
_PROPOSAL_TOLERANCE, _PROPOSAL_ITERS = 1e-3, 100


class Intensities(NamedTuple):
    """The posterior of the topics' intensities in each row: independent Gamma distributions (variational)."""

    mean: Float[Array, "n k"]
    shapes: Float[Array, "n k"]
    rates: Float[Array, "n k"]


def check_pair(params: Any, x: Any, mask: Any, row_weights: Any = None) -> tuple[GammaPoisson, Table]:
    """Return a model, and a table that it can be asked about."""
    params = check_params(params)
    table = as_table(x, mask=mask, row_weights=row_weights)
    return params, check_table_for(table, params.topics.shape[0], "topics", counts=True)


@jax.jit
def _posterior_intensities(
    params: GammaPoisson, table: Table, tol: Float[Array, ""], max_iters: Int[Array, ""]
) -> Intensities:
    def block(rows: Table) -> Intensities:
        q = infer(params, rows, tol, max_iters)
        return Intensities(q.shapes / q.rates, q.shapes, q.rates)

    return map_over_rows(block, table, floats_per_row=floats_per_row(params))


def posterior_intensities(
    params: GammaPoisson,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 500,
) -> Intensities:
    """Return what each row's observed counts say about the topics' intensities.

    Independent Gamma distributions, the nearest to the true posterior (variational, closed-form updates).

    Args:
      params: the model.
      x: a `Table`, or counts in rows.
      mask: `(n, d)` bool, True where observed.
      tol: a row has converged when an update moves no shape by more than this share of their sum; default: 10 machine
        epsilons in float32 and 1e-8 in float64.
      max_iters: limit on the updates.

    """
    params, table = check_pair(params, x, mask)
    return _posterior_intensities(params, table, *em_limits(tol, max_iters, params.topics.dtype))


@jax.jit
def _posterior(params: GammaPoisson, table: Table, tol: Float[Array, ""], max_iters: Int[Array, ""]) -> Array:
    mean = _posterior_intensities(params, table, tol, max_iters).mean
    return mean / jnp.sum(mean, axis=1, keepdims=True)


def posterior(
    params: GammaPoisson,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 500,
) -> Float[Array, "n k"]:
    """Return each topic's expected share of each row's intensity, `E[α_h] / Σ E[α]`: rows sum to one.

    Arguments as for `posterior_intensities`, which returns the distributions of the intensities themselves.
    """
    params, table = check_pair(params, x, mask)
    return _posterior(params, table, *em_limits(tol, max_iters, params.topics.dtype))


def _log_gamma_density(log_value: Array, shapes: Array, rates: Array) -> Array:
    """Return the log-density of Gamma(shapes, rates) at `exp(log_value)`, summed over topics."""
    terms = shapes * jnp.log(rates) - gammaln(shapes) + (shapes - 1) * log_value - rates * jnp.exp(log_value)
    return jnp.sum(terms, axis=1)


def _prepare_draws(params: GammaPoisson, rows: Table) -> Draw:
    """Return how intensities are drawn for a block of rows, around their variational posterior."""
    dtype = params.topics.dtype
    counts = observed_counts(rows, dtype)
    factorials = log_factorials(counts)
    q = infer(params, rows, jnp.asarray(_PROPOSAL_TOLERANCE, dtype), _PROPOSAL_ITERS)
    wider = jnp.asarray(_WIDER, dtype)

    def log_counts(intensity: Float[Array, "n k"]) -> Float[Array, " n"]:
        means = jnp.maximum(matmul(intensity, params.topics.T), smallest_normal(dtype))
        expected = means if rows.mask is None else jnp.where(rows.mask, means, 0)
        return jnp.sum(counts * jnp.log(means) - expected, axis=1) - factorials

    def draw(key: Array, turn: Array) -> Float[Array, " n"]:
        log_value = jax.random.loggamma(key, q.shapes / wider[turn], dtype=dtype) - jnp.log(q.rates / wider[turn])
        prior = _log_gamma_density(log_value, params.shapes[None, :], params.rate)
        densities = [_log_gamma_density(log_value, q.shapes / scale, q.rates / scale) for scale in _WIDER]
        return log_counts(jnp.exp(log_value)) + prior - mixture_log_density(jnp.stack(densities))

    return draw


@partial(jax.jit, static_argnames="num_samples")
def sample_likelihoods(key: Array, params: GammaPoisson, table: Table, num_samples: int) -> LogLikelihood:
    """Return `estimate_log_likelihood`, unchecked."""
    return importance_sample(
        key,
        partial(_prepare_draws, params),
        table,
        num_proposals=len(_WIDER),
        num_samples=num_samples,
        floats_per_row=floats_per_row(params),
    )


def estimate_log_likelihood(
    key: Array, params: GammaPoisson, x: Table | ArrayLike, *, mask: ArrayLike | None = None, num_samples: int = 200
) -> LogLikelihood:
    """Return an importance-sampled estimate of each row's log-probability, and its standard error.

    Intensities are drawn from widened copies of the variational posterior, weighed against their mixture. The estimate
    of the probability is unbiased, its logarithm low by about half the squared standard error. Where topics look alike
    the posterior is a thin ridge that few draws meet: then the value is lower still and the standard error too small.
    Double `num_samples`; if the value rises by more than the standard errors tell, trust neither.

    Args:
      key: a random key.
      params: the model.
      x: a `Table`, or counts in rows.
      mask: `(n, d)` bool, True where observed: the probability is that of the observed counts.
      num_samples: draws per row.

    Cost: `O(n d k)` per draw.

    """
    key = check_key(key)
    params, table = check_pair(params, x, mask)
    return sample_likelihoods(key, params, table, check_integer("num_samples", num_samples, 2))


def log_likelihood(
    params: GammaPoisson,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    key: Array | None = None,
    num_samples: int = 200,
) -> Float[Array, " n"]:
    """Return an estimate of each row's log-probability: the values of `estimate_log_likelihood`, which needs a `key`.

    Arguments as there.
    """
    return estimate_log_likelihood(check_key(key), params, x, mask=mask, num_samples=num_samples).value
