import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.moments import Table, Variables, categorical_variables, dirichlet_cross_moments
from latensor.moments.internal import raw_cross_moments, row_features
from tests.helpers import lowers

MIXED = Variables(("categorical", "real", "categorical", "categorical", "real", "categorical"), (2, 1, 3, 4, 1, 2))
MODES = ((0, 1), (2, 4), (3, 5))


def mixed_table(seed, n=40):
    rng = np.random.default_rng(seed)
    columns = [
        rng.integers(0, size, n) if kind == "categorical" else rng.normal(size=n)
        for kind, size in zip(MIXED.kinds, MIXED.sizes, strict=True)
    ]
    return np.stack(columns, axis=1).astype(float)


def indicators(x, columns, variables):
    """The rows of some variables, one by one."""
    parts = [
        np.eye(variables.sizes[j])[x[:, j].astype(int)] if variables.kinds[j] == "categorical" else x[:, [j]]
        for j in columns
    ]
    return np.concatenate(parts, axis=1)


def by_loops(x, modes, variables, total, seen=None, weights=None):
    """The definition, entry by entry."""
    n = len(x)
    weights = np.ones(n) if weights is None else weights
    seen = np.ones(x.shape, bool) if seen is None else seen
    b = [indicators(np.where(seen, x, 0), mode, variables) for mode in modes]
    there = [np.repeat(seen[:, mode], [variables.sizes[j] for j in mode], axis=1) for mode in map(list, modes)]

    def average(*picks):
        use = weights * np.prod([there[m][:, i] for m, i in picks], axis=0)
        value = np.sum(use * np.prod([b[m][:, i] for m, i in picks], axis=0))
        return value / use.sum() if use.sum() else 0.0

    sizes = [part.shape[1] for part in b]
    third = np.zeros(sizes)
    pair, single = total / (total + 1), total / (total + 2)
    for i, j, k in itertools.product(*map(range, sizes)):
        first = [average((0, i)), average((1, j)), average((2, k))]
        seconds = [average((0, i), (1, j)), average((0, i), (2, k)), average((1, j), (2, k))]
        third[i, j, k] = (
            average((0, i), (1, j), (2, k))
            - single * (seconds[0] * first[2] + seconds[1] * first[1] + seconds[2] * first[0])
            + 2 * pair * single * np.prod(first)
        )
    second = np.array(
        [
            [average((0, i), (1, j)) - pair * average((0, i)) * average((1, j)) for j in range(sizes[1])]
            for i in range(sizes[0])
        ]
    )
    return second, third


@pytest.mark.parametrize("case", ["complete", "masked", "weighted"])
def test_agrees_with_the_definition(case, float64):
    x = mixed_table(0)
    rng = np.random.default_rng(1)
    mask = rng.random(x.shape) < 0.6 if case != "complete" else None
    weights = rng.random(len(x)) if case == "weighted" else None
    given = x if mask is None else np.where(mask, x, np.nan)
    table = Table(
        jnp.asarray(given),
        None if mask is None else jnp.asarray(mask),
        None if weights is None else jnp.asarray(weights),
        MIXED,
    )
    moments = dirichlet_cross_moments(table, MODES, 0.7)
    second, third = by_loops(x, MODES, MIXED, 0.7, mask, weights)
    np.testing.assert_allclose(moments.second[0], second, atol=1e-12)
    np.testing.assert_allclose(moments.third, third, atol=1e-12)


def test_a_full_mask_changes_nothing(float64):
    x = jnp.asarray(mixed_table(0))
    whole = dirichlet_cross_moments(Table(x, variables=MIXED), MODES, 0.7)
    masked = dirichlet_cross_moments(Table(x, jnp.ones(x.shape, bool), variables=MIXED), MODES, 0.7)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(masked), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-14)


def test_what_nobody_observes_is_zero_and_counted(float64):
    x = mixed_table(2)
    mask = np.ones(x.shape, bool)
    mask[:, 0] = np.arange(len(x)) % 2 == 0
    mask[:, 2] = ~mask[:, 0]
    moments = dirichlet_cross_moments(Table(jnp.asarray(x), jnp.asarray(mask), variables=MIXED), MODES, 0.7)
    # Two categories with three, each with all of the six rows of the third mode.
    assert int(moments.num_unobserved) == 2 * 3 * 6
    assert bool(jnp.all(jnp.isfinite(moments.third)))


