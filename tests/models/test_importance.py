import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from latensor.models.importance import importance_sample, mixture_log_density

WIDTHS = (1.0, 3.0)


def prepare(rows):
    """`z ~ Normal(0, 1)`, `x | z ~ Normal(z, 1)`: the posterior of `z` is Normal(x/2, 1/2), and `x` Normal(0, 2)."""

    def draw(key, turn):
        scale = jnp.asarray(WIDTHS)[turn]
        z = rows / 2 + scale * jax.random.normal(key, rows.shape, rows.dtype)
        proposals = jnp.stack([jax.scipy.stats.norm.logpdf(z, rows / 2, width) for width in WIDTHS])
        joint = jax.scipy.stats.norm.logpdf(z) + jax.scipy.stats.norm.logpdf(rows, z)
        return joint - mixture_log_density(proposals)

    return draw


def test_values_errors_and_blocks(precision):
    x = jnp.asarray(np.tile([-2.0, 0.5, 3.0], 40))
    # Blocks of seven rows, the last of one.
    estimate = importance_sample(
        jax.random.key(0), prepare, x, num_proposals=2, num_samples=500, floats_per_row=(1 << 20) // 7
    )
    error = np.asarray(estimate.value) - stats.norm.logpdf(x, 0, np.sqrt(2))
    claimed = np.asarray(estimate.standard_error)
    assert claimed.max() < 0.1
    assert np.all(np.abs(error) < 4.5 * claimed)
    # Every row has its own random numbers, also where the same value comes again in another block.
    assert len(np.unique(np.asarray(estimate.value))) == 120
    assert 0.8 < np.std(error / claimed) < 1.2


def test_impossible_draws_count_as_zero(float64):
    def prepare(rows):
        return lambda key, turn: jnp.where(turn == 0, 0.0, -jnp.inf) * jnp.ones_like(rows)

    estimate = importance_sample(
        jax.random.key(0), prepare, jnp.ones(2), num_proposals=2, num_samples=8, floats_per_row=1
    )
    np.testing.assert_allclose(estimate.value, np.log(0.5))
    # Eight ratios, four of them zero: standard deviation 1.07 of the mean, over √8.
    np.testing.assert_allclose(estimate.standard_error, np.sqrt(8 / (8 * 7)))
