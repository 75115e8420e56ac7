"""Forward, backward and the likeliest path, against sums over all paths."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.models.hidden_markov.chain import Schedule, forward, forward_backward
from tests.models.chain_cases import (
    KINDS,
    LENGTHS,
    LONG,
    TIME,
    VERBS,
    K,
    answers,
    chain,
    end_to_end,
    enumerate_paths,
    model,
    observations,
    path_log_probability,
    ragged,
)

SCHEDULES = (Schedule(100, "known"), Schedule(16, "products"), Schedule(16, "overlap"))


@pytest.mark.parametrize("kind", KINDS)
def test_against_enumeration_in_both_layouts(kind, precision):
    params, x = model(kind), ragged(kind)
    value, posterior, path = answers(params, x, LENGTHS)
    flat_value, flat_posterior, flat_path = answers(params, end_to_end(x, LENGTHS), LENGTHS)
    assert value.dtype == posterior.dtype == path.log_probability.dtype == flat_value.dtype == precision
    tol = {"rtol": 1e-12, "atol": 1e-12} if precision == "float64" else {"rtol": 1e-5, "atol": 1e-5}
    for row, length in enumerate(LENGTHS):
        expected, states, _, best, best_value = enumerate_paths(params, x[row, :length])
        np.testing.assert_allclose(value[row], expected, **tol)
        np.testing.assert_allclose(posterior[row, :length], states, **tol)
        np.testing.assert_array_equal(posterior[row, length:], 0)
        np.testing.assert_allclose(path.log_probability[row], best_value, **tol)
        np.testing.assert_array_equal(path.states[row, :length], best)
        np.testing.assert_array_equal(path.states[row, length:], -1)
    np.testing.assert_allclose(flat_value, value, **tol)
    np.testing.assert_allclose(flat_posterior, end_to_end(posterior, LENGTHS), **tol)
    np.testing.assert_allclose(flat_path.log_probability, path.log_probability, **tol)
    np.testing.assert_array_equal(flat_path.states, end_to_end(path.states, LENGTHS))


def test_a_batch_equals_its_sequences_one_by_one(float64):
    params, x = model("symbols"), ragged("symbols")
    value, posterior, path = answers(params, x, LENGTHS)
    for row in (1, 4):
        length = LENGTHS[row]
        one_value, one_posterior, one_path = answers(params, x[row, :length])
        assert one_value.shape == (1,)
        np.testing.assert_allclose(one_value[0], value[row], rtol=1e-13)
        np.testing.assert_allclose(one_posterior, posterior[row, :length], atol=1e-14)
        np.testing.assert_allclose(one_path.log_probability[0], path.log_probability[row], rtol=1e-13)
        np.testing.assert_array_equal(one_path.states, path.states[row, :length])


def test_padding_does_not_decide_where_a_path_ends(float64):
    """State 1 is the likeliest; from state 0 steps that are not there would be likelier."""
    transition = jnp.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    params = HiddenMarkov(jnp.array([0.4, 0.6, 0.0]), transition, jnp.full((4, K), 0.25))
    path = jax.tree.map(np.asarray, hidden_markov.viterbi(params, np.zeros((5, TIME), int), lengths=np.ones(5, int)))
    np.testing.assert_allclose(path.log_probability, np.log(0.6 / 4), rtol=1e-12)
    np.testing.assert_array_equal(path.states[:, 0], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_values_do_not_matter(kind, float64):
    params, x = model(kind), ragged(kind)
    padding = np.arange(TIME) >= LENGTHS[:, None]
    expected = answers(params, x, LENGTHS)
    for value in (-1, 99) if kind == "symbols" else (np.nan, np.inf, 1e300):
        other = x.copy()
        other[padding] = value
        jax.tree.map(np.testing.assert_array_equal, answers(params, other, LENGTHS), expected)


def test_lanes_equal_one_pass(precision):
    one = chain(model("symbols"), observations("symbols", (100,)), LONG)
    weights = jnp.asarray(np.random.default_rng(2).uniform(size=100), float)
    sequential = forward_backward(one, weights, SCHEDULES[0])
    tol = {"rtol": 1e-11, "atol": 1e-12} if precision == "float64" else {"rtol": 1e-4, "atol": 1e-5}
    for schedule in SCHEDULES:
        smoothed = forward_backward(one, weights, schedule)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tol), smoothed, sequential)
        np.testing.assert_allclose(forward(one, schedule), sequential.log_scales, **tol)


@pytest.mark.parametrize("schedule", [Schedule(1_000, "known"), Schedule(4, "products"), Schedule(4, "overlap")])
def test_expected_pairs_against_enumeration(schedule, float64):
    params, x = model("reals"), ragged("reals")
    row_weights = np.array([1.0, 5.0, 0.25, 5.0, 2.0])
    weights = jnp.asarray(np.repeat(row_weights, LENGTHS))
    smoothed = forward_backward(chain(params, end_to_end(x, LENGTHS), LENGTHS), weights, schedule)
    expected = sum(
        weight * enumerate_paths(params, row[:length])[2]
        for row, length, weight in zip(x, LENGTHS, row_weights, strict=True)
    )
    np.testing.assert_allclose(smoothed.pairs, expected, atol=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_expected_pairs_add_up_to_the_steps(schedule, precision):
    one = chain(model("symbols"), observations("symbols", (100,)), LONG)
    smoothed = forward_backward(one, jnp.ones(100, float), schedule)
    np.testing.assert_allclose(np.sum(smoothed.pairs), np.maximum(LONG - 1, 0).sum(), rtol=1e-6)
    np.testing.assert_allclose(np.sum(smoothed.posterior, axis=1), 1, rtol=1e-6)


def test_the_forms_agree(float64):
    params, x, lengths = model("symbols"), observations("symbols", (2, 300)), np.array([300, 290])
    for verb in VERBS[:2]:
        sequential = verb(params, x, lengths=lengths, form="sequential")
        for form in ("overlapping", "associative", "auto"):
            np.testing.assert_allclose(verb(params, x, lengths=lengths, form=form), sequential, rtol=1e-11, atol=1e-12)


@functools.cache
def a_long_chain():
    """Return a model in float32, 200,000 symbols, and their log-likelihood in float64."""
    params, x = model("symbols", dtype=jnp.float32), observations("symbols", (200_000,))
    transition, table = np.asarray(params.transition, float), np.asarray(params.emission, float)
    state, scales = np.asarray(params.initial, float) * table[x[0]], []
    for row in table[x[1:]]:
        scales.append(state.sum())
        state = (state / scales[-1]) @ transition * row
    return params, x, np.log([*scales, state.sum()]).sum()


def test_a_long_chain_in_float32():
    params, x, expected = a_long_chain()
    np.testing.assert_allclose(hidden_markov.log_likelihood(params, x)[0], expected, rtol=1e-5)
    states = np.asarray(hidden_markov.posterior(params, x))
    assert np.all(states >= 0)
    np.testing.assert_allclose(states.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("form", ["sequential", "associative"])
def test_a_long_chain_in_other_forms(form):
    params, x, expected = a_long_chain()
    value = hidden_markov.log_likelihood(params, x, form=form)
    np.testing.assert_allclose(value[0], expected, rtol=1e-5)


def test_the_probability_of_a_path_is_that_of_its_states(precision):
    params, x = model("reals"), observations("reals", (100,))
    path = jax.tree.map(np.asarray, hidden_markov.viterbi(params, x))
    expected = path_log_probability(params, x, path.states)
    np.testing.assert_allclose(path.log_probability[0], expected, rtol=1e-12 if precision == "float64" else 1e-5)
    # No change of a single state makes the path likelier.
    for t, state in itertools.product(range(100), range(K)):
        other = np.where(np.arange(100) == t, state, path.states)
        assert path_log_probability(params, x, other) <= expected + (1e-9 if precision == "float64" else 1e-4)


@pytest.mark.parametrize(("k", "d"), [(3, 255), (3, 256), (257, 4)])
def test_likeliest_states_of_many_symbols_or_states(k, d):
    # Symbols and states are looked up as small integers; the sizes are those where one byte is just enough, or not.
    rng = np.random.default_rng([k, d])
    parts = rng.dirichlet(np.ones(k)), rng.dirichlet(np.ones(k), k), rng.dirichlet(np.ones(d), k).T
    x = np.concatenate([[d - 1, 0], rng.integers(0, d, 28)])
    x[5] = -1
    initial, transition, emission = (np.log(part) for part in parts)
    seen = np.where((x < 0)[:, None], 0, emission[x])
    score, before = initial + seen[0], []
    for step in seen[1:]:
        ways = score[:, None] + transition
        before.append(ways.argmax(axis=0))
        score = ways.max(axis=0) + step
    states = [score.argmax()]
    for ways in reversed(before):
        states.append(ways[states[-1]])
    path = hidden_markov.viterbi(HiddenMarkov(*(jnp.asarray(part) for part in parts)), x)
    np.testing.assert_array_equal(path.states, states[::-1])
    np.testing.assert_allclose(path.log_probability, score.max(), rtol=1e-5)
