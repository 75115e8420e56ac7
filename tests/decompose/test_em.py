import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.decompose.internal import Evaluation, expectation_maximization
from tests.decompose.em_cases import batched, by_hand, densities, gap, jitted, objective, run
from tests.helpers import largest


@pytest.mark.parametrize("steps", [0, 1, 4, 19])
def test_without_extrapolation_it_is_em(steps, precision):
    likelihoods = densities(0)
    result = jitted(jnp.asarray(likelihoods, float), steps, accelerate=False)
    tol = 1e-13 if precision == "float64" else 1e-5
    assert result.params.dtype == precision
    assert largest(result.params - by_hand(likelihoods, steps)) < tol
    assert float(result.objective) == pytest.approx(objective(by_hand(likelihoods, steps), likelihoods), abs=tol)
    assert int(result.num_iters) == steps
    if precision == "float64":  # in float32 the gain of the last steps is rounding
        assert result.status == Status.MAX_ITERS


def test_converges_to_the_limit_of_em_in_fewer_steps(float64):
    for seed in range(5):
        likelihoods = densities(seed)
        slow = jitted(jnp.asarray(likelihoods), 50_000, done=1e-9, accelerate=False)
        fast = jitted(jnp.asarray(likelihoods), 50_000, done=1e-9)
        for result in (fast, slow):
            assert bool(result.done)
            assert result.status == Status.CONVERGED
            assert gap(np.asarray(result.params), likelihoods) <= 1.001e-9
        assert float(fast.objective) == pytest.approx(float(slow.objective), abs=1e-9)
        assert largest(fast.params - slow.params) < 1e-3
        assert int(fast.num_iters) < 0.5 * int(slow.num_iters)


def test_the_first_jump_is_that_of_the_formula(float64):
    """`θ₀ + 2s r + s² v`, `s = |r|/|v|` clipped to `[1, 4]`, unless its objective is lower than that of one step."""
    many = np.stack([densities(seed, distance) for seed in range(4) for distance in (0.5, 1, 3)])
    result = batched(jnp.asarray(many), 2, -jnp.inf, True)
    strides = []
    for params, likelihoods in zip(np.asarray(result.params), many, strict=True):
        start, first, second = (by_hand(likelihoods, steps) for steps in range(3))
        change, bend = first - start, second - 2 * first + start
        strides.append(np.clip(np.linalg.norm(change) / np.linalg.norm(bend), 1, 4))
        jump = np.maximum(start + 2 * strides[-1] * change + strides[-1] ** 2 * bend, 0.01 * second)
        jump /= jump.sum()
        better = objective(jump, likelihoods) >= objective(first, likelihoods)
        np.testing.assert_allclose(params, jump if better else first, atol=1e-12)
    assert np.sum((np.array(strides) > 1) & (np.array(strides) < 4)) > 2


@pytest.mark.parametrize("accelerate", [True, False])
def test_the_objective_never_falls(accelerate, float64):
    many = np.stack([densities(seed, distance) for seed in range(4) for distance in (0.5, 1, 3)])
    before = np.full(len(many), -np.inf)
    for limit in (0, 2, 4, 6, 8, 14, 30, 100, 300):
        result = batched(jnp.asarray(many), limit, -jnp.inf, accelerate)
        assert np.min(np.asarray(result.objective) - before) > -1e-14
        before = np.asarray(result.objective)
        recomputed = [objective(*pair) for pair in zip(np.asarray(result.params), many, strict=True)]
        np.testing.assert_allclose(before, recomputed, atol=1e-13)


@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.parametrize("limit", [0, 1, 2, 7, 8])
def test_stops_at_the_limit(limit, accelerate, float64):
    result = jitted(jnp.asarray(densities(0)), limit, accelerate=accelerate)
    assert int(result.num_iters) == limit
    assert not bool(result.done)
    assert result.status == Status.MAX_ITERS


