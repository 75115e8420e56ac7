import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from latensor.decompose import Status, matched_rmse
from latensor.models import _gamma, gamma_poisson
from latensor.models.gamma_poisson import GammaPoisson
from latensor.moments import cumulants
from tests.helpers import best_order, largest, lowers

D, K = 20, 5


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


@pytest.fixture(scope="module")
def holes():
    truth = random_topics(0)
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
        truth = random_topics(seed)
        moments = gamma_poisson.population_moments(truth)
        result = gamma_poisson.fit_moments(jax.random.key(seed), moments, K, chosen, method)
        assert worst_error(truth, result.params) < (1e-7 if precision == "float64" else 5e-3)
        assert result.status == Status.CONVERGED
        assert result.params.topics.dtype == precision
        assert float(jnp.max(result.negative)) < 1e-3


def test_population_moments_against_a_sample(float64):
    truth = random_topics(0, d=4, k=2, rate=0.5)
    found = cumulants(gamma_poisson.sample(jax.random.key(0), truth, 100_000).x)
    exact = gamma_poisson.population_moments(truth)
    np.testing.assert_allclose(found.mean, exact.mean, rtol=0.02)
    # Standard errors at n = 100,000 are below 1.5 % of the largest second and 4.5 % of the largest third cumulant.
    np.testing.assert_allclose(found.second, exact.second, atol=0.03 * float(jnp.max(exact.second)))
    np.testing.assert_allclose(found.third, exact.third, atol=0.1 * float(jnp.max(exact.third)))


# Data.
def test_all_routes_of_fit_are_close(holes):
    truth, x, mask = holes
    for options in (
        {},
        {"third": "available"},
    ):
        result = gamma_poisson.fit(jax.random.key(0), x, K, mask, **options)
        # Entries are 0.05 on average; mixing two topics up errs by 0.07.
        assert matched_rmse(truth.topics, result.params.topics) < 0.035, options
        assert abs(float(result.params.rate) - 0.1) < 0.02
        np.testing.assert_allclose(result.params.topics.sum(axis=0), 1, rtol=1e-5)
        assert result.dimensions.complete.tolist() == [True] * 8 + [False] * (D - 8)


def test_integer_counts_and_row_weights(float64):
    # Of `refine`; the moments under `fit` are tested with weights in test_cumulants.
    truth = random_topics(0, d=6, k=3)
    x = draw(1, truth, 100)
    mask = draw_mask(2, 0.9, x.shape)
    # As many rows again as there are, the shape in which EM is compiled below.
    counts = np.random.default_rng(0).multinomial(100, np.full(100, 0.01))
    rows, weights = np.repeat(np.arange(100), counts), counts.astype(float)
    repeated = gamma_poisson.refine(truth, x[rows], mask[rows], max_iters=3).params
    weighted = gamma_poisson.refine(truth, x.astype(jnp.int32), mask, row_weights=weights, max_iters=3).params
    assert worst_error(repeated, weighted) < 1e-6


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
    q = _gamma.Intensities(jnp.asarray(shapes)[None], jnp.asarray(rates)[None])
    np.testing.assert_allclose(_gamma.evidence_bound(params, jnp.asarray(counts)[None], q)[0], bound, rtol=1e-10)


def mean_bound(params, x, mask):
    q = gamma_poisson.posterior(params, x, mask, tol=1e-10, max_iters=20_000)
    counts = _gamma.observed_counts(x, mask, params.topics.dtype)
    return float(jnp.mean(_gamma.evidence_bound(params, counts, _gamma.Intensities(q.shapes, q.rates))))


@pytest.mark.parametrize("masked", [True, False])
def test_bound_never_falls(masked, float64):
    truth = random_topics(0, d=6, k=3)
    x = draw(1, truth, 100)
    mask = draw_mask(2, 0.6, x.shape) if masked else None
    for start in (truth, random_topics(7, d=6, k=3, rate=3.0)):
        values = [mean_bound(start, x, mask)]
        for steps in (1, 2, 3, 10, 100):
            result = gamma_poisson.refine(start, x, mask, max_iters=steps, tol=0.0, smoothing=0.0)
            values.append(mean_bound(result.params, x, mask))
        assert np.all(np.diff(values) >= -1e-9 * abs(values[0])), values
        np.testing.assert_allclose(result.params.topics.sum(axis=0), 1, rtol=1e-10)
    assert result.status == Status.MAX_ITERS


