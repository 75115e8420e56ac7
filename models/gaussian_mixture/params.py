"""Parameters of the mixture of spherical Gaussians, draws from it, and its exact moments."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import check_integer, check_key, einsum, matmul, small_jit
from latensor.models.checks import check_order, check_probabilities, check_reals, check_type
from latensor.models.results import Sample
from latensor.models.sampling import draw_components
from latensor.moments import Cumulants


class GaussianMixture(NamedTuple):
    """Parameters of a mixture of spherical Gaussians."""

    weights: Float[Array, " k"]
    """Probability of each component."""
    means: Float[Array, "d k"]
    """Means of the components, in columns."""
    variance: Float[Array, ""]
    """The variance that all components and dimensions share."""


def check_params(params: Any) -> GaussianMixture:
    """Return parameters whose shapes agree and whose values are valid."""
    params = check_type(params, GaussianMixture)
    weights = check_probabilities("params.weights", params.weights, 1)
    means = check_reals("params.means", params.means, 2)
    variance = check_reals("params.variance", params.variance, 0, positive=True)
    if means.shape[1] != weights.shape[0]:
        raise ValueError(
            f"params: expected weights (k,) and means (d, k); got shapes {weights.shape} and {means.shape}"
        )
    return GaussianMixture(weights.astype(means.dtype), means, variance.astype(means.dtype))


def permute(params: GaussianMixture, order: ArrayLike) -> GaussianMixture:
    """Return the same model with its components in another order: component `i` is the old `order[i]`."""
    params = check_params(params)
    index = check_order(order, params.weights.shape[0])
    return GaussianMixture(params.weights[index], params.means[:, index], params.variance)


def sample(key: Array, params: GaussianMixture, num_samples: int) -> Sample:
    """Draw points and their components.

    For a table with missing entries draw a mask too: `jax.random.bernoulli(key, rates, x.shape)`.
    """
    return _sample(check_key(key), check_params(params), check_integer("num_samples", num_samples, 1))


@partial(jax.jit, static_argnames="num_samples")
def _sample(key: Array, params: GaussianMixture, num_samples: int) -> Sample:
    key_hidden, key_noise = jax.random.split(key)
    dtype = params.means.dtype
    hidden = draw_components(key_hidden, params.weights, num_samples)
    noise = jax.random.normal(key_noise, (num_samples, params.means.shape[0]), dtype)
    return Sample(params.means.T[hidden] + jnp.sqrt(params.variance) * noise, hidden)


def population_moments(params: GaussianMixture) -> Cumulants:
    """Return the exact mean, covariance and third central moment, which those of a sample estimate."""
    return _population_moments(check_params(params))


@small_jit
def _population_moments(params: GaussianMixture) -> Cumulants:
    weights, means, variance = params
    mean = matmul(means, weights)
    centred = means - mean[:, None]
    weighted = centred * weights[None, :]
    return Cumulants(
        mean=mean,
        second=matmul(weighted, centred.T) + variance * jnp.eye(means.shape[0], dtype=means.dtype),
        third=einsum("ih,jh,lh->ijl", weighted, centred, centred),
        num_unobserved=jnp.int32(0),
    )
