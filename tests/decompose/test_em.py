import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.decompose.internal import Evaluation, expectation_maximization
from tests.helpers import largest, lowers

# Proportions of a mixture whose components are known: densities of each sample for each component.
SAMPLES, STATES = 200, 4


def densities(seed, distance=1.0):
    """Return normal densities with means `distance` apart: the closer they are, the slower EM is."""
    rng = np.random.default_rng(seed)
    means = distance * np.arange(STATES)
    x = rng.normal(means[rng.choice(STATES, SAMPLES, p=[0.6, 0.2, 0.15, 0.05])])
    return np.exp(-((x[:, None] - means) ** 2) / 2)


def by_hand(likelihoods, steps):
    weights = np.full(STATES, 1 / STATES)
    for _ in range(steps):
        posterior = likelihoods * weights
        weights = np.mean(posterior / posterior.sum(axis=1, keepdims=True), axis=0)
    return weights


def objective(weights, likelihoods):
    return np.mean(np.log(likelihoods @ weights))


def gap(weights, likelihoods):
    """Return an upper bound on how much larger the objective can be elsewhere."""
    return np.max(np.mean(likelihoods / (likelihoods @ weights)[:, None], axis=0)) - 1


def step(weights, likelihoods, done):
    fitted = jnp.sum(likelihoods * weights[None, :], axis=1)
    gradient = jnp.mean(likelihoods / fitted[:, None], axis=0)
    return Evaluation(weights * gradient, jnp.mean(jnp.log(fitted)), jnp.max(gradient) - 1 <= done)


def feasible(jump, back):
    jump = jnp.maximum(jump, 0.01 * back)
    return jump / jnp.sum(jump)


def run(likelihoods, max_iters, tol=-jnp.inf, done=-jnp.inf, accelerate=True, start=None, scale=1.0):
    return expectation_maximization(
        lambda weights: step(weights, likelihoods, done),
        jnp.full(STATES, 1 / STATES, likelihoods.dtype) if start is None else start,
        tol=tol,
        max_iters=max_iters,
        scale=scale,
        feasible=feasible if accelerate else None,
    )


jitted = jax.jit(run, static_argnames="accelerate")
batched = jax.jit(
    lambda many, limit, done, accelerate: jax.vmap(lambda one: run(one, limit, done=done, accelerate=accelerate))(many),
    static_argnums=3,
)


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


def along(values):
    """Return a step along the integers, whose objectives are `values`."""
    values = jnp.asarray(values)
    return lambda x: Evaluation(x + 1, values[jnp.clip(x, 0, values.shape[0] - 1).astype(int)])


@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.parametrize("fall", [2.0, np.nan, -np.inf])
def test_a_step_that_falls_is_rejected_and_ends_the_loop(fall, accelerate, float64):
    """Along a straight line a jump is as far as `feasible` allows: here it goes no further than the second step."""
    values = [0.0, 1.0, 3.0, fall, fall]

    def stay(jump, back):
        return jnp.minimum(jump, back)

    run = jax.jit(
        lambda tol: expectation_maximization(
            along(values), jnp.asarray(0.0), tol=tol, max_iters=100, scale=1.0, feasible=stay if accelerate else None
        )
    )
    result = run(0.0)
    assert float(result.params) == 2
    assert float(result.objective) == 3
    assert result.status == Status.MAX_ITERS  # it fell by more than rounding explains
    if not accelerate:
        assert int(result.num_iters) == 3
        assert float(result.gain) == (-1 if np.isfinite(fall) else 0)
    assert np.isfinite(result.gain)


def test_a_fall_by_rounding_counts_as_converged(float64):
    values = [0.0, 1.0, 3.0, 3.0 - 1e-15, 9.0]
    result = expectation_maximization(along(values), jnp.asarray(0.0), tol=0.0, max_iters=100)
    assert float(result.params) == 2
    assert float(result.objective) == 3
    assert result.status == Status.CONVERGED
    # A negative tolerance lets such falls pass.
    result = expectation_maximization(along(values), jnp.asarray(0.0), tol=-1e-12, max_iters=100)
    assert float(result.objective) == 9


@pytest.mark.parametrize("accelerate", [True, False])
def test_a_start_without_an_objective_is_a_status(accelerate, float64):
    result = expectation_maximization(
        lambda x: Evaluation(x + 1, jnp.nan * x),
        jnp.asarray(1.0),
        tol=0.0,
        max_iters=10,
        feasible=(lambda jump, back: jump) if accelerate else None,
    )
    assert result.status == Status.NON_FINITE
    assert float(result.params) == 1
    assert float(result.gain) == 0


