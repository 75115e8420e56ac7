import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status, matched_rmse
from latensor.models import DependentMissingnessWarning, gaussian_mixture
from latensor.models.gaussian_mixture import GaussianMixture, density
from latensor.moments import Table, cumulants, observation_rates
from tests.helpers import largest
from tests.models.gaussian_cases import D, K, brute_force, draw, draw_mask, random_mixture, worst_error


@pytest.fixture(scope="module")
def partial_table():
    """The model, and a table: the first eight dimensions complete, the others observed at rates from 0.3 to 0.9."""
    truth = random_mixture(0)
    x = draw(1, truth, 4000)
    mask = draw_mask(2, np.where(np.arange(D) < 8, 1.0, np.linspace(0.3, 0.9, D)), x.shape)
    return truth, Table(jnp.where(mask, x, jnp.nan), mask)


# Population moments: recovery without noise.
@pytest.mark.parametrize("method", ["power", "diagonalization"])
@pytest.mark.parametrize("weights", ["none", "spread", "partial"])
def test_population_moments_give_the_model_back(method, weights, precision):
    chosen = {"none": None, "spread": np.linspace(0.05, 1, D), "partial": (np.arange(D) < 8).astype(float)}[weights]
    if method == "diagonalization" and precision == "float32":
        pytest.skip("one method in float32 is enough")
    for seed in range(3):
        truth = random_mixture(seed)
        moments = gaussian_mixture.population_moments(truth)
        result = gaussian_mixture.fit_moments(
            jax.random.key(seed), moments, K, method=method, weights=chosen, shared=True
        )
        assert worst_error(truth, result.params) < (1e-7 if precision == "float64" else 2e-3)
        assert result.status == Status.CONVERGED


def test_as_many_components_as_dimensions(float64):
    truth = random_mixture(3, d=5, k=5)
    moments = gaussian_mixture.population_moments(truth)
    result = gaussian_mixture.fit_moments(jax.random.key(0), moments, 5, shared=True)
    # Five centred means span four directions: one eigenvalue of noise is left, and is the variance.
    assert worst_error(truth, result.params) < 1e-7


def test_population_moments_against_a_sample(float64):
    truth = random_mixture(0, d=4, k=2)
    estimate = cumulants(gaussian_mixture.sample(jax.random.key(0), truth, 400_000).x)
    exact = gaussian_mixture.population_moments(truth)
    # Standard errors at n = 400,000 are about 3e-3 for the second and 1e-2 for the third.
    np.testing.assert_allclose(estimate.mean, exact.mean, atol=0.01)
    np.testing.assert_allclose(estimate.second, exact.second, atol=0.02)
    np.testing.assert_allclose(estimate.third, exact.third, atol=0.08)


def test_a_variance_that_is_not_positive_is_moved_to_the_boundary(float64):
    exact = gaussian_mixture.population_moments(random_mixture(0))
    # Moments as of clusters without any noise, less a little.
    moments = exact._replace(second=exact.second - 0.6 * jnp.eye(D))
    result = gaussian_mixture.fit_moments(jax.random.key(0), moments, K)
    assert result.status == Status.BOUNDARY
    assert np.all(result.params.variance > 0)
    assert np.all(result.params.variance < 1e-10)
    assert result.diagnostics.whitening_status == result.diagnostics.decomposition_status == Status.CONVERGED


# Data.
def test_all_routes_of_fit_are_close_and_refine_is_closer(partial_table):
    truth, table = partial_table
    routes = {
        "default": {},
        "partial": {"missing": "partial"},
        "available": {"third": "available"},
        "implicit second": {"second": "implicit"},
    }
    for name, options in routes.items():
        result = gaussian_mixture.fit(jax.random.key(0), table, K, **options)
        # The errors are 0.046, for "partial" 0.090; the best estimator errs by about 0.03, guessing by 1.
        assert matched_rmse(truth.means, result.params.means) < (0.15 if name == "partial" else 0.08), name
        assert largest(result.params.variance - 0.5) < 0.1, name
        seen = result.diagnostics
        assert seen.dimensions.complete.tolist() == [True] * 8 + [False] * (D - 8)
        assert seen.unobserved_pairs == 0
        assert seen.unobserved_triples == (0 if name == "available" else None)
        if name != "partial":
            np.testing.assert_array_equal(seen.dimensions.weights, seen.dimensions.rates)
    refined = gaussian_mixture.refine(result.params, table)
    assert matched_rmse(truth.means, refined.params.means) < 0.04
    assert refined.status == Status.CONVERGED


