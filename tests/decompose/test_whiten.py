from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status, whiten, whiten_operator
from latensor.decompose.internal import last_direction
from tests.helpers import lowers


def low_rank(seed, d, rank):
    factors = np.random.default_rng(seed).normal(size=(d, rank))
    return jnp.asarray(factors @ factors.T)


@partial(jax.jit, static_argnums=1)
def both_ways(matrix, rank):
    dense = whiten(matrix, rank)
    implicit = whiten_operator(
        jax.random.key(7), lambda v: matrix @ v, matrix.shape[0], rank, dtype=matrix.dtype, tol=1e-12
    )
    return dense, implicit


def test_whitens_and_leads_back(precision):
    matrix = low_rank(0, 12, 4)
    tolerance = 1e-12 if precision == "float64" else 2e-4
    whitening = whiten(matrix, 4)
    np.testing.assert_allclose(whitening.whitener.T @ matrix @ whitening.whitener, np.eye(4), atol=tolerance)
    np.testing.assert_allclose(whitening.unwhitener.T @ whitening.whitener, np.eye(4), atol=tolerance)
    np.testing.assert_allclose(whitening.unwhitener @ whitening.unwhitener.T, matrix, atol=tolerance * 10)
    assert whitening.whitener.dtype == precision
    assert whitening.status == Status.CONVERGED


def test_operator_form_equals_the_dense_one(float64):
    noise = np.random.default_rng(1).normal(size=(40, 40)) * 0.01
    dense, implicit = both_ways(low_rank(0, 40, 5) + noise + noise.T, 5)
    np.testing.assert_allclose(dense.eigenvalues, implicit.eigenvalues, rtol=1e-10)
    # The whitener is determined up to the sign of its columns.
    np.testing.assert_allclose(dense.whitener @ dense.whitener.T, implicit.whitener @ implicit.whitener.T, atol=1e-9)
    assert implicit.status == Status.CONVERGED
    assert 0 < implicit.num_iters < 50


def test_operator_form_where_rank_plus_oversample_exceeds_the_dimension(precision):
    dense, implicit = both_ways(low_rank(3, 5, 5), 4)
    np.testing.assert_allclose(dense.eigenvalues, implicit.eigenvalues, rtol=1e-10 if precision == "float64" else 1e-4)


def test_a_direction_of_noise_has_nothing_of_the_others(float64):
    """The second estimate has rank two, the first has noise of size 1e-3 beside it: the third direction is noise.

    Orthogonal to the directions of the first estimate it has 1e-3 of those of the second, a form of 1e-6; with these
    taken out, the square of that.
    """
    exact, noise = low_rank(4, 8, 2), 1e-3 * low_rank(5, 8, 8)
    vector = last_direction(
        jax.random.key(0), lambda v: (exact + noise) @ v, lambda v: exact @ v, 8, 3, num_iters=20, dtype=exact.dtype
    )
    orthogonal = jnp.linalg.eigh(exact + noise)[1][:, -3]
    assert 0.99 < abs(float(vector @ orthogonal)) < 1.01
    assert float(orthogonal @ exact @ orthogonal) > 1e-7
    assert float(vector @ exact @ vector) < 1e-9


@pytest.mark.parametrize("route", [0, 1])
def test_too_low_a_rank_is_a_status_and_not_nan(route, precision):
    whitening = both_ways(low_rank(0, 10, 3), 5)[route]
    assert whitening.status == Status.RANK_DEFICIENT
    assert all(np.all(np.isfinite(leaf)) for leaf in whitening)
    assert float(jnp.max(jnp.abs(whitening.whitener[:, :3]))) > 0


def test_a_zero_matrix_is_a_status_and_not_nan(precision):
    for whitening in both_ways(jnp.zeros((6, 6)), 2):
        assert whitening.status == Status.RANK_DEFICIENT
        assert bool(jnp.all(whitening.whitener == 0))


def test_a_large_first_eigenvalue_does_not_keep_it_from_converging():
    # In float32 the residual cannot fall below eps · λ₁, however often one iterates.
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(200, 200)))
    spectrum = np.r_[1, np.full(4, 1e-4), np.zeros(195)]
    matrix = jnp.asarray((basis * spectrum) @ basis.T, jnp.float32)
    result = whiten_operator(jax.random.key(0), lambda v: jnp.matmul(matrix, v, precision="highest"), 200, 5)
    assert result.status == Status.CONVERGED
    assert result.num_iters < 10
    np.testing.assert_allclose(result.eigenvalues, spectrum[:5], rtol=1e-2)


@pytest.mark.parametrize("rank", [0, 7])
def test_rank_out_of_range_is_named(rank):
    with pytest.raises(ValueError, match=rf"rank: expected an integer from 1 to 6 .*; got {rank}"):
        whiten(jnp.eye(6), rank)
    with pytest.raises(ValueError, match=r"rank: expected"):
        whiten_operator(jax.random.key(0), lambda v: v, 6, rank)


def test_eigenvalue_below_the_noise_is_flagged(float64):
    matrix = jnp.diag(jnp.array([1.0, 0.5, 0.03, -0.02, 0.0]))
    assert whiten(matrix, 2).status == Status.CONVERGED
    assert whiten(matrix, 3).status == Status.RANK_DEFICIENT
    np.testing.assert_allclose(whiten(matrix, 3).noise, 0.02)


def test_nan_reads_as_failure(precision):
    matrix = low_rank(0, 6, 2).at[0, 0].set(jnp.nan)
    for whitening in both_ways(matrix, 2):
        assert whitening.status == Status.NON_FINITE


def test_iteration_limit_is_a_status(float64):
    noise = np.random.default_rng(1).normal(size=(30, 30))
    matrix = low_rank(0, 30, 3) + 0.5 * (noise + noise.T)
    short = whiten_operator(jax.random.key(0), lambda v: matrix @ v, 30, 3, max_iters=2)
    assert short.status == Status.MAX_ITERS
    assert short.num_iters == 2


def test_vmap_keeps_lanes_apart(float64):
    batch = jnp.stack([low_rank(0, 8, 3), jnp.full((8, 8), jnp.nan), low_rank(1, 8, 2)])
    result = jax.vmap(lambda m: whiten(m, 3))(batch)
    assert result.status.tolist() == [Status.CONVERGED, Status.NON_FINITE, Status.RANK_DEFICIENT]
    np.testing.assert_allclose(result.eigenvalues[0], whiten(batch[0], 3).eigenvalues, rtol=1e-12)


def test_lowers_for_accelerators():
    matrix = jnp.eye(6)
    lowers(lambda m: whiten(m, 2), matrix)
    lowers(lambda k, m: whiten_operator(k, lambda v: m @ v, 6, 2), jax.random.key(0), matrix)
