"""The EM loop where a step falls, fails or meets a broken lane."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.decompose.internal import Evaluation, expectation_maximization
from tests.decompose.em_cases import STATES, batched, by_hand, densities, feasible, gap, jitted, run, step
from tests.helpers import largest, lowers


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
