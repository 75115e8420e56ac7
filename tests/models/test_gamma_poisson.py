import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from latensor.decompose import Status
from latensor.models import gamma_poisson
from latensor.models.gamma_poisson import GammaPoisson, em, inference
from latensor.moments import Moments, Table, cumulants
from latensor.moments.internal import gamma_poisson_cumulants
from tests.helpers import best_order, largest

D, K = 12, 3
ONE_TOPIC = GammaPoisson(np.array([[0.2], [0.3], [0.5]]), np.array([1.5]), np.array(0.2))


def random_topics(seed, d=D, k=K, rate=0.1):
    topics = np.random.default_rng(seed).dirichlet(np.full(d, 0.5), k).T
    return GammaPoisson(*(jnp.asarray(part, float) for part in (topics, np.linspace(0.5, 2, k), rate)))


def draw(seed, params, num_samples):
    """Counts by NumPy, as the topics: what jax.random compiles for every shape takes longer than the test."""
    rng = np.random.default_rng(seed)
    topics, shapes, rate = (np.asarray(leaf, np.float64) for leaf in params)
    intensity = rng.gamma(shapes, 1 / rate, (num_samples, len(shapes)))
    return jnp.asarray(rng.poisson(intensity @ topics.T), params.topics.dtype)


def draw_mask(seed, rates, shape):
    return jnp.asarray(np.random.default_rng(seed).uniform(size=shape) < rates)


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


