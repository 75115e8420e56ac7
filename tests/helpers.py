"""What several test modules need."""

import jax
import jax.numpy as jnp
import numpy as np

from latensor.models.naive_bayes import NaiveBayes

PLATFORMS = ("cuda", "tpu")


def orthogonal_tensor(seed, size, rank=None, low=1.0, high=3.0):
    """Return a tensor with orthonormal components, their values and vectors."""
    rng = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(rng.normal(size=(size, size)))
    vectors = vectors[:, : rank or size]
    values = np.sort(rng.uniform(low, high, vectors.shape[1]))[::-1]
    tensor = np.einsum("h,ih,jh,lh->ijl", values, vectors, vectors, vectors)
    return jnp.asarray(tensor), jnp.asarray(values), jnp.asarray(vectors)


def random_model(seed, d, k, concentration=0.1, weights=None):
    key = jax.random.key(seed)
    word_probs = jax.random.dirichlet(key, jnp.full(d, concentration), (k,)).T
    weights = jnp.ones(k) if weights is None else jnp.asarray(weights, word_probs.dtype)
    return NaiveBayes(weights / jnp.sum(weights), word_probs)


def lowers(function, *arguments):
    """Export a function of arrays for the accelerators; raises if one of them cannot run it."""
    for platform in PLATFORMS:
        exported = jax.export.export(jax.jit(function), platforms=[platform])(*arguments)
        assert exported.platforms == (platform,)
