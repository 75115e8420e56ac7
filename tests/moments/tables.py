"""Incomplete tables that several test modules use, and an oracle of their third cumulant."""

import itertools

import jax.numpy as jnp
import numpy as np

N, D, R = 300, 6, 3


def draw(seed=0, low=0.05, high=1.0, n=N, d=D):
    """Skewed data with an offset, dimensions observed at rates from `low` to `high`, NaN where masked."""
    rng = np.random.default_rng(seed)
    x = rng.gamma(1.0, size=(n, d)) @ rng.normal(size=(d, d)) + 5 * rng.normal(size=d)
    mask = rng.uniform(size=(n, d)) < np.linspace(low, high, d)
    mask[0] = True
    return jnp.asarray(np.where(mask, x, np.nan)), jnp.asarray(mask), jnp.asarray(rng.normal(size=(d, R))), x


def explicit_third(x, mask, weights=None):
    """The inverse-propensity tensor, entry by entry: one factor 1/p for each *different* index."""
    x, mask = np.asarray(x), np.asarray(mask)
    weights = np.full(len(x), 1 / len(x)) if weights is None else np.asarray(weights) / np.asarray(weights).sum()
    rates = weights @ mask
    mean = weights @ np.where(mask, x, 0) / rates
    rest = np.where(mask, x - mean, 0)
    third = np.zeros((x.shape[1],) * 3)
    for index in itertools.product(range(x.shape[1]), repeat=3):
        entry = weights @ (rest[:, index[0]] * rest[:, index[1]] * rest[:, index[2]])
        third[index] = entry / np.prod([rates[i] for i in set(index)])
    return third


def relative(value, reference):
    return float(np.max(np.abs(np.asarray(value) - reference)) / np.max(np.abs(reference)))
