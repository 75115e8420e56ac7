import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from latensor.models import mixed_membership
from latensor.models.mixed_membership import inference
from latensor.moments import Table, categorical_variables
from tests.models.membership_cases import (
    MIXED,
    K,
    N,
    P,
    _bound,
    _entries,
    assert_close,
    draw,
    holes,
    infer,
    likelihood,
    random_model,
)

REAL = np.array([1, 3])


def likelihood_table(params, row, variables=MIXED):
    """`p(x_j | h)`, one entry at a time."""
    table, num_real = np.zeros((variables.num_variables, params.tables.shape[1])), 0
    tables = np.asarray(params.tables, np.float64)
    for j, (kind, low) in enumerate(zip(variables.kinds, variables.offsets[:-1], strict=True)):
        if kind == "real":
            table[j] = stats.norm.pdf(row[j], tables[low], math.sqrt(params.variances[num_real]))
            num_real += 1
        else:
            table[j] = tables[low + int(row[j])]
    return table


def exact_log_likelihood(params, row, seen, variables=MIXED):
    """Sum over all assignments of the observed entries to components: each is Dirichlet-multinomial."""
    alpha = np.asarray(params.concentration, np.float64)
    table = likelihood_table(params, np.where(seen, row, 0), variables)[seen]
    terms = []
    for components in itertools.product(range(len(alpha)), repeat=len(table)):
        counts = np.bincount(np.array(components, int), minlength=len(alpha))
        value = special.gammaln(alpha.sum()) - special.gammaln(alpha.sum() + len(table))
        value += np.sum(special.gammaln(alpha + counts) - special.gammaln(alpha))
        with np.errstate(divide="ignore"):
            terms.append(value + np.sum(np.log(table[np.arange(len(table)), list(components)])))
    return special.logsumexp(terms)


# Draws.
def test_samples_have_the_moments_of_the_model():
    params = random_model(0, scale=0.3)
    x, hidden = mixed_membership.sample(jax.random.key(0), params, 40_000, variables=MIXED)
    assert x.dtype == hidden.dtype == jnp.float32
    binary = categorical_variables(4, 2)
    codes = jax.eval_shape(
        lambda: mixed_membership.sample(jax.random.key(0), random_model(0, binary), 7, variables=binary).x
    )
    assert (codes.shape, codes.dtype) == ((7, 4), jnp.int32)
    alpha = np.asarray(params.concentration, np.float64)
    total = alpha.sum()
    pairs = (np.outer(alpha, alpha) + np.diag(alpha)) / (total * (total + 1))
    # `E[f(x_j) g_h] = Σ_l E[g_l g_h] E[f(x_j) | l]`; standard errors are below 0.003 for categories, 0.02 for means.
    np.testing.assert_allclose(hidden.mean(axis=0), alpha / total, atol=0.015)
    for j, (kind, low, size) in enumerate(zip(MIXED.kinds, MIXED.offsets[:-1], MIXED.sizes, strict=True)):
        expected = np.asarray(params.tables)[low : low + size] @ pairs
        if kind == "real":
            moment = np.asarray(x[:, j][None] @ hidden) / len(x)
            np.testing.assert_allclose(moment, expected, atol=0.08)
        else:
            assert set(np.unique(x[:, j])) <= set(range(size))
            moment = np.stack([(x[:, j] == c).astype(hidden.dtype) @ hidden / len(x) for c in range(size)])
            np.testing.assert_allclose(moment, expected, atol=0.015)
    means = np.asarray(params.tables)[MIXED.offsets[:-1][REAL]]
    spread = np.asarray(params.variances) + (means**2) @ (alpha / total) - (means @ (alpha / total)) ** 2
    np.testing.assert_allclose(np.var(x[:, REAL], axis=0), spread, rtol=0.05)
    # Memberships that are all but one of them below the smallest number.
    x, hidden = mixed_membership.sample(
        jax.random.key(0), params._replace(concentration=alpha / 1e4), 40_000, variables=MIXED
    )
    assert bool(jnp.all(jnp.isfinite(x)))
    np.testing.assert_allclose(hidden.sum(axis=1), 1, rtol=1e-5)


# Inference.
def test_likelihoods_and_bound_against_their_definitions(float64):
    """`E_q[log p(x, z, g) − log q(z, g)]`, term by term, for arbitrary `q(g)`."""
    params = random_model(0)
    clean = draw(1, params, N)
    mask, x = holes(2, clean)
    entries = _entries(params, x, mask)
    gamma = np.random.default_rng(3).uniform(0.2, 4, (N, K))
    bounds = _bound(params, x, mask, jnp.asarray(gamma))
    alpha = np.asarray(params.concentration)
    for i in range(4):
        table = likelihood_table(params, np.asarray(clean[i]))
        ratio = np.asarray(entries.likelihoods[:, i].T) / table
        seen = np.asarray(mask[i])
        np.testing.assert_allclose(ratio[seen], np.broadcast_to(ratio[seen][:, :1], ratio[seen].shape), rtol=1e-8)
        np.testing.assert_allclose(np.asarray(entries.likelihoods[:, i].T)[~seen], 1)
        np.testing.assert_allclose(entries.log_scale[i], -np.log(ratio[seen][:, 0]).sum(), rtol=1e-8)
        log_mean = special.digamma(gamma[i]) - special.digamma(gamma[i].sum())
        share = table[seen] * np.exp(log_mean)
        share /= share.sum(axis=1, keepdims=True)
        bound = np.sum(share * (np.log(table[seen]) + log_mean - np.log(share)))
        bound += special.gammaln(alpha.sum()) - special.gammaln(alpha).sum() + np.sum((alpha - 1) * log_mean)
        bound += stats.dirichlet.entropy(gamma[i])
        np.testing.assert_allclose(bounds[i], bound, rtol=1e-9)