def test_all_routes_of_fit_agree_on_complete_data(float64):
    x = draw(1, random_mixture(1), 1000)
    full = Table(x, jnp.ones(x.shape, bool))
    plain = gaussian_mixture.fit(jax.random.key(0), x, K)
    for options in ({}, {"third": "available"}):
        assert worst_error(plain.params, gaussian_mixture.fit(jax.random.key(0), full, K, **options).params) < 1e-8
    # σ² comes from a loose eigenvalue solver there.
    implicit = gaussian_mixture.fit(jax.random.key(0), full, K, second="implicit")
    assert worst_error(plain.params, implicit.params) < 1e-2


def test_no_dimension_needs_to_be_complete(partial_table):
    truth, table = partial_table
    mask = table.mask & draw_mask(5, 0.9, table.x.shape)
    result = gaussian_mixture.fit(jax.random.key(0), table.x, K, mask=mask)
    assert not result.diagnostics.dimensions.complete.any()
    assert largest(result.params.variance - 0.5) < 0.1
    assert matched_rmse(truth.means, result.params.means) < 0.1


def test_a_rate_from_which_a_dimension_counts_as_complete(partial_table):
    _, table = partial_table
    result = gaussian_mixture.fit(jax.random.key(0), table, K, missing="partial", complete_rate=0.6)
    dimensions = result.diagnostics.dimensions
    np.testing.assert_array_equal(dimensions.complete, dimensions.rates >= 0.6)
    np.testing.assert_array_equal(dimensions.weights, dimensions.complete.astype(float))


# Likelihood, posterior, EM.
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
    given = Table(given, jnp.asarray(mask) if masked else None)
    value = gaussian_mixture.log_likelihood(params, given)
    tolerance = 1e-10 if precision == "float64" else 2e-3
    np.testing.assert_allclose(value, np.logaddexp.reduce(joint, axis=1), rtol=tolerance, atol=tolerance)
    parts = gaussian_mixture.posterior(params, given)
    expected = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    np.testing.assert_allclose(parts, expected, atol=tolerance)


@pytest.mark.parametrize("masked", [True, False])
def test_em_is_monotone_and_its_optimum_is_stationary(masked, float64):
    truth = random_mixture(0, d=6, k=3)
    x = draw(1, truth, 300)
    table = Table(x, draw_mask(2, 0.6, x.shape) if masked else None)
    for start in (truth, random_mixture(5, d=6, k=3, variance=3.0), random_mixture(6, d=6, k=3, variance=0.01)):
        values = [float(jnp.mean(gaussian_mixture.log_likelihood(start, table)))]
        for steps in (1, 2, 3, 10, 100):
            result = gaussian_mixture.refine(start, table, max_iters=steps, tol=0.0)
            values.append(float(jnp.mean(gaussian_mixture.log_likelihood(result.params, table))))
            np.testing.assert_allclose(result.log_likelihood, values[-1], rtol=1e-12)
        assert np.all(np.diff(values) >= -1e-12 * abs(values[0])), values
    best = gaussian_mixture.refine(truth, table, max_iters=5000, tol=1e-14).params

    def value(means, log_variance):
        params = GaussianMixture(best.weights, means, jnp.exp(log_variance))
        return jnp.mean(gaussian_mixture.log_likelihood(params, table))

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


