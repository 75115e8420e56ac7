import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from latensor.decompose import Status, matched_rmse
from latensor.models import DependentMissingnessWarning, gaussian_mixture
from latensor.models.gaussian_mixture import GaussianMixture
from latensor.moments import cumulants, observation_rates
from tests.helpers import best_order, largest, lowers

D, K = 20, 5


def random_mixture(seed, d=D, k=K, variance=0.5, concentration=2.0):
    """By NumPy, as `draw`: what jax.random compiles for every shape takes longer than the test."""
    rng = np.random.default_rng(seed)
    weights, means = rng.dirichlet(np.full(k, concentration)), rng.normal(size=(d, k))
    return GaussianMixture(*(jnp.asarray(part, float) for part in (weights, means, variance)))


def draw(seed, params, num_samples):
    rng = np.random.default_rng(seed)
    weights, means, variance = (np.asarray(leaf, np.float64) for leaf in params)
    hidden = rng.choice(len(weights), num_samples, p=weights / weights.sum())
    x = means.T[hidden] + np.sqrt(variance) * rng.normal(size=(num_samples, len(means)))
    return jnp.asarray(x, params.means.dtype)


def draw_mask(seed, rates, shape):
    return jnp.asarray(np.random.default_rng(seed).uniform(size=shape) < rates)


def worst_error(truth, params):
    truth, params = (jax.tree.map(np.asarray, each) for each in (truth, params))
    order = best_order(truth.means, params.means)
    return max(
        largest(truth.means - params.means[:, order]),
        largest(truth.weights - params.weights[order]),
        largest(truth.variance - params.variance),
    )


@pytest.fixture(scope="module")
def holes():
    """A table with holes: the first eight dimensions complete, the others observed at rates from 0.3 to 0.9."""
    truth = random_mixture(0)
    x = draw(1, truth, 4000)
    mask = draw_mask(2, np.where(np.arange(D) < 8, 1.0, np.linspace(0.3, 0.9, D)), x.shape)
    return truth, jnp.where(mask, x, jnp.nan), mask


# Population moments: recovery without noise.
@pytest.mark.parametrize("method", ["power", "diagonalization"])
@pytest.mark.parametrize("weights", ["none", "spread", "partial"])
def test_population_moments_give_the_model_back(method, weights, precision):
    chosen = {"none": None, "spread": jnp.linspace(0.05, 1, D), "partial": (jnp.arange(D) < 8).astype(float)}[weights]
    if method == "diagonalization" and precision == "float32":
        pytest.skip("one method in float32 is enough")
    for seed in range(3):
        truth = random_mixture(seed)
        moments = gaussian_mixture.population_moments(truth)
        result = gaussian_mixture.fit_moments(jax.random.key(seed), moments, K, chosen, method)
        assert worst_error(truth, result.params) < (1e-7 if precision == "float64" else 2e-3)
        assert result.status == Status.CONVERGED
        assert result.params.means.dtype == precision


def test_as_many_components_as_dimensions(float64):
    truth = random_mixture(3, d=5, k=5)
    result = gaussian_mixture.fit_moments(jax.random.key(0), gaussian_mixture.population_moments(truth), 5)
    # Five centred means span four directions: one eigenvalue of noise is left, and is the variance.
    assert worst_error(truth, result.params) < 1e-7


def test_population_moments_against_a_sample(float64):
    truth = random_mixture(0, d=4, k=2)
    found = cumulants(gaussian_mixture.sample(jax.random.key(0), truth, 400_000).x)
    exact = gaussian_mixture.population_moments(truth)
    # Standard errors at n = 400,000 are about 3e-3 for the second and 1e-2 for the third.
    np.testing.assert_allclose(found.mean, exact.mean, atol=0.01)
    np.testing.assert_allclose(found.second, exact.second, atol=0.02)
    np.testing.assert_allclose(found.third, exact.third, atol=0.08)


