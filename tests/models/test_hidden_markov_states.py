"""The order of the states, and what `status` says of them."""

import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import hidden_markov
from latensor.models.hidden_markov.initial import FirstObservations, first_states
from tests.models.hidden_markov_cases import (
    KEY,
    TIME,
    D,
    K,
    N,
    as_model,
    assert_finite,
    assert_same,
    clear_model,
    draw,
    fit,
    in_order,
    occurrence,
    trials,
)


def test_states_come_in_decreasing_order_of_how_often_they_occur(float64):
    """Also of equal models with their states in another order, and where polishing changes which state is frequent."""
    moved = 0
    for _, _, (_, polished, plain) in trials():
        for estimate in (polished, plain):
            assert np.all(np.diff(occurrence(estimate.params)) < 0)
        # The states of the polished estimate, in the order of the spectral one that it began from.
        moved += not np.all(np.diff(occurrence(in_order(plain.params, polished.params))) < 0)
    assert moved > 0


def test_states_of_a_model_that_changes_with_time_are_in_the_order_of_windows(float64):
    """Sequences of three: the stationary distribution says little about windows."""
    emission = np.where(np.arange(D)[:, None] // 4 == np.arange(K), 0.2, 0.025)
    truth = as_model([0.9, 0.07, 0.03], [[0.1, 0.8, 0.1], [0.05, 0.15, 0.8], [0.2, 0.0, 0.8]], emission)
    params = hidden_markov.fit_moments(KEY, hidden_markov.population_moments(truth), K, num_starts=1).params
    steps = [np.asarray(truth.initial) @ np.linalg.matrix_power(np.asarray(truth.transition), t) for t in range(3)]
    expected = hidden_markov.permute(truth, np.argsort(-np.mean(steps, axis=0)))
    assert_same(params, expected, 1e-5)
    assert np.any(np.diff(occurrence(expected)) > 0)


def twins(which, d, k):
    """Return a model of which two states are the same, or look the same."""
    truth = clear_model(0, d, k)
    transition, emission = np.array(truth.transition), np.array(truth.emission)
    emission[:, 1] = emission[:, 0]
    if which == "states":
        transition[1] = transition[0]
    return as_model(truth.initial, transition, emission)


@pytest.mark.parametrize("which", ["states", "emissions"])
def test_states_that_are_the_same_are_noticed(which, float64):
    """In the diagnostics, where polishing tells them apart by the noise; in the status, where nothing does."""
    x = draw(twins(which, D, K), 0)
    moments = hidden_markov.population_moments(twins(which, 20, 5))
    exact = hidden_markov.fit_moments(KEY, moments, 5, polish=False, num_starts=1)
    for estimate in (fit(x, polish=False), exact):
        assert estimate.status == estimate.diagnostics.start_status >= Status.RANK_DEFICIENT
        assert_finite(estimate)
    polished = fit(x)
    assert polished.diagnostics.start_status >= Status.RANK_DEFICIENT
    assert polished.status < Status.RANK_DEFICIENT
    assert_finite(polished)


def test_returned_states_that_look_the_same_are_told(float64):
    """One symbol alone, or one vector: EM has nothing to do and converges, to states that are the same."""
    for x in (np.zeros((N, TIME), int), np.full((N, TIME, 2), 0.5)):
        estimate = fit(x)
        assert estimate.status == Status.RANK_DEFICIENT
        assert_finite(estimate)


def test_status_of_a_polished_fit_is_that_of_polishing_and_of_its_gain(float64):
    x = draw(clear_model(0), 0)
    clear, few = fit(x), fit(x, row_weights=(np.arange(N) < 2).astype(float))
    assert clear.status == clear.diagnostics.start_status == Status.CONVERGED
    # 200 symbols: three states are not clear of the noise; EM on their triples still converges, to what is no likelier.
    assert few.diagnostics.start_status == Status.RANK_DEFICIENT
    assert few.diagnostics.spectrum.values[-1] < 1.25 * few.diagnostics.spectrum.noise
    assert few.status == Status.POOR_FIT
    assert few.diagnostics.evidence.gain < 2.5 * few.diagnostics.evidence.gain_error
    # The iterations are those of the step that the estimate is from.
    assert clear.num_iters != fit(x, polish=False).num_iters


def test_few_sequences_say_little_about_the_first_state(float64):
    """EM on first symbols, with two more sequences whose first states are as in a window."""
    truth = clear_model(0)
    prior, emission = np.asarray(truth.initial), np.asarray(truth.emission)
    for counts in (np.zeros(D), np.eye(D)[3], np.random.default_rng(0).uniform(0, 30, D)):
        expected = prior
        for _ in range(50):
            joint = emission * expected
            expected = (counts @ (joint / joint.sum(axis=1, keepdims=True)) + 2 * prior) / (counts.sum() + 2)
        found = first_states(truth, FirstObservations(jnp.arange(D), jnp.asarray(counts)))
        np.testing.assert_allclose(found, expected, atol=1e-12)
