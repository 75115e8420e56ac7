import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models.views import References, deal, factor_views, regress_columns
from latensor.moments import CrossMoments


@pytest.mark.parametrize("num_columns", [3, 4, 11, 30])
def test_columns_are_dealt_evenly(num_columns):
    sizes = np.random.default_rng(num_columns).integers(2, 6, num_columns)
    rounds = -(-num_columns // 3)
    groups = np.asarray(deal(jax.random.key(0), jnp.asarray(sizes, float), rounds))
    assert groups.shape == (3, rounds)
    assert sorted(groups[groups >= 0]) == list(range(num_columns))
    # Every round deals the largest that are left, one to each group.
    dealt = [sorted(sizes[column] for column in groups[:, turn] if column >= 0) for turn in range(rounds)]
    assert all(min(one) >= max(other) for one, other in itertools.pairwise(dealt))


def test_other_keys_deal_otherwise():
    dealt = [np.asarray(deal(jax.random.key(seed), jnp.ones(12), 4)) for seed in range(20)]
    assert len({tuple(map(tuple, np.sort(groups, axis=1))) for groups in dealt}) > 15


def test_few_rounds_leave_columns_out():
    groups = np.asarray(deal(jax.random.key(0), jnp.arange(12.0), 2))
    assert sorted(groups.reshape(-1)) == list(range(6, 12))


@pytest.mark.parametrize("least", [0, 1, 2])
def test_the_spectrum_is_of_the_pair_that_is_least_clear(least, float64):
    """Two views hardly tell the first two states apart: the k-th singular value of their pair is the smallest."""
    rng = np.random.default_rng(least)
    views, weights, number = [rng.dirichlet(np.ones(d), 3).T for d in (4, 4, 4)], np.array([0.5, 0.3, 0.2]), 1000
    pairs = ((0, 1), (0, 2), (1, 2))
    for view in pairs[least]:
        views[view][:, 0] = 0.1 * views[view][:, 0] + 0.9 * views[view][:, 1]
    first = [view @ weights for view in views]
    second = [(views[a] * weights) @ views[b].T for a, b in pairs]
    third = np.einsum("h,ih,jh,lh->ijl", weights, *views)
    moments = jax.tree.map(jnp.asarray, CrossMoments(tuple(first), tuple(second), third, np.int32(0)))
    found = factor_views(jax.random.key(0), moments, jnp.asarray(1 / number), 3, "power", 10)
    values = [
        np.linalg.svd(pair / np.sqrt(np.outer(first[a], first[b])), compute_uv=False)[:3]
        for pair, (a, b) in zip(second, pairs, strict=True)
    ]
    assert np.argmin([each[-1] for each in values]) == least
    np.testing.assert_allclose(found.spectrum.values, values[least], atol=1e-12)
    np.testing.assert_allclose(found.spectrum.noise, 2 * np.sqrt(4 / number), rtol=1e-12)


def references(seed, k=3, parts=8):
    """Exact products of four columns of three categories with views, and what regression should find."""
    rng = np.random.default_rng(seed)
    views, weights = rng.uniform(0.1, 1, (parts, k)), rng.dirichlet(np.ones(k))
    scaled = rng.dirichlet(np.ones(3), (4, k)).swapaxes(1, 2).reshape(12, k) * weights
    seen = rng.uniform(0.2, 1, (4, parts))
    owner = np.repeat(np.arange(4), 3)
    return views, scaled, seen, owner


def test_regression_is_exact_where_views_are(float64):
    views, scaled, seen, owner = references(0)
    allowed = np.ones(seen.shape, bool)
    allowed[0, :4] = False
    products = (scaled @ views.T) * seen[owner]
    products[owner == 0, :4] = 99.0
    given = References(jnp.asarray(products), jnp.asarray(seen), jnp.asarray(allowed))
    unit = jnp.asarray(np.sqrt(views.mean(axis=1)))
    np.testing.assert_allclose(regress_columns(given, jnp.asarray(views), unit, owner), scaled, atol=1e-10)


def test_regression_weighs_by_how_often_parts_are_seen(float64):
    views, scaled, seen, owner = references(1)
    rng = np.random.default_rng(1)
    noisy = scaled @ views.T + 0.01 * rng.normal(size=(12, 8))
    given = References(jnp.asarray(noisy * seen[owner]), jnp.asarray(seen), jnp.ones(seen.shape, bool))
    unit = np.sqrt(views.mean(axis=1))
    expected = []
    for row in range(12):
        scale = np.sqrt(seen[owner[row]]) / unit
        expected.append(np.linalg.lstsq(scale[:, None] * views, scale * noisy[row], rcond=None)[0])
    result = regress_columns(given, jnp.asarray(views), jnp.asarray(unit), owner)
    np.testing.assert_allclose(result, expected, atol=1e-9)


def test_a_column_that_is_never_seen_with_a_view_is_zero(precision):
    views, scaled, seen, owner = references(2)
    seen[1] = 0
    products = (scaled @ views.T) * seen[owner]
    given = References(jnp.asarray(products), jnp.asarray(seen), jnp.ones(seen.shape, bool))
    result = np.asarray(regress_columns(given, jnp.asarray(views), jnp.ones(8), owner))
    assert np.all(result[owner == 1] == 0)
    assert np.all(np.isfinite(result))
