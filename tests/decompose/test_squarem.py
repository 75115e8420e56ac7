import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Evaluation, accelerated_em
from tests.helpers import largest, lowers

# Proportions of a mixture whose components are known: densities of each sample for each component.
SAMPLES, STATES = 200, 4


def densities(seed, distance=1.0):
    """Return normal densities with means `distance` apart: the nearer they are, the slower EM is."""
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
    """Return by how much the objective can be larger elsewhere, at most."""
    return np.max(np.mean(likelihoods / (likelihoods @ weights)[:, None], axis=0)) - 1


def step(weights, likelihoods, done):
    fitted = jnp.sum(likelihoods * weights[None, :], axis=1)
    gradient = jnp.mean(likelihoods / fitted[:, None], axis=0)
    return Evaluation(weights * gradient, jnp.mean(jnp.log(fitted)), jnp.max(gradient) - 1 <= done)


def feasible(jump, back):
    jump = jnp.maximum(jump, 0.01 * back)
    return jump / jnp.sum(jump)


def run(likelihoods, max_iters, tol=-jnp.inf, done=-jnp.inf, accelerate=True, start=None):
    start = jnp.full(STATES, 1 / STATES, likelihoods.dtype) if start is None else start
    return accelerated_em(
        lambda weights: step(weights, likelihoods, done), start, feasible, tol, max_iters, accelerate=accelerate
    )


jitted = jax.jit(run, static_argnames="accelerate")
batched = jax.jit(
    lambda many, limit, done, accelerate: jax.vmap(lambda one: run(one, limit, done=done, accelerate=accelerate))(many),
    static_argnums=3,
)


@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_without_acceleration_it_is_em(steps, precision):
    """The first evaluation of the start counts as one."""
    likelihoods = densities(0)
    found = jitted(jnp.asarray(likelihoods, float), steps, accelerate=False)
    tol = 1e-13 if precision == "float64" else 1e-5
    assert found.params.dtype == precision
    assert largest(found.params - by_hand(likelihoods, steps - 1)) < tol
    assert float(found.objective) == pytest.approx(objective(by_hand(likelihoods, steps - 1), likelihoods), abs=tol)
    assert int(found.num_iters) == steps


def test_converges_to_the_limit_of_em_in_fewer_steps(float64):
    for seed in range(5):
        likelihoods = densities(seed)
        slow = jitted(jnp.asarray(likelihoods), 50_000, done=1e-9, accelerate=False)
        fast = jitted(jnp.asarray(likelihoods), 50_000, done=1e-9)
        for found in (fast, slow):
            assert bool(found.done)
            assert gap(np.asarray(found.params), likelihoods) <= 1.001e-9
        assert float(fast.objective) == pytest.approx(float(slow.objective), abs=1e-9)
        assert largest(fast.params - slow.params) < 1e-3
        assert int(fast.num_iters) < 0.5 * int(slow.num_iters)


def test_the_first_jump_is_that_of_the_formula(float64):
    """`θ₀ + 2s r + s² v`, `s = |r|/|v|`, but from 1 to 4; where that is lower than the first step, the first step."""
    many = np.stack([densities(seed, distance) for seed in range(4) for distance in (0.5, 1, 3)])
    found = batched(jnp.asarray(many), 3, -jnp.inf, True)
    strides = []
    for params, likelihoods in zip(np.asarray(found.params), many, strict=True):
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
    for limit in (1, 3, 5, 7, 9, 15, 31, 101, 301):
        found = batched(jnp.asarray(many), limit, -jnp.inf, accelerate)
        assert np.min(np.asarray(found.objective) - before) > -1e-14
        before = np.asarray(found.objective)
        honest = [objective(*pair) for pair in zip(np.asarray(found.params), many, strict=True)]
        np.testing.assert_allclose(before, honest, atol=1e-13)


@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 3, 8, 9])
def test_stops_at_the_limit(limit, accelerate, float64):
    found = jitted(jnp.asarray(densities(0)), limit, accelerate=accelerate)
    assert limit - 1 <= int(found.num_iters) <= limit
    assert not bool(found.done)


def test_stops_where_nothing_is_gained(float64):
    likelihoods = jnp.asarray(densities(1, 3.0))
    found = jitted(likelihoods, 10_000, tol=1e-6)
    assert 1 < int(found.num_iters) < 10_000
    assert 0 <= float(found.gain) <= 1e-6
    assert jitted(likelihoods, 1).gain == np.inf


def test_a_start_that_is_good_enough_stays(float64):
    likelihoods = densities(2, 3.0)
    best = by_hand(likelihoods, 2_000)
    found = jitted(jnp.asarray(likelihoods), 100, done=1e-6, start=jnp.asarray(best))
    assert bool(found.done)
    assert int(found.num_iters) == 1
    np.testing.assert_array_equal(found.params, best)


def test_a_jump_into_nowhere_is_not_taken(float64):
    """Jumps to where the objective is lower, or NaN: what is left is EM, at two steps for one."""
    likelihoods = jnp.asarray(densities(3))

    @jax.jit
    def find(corner):
        return accelerated_em(
            lambda weights: step(weights, likelihoods, -jnp.inf),
            jnp.asarray(np.full(STATES, 1 / STATES)),
            lambda jump, back: jnp.where(jnp.arange(STATES) == 0, corner, 1e-9),
            -jnp.inf,
            11,
        )

    for corner in (1e-6, jnp.nan):
        np.testing.assert_allclose(find(corner).params, by_hand(np.asarray(likelihoods), 5), atol=1e-13)


def test_lanes_of_different_difficulty(float64):
    distances = (0.7, 4.0, 1.0, 2.0)
    many = np.stack([densities(seed, distance) for seed, distance in enumerate(distances)])
    batch = batched(jnp.asarray(many), 20_001, 1e-8, True)
    assert np.max(batch.num_iters) > 3 * np.min(batch.num_iters)
    for lane, likelihoods in enumerate(many):
        single = jitted(jnp.asarray(likelihoods), 20_001, done=1e-8)
        assert bool(batch.done[lane])
        assert gap(np.asarray(batch.params[lane]), likelihoods) <= 1.001e-8
        assert int(batch.num_iters[lane]) == int(single.num_iters)
        np.testing.assert_allclose(batch.params[lane], single.params, atol=1e-10)


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
        return Evaluation(updated, jnp.mean(jnp.log(fitted)), jnp.asarray(False))

    def allowed(jump, back):
        return {"weights": feasible(jump["weights"], back["weights"]), "means": jump["means"]}

    start = {"weights": jnp.asarray([0.5, 0.5]), "means": jnp.asarray([-0.5, 0.5])}
    find = jax.jit(lambda tol, limit: accelerated_em(em, start, allowed, tol, limit))
    found = find(1e-12, 1_001)
    assert int(found.num_iters) < 1_001
    after = em(found.params)
    assert largest(after.updated["means"] - found.params["means"]) < 1e-4
    assert largest(after.updated["weights"] - found.params["weights"]) < 1e-4
    assert float(found.objective) == pytest.approx(float(after.objective), abs=1e-12)


def test_lowers_for_accelerators():
    lowers(lambda likelihoods: run(likelihoods, 10), jnp.asarray(densities(0), jnp.float32))
