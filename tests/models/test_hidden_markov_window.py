"""EM on windows of three: on a table, on a list of triples, and on real vectors."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose.internal import expectation_maximization
from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov, windows
from latensor.models.hidden_markov.starts import polish_best
from latensor.models.hidden_markov.windows import (
    Triples,
    polish_symbols,
    polish_vectors,
    symbols_log_likelihood,
    vectors_log_likelihood,
)
from latensor.moments.internal import Windows, distinct_triples, table_moments
from tests.helpers import largest

K, D = 3, 6
polish = jax.jit(polish_symbols)
polish_many = jax.jit(polish_best, static_argnums=4)
polish_reals = jax.jit(polish_vectors)


@functools.partial(jax.jit, static_argnums=1)
def list_triples(x, size):
    weights = jnp.full(x.shape[0] - 2, 1 / (x.shape[0] - 2), float)
    return Triples(*distinct_triples(Windows(x, weights), size))


def plain_em(step, start, **options):
    return expectation_maximization(step, start, **(options | {"feasible": None}))


def model(seed, d=D, k=K, concentration=1.0, real=False):
    rng = np.random.default_rng(seed)
    parts = [rng.dirichlet(np.full(k, concentration)), rng.dirichlet(np.full(k, concentration), k)]
    if real:
        parts += [3 * rng.normal(size=(d, k)), rng.uniform(0.5, 1.5, (d, k))]
    else:
        parts += [rng.dirichlet(np.full(d, concentration), k).T]
    return HiddenMarkov(*(jnp.asarray(part, float) for part in parts))


def draw(params, seed, size):
    """Return one sequence."""
    rng = np.random.default_rng(seed)
    initial, transition, emission = (np.asarray(part, float) for part in params[:3])
    k = initial.shape[0]
    states = [rng.choice(k, p=initial / initial.sum())]
    jumps = rng.uniform(size=size)
    ends = transition.cumsum(axis=1)
    for jump in jumps[1:]:
        states.append(min(int(np.searchsorted(ends[states[-1]], jump)), k - 1))
    if params.variance is not None:
        scale = np.sqrt(np.asarray(params.variance, float)).T[states]
        return emission.T[states] + scale * rng.normal(size=(size, emission.shape[0]))
    ends = emission.cumsum(axis=0)[:, states]
    return np.minimum((ends < rng.uniform(size=size)).sum(axis=0), emission.shape[0] - 1)


def count(x, d=D):
    table = np.zeros((d, d, d))
    np.add.at(table, (x[:-2], x[1:-1], x[2:]), 1 / (len(x) - 2))
    return jnp.asarray(table, float)


def parts(params):
    return [np.asarray(part, float) for part in params if part is not None]


def apart(one, two):
    return max(largest(a - b) for a, b in zip(parts(one), parts(two), strict=True))


def window_log_likelihood(params, table):
    chances = np.asarray(hidden_markov.population_moments(params).third, float)
    table = np.asarray(table, float)
    seen = table > 0
    return np.sum(table[seen] * np.log(chances[seen]))


# Symbols.
def enumerate_step(params, table):
    """Return the parameters after an EM step on windows, and the log-likelihood before it, by sums over everything."""
    initial, transition, emission = parts(params)
    (d, k), value = emission.shape, 0.0
    first, pairs, symbols = np.zeros(k), np.zeros((k, k)), np.zeros((d, k))
    for x in itertools.product(range(d), repeat=3):
        joint = {}
        for h in itertools.product(range(k), repeat=3):
            steps = transition[h[0], h[1]] * transition[h[1], h[2]]
            joint[h] = initial[h[0]] * steps * np.prod([emission[a, b] for a, b in zip(x, h, strict=True)])
        chance, weight = sum(joint.values()), float(table[x])
        value += weight * np.log(chance)
        for h, part in joint.items():
            share = weight * part / chance
            first[h[0]] += share
            for pair in itertools.pairwise(h):
                pairs[pair] += share
            for place in zip(x, h, strict=True):
                symbols[place] += share
    return HiddenMarkov(
        first / first.sum(), pairs / pairs.sum(axis=1, keepdims=True), symbols / symbols.sum(axis=0)
    ), value


@pytest.mark.parametrize("form", ["table", "list"])
def test_a_step_against_enumeration(form, float64, monkeypatch):
    monkeypatch.setattr(windows, "expectation_maximization", plain_em)
    start, x = model(0, 3, 2), draw(model(1, 3, 2), 2, 40)
    table = count(x, 3)
    counts = table if form == "table" else list_triples(jnp.asarray(x), 30)
    after_one, value = enumerate_step(start, table)
    after_two, next_value = enumerate_step(after_one, table)
    best = np.sum(table * np.log(np.where(table > 0, table, 1)))
    take = jax.jit(lambda steps: polish_symbols(counts, start, 0.0, steps))
    for steps, params, expected in ((0, start, value), (1, after_one, next_value), (2, after_two, None)):
        polished = take(steps)
        assert polished.num_iters == steps
        assert apart(polished.params, params) < 1e-12
        if expected is not None:
            np.testing.assert_allclose(polished.objective, expected - best, atol=1e-12)
            np.testing.assert_allclose(symbols_log_likelihood(counts, polished.params), expected - best, atol=1e-12)


@functools.cache
def sampled():
    x = draw(model(1), 2, 400)
    return x, np.asarray(count(x))


def test_the_table_and_the_list_take_the_same_steps(precision):
    x, table = sampled()
    start = model(0)
    triples = list_triples(jnp.asarray(x), 256)
    np.testing.assert_allclose(np.sum(triples.counts), 1, rtol=1e-6)
    for steps in (0, 4, 20):
        one, two = polish(jnp.asarray(table, float), start, 0.0, steps), polish(triples, start, 0.0, steps)
        assert one.num_iters == two.num_iters
        np.testing.assert_allclose(one.objective, two.objective, rtol=1e-10 if precision == "float64" else 1e-4)
        # Rounding grows from step to step.
        assert apart(one.params, two.params) < (1e-10 if precision == "float64" else 1e-3)
        assert one.params.emission.dtype == two.objective.dtype == precision


def test_the_objective_is_the_likelihood_and_never_falls(precision):
    table = jnp.asarray(sampled()[1], float)
    seen = np.asarray(table, float)[np.asarray(table) > 0]
    best = np.sum(seen * np.log(seen))
    for seed in (0, 3, 4):
        values = []
        for steps in (0, 2, 4, 8, 20, 60, 200):
            polished = polish(table, model(seed), 0.0, steps)
            values.append(float(polished.objective))
            expected = window_log_likelihood(polished.params, table) - best
            np.testing.assert_allclose(values[-1], expected, atol=1e-10 if precision == "float64" else 1e-5)
            for part, axis in zip(polished.params[:3], (0, 1, 0), strict=True):
                np.testing.assert_allclose(np.sum(part, axis=axis), 1, rtol=1e-5)
        assert np.all(np.diff(values) >= 0), values
        assert values[-1] > values[0] + 0.01


def test_exact_tables_stay_exact(precision):
    """Zeros included: the likelihood does not ask for them to be lifted."""
    truth = model(5)
    emission = np.array(truth.emission)
    emission[0, 1] = emission[4, 2] = emission[5, 0] = 0
    truth = truth._replace(emission=jnp.asarray(emission / emission.sum(axis=0), float))
    polished = polish(hidden_markov.population_moments(truth).third, truth, 0.0, 50)
    assert apart(polished.params, truth) < (1e-9 if precision == "float64" else 1e-3)
    assert abs(float(polished.objective)) < (1e-12 if precision == "float64" else 1e-5)
    np.testing.assert_array_equal(np.asarray(polished.params.emission)[[0, 4, 5], [1, 2, 0]], 0)


def test_a_zero_that_the_data_contradict_is_lifted(float64):
    truth = model(5)
    table = hidden_markov.population_moments(truth).third
    symbol, state = np.unravel_index(np.argmax(truth.emission), (D, K))
    emission = np.array(truth.emission)
    emission[symbol, state] = 0
    start = truth._replace(emission=jnp.asarray(emission / emission.sum(axis=0)))
    polished = polish(table, start, 0.0, 400)
    # EM by itself would leave it at zero for ever.
    np.testing.assert_allclose(polished.params.emission[symbol, state], truth.emission[symbol, state], rtol=0.1)
    assert polished.objective > -1e-4


def test_a_symbol_that_occurs_becomes_possible(float64):
    """The spectral step can leave a rare symbol to no state."""
    truth = model(5)
    table = hidden_markov.population_moments(truth).third
    emission = np.array(truth.emission)
    emission[3] = 0
    polished = polish(table, truth._replace(emission=jnp.asarray(emission / emission.sum(axis=0))), 0.0, 400)
    assert np.max(np.asarray(polished.params.emission)[3]) > 0
    assert polished.objective > -1e-2


def test_symbols_that_never_occur_and_states_that_never_do(precision):
    table = np.array(sampled()[1])
    table[2], table[:, 2], table[:, :, 2] = 0, 0, 0
    start = model(0)._replace(initial=jnp.array([1.0, 0.0, 0.0]), transition=jnp.asarray(np.eye(3), float))
    polished = polish(jnp.asarray(table / table.sum(), float), start, 0.0, 21)
    for part in parts(polished.params):
        assert np.all(np.isfinite(part))
    np.testing.assert_allclose(polished.params.emission[2, 0], 0, atol=1e-12)


def test_more_starts_are_better_than_the_spectral_one(float64):
    """And than the truth; 6 tables, fixed in advance."""
    gains = []
    for seed in range(6):
        truth, key = model(seed, concentration=0.5), jax.random.key(seed)
        table = count(draw(truth, seed, 1000))
        spectral = hidden_markov.fit_moments(key, table_moments(table), K, polish=False).params
        for start in (spectral, truth):
            one, many = polish(table, start, 1e-9, 399), polish_many(key, table, start, False, 8, 1e-9, 399)
            gains.append(float(many.objective - one.objective))
            np.testing.assert_allclose(many.objective, symbols_log_likelihood(table, many.params), atol=1e-12)
    # EM ends at its limit in most of these: a start that is ahead after the trials may be overtaken, by little.
    assert min(gains) > -5e-4
    assert np.mean(gains) > 2e-3


# Real vectors.
def vectors_step(params, x, weights):
    """Return the log-likelihood of windows before an EM step, and the parameters after it, by loops."""
    initial, transition, means, variances = parts(params)
    k = means.shape[1]
    logs = -((x[:, :, None] - means) ** 2) / (2 * variances) - np.log(2 * np.pi * variances) / 2
    density = np.exp(logs.sum(axis=1))
    first, pairs, states, value = np.zeros(k), np.zeros((k, k)), np.zeros((len(x), k)), 0.0
    for t, weight in enumerate(weights):
        joint = np.einsum("a,b,c,ab,bc,a->abc", *density[t : t + 3], transition, transition, initial)
        value += weight * np.log(joint.sum())
        joint *= weight / joint.sum()
        first += joint.sum(axis=(1, 2))
        pairs += joint.sum(axis=2) + joint.sum(axis=0)
        for place, others in enumerate(((1, 2), (0, 2), (0, 1))):
            states[t + place] += joint.sum(axis=others)
    share = states / states.sum(axis=0)
    centre = x.T @ share
    spread = np.stack([((x - centre[:, h]) ** 2 * share[:, [h]]).sum(axis=0) for h in range(k)], axis=1)
    return HiddenMarkov(first / first.sum(), pairs / pairs.sum(axis=1, keepdims=True), centre, spread), value


def test_a_step_on_vectors_against_loops(float64, monkeypatch):
    monkeypatch.setattr(windows, "expectation_maximization", plain_em)
    x = draw(model(1, 2, real=True), 3, 40)
    weights = np.random.default_rng(4).uniform(size=38) * (np.arange(38) % 7 > 0)
    weights /= weights.sum()
    start = model(0, 2, real=True)
    after, value = vectors_step(start, x, weights)
    _, next_value = vectors_step(after, x, weights)
    data = Windows(jnp.asarray(x), jnp.asarray(weights))
    take = jax.jit(lambda steps: polish_vectors(data, start, 0.0, steps))
    for steps, params, expected in ((0, start, value), (1, after, next_value)):
        polished = take(steps)
        assert apart(polished.params, params) < 1e-9
        np.testing.assert_allclose(polished.objective, expected, rtol=1e-12)
        np.testing.assert_allclose(vectors_log_likelihood(data, polished.params), expected, rtol=1e-9)


def test_polishing_vectors_never_makes_them_less_likely(precision):
    truth = model(1, 2, real=True)
    x = jnp.asarray(draw(truth, 3, 300), float)
    weights = jnp.full(298, 1 / 298, float)
    rng = np.random.default_rng(5)
    near = truth._replace(
        emission=jnp.asarray(truth.emission + 0.5 * rng.normal(size=(2, K)), float), variance=2 * truth.variance
    )
    for start in (near, model(7, 2, real=True)):
        polished = [polish_reals(Windows(x, weights), start, 0.0, steps) for steps in (0, 2, 4, 8, 20, 60)]
        values = np.array([float(each.objective) for each in polished])
        # Sums of 300 terms: float32 rounding is about 1e-6 of the value.
        assert np.all(np.diff(values) >= -(1e-12 if precision == "float64" else 1e-6) * abs(values[0])), values
        assert polished[-1].params.variance.dtype == precision
        assert np.all(np.asarray(polished[-1].params.variance) > 0)
        if start is near:
            assert values[-1] > values[0] + 0.1
            assert apart(polished[-1].params, truth) < apart(start, truth)
