import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status, conditionals_from_views
from tests.helpers import best_order, largest, lowers

# One shape, one rank and one number of problems for most tests: each method compiles once.
SIZES, RANK, PROBLEMS = (4, 5, 6), 3, 10
METHODS = ("power", "nojd0")


def exact(weights, views):
    """Return the first, pair and triple moments of views with the given conditionals."""
    u, v, w = views
    first = tuple(view @ weights for view in views)
    second = tuple((a * weights) @ b.T for a, b in ((u, v), (u, w), (v, w)))
    return first, second, np.einsum("h,ih,jh,lh->ijl", weights, u, v, w)


def draw(seed, categorical=(True, True, True), sizes=SIZES, rank=RANK):
    """Return weights and conditionals: distributions, or means of either sign."""
    rng = np.random.default_rng(seed)
    views = [
        rng.dirichlet(np.ones(d), rank).T if kind else rng.normal(size=(d, rank))
        for d, kind in zip(sizes, categorical, strict=True)
    ]
    return rng.dirichlet(np.full(rank, 5.0)), views


def stacked(problems, dtype=float):
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves), dtype), *[exact(*p) for p in problems])


def find_all(moments, method="power", categorical=(True, True, True), rank=RANK):
    """Decompose a batch of problems."""

    def find(first, second, third):
        return conditionals_from_views(
            jax.random.key(0), first, second, third, rank, method, categorical=categorical, num_restarts=10
        )

    return jax.tree.map(np.asarray, jax.vmap(find)(*moments))


def lane(result, number):
    return jax.tree.map(lambda leaf: leaf[number], result)


def errors(result, weights, views):
    """Return the largest error of weights and conditionals, with the states in the order of the third view."""
    order = best_order(views[2], result.conditionals[2])
    pairs = zip((*result.conditionals, result.weights), (*views, weights), strict=True)
    return [largest(estimate[..., order] - truth) for estimate, truth in pairs]


@pytest.mark.parametrize("method", METHODS)
def test_exact_moments_give_exact_conditionals(method, float64):
    problems = [draw(seed) for seed in range(PROBLEMS)]
    result = find_all(stacked(problems), method)
    assert [view.shape[1:] for view in result.conditionals] == [(d, RANK) for d in SIZES]
    for number, (weights, views) in enumerate(problems):
        assert max(errors(lane(result, number), weights, views)) < 1e-8
    assert result.status.tolist() == [Status.CONVERGED] * PROBLEMS
    assert np.max(result.residual) < 1e-8
    assert np.max(result.simplex_distance) < 1e-8
    assert np.max(result.noise) < 1e-12 < np.min(result.singular_values)


def test_the_first_two_views_count_alike(float64):
    """With noise, too: exchanged, they give the same weights and the same conditional means."""
    real, rng = (False, False, False), np.random.default_rng(0)
    weights, views = draw(0, real, sizes=(5, 5, 6))
    hidden = rng.choice(RANK, 1000, p=weights)
    x = [view.T[hidden] + rng.normal(size=(1000, len(view))) for view in views]

    def moments(a, b, c):
        first = tuple(part.mean(axis=0) for part in (a, b, c))
        second = tuple(one.T @ other / 1000 for one, other in ((a, b), (a, c), (b, c)))
        return first, second, np.einsum("na,nb,nc->abc", a, b, c) / 1000

    both = jax.tree.map(lambda *parts: jnp.asarray(np.stack(parts)), moments(*x), moments(x[1], x[0], x[2]))
    result = find_all(both, categorical=real)
    one, other = lane(result, 0), lane(result, 1)
    second, first, third = other.conditionals
    assert max(errors(other._replace(conditionals=(first, second, third)), one.weights, one.conditionals)) < 1e-6


@pytest.mark.parametrize("categorical", [(False, False, False), (False, True, False)])
def test_conditional_means_of_real_views(categorical, float64):
    problems = [draw(20 + seed, categorical) for seed in range(PROBLEMS)]
    result = find_all(stacked(problems), categorical=categorical)
    for number, (weights, views) in enumerate(problems):
        assert max(errors(lane(result, number), weights, views)) < 1e-8
    assert np.min(result.conditionals[0]) < 0
    assert result.status.tolist() == [Status.CONVERGED] * PROBLEMS
    for view, kind in enumerate(categorical):
        assert kind or not np.any(result.simplex_distance[:, view])


