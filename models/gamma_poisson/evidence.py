"""What the rows say about an estimate: the rank of the second moment, and the gain over one topic."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from latensor.base import matmul, small_jit, smallest_normal
from latensor.decompose import Status
from latensor.decompose.internal import finite_status, status_if, worst
from latensor.models.components import Correction, SecondMoments
from latensor.models.evidence import Evidence, add_evidence, after, effective_rows, judge_gain, table_rank
from latensor.models.gamma_poisson.inference import evidence_bound, infer, log_factorials, observed_counts
from latensor.models.gamma_poisson.likelihood import sample_likelihoods
from latensor.models.gamma_poisson.params import GammaPoisson, count_parameters
from latensor.models.results import Fit
from latensor.moments import Table
from latensor.moments.internal import Centred, choose_rows

# Rows whose likelihood is compared with that of one topic, and draws for each of them.
_NUM_ROWS, _NUM_DRAWS = 256, 40
# Rows that the shape of a single topic is chosen by.
_MANY_ROWS = 4096
# How well the posteriors are known that the bound needs.
_TOLERANCE, _ITERS = 1e-3, 20
# Shapes that are tried for the one topic: from, to, how many.
_SHAPES = (1e-2, 1e3, 41)


@small_jit
def weigh_evidence(
    key: Array,
    data: Centred,
    moments: SecondMoments,
    correction: Correction,
    weights: Float[Array, " d"],
    params: GammaPoisson,
) -> Evidence:
    """Return what the rows say about an estimate."""
    key_rank = after(jax.random.split(key)[0], params.shapes)
    k = params.shapes.shape[0]
    rank = table_rank(key_rank, data, moments, correction, weights, k)
    rows = choose_rows(data.table, _NUM_ROWS)
    gains = _at_least(jax.random.fold_in(key_rank, 1), params, rows) - one_topic(rows, moments.mean).log_likelihood
    # Dimensions without a count have no parameters.
    number = jnp.sum(moments.mean > 0)
    more = count_parameters(k, number) - count_parameters(1, number)
    return judge_gain(rank, gains, more, effective_rows(data.weights))


def _at_least(key: Array, params: GammaPoisson, rows: Table) -> Float[Array, " n"]:
    """Return what the log-likelihood of each row is at least, on average.

    The larger of an estimate from a few draws and of the evidence bound: with many topics draws may miss the posterior,
    and the bound is loose where topics overlap.
    """
    dtype = params.topics.dtype
    counts = observed_counts(rows, dtype)
    q = infer(params, rows, jnp.asarray(_TOLERANCE, dtype), _ITERS)
    bound = evidence_bound(params, counts, q, log_factorials(counts))
    return jnp.maximum(sample_likelihoods(key, params, rows, _NUM_DRAWS).value, bound)


class OneTopic(NamedTuple):
    """The best model with a single topic, and the log-likelihood of each row."""

    params: GammaPoisson
    log_likelihood: Float[Array, " n"]


def one_topic(rows: Table, mean: Float[Array, " d"]) -> OneTopic:
    """Return the model with one topic whose mean is that of the data; of many shapes the best for these rows.

    Exact: `log p = log Γ(c + N) − log Γ(c) + c log b − (c + N) log(b + Σ_d a_d) + Σ_d (x_d log a_d − log x_d!)`, with
    `N` the sum of the row, `a` the topic, `c` the shape and `c/b` the mean of its intensity.
    """
    dtype = mean.dtype
    counts = observed_counts(rows, dtype)
    total = jnp.maximum(jnp.sum(mean), smallest_normal(dtype))
    topic = jnp.maximum(mean / total, smallest_normal(dtype))
    seen = jnp.ones_like(counts[:, 0]) if rows.mask is None else matmul(rows.mask.astype(dtype), topic)
    shapes = jnp.geomspace(*_SHAPES, dtype=dtype)[None, :]
    number, rates = jnp.sum(counts, axis=1)[:, None], shapes / total
    intensity = gammaln(shapes + number) - gammaln(shapes) + shapes * jnp.log(rates)
    intensity = intensity - (shapes + number) * jnp.log(rates + seen[:, None])
    best = jnp.argmax(jnp.mean(intensity, axis=0))
    params = GammaPoisson((mean / total)[:, None], shapes[0, best][None], rates[0, best])
    return OneTopic(params, intensity[:, best] + matmul(counts, jnp.log(topic)) - log_factorials(counts))


@small_jit
def fit_one_topic(estimate: Fit, data: Centred, moments: SecondMoments) -> Fit:
    """Return a fit with the best single topic in place of that of the moments, which few long rows can spoil."""
    params = one_topic(choose_rows(data.table, _MANY_ROWS), moments.mean).params
    # What the moments said of their own topic is nothing to this one.
    status = jnp.where(estimate.status >= Status.UNOBSERVED, estimate.status, Status.CONVERGED)
    status = worst(status, status_if(~(jnp.sum(moments.mean) > 0), Status.DEGENERATE), finite_status(params))
    return add_evidence(estimate._replace(params=params, status=status), Evidence(None, None, None))
