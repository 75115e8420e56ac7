"""Marginals from samples, pseudoinverses, and input that could spoil them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import (
    Status,
    composite_likelihood_em,
    composite_likelihood_em_samples,
    pseudoinverse_marginals,
)
from latensor.decompose.internal import pseudoinverse
from tests.decompose.marginals_cases import (
    SHAPES,
    SMALL,
    by_barrier,
    certificate,
    joint,
    log_likelihood,
    problems,
    solve_all,
)
from tests.helpers import largest, lowers


def samples(shape, number=1):
    """Return the likelihoods of the samples behind a table of counts, one row per sample."""
    counts, conditionals, _ = problems(shape)
    counts, matrices = counts[number], [part[number] for part in conditionals]
    places = np.repeat(
        np.stack(np.unravel_index(np.arange(counts.size), counts.shape)), counts.reshape(-1).astype(int), 1
    )
    return counts, matrices, [matrix[place] for matrix, place in zip(matrices, places, strict=True)]


def as_arrays(parts):
    return tuple(jnp.asarray(part, float) for part in parts)


@pytest.mark.parametrize("shape", [(1, 8, 30), (2, 4, 12), (3, 3, 8)])
def test_samples_give_what_their_table_gives(shape, float64):
    counts, matrices, likelihoods = samples(shape)
    result = composite_likelihood_em_samples(as_arrays(likelihoods), max_iters=5_000)
    assert result.table.shape == (shape[1],) * shape[0]
    assert result.gap <= 1e-6
    best, _ = by_barrier(counts, matrices)
    assert float(result.log_likelihood) == pytest.approx(best, abs=1e-6)
    assert float(result.log_likelihood) == pytest.approx(log_likelihood(np.asarray(result.table), counts, matrices))


def test_samples_with_weights_and_scales(float64):
    """Rows of the table with counts as weights; a scale for each row shifts the likelihood and nothing else."""
    counts, conditionals, _ = problems(SMALL)
    counts, matrices = counts[3], [part[3] for part in conditionals]
    places = np.unravel_index(np.arange(counts.size), counts.shape)
    rows = [matrix[place] for matrix, place in zip(matrices, places, strict=True)]
    scale = np.random.default_rng(0).uniform(0.01, 100, (2, counts.size, 1))
    weights = counts.reshape(-1)
    find = jax.jit(lambda rows: composite_likelihood_em_samples(rows, jnp.asarray(weights), tol=1e-9, max_iters=20_000))
    plain, scaled = find(as_arrays(rows)), find(as_arrays([row * s for row, s in zip(rows, scale, strict=True)]))
    best, _ = by_barrier(counts, matrices)
    assert plain.gap <= 1e-9
    assert float(plain.log_likelihood) == pytest.approx(best, abs=1e-7)
    np.testing.assert_allclose(scaled.table, plain.table, atol=1e-6)
    shift = np.sum(weights / weights.sum() * np.log(scale[0, :, 0] * scale[1, :, 0]))
    assert float(scaled.log_likelihood - plain.log_likelihood) == pytest.approx(shift, abs=1e-7)


def test_samples_never_lose_likelihood(float64):
    """The extrapolated path, and EM as it stands."""
    _, _, likelihoods = samples(SMALL)
    likelihoods = as_arrays(likelihoods)
    for accelerate in (True, False):
        before = -np.inf
        for limit in (1, 3, 5, 7, 9, 15, 31, 101):
            result = composite_likelihood_em_samples(likelihoods, max_iters=limit, accelerate=accelerate)
            assert int(result.num_iters) <= limit
            assert float(result.log_likelihood) >= before - 1e-14
            before = float(result.log_likelihood)
    # What extrapolation is for.
    fast, slow = (composite_likelihood_em_samples(likelihoods, max_iters=20_000, accelerate=a) for a in (True, False))
    assert int(fast.num_iters) < 0.2 * int(slow.num_iters)


def test_more_joint_states_than_newton_takes(float64):
    rng = np.random.default_rng(7)
    matrices = [rng.dirichlet(np.full(25, 0.2), 23).T for _ in range(2)]
    truth = rng.dirichlet(np.full(23 * 23, 0.1)).reshape(23, 23)
    counts = rng.multinomial(3000, joint(truth, matrices).reshape(-1)).reshape(25, 25)
    result = composite_likelihood_em(jnp.asarray(counts, float), as_arrays(matrices), max_iters=20_000)
    assert result.gap <= 1e-6
    assert result.status == Status.CONVERGED
    assert certificate(np.asarray(result.table), counts, matrices) == pytest.approx(float(result.gap), abs=1e-9)


def test_negative_entries_count_as_zero(float64):
    counts, conditionals, _ = problems(SMALL)
    noisy = counts - 0.1 * counts.max(axis=(1, 2), keepdims=True) * np.random.default_rng(1).random(counts.shape)
    assert np.mean(noisy < 0) > 0.1
    result = solve_all(noisy, conditionals)
    clipped = solve_all(5 * np.maximum(noisy, 0), conditionals)
    np.testing.assert_allclose(result.table, clipped.table, atol=1e-6)
    np.testing.assert_allclose(result.log_likelihood, clipped.log_likelihood, atol=1e-9)
    assert np.max(result.gap) <= 1e-6


@pytest.mark.parametrize("accelerate", [True, False])
def test_tables_of_nothing_and_nan_spoil_nothing(accelerate, float64):
    counts, conditionals, _ = problems(SMALL)
    clean = solve_all(counts, conditionals, accelerate=accelerate, max_iters=101)
    broken = counts.copy()
    broken[0], broken[1], broken[2, 0, 0], broken[3, 1, 1] = 0, -1, np.nan, np.inf
    result = solve_all(broken, conditionals, accelerate=accelerate, max_iters=101)
    assert result.status[:2].tolist() == [Status.UNOBSERVED] * 2
    assert result.status[2:4].tolist() == [Status.NON_FINITE] * 2
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result))
    np.testing.assert_allclose(result.table.sum(axis=(1, 2)), 1, atol=1e-12)
    for many, one in zip(jax.tree.leaves(result), jax.tree.leaves(clean), strict=True):
        np.testing.assert_array_equal(many[4:], one[4:])


@pytest.mark.parametrize("accelerate", [True, False])
def test_a_category_that_no_state_emits_changes_nothing(accelerate, float64):
    """Its likelihood is zero whatever the table is: the others decide, and the gap must be that of the others."""
    counts, conditionals, _ = problems(SMALL)
    counts, matrices = counts.copy(), [part.copy() for part in conditionals]
    matrices[0][:, 0] = 0
    matrices[0] /= matrices[0].sum(axis=1, keepdims=True)
    counts[:, 0] = 0.1 * counts.sum(axis=(1, 2))[:, None] / counts.shape[2]
    result = solve_all(counts, matrices, accelerate=accelerate, max_iters=2_001)
    for number in range(10):
        pair = [part[number] for part in matrices]
        possible = [pair[0][1:], pair[1]]
        best, _ = by_barrier(counts[number, 1:], possible)
        missing = best - log_likelihood(result.table[number], counts[number, 1:], possible)
        # As a share of all counts, of which these are a part.
        missing *= counts[number, 1:].sum() / counts[number].sum()
        assert missing <= result.gap[number] + 1e-9
        assert missing <= 1e-6 or not accelerate


def test_a_sample_that_no_state_emits_changes_nothing(float64):
    """Densities that underflow, say."""
    _, _, likelihoods = samples(SMALL)
    rows = [np.concatenate([part, np.zeros((30, part.shape[1]))]) for part in likelihoods]
    weights = np.ones(len(rows[0]))
    weights[-30:] = 0
    find = jax.jit(lambda w: composite_likelihood_em_samples(as_arrays(rows), w, max_iters=5_000))
    without, result = find(jnp.asarray(weights)), find(jnp.asarray(np.ones(len(weights))))
    assert without.gap <= 1e-6
    assert float(result.gap) == pytest.approx(float(without.gap), abs=1e-6)
    # The same maximum, up to what the gap allows: the likelihoods of the samples that can be.
    fitted = [np.einsum("na,ab,nb->n", likelihoods[0], part.table, likelihoods[1]) for part in (without, result)]
    assert np.mean(np.log(fitted[0]) - np.log(fitted[1])) < 2e-6


def test_float32():
    counts, conditionals, _ = problems(SMALL)
    result = solve_all(counts, conditionals)
    assert {leaf.dtype for leaf in (result.table, result.log_likelihood, result.gap)} == {np.dtype("float32")}
    assert np.all(result.status == Status.CONVERGED)
    assert np.max(result.gap) < 2e-5
    best = [by_barrier(counts[number], [part[number] for part in conditionals])[0] for number in range(SHAPES[SMALL])]
    np.testing.assert_allclose(result.log_likelihood, best, atol=5e-5)
    _, _, likelihoods = samples(SMALL)
    result = composite_likelihood_em_samples(as_arrays(likelihoods))
    assert result.table.dtype == jnp.float32
    assert float(result.log_likelihood) == pytest.approx(best[1], abs=1e-3)


@pytest.mark.parametrize("shape", [(1, 8, 30), (2, 4, 12), (3, 3, 8)])
def test_pseudoinverses_are_exact_on_exact_tables(shape, float64):
    counts, conditionals, truths = problems(shape)
    number = np.arange(0, 20, 2)  # the exact ones
    scale = np.random.default_rng(2).uniform(1, 100, len(number)).reshape(-1, *[1] * shape[0])
    result = jax.vmap(pseudoinverse_marginals)(
        jnp.asarray(scale * counts[number]), as_arrays([part[number] for part in conditionals])
    )
    assert largest(result / scale - truths[number]) < 1e-9


def test_pseudoinverses_of_different_views(float64):
    """Different numbers of states and categories: no mode is taken for another."""
    rng = np.random.default_rng(3)
    matrices = [rng.dirichlet(np.ones(d), k).T for d, k in ((5, 2), (6, 3), (7, 4))]
    truth = rng.dirichlet(np.ones(24)).reshape(2, 3, 4)
    counts = jnp.asarray(joint(truth, matrices))
    assert largest(pseudoinverse_marginals(counts, as_arrays(matrices)) - truth) < 1e-11
    result = composite_likelihood_em(counts, as_arrays(matrices), tol=1e-13)
    assert largest(result.table - truth) < 1e-5


def test_pseudoinverses_of_real_views(float64):
    """Conditional means, and the mean of products of the views: not a table of counts, and not to be scaled."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        matrices = [rng.normal(size=(d, 3)) for d in (5, 6)]
        truth = rng.dirichlet(np.ones(9)).reshape(3, 3)
        result = pseudoinverse_marginals(jnp.asarray(joint(truth, matrices)), as_arrays(matrices))
        assert largest(result - truth) < 1e-11