# Data.
def test_all_routes_of_fit_agree_on_complete_counts(float64):
    x = draw(1, random_topics(1), 2000)
    table = Table(x, jnp.ones(x.shape, bool))
    plain = gamma_poisson.fit(jax.random.key(0), x, K)
    routes = [
        gamma_poisson.fit(jax.random.key(0), x.astype(jnp.int32), K),
        gamma_poisson.fit(jax.random.key(0), x, K, second="implicit"),
        gamma_poisson.fit(jax.random.key(0), table, K),
        gamma_poisson.fit(jax.random.key(0), table, K, second="implicit", third="available"),
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
        assert seen.unobserved_pairs == (None if "second" in options else 0)
        assert seen.unobserved_triples == (0 if "third" in options else None)


# Variational inference.
def test_bound_against_its_definition(float64):
    """`E_q[log p(x, z, α) − log q(z, α)]`, term by term, for one row and arbitrary `q(α)`."""
    params = random_topics(0, d=3, k=2)
    counts = np.array([2.0, 0.0, 3.0])
    shapes = np.array([1.3, 2.1])
    rates = np.asarray(params.rate) + np.asarray(params.topics).sum(axis=0)
    log_mean, mean = special.digamma(shapes) - np.log(rates), shapes / rates
    topics = np.asarray(params.topics)
    share = topics * np.exp(log_mean)
    share /= share.sum(axis=1, keepdims=True)
    bound = 0.0
    for d, h in itertools.product(range(3), range(2)):
        # Σ z log(A α) − A α − log z! and the multinomial's own log-probability, whose factorials cancel.
        bound += counts[d] * share[d, h] * (np.log(topics[d, h]) + log_mean[h] - np.log(share[d, h]))
        bound -= topics[d, h] * mean[h]
    bound -= special.gammaln(counts + 1).sum()
    for h in range(2):
        c, b = float(params.shapes[h]), float(params.rate)
        bound += c * np.log(b) - special.gammaln(c) + (c - 1) * log_mean[h] - b * mean[h]
        bound += stats.gamma.entropy(shapes[h], scale=1 / rates[h])
    q = inference.Gammas(jnp.asarray(shapes)[None], jnp.asarray(rates)[None])
    rows = jnp.asarray(counts)[None]
    value = inference.evidence_bound(params, rows, q, inference.log_factorials(rows))
    np.testing.assert_allclose(value[0], bound, rtol=1e-10)


def mean_bound(params, table):
    """Return the mean bound of a row with the best `q`."""
    q = gamma_poisson.posterior_intensities(params, table, tol=1e-10, max_iters=20_000)
    counts = inference.observed_counts(table, params.topics.dtype)
    factorials = inference.log_factorials(counts)
    return float(jnp.mean(inference.evidence_bound(params, counts, inference.Gammas(q.shapes, q.rates), factorials)))


@pytest.mark.parametrize("masked", [True, False])
def test_bound_never_falls(masked, float64):
    truth = random_topics(0, d=6, k=3)
    x = draw(1, truth, 100)
    table = Table(x, draw_mask(2, 0.6, x.shape) if masked else None)
    for start in (truth, random_topics(7, d=6, k=3, rate=3.0)):
        best, reported = [mean_bound(start, table)], []
        for steps in (1, 2, 3, 10, 100):
            result = gamma_poisson.refine(start, table, max_iters=steps, tol=0.0, smoothing=0.0)
            best.append(mean_bound(result.params, table))
            reported.append(float(result.log_likelihood))
        slack = 1e-9 * abs(best[0])
        assert np.all(np.diff(best) >= -slack), best
        assert np.all(np.diff(reported) >= -slack), reported
        # What is reported is of the returned parameters, with `q` as EM left it.
        assert np.all(np.array(reported) <= np.array(best[1:]) + slack)
        assert best[-1] - reported[-1] < 1e-3
        np.testing.assert_allclose(result.params.topics.sum(axis=0), 1, rtol=1e-10)
    assert result.status == Status.MAX_ITERS


def test_updates_of_topics_and_prior_are_optimal(float64):
    rng = np.random.default_rng(0)
    explained, exposure = jnp.asarray(rng.gamma(1.0, size=(6, 3))), jnp.asarray(rng.uniform(0.1, 3, (6, 3)))
    topics = jnp.full((6, 3), 1 / 6)
    updated = em.update_topics(topics, explained, exposure)
    np.testing.assert_allclose(updated.sum(axis=0), 1, rtol=1e-12)
    # At the optimum `N/A − M` is the same for all entries of a column.
    slack = explained / updated - exposure
    np.testing.assert_allclose(slack, jnp.broadcast_to(slack[:1], slack.shape), rtol=1e-8)
    empty = em.update_topics(topics, explained.at[:, 1].set(0), exposure)
    np.testing.assert_allclose(empty[:, 1], 1 / 6)
    np.testing.assert_allclose(
        special.digamma(em.inverse_digamma(jnp.array([-50.0, -2.0, 0.1, 9.0]))), [-50, -2, 0.1, 9]
    )
    # From exact expectations of Gamma variables with one rate, the prior is found.
    shapes, rate = np.array([0.3, 2.0, 5.0]), 0.4
    log_mean, mean = jnp.asarray(special.digamma(shapes) - np.log(rate)), jnp.asarray(shapes / rate)
    estimate, update = jnp.ones(3), jax.jit(em.update_prior)
    for _ in range(200):
        estimate, estimated_rate = update(estimate, log_mean, mean)
    np.testing.assert_allclose(estimate, shapes, rtol=1e-3)
    np.testing.assert_allclose(estimated_rate, rate, rtol=1e-3)


@pytest.mark.parametrize(
    ("explained", "exposure"),
    [([1e-10, 0.5, 0.4], [0.1, 1.2, 1.1]), ([0.02, 0.5, 0.5], [2.0, 3.0, 4.0]), ([1.0, 2.0, 1.0], [20.0, 30.0, 40.0])],
)
def test_update_of_topics_where_newton_is_tempted(explained, exposure, precision):
    explained, exposure = jnp.array(explained)[:, None], jnp.array(exposure)[:, None]
    topics = em.update_topics(jnp.ones((3, 1)) / 3, explained, exposure)
    assert float(jnp.min(topics)) > 0
    slack = explained / topics - exposure
    np.testing.assert_allclose(slack, jnp.broadcast_to(slack[1:2], (3, 1)), rtol=1e-3)


def test_zeros_in_all_topics_and_tiny_shapes_are_no_trap(precision):
    x = np.array([[1, 1, 4], [3, 0, 1], [0, 5, 200]])
    params = GammaPoisson(np.array([[0.5, 0.2], [0.5, 0.8], [0.0, 0.0]]), np.array([1.0, 1e-4]), np.array(0.1))
    results = [
        gamma_poisson.refine(params, x),
        gamma_poisson.estimate_log_likelihood(jax.random.key(0), params, x, num_samples=8),
        gamma_poisson.posterior_intensities(params, x),
    ]
    for leaf in jax.tree.leaves(results):
        assert np.all(np.isfinite(leaf))


def test_posterior_is_exact_for_one_topic(precision):
    # With one topic counts are Poisson given α: the posterior is Gamma(c + Σ x, b + Σ A), over what was observed.
    x = np.array([[1.0, 2.0, np.nan], [4.0, 0.0, 1.0], [np.nan, np.nan, np.nan]])
    result = gamma_poisson.posterior_intensities(ONE_TOPIC, x, mask=~np.isnan(x))
    np.testing.assert_allclose(result.shapes[:, 0], [4.5, 6.5, 1.5], rtol=1e-5)
    np.testing.assert_allclose(result.rates[:, 0], [0.7, 1.2, 0.2], rtol=1e-5)
    np.testing.assert_allclose(result.mean, result.shapes / result.rates)


def test_posterior_is_the_share_of_the_mean_intensities(float64):
    params = random_topics(0, d=6, k=3)
    x = draw(1, params, 100)
    mean = gamma_poisson.posterior_intensities(params, x).mean
    np.testing.assert_allclose(gamma_poisson.posterior(params, x), mean / jnp.sum(mean, axis=1, keepdims=True))


# Likelihood.
def test_log_likelihood_of_one_topic_in_closed_form(float64):
    x = np.array([[1.0, 2.0, 0.0], [4.0, 0.0, 1.0], [0.0, 9.0, 30.0]])
    mask = np.array([[True, True, False], [True] * 3, [True] * 3])
    expected = []
    for row, seen in zip(x, mask, strict=True):
        topic, counts = ONE_TOPIC.topics[seen, 0], row[seen]
        c, b = 1.5, 0.2
        value = c * np.log(b) - special.gammaln(c) + special.gammaln(c + counts.sum())
        value -= (c + counts.sum()) * np.log(b + topic.sum())
        expected.append(value + np.sum(counts * np.log(topic) - special.gammaln(counts + 1)))
    estimate = gamma_poisson.estimate_log_likelihood(jax.random.key(0), ONE_TOPIC, x, mask=mask, num_samples=4000)
    # The standard error is about 0.01; five of them.
    assert np.all(np.abs(np.asarray(estimate.value) - expected) < 5 * np.asarray(estimate.standard_error))
    assert float(jnp.max(estimate.standard_error)) < 0.03


def test_log_likelihood_of_two_topics_by_quadrature(float64):
    params = GammaPoisson(jnp.array([[0.7, 0.1], [0.3, 0.9]]), jnp.array([1.2, 0.8]), jnp.array(0.5))
    counts = np.array([2, 1])
    topics = np.asarray(params.topics)

    def density(a, b):
        value = a * b
        for alpha, shape in ((a, 1.2), (b, 0.8)):
            value = value * stats.gamma.pdf(alpha, shape, scale=1 / float(params.rate))
        for count, topic in zip(counts, topics, strict=True):
            value = value * stats.poisson.pmf(count, topic[0] * a + topic[1] * b)
        return value

    # Midpoints of a logarithmic grid: `density · a · b` is smooth, and 300 points give six digits.
    log_edges = np.linspace(-14, 4.5, 301)
    points = np.exp((log_edges[1:] + log_edges[:-1]) / 2)
    exact = np.sum(density(points[:, None], points[None, :])) * (log_edges[1] - log_edges[0]) ** 2
    x = counts[None].astype(float)
    estimate = gamma_poisson.estimate_log_likelihood(jax.random.key(0), params, x, num_samples=5000)
    assert abs(float(estimate.value[0]) - math.log(exact)) < 5 * float(estimate.standard_error[0]) < 0.15


def test_log_likelihood_where_topics_are_alike(float64):
    # Four equal topics: the length is negative binomial, the rest multinomial. Mean-field is at its worst here.
    params = GammaPoisson(jnp.full((4, 4), 0.25), jnp.full(4, 0.25), jnp.array(0.02))
    exact = stats.nbinom.logpmf(100, 1.0, 0.02 / 1.02) + stats.multinomial.logpmf([25] * 4, 100, [0.25] * 4)
    value = gamma_poisson.log_likelihood(params, jnp.full((1, 4), 25.0), key=jax.random.key(0), num_samples=2000)
    # The draws that matter are few, and the standard error of 0.1 is itself uncertain.
    assert abs(float(value[0]) - exact) < 0.6


def test_standard_error_is_that_of_repetition(float64):
    params = random_topics(0, d=6, k=3)
    x = draw(1, params, 20)
    keys = jax.random.split(jax.random.key(2), 40)
    runs = jax.jit(jax.vmap(lambda key: gamma_poisson.estimate_log_likelihood(key, params, x)))(keys)
    spread, claimed = np.std(runs.value, axis=0), np.mean(runs.standard_error, axis=0)
    # A standard deviation of 40 runs is known to about 11 %; heavy tails make it worse.
    assert 0.6 < np.median(spread / claimed) < 1.6
