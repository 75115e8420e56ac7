"""Chains with zero probabilities, outliers and missing observations."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.models.hidden_markov.chain import Schedule, forward_backward
from tests.helpers import lowers
from tests.models.chain_cases import (
    KINDS,
    LENGTHS,
    LONG,
    TIME,
    VERBS,
    K,
    answers,
    chain,
    emissions,
    end_to_end,
    enumerate_paths,
    model,
    observations,
    ragged,
)


# Probabilities that are zero.
def left_to_right():
    """States 0, 1, 2 one after the other, each with its own symbol; symbol 3 comes from none."""
    transition = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    return HiddenMarkov(jnp.array([1.0, 0.0, 0.0]), transition, jnp.asarray(np.eye(4, 3), float))


# Sequences, how many of their symbols no state emits, and how many of their steps are impossible.
IMPOSSIBLE = {
    (0, 1, 2, 2, 2, 2): (0, 0),
    (0, 3, 2, 2, 2, 2): (1, 0),
    (3, 3, 3, 3, 3, 3): (6, 0),
    (0, 2, 2, 2, 2, 2): (0, 1),
    (1, 2, 2, 2, 2, 2): (0, 1),
}


def test_what_is_impossible_has_the_documented_cost(precision):
    params, x = left_to_right(), np.array(list(IMPOSSIBLE))
    symbol, step = (708.396, 460.517) if precision == "float64" else (87.3365, 69.0776)
    expected = [-symbol * symbols - step * steps for symbols, steps in IMPOSSIBLE.values()]
    lengths = np.full(5, TIME)
    value, posterior, path = answers(params, x, lengths)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5 * step)
    np.testing.assert_allclose(path.log_probability, expected, rtol=1e-5, atol=1e-5 * step)
    np.testing.assert_array_equal(path.states[[0, 1, 3, 4]], np.where(x == 3, 1, x)[[0, 1, 3, 4]])
    # What is certain is: the other states have the floor's share at most.
    np.testing.assert_allclose(posterior[[0, 1, 3, 4]], np.eye(3)[path.states[[0, 1, 3, 4]]], atol=1e-6)
    np.testing.assert_allclose(posterior.sum(axis=2), 1, rtol=1e-6)


def test_a_path_is_never_likelier_than_its_sequence(precision):
    params = left_to_right()
    x = np.array([[2, 1, 0, 2, 3, 1], [0, 1, 2, 1, 0, 0], [1, 0, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0], [2, 2, 2, 0, 1, 2]])
    value, _, path = answers(params, x, np.full(5, TIME))
    assert np.all(np.isfinite(value))
    assert np.all(path.log_probability <= value + 1e-3)


def test_impossible_steps_at_the_end_of_a_lane(precision):
    x = np.tile([0, 2, 1, 3, 0, 1, 1, 2, 3, 3], 10)
    one, everything = chain(left_to_right(), x, LONG), jnp.ones(100, float)
    sequential = forward_backward(one, everything, Schedule(100, "known"))
    for leaf in jax.tree.leaves(sequential):
        assert np.all(np.isfinite(leaf))
    tol = 1e-9 if precision == "float64" else 1e-4
    for schedule in (Schedule(16, "products"), Schedule(16, "overlap")):
        smoothed = forward_backward(one, everything, schedule)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tol, atol=tol), smoothed, sequential)


def on_a_line(transition, places, variance):
    """Return a model of vectors whose states lie on the diagonal of the plane; it begins in any of them."""
    parts = np.full(3, 1 / 3), transition, [places] * 2, np.full((2, 3), variance)
    return HiddenMarkov(*(jnp.asarray(part, float) for part in parts))


def rows_on_a_line(*rows):
    """Return vectors on the diagonal, padded to the shape of the other tests, and their lengths."""
    x = np.zeros((len(LENGTHS), TIME, 2))
    for place, row in enumerate(rows):
        x[place, : len(row)] = np.array(row)[:, None]
    return x, np.array([len(row) for row in rows] + [0] * (len(LENGTHS) - len(rows)))


def test_observations_far_from_every_state(precision):
    params = on_a_line(np.eye(3), [-1.0, 1.0, 0.0], 1e-4)
    value, posterior, path = answers(params, *rows_on_a_line([-1.0, -1.0, 1.0, 1e3, -1e3, 0.0]))
    assert np.isfinite(value[0])
    assert np.isfinite(path.log_probability[0])
    np.testing.assert_allclose(posterior[0], np.eye(3)[[0, 0, 1, 1, 0, 2]], atol=1e-5)
    np.testing.assert_array_equal(path.states[0], [0, 0, 1, 1, 0, 2])


def test_an_outlier_spoils_no_other_sequence(precision):
    params = on_a_line(np.full((3, 3), 1 / 3), [-1.0, 1.0, 0.0], 0.5)
    rows = [[0.1, -0.2, 0.9], [0.5, -0.5, 2.0]]
    expected = [enumerate_paths(params, np.array(row)[:, None].repeat(2, axis=1))[0] for row in rows]
    x, lengths = rows_on_a_line(*rows, [1e4])
    value = hidden_markov.log_likelihood(params, x, lengths=lengths)
    np.testing.assert_allclose(value[:2], expected, rtol=1e-5)


def test_unlikely_observations_after_impossible_steps(precision):
    """A state that is not likely enough for the numbers to tell turns out to be the best."""
    params = on_a_line([[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [1.0, 0.0, 0.0]], [0.0, 3.0, 6.0], 0.6)
    params = params._replace(initial=jnp.array([1.0, 0.0, 0.0]))
    value, posterior, _ = answers(params, *rows_on_a_line([2.2, 7.8, 4.2, 4.2], [0.6, 2.2, 7.8, 4.2, 4.2]))
    assert np.all(np.isfinite(value))
    np.testing.assert_allclose(posterior[0, :4].sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(posterior[1, :5].sum(axis=1), 1, rtol=1e-5)


# Missing observations.
def enumerate_missing(params, x, mask):
    """Return the answers to one sequence by sums over all paths: a missing observation has probability one."""
    logs = np.where(mask[:, None], emissions(params, x), 0)
    initial, transition = np.asarray(params.initial, float), np.asarray(params.transition, float)
    paths = np.array(list(itertools.product(range(K), repeat=len(x))))
    values = np.log(initial[paths[:, 0]]) + logs[np.arange(len(x)), paths].sum(axis=1)
    values = values + np.log(transition)[paths[:, :-1], paths[:, 1:]].sum(axis=1)
    chances = np.exp(values - values.max())
    states = np.stack([(chances[:, None] * (paths == h)).sum(axis=0) for h in range(K)], axis=1) / chances.sum()
    return values.max() + np.log(chances.sum()), states, paths[values.argmax()], values.max()


MASK = np.array(
    [[1, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0]], bool
)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_observations_against_enumeration_in_both_layouts(kind, precision):
    """First, last, neighbouring and all observations of a sequence are missing; what is in their place is ignored."""
    params, x = model(kind), ragged(kind)
    hidden = np.where(MASK if kind == "symbols" else MASK[:, :, None], x, 77 if kind == "symbols" else np.nan)
    value, posterior, path = answers(params, hidden, LENGTHS, MASK)
    flat = answers(params, end_to_end(hidden, LENGTHS), LENGTHS, end_to_end(MASK, LENGTHS))
    tol = {"rtol": 1e-12, "atol": 1e-12} if precision == "float64" else {"rtol": 1e-5, "atol": 1e-5}
    for row, length in enumerate(LENGTHS):
        if length == 0:
            continue
        expected, states, best, best_value = enumerate_missing(params, x[row, :length], MASK[row, :length])
        np.testing.assert_allclose(value[row], expected, **tol)
        np.testing.assert_allclose(posterior[row, :length], states, **tol)
        np.testing.assert_array_equal(posterior[row, length:], 0)
        np.testing.assert_array_equal(path.states[row, :length], best)
        np.testing.assert_allclose(path.log_probability[row], best_value, **tol)
    np.testing.assert_allclose(flat[0], value, **tol)
    np.testing.assert_allclose(flat[1], end_to_end(posterior, LENGTHS), **tol)
    np.testing.assert_array_equal(flat[2].states, end_to_end(path.states, LENGTHS))


def test_a_missing_symbol_is_summed_out(float64):
    """The likelihood is the sum over all symbols in its place."""
    params, x = model("symbols"), ragged("symbols")
    mask = np.ones(x.shape, bool)
    mask[:, [0, 3]] = False
    total = np.zeros(len(x))
    for pair in itertools.product(range(4), repeat=2):
        x[:, [0, 3]] = pair
        total += np.exp(answers(params, x, np.full(5, TIME))[0])
    np.testing.assert_allclose(answers(params, x, np.full(5, TIME), mask)[0], np.log(total), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_that_hides_nothing_changes_nothing(kind, precision):
    params, x = model(kind), ragged(kind)
    expected = answers(params, x, LENGTHS)
    jax.tree.map(np.testing.assert_array_equal, answers(params, x, LENGTHS, np.ones(x.shape[:2], bool)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_altogether_says_nothing(kind, float64):
    params, x = model(kind), ragged(kind)
    value, posterior, _ = answers(params, x, LENGTHS, np.zeros(x.shape[:2], bool))
    np.testing.assert_allclose(value, 0, atol=1e-14)
    ahead = [np.asarray(params.initial) @ np.linalg.matrix_power(np.asarray(params.transition), t) for t in range(TIME)]
    np.testing.assert_allclose(posterior[0], ahead, atol=1e-14)


def test_the_associative_form_lowers_for_accelerators():
    for kind in KINDS:
        params, x = model(kind), jnp.asarray(observations(kind, (2, 300)))
        for verb in VERBS[:2]:
            lowers(lambda p, a, verb=verb: verb(p, a, form="associative"), params, x)
