"""Baum–Welch."""

import functools
import itertools

import jax
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import hidden_markov
from tests.models.hidden_markov_cases import _columns, as_model, assert_same, draw, trials

# Baum–Welch.
SMALL = np.array([5, 1, 3, 2, 5, 0])


@functools.cache
def small(real):
    """Return a start and a few short sequences, for sums over all paths."""
    rng = np.random.default_rng(0)
    parts = [rng.dirichlet(np.ones(2)), rng.dirichlet(np.ones(2), 2)]
    if real:
        parts += [rng.normal(size=(2, 2)), rng.uniform(0.5, 2.0, (2, 2))]
        return parts, rng.normal(size=(6, 5, 2))
    return [*parts, _columns(rng, 3, 2, 1.0)], rng.integers(0, 3, (6, 5))


def enumerate_step(parts, x, row_weights):
    """Return the parameters after a step of Baum–Welch, and the log-likelihood before it, by sums over all paths."""
    initial, transition, emission, *variance = parts
    first, pairs, states, value = np.zeros(2), np.zeros((2, 2)), np.zeros((*x.shape[:2], 2)), 0.0
    if variance:
        logs = -((x[..., None] - emission) ** 2) / (2 * variance[0]) - np.log(2 * np.pi * variance[0]) / 2
        density = np.exp(logs.sum(axis=2))
    else:
        density = emission[x]
    for row, (length, weight) in enumerate(zip(SMALL, row_weights, strict=True)):
        paths = list(itertools.product(range(2), repeat=int(length))) if length else []
        chances = np.array(
            [
                initial[path[0]]
                * np.prod([transition[pair] for pair in itertools.pairwise(path)])
                * np.prod([density[row, t, state] for t, state in enumerate(path)])
                for path in paths
            ]
        )
        value += weight * np.log(chances.sum()) if length else 0
        for path, share in zip(paths, weight * chances / chances.sum(), strict=True):
            first[path[0]] += share
            for pair in itertools.pairwise(path):
                pairs[pair] += share
            for t, state in enumerate(path):
                states[row, t, state] += share
    initial, transition = first / first.sum(), pairs / pairs.sum(axis=1, keepdims=True)
    share = states / states.sum(axis=(0, 1))
    if not variance:
        return as_model(initial, transition, np.stack([share[x == word].sum(axis=0) for word in range(3)])), value
    means = np.einsum("rtd,rth->dh", x, share)
    spread = np.einsum("rtdh,rth->dh", (x[..., None] - means) ** 2, share)
    return as_model(initial, transition, means, spread), value


def baum_welch(real, row_weights, **options):
    parts, x = small(real)
    return hidden_markov.refine(as_model(*parts), x, lengths=SMALL, row_weights=row_weights, **options)


@pytest.mark.parametrize("real", [False, True])
def test_a_step_of_baum_welch_against_enumeration(real, float64):
    parts, x = small(real)
    for row_weights in (np.ones(6), np.array([1.0, 0.5, 0.0, 0.25, 1.0, 1.0])):
        after, value = enumerate_step(parts, x, row_weights)
        start = baum_welch(real, row_weights, tol=0.0, max_iters=0, accelerate=False)
        assert start.num_iters == 0
        assert_same(start.params, as_model(*parts), 1e-15)
        np.testing.assert_allclose(start.log_likelihood, value / row_weights.sum(), rtol=1e-12)
        one = baum_welch(real, row_weights, tol=0.0, max_iters=1, accelerate=False)
        assert one.num_iters == 1
        assert_same(one.params, after, 1e-10)
        _, next_value = enumerate_step([np.asarray(part) for part in after if part is not None], x, row_weights)
        np.testing.assert_allclose(one.log_likelihood, next_value / row_weights.sum(), rtol=1e-10)
        np.testing.assert_allclose(one.gain, (next_value - value) / abs(value), rtol=1e-8)
        assert one.status == Status.MAX_ITERS


@pytest.mark.parametrize("real", [False, True])
def test_refining_never_makes_the_data_less_likely(real, precision):
    _, x = small(real)
    for row_weights in (np.ones(6), np.array([1.0, 0.5, 0.0, 0.25, 1.0, 1.0])):
        values = []
        for steps in (0, 2, 4, 10, 30, 100):
            refined = baum_welch(real, row_weights, tol=0.0, max_iters=steps)
            values.append(float(refined.log_likelihood))
            each = hidden_markov.log_likelihood(refined.params, x, lengths=SMALL)
            again = np.average(np.asarray(each, float), weights=row_weights)
            np.testing.assert_allclose(values[-1], again, rtol=1e-10 if precision == "float64" else 1e-5, atol=1e-5)
            assert np.isfinite(refined.gain)
        slack = 1e-10 if precision == "float64" else 1e-5
        assert np.all(np.diff(values) >= -slack), values
        assert values[-1] > values[0] + 0.02
        assert {leaf.dtype.name for leaf in jax.tree.leaves(refined)} == {precision, "int32"}


