"""Forward, backward and the likeliest path, against sums over all paths."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.models.hidden_markov.chain import forward, forward_backward
from latensor.models.hidden_markov.emissions import chain_of
from latensor.moments import Sequences
from latensor.moments.internal import flatten_sequences
from tests.helpers import lowers

K, TIME = 3, 6
LENGTHS = np.array([6, 1, 4, 0, 2])
KINDS = ("symbols", "reals")
VERBS = (hidden_markov.log_likelihood, hidden_markov.posterior, hidden_markov.viterbi)


def model(kind, seed=0, dtype=float):
    rng = np.random.default_rng(seed)
    initial, transition = rng.dirichlet(np.ones(K)), rng.dirichlet(np.ones(K), K)
    if kind == "symbols":
        parts = initial, transition, rng.dirichlet(np.ones(4), K).T
    else:
        parts = initial, transition, rng.normal(size=(2, K)), rng.uniform(0.2, 2.0, (2, K))
    return HiddenMarkov(*(jnp.asarray(part, dtype) for part in parts))


def observations(kind, shape, seed=1):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 4, shape) if kind == "symbols" else rng.normal(size=(*shape, 2))


def ragged(kind):
    return observations(kind, (len(LENGTHS), TIME))


def emissions(params, x):
    """Return `log P(x_t | h)`, `(time, k)`, by the formula."""
    o = np.asarray(params.emission, float)
    if params.variance is None:
        return np.log(o[x])
    v = np.asarray(params.variance, float)
    return np.sum(-((x[:, :, None] - o) ** 2) / (2 * v) - np.log(2 * math.pi * v) / 2, axis=1)


def path_log_probability(params, x, path):
    logs = emissions(params, x)
    start, steps = (np.log(np.asarray(part, float)) for part in (params.initial, params.transition))
    return start[path[0]] + steps[path[:-1], path[1:]].sum() + logs[np.arange(len(path)), path].sum()


def enumerate_paths(params, x):
    """Return the log-likelihood, posterior, expected pairs, likeliest path and its log-probability of one sequence."""
    time = len(x)
    if time == 0:
        return 0.0, np.zeros((0, K)), np.zeros((K, K)), np.zeros(0, int), 0.0
    paths = np.array(list(itertools.product(range(K), repeat=time)))
    values = np.array([path_log_probability(params, x, path) for path in paths])
    chances = np.exp(values - values.max())
    total = chances.sum()
    posterior, pairs = np.zeros((time, K)), np.zeros((K, K))
    for path, chance in zip(paths, chances / total, strict=True):
        posterior[np.arange(time), path] += chance
        np.add.at(pairs, (path[:-1], path[1:]), chance)
    return values.max() + np.log(total), posterior, pairs, paths[values.argmax()], values.max()


def end_to_end(x, lengths):
    return np.concatenate([row[:length] for row, length in zip(x, lengths, strict=True)])


def answers(params, x, lengths=None, mask=None):
    """Return the log-likelihood, posterior and path as NumPy arrays, every slice of which JAX would compile."""
    return [jax.tree.map(np.asarray, verb(params, x, lengths=lengths, mask=mask)) for verb in VERBS]


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


# In blocks.
LONG = np.array([37, 1, 0, 2, 16, 44])


@jax.jit
def chain(params, x, lengths):
    return chain_of(params, flatten_sequences(Sequences(x, lengths, num_symbols=4 if x.ndim == 1 else None)))[0]


def test_blocks_equal_one_pass(precision):
    one = chain(model("symbols"), observations("symbols", (100,)), LONG)
    weights = jnp.asarray(np.random.default_rng(2).uniform(size=100), float)
    sequential, blocks = (forward_backward(one, weights, length) for length in (None, 16))
    tol = {"rtol": 1e-11, "atol": 1e-12} if precision == "float64" else {"rtol": 1e-4, "atol": 1e-5}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tol), blocks, sequential)
    for length in (None, 16):
        np.testing.assert_allclose(forward(one, length), sequential.log_scales, **tol)


@pytest.mark.parametrize("block_length", [None, 4])
def test_expected_pairs_against_enumeration(block_length, float64):
    params, x = model("reals"), ragged("reals")
    row_weights = np.array([1.0, 5.0, 0.25, 5.0, 2.0])
    weights = jnp.asarray(np.repeat(row_weights, LENGTHS))
    smoothed = forward_backward(chain(params, end_to_end(x, LENGTHS), LENGTHS), weights, block_length)
    expected = sum(
        weight * enumerate_paths(params, row[:length])[2]
        for row, length, weight in zip(x, LENGTHS, row_weights, strict=True)
    )
    np.testing.assert_allclose(smoothed.pairs, expected, atol=1e-12)


@pytest.mark.parametrize("block_length", [None, 16])
def test_expected_pairs_add_up_to_the_steps(block_length, precision):
    one = chain(model("symbols"), observations("symbols", (100,)), LONG)
    smoothed = forward_backward(one, jnp.ones(100, float), block_length)
    np.testing.assert_allclose(np.sum(smoothed.pairs), np.maximum(LONG - 1, 0).sum(), rtol=1e-6)
    np.testing.assert_allclose(np.sum(smoothed.posterior, axis=1), 1, rtol=1e-6)


def test_the_forms_agree(float64):
    params, x, lengths = model("symbols"), observations("symbols", (2, 300)), np.array([300, 290])
    for verb in VERBS[:2]:
        sequential, associative, auto = (
            verb(params, x, lengths=lengths, form=form) for form in ("sequential", "associative", "auto")
        )
        np.testing.assert_allclose(associative, sequential, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(auto, sequential, rtol=1e-11, atol=1e-12)


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


def test_a_long_chain_in_blocks():
    params, x, expected = a_long_chain()
    value = hidden_markov.log_likelihood(params, x, form="associative")
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


def test_impossible_steps_at_the_end_of_a_block(precision):
    x = np.tile([0, 2, 1, 3, 0, 1, 1, 2, 3, 3], 10)
    one = chain(left_to_right(), x, LONG)
    sequential, blocks = (forward_backward(one, jnp.ones(100, float), length) for length in (None, 16))
    for leaf in jax.tree.leaves(sequential):
        assert np.all(np.isfinite(leaf))
    tol = 1e-9 if precision == "float64" else 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tol, atol=tol), blocks, sequential)


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
