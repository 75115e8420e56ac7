"""What the rows say about an estimate: the rank of the second moment, and the gain over one topic."""

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from latensor.base import matmul, small_jit, smallest_normal
from latensor.models.components import Correction, SecondMoments
from latensor.models.evidence import Evidence, after, choose_rows, judge_gain, table_rank
from latensor.models.gamma_poisson.inference import evidence_bound, infer, log_factorials, observed_counts
from latensor.models.gamma_poisson.likelihood import sample_likelihoods
from latensor.models.gamma_poisson.params import GammaPoisson
from latensor.moments import Table
from latensor.moments.internal import Centred

# Rows whose likelihood is compared with that of one topic, and draws for each of them.
_NUM_ROWS, _NUM_DRAWS = 256, 40
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
    if k == 1:
        return Evidence(rank, None, None)
    rows = choose_rows(data.table, _NUM_ROWS)
    return judge_gain(rank, _at_least(jax.random.fold_in(key_rank, 1), params, rows) - _one_topic(rows, moments.mean))


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


def _one_topic(rows: Table, mean: Float[Array, " d"]) -> Float[Array, " n"]:
    """Return the log-likelihood of each row under one topic, whose mean is that of the data.

    Exact: `log p = log Γ(c + N) − log Γ(c) + c log b − (c + N) log(b + Σ_d a_d) + Σ_d (x_d log a_d − log x_d!)`, with
    `N` the sum of the row, `a` the topic and `c/b` its mean intensity; of many `c` the best for all rows is taken.
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
    return intensity[:, best] + matmul(counts, jnp.log(topic)) - log_factorials(counts)
