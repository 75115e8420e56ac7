import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latensor.decompose import Status, column_angles, match_columns, matched_rmse, project_columns_to_simplex
from latensor.decompose.internal import worst
from tests.helpers import lowers

METHODS = ("procrustes", "angle", "assignment")


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)), st.integers(0, 1000))
def test_finds_the_permutation(method, order, seed):
    reference = np.random.default_rng(seed).normal(size=(12, 5))
    estimate = reference[:, list(order)] * 3 + 0.01
    matching = match_columns(jnp.asarray(reference), jnp.asarray(estimate), method)
    assert bool(matching.is_permutation)
    np.testing.assert_allclose(estimate[:, np.asarray(matching.permutation)], 3 * reference + 0.01, rtol=1e-5)


def test_two_claims_to_one_column_are_flagged(float64):
    reference = jnp.array([[1.0, 0.9], [0.0, 0.1]])
    estimate = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    by_angle = match_columns(reference, estimate, "angle")
    assert not bool(by_angle.is_permutation)
    assert by_angle.permutation.tolist() == [0, 0]
    assert bool(match_columns(reference, estimate, "assignment").is_permutation)
    assert bool(match_columns(reference, estimate, "procrustes").is_permutation)


def test_procrustes_tells_when_it_finds_no_permutation(float64):
    reference, estimate = [[1.0, 2, 0], [1, 0, 1], [3, 3, 3]], [[0.0, 1, 0], [1, 2, 1], [0, 0, 1]]
    neither = match_columns(jnp.array(reference), jnp.array(estimate), "procrustes")
    assert neither.permutation.tolist() == [1, 2, 2]
    assert not bool(neither.is_permutation)
    # Damped, the rule says 1, 2, 1; as the paper has it, 1, 2, 0.
    reference, estimate = [[1.0, 2, 1], [3, 0, 2], [0, 3, 0]], [[3.0, 1, 1], [0, 3, 0], [1, 0, 3]]
    plain = match_columns(jnp.array(reference), jnp.array(estimate), "procrustes")
    assert plain.permutation.tolist() == [1, 2, 0]
    assert bool(plain.is_permutation)


def test_a_permutation_by_procrustes_need_not_be_the_best(float64):
    """A counterexample to Theorem 1 of the paper on PTPQP, of distributions over three categories."""
    reference = np.array([[0.1, 0.3, 0.6], [0.4, 0.2, 0.2], [0.5, 0.5, 0.2]])
    estimate = np.array([[0.0, 0.3, 0.7], [0.5, 0.5, 0.2], [0.5, 0.2, 0.1]])
    u, v = (columns / np.linalg.norm(columns, axis=0) for columns in (reference, estimate))
    left, _, right = np.linalg.svd(u.T @ v)
    assert np.argmax(left @ right, axis=1).tolist() == [1, 0, 2]  # equation (10)
    matchings = {m: match_columns(jnp.asarray(reference), jnp.asarray(estimate), m) for m in METHODS}
    assert all(bool(matching.is_permutation) for matching in (matchings["procrustes"], matchings["assignment"]))
    assert matchings["procrustes"].permutation.tolist() == [1, 0, 2]
    assert matchings["assignment"].permutation.tolist() == [0, 1, 2]
    # By the norm that the theorem is about as well: 0.735 against 0.879.
    assert np.linalg.norm(u - v) < 0.9 * np.linalg.norm(u - v[:, [1, 0, 2]])


def noisy_problems(number, d=30, k=8):
    """Columns in k − 1 dimensions, in a random order and with as much noise: one direction is noise alone."""
    rng = np.random.default_rng(0)
    places = np.linalg.qr(rng.normal(size=(number, k, k)))[0][:, :, : k - 2]
    reference = 1 + rng.normal(size=(number, d, k - 2)) @ places.swapaxes(1, 2)
    order = rng.permuted(np.tile(np.arange(k), (number, 1)), axis=1)
    estimate = np.take_along_axis(reference, order[:, None, :], axis=2) + rng.normal(size=(number, d, k))
    return reference, estimate, np.argsort(order, axis=1)


def test_damping_finds_more_permutations_than_the_paper_and_than_the_angle(float64):
    """Plain Procrustes misses 57 % of them, the angle 55 %, the angle or else Procrustes 33 %, the damped one 19 %."""
    reference, estimate, truth = noisy_problems(1000)
    matching = jax.vmap(lambda x, y: match_columns(x, y, "procrustes"))(jnp.asarray(reference), jnp.asarray(estimate))
    found = np.asarray(matching.permutation)
    valid = np.all(np.sort(found, axis=1) == np.arange(8), axis=1)
    np.testing.assert_array_equal(matching.is_permutation, valid)
    u, v = (columns / np.linalg.norm(columns, axis=1, keepdims=True) for columns in (reference, estimate))
    overlap = u.swapaxes(1, 2) @ v
    left, _, right = np.linalg.svd(overlap)
    plain, angle = np.argmax(left @ right, axis=2), np.argmax(overlap, axis=2)
    is_order = np.all(np.sort(angle, axis=1) == np.arange(8), axis=1)
    either = np.where(is_order[:, None], angle, plain)
    missed = {
        name: np.mean(np.any(order != truth, axis=1))
        for name, order in (("damped", found), ("plain", plain), ("angle", angle), ("either", either))
    }
    # Shares have standard errors of 0.016 at most.
    assert missed["damped"] < min(missed["plain"], missed["angle"], missed["either"]) - 0.06, missed
    assert 0 < np.sum(~valid) < 200


