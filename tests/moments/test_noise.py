import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose.internal import noise_space, noise_space_operator
from latensor.moments import Table, cumulants
from latensor.moments.internal import NoiseDirections, centre, contract_cumulants, trace_noise

D = 4


def directions_of_noise(included):
    rng = np.random.default_rng(0)
    signal = np.zeros((D, 1))
    chosen = np.flatnonzero(included)
    signal[chosen, 0] = rng.normal(size=len(chosen))
    signal /= np.linalg.norm(signal)
    return NoiseDirections(jnp.asarray(included), jnp.asarray(signal), jnp.asarray(len(chosen) - 1.0))


def by_hand(x, weights, noise, directions):
    centred = x - np.average(x, axis=0, weights=weights)
    size = np.einsum("ni,ij,nj->n", centred, np.asarray(noise.dense()), centred) / float(noise.number)
    return np.average(centred * size[:, None], axis=0, weights=weights) @ directions


@pytest.mark.parametrize("method", ["implicit", "available"])
def test_complete_data_against_the_definition(method, float64):
    rng = np.random.default_rng(1)
    x, weights, directions = rng.gamma(1.0, size=(50, D)), rng.uniform(0.5, 1, 50), rng.normal(size=(D, 2))
    noise = directions_of_noise(np.array([True, True, True, False]))
    expected = by_hand(x, weights, noise, directions)
    for mask in (None, np.ones(x.shape, bool)):
        table = Table(x, mask, weights)
        seen = contract_cumulants(centre(table), jnp.asarray(directions), method, noise=noise)
        np.testing.assert_allclose(seen.noise, expected, rtol=1e-10)
    dense = trace_noise(cumulants(table).third, jnp.asarray(directions), noise)
    np.testing.assert_allclose(dense, expected, rtol=1e-10)


@pytest.mark.parametrize("included", [[True, True, False, False], [True, True, True, True]], ids=str)
def test_entries_that_are_missing_independently(included, float64):
    """Every row with every pattern, weighted by its probability: missing exactly independently, so exact in the sum."""
    rng = np.random.default_rng(2)
    x, directions = rng.gamma(1.0, size=(12, D)), rng.normal(size=(D, 2))
    rates = np.array([1.0, 1.0, 0.4, 0.8]) if not included[2] else np.array([0.9, 0.7, 0.4, 0.8])
    patterns = np.array(list(itertools.product([False, True], repeat=D)))
    chances = np.prod(np.where(patterns, rates, 1 - rates), axis=1)
    table = Table(np.repeat(x, len(patterns), axis=0), np.tile(patterns, (len(x), 1)), np.tile(chances, len(x)))
    noise = directions_of_noise(np.array(included))
    seen = contract_cumulants(centre(table), jnp.asarray(directions), "implicit", noise=noise)
    np.testing.assert_allclose(seen.noise, by_hand(x, np.ones(12), noise, directions), rtol=1e-9)


def test_the_signal_of_a_covariance_is_what_the_noise_leaves(float64):
    rng = np.random.default_rng(3)
    factors = rng.normal(size=(6, 2))
    second = jnp.asarray(factors @ factors.T + 0.5 * np.eye(6))
    included = jnp.asarray([True, True, True, False, True, True])
    space = noise_space(second, 2, included)
    kept = np.where(np.asarray(included)[:, None], factors, 0)
    projection = kept @ np.linalg.pinv(kept)
    np.testing.assert_allclose(space.signal @ space.signal.T, projection, atol=1e-10)
    np.testing.assert_allclose(space.variance, 0.5, rtol=1e-10)
    assert space.number == 3
    other = noise_space_operator(jax.random.key(0), lambda v: second @ v, jnp.diagonal(second), 2, included)
    # An iterative solver of loose tolerance.
    np.testing.assert_allclose(other.signal @ other.signal.T, projection, atol=1e-2)
    assert other.number == 3