def test_refining_a_fit(float64):
    truth, x, (_, start, _) = trials()[0]
    refined = hidden_markov.refine(start.params, x)
    assert refined.status == Status.CONVERGED
    for other in (start.params, truth):
        assert refined.log_likelihood > float(np.mean(hidden_markov.log_likelihood(other, x)))


def test_refining_with_an_outlier_never_lowers_the_likelihood(precision):
    """An observation of 1e15 leaves the others no digits: a step that falls is not taken."""
    parts, x = small(True)
    x = x.copy()
    x[0, 0] = 1e15
    values = [hidden_markov.refine(as_model(*parts), x, max_iters=steps).log_likelihood for steps in (0, 5, 50)]
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(np.asarray(values, float)) >= 0), values


def two_scales(seed=0, n=2000):
    """Return states of standard deviations 1 and 50, a thousand apart, and one sequence."""
    truth = as_model([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.0, 1000.0]], [[1.0, 2500.0]])
    return truth, draw(truth, seed, 1, n)[0]


def test_refining_states_of_different_scales_never_lowers_the_likelihood(precision):
    """From the truth, and with a third state that closes in on one observation."""
    truth, x = two_scales()
    lonely = as_model(
        np.full(3, 1 / 3),
        np.full((3, 3), 1 / 3),
        np.append(truth.emission, [[x[7, 0]]], axis=1),
        np.append(truth.variance, [[1e-3]], axis=1),
    )
    for start in (truth, lonely):
        refined = [hidden_markov.refine(start, x, max_iters=steps, tol=0.0) for steps in (0, 1, 2, 4, 8, 60)]
        values = np.array([float(each.log_likelihood) for each in refined])
        assert np.all(np.diff(values) >= -1e-6 * abs(values[0])), values
        assert values[-1] > values[0]
        # 1,000 observations each: the standard deviations of the variances are 5 % of them.
        np.testing.assert_allclose(refined[-1].params.variance[0, :2], [1.0, 2500.0], rtol=0.2)
        assert np.all(np.asarray(refined[-1].params.variance) > 0)


@pytest.mark.parametrize("real", [False, True])
def test_zeros_of_a_left_to_right_model_stay_zeros(real, float64):
    """Also where the data contradict them: some sequences go back."""
    transition = np.array([[0.8, 0.2, 0.0], [0.0, 0.7, 0.3], [0.0, 0.0, 1.0]])
    if real:
        params = as_model([1.0, 0.0, 0.0], transition, [[0.0, 3.0, 6.0]], np.ones((1, 3)))
    else:
        params = as_model([1.0, 0.0, 0.0], transition, [[0.8, 0.1, 0.1], [0.1, 0.8, 0.0], [0.1, 0.1, 0.9]])
    x = draw(params, 0, 20, 12)
    x[:3] = x[:3, ::-1]
    refined = hidden_markov.refine(params, x).params
    np.testing.assert_array_equal(np.asarray(refined.transition) == 0, transition == 0)
    np.testing.assert_array_equal(refined.initial, [1, 0, 0])
    assert not np.allclose(refined.transition, transition, atol=1e-3)


def test_likelihoods_far_from_the_origin(precision):
    """States 30,000 standard deviations apart, and an observation beyond what squares can hold."""
    truth = as_model([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.0, 30000.0]] * 2, np.ones((2, 2)))
    x = draw(truth, 0, 1, 500)[0].astype(np.float32)
    values = np.asarray(hidden_markov.log_likelihood(truth, x))
    # States are not hidden: the likelihood is that of the one path.
    emissions = -0.5 * np.sum((x - np.round(x / 30000) * 30000) ** 2) - 500 * np.log(2 * np.pi)
    states = np.round(x[:, 0] / 30000).astype(int)
    steps = np.log(0.5) + np.sum(np.log(np.where(np.diff(states) == 0, 0.9, 0.1)))
    np.testing.assert_allclose(values, emissions + steps, rtol=1e-5)
    huge = x.copy()
    huge[3] = 1e30
    assert np.all(np.isfinite(hidden_markov.log_likelihood(truth, huge)))
