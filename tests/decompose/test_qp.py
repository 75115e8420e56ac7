import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latensor.decompose import Status, solve_nonnegative_qp
from latensor.decompose.internal import linear_rate_phi, pqp_update, smallest_gamma
from tests.helpers import lowers

# One shape for most tests: what takes time is compiling.
BATCH, SIZE = 80, 10
UPDATE = jax.jit(jax.vmap(pqp_update))


def problems(seed, batch, n, condition=1e6):
    """Return quadratics and linear terms of either sign, with condition numbers up to `condition` and any scale."""
    rng = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(rng.normal(size=(batch, n, n)))
    decay = rng.uniform(0, np.log10(condition), (batch, 1)) * np.linspace(0, -1, n)
    values = 10 ** (decay + rng.uniform(-3, 3, (batch, 1)))
    quadratic = np.einsum("bih,bh,bjh->bij", vectors, values, vectors)
    linear = rng.normal(size=(batch, n)) * 10 ** rng.uniform(-3, 3, (batch, 1))
    return (quadratic + quadratic.transpose(0, 2, 1)) / 2, linear


def minimum_on(support, quadratic, linear):
    x = np.zeros(len(linear))
    x[support] = np.linalg.solve(quadratic[np.ix_(support, support)], -linear[support])
    return x


def by_enumeration(quadratic, linear):
    """Try all supports."""
    every = [minimum_on(np.array(s), quadratic, linear) for s in itertools.product([False, True], repeat=len(linear))]
    return min((x for x in every if np.all(x >= 0)), key=lambda x: objective(x, quadratic, linear))


def by_active_set(quadratic, linear):
    """Lawson and Hanson's algorithm, which ends at the exact solution."""
    n = len(linear)
    x, support = np.zeros(n), np.zeros(n, bool)
    while True:
        wish = np.where(support, -np.inf, -(quadratic @ x + linear))
        if np.max(wish) <= 1e-13 * np.max(np.abs(linear)):
            return x
        support[np.argmax(wish)] = True
        while np.any((goal := minimum_on(support, quadratic, linear))[support] <= 0):
            leaving = support & (goal <= 0)
            share = x[leaving] / (x[leaving] - goal[leaving])
            support[np.flatnonzero(leaving)[np.argmin(share)]] = False
            x = np.where(support, x + np.min(share) * (goal - x), 0)
        x = goal


def objective(x, quadratic, linear):
    return np.einsum("...i,...ij,...j->...", x, quadratic, x) / 2 + np.sum(x * linear, axis=-1)


def residual(x, quadratic, linear):
    gradient = np.einsum("...ij,...j->...i", quadratic, x) + linear
    worst = np.max(np.abs(np.minimum(np.einsum("...ii->...i", quadratic) * x, gradient)), axis=-1)
    return worst / np.max(np.abs(linear), axis=-1)


def test_the_two_oracles_agree():
    for quadratic, linear in zip(*problems(5, 20, 6), strict=True):
        both = by_enumeration(quadratic, linear), by_active_set(quadratic, linear)
        np.testing.assert_allclose(*(objective(x, quadratic, linear) for x in both), rtol=1e-10)


@pytest.mark.parametrize(
    ("batch", "n", "oracle"), [((5, 8), 2, by_enumeration), ((80,), 10, by_active_set), ((80,), 50, by_active_set)]
)
def test_agrees_with_an_exact_solver(batch, n, oracle, float64):
    quadratic, linear = problems(n, int(np.prod(batch)), n)
    best = [objective(oracle(q, z), q, z) for q, z in zip(quadratic, linear, strict=True)]
    quadratic, linear = quadratic.reshape(*batch, n, n), linear.reshape(*batch, n)
    result = solve_nonnegative_qp(jnp.asarray(quadratic), jnp.asarray(linear))
    assert result.x.shape == (*batch, n)
    assert np.min(result.x) >= 0
    np.testing.assert_allclose(result.objective.reshape(-1), best, rtol=1e-6)
    np.testing.assert_allclose(objective(np.asarray(result.x), quadratic, linear).reshape(-1), best, rtol=1e-6)
    assert np.all(np.asarray(result.status) == Status.CONVERGED)
    # The residual is that of the point returned, up to the rounding of a gradient.
    honest = residual(np.asarray(result.x), quadratic, linear)
    np.testing.assert_allclose(result.residual, honest, atol=1e-9)
    assert np.max(honest) < 2e-8