def test_updates_of_topics_and_prior_are_optimal(float64):
    rng = np.random.default_rng(0)
    explained, exposure = jnp.asarray(rng.gamma(1.0, size=(6, 3))), jnp.asarray(rng.uniform(0.1, 3, (6, 3)))
    topics = jnp.full((6, 3), 1 / 6)
    updated = _gamma.update_topics(topics, explained, exposure)
    np.testing.assert_allclose(updated.sum(axis=0), 1, rtol=1e-12)
    # At the optimum `N/A − M` is the same for all entries of a column.
    slack = explained / updated - exposure
    np.testing.assert_allclose(slack, jnp.broadcast_to(slack[:1], slack.shape), rtol=1e-8)
    empty = _gamma.update_topics(topics, explained.at[:, 1].set(0), exposure)
    np.testing.assert_allclose(empty[:, 1], 1 / 6)
    np.testing.assert_allclose(
        special.digamma(_gamma.inverse_digamma(jnp.array([-50.0, -2.0, 0.1, 9.0]))), [-50, -2, 0.1, 9]
    )
    # From exact expectations of Gamma variables with one rate, the prior is found.
    shapes, rate = np.array([0.3, 2.0, 5.0]), 0.4
    found, update = jnp.ones(3), jax.jit(_gamma.update_prior)
    for _ in range(200):
        found, found_rate = update(
            found, jnp.asarray(special.digamma(shapes) - np.log(rate)), jnp.asarray(shapes / rate)
        )
    np.testing.assert_allclose(found, shapes, rtol=1e-3)
    np.testing.assert_allclose(found_rate, rate, rtol=1e-3)


@pytest.mark.parametrize(
    ("explained", "exposure"),
    [([1e-10, 0.5, 0.4], [0.1, 1.2, 1.1]), ([0.02, 0.5, 0.5], [2.0, 3.0, 4.0]), ([1.0, 2.0, 1.0], [20.0, 30.0, 40.0])],
)
def test_update_of_topics_where_newton_is_tempted(explained, exposure, precision):
    explained, exposure = jnp.array(explained)[:, None], jnp.array(exposure)[:, None]
    topics = _gamma.update_topics(jnp.ones((3, 1)) / 3, explained, exposure)
    assert float(jnp.min(topics)) > 0
    slack = explained / topics - exposure
    np.testing.assert_allclose(slack, jnp.broadcast_to(slack[1:2], (3, 1)), rtol=1e-3)


def test_zeros_in_all_topics_and_tiny_shapes_are_no_trap(precision):
    x = np.array([[1, 1, 4], [3, 0, 1], [0, 5, 200]])
    params = GammaPoisson(np.array([[0.5, 0.2], [0.5, 0.8], [0.0, 0.0]]), np.array([1.0, 1e-4]), np.array(0.1))
    refined = gamma_poisson.refine(params, x)
    value = gamma_poisson.log_likelihood(jax.random.key(0), params, x, num_samples=8)
    for leaf in jax.tree.leaves((refined, value, gamma_poisson.posterior(params, x))):
        assert np.all(np.isfinite(leaf))


def test_log_likelihood_where_topics_are_alike(float64):
    # Four equal topics: the length is negative binomial, the rest multinomial. Mean-field is at its worst here.
    params = GammaPoisson(jnp.full((4, 4), 0.25), jnp.full(4, 0.25), jnp.array(0.02))
    exact = stats.nbinom.logpmf(100, 1.0, 0.02 / 1.02) + stats.multinomial.logpmf([25] * 4, 100, [0.25] * 4)
    found = gamma_poisson.log_likelihood(jax.random.key(0), params, jnp.full((1, 4), 25.0), num_samples=2000)
    # The draws that matter are few, and the standard error of 0.1 is itself uncertain.
    assert abs(float(found.value[0]) - exact) < 0.6


def test_posterior_is_exact_for_one_topic(precision):
    # With one topic counts are Poisson given α: the posterior is Gamma(c + Σ x, b + Σ A), over what was observed.
    params = GammaPoisson(jnp.array([[0.2], [0.3], [0.5]]), jnp.array([1.5]), jnp.array(0.2))
    x = jnp.array([[1.0, 2.0, jnp.nan], [4.0, 0.0, 1.0], [jnp.nan, jnp.nan, jnp.nan]])
    found = gamma_poisson.posterior(params, x, ~jnp.isnan(x))
    np.testing.assert_allclose(found.shapes[:, 0], [4.5, 6.5, 1.5], rtol=1e-5)
    np.testing.assert_allclose(found.rates[:, 0], [0.7, 1.2, 0.2], rtol=1e-5)
    np.testing.assert_allclose(found.mean, found.shapes / found.rates)
    assert found.mean.dtype == precision