@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_steps_reach_what_updates_reach_and_never_fall(scale, float64):
    variables = categorical_variables(40, 3)
    params = random_model(0, variables, k=4, scale=scale)
    x = draw(1, params, 200, variables)
    entries = inference.entry_likelihoods(params, Table(x, variables=variables))
    plain = jax.jit(
        lambda start: jax.lax.fori_loop(0, 5000, lambda _, g: inference.update_gamma(params, entries, g), start)
    )(inference.start_gamma(params, entries))
    # Neither is at the other's optimum by chance: rows with several optima may differ, by as much as they like.
    error = np.abs(infer(params, x, None, variables, tol=1e-11, max_iters=100) - plain.T).max(axis=1)
    assert np.mean(error < 1e-6) > 0.97
    bounds = [
        inference.evidence_bound(params, entries, infer(params, x, None, variables, 1e-11, steps).T)
        for steps in (0, 1, 2, 4, 5, 6, 7, 8, 10, 15, 30, 100)
    ]
    assert np.all(np.diff(np.stack(bounds), axis=0) >= -1e-10 * np.abs(bounds[0])[None])
    # Every row has converged long before the limit: an update moves nothing.
    last = infer(params, x, None, variables, tol=1e-11, max_iters=100).T
    np.testing.assert_allclose(inference.update_gamma(params, entries, last), last, atol=1e-7)


def test_default_tolerance_is_met_in_float32():
    variables = categorical_variables(60, 4)
    params = random_model(3, variables, k=5, scale=0.6)
    x = draw(4, params, 1000, variables)
    table = Table(x, variables=variables)
    few, many = (mixed_membership.posterior(params, table, max_iters=limit) for limit in (100, 500))
    # All rows are finished after 100 steps, where updates alone have not after 500: more change nothing.
    np.testing.assert_array_equal(few, many)


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 5.0])
def test_bound_and_importance_sampling_against_all_assignments(scale, precision):
    params = random_model(0, scale=scale, concentration=1.0)
    clean = draw(1, params, N)
    mask, x = holes(2, clean)
    exact = np.array(
        [exact_log_likelihood(params, *row) for row in zip(np.asarray(clean), np.asarray(mask), strict=True)]
    )
    gamma = infer(params, x, mask, tol=1e-6)
    gap = exact - np.asarray(_bound(params, x, mask, gamma))
    # The row without entries has the prior as its posterior.
    np.testing.assert_allclose(gamma[0], params.concentration, rtol=1e-5)
    np.testing.assert_allclose(gap[0], 0, atol=1e-4)
    assert np.all(gap > -1e-4)
    # Of a bound of about −6. With few entries and memberships near a corner there are several modes, q knows one.
    assert np.median(gap) < 0.8
    assert gap.max() < 4
    estimate = likelihood(jax.random.key(4), params, x, mask, gamma)
    score = (np.asarray(estimate.value) - exact)[1:] / np.asarray(estimate.standard_error)[1:]
    # Of 59 rows: the mean of their scores has deviation 0.13, the largest of so many is about 2.6.
    assert abs(np.mean(score)) < 0.5
    assert 0.5 < np.sqrt(np.mean(score**2)) < 1.5
    assert np.abs(score).max() < 5
    assert np.asarray(estimate.standard_error).max() < 0.25


def test_importance_sampling_of_many_entries_by_quadrature(float64):
    variables = categorical_variables(60, 2)
    grid = (np.arange(20_000) + 0.5) / 20_000
    for scale in (1.0, 5.0):
        params = random_model(0, variables, k=2, scale=scale)
        x = draw(1, params, N, variables)
        gamma = infer(params, x, None, variables)
        estimate = likelihood(jax.random.key(2), params, x, None, gamma, variables)
        for i in range(0, N, 6):
            table = likelihood_table(params, np.asarray(x[i]), variables)
            terms = np.log(np.outer(grid, table[:, 0]) + np.outer(1 - grid, table[:, 1])).sum(axis=1)
            exact = special.logsumexp(terms + stats.beta.logpdf(grid, *np.asarray(params.concentration)))
            error = float(estimate.value[i]) - (exact - math.log(len(grid)))
            assert abs(error) < 4 * float(estimate.standard_error[i]) < 0.4


def test_blocks_of_rows_are_as_the_whole(monkeypatch, float64):
    params = random_model(0)
    mask, x = holes(2, draw(1, params, N))
    whole = infer(params, x, mask)
    monkeypatch.setattr("latensor.moments._rows._FLOATS_PER_BLOCK", 20 * 3 * P * K)
    # One row more, so that it is compiled anew; three blocks and that row, all rows of importance sampling the same.
    longer = [jnp.concatenate([a, a[:1]]) for a in (x, mask)]
    assert_close(infer(params, *longer)[:N], whole, 1e-6)
    same = [jnp.broadcast_to(a[1:2], (N + 1, a.shape[1])) for a in (x, mask, whole)]
    value = likelihood(jax.random.key(0), params, *same).value
    assert len(np.unique(np.asarray(value))) == N + 1
    assert float(np.ptp(value)) < 0.5