def test_pseudoinverse_leaves_dependent_columns_out(float64):
    rng = np.random.default_rng(4)
    matrix = rng.normal(size=(6, 3)) @ np.array([[1.0, 0, 1], [0, 1, 1], [0, 0, 0]])
    np.testing.assert_allclose(pseudoinverse(jnp.asarray(matrix)), np.linalg.pinv(matrix, rcond=1e-10), atol=1e-12)


def test_shapes_that_do_not_fit_are_named(no_type_checks):
    matrix = jnp.asarray(np.ones((4, 2)))
    for function in (composite_likelihood_em, pseudoinverse_marginals):
        with pytest.raises(ValueError, match=r"counts: expected shape \(4, 4\), .*; got \(4, 3\)"):
            function(jnp.asarray(np.ones((4, 3))), (matrix, matrix))
        with pytest.raises(ValueError, match=r"counts: expected shape \(4,\), .*; got \(4, 4\)"):
            function(jnp.asarray(np.ones((4, 4))), (matrix,))
        with pytest.raises(ValueError, match=r"conditionals: expected numbers \(categories, states\)"):
            function(jnp.asarray(np.ones(4)), (matrix[:, 0],))
        with pytest.raises(ValueError, match=r"conditionals: expected a tuple of matrices"):
            function(jnp.asarray(np.ones(())), ())
    with pytest.raises(ValueError, match=r"likelihoods: expected one matrix \(n, states\) per mode"):
        composite_likelihood_em_samples((matrix, matrix[:3]))
    with pytest.raises(ValueError, match=r"likelihoods: expected a tuple of matrices \(n, states\), one per mode"):
        composite_likelihood_em_samples(())
    with pytest.raises(ValueError, match=r"row_weights: expected one per row, shape \(4,\); got shape \(3,\)"):
        composite_likelihood_em_samples((matrix, matrix), jnp.ones(3))


