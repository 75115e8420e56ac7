import jax
import jax.numpy as jnp
import numpy as np

from latensor.moments import Table, joint_observation_rates, observation_rates
from latensor.moments.internal import centre
from tests.moments.tables import N, draw


def test_rates_are_exactly_one_where_nothing_is_missing(precision):
    mask = jnp.ones((1001, 3), bool).at[::7, 1].set(False)
    x, weights = jnp.zeros(mask.shape), jnp.linspace(0.1, 1, 1001)
    for row_weights in (None, weights):
        rates = observation_rates(Table(x, mask, row_weights))
        assert rates.dtype == precision
        assert rates[0] == rates[2] == 1.0
        assert rates[1] < 1
    np.testing.assert_allclose(observation_rates(Table(x, mask))[1], 1 - 143 / 1001, rtol=1e-5)
    np.testing.assert_allclose(joint_observation_rates(Table(x, mask))[0, 1], 1 - 143 / 1001, rtol=1e-5)


def test_rates_are_weighted_shares_of_rows(float64):
    x, mask, _, _ = draw(3)
    weights = np.random.default_rng(4).random(N)
    table, share = Table(x, mask, jnp.asarray(weights)), weights / weights.sum()
    seen = np.asarray(mask, float)
    np.testing.assert_allclose(observation_rates(table), share @ seen, rtol=1e-12)
    np.testing.assert_allclose(joint_observation_rates(table), (share[:, None] * seen).T @ seen, rtol=1e-12)


def test_rates_of_a_complete_table_are_one(precision):
    x = jnp.zeros((4, 3))
    np.testing.assert_array_equal(observation_rates(x), np.ones(3))
    np.testing.assert_array_equal(joint_observation_rates(x), np.ones((3, 3)))
    assert observation_rates(x).dtype == joint_observation_rates(x).dtype == precision


def test_not_a_number_among_weights_shows_in_the_moments():
    """Under a trace weights cannot be checked: they must not read as zero."""
    x, mask, _, _ = draw(n=20)
    weights = jnp.ones(20).at[3].set(jnp.nan)
    for seen in (None, mask):
        mean = jax.jit(lambda w, m=seen: centre(Table(jnp.where(mask, x, 0), m, w)).mean)(weights)
        assert np.all(np.isnan(np.asarray(mean)[np.asarray(mask[3])]))
