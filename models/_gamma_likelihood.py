"""The Gamma-Poisson likelihood by importance sampling."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import gammaln
from jaxtyping import Array

from latensor.models._gamma import GammaPoisson, Intensities, observed_counts
from latensor.models._importance import LogLikelihood, average_ratios
from latensor.moments import map_over_rows

__all__ = ["LogLikelihood", "importance_sample"]

# The variational posterior is too narrow and knows no dependence between topics; draws come from wider and wider
# copies of it in turn, and are weighed against the mixture of all.
_WIDER = (2.0, 6.0, 18.0, 54.0)


def _log_gamma_density(log_value: Array, shapes: Array, rates: Array) -> Array:
    """Return the log-density of Gamma(shapes, rates) at `exp(log_value)`, summed over topics."""
    terms = shapes * jnp.log(rates) - gammaln(shapes) + (shapes - 1) * log_value - rates * jnp.exp(log_value)
    return jnp.sum(terms, axis=1)


@partial(jax.jit, static_argnames="num_samples")
def importance_sample(
    key: Array, params: GammaPoisson, x: Array, mask: Array | None, q: Intensities, num_samples: int
) -> LogLikelihood:
    """Estimate each row's log-probability from draws around its variational posterior `q`."""
    dtype = params.topics.dtype
    scales = jnp.asarray(_WIDER, dtype)
    tiny = float(jnp.finfo(dtype).tiny)

    def log_counts(x: Array, mask: Array | None, intensity: Array) -> Array:
        counts = observed_counts(x, mask, dtype)
        means = jnp.maximum(jnp.matmul(intensity, params.topics.T, precision="highest"), tiny)
        seen = means if mask is None else jnp.where(mask, means, 0)
        return jnp.sum(counts * jnp.log(means) - seen - gammaln(counts + 1), axis=1)

    def proposal(log_value: Array) -> Array:
        densities = [_log_gamma_density(log_value, q.shapes / wider, q.rates / wider) for wider in _WIDER]
        return jax.nn.logsumexp(jnp.stack(densities), axis=0) - math.log(len(_WIDER))

    def draw(_: None, draw_of: tuple[Array, Array]) -> tuple[None, Array]:
        key, wider = draw_of
        log_value = jax.random.loggamma(key, q.shapes / wider, dtype=dtype) - jnp.log(q.rates / wider)
        words = map_over_rows(log_counts, (x, mask, jnp.exp(log_value)), floats_per_row=3 * x.shape[1])
        prior = _log_gamma_density(log_value, params.shapes[None, :], params.rate)
        return None, words + prior - proposal(log_value)

    turns = scales[jnp.arange(num_samples) % len(_WIDER)]
    _, ratios = lax.scan(draw, None, (jax.random.split(key, num_samples), turns))
    return average_ratios(ratios)
