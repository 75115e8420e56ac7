"""The Gamma-Poisson likelihood by importance sampling, and the posterior of the topics' intensities."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_integer, check_key, matmul, smallest_normal
from latensor.models.checks import as_numeric_table, check_dimensions
from latensor.models.em import em_limits
from latensor.models.gamma_poisson.inference import Gammas, floats_per_row, infer, log_factorials, observed_counts
from latensor.models.gamma_poisson.params import GammaPoisson, check_params
from latensor.models.importance import (
    Draw,
    Tents,
    draw_tents,
    fit_tents,
    importance_sample,
    mixture_log_density,
    tent_log_densities,
)
from latensor.models.results import LogLikelihood
from latensor.models.special import log_gamma
from latensor.models.variational import SHORTER_BLOCKS
from latensor.moments import Table, map_over_rows

# The variational posterior is too narrow and knows no dependence between topics; draws come from wider and wider
# copies of it in turn, and are weighed against the mixture of all.
_WIDER = (1.0, 3.0, 9.0, 54.0)
# Proposals need no exact optimum.
_PROPOSAL_TOLERANCE, _PROPOSAL_ITERS = 1e-3, 100


class Intensities(NamedTuple):
    """The posterior of the topics' intensities in each row: independent Gamma distributions (variational)."""

    mean: Float[Array, "n k"]
    shapes: Float[Array, "n k"]
    rates: Float[Array, "n k"]


def as_data(x: Table | ArrayLike, *, mask: ArrayLike | None = None, row_weights: ArrayLike | None = None) -> Table:
    """Return the data of this model: counts as a `Table`, checked. Arguments as for `fit`."""
    return as_numeric_table(x, mask, row_weights, counts=True)


def check_pair(params: Any, x: Any, mask: Any, row_weights: Any = None) -> tuple[GammaPoisson, Table]:
    """Return a model, and a table that it can be asked about."""
    params = check_params(params)
    return params, check_dimensions(as_data(x, mask=mask, row_weights=row_weights), params.topics.shape[0], "topics")


@jax.jit
def _posterior_intensities(
    params: GammaPoisson, table: Table, tol: Float[Array, ""], max_iters: Int[Array, ""]
) -> Intensities:
    def block(rows: Table) -> Intensities:
        q = infer(params, rows, tol, max_iters)
        return Intensities(q.shapes / q.rates, q.shapes, q.rates)

    return map_over_rows(block, table, floats_per_row=SHORTER_BLOCKS * floats_per_row(params))


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


def _propose(params: GammaPoisson, q: Gammas) -> Tents:
    """Return proposals `(proposals, k, n)` for the logarithms of the intensities."""
    wider = jnp.asarray(_WIDER, q.shapes.dtype)[:, None, None]
    tents = fit_tents(q.shapes.T[None] / wider, math.inf)
    # As `α_h → 0` other topics can explain the counts, and the posterior falls as the prior does, no faster.
    widest = jnp.minimum(tents.left[-1], params.shapes[:, None])
    return tents._replace(peak=tents.peak - jnp.log(q.rates.T[None] / wider), left=tents.left.at[-1].set(widest))


def _prepare_draws(params: GammaPoisson, rows: Table) -> Draw:
    """Return how intensities are drawn for a block of rows, around their variational posterior.

    As a density of `log α`, where `r_h = b + Σ_d A_dh` over the observed dimensions,

        log p(x, α) = Σ_d [x_d log (A α)_d − log x_d!] + Σ_h [c_h log α_h − r_h α_h + c_h log b − log Γ(c_h)].
    """
    dtype = params.topics.dtype
    counts = observed_counts(rows, dtype)
    q = infer(params, rows, jnp.asarray(_PROPOSAL_TOLERANCE, dtype), _PROPOSAL_ITERS)
    tents = _propose(params, q)
    constant = jnp.sum(params.shapes * jnp.log(params.rate) - log_gamma(params.shapes)) - log_factorials(counts)
    ones = jnp.ones(counts.shape[1], dtype)

    def draw(key: Array, turn: Array) -> Float[Array, " n"]:
        log_value = draw_tents(key, jax.tree.map(lambda part: part[turn], tents))
        intensity = jnp.exp(log_value)
        means = jnp.maximum(matmul(intensity.T, params.topics.T), smallest_normal(dtype))
        # As a product: the loop that XLA makes of a sum along the last axis adds one number at a time.
        words = matmul(counts * jnp.log(means), ones)
        prior = jnp.sum(params.shapes[:, None] * log_value - q.rates.T * intensity, axis=0)
        densities = jnp.sum(tent_log_densities(tents, log_value[None]), axis=1)
        return words + prior + constant - mixture_log_density(densities)

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