def test_a_jump_to_a_worse_point_is_not_taken(float64):
    """Jumps to a lower objective, or to NaN: the remainder is EM, at two evaluations per step."""
    likelihoods = jnp.asarray(densities(3))

    @jax.jit
    def find(corner):
        return expectation_maximization(
            lambda weights: step(weights, likelihoods, -jnp.inf),
            jnp.asarray(np.full(STATES, 1 / STATES)),
            tol=-jnp.inf,
            max_iters=10,
            feasible=lambda jump, back: jnp.where(jnp.arange(STATES) == 0, corner, 1e-9),
        )

    for corner in (1e-6, jnp.nan):
        np.testing.assert_allclose(find(corner).params, by_hand(np.asarray(likelihoods), 5), atol=1e-13)


@pytest.mark.parametrize("accelerate", [True, False])
def test_lanes_of_different_difficulty(accelerate, float64):
    distances = (0.7, 4.0, 1.0, 2.0)
    many = np.stack([densities(seed, distance) for seed, distance in enumerate(distances)])
    batch = batched(jnp.asarray(many), 20_000, 1e-8, accelerate)
    assert np.max(batch.num_iters) > 3 * np.min(batch.num_iters)
    for lane, likelihoods in enumerate(many):
        single = jitted(jnp.asarray(likelihoods), 20_000, done=1e-8, accelerate=accelerate)
        assert bool(batch.done[lane]) == bool(single.done)
        assert int(batch.num_iters[lane]) == int(single.num_iters)
        assert batch.status[lane] == single.status
        np.testing.assert_allclose(batch.params[lane], single.params, atol=1e-10)
        np.testing.assert_allclose(batch.gain[lane], single.gain, atol=1e-12)
        if accelerate:
            assert gap(np.asarray(batch.params[lane]), likelihoods) <= 1.001e-8


@pytest.mark.parametrize("accelerate", [True, False])
def test_a_broken_lane_spoils_no_other(accelerate, float64):
    many = np.stack([densities(seed) for seed in range(3)])
    clean = batched(jnp.asarray(many), 40, -jnp.inf, accelerate)
    many[1] = np.nan
    batch = batched(jnp.asarray(many), 40, -jnp.inf, accelerate)
    assert batch.status.tolist() == [Status.MAX_ITERS, Status.NON_FINITE, Status.MAX_ITERS]
    assert np.all(np.isfinite(batch.gain))
    for one, other in zip(jax.tree.leaves(batch), jax.tree.leaves(clean), strict=True):
        np.testing.assert_array_equal(one[::2], other[::2])


def test_parameters_may_be_a_tree(float64):
    """Proportions and means together; the objective is that of the mixture."""
    rng = np.random.default_rng(4)
    x = jnp.asarray(np.concatenate([rng.normal(-1, 1, 120), rng.normal(1.5, 1, 80)]))

    def em(params):
        parts = params["weights"][None, :] * jnp.exp(-((x[:, None] - params["means"][None, :]) ** 2) / 2)
        fitted = jnp.sum(parts, axis=1)
        posterior = parts / fitted[:, None]
        count = jnp.sum(posterior, axis=0)
        updated = {"weights": count / x.size, "means": jnp.sum(posterior * x[:, None], axis=0) / count}
        return Evaluation(updated, jnp.mean(jnp.log(fitted)))

    def allowed(jump, back):
        return {"weights": feasible(jump["weights"], back["weights"]), "means": jump["means"]}

    start = {"weights": jnp.asarray([0.5, 0.5]), "means": jnp.asarray([-0.5, 0.5])}
    result = jax.jit(
        lambda tol, limit: expectation_maximization(em, start, tol=tol, max_iters=limit, feasible=allowed)
    )(1e-12, 1_000)
    assert int(result.num_iters) < 1_000
    after = em(result.params)
    assert largest(after.updated["means"] - result.params["means"]) < 1e-4
    assert largest(after.updated["weights"] - result.params["weights"]) < 1e-4
    assert float(result.objective) == pytest.approx(float(after.objective), abs=1e-12)


def test_lowers_for_accelerators():
    for accelerate in (True, False):
        lowers(
            lambda likelihoods, a=accelerate: run(likelihoods, 10, accelerate=a), jnp.asarray(densities(0), jnp.float32)
        )
