import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status, diagonalize_slices, simultaneous_diagonalization
from latensor.decompose.internal import real_eigenvectors
from tests.helpers import best_order, lowers, orthogonal_tensor


def problem(seed, d, k, signs=False):
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(d, k))
    factors = factors / np.linalg.norm(factors, axis=0)
    first = rng.uniform(1, 2, k)
    second = first * np.linspace(-1, 2, k) if k > 1 else first
    if signs:
        flip = np.where(np.arange(k) % 2 == 0, 1, -1)
        first, second = first * flip, second * flip
    build = lambda weights: jnp.asarray(factors * weights @ factors.T)  # noqa: E731
    return factors, first, second, build(first), build(second)


def up_to_sign(factors):
    factors = np.asarray(factors)
    return factors * np.sign(np.sum(factors**3, axis=0))


def rmse(truth, estimate):
    """Up to the order and the signs of the columns."""
    truth, estimate = up_to_sign(truth), up_to_sign(estimate)
    return np.sqrt(np.mean((truth - estimate[:, best_order(truth, estimate)]) ** 2))


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize(("d", "k"), [(6, 6), (12, 5), (7, 2), (4, 1)])
def test_the_lemma_in_both_of_its_cases(d, k, definite, precision):
    factors, first, second, x, y = problem(d, d, k)
    result = simultaneous_diagonalization(x, y, k, definite=definite)
    tolerance = 1e-10 if precision == "float64" else 3e-3
    assert rmse(factors, result.factors) < tolerance
    np.testing.assert_allclose(np.sort(result.second_weights), np.sort(first), atol=10 * tolerance)
    np.testing.assert_allclose(np.sort(result.slice_weights), np.sort(second), atol=10 * tolerance)
    assert result.residual < tolerance
    assert result.status == Status.CONVERGED
    assert result.factors.dtype == precision


@pytest.mark.parametrize(("d", "k"), [(6, 6), (12, 5), (20, 20)])
def test_weights_of_either_sign(d, k, float64):
    factors, first, _, x, y = problem(d, d, k, signs=True)
    result = simultaneous_diagonalization(x, y, k, definite=False)
    assert rmse(factors, result.factors) < 1e-9
    np.testing.assert_allclose(np.sort(result.second_weights), np.sort(first), atol=1e-8)
    assert result.status == Status.CONVERGED


def test_equal_ratios_are_degenerate(float64):
    _, _, _, x, _ = problem(0, 12, 5)
    result = simultaneous_diagonalization(x, 2 * x, 5, definite=True)
    assert result.status == Status.DEGENERATE
    assert all(np.all(np.isfinite(leaf)) for leaf in result)


@pytest.mark.parametrize(("gap", "status"), [(5e-15, Status.DEGENERATE), (2e-13, Status.CONVERGED)])
def test_ratios_that_differ_by_more_than_rounding_are_told_apart(gap, status, float64):
    ratios = np.array([-1.0, -0.5, 0.5, 1.0 - gap, 1.0])
    x, y = (jnp.diag(jnp.asarray(np.append(diagonal, np.zeros(7)))) for diagonal in (np.ones(5), ratios))
    result = simultaneous_diagonalization(x, y, 5, definite=True)
    assert result.status == status
    np.testing.assert_allclose(result.gap, gap, rtol=0.1)


@pytest.mark.parametrize("definite", [True, False])
def test_too_low_a_rank_is_a_status(definite, float64):
    _, _, _, x, y = problem(0, 12, 3)
    result = simultaneous_diagonalization(x, y, 5, definite=definite)
    assert result.status >= Status.DEGENERATE
    assert all(np.all(np.isfinite(leaf)) for leaf in result)


def test_no_real_solution_is_degenerate(float64):
    # The ratios of this pair are the eigenvalues ±i of a rotation: no real B exists.
    x, y = jnp.diag(jnp.array([1.0, -1.0])), jnp.array([[0.0, 1.0], [1.0, 0.0]])
    result = simultaneous_diagonalization(x, y, 2, definite=False)
    assert result.status == Status.DEGENERATE
    assert all(np.all(np.isfinite(leaf)) for leaf in result)


def test_nan_reads_as_failure(float64):
    _, _, _, x, y = problem(0, 6, 6)
    for definite in (True, False):
        assert (
            simultaneous_diagonalization(x, y.at[0, 0].set(jnp.nan), 6, definite=definite).status == Status.NON_FINITE
        )


@pytest.mark.parametrize("size", [1, 2, 7, 25])
def test_real_eigenvectors_agree_with_lapack(size, float64):
    rng = np.random.default_rng(size)
    basis = rng.normal(size=(size, size))
    matrix = basis @ np.diag(np.arange(1.0, size + 1)) @ np.linalg.inv(basis)
    result = jax.jit(real_eigenvectors)(jnp.asarray(matrix))
    assert bool(result.converged)
    np.testing.assert_allclose(np.sort(result.values), np.arange(1.0, size + 1), atol=1e-7)
    np.testing.assert_allclose(matrix @ result.vectors, result.vectors * result.values[None, :], atol=1e-8 * size**2)


def test_vmap_equals_loop(float64):
    pairs = [problem(seed, 12, 5, signs=True)[3:] for seed in range(3)]
    x, y = (jnp.stack(part) for part in zip(*pairs, strict=True))
    for definite in (True, False):
        solve = lambda a, b, d=definite: simultaneous_diagonalization(a, b, 5, definite=d)  # noqa: E731
        batch = jax.vmap(solve)(x, y)
        for i in range(3):
            np.testing.assert_allclose(batch.factors[i], solve(x[i], y[i]).factors, atol=1e-10)


def test_lowers_for_accelerators():
    for definite in (True, False):
        lowers(lambda x, y, d=definite: simultaneous_diagonalization(x, y, 3, definite=d), jnp.eye(5), jnp.eye(5))


def test_a_slice_alone_is_exact_and_noisier_than_the_polished_one(float64):
    tensor, values, vectors = orthogonal_tensor(0, 5)
    pairs = diagonalize_slices(jax.random.key(0), tensor, polish=False)
    assert pairs.status == Status.CONVERGED
    assert pairs.num_iters == 0
    np.testing.assert_allclose(np.sort(pairs.values)[::-1], values, rtol=1e-10)
    np.testing.assert_allclose(np.abs(vectors.T @ pairs.vectors).max(axis=0), 1, rtol=1e-10)
    noise = np.random.default_rng(1).normal(size=(5, 5, 5)) * 0.03
    noisy = tensor + jnp.asarray(sum(noise.transpose(order) for order in itertools.permutations(range(3))) / 6)
    errors = [
        1 - np.abs(vectors.T @ diagonalize_slices(jax.random.key(0), noisy, polish=polish).vectors).max(axis=0).min()
        for polish in (False, True)
    ]
    assert errors[1] < errors[0]
