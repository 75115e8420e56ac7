import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.moments import _rows as rows_module
from latensor.moments import contract_cross_moments, cross_moments
from latensor.moments.internal import count_table, spread_view, view_features
from tests.helpers import lowers

# One set of shapes for most tests: what takes time is compiling.
ROWS, SIZES = 60, (3, 4, 5)
KINDS = {"codes": (True, True, True), "reals": (False, False, False), "mixed": (True, False, True)}


def draw(seed, kinds, rows=ROWS):
    """Return three views and what they stand for: indicators, or the vectors themselves."""
    rng = np.random.default_rng(seed)
    views = [
        rng.integers(0, d, rows).astype(np.int32) if code else rng.normal(size=(rows, d))
        for d, code in zip(SIZES, kinds, strict=True)
    ]
    return views, [np.eye(d)[view] if view.ndim == 1 else view for d, view in zip(SIZES, views, strict=True)]


def naive(features, weights=None):
    """Return all moments, one einsum each: the leaves of `CrossMoments` but for the number of unobserved entries."""
    weights = np.ones(len(features[0])) if weights is None else weights
    weights = weights / weights.sum()
    places = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
    letters = ("a", "b", "c")
    return [
        np.einsum(
            "n," + ",".join("n" + letters[p] for p in place) + "->" + "".join(letters[p] for p in place),
            weights,
            *(features[p] for p in place),
        )
        for place in places
    ]


def parts(moments):
    return [*moments.first, *moments.second, moments.third]


def agree(result, expected, tol):
    for a, b in zip(parts(result), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=tol, rtol=0)


def categories(kinds):
    return tuple(d if code else None for d, code in zip(SIZES, kinds, strict=True))


def as_views(views, dtype=float):
    return [jnp.asarray(view) if view.ndim == 1 else jnp.asarray(view, dtype) for view in views]


def identities():
    return tuple(jnp.asarray(np.eye(d), float) for d in SIZES)


@pytest.mark.parametrize("kind", list(KINDS))
def test_agrees_with_the_definition(kind, precision):
    views, features = draw(0, KINDS[kind])
    weights = np.random.default_rng(1).random(ROWS)
    result = cross_moments(*as_views(views), categories(KINDS[kind]), jnp.asarray(weights, float))
    assert {part.dtype for part in parts(result)} == {jnp.dtype(precision)}
    assert int(result.num_unobserved) == 0
    agree(result, naive(features, weights), 1e-14 if precision == "float64" else 1e-6)


def test_one_number_of_categories_serves_all_views(float64):
    views, _ = draw(2, KINDS["codes"])
    result = cross_moments(*as_views(views), 5)
    agree(result, naive([np.eye(5)[view] for view in views]), 1e-14)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_weight_repeats_a_row(kind, float64):
    views, features = draw(3, KINDS[kind])
    repeats = np.random.default_rng(4).integers(0, 4, ROWS)
    result = cross_moments(*as_views(views), categories(KINDS[kind]), jnp.asarray(2.5 * repeats))
    agree(result, naive([np.repeat(part, repeats, axis=0) for part in features]), 1e-14)


@pytest.mark.parametrize("kind", ["codes", "mixed"])
def test_rows_with_a_code_out_of_range_are_left_out(kind, float64):
    views, features = draw(5, KINDS[kind])
    bad = np.zeros(ROWS, bool)
    for view, codes in ((0, (-1, 3, -3)), (2, (5, 100, -6))):  # -3 and -6: NumPy would count them from the end
        places = np.arange(view, view + 30, 10)
        views[view][places], bad[places] = codes, True
    assert bad.sum() == 6
    moments = [cross_moments(*as_views(views), categories(KINDS[kind]))]
    moments.append(contract_cross_moments(*as_views(views), identities()))
    for result in moments:
        agree(result, naive([part[~bad] for part in features]), 1e-14)


@pytest.mark.parametrize("kind", list(KINDS))
def test_contraction_is_the_dense_one_contracted(kind, precision):
    views, features = draw(6, KINDS[kind])
    rng = np.random.default_rng(7)
    directions = [rng.normal(size=(d, r)) for d, r in zip(SIZES, (2, 4, 3), strict=True)]
    weights = rng.random(ROWS)
    result = contract_cross_moments(
        *as_views(views), tuple(jnp.asarray(w, float) for w in directions), jnp.asarray(weights, float)
    )
    assert {part.dtype for part in parts(result)} == {jnp.dtype(precision)}
    a, b, c, ab, ac, bc, abc = naive(features, weights)
    u, v, w = directions
    expected = [u.T @ a, v.T @ b, w.T @ c, u.T @ ab @ v, u.T @ ac @ w, v.T @ bc @ w]
    expected.append(np.einsum("abc,ax,by,cz->xyz", abc, u, v, w))
    agree(result, expected, 1e-13 if precision == "float64" else 1e-5)


