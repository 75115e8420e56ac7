"""Variational inference and likelihood of the Gamma-Poisson model."""

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
from latensor.moments import Table
from tests.models.gamma_poisson_cases import draw, draw_mask, random_topics

ONE_TOPIC = GammaPoisson(np.array([[0.2], [0.3], [0.5]]), np.array([1.5]), np.array(0.2))


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


@pytest.mark.parametrize("masked", [True, False])
def test_steps_reach_what_updates_reach_and_never_fall(masked, float64):
    params = random_topics(0, d=12, k=4)
    x = draw(1, params, 200)
    table = Table(x, draw_mask(2, 0.6, x.shape) if masked else None)
    counts, rates = inference.observed_counts(table, jnp.float64), inference.posterior_rates(params, table)
    start = inference.start_gammas(params, counts, rates)
    plain = jax.jit(
        lambda start: jax.lax.fori_loop(0, 5000, lambda _, q: inference.update_gammas(params, counts, q), start)
    )(start)
    after = [
        gamma_poisson.posterior_intensities(params, table, tol=1e-11, max_iters=steps).shapes
        for steps in (0, 1, 2, 4, 5, 6, 7, 8, 10, 15, 30, 100)
    ]
    # Rows with several optima may end in another.
    assert np.mean(np.abs(after[-1] - plain.shapes).max(axis=1) < 1e-6) > 0.97
    bounds = [
        inference.evidence_bound(params, counts, inference.Gammas(shapes, rates), jnp.zeros(200)) for shapes in after
    ]
    assert np.all(np.diff(np.stack(bounds), axis=0) >= -1e-10 * np.abs(bounds[0])[None])


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


def test_a_start_is_blended_with_nothing_where_nothing_was_counted(precision):
    """Topics that sum to less than one would make rows without counts likelier."""
    params = GammaPoisson(np.array([[0.5, 0.2], [0.2, 0.8], [0.3, 0.0]]), np.array([1.0, 2.0]), np.array(0.1))
    refined = gamma_poisson.refine(params, np.zeros((3, 3), int), max_iters=0)
    np.testing.assert_allclose(refined.params.topics, params.topics, rtol=1e-6)


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


@pytest.mark.parametrize("shape", [None, 0.05])
def test_standard_error_is_that_of_repetition(shape, float64):
    params = random_topics(0, d=6, k=3)
    params = params if shape is None else params._replace(shapes=jnp.array([shape, 2 * shape, 1.0]))
    x = draw(1, params, 20)
    keys = jax.random.split(jax.random.key(2), 40)
    runs = jax.jit(jax.vmap(lambda key: gamma_poisson.estimate_log_likelihood(key, params, x)))(keys)
    spread, claimed = np.std(runs.value, axis=0), np.mean(runs.standard_error, axis=0)
    # A standard deviation of 40 runs is known to about 11 %; heavy tails make it worse.
    assert 0.6 < np.median(spread / claimed) < 1.6
