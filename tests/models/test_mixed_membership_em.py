"""Variational EM for mixed membership."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from latensor.models import mixed_membership
from latensor.models.mixed_membership import em, factors
from latensor.moments import Table, categorical_variables
from tests.models.membership_cases import (
    MIXED,
    N,
    P,
    _bound,
    assert_close,
    draw,
    holes,
    infer,
    likelihood,
    random_model,
)


def climb(params, x, mask, steps, row_weights=None, variables=MIXED, smoothing=0.0, update_concentration=True):
    return mixed_membership.refine(
        params,
        Table(x, mask, jnp.ones(x.shape[0], params.tables.dtype) if row_weights is None else row_weights, variables),
        tol=0.0,
        max_iters=steps,
        smoothing=smoothing,
        update_concentration=update_concentration,
    )


# Variational EM.
@pytest.mark.parametrize("masked", [True, False])
def test_bound_never_falls(masked, float64):
    truth = random_model(0)
    clean = draw(1, truth, N)
    mask, x = holes(2, clean) if masked else (None, clean)
    for start in (truth, random_model(7, scale=4.0)):
        values = [jnp.mean(_bound(start, x, mask, infer(start, x, mask)))]
        for steps in (1, 2, 3, 10, 100):
            result = climb(start, x, mask, steps)
            values.append(jnp.mean(_bound(result.params, x, mask, infer(result.params, x, mask))))
        assert np.all(np.diff(values) >= -1e-6 * abs(values[0])), values
        sums = jax.ops.segment_sum(result.params.tables, MIXED.row_variables, P)
        np.testing.assert_allclose(sums[np.array([0, 2, 4])], 1, rtol=1e-10)


def test_what_is_masked_does_not_matter_and_weights_repeat_rows(precision):
    tolerance = 1e-9 if precision == "float64" else 1e-3
    params = random_model(0)
    clean = draw(1, params, N)
    mask, x = holes(2, clean)
    expected = climb(params, clean, mask, 3).params
    assert_close(climb(params, x, mask, 3).params, expected, tolerance)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(expected)} == {precision}
    full = jnp.ones(mask.shape, bool)
    if precision == "float64":
        assert_close(climb(params, clean, full, 3).params, climb(params, clean, None, 3).params, tolerance)
    chosen = np.random.default_rng(0).permutation(np.repeat(np.arange(N // 2), 2))
    counts = jnp.asarray(np.bincount(chosen, minlength=N), clean.dtype)
    repeated = climb(params, x[chosen], mask[chosen], 3).params
    assert_close(climb(params, x, mask, 3, counts).params, repeated, tolerance)


def test_concentration_is_recovered_from_far_away(precision):
    starts = jnp.asarray(10.0 ** np.random.default_rng(0).uniform(-2, 2, (40, 3)))
    update = jax.jit(jax.vmap(em.update_prior, in_axes=(0, None)))
    for alpha in ([0.05, 0.1, 0.3], [0.5, 1.0, 2.0], [4.0, 9.0, 30.0]):
        alpha = np.array(alpha)
        log_mean = special.digamma(alpha) - special.digamma(alpha.sum())

        def value(a, log_mean=log_mean):
            a = np.asarray(a, np.float64)
            return special.gammaln(a.sum(axis=1)) - special.gammaln(a).sum(axis=1) + (a - 1) @ log_mean

        after = starts
        for _ in range(10):
            before = after
            after = update(before, jnp.asarray(log_mean))
            assert np.all(value(after) - value(before) > -1e-4 * np.abs(value(before)))
        rtol = 1e-6 if precision == "float64" else 0.01
        np.testing.assert_allclose(after, np.broadcast_to(alpha, after.shape), rtol=rtol)


def test_em_recovers_the_tables_from_nearby():
    variables = categorical_variables(60, 4)
    truth = random_model(0, variables, k=2, scale=0.3, concentration=1.0)
    x = draw(1, truth, 3000, variables)
    start = truth._replace(tables=0.6 * truth.tables + 0.1)
    result = climb(start, x, None, 40, variables=variables, update_concentration=False)
    np.testing.assert_array_equal(result.params.concentration, truth.concentration)
    before, after = (np.sqrt(np.mean((params.tables - truth.tables) ** 2)) for params in (start, result.params))
    # A frequency of 1,500 rows has standard error 0.011; the bound adds a bias of its own.
    assert after < 0.02 < 0.06 < before


# What could go wrong.
def test_zeros_constants_and_empty_components_are_no_trap(precision):
    x = draw(1, random_model(0), N).at[:, 1].set(1e6).at[:5, 4].set(3).at[7, 3].set(1e4)
    tables = np.array(random_model(0).tables)
    # A category that occurs and that no component has; another that only one has, whose prior is next to nothing.
    tables[MIXED.offsets[4] :] = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0, 0, 1.0], [0, 0, 0]])
    params = random_model(0)._replace(concentration=jnp.array([1.0, 0.5, 1e-3]), tables=jnp.asarray(tables))
    full = jnp.ones(x.shape, bool)
    refined = climb(params, x, full, 20, smoothing=0.01)
    again = climb(params, x, full, 20)
    gamma = infer(params, x, full, tol=1e-4, max_iters=100)
    value = likelihood(jax.random.key(0), params, x, full, gamma)
    for leaf in jax.tree.leaves((refined, again, gamma, value)):
        assert bool(jnp.all(jnp.isfinite(leaf)))
    assert float(jnp.min(refined.params.concentration)) > 0
    # A block's column that explains nothing keeps its values.
    counts = jnp.asarray(np.random.default_rng(0).uniform(size=tables.shape)).at[:3, 1].set(0)
    updated, num_empty = factors.normalize_blocks(counts, params.tables, MIXED)
    assert int(num_empty) == 1
    np.testing.assert_array_equal(updated[:3, 1], params.tables[:3, 1])
    np.testing.assert_allclose(updated[:3, 0], counts[:3, 0] / counts[:3, 0].sum(), rtol=1e-5)


def test_a_failed_row_spoils_no_other(float64):
    params = random_model(0)
    mask, x = holes(2, draw(1, params, N))
    mask, x = mask.at[1, 0].set(True), x.at[1, 0].set(0)
    gammas = infer(params, x.at[1, 0].set(7), mask)
    good = ~jnp.isnan(gammas).any(axis=1)
    assert int(jnp.sum(~good)) == 1
    assert_close(gammas[good], infer(params, x, mask)[good], 1e-9)
