import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import hidden_markov
from tests.helpers import largest
from tests.models.hidden_markov_cases import (
    EXACT,
    KEY,
    TIME,
    D,
    K,
    N,
    _columns,
    as_model,
    assert_same,
    clear_model,
    draw,
    errors,
    fit,
    in_order,
    trials,
)


def random_model(seed, d, k):
    """Return a model whose probabilities are from Dirichlet(½): many are nearly zero."""
    rng = np.random.default_rng(seed)
    return as_model(
        *(rng.dirichlet(np.full(size, 0.5), rows) for size, rows in ((k, None), (k, k))), _columns(rng, d, k)
    )


def rmse(truth, estimate):
    return float(np.sqrt(np.mean((in_order(truth, estimate).emission - np.asarray(truth.emission)) ** 2)))


@pytest.mark.parametrize(("k", "d", "marginals", "polish"), EXACT)
def test_population_moments_give_the_model_back(k, d, marginals, polish, float64):
    for seed in range(3):
        truth = random_model(seed, d, k)
        moments = hidden_markov.population_moments(truth)
        estimate = hidden_markov.fit_moments(KEY, moments, k, marginals=marginals, polish=polish, num_starts=1)
        assert max(errors(truth, estimate.params)) < 1e-6
        assert estimate.status == estimate.diagnostics.start_status == Status.CONVERGED
        assert abs(float(estimate.diagnostics.log_likelihood)) < 1e-9
        assert (estimate.diagnostics.gap is None) == (marginals == "pseudoinverse")
        assert estimate.diagnostics.num_dropped is None


def test_population_moments_against_enumeration(float64):
    truth = random_model(0, 3, 2)
    initial, transition, emission = (np.asarray(part) for part in truth[:3])
    table = np.zeros((3, 3, 3))
    for x, h in itertools.product(itertools.product(range(3), repeat=3), itertools.product(range(2), repeat=3)):
        chance = initial[h[0]] * transition[h[0], h[1]] * transition[h[1], h[2]]
        table[x] += chance * np.prod([emission[a, b] for a, b in zip(x, h, strict=True)])
    moments = hidden_markov.population_moments(truth)
    np.testing.assert_allclose(moments.third, table, atol=1e-15)
    for view, (first, others) in enumerate(zip(moments.first, ((1, 2), (0, 2), (0, 1)), strict=True)):
        np.testing.assert_allclose(first, table.sum(axis=others), atol=1e-15)
        np.testing.assert_allclose(moments.second[view], table.sum(axis=2 - view), atol=1e-15)


def test_sample_has_the_population_moments():
    truth, number = random_model(1, 4, K), 20_000
    x, hidden = jax.tree.map(np.asarray, hidden_markov.sample(KEY, truth, number, length=3))
    table = np.zeros((4, 4, 4))
    np.add.at(table, tuple(x.T), 1 / number)
    expected = np.asarray(hidden_markov.population_moments(truth).third, float)
    # 64 binomial frequencies: five standard errors, and one observation for the rarest.
    assert np.all(np.abs(table - expected) < 5 * np.sqrt(expected / number) + 2 / number)
    steps = np.zeros((K, K))
    np.add.at(steps, (hidden[:, 1], hidden[:, 2]), 1)
    standard = np.sqrt(0.25 / steps.sum(axis=1, keepdims=True))
    assert np.all(np.abs(steps / steps.sum(axis=1, keepdims=True) - truth.transition) < 5 * standard)
    assert x.dtype == hidden.dtype == np.int32


def test_sample_of_vectors_has_the_means_and_variances():
    truth = as_model([0.3, 0.7], [[0.9, 0.1], [0.2, 0.8]], [[0.0, 5.0]], [[1.0, 4.0]])
    x, hidden = jax.tree.map(np.asarray, hidden_markov.sample(KEY, truth, 2000, length=10))
    assert x.shape == (2000, 10, 1)
    for state in range(2):
        rows = x[hidden == state, 0]
        np.testing.assert_allclose(rows.mean(), truth.emission[0, state], atol=0.15)
        np.testing.assert_allclose(rows.var(), truth.variance[0, state], rtol=0.1)
    np.testing.assert_allclose(np.mean(hidden[:, 0]), 0.7, atol=0.05)


def test_more_data_are_better_and_so_is_polishing(float64):
    few, many, plain = np.mean([[rmse(truth, each.params) for each in fits] for truth, _, fits in trials()], axis=0)
    # Twenty times the data.
    assert many < few / 2
    assert many < plain
    # Were the states seen, some 3,000 symbols of each: standard errors of 0.005. Hidden ones cost a few times that.
    assert many < 0.02