@pytest.mark.parametrize("per_block", [17, 20, 1])
def test_many_blocks_of_rows(per_block, float64, monkeypatch):
    """With a short block at the end, without one, and row by row."""
    monkeypatch.setattr(rows_module, "_FLOATS_PER_BLOCK", per_block * SIZES[1] * SIZES[2])
    rows = ROWS + per_block  # a shape of its own: functions compiled before do not see the patch
    views, features = draw(8, KINDS["mixed"], rows)
    weights = np.random.default_rng(9).random(rows)
    dense = jax.jit(lambda *views: cross_moments(*views, categories(KINDS["mixed"]), jnp.asarray(weights)))
    assert "scan[" in str(jax.make_jaxpr(dense)(*as_views(views)))
    agree(dense(*as_views(views)), naive(features, weights), 1e-14)


def test_no_weight_at_all_gives_nan_under_a_trace(precision):
    # Eager calls refuse it; every status above shows the NaN.
    nothing = jnp.asarray(np.zeros(ROWS), float)
    for kind in ("codes", "mixed"):
        views = as_views(draw(10, KINDS[kind])[0])
        dense = jax.jit(lambda w, views=views, kind=kind: cross_moments(*views, categories(KINDS[kind]), w))
        contracted = jax.jit(lambda w, views=views: contract_cross_moments(*views, identities(), w))
        for result in (dense(nothing), contracted(nothing)):
            assert all(np.any(np.isnan(np.asarray(part))) for part in parts(result))


def test_nothing_but_codes_out_of_range_gives_zeros(float64):
    views = [jnp.asarray(np.full(ROWS, -1, np.int32))] * 3
    assert not any(np.any(np.asarray(part) != 0) for part in parts(cross_moments(*views, SIZES)))


def test_one_row(float64):
    views, features = draw(11, KINDS["mixed"], rows=1)
    agree(cross_moments(*as_views(views), categories(KINDS["mixed"])), naive(features), 1e-15)


def test_spread_is_the_adjoint_of_features(float64):
    rng = np.random.default_rng(12)
    directions, values = rng.normal(size=(5, 3)), rng.normal(size=(ROWS, 3))
    codes, reals = rng.integers(-2, 7, ROWS), rng.normal(size=(ROWS, 5))
    both = jax.jit(lambda view, directions, values: (view_features(view, directions), spread_view(view, values, 5)))
    for view, dense in (
        (codes, np.eye(7)[np.where(codes < 0, 6, codes)][:, :5]),
        (reals, reals),
    ):
        features, spread = both(jnp.asarray(view), jnp.asarray(directions), jnp.asarray(values))
        np.testing.assert_allclose(features, dense @ directions, atol=1e-13)
        np.testing.assert_allclose(spread, dense.T @ values, atol=1e-13)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int64"])
def test_codes_of_any_integer_type(dtype, float64):
    """More categories than an 8-bit type can number, and codes that would wrap around into the range."""
    codes = np.array([0, 100, 3, 3, 100, 0, 120]).astype(dtype)
    if not np.can_cast(dtype, np.int32):
        codes[-1] = 2**31 if dtype == "uint32" else 2**32  # out of range; zero, if it wrapped
    if np.issubdtype(dtype, np.signedinteger):
        codes[1] = -1
    seen = np.where((codes >= 0) & (codes < 300), codes.astype(np.int64), -1)
    kept = np.bincount(seen[seen >= 0], minlength=300) / np.sum(seen >= 0)
    views = (jnp.asarray(codes),) * 3
    np.testing.assert_allclose(cross_moments(*views[:2], jnp.ones((7, 1)), 300).first[0], kept, atol=1e-15)
    directions = np.random.default_rng(0).normal(size=(300, 2))
    result = contract_cross_moments(*views, (jnp.asarray(directions),) * 3)
    np.testing.assert_allclose(result.first[0], kept @ directions, atol=1e-14)
    small = (jnp.asarray(directions[:130]),) * 3
    np.testing.assert_allclose(contract_cross_moments(*views, small).first[0], kept @ directions, atol=1e-14)
    spread = spread_view(views[0], jnp.ones((7, 1)), 300)
    np.testing.assert_allclose(spread[:, 0], kept * np.sum(seen >= 0), atol=1e-15)