@pytest.mark.parametrize("seed", range(5))
def test_errors_are_those_of_the_best_permutation(seed, precision):
    rng = np.random.default_rng(seed)
    reference, estimate = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    best_rmse, best_angle = np.inf, np.inf
    for order in itertools.permutations(range(4)):
        moved = estimate[:, order]
        best_rmse = min(best_rmse, np.sqrt(np.mean((reference - moved) ** 2)))
        cosines = np.sum(reference * moved, axis=0) / np.linalg.norm(reference, axis=0) / np.linalg.norm(moved, axis=0)
        best_angle = min(best_angle, np.sum(np.arccos(cosines)))
    tolerance = 1e-7 if precision == "float64" else 1e-4
    a, b = jnp.asarray(reference), jnp.asarray(estimate)
    np.testing.assert_allclose(matched_rmse(a, b), best_rmse, rtol=tolerance)
    np.testing.assert_allclose(jnp.sum(column_angles(a, b)), best_angle, rtol=tolerance)
    assert matched_rmse(a, b).dtype == precision


def test_small_angles_are_exact(float64):
    reference = jnp.array([[1.0], [0.0]])
    estimate = jnp.array([[1.0], [1e-12]])
    np.testing.assert_allclose(column_angles(reference, estimate), [1e-12], rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_nan_and_zero_columns_end(method, float64):
    reference = jnp.eye(4)
    for estimate in (jnp.full((4, 4), jnp.nan), jnp.zeros((4, 4))):
        match_columns(reference, estimate, method).permutation.block_until_ready()
    assert bool(jnp.isnan(matched_rmse(reference, jnp.full((4, 4), jnp.nan))))
    assert not bool(match_columns(reference, jnp.full((4, 4), jnp.nan), method).is_permutation)


@pytest.mark.parametrize("method", METHODS)
def test_length_of_columns_does_not_matter(method):
    order = jnp.array([2, 0, 3, 1])
    matching = match_columns(1e-25 * jnp.eye(4), 1e25 * jnp.eye(4)[:, order], method)
    assert order[matching.permutation].tolist() == [0, 1, 2, 3]


def test_shapes_that_differ_are_named(no_type_checks):
    for function in (match_columns, matched_rmse, column_angles):
        with pytest.raises(ValueError, match=r"estimate: expected the shape of reference, \(4, 4\); got \(4, 3\)"):
            function(jnp.eye(4), jnp.eye(4)[:, :3])


def test_unknown_method_is_named(no_type_checks):
    with pytest.raises(ValueError, match=r"method: expected .*procrustes.*got 'nearest'"):
        match_columns(jnp.eye(2), jnp.eye(2), "nearest")


def test_projection_to_the_simplex(precision):
    columns = jnp.array([[0.5, 2.0, -1.0], [0.5, 0.0, -1.0]])
    projected, distance = project_columns_to_simplex(columns)
    np.testing.assert_allclose(projected, [[0.5, 1.0, 0.5], [0.5, 0.0, 0.5]], atol=1e-6)
    np.testing.assert_allclose(distance, [0.0, 1.0, np.sqrt(4.5)], atol=1e-6)


def test_worst_status_wins():
    assert worst(Status.CONVERGED, Status.RANK_DEFICIENT, Status.MAX_ITERS) == Status.RANK_DEFICIENT
    assert all(status.message for status in Status)


def test_vmap_equals_loop(float64):
    keys = jax.random.split(jax.random.key(0), 2)
    a, b = (jax.random.normal(key, (3, 5, 4)) for key in keys)
    for method in METHODS:
        batch = jax.vmap(lambda x, y, m=method: match_columns(x, y, m).permutation)(a, b)
        assert batch.tolist() == [match_columns(a[i], b[i], method).permutation.tolist() for i in range(3)]
    np.testing.assert_allclose(jax.vmap(matched_rmse)(a, b), [matched_rmse(a[i], b[i]) for i in range(3)])


def test_lowers_for_accelerators():
    a = jnp.eye(4)
    for method in METHODS:
        lowers(lambda x, y, m=method: match_columns(x, y, m), a, a)
    lowers(matched_rmse, a, a)
    lowers(column_angles, a, a)
    lowers(project_columns_to_simplex, a)
