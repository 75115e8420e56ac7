import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import gamma_poisson
from latensor.moments import Moments, Table, cumulants
from latensor.moments.internal import gamma_poisson_cumulants
from tests.helpers import best_order, largest
from tests.models.gamma_poisson_cases import D, K, draw, draw_mask, random_topics


def worst_error(truth, params):
    truth, params = (jax.tree.map(np.asarray, each) for each in (truth, params))
    order = best_order(truth.topics, params.topics)
    return max(
        largest(truth.topics - params.topics[:, order]),
        largest(truth.shapes - params.shapes[order]),
        largest(truth.rate - params.rate),
    )


# Population moments: recovery without noise.
@pytest.mark.parametrize("method", ["power", "diagonalization"])
@pytest.mark.parametrize("weights", ["none", "spread", "partial"])
def test_population_moments_give_the_model_back(method, weights, precision):
    d, k = 20, 5
    chosen = {"none": None, "spread": np.linspace(0.05, 1, d), "partial": (np.arange(d) < 8).astype(float)}[weights]
    if method == "diagonalization" and precision == "float32":
        pytest.skip("one method in float32 is enough")
    for seed in range(3):
        truth = random_topics(seed, d, k)
        moments = gamma_poisson.population_moments(truth)
        result = gamma_poisson.fit_moments(jax.random.key(seed), moments, k, method=method, weights=chosen)
        assert worst_error(truth, result.params) < (1e-7 if precision == "float64" else 5e-3)
        assert result.status == Status.CONVERGED
        assert float(jnp.max(result.diagnostics.negative)) < 1e-3


def test_population_moments_against_a_sample(float64):
    truth = random_topics(0, d=4, k=2, rate=0.5)
    estimate = cumulants(gamma_poisson.sample(jax.random.key(0), truth, 100_000).x)
    exact = gamma_poisson.population_moments(truth)
    np.testing.assert_allclose(estimate.mean, exact.mean, rtol=0.02)
    # Standard errors at n = 100,000 are below 1.5 % of the largest second and 4.5 % of the largest third cumulant.
    np.testing.assert_allclose(estimate.second, exact.second, atol=0.03 * float(jnp.max(exact.second)))
    np.testing.assert_allclose(estimate.third, exact.third, atol=0.1 * float(jnp.max(exact.third)))


def test_samples_with_a_key_that_jax_refuses_for_poisson():
    truth = random_topics(0, d=4, k=2, rate=0.5)
    x = gamma_poisson.sample(jax.random.key(0, impl="rbg"), truth, 2000).x
    # The row sums have mean 5 and variance 15: four standard errors.
    assert abs(float(jnp.mean(jnp.sum(x, axis=1))) - 5) < 4 * math.sqrt(15 / 2000)


def test_a_negative_mean_intensity_is_moved_to_the_boundary(float64):
    topics = np.asarray(random_topics(0).topics)
    # Means of the intensities that are possible for estimates, not for a model.
    means, shapes = np.array([-1.0, 8.0, 12.0]), np.linspace(0.5, 2, K)
    moments = Moments(
        topics @ means,
        np.einsum("h,ih,jh->ij", shapes / 0.1**2, topics, topics),
        np.einsum("h,ih,jh,lh->ijl", 2 * shapes / 0.1**3, topics, topics, topics),
    )
    moments = gamma_poisson_cumulants(jax.tree.map(jnp.asarray, moments))
    result = gamma_poisson.fit_moments(jax.random.key(0), moments, K)
    assert result.status == Status.BOUNDARY
    assert result.diagnostics.whitening_status == result.diagnostics.decomposition_status == Status.CONVERGED
    # A thousandth of the others.
    np.testing.assert_allclose(result.params.shapes / result.params.rate, [12, 8, 0.02], rtol=1e-6)
    np.testing.assert_allclose(result.params.topics, topics[:, ::-1], atol=1e-7)


def test_what_was_cut_off_is_told_of_each_topic(float64):
    """The topic of the smallest intensity, which comes last, has an entry below zero."""
    topics = np.array(random_topics(0).topics)
    topics[:2, 0] += (-0.05 - topics[0, 0]) * np.array([1, -1])
    shapes = np.linspace(0.5, 2, K)
    moments = Moments(
        topics @ shapes / 0.1,
        np.einsum("h,ih,jh->ij", shapes / 0.1**2, topics, topics),
        np.einsum("h,ih,jh,lh->ijl", 2 * shapes / 0.1**3, topics, topics, topics),
    )
    moments = gamma_poisson_cumulants(jax.tree.map(jnp.asarray, moments))
    result = gamma_poisson.fit_moments(jax.random.key(0), moments, K)
    np.testing.assert_allclose(result.diagnostics.negative, [0, 0, 0.05], atol=1e-7)


# Data.
def test_all_routes_of_fit_agree_on_complete_counts(float64):
    x = draw(1, random_topics(1), 2000)
    table = Table(x, jnp.ones(x.shape, bool))
    plain = gamma_poisson.fit(jax.random.key(0), x, K)
    routes = [
        gamma_poisson.fit(jax.random.key(0), x.astype(jnp.int32), K),
        gamma_poisson.fit(jax.random.key(0), x, K, second="implicit"),
        gamma_poisson.fit(jax.random.key(0), table, K),
        gamma_poisson.fit(jax.random.key(0), table, K, third="available"),
    ]
    for result in routes:
        # The eigenvectors of the implicit second moment are found to the square root of the machine epsilon.
        assert worst_error(plain.params, result.params) < 1e-6
        assert result.status == Status.CONVERGED


def test_all_routes_of_fit_are_close_to_the_truth_under_a_mask():
    truth = random_topics(0)
    x = draw(1, truth, 20_000)
    mask = draw_mask(2, np.where(np.arange(D) < 5, 1.0, np.linspace(0.3, 0.9, D)), x.shape)
    table = Table(jnp.where(mask, x, jnp.nan), mask)
    rates, routes = np.asarray(jnp.mean(mask, axis=0)), []
    weights = {"weighted": rates, "full": np.ones(D), "partial": (np.arange(D) < 5).astype(float)}
    for options in (
        {},
        {"missing": "full"},
        {"missing": "partial"},
        {"third": "available"},
        {"second": "implicit"},
        {"second": "implicit", "missing": "partial"},
    ):
        result = gamma_poisson.fit(jax.random.key(0), table, K, **options)
        order = best_order(truth.topics, result.params.topics)
        error = np.asarray(result.params.topics)[:, order] - np.asarray(truth.topics)
        # Entries are 0.083 on average, and the errors of each route are 0.004.
        assert np.sqrt(np.mean(error**2)) < 0.008, options
        assert abs(float(result.params.rate) - 0.1) < 0.008
        np.testing.assert_allclose(result.params.topics.sum(axis=0), 1, rtol=1e-5)
        seen = result.diagnostics
        assert seen.dimensions.complete.tolist() == [True] * 5 + [False] * (D - 5)
        assert seen.unobserved_pairs == 0
        assert seen.unobserved_triples == (0 if "third" in options else None)
        np.testing.assert_allclose(seen.dimensions.weights, weights[options.get("missing", "weighted")], rtol=1e-5)
        routes.append((options, np.asarray(result.params.topics)[:, order]))
    # Estimates of different routes differ by much more than rounding. Only pairs with a complete dimension matter to
    # "partial", and of these both second moments are the same.
    for (one, a), (other, b) in itertools.combinations(routes, 2):
        if one.get("missing") == other.get("missing") == "partial":
            assert largest(a - b) < 1e-5
        else:
            assert largest(a - b) > 1e-4, (one, other)