# Data.
def test_all_routes_of_fit_are_close_and_refine_is_closer(holes):
    truth, x, mask = holes
    routes = {
        "default": {},
        "partial": {"missing": "partial"},
        "available": {"third": "available"},
        "implicit second": {"second": "implicit"},
    }
    for name, options in routes.items():
        result = gaussian_mixture.fit(jax.random.key(0), x, K, mask, **options)
        error = float(matched_rmse(truth.means, result.params.means))
        # Entries of the means have a standard error of about 0.03 for the best estimator; guessing errs by 1.
        assert error < (0.45 if name == "partial" else 0.3), (name, error)
        assert abs(float(result.params.variance) - 0.5) < 0.05
        assert result.dimensions.complete.tolist() == [True] * 8 + [False] * (D - 8)
        assert result.unobserved_pairs == (-1 if name == "implicit second" else 0)
        assert result.unobserved_triples == (0 if name == "available" else -1)
    weights = gaussian_mixture.fit(jax.random.key(0), x, K, mask).dimensions
    np.testing.assert_array_equal(weights.weights, weights.rates)
    refined = gaussian_mixture.refine(result.params, x, mask)
    assert matched_rmse(truth.means, refined.params.means) < 0.06
    assert refined.status == Status.CONVERGED


def test_without_a_mask_and_with_a_full_one(float64):
    truth = random_mixture(1)
    x = draw(1, truth, 1000)
    plain = gaussian_mixture.fit(jax.random.key(0), x, K)
    full = gaussian_mixture.fit(jax.random.key(0), x, K, jnp.ones(x.shape, bool))
    assert worst_error(plain.params, full.params) < 1e-8
    # Both whiten by the same matrix; σ² from a loose eigenvalue solver differs a little.
    implicit = gaussian_mixture.fit(jax.random.key(0), x, K, second="implicit")
    assert worst_error(plain.params, implicit.params) < 1e-2


def test_no_dimension_needs_to_be_complete(holes):
    truth, x, _ = holes
    mask = ~jnp.isnan(x) & draw_mask(5, 0.9, x.shape)
    result = gaussian_mixture.fit(jax.random.key(0), x, K, mask)
    assert not result.dimensions.complete.any()
    assert abs(float(result.params.variance) - 0.5) < 0.1
    assert matched_rmse(truth.means, result.params.means) < 0.4


def test_a_rate_from_which_a_dimension_counts_as_complete(holes):
    _, x, mask = holes
    result = gaussian_mixture.fit(jax.random.key(0), x, K, mask, "partial", complete_rate=0.6)
    np.testing.assert_array_equal(result.dimensions.complete, result.dimensions.rates >= 0.6)
    np.testing.assert_array_equal(result.dimensions.weights, result.dimensions.complete.astype(float))


def test_row_weights_are_repetitions(float64):
    # As many rows again as there are, the shape in which EM is compiled below.
    truth = random_mixture(0, d=6, k=3)
    x = draw(1, truth, 300)
    mask = draw_mask(2, 0.9, x.shape)
    counts = np.random.default_rng(0).multinomial(300, np.full(300, 1 / 300))
    rows = np.repeat(np.arange(300), counts)
    repeated = gaussian_mixture.refine(truth, x[rows], mask[rows], max_iters=5).params
    weighted = gaussian_mixture.refine(truth, x, mask, row_weights=counts.astype(float), max_iters=5).params
    assert worst_error(repeated, weighted) < 1e-7


# Likelihood, posterior, EM.
def brute_force(params, x, mask):
    joint = np.zeros((len(x), len(params.weights)))
    for n, h in itertools.product(range(len(x)), range(len(params.weights))):
        seen = mask[n]
        terms = stats.norm.logpdf(x[n, seen], np.asarray(params.means)[seen, h], np.sqrt(params.variance))
        joint[n, h] = np.log(params.weights[h]) + terms.sum()
    return joint


