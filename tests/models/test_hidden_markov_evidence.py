"""What whole sequences say about an estimate of the hidden Markov model, and symbols that are in no triple."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import hidden_markov
from latensor.models.hidden_markov.evidence import choose_segments
from latensor.moments import Sequences

KEY = jax.random.key(0)
TRUTH = hidden_markov.HiddenMarkov(
    jnp.full(3, 1 / 3),
    jnp.asarray(np.full((3, 3), 0.1) + 0.7 * np.eye(3), jnp.float32),
    jnp.asarray(np.random.default_rng(5).dirichlet(np.full(8, 0.4), 3).T, jnp.float32),
)


def unigrams(x, shape):
    """Return the log-likelihood of each observation under one state."""
    shares = np.bincount(np.ravel(x), minlength=8) / np.size(x)
    return np.log(shares[x]).reshape(shape)


@pytest.mark.parametrize("shape", [(200, 20), (30, 128), (1, 250)])
def test_gain_is_that_of_whole_sequences(shape):
    """No more observations than are looked at, and no sequence is longer than a segment."""
    x = np.asarray(hidden_markov.sample(jax.random.key(1), TRUTH, shape[0], length=shape[1]).x)
    fit = hidden_markov.fit(KEY, x, 3, num_symbols=8)
    ours = np.asarray(hidden_markov.log_likelihood(fit.params, x))
    parameters = 3 * 2 + 2 * (len(np.unique(x)) - 1)
    expected = (ours.sum() - unigrams(x, x.shape).sum() - parameters * np.log(x.size) / 2) / x.size
    # Segments cut a few sequences in two; the second part knows less.
    np.testing.assert_allclose(fit.diagnostics.evidence.gain, expected, rtol=0.05 if shape[1] == 20 else 1e-4)
    assert fit.diagnostics.evidence.rank is None
    if x.size > 250:
        assert fit.status == Status.CONVERGED


def test_long_sequences_are_looked_at_in_segments():
    x = np.asarray(hidden_markov.sample(jax.random.key(2), TRUTH, 1, length=60_000).x[0])
    fit = hidden_markov.fit(KEY, x, 3, num_symbols=8)
    # Nine more parameters per state gain next to nothing here.
    expected = (float(hidden_markov.log_likelihood(fit.params, x)[0]) - unigrams(x, x.shape).sum()) / x.size
    evidence = fit.diagnostics.evidence
    assert abs(evidence.gain - expected) < 4 * evidence.gain_error
    assert evidence.gain_error < 0.1 * evidence.gain


def test_sequences_of_weight_zero_are_not_looked_at():
    weights = (np.arange(500) // 10 == 25).astype(np.float32)
    # Compiled as a whole, as in `fit`: operation by operation takes longer.
    segments = jax.jit(choose_segments)(Sequences(np.zeros((500, 100), np.int32), num_symbols=2, row_weights=weights))
    rows = np.unique(np.asarray(segments.observations.owner)[np.asarray(segments.weights) > 0])
    assert rows.tolist() == list(range(250, 260))


@pytest.mark.parametrize("num_components", [2, 4])
def test_independent_symbols_are_no_chain(num_components):
    """Seeds fixed in advance. What EM finds in noise is not clear of it."""
    for seed in range(3):
        x = np.random.default_rng(seed).choice(8, 20_000, p=np.arange(1, 9) / 36)
        fit = hidden_markov.fit(KEY, x, num_components)
        assert fit.status >= Status.POOR_FIT


def test_vectors_are_judged_too():
    rng = np.random.default_rng(3)
    truth = hidden_markov.HiddenMarkov(
        TRUTH.initial, TRUTH.transition, jnp.asarray(rng.normal(0, 2, (4, 3)), jnp.float32), jnp.ones((4, 3))
    )
    x = hidden_markov.sample(jax.random.key(4), truth, 20, length=200).x
    good = hidden_markov.fit(KEY, x, 3)
    assert good.status == Status.CONVERGED
    assert good.diagnostics.evidence.gain > 1
    assert hidden_markov.fit(KEY, rng.normal(size=(4000, 4)).astype(np.float32), 3).status >= Status.POOR_FIT


def test_one_state_has_no_gain():
    fit = hidden_markov.fit(KEY, np.random.default_rng(0).integers(0, 4, 500), 1)
    assert fit.diagnostics.evidence.gain is None
    assert fit.status == Status.CONVERGED


@pytest.mark.parametrize("num_symbols", [12, 40])
def test_symbols_in_no_triple_can_still_be_emitted(num_symbols):
    """Symbol 11 is only in sequences of two observations."""
    x = np.asarray(hidden_markov.sample(jax.random.key(6), TRUTH, 100, length=30).x)
    x = np.concatenate([x.ravel(), [11, 0] * 10])
    lengths = np.array([30] * 100 + [2] * 10)
    fit = hidden_markov.fit(KEY, x, 3, lengths=lengths, num_symbols=num_symbols)
    np.testing.assert_allclose(fit.params.emission[11], 10 / x.size, rtol=1e-5)
    np.testing.assert_allclose(jnp.sum(fit.params.emission, axis=0), 1, rtol=1e-5)
    assert np.all(np.asarray(fit.params.emission[12:]) == 0)
    assert np.all(np.asarray(hidden_markov.log_likelihood(fit.params, x, lengths=lengths)) > -200)


# What an attack found.
def weak_chain(seed, number, length):
    rng = np.random.default_rng(seed)
    truth = hidden_markov.HiddenMarkov(
        jnp.full(2, 0.5),
        jnp.asarray([[0.7, 0.3], [0.3, 0.7]]),
        jnp.asarray(0.6 / 8 + 0.4 * rng.dirichlet(np.ones(8), 2).T, jnp.float32),
    )
    return np.asarray(hidden_markov.sample(jax.random.key(seed), truth, number, length=length).x)


def test_padding_and_rows_without_weight_change_nothing():
    """More places than are looked at, most of them empty."""
    x = weak_chain(0, 1000, 8)
    plain = hidden_markov.fit(KEY, x.ravel(), 2, lengths=np.full(1000, 8), num_symbols=8)
    padded = np.full((1000, 60), -1)
    padded[:, :8] = x
    wide = hidden_markov.fit(KEY, padded, 2, lengths=np.full(1000, 8), num_symbols=8)
    more = np.concatenate([x, weak_chain(1, 3000, 8)])
    weighted = hidden_markov.fit(KEY, more, 2, num_symbols=8, row_weights=(np.arange(4000) < 1000).astype(float))
    expected = plain.diagnostics.evidence
    for other in (wide, weighted):
        np.testing.assert_allclose(other.params.emission, plain.params.emission, atol=1e-4)
        assert other.status == plain.status
        np.testing.assert_allclose(other.diagnostics.evidence.gain, expected.gain, atol=0.003)
        np.testing.assert_allclose(other.diagnostics.evidence.gain_error, expected.gain_error, rtol=0.4)


def test_few_observations_count_once_however_many_segments_see_them():
    x = weak_chain(2, 400, 100)
    heavy = slice(195, 200)
    alone = hidden_markov.fit(KEY, x[heavy], 2, num_symbols=8).diagnostics.evidence
    weights = np.zeros(400)
    weights[heavy] = 1
    among = hidden_markov.fit(KEY, x, 2, num_symbols=8, row_weights=weights).diagnostics.evidence
    np.testing.assert_allclose(among.gain, alone.gain, atol=0.02)
    np.testing.assert_allclose(among.gain_error, alone.gain_error, rtol=0.5)


def test_error_is_that_of_groups_of_neighbours():
    """Sequences that are as long as a group differ as a whole: observations are far from independent."""
    rng = np.random.default_rng(7)
    shares = np.repeat(rng.dirichlet(np.full(8, 2.0), 64), 256, axis=0)
    x = (rng.random((64 * 256, 1)) > np.cumsum(shares, axis=1)[:, :-1]).sum(axis=1)
    fit = hidden_markov.fit(KEY, x, 2, num_symbols=8, lengths=np.full(64, 256))
    ours = np.asarray(hidden_markov.log_likelihood(fit.params, x, lengths=np.full(64, 256))) / 256
    gains = ours - unigrams(x, (64, 256)).mean(axis=1)
    np.testing.assert_allclose(fit.diagnostics.evidence.gain_error, gains.std() / 8, rtol=0.05)


@pytest.mark.parametrize("column", ["constant", "two values"])
def test_columns_that_no_density_fits_make_no_chain(column):
    rng = np.random.default_rng(4)
    extra = np.full((2000, 1), 5.0) if column == "constant" else rng.integers(0, 2, (2000, 1)).astype(float)
    for seed in range(3):
        x = np.concatenate([np.random.default_rng(seed).normal(size=(2000, 3)), extra], axis=1)
        assert hidden_markov.fit(KEY, x.astype(np.float32), 2).status > Status.MAX_ITERS
