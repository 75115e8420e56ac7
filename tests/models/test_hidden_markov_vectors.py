"""Hidden Markov models of real vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import hidden_markov
from tests.helpers import largest
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
    errors,
    fit,
    in_order,
    occurrence,
)


# Real vectors.
def vectors(dtype=float):
    transition = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6]]
    means, variances = [[0.0, 3.0, -2.0], [1.0, -2.0, 4.0]], [[1.0, 0.5, 2.0], [0.3, 1.0, 1.5]]
    return as_model([0.1, 0.2, 0.7], transition, means, variances, dtype=dtype)


def test_vectors_give_means_and_variances_back(float64):
    truth = vectors()
    estimate = fit(draw(truth, 0))
    # 10,000 vectors, some 2,500 in the rarest state: standard errors of means and variances are 0.02 to 0.06.
    initial, transition, means, variances = errors(truth, estimate.params)
    assert means < 0.15
    assert variances < 0.3
    assert transition < 0.06
    # 100 first vectors: standard errors below 0.05.
    assert initial < 0.2
    assert estimate.status == Status.CONVERGED
    assert estimate.diagnostics.simplex_distance is None
    assert np.all(np.diff(occurrence(estimate.params)) < 0)


def test_six_states_are_told_apart_from_the_spectral_start(float64):
    """From random starts, EM takes two states for one in two of these six models."""
    axes = 4 * np.concatenate([np.eye(3), -np.eye(3)], axis=1)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        transition = 0.5 * np.eye(6) + 0.5 * rng.dirichlet(np.ones(6), 6)
        means, variances = axes + 0.5 * rng.normal(size=(3, 6)), rng.uniform(0.5, 2, (3, 6))
        truth = as_model(np.full(6, 1 / 6), transition, means, variances)
        estimate = hidden_markov.fit(KEY, draw(truth, seed, 50, 80), 6)
        # 4,000 vectors, some 300 in the rarest state: standard errors of means are 0.08, of transitions 0.03.
        _, transitions, means, _ = errors(truth, estimate.params)
        assert means < 0.4
        assert transitions < 0.12
        assert estimate.status == Status.CONVERGED


@pytest.mark.parametrize("kind", ["list", "vectors"])
def test_the_pseudoinverse_is_a_start_too(kind, float64):
    truth = vectors() if kind == "vectors" else clear_model(0)
    x, options = draw(truth, 0), {} if kind == "vectors" else {"num_symbols": 60}
    linear, likely = (fit(x, polish=False, marginals=each, **options) for each in ("pseudoinverse", "likelihood"))
    assert linear.diagnostics.gap is None
    assert 0 <= likely.diagnostics.gap < 1e-6
    # The same emissions, and another estimate of the transitions.
    assert_same(in_order(likely.params, linear.params).emission, likely.params.emission, 1e-9)
    assert 1e-4 < errors(likely.params, linear.params)[1] < 0.1
    truth = truth if kind == "vectors" else truth._replace(emission=np.pad(truth.emission, ((0, 60 - D), (0, 0))))
    alike = linear.params._replace(transition=jnp.full((K, K), 1 / K))
    assert errors(truth, linear.params)[1] < errors(truth, alike)[1] / 2
    for estimate in (linear, likely):
        assert estimate.status == Status.CONVERGED
        assert_finite(estimate)


def test_padding_of_vectors_does_not_matter(float64):
    x, lengths = draw(vectors(), 0), np.full(N, TIME - 7)
    expected = fit(x, lengths)
    for value in (0.0, 1e6, np.nan):
        other = x.copy()
        other[:, TIME - 7 :] = value
        assert_same(fit(other, lengths), expected, 1e-7)


def test_vectors_without_memory_stay_finite(float64):
    """Nothing tells three states apart: regression on vanishing states finds means beyond all data."""
    for seed in range(5):
        estimate = fit(np.random.default_rng(seed).normal(size=(N, TIME, 2)), polish=False)
        assert estimate.status >= Status.DEGENERATE
        assert_finite(estimate)
        assert largest(estimate.params.emission) < np.sqrt(N * TIME) + 1


def test_vectors_of_no_weight_do_not_matter(float64):
    x = draw(vectors(), 0)
    half = np.arange(N) < N // 2
    expected = fit(x, np.where(half, TIME, 0))
    for scale in (1.0, 100.0):
        estimate = fit(np.where(half[:, None, None], x, scale * x), row_weights=half.astype(float))
        assert estimate.status == expected.status == Status.CONVERGED
        assert_same(estimate.params, expected.params, 1e-6)


def test_states_that_differ_in_variance_alone(float64):
    """And float32 stays float32 where x64 is enabled."""
    truth = as_model([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[1.0, 1.0]], [[0.2, 4.0]], dtype=jnp.float32)
    x = draw(truth, 0).astype(np.float32)
    estimate = hidden_markov.fit(KEY, x, 2, num_starts=1)
    _, transition, means, variances = errors(truth, estimate.params)
    assert means < 0.2
    assert variances < 0.5
    assert transition < 0.05
    assert {leaf.dtype.name for leaf in jax.tree.leaves(estimate)} == {"float32", "int32"}
