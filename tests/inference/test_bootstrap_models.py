"""Bootstrap standard errors of models against the spread of their estimates over independent samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.inference import bootstrap
from latensor.inference._align import align_components
from latensor.inference._bootstrap import _Plan, _replicate
from latensor.inference._resample import as_resampled_rows
from latensor.models import gaussian_mixture, hidden_markov, naive_bayes
from latensor.moments import Documents, Sequences, Table
from tests.models.contract import lane

SAMPLES, REPLICATES, DATA_SETS = 200, 100, 8
# Standard errors, averaged over parameters, differ by up to 15 percent between data sets (sequences), the average of
# eight by 5; the standard deviation over 200 samples is known within 5. On average the margin is 15 percent, for single
# parameters 45.
ON_AVERAGE, EACH = 0.15, 0.45

GAUSSIANS = gaussian_mixture.GaussianMixture(
    np.array([0.6, 0.4]), np.array([[0.0, 3.0], [1.0, -1.0], [0.0, 2.0], [0.0, 0.0]]), np.array([1.0, 0.5])
)
TOPICS = naive_bayes.NaiveBayes(
    np.array([0.6, 0.4]), np.array([[0.4, 0.3, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.3, 0.4]]).T
)
CHAIN = hidden_markov.HiddenMarkov(
    np.array([0.6, 0.4]), np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]).T
)
FEW_STARTS = {"num_restarts": 5}
ONE_START = {"num_restarts": 5, "num_starts": 1}


def tables(keys, rates, row_weights):
    """Return samples of 1000 rows, all of the same shape: a mask and row weights, also where they say nothing."""

    def draw(key):
        key_x, key_mask = jax.random.split(key)
        x = gaussian_mixture.sample(key_x, GAUSSIANS, 1000).x
        return Table(x, jax.random.bernoulli(key_mask, rates[None, :], x.shape), row_weights)

    return jax.vmap(draw)(keys)


def documents(keys):
    return jax.vmap(lambda key: Documents(naive_bayes.sample(key, TOPICS, 1000, length=8).x))(keys)


def short_sequences(keys):
    x = jax.vmap(lambda key: hidden_markov.sample(key, CHAIN, 100, length=32).x)(keys)
    lengths = jnp.full((len(keys), 100), 32, jnp.int32)
    return jax.vmap(lambda x, lengths: Sequences(x, lengths, num_symbols=3))(x, lengths)


def blocks(keys):
    """Return long sequences in blocks of the same shape, from which `fit` is that of the whole: see below."""
    x = jax.vmap(lambda key: hidden_markov.sample(key, CHAIN, 1, length=3002).x[0])(keys)
    return jax.vmap(lambda x: as_resampled_rows(Sequences(x, num_symbols=3), 30))(x)


CASES = {
    "gaussian": (gaussian_mixture, GAUSSIANS, lambda keys: tables(keys, np.ones(4), np.ones(1000)), FEW_STARTS),
    "gaussian, masked and weighted": (
        gaussian_mixture,
        GAUSSIANS,
        lambda keys: tables(keys, np.array([0.7, 0.8, 0.9, 1.0]), np.linspace(0.5, 1, 1000)),
        FEW_STARTS,
    ),
    "documents": (naive_bayes, TOPICS, documents, FEW_STARTS),
    "short sequences": (hidden_markov, CHAIN, short_sequences, ONE_START),
    "one long sequence": (hidden_markov, CHAIN, blocks, ONE_START),
}


@functools.cache
def batch_fit(model, options):
    return jax.jit(jax.vmap(lambda key, data: model.fit(key, data, 2, **dict(options))))


@functools.cache
def fits(case):
    """Return estimates on independent samples, and these."""
    model, _, draw, options = CASES[case]
    keys = jax.random.split(jax.random.key(0), SAMPLES)
    data = jax.jit(draw)(keys)
    return batch_fit(model, tuple(options.items()))(keys, data), data


def log_ratios(params, others):
    return np.concatenate(
        [np.log(one / two).ravel() for one, two in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True)]
    )


def average(trees):
    return jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0), *trees)


def assert_errors_are_the_spread(model, truth, estimates, data, **keywords):
    aligned = align_components(model, jax.tree.map(jnp.asarray, truth), estimates.params)
    spread = jax.tree.map(lambda leaf: np.std(leaf, axis=0, ddof=1), aligned)
    errors = []
    for number in range(DATA_SETS):
        original = lane(estimates._replace(params=aligned), number)
        key, sample = jax.random.key(100 + number), jax.tree.map(jnp.asarray, lane(data, number))
        result = bootstrap(key, model, original, sample, REPLICATES, **keywords)
        assert result.num_failed <= 1
        errors.append(result.standard_errors)
    ratios = log_ratios(average(errors), spread)
    assert abs(ratios.mean()) < ON_AVERAGE
    assert np.abs(ratios).max() < EACH


@pytest.mark.parametrize("case", CASES)
def test_standard_errors_are_the_spread_over_samples(case, float64):
    model, truth, _, options = CASES[case]
    estimates, data = fits(case)
    assert np.mean(estimates.status == Status.CONVERGED) > 0.98
    assert_errors_are_the_spread(model, truth, estimates, data, options=options)


def test_a_long_sequence_in_blocks_has_the_estimate_of_the_whole(float64):
    x = hidden_markov.sample(jax.random.key(0), CHAIN, 1, length=3002).x[0]
    whole, cut = (
        hidden_markov.fit(jax.random.key(1), each, 2, **ONE_START).params
        for each in (x, as_resampled_rows(Sequences(x), 30))
    )
    np.testing.assert_allclose(cut.emission, whole.emission, atol=1e-6)
    np.testing.assert_allclose(cut.transition, whole.transition, atol=1e-6)


def even_weights(key, num_rows, dtype):
    return jnp.ones(num_rows, dtype)


def test_replicates_with_even_weights_are_the_estimate(precision):
    data = Documents(naive_bayes.sample(jax.random.key(0), jax.tree.map(jnp.asarray, TOPICS), 1000, length=8).x)
    original = naive_bayes.fit(jax.random.key(1), data, 2)
    plan = _Plan(naive_bayes, "fit", even_weights, (), 4, 2)
    replicates, statuses = _replicate(jax.random.key(2), original.params, data, {}, plan)
    assert np.all(statuses == Status.CONVERGED)
    assert replicates.word_probs.dtype == precision
    tolerance = 1e-6 if precision == "float64" else 2e-3
    for leaf, expected in zip(replicates, original.params, strict=True):
        np.testing.assert_allclose(leaf, np.broadcast_to(expected, leaf.shape), atol=tolerance)


def test_standard_errors_of_refined_estimates(float64):
    estimates, data = fits("documents")
    refined = jax.jit(jax.vmap(naive_bayes.refine))(estimates.params, data)
    assert np.all(refined.status == Status.CONVERGED)
    assert_errors_are_the_spread(naive_bayes, TOPICS, refined, data)
