"""Parameters of the Gamma-Poisson model, draws from it, and its exact moments."""

from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import check_key, einsum, matmul, small_jit
from latensor.models.checks import check_order, check_probabilities, check_reals, check_type
from latensor.models.results import Sample
from latensor.models.sampling import check_num_samples
from latensor.moments import Cumulants, Moments
from latensor.moments.internal import finite_moments, gamma_poisson_cumulants

# A number of dimensions, or a traced one of those that occur.
Count = TypeVar("Count", int, Array)


class GammaPoisson(NamedTuple):
    """Parameters of the Gamma-Poisson model."""

    topics: Float[Array, "d k"]
    """Share of each dimension in each topic: columns sum to one."""
    shapes: Float[Array, " k"]
    """Shapes of the topics' intensities."""
    rate: Float[Array, ""]
    """The rate that all intensities share; `shapes / rate` are their means."""


def check_params(params: Any) -> GammaPoisson:
    """Return parameters whose shapes agree and whose values are valid."""
    params = check_type(params, GammaPoisson)
    topics = check_probabilities("params.topics", params.topics, 2)
    shapes = check_reals("params.shapes", params.shapes, 1, positive=True)
    rate = check_reals("params.rate", params.rate, 0, positive=True)
    if topics.shape[1] != shapes.shape[0]:
        raise ValueError(
            f"params: expected topics (d, k) and shapes (k,); got shapes {topics.shape} and {shapes.shape}"
        )
    return GammaPoisson(topics, shapes.astype(topics.dtype), rate.astype(topics.dtype))


def num_parameters(params: GammaPoisson) -> int:
    """Return the number of free parameters: a shape and `d − 1` shares of dimensions per topic, and the rate."""
    d, k = check_params(params).topics.shape
    return count_parameters(k, d)


def count_parameters(num_components: int, num_dimensions: Count) -> Count:
    """Return the number of free parameters of topics that have some dimensions; that of dimensions may be traced."""
    return num_components * num_dimensions + 1


def permute(params: GammaPoisson, order: ArrayLike) -> GammaPoisson:
    """Return the same model with its topics in another order: topic `i` is the old `order[i]`."""
    params = check_params(params)
    index = check_order(order, params.shapes.shape[0])
    return GammaPoisson(params.topics[:, index], params.shapes[index], params.rate)


def component_columns(params: GammaPoisson) -> Float[Array, "d k"]:
    """Return one column per topic, by which the topics of two estimates are matched: the topics themselves."""
    return check_params(params).topics


def sample(key: Array, params: GammaPoisson, num_samples: int) -> Sample:
    """Draw rows of counts, and the intensities `(n, k)` of the topics in each.

    For a table with missing entries draw a mask too: `jax.random.bernoulli(key, rates, x.shape)`.
    """
    key, params = check_key(key), check_params(params)
    return _sample(key, params, check_num_samples(num_samples, params.topics.shape[0]))


@partial(jax.jit, static_argnames="num_samples")
def _sample(key: Array, params: GammaPoisson, num_samples: int) -> Sample:
    key_hidden, key_counts = jax.random.split(key)
    dtype = params.topics.dtype
    shape = (num_samples, params.shapes.shape[0])
    hidden = jax.random.gamma(key_hidden, jnp.broadcast_to(params.shapes[None, :], shape), dtype=dtype) / params.rate
    counts = jax.random.poisson(_as_threefry(key_counts), matmul(hidden, params.topics.T))
    return Sample(counts.astype(dtype), hidden)


def _as_threefry(key: Array) -> Array:
    """Return a key of the one kind that `jax.random.poisson` takes: the key itself, or one drawn with it."""
    if str(jax.random.key_impl(key)) == "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl="threefry2x32")


def population_moments(params: GammaPoisson) -> Cumulants:
    """Return the exact mean, covariance and third central moment, which those of a sample estimate."""
    return finite_moments("params", _population_moments(check_params(params)))


@small_jit
def _population_moments(params: GammaPoisson) -> Cumulants:
    topics, shapes, rate = params
    seconds, thirds = shapes / rate**2, 2 * shapes / rate**3
    return gamma_poisson_cumulants(
        Moments(
            first=matmul(topics, shapes / rate),
            second=matmul(topics * seconds[None, :], topics.T),
            third=einsum("ih,jh,lh->ijl", topics * thirds[None, :], topics, topics),
        )
    )