def test_counts_of_one_do_not_round():
    """A sum of float32 shares would: whole numbers are exact."""
    codes = np.random.default_rng(13).integers(0, 3, (2, 5000)) * (np.arange(5000) % 2)
    count = jax.jit(lambda *codes: count_table(codes, (3, 3), jnp.ones(5000, jnp.float32)))
    table = count(*(jnp.asarray(code, jnp.int32) for code in codes))
    expected = np.zeros((3, 3))
    np.add.at(expected, tuple(codes), 1)
    assert table.dtype == jnp.float32
    np.testing.assert_array_equal(table, expected)


@pytest.mark.parametrize("kind", ["codes", "mixed"])
def test_vmap_over_row_weights_is_a_loop(kind, float64):
    views, features = draw(14, KINDS[kind])
    weights = np.random.default_rng(15).random((3, ROWS))
    weights[1] = 0
    batch = jax.jit(jax.vmap(lambda w: cross_moments(*as_views(views), categories(KINDS[kind]), w)))
    batch = jax.tree.map(np.asarray, batch(jnp.asarray(weights)))
    for lane in (0, 2):
        agree(jax.tree.map(lambda part, at=lane: part[at], batch), naive(features, weights[lane]), 1e-14)
    assert all(np.any(np.isnan(part[1])) for part in parts(batch))


def test_arguments_that_do_not_fit_are_named(no_type_checks):
    codes, reals = jnp.asarray(np.zeros(4, np.int32)), jnp.asarray(np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"x1, x2, x3: expected as many rows; got 4, 3, 4"):
        cross_moments(reals, reals[:3], reals)
    with pytest.raises(ValueError, match=r"x1, x2, x3: expected as many rows; got 4, 4, 2"):
        contract_cross_moments(codes, codes, codes[:2], identities())
    with pytest.raises(ValueError, match=r"x2: expected integer codes where there is one axis; got type float"):
        cross_moments(codes, reals[:, 0], codes, 3)
    with pytest.raises(ValueError, match=r"num_categories: expected the number of categories of x3; got None"):
        cross_moments(reals, reals, codes)
    with pytest.raises(ValueError, match=r"num_categories: expected the number of categories of x1; got None"):
        cross_moments(codes, reals, codes, (None, None, 3))
    with pytest.raises(ValueError, match=r"num_categories: expected one number or three; got \(3, 3\)"):
        cross_moments(codes, codes, codes, (3, 3))
    with pytest.raises(ValueError, match=r"x1: expected codes \(n,\) or real vectors \(n, d\); got shape \(4, 2, 1\)"):
        cross_moments(reals[:, :, None], reals, reals)


def test_weights_and_directions_that_do_not_fit_are_named(no_type_checks):
    codes, reals = jnp.asarray(np.zeros(4, np.int32)), jnp.asarray(np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"row_weights: expected one weight per row, shape \(4,\); got shape \(3,\)"):
        cross_moments(codes, codes, codes, 3, jnp.ones(3))
    with pytest.raises(ValueError, match=r"row_weights: expected numbers ≥ 0, not all zero"):
        contract_cross_moments(reals, reals, reals, (jnp.ones((3, 2)),) * 3, jnp.zeros(4))
    with pytest.raises(ValueError, match=r"directions: expected 3 rows, one per dimension; got shape \(4, 2\)"):
        contract_cross_moments(reals, reals, reals, (jnp.ones((4, 2)),) * 3)
    with pytest.raises(ValueError, match=r"directions: expected three matrices, one per view"):
        contract_cross_moments(reals, reals, reals, (jnp.ones((3, 2)),) * 2)
    with pytest.raises(ValueError, match=r"num_categories: expected an integer of at least 1; got 0"):
        cross_moments(codes, codes, codes, 0)
    with pytest.raises(ValueError, match=r"x1, x2, x3: expected at least one row; got none"):
        cross_moments(reals[:0], reals[:0], reals[:0])
    with pytest.raises(ValueError, match=r"x2: expected codes \(n,\) or real vectors \(n, d\); got None"):
        cross_moments(reals, None, reals)


def test_a_table_that_is_too_large_is_named(no_type_checks):
    codes = jnp.zeros(4, jnp.int32)
    with pytest.raises(ValueError, match=r"num_categories: expected a table of at most \d+ entries; got \(2000, 2000,"):
        count_table((codes,) * 3, (2000,) * 3, jnp.ones(4))
    with pytest.raises(ValueError, match=r"num_categories: expected a table of at most \d+ entries"):
        cross_moments(codes, codes, codes, 1300)


@pytest.mark.parametrize("kind", list(KINDS))
def test_lowers_for_accelerators(kind):
    views = as_views(draw(0, KINDS[kind])[0], jnp.float32)
    lowers(lambda *v: cross_moments(*v, categories(KINDS[kind]), jnp.ones(ROWS)), *views)
    lowers(lambda *v: contract_cross_moments(*v, tuple(jnp.ones((d, 2)) for d in SIZES)), *views)