def test_a_point_that_is_not_there_yet_says_so(float64):
    quadratic, linear = problems(0, BATCH, SIZE)
    result = solve_nonnegative_qp(jnp.asarray(quadratic), jnp.asarray(linear), accelerate=False, max_iters=1)
    np.testing.assert_allclose(result.residual, residual(np.asarray(result.x), quadratic, linear), rtol=1e-9)
    assert np.all(np.asarray(result.num_iters) == 1)
    assert np.all(np.asarray(result.status) == Status.MAX_ITERS)
    # Accelerated, one iteration is enough for some of them; the status follows the residual.
    result = solve_nonnegative_qp(jnp.asarray(quadratic), jnp.asarray(linear), max_iters=1)
    honest = residual(np.asarray(result.x), quadratic, linear)
    np.testing.assert_allclose(result.residual, honest, rtol=1e-6, atol=1e-9)
    assert (np.asarray(result.status) == Status.MAX_ITERS).tolist() == (honest > np.sqrt(np.finfo(float).eps)).tolist()
    assert np.sum(honest > 1e-3) > 10


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.sampled_from([0.0, 1.0, 100.0]))
def test_objective_never_rises(float64, seed, more):
    quadratic, linear = problems(seed, BATCH, SIZE)
    rng = np.random.default_rng(seed + 1)
    size = np.einsum("bii->bi", quadratic) * rng.uniform(0, more, (BATCH, SIZE))
    gamma = np.sum(np.maximum(-quadratic, 0), axis=2) + size
    start = rng.uniform(0.01, 1, (BATCH, SIZE)) * np.abs(linear) / np.einsum("bii->bi", quadratic)
    phi = rng.uniform(0, more, (BATCH, SIZE)) * np.abs(linear)
    arrays = [jnp.asarray(array) for array in (quadratic, linear, gamma, phi, start)]
    after = np.asarray(UPDATE(arrays[4], *arrays[:4]))
    assert np.max(rises(start, after, quadratic, linear)) < 1e-14
    assert np.min(after) >= 0
    for accelerate in (True, False):
        before = start
        for limit in (0, 1, 2, 3, 8):
            result = solve_nonnegative_qp(
                *arrays[:2], gamma=arrays[2], phi=arrays[3], start=arrays[4], accelerate=accelerate, max_iters=limit
            )
            assert np.max(result.num_iters) <= limit
            assert np.max(rises(before, np.asarray(result.x), quadratic, linear)) < 1e-14
            before = np.asarray(result.x)


def rises(before, after, quadratic, linear):
    """Return by how much the objective has risen, relative to the terms that it adds up."""
    rise = objective(after, quadratic, linear) - objective(before, quadratic, linear)
    size = sum(objective(np.abs(x), np.abs(quadratic), np.abs(linear)) for x in (before, after))
    return rise / np.where(size > 0, size, 1)


def test_plain_updates_converge_linearly(float64):
    """Theorem 6: with its `φ`, twenty updates always take off a share of the error, early and late."""
    quadratic, linear = problems(3, BATCH, SIZE, condition=5)
    best = np.stack([by_active_set(q, z) for q, z in zip(quadratic, linear, strict=True)])
    errors = []
    for limit in range(0, 400, 20):
        result = solve_nonnegative_qp(
            jnp.asarray(quadratic), jnp.asarray(linear), accelerate=False, max_iters=limit, tol=0.0
        )
        errors.append(objective(np.asarray(result.x), quadratic, linear) - objective(best, quadratic, linear))
    errors = np.stack(errors) / np.abs(objective(best, quadratic, linear))
    clear = errors[:-1] > 1e-12
    ratios = (errors[1:] / np.where(clear, errors[:-1], 1))[clear]
    assert np.max(ratios) < 0.95
    assert np.max(errors[-1]) < 1e-3 < 10 < np.max(errors[0])