def test_as_many_states_as_categories(float64):
    problems = [draw(40 + seed, sizes=(4, 4, 4), rank=4) for seed in range(PROBLEMS)]
    result = find_all(stacked(problems), rank=4)
    for number, (weights, views) in enumerate(problems):
        assert max(errors(lane(result, number), weights, views)) < 1e-8
    assert not np.any(result.noise)


def test_singular_values_are_in_units_of_the_square_root(float64):
    weights, views = draw(0)
    result = find_all(stacked([(weights, views)] * PROBLEMS))
    first, second, _ = exact(weights, views)
    expected = np.linalg.svd(second[0] / np.sqrt(np.outer(first[0], first[1])), compute_uv=False)
    np.testing.assert_allclose(result.singular_values[0], expected[:RANK], atol=1e-13)
    assert expected[0] == pytest.approx(1)


@pytest.mark.parametrize("categorical", [(False, False, False), (False, True, False)])
def test_singular_values_of_real_views_are_in_their_own_units(categorical, float64):
    problems = [draw(20 + seed, categorical) for seed in range(PROBLEMS)]
    result = find_all(stacked(problems), categorical=categorical)
    for number, problem in enumerate(problems):
        first, second, _ = exact(*problem)
        one, two = (np.sqrt(p) if kind else np.ones_like(p) for p, kind in zip(first[:2], categorical[:2], strict=True))
        expected = np.linalg.svd(second[0] / np.outer(one, two), compute_uv=False)
        np.testing.assert_allclose(result.singular_values[number], expected[:RANK], atol=1e-12)


def test_categories_that_never_occur(float64):
    problems = []
    for seed in range(PROBLEMS):
        weights, views = draw(60 + seed)
        for view in views[1:]:
            view[2] = 0
            view /= view.sum(axis=0)
        problems.append((weights, views))
    result = find_all(stacked(problems))
    for number, (weights, views) in enumerate(problems):
        assert max(errors(lane(result, number), weights, views)) < 1e-8
    assert np.max(np.abs(result.conditionals[2][:, 2])) < 1e-15


def test_samples_give_distributions_near_the_truth(float64):
    """Ten thousand samples; each error is a few of their standard errors, enlarged by the inverse of the views."""
    problems, tables = [], []
    for seed in range(PROBLEMS):
        rng = np.random.default_rng(80 + seed)
        views = [0.15 + 0.85 * np.eye(d)[:, :RANK] for d in SIZES]
        problems.append((rng.dirichlet(np.full(RANK, 20.0)), [view / view.sum(axis=0) for view in views]))
        third = exact(*problems[-1])[2]
        table = rng.multinomial(10_000, third.reshape(-1)).reshape(SIZES) / 10_000
        pairs = tuple(table.sum(axis) for axis in (2, 1, 0))
        tables.append(((pairs[0].sum(1), pairs[0].sum(0), pairs[1].sum(0)), pairs, table))
    result = find_all(jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *tables))
    for view in result.conditionals:
        assert np.min(view) >= 0
        np.testing.assert_allclose(view.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(result.weights.sum(axis=1), 1, atol=1e-12)
    worst = [max(errors(lane(result, number), *problem)) for number, problem in enumerate(problems)]
    assert 1e-4 < max(worst) < 0.1
    assert np.max(result.noise) > 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_equal_states_are_a_status(method, float64):
    """Two columns alike in all views, in one of the first two, and in the third."""
    problems = []
    for alike in ((0, 1, 2), (0,), (1,), (2,)):
        weights, views = draw(100)
        for view in alike:
            views[view][:, 1] = views[view][:, 0]
        problems.append((weights, views))
    problems += [draw(100)] * (PROBLEMS - len(problems))
    result = find_all(stacked(problems), method)
    assert all(status >= Status.RANK_DEFICIENT for status in result.status[:4])
    assert result.status[4:].tolist() == [Status.CONVERGED] * (PROBLEMS - 4)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result))


