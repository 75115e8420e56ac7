"""Gamma-Poisson models and data for tests."""

import jax.numpy as jnp
import numpy as np

from latensor.models.gamma_poisson import GammaPoisson

D, K = 12, 3


def random_topics(seed, d=D, k=K, rate=0.1):
    topics = np.random.default_rng(seed).dirichlet(np.full(d, 0.5), k).T
    return GammaPoisson(*(jnp.asarray(part, float) for part in (topics, np.linspace(0.5, 2, k), rate)))


def draw(seed, params, num_samples):
    """Counts by NumPy, as the topics: what jax.random compiles for every shape takes longer than the test."""
    rng = np.random.default_rng(seed)
    topics, shapes, rate = (np.asarray(leaf, np.float64) for leaf in params)
    intensity = rng.gamma(shapes, 1 / rate, (num_samples, len(shapes)))
    return jnp.asarray(rng.poisson(intensity @ topics.T), params.topics.dtype)


def draw_mask(seed, rates, shape):
    return jnp.asarray(np.random.default_rng(seed).uniform(size=shape) < rates)
