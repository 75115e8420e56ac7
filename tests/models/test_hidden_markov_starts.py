"""Starts of polishing: bases of many symbols, states that are the same, and how many starts there are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import hidden_markov
from latensor.models.hidden_markov.states import occurrence, part_states
from tests.models.hidden_markov_cases import (
    KEY,
    as_model,
    assert_same,
    clear_model,
    draw,
    fit,
    in_order,
    trials,
)

SYMBOLS, TOKENS = 17, 2000


@functools.cache
def text(seed):
    """Return a chain whose next symbol depends on the one before: no hidden states, as in words or their tags."""
    rng = np.random.default_rng(seed)
    chain = rng.dirichlet(np.full(SYMBOLS, 0.1), SYMBOLS)
    chain = as_model(rng.dirichlet(np.ones(SYMBOLS)), 0.9 * chain + 0.1 / SYMBOLS, np.eye(SYMBOLS))
    return draw(chain, seed, 1, TOKENS)[0]


@functools.cache
def fit_text(seed, precision):
    del precision  # one fit for each
    return hidden_markov.fit(KEY, text(seed), 3, num_symbols=SYMBOLS)


def singular_values(x, d):
    pairs = np.zeros((d, d))
    np.add.at(pairs, (x[:-2], x[1:-1]), 1 / (len(x) - 2))
    left, right = (np.sqrt(np.maximum(pairs.sum(axis=axis), 1e-300)) for axis in (1, 0))
    return np.linalg.svd(pairs / left[:, None] / right[None, :], compute_uv=False)


def closest(params):
    """Return the largest cosine between the profiles of two states."""
    profiles = (
        np.asarray(params.emission) / np.sqrt(np.asarray(params.emission) @ np.asarray(occurrence(params)))[:, None]
    )
    profiles = profiles / np.linalg.norm(profiles, axis=0)
    return np.max(np.triu(profiles.T @ profiles, 1))


def test_singular_values_of_lists_are_those_of_a_dense_svd(precision):
    """Where what comes before a symbol differs from what comes after it."""
    for seed in range(3):
        values = fit_text(seed, precision).diagnostics.spectrum.values
        np.testing.assert_allclose(values, singular_values(text(seed), SYMBOLS)[:3], rtol=1e-3)


def test_the_start_from_a_list_is_that_from_a_table(float64):
    """Symbols that never occur make the table too large; the moments are the same."""
    _, x, (_, _, table) = trials()[0]
    listed = fit(x, polish=False, num_symbols=60)
    few = listed.params._replace(emission=np.asarray(listed.params.emission)[:12])
    assert_same(in_order(table.params, few).emission, np.asarray(table.params.emission), 2e-3)
    for part in ("values", "noise"):
        values = [getattr(each.diagnostics.spectrum, part) for each in (listed, table)]
        np.testing.assert_allclose(*values, rtol=1e-4)


def test_no_two_states_of_a_fit_are_the_same(precision):
    """Lists that no hidden Markov model of three states explains."""
    for seed in range(3):
        estimate = fit_text(seed, precision)
        assert estimate.status <= Status.MAX_ITERS
        assert closest(estimate.params) < 0.99


def test_it_does_not_matter_how_a_list_is_compiled():
    """In float32, where a saddle between two states would be left in a direction of its own each time."""
    batched = jax.jit(jax.vmap(lambda x: hidden_markov.fit(KEY, x, 3, num_symbols=SYMBOLS)))
    batch = batched(jnp.stack([text(seed) for seed in range(3)]))
    values = [float(fit_text(seed, "float32").diagnostics.log_likelihood) for seed in range(3)]
    # A nat of 2,000 windows.
    np.testing.assert_allclose(batch.diagnostics.log_likelihood, values, atol=1 / TOKENS)


@pytest.mark.parametrize("real", [False, True])
def test_states_that_are_the_same_are_parted(real, float64):
    truth = clear_model(0, k=4)
    emission, transition = np.array(truth.emission), np.array(truth.transition)
    emission[:, 2] = emission[:, 0]
    transition[:, 3], initial = 0, np.array([0.4, 0.3, 0.3, 0.0])
    transition /= transition.sum(axis=1, keepdims=True)
    twins = as_model(initial, transition, emission, *([np.full((12, 4), 0.01)] if real else []))
    parted = jax.jit(part_states)(KEY, twins)
    # The first two are as they were; the twin and the one that never occurs are new.
    np.testing.assert_array_equal(parted.emission[:, :2], emission[:, :2])
    assert np.min(np.abs(np.asarray(parted.emission)[:, 2:] - emission[:, :1]).max(axis=0)) > 0.01
    assert np.all(np.asarray(occurrence(parted)) > 0.01)
    np.testing.assert_allclose(np.sum(parted.transition, axis=1), 1, rtol=1e-12)
    same = jax.jit(part_states)(KEY, truth)
    jax.tree.map(np.testing.assert_array_equal, same, truth)


def test_one_start_where_the_spectrum_is_clear(float64):
    """And more where it is not, from 500 of the 10,000 symbols."""
    _, x, (_, many, _) = trials()[6]
    assert many.diagnostics.spectrum.values[-1] > 2 * many.diagnostics.spectrum.noise
    # The same optimum: other starts end 1e-3 away, or more. Where EM stops is a matter of rounding.
    assert_same(fit(x, num_starts=1).params, many.params, 1e-6)
    weights, gains = (np.arange(len(x)) < 5).astype(float), []
    for _, x, (few, _, _) in trials():
        single = fit(x, row_weights=weights, num_starts=1)
        gains.append(float(few.diagnostics.log_likelihood - single.diagnostics.log_likelihood))
    # A start that is ahead after some steps may be overtaken, by little.
    assert min(gains) > -1e-3, gains
    assert np.mean(gains) > 1e-3, gains


def test_polishing_of_traced_vectors(float64):
    truth = as_model([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[-1.0, 2.0]], [[0.5, 1.0]])
    x = draw(truth, 0, 20, 50)
    eager, traced = hidden_markov.fit(KEY, x, 2), jax.jit(lambda x: hidden_markov.fit(KEY, x, 2))(x)
    assert eager.status == traced.status == Status.CONVERGED
    assert_same(traced.params, eager.params, 1e-6)
    assert_same(eager.diagnostics.log_likelihood, traced.diagnostics.log_likelihood, 1e-9)
    linear = hidden_markov.fit(KEY, x, 2, marginals="pseudoinverse", polish=False)
    assert linear.diagnostics.log_likelihood < eager.diagnostics.log_likelihood
    assert np.isfinite(linear.diagnostics.log_likelihood)
