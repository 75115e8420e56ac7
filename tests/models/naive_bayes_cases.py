"""Naive Bayes models for tests."""

import jax.numpy as jnp
import numpy as np

from latensor.models.naive_bayes import NaiveBayes


def random_model(seed, d, k, concentration=0.1, weights=None):
    """Draw word probabilities by NumPy: jax.random.dirichlet takes as long to compile, for every shape, as a fit."""
    word_probs = np.random.default_rng(seed).dirichlet(np.full(d, concentration), k).T
    weights = np.ones(k) if weights is None else np.asarray(weights, float)
    return NaiveBayes(jnp.asarray(weights / weights.sum(), float), jnp.asarray(word_probs, float))
