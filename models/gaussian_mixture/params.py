"""Parameters of the mixture of Gaussians, draws from it, and its exact moments."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import check_key, einsum, matmul, small_jit
from latensor.models.checks import check_order, check_probabilities, check_reals, check_type
from latensor.models.gaussian_mixture.covariance import as_diagonal, as_full, check_variance, family_of
from latensor.models.results import Sample
from latensor.models.sampling import check_num_samples, draw_components
from latensor.moments import Cumulants, map_over_rows
from latensor.moments.internal import finite_moments


class GaussianMixture(NamedTuple):
    """Parameters of a mixture of Gaussians."""

    weights: Float[Array, " k"]
    """Probability of each component."""
    means: Float[Array, "d k"]
    """Means of the components, in columns."""
    variance: Float[Array, "..."]
    """Variances: `(k,)` of spherical components, `(d, k)` of diagonal ones, or full covariances `(d, d, k)`. Shared by
    all components: `()`, `(d, 1)` or `(d, d, 1)`."""


def check_params(params: Any) -> GaussianMixture:
    """Return parameters whose shapes agree and whose values are valid."""
    params = check_type(params, GaussianMixture)
    weights = check_probabilities("params.weights", params.weights, 1)
    means = check_reals("params.means", params.means, 2)
    if means.shape[1] != weights.shape[0]:
        raise ValueError(
            f"params: expected weights (k,) and means (d, k); got shapes {weights.shape} and {means.shape}"
        )
    variance = check_variance(params.variance, *means.shape)
    return GaussianMixture(weights.astype(means.dtype), means, variance.astype(means.dtype))


def num_parameters(params: GaussianMixture) -> int:
    """Return the number of free parameters: `k − 1` weights, `d` coordinates of each mean, and the covariances.

    A covariance has one if it is spherical, `d` if diagonal and `d (d + 1) / 2` if full; a shared one counts once.
    """
    params = check_params(params)
    d, k = params.means.shape
    each = (1, d, d * (d + 1) // 2)[max(params.variance.ndim - 1, 0)]
    return k - 1 + d * k + each * (1 if family_of(params.variance, k).shared else k)


def permute(params: GaussianMixture, order: ArrayLike) -> GaussianMixture:
    """Return the same model with its components in another order: component `i` is the old `order[i]`."""
    params = check_params(params)
    index = check_order(order, params.weights.shape[0])
    shared = family_of(params.variance, params.weights.shape[0]).shared
    variance = params.variance if shared else params.variance[..., index]
    return GaussianMixture(params.weights[index], params.means[:, index], variance)


def component_columns(params: GaussianMixture) -> Float[Array, "d k"]:
    """Return one column per component, by which the components of two estimates are matched: the means."""
    return check_params(params).means


def sample(key: Array, params: GaussianMixture, num_samples: int) -> Sample:
    """Draw points and their components.

    For a table with missing entries draw a mask too: `jax.random.bernoulli(key, rates, x.shape)`.
    """
    key, params = check_key(key), check_params(params)
    return _sample(key, params, check_num_samples(num_samples, params.means.shape[0]))


@partial(jax.jit, static_argnames="num_samples")
def _sample(key: Array, params: GaussianMixture, num_samples: int) -> Sample:
    key_hidden, key_noise = jax.random.split(key)
    d = params.means.shape[0]
    hidden = draw_components(key_hidden, params.weights, num_samples)
    noise = jax.random.normal(key_noise, (num_samples, d), params.means.dtype)
    if params.variance.ndim < 3:
        scaled = jnp.sqrt(as_diagonal(params.variance, params.means))[hidden] * noise
    else:
        roots = jnp.linalg.cholesky(as_full(params.variance, params.means))
        scaled = map_over_rows(
            lambda hidden, noise: einsum("nij,nj->ni", roots[hidden], noise), hidden, noise, floats_per_row=d * d
        )
    return Sample(params.means.T[hidden] + scaled, hidden)


def population_moments(params: GaussianMixture) -> Cumulants:
    """Return the exact mean, covariance and third central moment, which those of a sample estimate."""
    return finite_moments("params", _population_moments(check_params(params)))


@small_jit
def _population_moments(params: GaussianMixture) -> Cumulants:
    weights, means, variance = params
    mean = matmul(means, weights)
    centred = means - mean[:, None]
    weighted = centred * weights[None, :]
    covariances = as_full(variance, means)
    # Skew by covariances that differ: `sym Σ_h π_h (a_h − μ)⊗Σ_h`.
    noise = einsum("ih,hjl->ijl", weighted, covariances)
    return Cumulants(
        mean=mean,
        second=matmul(weighted, centred.T) + einsum("h,hij->ij", weights, covariances),
        third=einsum("ih,jh,lh->ijl", weighted, centred, centred)
        + noise
        + jnp.swapaxes(noise, 0, 1)
        + jnp.moveaxis(noise, 0, 2),
        num_unobserved=jnp.int32(0),
    )