@pytest.mark.parametrize("shape", [(), (3,), (8, 3)])
@pytest.mark.parametrize("masked", [True, False])
def test_products_and_differences_agree_at_the_threshold(masked, shape):
    """Clusters farther and farther apart, in float32: products of squares, then differences, and never a gap."""
    base, used = random_mixture(0, d=8, k=3, variance=1.0), []
    for scale in (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 16.0, 100.0):
        params = base._replace(means=scale * base.means + 10 * scale, variance=jnp.ones(shape))
        x = draw(1, params, 60)
        mask = draw_mask(2, 0.7, x.shape) if masked else None
        table = Table(x, mask)
        used.append(bool(density.product_terms(params, table).is_accurate))
        exact, seen = np.asarray(x, float), np.ones(x.shape, bool) if mask is None else np.asarray(mask)
        joint = brute_force(params, exact, seen)
        value = np.logaddexp.reduce(joint, axis=1)
        # Rounding of the data, of size 10 · scale; and four bits of sums of eight squares.
        np.testing.assert_allclose(gaussian_mixture.log_likelihood(params, table), value, atol=2e-4 + 5e-5 * scale)
        parts = np.exp(joint - value[:, None])
        number = seen.T @ parts
        means = (seen * exact).T @ parts / number
        within = np.einsum("nd,nk,ndk->dk", seen, parts, (exact[:, :, None] - means[None]) ** 2)
        if len(shape) < 2:
            axis = (0, 1) if shape == () else 0
            within, number = within.sum(axis=axis), number.sum(axis=axis)
        step = gaussian_mixture.refine(params, table, max_iters=1, tol=0.0).params
        np.testing.assert_allclose(step.means, means, atol=2e-5 * (1 + scale))
        np.testing.assert_allclose(step.variance, within / number, rtol=1e-3)
    assert used[0]
    assert not used[-1]


# Missingness.
def test_dependent_missingness_is_warned_of(partial_table):
    _, table = partial_table
    together = draw_mask(0, 0.5, (table.num_rows, 1))
    mask = table.mask & ((jnp.arange(D) < 10)[None, :] | together)
    dependent = Table(table.x, mask)
    with pytest.warns(
        DependentMissingnessWarning, match='are observed together in .* Use third="available"; or refine'
    ):
        gaussian_mixture.fit(jax.random.key(0), dependent, K)
    with pytest.raises(ValueError, match=r'second: expected "auto" or "dense" with third="available"; got "implicit"'):
        gaussian_mixture.fit(jax.random.key(0), dependent, K, second="implicit", third="available")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gaussian_mixture.fit(jax.random.key(0), dependent, K, third="available")
        gaussian_mixture.fit(jax.random.key(0), dependent, K, missing="partial")
        gaussian_mixture.fit(jax.random.key(0), table, K)


def test_uneven_row_weights_are_no_dependence(partial_table):
    _, table = partial_table
    weights = np.random.default_rng(0).pareto(0.6, table.num_rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gaussian_mixture.fit(jax.random.key(0), table.x, K, mask=table.mask, row_weights=weights)


def test_a_dimension_never_observed_under_a_trace_is_a_status(partial_table):
    _, table = partial_table
    never = table._replace(mask=table.mask.at[:, 12].set(False))
    result = jax.jit(lambda table: gaussian_mixture.fit(jax.random.key(0), table, K))(never)
    assert result.status == Status.UNOBSERVED
    assert np.all(np.isfinite(result.params.means))


def test_triples_that_no_row_saw_give_numbers():
    truth = random_mixture(0, d=8, k=2)
    x = draw(1, truth, 400)
    rates = jnp.where(jnp.arange(8) < 5, 1.0, 0.05)

    def trial(key):
        mask = jax.random.bernoulli(key, rates[None, :], x.shape)
        return gaussian_mixture.fit(key, x, 2, mask=mask, third="available")

    result = jax.vmap(trial)(jax.random.split(jax.random.key(0), 5))
    assert int(jnp.max(result.diagnostics.unobserved_triples)) > 0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result.params))


# Transformations.
def test_thousand_trials_of_three_methods_in_one_vmap():
    rates = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.5, 0.8])

    def trial(key):
        key_means, key_x, key_mask, key_fit = jax.random.split(key, 4)
        truth = GaussianMixture(jnp.full(2, 0.5), jax.random.normal(key_means, (8, 2)), jnp.array(0.5))
        x = gaussian_mixture.sample(key_x, truth, 300).x
        mask = jax.random.bernoulli(key_mask, rates[None, :], x.shape)
        table = Table(x, mask)
        weights = jnp.stack([observation_rates(table), jnp.ones(8), jnp.floor(rates)])
        fits = jax.vmap(lambda w: gaussian_mixture.fit(key_fit, table, 2, weights=w).params.means)(weights)
        return jax.vmap(lambda means: matched_rmse(truth.means[:5], means[:5]))(fits)

    errors = jax.jit(jax.vmap(trial))(jax.random.split(jax.random.key(0), 1000))
    assert errors.shape == (1000, 3)
    assert np.all(np.isfinite(errors))
    weighted, full, part = np.median(errors, axis=0)
    assert weighted < min(full, part)