def test_nan_moments_are_flagged_and_spoil_nothing(float64):
    problems = [draw(seed) for seed in range(PROBLEMS)]
    clean = find_all(stacked(problems))
    first, second, third = stacked(problems)
    first = (first[0], first[1].at[0, 1].set(jnp.nan), first[2])
    second = (second[0], second[1], second[2].at[2, 0, 1].set(jnp.inf))
    result = find_all((first, second, third.at[4, 0, 0, 0].set(-jnp.inf)))
    broken = [0, 2, 4]
    assert result.status[broken].tolist() == [Status.NON_FINITE] * 3
    others = np.setdiff1d(np.arange(PROBLEMS), broken)
    assert result.status[others].tolist() == [Status.CONVERGED] * len(others)
    for many, one in zip(jax.tree.leaves(result), jax.tree.leaves(clean), strict=True):
        np.testing.assert_array_equal(many[others], one[others])
    for view in result.conditionals:
        assert np.all(np.isfinite(view))
        np.testing.assert_allclose(view.sum(axis=1), 1, atol=1e-12)
    assert np.all(np.isfinite(result.weights))


def test_moments_that_are_all_zero_are_a_status(float64):
    moments = jax.tree.map(jnp.zeros_like, stacked([draw(0)] * PROBLEMS))
    result = find_all(moments)
    assert np.min(result.status) >= Status.DEGENERATE
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result))


def test_a_batch_is_a_loop(float64):
    problems = [draw(seed) for seed in range(PROBLEMS)]
    batch = find_all(stacked(problems), "nojd0")
    moments = jax.tree.map(jnp.asarray, exact(*problems[3]))
    single = conditionals_from_views(jax.random.key(0), *moments, RANK, "nojd0", num_restarts=10)
    for many, one in zip(jax.tree.leaves(lane(batch, 3)), jax.tree.leaves(single), strict=True):
        np.testing.assert_allclose(many, one, atol=1e-10)


def test_float32():
    problems = [draw(seed) for seed in range(PROBLEMS)]
    result = find_all(stacked(problems, jnp.float32), "nojd0")
    assert {leaf.dtype for leaf in (*result.conditionals, result.weights, result.residual)} == {np.dtype("float32")}
    assert max(max(errors(lane(result, n), *problem)) for n, problem in enumerate(problems)) < 1e-3


def test_moments_of_data_go_straight_in(float64):
    """States that are visible in all views: the conditionals are those of a table of the data."""
    rng = np.random.default_rng(120)
    states = rng.choice(RANK, 500, p=[0.2, 0.3, 0.5])
    rows = [np.eye(d)[states + shift] for shift, d in enumerate(SIZES)]
    first = tuple(row.mean(axis=0) for row in rows)
    second = tuple(rows[a].T @ rows[b] / 500 for a, b in ((0, 1), (0, 2), (1, 2)))
    third = np.einsum("ni,nj,nl->ijl", *rows) / 500
    batch = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * PROBLEMS), (first, second, third))
    result = lane(find_all(batch), 0)
    views = [np.eye(d)[:, shift : shift + RANK] for shift, d in enumerate(SIZES)]
    assert max(errors(result, np.bincount(states) / 500, views)) < 1e-8


@pytest.mark.parametrize("rank", [0, 5])
def test_a_rank_that_does_not_fit_is_named(rank, no_type_checks):
    moments = jax.tree.map(jnp.asarray, exact(*draw(0)))
    with pytest.raises(ValueError, match=rf"rank: expected an integer from 1 to 4 .*; got {rank}"):
        conditionals_from_views(jax.random.key(0), *moments, rank)


def test_lowers_for_accelerators():
    key = jax.random.key_data(jax.random.key(0))
    moments = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), exact(*draw(0)))
    lowers(
        lambda key, *m: conditionals_from_views(jax.random.wrap_key_data(key), *m, RANK, num_restarts=2),
        key,
        *moments,
    )
