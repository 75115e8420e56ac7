"""Missing observations in `fit` and `refine`; those of the other verbs are among the tests of the chain."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.moments import Sequences

KEY = jax.random.key(0)
N, TIME, K, D = 60, 40, 3, 8
KINDS = ("table", "list", "vectors")


def model(kind):
    transition = 0.6 * np.eye(K) + 0.4 / K
    rng = np.random.default_rng(0)
    parts = [np.array([0.5, 0.3, 0.2]), transition]
    if kind == "vectors":
        parts += [4.0 * rng.normal(size=(2, K)), rng.uniform(0.5, 1.5, (2, K))]
    else:
        parts += [rng.dirichlet(np.full(D, 0.3), K).T]
    return HiddenMarkov(*(jnp.asarray(part, float) for part in parts))


def draw(kind, n=N, time=TIME):
    """Draw sequences by NumPy."""
    params = model(kind)
    rng = np.random.default_rng(1)
    states = [rng.choice(K, size=n, p=np.asarray(params.initial))]
    ends = np.asarray(params.transition).cumsum(axis=1)
    for _ in range(time - 1):
        states.append((rng.uniform(size=(n, 1)) > ends[states[-1]]).sum(axis=1).clip(max=K - 1))
    states = np.stack(states, axis=1)
    if kind == "vectors":
        noise = np.sqrt(np.asarray(params.variance)).T[states] * rng.normal(size=(n, time, 2))
        return np.asarray(params.emission).T[states] + noise
    ends = np.asarray(params.emission).cumsum(axis=0).T[states]
    return (rng.uniform(size=(n, time, 1)) > ends).sum(axis=2).clip(max=D - 1)


def fit(kind, x, **options):
    size = {"table": {"num_symbols": D}, "list": {"num_symbols": 40}, "vectors": {}}[kind]
    return hidden_markov.fit(KEY, x, K, **(size | {"num_starts": 1} | options))


def assert_same(one, two, tol):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tol, atol=tol), one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_that_hides_nothing_changes_nothing(kind, float64):
    x = draw(kind)
    everything, none = fit(kind, x, mask=np.ones((N, TIME), bool)), fit(kind, x)
    jax.tree.map(np.testing.assert_array_equal, everything, none)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_with_a_missing_observation_are_left_out(kind, float64):
    """One missing observation in the middle cuts a sequence in two, but for its first state."""
    x = draw(kind)
    mask = np.ones((N, TIME), bool)
    mask[:, TIME // 2] = False
    hidden = x.copy()
    hidden[:, TIME // 2] = -5 if kind != "vectors" else np.nan
    masked = fit(kind, hidden, mask=mask)
    # The same in one row, as parts of sequences of their own; the missing one is a sequence without weight.
    lengths = np.tile([TIME // 2, 1, TIME - TIME // 2 - 1], N)
    weights = np.tile([1.0, 0.0, 1.0], N)
    parts = fit(kind, x.reshape(-1, *x.shape[2:]), lengths=lengths, row_weights=weights)
    assert_same(masked.params[1:], parts.params[1:], 1e-7)
    assert_same(masked.diagnostics[:3], parts.diagnostics[:3], 1e-7)
    assert masked.diagnostics.num_dropped == 0
    assert np.max(np.abs(masked.params.initial - parts.params.initial)) > 1e-4


def test_first_observations_that_are_missing_do_not_count(float64):
    x = draw("table")
    mask = np.ones((N, TIME), bool)
    mask[: N // 2, 0] = False
    masked = fit("table", np.where(mask, x, 0), mask=mask, polish=False)
    other = np.where(mask, x, 7)
    assert_same(masked, fit("table", other, mask=mask, polish=False), 1e-12)
    # As if these sequences began one later, and counted for no first state.
    late = [row[not seen :] for row, seen in zip(x, mask[:, 0], strict=True)]
    lengths = np.array([len(row) for row in late])
    split = fit("table", np.concatenate(late), lengths=lengths, polish=False)
    assert_same(masked.params[1:3], split.params[1:3], 1e-9)
    assert np.max(np.abs(masked.params.initial - split.params.initial)) > 1e-4


def test_sequences_without_a_whole_window_are_counted(float64):
    x = draw("table")
    mask = np.ones((N, TIME), bool)
    mask[:7] = np.arange(TIME) % 3 > 0
    estimate = fit("table", Sequences(x, mask=mask, num_symbols=D), num_symbols=None)
    assert estimate.diagnostics.num_dropped == 7
    assert estimate.status == Status.CONVERGED


@pytest.mark.parametrize("kind", KINDS)
def test_observations_missing_at_random(kind, float64):
    """A tenth is missing: 73 % of the windows are left, and the estimate is nearly the same."""
    x = draw(kind)
    mask = np.random.default_rng(3).uniform(size=(N, TIME)) < 0.9
    complete, masked = fit(kind, x), fit(kind, np.where(mask.reshape(N, TIME, *[1] * (x.ndim - 2)), x, 0), mask=mask)
    scale = 0.1 if kind != "vectors" else 1.0
    difference = np.max(np.abs(np.asarray(masked.params.emission) - np.asarray(complete.params.emission)))
    assert 1e-4 < difference < scale


# Baum–Welch.
def enumerate_step(params, x, mask):
    """Return the parameters after a step of Baum–Welch, and the log-likelihood before it, by sums over all paths."""
    initial, transition, emission = (np.asarray(part) for part in params[:3])
    if params.variance is None:
        density = emission[x]
    else:
        variance = np.asarray(params.variance)
        logs = -((x[..., None] - emission) ** 2) / (2 * variance) - np.log(2 * np.pi * variance) / 2
        density = np.exp(logs.sum(axis=-2))
    density = np.where(mask[..., None], density, 1)
    first, pairs, states, value = np.zeros(K), np.zeros((K, K)), np.zeros((*mask.shape, K)), 0.0
    paths = np.array(list(itertools.product(range(K), repeat=mask.shape[1])))
    for row in range(len(x)):
        chances = initial[paths[:, 0]] * transition[paths[:, :-1], paths[:, 1:]].prod(axis=1)
        chances = chances * density[row, np.arange(mask.shape[1]), paths].prod(axis=1)
        value += np.log(chances.sum())
        for path, share in zip(paths, chances / chances.sum(), strict=True):
            first[path[0]] += share
            np.add.at(pairs, (path[:-1], path[1:]), share)
            states[row, np.arange(len(path)), path] += share
    states = states * mask[..., None]
    share = states / states.sum(axis=(0, 1))
    parts = [first / first.sum(), pairs / pairs.sum(axis=1, keepdims=True)]
    if params.variance is None:
        parts.append(np.stack([share[x == symbol].sum(axis=0) for symbol in range(D)]))
    else:
        means = np.einsum("rtd,rth->dh", x, share)
        parts += [means, np.einsum("rtdh,rth->dh", (x[..., None] - means) ** 2, share)]
    return HiddenMarkov(*parts), value


@pytest.mark.parametrize("kind", ["table", "vectors"])
def test_a_step_of_baum_welch_against_enumeration(kind, float64):
    """What is missing counts for no emission; its state counts for transitions and for the first state."""
    start, x = model(kind), draw(kind, 6, 5)
    mask = np.random.default_rng(4).uniform(size=(6, 5)) < 0.6
    mask[0] = False
    expected, value = enumerate_step(start, x, mask)
    hidden = np.where(mask.reshape(6, 5, *[1] * (x.ndim - 2)), x, 99 if kind == "table" else np.nan)
    one = hidden_markov.refine(start, hidden, mask=mask, tol=0.0, max_iters=1, accelerate=False)
    assert_same(one.params, expected, 1e-10)
    none = hidden_markov.refine(start, hidden, mask=mask, max_iters=0)
    np.testing.assert_allclose(none.log_likelihood, value / 6, rtol=1e-12)
    _, after = enumerate_step(one.params, x, mask)
    np.testing.assert_allclose(one.log_likelihood, after / 6, rtol=1e-10)


@pytest.mark.parametrize("kind", ["table", "vectors"])
def test_refining_with_a_mask_that_hides_nothing(kind, float64):
    start, x = model(kind), draw(kind, 6, 5)
    mask, expected = np.ones((6, 5), bool), hidden_markov.refine(start, x, max_iters=10)
    jax.tree.map(np.testing.assert_array_equal, hidden_markov.refine(start, x, mask=mask, max_iters=10), expected)
    traced = jax.jit(lambda mask: hidden_markov.refine(start, x, mask=mask, max_iters=10))(mask)
    assert_same(traced, expected, 1e-9)


@pytest.mark.parametrize("kind", ["table", "list"])
def test_symbols_below_zero_are_missing_in_every_verb(kind, float64):
    """Eagerly as under `jit`, where a mask says it, and where both do."""
    x, params = draw(kind), model(kind)
    mask = np.random.default_rng(5).uniform(size=(N, TIME)) < 0.9
    mask[:, 0] = np.arange(N) % 2 == 0
    coded = np.where(mask, x, -1 - 5 * x)
    verbs = {
        # Polishing ends where rounding lets it, in flat directions too.
        "fit": lambda x, **given: fit(kind, x, polish=False, **given),
        "refine": lambda x, **given: hidden_markov.refine(params, x, max_iters=5, **given),
        "log_likelihood": lambda x, **given: hidden_markov.log_likelihood(params, x, **given),
        "posterior": lambda x, **given: hidden_markov.posterior(params, x, **given),
        "viterbi": lambda x, **given: hidden_markov.viterbi(params, x, **given),
    }
    for name, verb in verbs.items() if kind == "table" else [("fit", verbs["fit"])]:
        expected = verb(x, mask=mask)
        jax.tree.map(np.testing.assert_array_equal, verb(coded), expected)
        half = mask | (np.arange(TIME) < TIME // 2)
        jax.tree.map(np.testing.assert_array_equal, verb(coded, mask=half), expected)
        traced = jax.jit(verb)(coded)
        if name == "fit":
            traced, expected = traced.params, expected.params
        assert_same(traced, expected, 1e-6)
    with pytest.raises(ValueError, match=r"x: expected at least num_components = 3 triples .*; got 0"):
        fit(kind, np.full((N, TIME), -1))


@pytest.mark.parametrize("kind", ["table", "vectors"])
def test_under_a_trace_data_without_weight_are_told(kind, float64):
    x = draw(kind)
    weightless = jax.jit(lambda w: hidden_markov.refine(model(kind), x, row_weights=w, max_iters=5))(np.zeros(N))
    unseen = jax.jit(lambda m: hidden_markov.refine(model(kind), x, mask=m, max_iters=5))(np.zeros((N, TIME), bool))
    # Weights that are all zero are no weights; eager calls refuse them.
    assert weightless.status == Status.NON_FINITE
    assert unseen.status == Status.UNOBSERVED
    assert np.all([np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(unseen)])
