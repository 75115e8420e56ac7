import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import noise_variance
from latensor.decompose.internal import noise_space_operator
from tests.helpers import lowers


def covariance(seed=0, d=8, k=3, variance=0.7):
    means = np.random.default_rng(seed).normal(size=(d, k))
    means -= means.mean(axis=1, keepdims=True)
    return jnp.asarray(means @ means.T + variance * np.eye(d))


@pytest.mark.parametrize("scale", [1.0, 1e-10, 1e10])
@pytest.mark.parametrize("count", [3, 4, 6, 8])
def test_exact_covariances_give_the_variance(count, scale, float64):
    # Three components: two directions of signal; with three dimensions one eigenvalue of noise is left.
    second = scale * covariance()
    included = jnp.asarray(np.random.default_rng(1).permutation(8) < count)
    np.testing.assert_allclose(noise_variance(second, 3, included), 0.7 * scale, rtol=1e-9)
    variance = noise_space_operator(jax.random.key(0), lambda v: second @ v, jnp.diag(second), 3, included).variance
    np.testing.assert_allclose(variance, 0.7 * scale, rtol=1e-3)


def test_it_is_the_mean_of_the_smallest_eigenvalues(float64):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(50, 8))
    second = jnp.asarray(rows.T @ rows / 50)
    included = np.arange(8) < 6
    expected = np.linalg.eigvalsh(np.asarray(second)[:6, :6])[:4].mean()
    np.testing.assert_allclose(noise_variance(second, 2, jnp.asarray(included)), expected, rtol=1e-10)
    # A covariance from partial data may have negative eigenvalues; they come first all the same.
    shifted = second - 0.5 * jnp.eye(8)
    np.testing.assert_allclose(noise_variance(shifted, 2, jnp.asarray(included)), expected - 0.5, rtol=1e-8)


def test_lowers_and_vmaps():
    second = covariance().astype(jnp.float32)
    lowers(lambda s: noise_variance(s, 3), second)
    both = jax.vmap(lambda s: noise_variance(s, 3))(jnp.stack([second, 2 * second]))
    np.testing.assert_allclose(both, [0.7, 1.4], rtol=1e-4)