def test_many_samples_approach_the_model(float64):
    """Margin: four standard errors of an average over 200,000 samples, for every entry."""
    rng = np.random.default_rng(3)
    alpha, n = np.array([0.4, 0.8, 0.3]), 200_000
    tables = [rng.dirichlet(np.ones(3), 3).T for _ in range(3)]
    membership = rng.dirichlet(alpha, n)
    x = np.zeros((n, 3), np.int32)
    for j in range(3):
        component = (rng.random(n)[:, None] > np.cumsum(membership, axis=1)[:, :-1]).sum(axis=1)
        x[:, j] = (rng.random(n)[:, None] > np.cumsum(tables[j], axis=0).T[component][:, :-1]).sum(axis=1)
    table = Table(jnp.asarray(x), variables=categorical_variables(3, 3))
    moments = dirichlet_cross_moments(table, ((0,), (1,), (2,)), alpha.sum())
    total = alpha.sum()
    expected = np.einsum("h,ih,jh,lh->ijl", 2 * alpha / (total * (total + 1) * (total + 2)), *tables)
    assert np.max(np.abs(moments.third - expected)) < 4 * np.sqrt(0.25 / n)


def test_padding_is_zero_and_integers_become_the_default_float(precision):
    variables = categorical_variables(3, 2)
    x = jnp.array([[0, 1, 1], [1, 1, 0]], jnp.int32)
    rows = (jnp.array([0, 1, -1]), jnp.array([2, 3]), jnp.array([-1, 5]))
    raw = jax.jit(lambda x: raw_cross_moments(Table(x, variables=variables), rows))(x)
    assert raw.third.dtype == precision
    assert not np.any(raw.third[2])
    assert not np.any(raw.third[:, :, 0])
    np.testing.assert_allclose(raw.third[:2, :, 1], [[0, 0.5], [0, 0]])
    mask = jnp.array([[True, False, True], [True, True, True]])
    values, seen = jax.jit(lambda x: row_features(Table(x, mask, variables=variables), rows[1]))(x)
    np.testing.assert_allclose(values, [[0, 0], [0, 1]])
    assert seen.tolist() == [[False, False], [True, True]]
    # Rows of the second variable are never observed: two rows, with two of the first variable and one of the third.
    never = jnp.array([[True, False, True], [True, False, True]])
    raw = jax.jit(lambda x: raw_cross_moments(Table(x, never, variables=variables), rows))(x)
    assert int(raw.num_unobserved) == 2 * 2 * 1


def test_a_share_enters_as_the_rest_and_itself(float64):
    table = Table(jnp.asarray([[0.3, 1.0], [0.9, 0.0]]), variables=Variables(("share", "categorical"), (2, 2)))
    values, seen = row_features(table, jnp.arange(4))
    np.testing.assert_allclose(values, [[0.7, 0.3, 0, 1], [0.1, 0.9, 1, 0]], atol=1e-15)
    assert seen is None


def test_vmap_equals_loop_and_lowers(float64):
    x = jnp.asarray(np.stack([mixed_table(4), mixed_table(5)]))

    def third(x):
        return dirichlet_cross_moments(Table(x, variables=MIXED), MODES, 0.7).third

    np.testing.assert_allclose(jax.vmap(third)(x), jnp.stack([third(x[0]), third(x[1])]), atol=1e-14)
    lowers(third, x[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float32"])
def test_codes_of_any_type(dtype, precision):
    """More categories than an 8-bit type can number."""
    variables = categorical_variables(3, 130)
    x = jnp.asarray([[0, 1, 100], [100, 1, 0], [0, 44, 100]]).astype(dtype)
    moments = dirichlet_cross_moments(Table(x, variables=variables), ((0,), (1,), (2,)), 0.0)
    assert moments.third.dtype == ("float32" if dtype == "float32" else precision)
    expected = np.zeros(130)
    expected[[0, 100]] = 2 / 3, 1 / 3
    np.testing.assert_allclose(moments.first[0], expected, atol=1e-6)
    np.testing.assert_allclose(moments.third[0, 1, 100], 1 / 3, atol=1e-6)


def test_bad_modes_are_named(no_type_checks):
    x = jnp.asarray(mixed_table(0))
    table = Table(x, variables=MIXED)
    for modes, message in (
        (((0,), (1,), (0,)), r"modes: expected no variable twice; got \[0\]"),
        (((0,), (1,), (6,)), r"modes: expected columns from 0 to 5"),
        (((0,), (1,), ()), r"modes: expected three tuples of columns"),
        ((0, 1, 2), r"modes: expected three tuples of columns"),
    ):
        with pytest.raises(ValueError, match=message):
            dirichlet_cross_moments(table, modes, 0.7)
    with pytest.raises(ValueError, match=r"x: expected 6 columns"):
        Table(x[:, :4], variables=MIXED)
    with pytest.raises(ValueError, match=r"variables: expected a Table with variables"):
        dirichlet_cross_moments(Table(x), MODES, 0.7)
    with pytest.raises(ValueError, match=r"data: expected a latensor.moments.Table with variables; got ArrayImpl"):
        dirichlet_cross_moments(x, MODES, 0.7)