def test_lowers_for_accelerators():
    matrix = jnp.asarray(np.full((4, 2), 0.25, np.float32))
    for accelerate in (True, False):
        lowers(
            lambda counts, a=accelerate: composite_likelihood_em(counts, (matrix, matrix), accelerate=a),
            jnp.asarray(np.ones((4, 4), np.float32)),
        )
    lowers(lambda rows: composite_likelihood_em_samples((rows, rows)), matrix)
    lowers(lambda counts: pseudoinverse_marginals(counts, (matrix,)), jnp.asarray(np.ones(4, np.float32)))


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 2), (3, 4)])
def test_many_samples_that_some_states_cannot_emit(shape):
    """Compiled as a constant, the uniform start made thousands of such samples impossible in all states."""
    rng = np.random.default_rng(len(shape))
    conditionals = [rng.dirichlet(np.full(5, 0.5), k).T for k in shape]
    for matrix in conditionals:
        matrix[0, 0] = 0
        matrix /= matrix.sum(axis=0)
    truth = rng.dirichlet(np.ones(np.prod(shape)))
    states = np.unravel_index(rng.choice(truth.size, 6000, p=truth), shape)
    codes = [
        (rng.random((6000, 1)) > np.cumsum(matrix[:, state].T, axis=1)[:, :-1]).sum(axis=1)
        for matrix, state in zip(conditionals, states, strict=True)
    ]
    table = np.zeros((5,) * len(shape))
    np.add.at(table, tuple(codes), 1)
    rows = tuple(jnp.asarray(matrix[code], jnp.float32) for matrix, code in zip(conditionals, codes, strict=True))
    expected = composite_likelihood_em(
        jnp.asarray(table, jnp.float32), tuple(jnp.asarray(m, jnp.float32) for m in conditionals)
    )
    np.testing.assert_allclose(composite_likelihood_em_samples(rows).log_likelihood, expected.log_likelihood, atol=1e-4)