@pytest.mark.parametrize("scale", [0.5, 200.0, None])
def test_the_gain_is_the_rise_of_the_last_cycle_in_units_of_the_scale(scale, float64):
    likelihoods = densities(0)
    values = [objective(by_hand(likelihoods, steps), likelihoods) for steps in range(6)]
    unit = scale or max(abs(values[5]), 1)
    plain = jax.jit(lambda limit: run(jnp.asarray(likelihoods), limit, accelerate=False, scale=scale))
    assert float(plain(0).gain) == 0
    assert float(plain(5).gain) == pytest.approx((values[5] - values[4]) / unit, rel=1e-9)
    fast = jax.jit(lambda limit: run(jnp.asarray(likelihoods), limit, scale=scale))
    results = [fast(limit) for limit in range(6)]
    assert float(results[0].gain) == 0
    # At odd limits the last cycle is the step after a settled point, the one that the limit before returned.
    for limit in range(1, 6):
        settled = results[(limit - 1) // 2 * 2]
        unit = scale or max(abs(float(results[limit].objective)), 1)
        rise = float(results[limit].objective) - float(settled.objective)
        assert float(results[limit].gain) == pytest.approx(rise / unit, rel=1e-9)
        assert rise > 0


@pytest.mark.parametrize("accelerate", [True, False])
def test_stops_where_a_cycle_gains_too_little(accelerate, float64):
    likelihoods = jnp.asarray(densities(1, 3.0))
    result = jitted(likelihoods, 10_000, tol=1e-6, accelerate=accelerate)
    assert 1 < int(result.num_iters) < 10_000
    assert 0 <= float(result.gain) <= 1e-6
    assert result.status == Status.CONVERGED
    assert not bool(result.done)
    # A tenth of the tolerance in ten times the unit is the same rule.
    same = jitted(likelihoods, 10_000, tol=1e-7, scale=10.0, accelerate=accelerate)
    assert int(same.num_iters) == int(result.num_iters)


def test_a_start_that_is_good_enough_stays(float64):
    likelihoods = densities(2, 3.0)
    best = by_hand(likelihoods, 2_000)
    result = jitted(jnp.asarray(likelihoods), 100, done=1e-6, start=jnp.asarray(best))
    assert bool(result.done)
    assert int(result.num_iters) == 0
    assert float(result.gain) == 0
    assert result.status == Status.CONVERGED
    np.testing.assert_array_equal(result.params, best)


# History.
@pytest.mark.parametrize("accelerate", [True, False])
def test_history_is_what_would_have_been_returned_after_each_step(accelerate, precision):
    likelihoods = jnp.asarray(densities(0), float)
    result = jitted(likelihoods, 9, accelerate=accelerate, history=12)
    assert result.history.dtype == precision
    ends = [jitted(likelihoods, steps, accelerate=accelerate) for steps in range(10)]
    np.testing.assert_array_equal(result.history[:10], [float(end.objective) for end in ends])
    # Beyond the last step it stays where it is.
    np.testing.assert_array_equal(result.history[10:], float(result.objective))
    assert ends[-1].history is None


def test_history_repeats_the_end_of_a_loop_that_stops_early_in_every_lane(float64):
    many = np.stack([densities(seed) for seed in range(3)])
    run_lane = functools.partial(run, max_iters=400, tol=1e-6, history=400)
    result = jax.jit(jax.vmap(run_lane))(jnp.asarray(many))
    for lane in range(3):
        number, history = int(result.num_iters[lane]), np.asarray(result.history[lane])
        assert 2 < number < 400
        assert np.all(np.diff(history) >= 0)
        np.testing.assert_array_equal(history[number:], float(result.objective[lane]))
        assert history[number] > history[1]


def test_history_keeps_what_the_step_records(float64):
    def step(weights):
        fitted = jnp.sum(likelihoods * weights[None, :], axis=1)
        value = jnp.mean(jnp.log(fitted))
        return Evaluation(weights * jnp.mean(likelihoods / fitted[:, None], axis=0), value, recorded=2 * value)

    likelihoods = jnp.asarray(densities(1))
    result = expectation_maximization(step, jnp.full(4, 0.25), tol=-jnp.inf, max_iters=3, history=3)
    np.testing.assert_allclose(
        result.history, [2 * objective(by_hand(np.asarray(likelihoods), steps), likelihoods) for steps in range(4)]
    )