@pytest.mark.parametrize("masked", [True, False])
def test_log_likelihood_and_posterior_against_scipy(masked, precision):
    params = random_mixture(0, d=4, k=3)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4)) * 2 + 100
    params = params._replace(means=params.means + 100)
    mask = rng.uniform(size=x.shape) < 0.6 if masked else np.ones(x.shape, bool)
    mask[0] = not masked  # one row without a single observation
    joint = brute_force(params, x, mask)
    given = jnp.asarray(np.where(mask, x, np.nan), params.means.dtype)
    value = gaussian_mixture.log_likelihood(params, given, jnp.asarray(mask) if masked else None)
    tolerance = 1e-10 if precision == "float64" else 2e-3
    np.testing.assert_allclose(value, np.logaddexp.reduce(joint, axis=1), rtol=tolerance, atol=tolerance)
    parts = gaussian_mixture.posterior(params, given, jnp.asarray(mask) if masked else None)
    expected = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    np.testing.assert_allclose(parts, expected, atol=tolerance)
    assert value.dtype == parts.dtype == precision


@pytest.mark.parametrize("masked", [True, False])
def test_em_is_monotone_and_its_optimum_is_stationary(masked, float64):
    truth = random_mixture(0, d=6, k=3)
    x = draw(1, truth, 300)
    mask = draw_mask(2, 0.6, x.shape) if masked else None
    for start in (truth, random_mixture(5, d=6, k=3, variance=3.0), random_mixture(6, d=6, k=3, variance=0.01)):
        values = [float(jnp.mean(gaussian_mixture.log_likelihood(start, x, mask)))]
        for steps in (1, 2, 3, 10, 100):
            result = gaussian_mixture.refine(start, x, mask, max_iters=steps, tol=0.0)
            values.append(float(jnp.mean(gaussian_mixture.log_likelihood(result.params, x, mask))))
        assert np.all(np.diff(values) >= -1e-12 * abs(values[0])), values
    best = gaussian_mixture.refine(truth, x, mask, max_iters=5000, tol=1e-14).params

    def value(means, log_variance):
        params = GaussianMixture(best.weights, means, jnp.exp(log_variance))
        return jnp.mean(gaussian_mixture.log_likelihood(params, x, mask))

    gradient = jax.grad(value, argnums=(0, 1))(best.means, jnp.log(best.variance))
    assert max(float(jnp.max(jnp.abs(part))) for part in gradient) < 1e-5


def test_em_on_a_component_that_owns_nothing(precision):
    params = GaussianMixture(jnp.array([1.0, 0.0]), jnp.array([[0.0, 50.0], [0.0, 50.0]]), jnp.array(1.0))
    x = jnp.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    result = gaussian_mixture.refine(params, x)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result))
    same = gaussian_mixture.refine(params, jnp.ones((3, 2)))  # no variance at all
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(same))


def test_likelihood_of_clusters_that_are_far_apart_in_float32():
    means = 1000 * random_mixture(0, d=10, k=4).means
    params = GaussianMixture(jnp.full(4, 0.25), means, jnp.array(1.0))
    x = draw(1, params, 50)
    value = gaussian_mixture.log_likelihood(params, x)
    expected = np.logaddexp.reduce(brute_force(params, np.asarray(x, float), np.ones(x.shape, bool)), axis=1)
    np.testing.assert_allclose(value, expected, atol=0.01)


# Missingness.
def test_dependent_missingness_is_warned_of(holes):
    _, x, _ = holes
    together = draw_mask(0, 0.5, (x.shape[0], 1))
    mask = ~jnp.isnan(x) & ((jnp.arange(D) < 10)[None, :] | together)
    with pytest.warns(DependentMissingnessWarning, match='are observed together in .* Use third="available"'):
        gaussian_mixture.fit(jax.random.key(0), x, K, mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gaussian_mixture.fit(jax.random.key(0), x, K, mask, third="available")
        gaussian_mixture.fit(jax.random.key(0), x, K, mask, "partial")
        gaussian_mixture.fit(jax.random.key(0), x, K, ~jnp.isnan(x))


def test_uneven_row_weights_are_no_dependence(holes):
    _, x, mask = holes
    weights = np.random.default_rng(0).pareto(0.6, x.shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gaussian_mixture.fit(jax.random.key(0), x, K, mask, row_weights=weights)


def test_a_dimension_never_observed_under_a_trace_is_a_status(holes):
    _, x, mask = holes
    result = jax.jit(lambda a, m: gaussian_mixture.fit(jax.random.key(0), a, K, m))(x, mask.at[:, 12].set(False))
    assert result.status >= Status.DEGENERATE
    assert np.all(np.isfinite(result.params.means))


def test_triples_that_no_row_saw_give_numbers():
    truth = random_mixture(0, d=8, k=2)
    x = draw(1, truth, 400)
    rates = jnp.where(jnp.arange(8) < 5, 1.0, 0.05)

    def trial(key):
        mask = jax.random.bernoulli(key, rates[None, :], x.shape)
        return gaussian_mixture.fit(key, x, 2, mask, third="available")

    result = jax.vmap(trial)(jax.random.split(jax.random.key(0), 5))
    assert int(jnp.max(result.unobserved_triples)) > 0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result.params))


