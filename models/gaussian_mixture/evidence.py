"""What the rows say about an estimate: the rank of the means' covariance, and the gain over one component."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import small_jit
from latensor.models.components import Correction, SecondMoments
from latensor.models.evidence import Evidence, after, effective_rows, judge_gain, table_rank
from latensor.models.gaussian_mixture.covariance import smallest_variance
from latensor.models.gaussian_mixture.likelihood import log_joint
from latensor.models.gaussian_mixture.params import GaussianMixture, num_parameters
from latensor.moments.internal import Centred, choose_rows

# Rows whose likelihood is compared with that of one component.
NUM_ROWS = 2048


@small_jit
def weigh_evidence(
    key: Array,
    data: Centred,
    moments: SecondMoments,
    correction: Correction,
    weights: Float[Array, " d"],
    params: GaussianMixture,
) -> Evidence:
    """Return what the rows say about a spherical estimate; one component is spherical too, in the same units."""
    k = params.weights.shape[0]
    key_rank = after(jax.random.split(key)[0], params.weights)
    rank = table_rank(key_rank, data, moments, correction, weights, k - 1)
    if k == 1:
        return Evidence(rank, None, None)
    variance = jnp.sum(data.rates * moments.variances) / jnp.sum(data.rates)
    one = GaussianMixture(
        jnp.ones_like(weights[:1]), data.mean[:, None], jnp.maximum(variance, smallest_variance(variance))
    )
    rows = choose_rows(data.table, NUM_ROWS)
    ours, theirs = (jax.nn.logsumexp(log_joint(model, rows), axis=1) for model in (params, one))
    more = num_parameters(params) - num_parameters(one)
    return judge_gain(rank, ours - theirs, more, effective_rows(data.weights))
