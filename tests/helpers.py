"""What several test modules need."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from scipy.optimize import linear_sum_assignment

PLATFORMS = ("cuda", "tpu")


def orthogonal_tensor(seed, size, rank=None, low=1.0, high=3.0):
    """Return a tensor with orthonormal components, their values and vectors."""
    rng = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(rng.normal(size=(size, size)))
    vectors = vectors[:, : rank or size]
    values = np.sort(rng.uniform(low, high, vectors.shape[1]))[::-1]
    tensor = np.einsum("h,ih,jh,lh->ijl", values, vectors, vectors, vectors)
    return jnp.asarray(tensor), jnp.asarray(values), jnp.asarray(vectors)


def best_order(truth, estimate):
    """Assign columns to those of the truth; by SciPy, because every shape would compile again."""
    truth, estimate = np.asarray(truth), np.asarray(estimate)
    return linear_sum_assignment(np.sum((truth[:, :, None] - estimate[:, None, :]) ** 2, axis=0))[1]


def largest(difference):
    return float(np.max(np.abs(difference)))


def lowers(function, *arguments):
    """Export a function of arrays for the accelerators; raises if one of them cannot run it."""
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
    assert exported.platforms == PLATFORMS