# Likelihood.
def test_log_likelihood_of_one_topic_in_closed_form(float64):
    params = GammaPoisson(jnp.array([[0.2], [0.3], [0.5]]), jnp.array([1.5]), jnp.array(0.2))
    x = np.array([[1.0, 2.0, 0.0], [4.0, 0.0, 1.0], [0.0, 9.0, 30.0]])
    mask = np.array([[True, True, False], [True] * 3, [True] * 3])
    expected = []
    for row, seen in zip(x, mask, strict=True):
        topic, counts = np.asarray(params.topics)[seen, 0], row[seen]
        c, b = 1.5, 0.2
        value = c * np.log(b) - special.gammaln(c) + special.gammaln(c + counts.sum())
        value -= (c + counts.sum()) * np.log(b + topic.sum())
        expected.append(value + np.sum(counts * np.log(topic) - special.gammaln(counts + 1)))
    found = gamma_poisson.log_likelihood(jax.random.key(0), params, x, mask, num_samples=4000)
    # The standard error is about 0.01; five of them.
    assert np.all(np.abs(np.asarray(found.value) - expected) < 5 * np.asarray(found.standard_error))
    assert float(jnp.max(found.standard_error)) < 0.03


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
    found = gamma_poisson.log_likelihood(jax.random.key(0), params, counts[None].astype(float), num_samples=5000)
    assert abs(float(found.value[0]) - math.log(exact)) < 5 * float(found.standard_error[0]) < 0.15


def test_standard_error_is_that_of_repetition(float64):
    params = random_topics(0, d=6, k=3)
    x = draw(1, params, 20)
    keys = jax.random.split(jax.random.key(2), 40)
    runs = jax.jit(jax.vmap(lambda key: gamma_poisson.log_likelihood(key, params, x, num_samples=200)))(keys)
    spread, claimed = np.std(runs.value, axis=0), np.mean(runs.standard_error, axis=0)
    # A standard deviation of 40 runs is known to about 11 %; heavy tails make it worse.
    assert 0.6 < np.median(spread / claimed) < 1.6


# Transformations.
def test_a_failed_lane_spoils_no_other(float64):
    x = draw(1, random_topics(0, d=6, k=2), 200)
    mask = draw_mask(2, 0.8, x.shape)
    lanes = jnp.stack([x, jnp.where(mask, jnp.nan, x)])
    batch = jax.vmap(lambda a: gamma_poisson.fit(jax.random.key(0), a, 2, mask))(lanes)
    assert batch.status[1] == Status.NON_FINITE
    assert all(np.all(np.isfinite(leaf[0])) for leaf in batch.params)


def test_float32_stays_float32_where_x64_is_enabled(float64):
    truth = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), random_topics(0, d=6, k=2))
    x = draw(0, truth, 100)
    mask = jnp.ones(x.shape, bool)
    fit = gamma_poisson.fit(jax.random.key(1), x, 2, mask, weights=np.ones(6))
    refined = gamma_poisson.refine(fit.params, x, mask, row_weights=jnp.ones(100))
    value = gamma_poisson.log_likelihood(jax.random.key(1), truth, x, mask, num_samples=5)
    outputs = (x, fit, refined, value, gamma_poisson.posterior(truth, x, mask))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(outputs)} == {"float32", "int32", "bool"}


def test_lowers_for_accelerators():
    key, params = jax.random.key(0), random_topics(0, d=6, k=2)
    x, mask = jnp.ones((9, 6)), jnp.ones((9, 6), bool)
    lowers(lambda k, a, m: gamma_poisson.fit(k, a, 2, m), key, x, mask)
    lowers(lambda k, a, m: gamma_poisson.fit(k, a, 2, m, second="implicit", third="available"), key, x, mask)
    lowers(lambda k, p: gamma_poisson.fit_moments(k, gamma_poisson.population_moments(p), 2), key, params)
    lowers(lambda k, p: gamma_poisson.sample(k, p, 5), key, params)
    lowers(gamma_poisson.posterior, params, x, mask)
    lowers(gamma_poisson.refine, params, x, mask)
    lowers(lambda k, p, a, m: gamma_poisson.log_likelihood(k, p, a, m, num_samples=3), key, params, x, mask)
