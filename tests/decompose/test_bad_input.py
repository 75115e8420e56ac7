"""What the functions of this layer refuse by name, and numbers at the ends of the floating range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import (
    Status,
    choose_anchors,
    composite_likelihood_em,
    conditionals_from_views,
    cp_als,
    decompose_views,
    diagonalize_slices,
    match_columns,
    matched_rmse,
    noise_variance,
    partition_variables,
    partitioned_nonnegative_cp,
    power_method,
    project_columns_to_simplex,
    reconstruct,
    relative_efficiency,
    simultaneous_diagonalization,
    solve_nonnegative_qp,
    whiten,
    whiten_operator,
)

pytestmark = pytest.mark.usefixtures("no_type_checks")

KEY = jax.random.key(0)
EYE = np.eye(3, dtype=np.float32)
CUBE = np.ones((3, 3, 3), np.float32)
COLUMNS = np.random.default_rng(0).dirichlet(np.ones(3), 2).T.astype(np.float32)
BAD = [
    ("rank: expected an integer from 1 to 3", lambda: whiten(EYE, 2.0)),
    ("rank: expected a value that is known before tracing", lambda: whiten(EYE, jnp.int32(2))),
    (r"second: expected numbers \(d, d\), .* got shape \(3, 2\)", lambda: whiten(COLUMNS, 2)),
    ("second: expected numbers; got str", lambda: whiten("second", 2)),
    ("second: expected numbers .* got None", lambda: whiten(None, 2)),
    ("dimension: expected an integer", lambda: whiten_operator(KEY, lambda v: v, 0, 1)),
    ("key: expected a random key", lambda: whiten_operator(0, lambda v: v, 3, 1)),
    ("rank: expected an integer from 1 to 3", lambda: noise_variance(EYE, 9)),
    ("mask: expected the shape of the diagonal", lambda: noise_variance(EYE, 1, np.ones(2, bool))),
    (r"tensor: expected numbers \(k, k, k\), .* got shape \(3, 3\)", lambda: power_method(KEY, EYE, 2)),
    ("key: expected a random key .* got None", lambda: power_method(None, CUBE, 2)),
    ("num_restarts: expected an integer of at least 1; got 0", lambda: power_method(KEY, CUBE, 2, 0)),
    ("max_iters: expected numbers; got int", lambda: power_method(KEY, CUBE, 2, max_iters=2**70)),
    (r"tol: expected one number; got shape \(2,\)", lambda: power_method(KEY, CUBE, 2, tol=np.ones(2))),
    (r"tensor: expected numbers \(k, k, k\)", lambda: diagonalize_slices(KEY, EYE)),
    ("num_slices: expected an integer from 1 to 1048576", lambda: diagonalize_slices(KEY, CUBE, 10**9)),
    ("slice: expected the shape of second", lambda: simultaneous_diagonalization(EYE, np.eye(2), 2)),
    ("rank: expected an integer", lambda: cp_als(KEY, CUBE, 10**9)),
    (r"start: expected three arrays \(d, k\); got", lambda: cp_als(KEY, CUBE, 2, start=1.0)),
    ("factors: expected 2 columns", lambda: reconstruct(np.ones(2), (EYE, EYE, EYE))),
    ("pairs: expected three arrays", lambda: decompose_views(KEY, (EYE, EYE), CUBE, 2)),
    ("pairs: expected shapes", lambda: decompose_views(KEY, (EYE, EYE, COLUMNS), CUBE, 2)),
    ("first: expected means", lambda: conditionals_from_views(KEY, (np.ones(2),) * 3, (EYE,) * 3, CUBE, 2)),
    ("estimate: expected the shape of reference", lambda: match_columns(EYE, COLUMNS)),
    ("marginals: expected 2, one per column", lambda: relative_efficiency(COLUMNS, np.ones(3) / 3)),
    ("linear: expected vectors", lambda: solve_nonnegative_qp(EYE, 1.0)),
    ("loadings: expected 9 rows", lambda: choose_anchors(EYE, (3, 3, 3), 1)),
    ("sizes: expected one integer per variable", lambda: partition_variables((), 1, ((0,), (1,), (2,)))),
    ("anchors: expected variables from 0 to 2", lambda: partition_variables((3, 3, 3), 1, ((0,), (1,), (9,)))),
    ("anchors: expected three groups", lambda: partition_variables((3, 3, 3), 1, np.int32(1))),
    ("is_anchor: expected three arrays", lambda: partitioned_nonnegative_cp(KEY, CUBE[None], None, 2)),
]


@pytest.mark.parametrize(("message", "call"), BAD, ids=[str(place) for place in range(len(BAD))])
def test_arguments_are_named(message, call):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_lists_and_small_floats_are_arrays_too():
    assert whiten([[1.0]], 1).eigenvalues == 1
    assert whiten(EYE.astype(np.float16), 2).eigenvalues.dtype == np.result_type(jnp.result_type(float))
    assert whiten(EYE.astype(">f8"), 2).status == Status.CONVERGED
    rbg = jax.random.PRNGKey(1, impl="rbg")
    assert np.all(np.isfinite(power_method(rbg, CUBE, 2).values))


def test_one_status_at_a_time():
    assert Status(jnp.int32(2)) is Status.BOUNDARY
    assert Status(3) is Status.POOR_FIT
    with pytest.raises(ValueError, match=r"status: expected one status; got an array of shape \(3,\): use"):
        Status(jnp.zeros(3, int))
    with pytest.raises(ValueError, match="status: expected a concrete one; got a traced one: compare"):
        jax.vmap(lambda status: Status(status).value)(jnp.zeros(3, int))
    with pytest.raises(ValueError, match="8 is not a valid Status"):
        Status(8)


def test_projection_of_large_numbers():
    columns = np.array([[1e30, 1e30, 0.3, 3e38], [1e30, 1, 0.7, -3e38], [1e30, -1e30, 0.0, 0]], np.float32)
    projected, distance = project_columns_to_simplex(columns)
    expected = [[1 / 3, 1, 0.3, 1], [1 / 3, 0, 0.7, 0], [1 / 3, 0, 0, 0]]
    np.testing.assert_allclose(projected, expected, atol=1e-6)
    largest = float(np.finfo(np.float32).max)
    np.testing.assert_allclose(distance, [3**0.5 * 1e30, 2**0.5 * 1e30, 0, largest], rtol=1e-5, atol=1e-7)


def test_conditionals_of_views_in_large_units(precision):
    rng = np.random.default_rng(3)
    views, weights = [rng.normal(size=(4, 2)) + 1 for _ in range(3)], np.array([0.6, 0.4])
    for unit in (1.0, 1e12, 1e-8):
        a, b, c = (unit * view for view in views)
        first = tuple(jnp.asarray(view @ weights) for view in (a, b, c))
        second = tuple(jnp.asarray((one * weights) @ two.T) for one, two in ((a, b), (a, c), (b, c)))
        third = jnp.asarray(np.einsum("ih,jh,lh,h->ijl", a, b, c, weights))
        result = conditionals_from_views(KEY, first, second, third, 2, categorical=(False,) * 3)
        assert result.status == Status.CONVERGED
        assert matched_rmse(jnp.asarray(views[0]), result.conditionals[0] / unit) < 1e-4
        values = np.linalg.svd((views[0] * weights) @ views[1].T, compute_uv=False)[:2]
        np.testing.assert_allclose(result.singular_values / unit / unit, values, rtol=1e-3)
    noise = [jnp.asarray(1e30 * rng.normal(size=(4,) * order), np.float32) for order in (1, 2, 3)]
    for categorical in ((False,) * 3, (True,) * 3):
        result = conditionals_from_views(KEY, (noise[0],) * 3, (noise[1],) * 3, noise[2], 2, categorical=categorical)
        finite = all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result))
        assert finite or result.status == Status.NON_FINITE


def test_errors_in_large_units():
    assert matched_rmse(np.float32(1e30) * EYE, np.float32(2e30) * EYE) == pytest.approx(1e30 / 3**0.5, rel=1e-5)


def test_programs_without_a_minimum():
    for quadratic in (-EYE, 0 * EYE, np.diag([1.0, 1.0, -1.0]).astype(np.float32)):
        assert solve_nonnegative_qp(quadratic, -np.ones(3, np.float32)).status == Status.NON_FINITE
    assert solve_nonnegative_qp(EYE, -np.ones(3, np.float32)).status == Status.CONVERGED
    # Without a falling direction zero is the minimum, also of a singular program.
    assert solve_nonnegative_qp(0 * EYE, np.ones(3, np.float32)).status != Status.NON_FINITE


def test_efficiency_where_there_is_none():
    half = np.full(2, 0.5, np.float32)
    assert np.isnan(relative_efficiency(np.full((3, 2), 1 / 3, np.float32), half))
    assert np.isnan(relative_efficiency(np.eye(3, 2, dtype=np.float32), np.array([1.0, 0.0], np.float32)))
    assert relative_efficiency(np.eye(2, dtype=np.float32), half) == pytest.approx(1)
    assert 0 < relative_efficiency(COLUMNS, half) <= 1


def test_composite_likelihood_of_large_and_negative_counts():
    table = np.array([[1.0, 2, 3], [1, 2, 1], [1, 1, 1]], np.float32)
    expected = composite_likelihood_em(table, (COLUMNS, COLUMNS))
    for scale in (1e38, 1e-38, 1e-44):
        result = composite_likelihood_em((table * scale).astype(np.float32), (COLUMNS, COLUMNS))
        assert result.status == Status.CONVERGED
        np.testing.assert_allclose(result.table, expected.table, atol=0.02 if scale == 1e-44 else 1e-3)
    # Noise may make an entry of a moment negative, which counts as zero; without any count nothing is determined.
    zero = composite_likelihood_em(np.maximum(table - 1.5, 0), (COLUMNS, COLUMNS))
    np.testing.assert_allclose(composite_likelihood_em(table - 1.5, (COLUMNS, COLUMNS)).table, zero.table, atol=1e-6)
    assert composite_likelihood_em(-table, (COLUMNS, COLUMNS)).status == Status.UNOBSERVED
