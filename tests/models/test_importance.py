import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from latensor.models.importance import (
    Tents,
    draw_tents,
    fit_tents,
    importance_sample,
    mixture_log_density,
    tent_log_densities,
)

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


# Proposals.
def test_tents_are_drawn_from_their_density(precision):
    tents = Tents(*(jnp.asarray(part) for part in ([-3.0, 0.0, 2.0], [0.05, 1.0, 4.0], [2.0, 1.0, 0.5])))
    many = Tents(*(jnp.broadcast_to(part[:, None], (3, 20_000)) for part in tents))
    draws = np.asarray(draw_tents(jax.random.key(0), many))
    grid = np.linspace(-400, 400, 800_001)
    for h in range(3):
        one = Tents(*(jnp.asarray(float(part[h])) for part in tents))
        density = np.exp(np.asarray(tent_log_densities(one, jnp.asarray(grid)), np.float64))
        cumulative = np.cumsum(density) * (grid[1] - grid[0])
        np.testing.assert_allclose(cumulative[-1], 1, rtol=1e-3)
        # Kolmogorov and Smirnov: 1.95/√n is exceeded by one in a thousand.
        reached = np.interp(np.sort(draws[h]), grid, cumulative)
        assert np.abs(reached - (np.arange(20_000) + 0.5) / 20_000).max() < 1.95 / math.sqrt(20_000)


@pytest.mark.parametrize("second", [0.02, 0.5, 1.0, 7.0, 300.0, math.inf])
@pytest.mark.parametrize("first", [1e-3, 0.02, 0.09, 0.5, 1.0, 4.0, 30.0, 1000.0])
def test_weights_of_tents_are_bounded(first, second, float64):
    other = math.inf if math.isinf(second) else jnp.asarray(second)
    tents = fit_tents(jnp.asarray(first), other)
    assert float(tents.left) <= first
    assert float(tents.right) <= second
    # Where a tent has fallen by `exp(−60)` on either side; 2 million points.
    y = np.linspace(float(tents.peak - 60 / tents.left), float(tents.peak + 60 / tents.right), 2_000_001)
    if math.isinf(second):
        target = first * y - np.exp(np.minimum(y, 700)) - special.gammaln(first)
    else:
        target = first * y - (first + second) * np.logaddexp(0, y) - special.betaln(first, second)
    ratio = target - np.asarray(tent_log_densities(tents, jnp.asarray(y)))
    assert np.exp(ratio.max()) < 1.6
    assert np.sum(np.exp(target + ratio)) * (y[1] - y[0]) < 1.11


def test_draws_have_no_bias_and_honest_errors(precision):
    """`E[exp(−α)]` for Gamma(a, 1), also with shapes that are next to nothing, is `2^−a`."""
    shapes = jnp.asarray(np.repeat([0.01, 0.08, 0.7, 5.0], 100))

    def prepare(rows):
        tents = fit_tents(rows, math.inf)

        def draw(key, turn):
            y = draw_tents(key, tents)
            joint = rows * y - 2 * jnp.exp(y) - jax.scipy.special.gammaln(rows)
            return joint - tent_log_densities(tents, y)

        return draw

    estimate = importance_sample(
        jax.random.key(3), prepare, shapes, num_proposals=1, num_samples=1000, floats_per_row=100
    )
    score = (np.asarray(estimate.value) + np.asarray(shapes) * math.log(2)) / np.asarray(estimate.standard_error)
    # 400 rows: the mean of their scores has deviation 0.05, their own deviation one of 0.035.
    assert abs(score.mean()) < 0.2
    assert 0.85 < score.std() < 1.15
    assert np.abs(score).max() < 4.5