def window_value(params, x):
    """Return the log-likelihood of a window of three on average, less its largest possible value."""
    transition, emission = np.asarray(params.transition), np.asarray(params.emission)
    usual = np.linalg.matrix_power(transition, 1000)[0]
    chance = np.einsum("h,ah,hi,bi,ij,cj->abc", usual, emission, transition, emission, transition, emission)
    table = np.zeros((D, D, D))
    np.add.at(table, (x[:, :-2], x[:, 1:-1], x[:, 2:]), 1 / (N * (TIME - 2)))
    seen = table > 0
    return np.sum(table[seen] * np.log(chance[seen] / table[seen]))


def test_a_polished_fit_is_likelier_than_the_truth(float64):
    for truth, x, fits in trials():
        assert fits[1].diagnostics.log_likelihood > window_value(truth, x)
        assert fits[1].diagnostics.log_likelihood > fits[2].diagnostics.log_likelihood


def test_transitions_reach_the_maximum_of_their_likelihood(float64):
    """Also where the spectral step leaves no state that emits a symbol which occurs, as it does in one of these."""
    for truth, _, (_, _, plain) in trials():
        assert plain.diagnostics.gap < 1e-6
        alike = plain.params._replace(transition=jnp.full((K, K), 1 / K))
        assert errors(truth, plain.params)[1] < errors(truth, alike)[1]


def test_many_symbols_are_a_list_of_triples(float64):
    """Most of the symbols never occur; the others come out as from the table of them alone."""
    truth, x, (_, dense, _) = trials()[0]
    many = fit(x, num_symbols=60)
    emission = np.asarray(many.params.emission)
    np.testing.assert_array_equal(emission[D:], 0)
    few = many.params._replace(emission=emission[:D])
    # Ended by other limits, they are closer to each other than to the truth.
    assert rmse(dense.params, few) < rmse(truth, dense.params)
    assert max(errors(dense.params, few)) < max(errors(truth, dense.params))
    values = [np.asarray(each.diagnostics.log_likelihood) for each in (many, dense)]
    np.testing.assert_allclose(*values, atol=1e-3)


def test_short_sequences_tell_the_initial_distribution(float64):
    # Each state has four symbols of its own that it emits 80% of the time.
    emission = np.where(np.arange(D)[:, None] // 4 == np.arange(K), 0.2, 0.025)
    truth = as_model([0.05, 0.9, 0.05], 0.6 * np.eye(K) + 0.4 / K, emission)
    estimate = fit(draw(truth, 3, 2500, 4).reshape(-1), np.full(2500, 4), polish=False)
    # 2,500 first symbols: the standard error of a frequency is 0.006, a little more through the emissions; windows
    # begin with the middle state half of the time.
    assert errors(truth, estimate.params)[0] < 0.03
    assert estimate.status == Status.CONVERGED
    assert estimate.diagnostics.num_dropped == 0


def test_layouts_agree(float64):
    x = draw(clear_model(0), 0)
    lengths = np.random.default_rng(1).integers(0, TIME + 1, N)
    padded = np.where(np.arange(TIME) < lengths[:, None], x, 99)
    # As many sequences and symbols as in the test above, for which a fit is compiled: what is left over is one more.
    flat = np.concatenate([row[:length] for row, length in zip(x, lengths, strict=True)])
    rest = N * TIME - flat.size
    flat, flat_lengths = np.concatenate([flat, np.zeros(rest, int)]), np.zeros(2500, int)
    flat_lengths[:N], flat_lengths[-1] = lengths, rest
    weights = (np.arange(2500) < N).astype(float)
    one, two = fit(padded, lengths, polish=False), fit(flat, flat_lengths, weights, polish=False)
    assert_same(one.params, two.params, 1e-9)
    assert one.diagnostics.num_dropped == np.sum(lengths < 3)
    assert two.diagnostics.num_dropped == np.sum(flat_lengths < 3)


def test_sequences_without_a_triple_are_counted_and_left_out(float64):
    x = draw(clear_model(0), 0)
    lengths = np.where(np.arange(N) < 30, np.arange(N) % 3, TIME)
    with_them, without = fit(x, lengths), fit(x, lengths, (lengths > 2).astype(float))
    assert with_them.diagnostics.num_dropped == without.diagnostics.num_dropped == 30
    assert_same(with_them.params[1:3], without.params[1:3], 1e-9)
    # Their first observations do count for the initial distribution.
    assert largest(with_them.params.initial - without.params.initial) > 1e-4


def test_row_weights_select_sequences(float64):
    x = draw(clear_model(0), 0)
    half = np.arange(N) < N // 2
    weighted, shortened = fit(x, row_weights=half.astype(float)), fit(x, np.where(half, TIME, 0))
    assert_same(weighted[:4], shortened[:4], 1e-7)
    assert_same(weighted.diagnostics[:5], shortened.diagnostics[:5], 1e-7)
    # The half twice is the half, but for the weight of the first observations.
    twice = fit(np.concatenate([x[: N // 2]] * 2))
    assert_same(weighted.params[1:3], twice.params[1:3], 1e-7)
    assert largest(weighted.params.emission - fit(x).params.emission) > 1e-3