# Transformations.
def test_thousand_trials_of_three_methods_in_one_vmap():
    rates = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.5, 0.8])

    def trial(key):
        key_means, key_x, key_mask, key_fit = jax.random.split(key, 4)
        truth = GaussianMixture(jnp.full(2, 0.5), jax.random.normal(key_means, (8, 2)), jnp.array(0.5))
        x = gaussian_mixture.sample(key_x, truth, 300).x
        mask = jax.random.bernoulli(key_mask, rates[None, :], x.shape)
        weights = jnp.stack([observation_rates(mask), jnp.ones(8), jnp.floor(rates)])
        fits = jax.vmap(lambda w: gaussian_mixture.fit(key_fit, x, 2, mask, weights=w).params.means)(weights)
        return jax.vmap(lambda means: matched_rmse(truth.means[:5], means[:5]))(fits)

    errors = jax.jit(jax.vmap(trial))(jax.random.split(jax.random.key(0), 1000))
    assert errors.shape == (1000, 3)
    assert np.all(np.isfinite(errors))
    weighted, full, part = np.median(errors, axis=0)
    assert weighted < min(full, part)


def test_vmap_equals_loop_and_a_failed_lane_spoils_no_other(float64):
    x = draw(1, random_mixture(0, d=6, k=2), 200)
    mask = draw_mask(2, 0.8, x.shape)
    lanes = jnp.stack([x, jnp.where(mask, jnp.nan, x), 2 * x])
    batch = jax.vmap(lambda a: gaussian_mixture.fit(jax.random.key(0), a, 2, mask))(lanes)
    assert batch.status[1] == Status.NON_FINITE
    for i in (0, 2):
        single = gaussian_mixture.fit(jax.random.key(0), lanes[i], 2, mask)
        np.testing.assert_allclose(batch.params.means[i], single.params.means, atol=1e-8)
        assert batch.status[i] == single.status


def test_float32_stays_float32_where_x64_is_enabled(float64):
    truth = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), random_mixture(0, d=6, k=2))
    x = gaussian_mixture.sample(jax.random.key(0), truth, 100).x
    mask = jnp.ones(x.shape, bool)
    moments = gaussian_mixture.fit(jax.random.key(1), x, 2, mask, weights=np.ones(6))
    refined = gaussian_mixture.refine(moments.params, x, mask, row_weights=jnp.ones(100))
    outputs = (x, moments, refined, gaussian_mixture.posterior(truth, x, mask))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(outputs)} == {"float32", "int32", "bool"}


def test_lowers_for_accelerators():
    key, params = jax.random.key(0), random_mixture(0, d=6, k=2)
    x, mask = jnp.ones((9, 6)), jnp.ones((9, 6), bool)
    for second, third in (("dense", "implicit"), ("implicit", "available")):
        lowers(lambda k, a, m, s=second, t=third: gaussian_mixture.fit(k, a, 2, m, second=s, third=t), key, x, mask)
    lowers(lambda k, a: gaussian_mixture.fit(k, a, 2, second="implicit"), key, x)
    lowers(lambda k, p: gaussian_mixture.fit_moments(k, gaussian_mixture.population_moments(p), 2), key, params)
    lowers(lambda k, p: gaussian_mixture.sample(k, p, 5), key, params)
    for verb in (gaussian_mixture.log_likelihood, gaussian_mixture.posterior, gaussian_mixture.refine):
        lowers(verb, params, x, mask)
        lowers(verb, params, x)