def test_theorem_six_phi_and_gamma(float64):
    quadratic, linear = problems(1, 1, 5, condition=100)
    quadratic, linear = quadratic[0], linear[0]
    size = np.sqrt(linear @ np.linalg.solve(quadratic, linear) / np.linalg.eigvalsh(quadratic)[0])
    phi = np.maximum(size * np.diagonal(quadratic) - np.abs(linear), 0) / 2
    result = linear_rate_phi(jnp.asarray(quadratic), jnp.asarray(linear))
    np.testing.assert_allclose(result, phi, rtol=1e-9)
    assert np.all(result > phi * (1 - 1e-12))
    np.testing.assert_allclose(
        linear_rate_phi(jnp.asarray(quadratic), jnp.stack([jnp.asarray(linear)] * 2)), np.stack([phi, phi]), rtol=1e-9
    )
    np.testing.assert_allclose(smallest_gamma(jnp.asarray(quadratic)), -np.sum(np.minimum(quadratic, 0), axis=1))


def test_nan_lanes_are_flagged_and_spoil_nothing(float64):
    quadratic, linear = problems(SIZE, BATCH, SIZE)
    clean = solve_nonnegative_qp(jnp.asarray(quadratic), jnp.asarray(linear))
    broken_quadratic, broken_linear = quadratic.copy(), linear.copy()
    broken_quadratic[3, 2, 2], broken_linear[7, 0] = np.nan, np.inf
    result = solve_nonnegative_qp(jnp.asarray(broken_quadratic), jnp.asarray(broken_linear))
    others = np.setdiff1d(np.arange(BATCH), [3, 7])
    assert result.status[jnp.array([3, 7])].tolist() == [Status.NON_FINITE] * 2
    assert np.all(np.isnan(result.residual[jnp.array([3, 7])]))
    assert np.all(np.asarray(result.status)[others] == Status.CONVERGED)
    np.testing.assert_array_equal(np.asarray(result.x)[others], np.asarray(clean.x)[others])


def test_a_batch_is_a_loop(float64):
    quadratic, linear = (jnp.asarray(array) for array in problems(SIZE, BATCH, SIZE, condition=1e3))
    batch = solve_nonnegative_qp(quadratic, linear)
    for lane in range(5):
        single = solve_nonnegative_qp(quadratic[lane], linear[lane])
        np.testing.assert_allclose(batch.x[lane], single.x, rtol=1e-9, atol=1e-9 * np.max(single.x))
        assert batch.num_iters[lane] == single.num_iters


def test_float32():
    quadratic, linear = problems(4, BATCH, SIZE, condition=100)
    best = [objective(by_active_set(q, z), q, z) for q, z in zip(quadratic, linear, strict=True)]
    result = solve_nonnegative_qp(jnp.asarray(quadratic, jnp.float32), jnp.asarray(linear, jnp.float32))
    assert result.x.dtype == result.objective.dtype == result.residual.dtype == jnp.float32
    assert np.all(np.asarray(result.status) == Status.CONVERGED)
    np.testing.assert_allclose(result.objective, best, rtol=1e-4)


def test_coordinates_alone_and_nothing_to_do(float64):
    """A diagonal quadratic has the solution `max(−z / q, 0)`; without a linear term it is zero."""
    diagonal = np.random.default_rng(0).uniform(0.1, 10, (BATCH, SIZE))
    linear = np.random.default_rng(1).normal(size=(BATCH, SIZE))
    linear[0] = 0
    quadratic = jnp.asarray(diagonal[:, :, None] * np.eye(SIZE))
    result = solve_nonnegative_qp(quadratic, jnp.asarray(linear))
    np.testing.assert_allclose(result.x, np.maximum(-linear / diagonal, 0), atol=1e-6)
    assert np.all(np.asarray(result.status) == Status.CONVERGED)
    assert not np.any(result.x[0])


def test_an_update_keeps_what_it_cannot_judge(float64):
    x = pqp_update(jnp.array([2.0, 3.0]), jnp.diag(jnp.array([0.0, 1.0])), jnp.zeros(2), jnp.zeros(2), jnp.zeros(2))
    assert x.tolist() == [2.0, 0.0]


def test_shapes_that_do_not_fit_are_named(no_type_checks):
    with pytest.raises(ValueError, match=r"linear: expected one vector per quadratic \(3, 3\); got shape \(4,\)"):
        solve_nonnegative_qp(jnp.eye(3), jnp.ones(4))


@pytest.mark.parametrize("accelerate", [True, False])
def test_lowers_for_accelerators(accelerate):
    lowers(lambda q, z: solve_nonnegative_qp(q, z, accelerate=accelerate), jnp.eye(3)[None], jnp.ones((1, 3)))
