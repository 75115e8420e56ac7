"""Mixtures of Gaussians for tests: random ones, draws from them, and their densities by brute force."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from latensor.models.gaussian_mixture import GaussianMixture
from latensor.models.gaussian_mixture.covariance import as_full
from tests.helpers import best_order, largest

D, K = 20, 5


def random_mixture(seed, d=D, k=K, variance=0.5, concentration=2.0):
    """By NumPy, as `draw`: what jax.random compiles for every shape takes longer than the test."""
    rng = np.random.default_rng(seed)
    weights, means = rng.dirichlet(np.full(k, concentration)), rng.normal(size=(d, k))
    return GaussianMixture(*(jnp.asarray(part, float) for part in (weights, means, variance)))


def draw(seed, params, num_samples):
    rng = np.random.default_rng(seed)
    weights, means = (np.asarray(leaf, np.float64) for leaf in params[:2])
    hidden = rng.choice(len(weights), num_samples, p=weights / weights.sum())
    roots = np.linalg.cholesky(np.asarray(as_full(params.variance, params.means), np.float64))
    x = means.T[hidden] + np.einsum("nij,nj->ni", roots[hidden], rng.normal(size=(num_samples, len(means))))
    return jnp.asarray(x, params.means.dtype)


def draw_mask(seed, rates, shape):
    return jnp.asarray(np.random.default_rng(seed).uniform(size=shape) < rates)


def worst_error(truth, params):
    truth, params = (jax.tree.map(np.asarray, each) for each in (truth, params))
    order = best_order(truth.means, params.means)
    return max(
        largest(truth.means - params.means[:, order]),
        largest(truth.weights - params.weights[order]),
        largest(truth.variance - (params.variance[..., order] if params.variance.ndim else params.variance)),
    )


def brute_force(params, x, mask):
    """Return `log P(h, observed x)` row by row."""
    joint = np.zeros((len(x), len(params.weights)))
    covariances = np.asarray(as_full(params.variance, params.means), np.float64)
    for n, h in itertools.product(range(len(x)), range(len(params.weights))):
        seen = mask[n]
        mean, part = np.asarray(params.means, np.float64)[seen, h], covariances[h][np.ix_(seen, seen)]
        density = stats.multivariate_normal.logpdf(x[n, seen], mean, part) if seen.any() else 0.0
        joint[n, h] = np.log(params.weights[h]) + density
    return joint
