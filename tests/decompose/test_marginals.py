import functools

import numpy as np
import pytest

from latensor.decompose import (
    Status,
)
from tests.decompose.marginals_cases import SHAPES, SMALL, by_barrier, certificate, log_likelihood, problems, solve_all


def as_matrix(matrices):
    """Return `O₁⊗…⊗O_m` itself."""
    return functools.reduce(np.kron, matrices)


def test_the_certificate_is_that_of_the_definition():
    counts, conditionals, _ = problems(SMALL)
    counts, matrices = counts[1], [part[1] for part in conditionals]
    matrix, table = as_matrix(matrices), np.random.default_rng(0).dirichlet(np.ones(16))
    weights = counts.reshape(-1) / counts.sum()
    expected = np.max(matrix.T @ (weights / (matrix @ table))) - 1
    assert certificate(table.reshape(4, 4), counts, matrices) == pytest.approx(expected)
    best, gap = by_barrier(counts, matrices)
    assert 0 <= gap < 1e-7
    assert best - weights @ np.log(matrix @ table) <= expected


@pytest.mark.parametrize("shape", list(SHAPES))
def test_reaches_the_maximum_that_another_solver_certifies(shape, float64):
    counts, conditionals, _ = problems(shape)
    result = solve_all(counts, conditionals)
    assert result.table.shape == (SHAPES[shape], *[shape[1]] * shape[0])
    assert np.max(result.gap) <= 1e-6
    assert np.all(result.status == Status.CONVERGED)
    assert np.min(result.table) >= 0
    np.testing.assert_allclose(result.table.reshape(SHAPES[shape], -1).sum(axis=1), 1, atol=1e-12)
    for number in range(SHAPES[shape]):
        matrices = [part[number] for part in conditionals]
        best, gap = by_barrier(counts[number], matrices)
        assert gap < 1e-7
        honest = log_likelihood(result.table[number], counts[number], matrices)
        assert result.log_likelihood[number] == pytest.approx(honest, abs=1e-11)
        assert honest == pytest.approx(best, abs=1e-6)


def test_there_are_two_hundred_problems_and_optima_on_the_boundary():
    assert sum(SHAPES.values()) == 200
    for shape in SHAPES:
        assert np.mean(problems(shape)[2] == 0) > 0.3


@pytest.mark.parametrize("shape", [(1, 8, 30), (2, 4, 12)])
def test_takes_a_fifth_of_the_iterations_of_em(shape, float64):
    counts, conditionals, _ = problems(shape)
    fast = solve_all(counts, conditionals)
    slow = solve_all(counts[:20], [part[:20] for part in conditionals], accelerate=False, max_iters=20_000)
    assert np.all((slow.gap <= 1e-6) | (slow.num_iters == 20_000))
    assert np.median(fast.num_iters[:20] / slow.num_iters) <= 0.2


def test_em_is_em(float64):
    """A few steps by hand; the first evaluation is counted too."""
    counts, conditionals, _ = problems(SMALL)
    result = solve_all(counts, conditionals, accelerate=False, max_iters=4)
    for number in range(3):
        matrix = as_matrix([part[number] for part in conditionals])
        weights = counts[number].reshape(-1) / counts[number].sum()
        z = np.full(matrix.shape[1], 1 / matrix.shape[1])
        for _ in range(3):
            z = z * (matrix.T @ (weights / (matrix @ z)))
        np.testing.assert_allclose(result.table[number].reshape(-1), z, atol=1e-13)
        assert result.gap[number] == pytest.approx(np.max(matrix.T @ (weights / (matrix @ z))) - 1)
    assert np.all(result.num_iters == 4)
    assert np.all(result.status == Status.MAX_ITERS)


@pytest.mark.parametrize("accelerate", [True, False])
def test_the_likelihood_never_falls(accelerate, float64):
    counts, conditionals, _ = problems(SMALL)
    before = np.full(SHAPES[SMALL], -np.inf)
    gains = []
    for limit in (1, 3, 5, 7, 9, 11, 13, 21, 41):
        result = solve_all(counts, conditionals, accelerate=accelerate, max_iters=limit)
        assert np.max(result.num_iters) <= limit
        assert np.min(result.log_likelihood - before) > -1e-14
        gains.append(np.max(result.log_likelihood - before))
        before = result.log_likelihood
    assert gains[1] > 0.01


@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.parametrize("limit", [1, 4, 7, 10])
def test_stops_at_the_limit(limit, accelerate, float64):
    counts, conditionals, _ = problems(SMALL)
    result = solve_all(counts, conditionals, accelerate=accelerate, max_iters=limit)
    assert limit - 1 <= np.min(result.num_iters)
    assert np.max(result.num_iters) <= limit
    assert np.all(result.status == Status.MAX_ITERS)


def test_the_gap_bounds_what_is_missing(float64):
    """At points that are not optimal yet."""
    counts, conditionals, _ = problems(SMALL)
    best = solve_all(counts, conditionals, tol=1e-10)
    for limit in (1, 3, 9):
        result = solve_all(counts, conditionals, accelerate=False, max_iters=limit)
        missing = best.log_likelihood - result.log_likelihood
        assert np.all(missing <= result.gap + 1e-12)
        assert np.median(missing) > 1e-4
