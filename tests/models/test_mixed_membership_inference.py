import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from latensor.models import mixed_membership
from latensor.models.mixed_membership import MixedMembership, em, factors, inference
from latensor.models.mixed_membership.likelihood import likelihoods_around
from latensor.moments import Table, Variables, categorical_variables

# Most tests share these variables and shapes, and with them what was compiled.
MIXED = Variables(("categorical", "real", "categorical", "real", "categorical"), (3, 1, 2, 1, 4))
P, K, N = 5, 3, 60
REAL = np.array([1, 3])


def random_model(seed, variables=MIXED, k=K, scale=1.0, concentration=0.5):
    """Components have categories from Dirichlet(`concentration`), means of deviation three, variances near one."""
    rng = np.random.default_rng(seed)
    blocks = [
        rng.normal(0, 3, (1, k)) if kind == "real" else rng.dirichlet(np.full(size, concentration), k).T
        for kind, size in zip(variables.kinds, variables.sizes, strict=True)
    ]
    real = variables.real.size
    variances = jnp.asarray(rng.uniform(0.5, 2, real)) if real else None
    return MixedMembership(jnp.asarray(scale * np.linspace(0.7, 1.3, k)), jnp.asarray(np.vstack(blocks)), variances)


def draw(seed, params, num_samples, variables=MIXED):
    """Rows by NumPy: jax.random.loggamma takes seconds to compile for every shape."""
    rng = np.random.default_rng(seed)
    alpha, tables = (np.asarray(leaf, np.float64) for leaf in params[:2])
    hidden = rng.dirichlet(alpha, num_samples)
    columns, num_real = [], 0
    for kind, low, size in zip(variables.kinds, variables.offsets[:-1], variables.sizes, strict=True):
        component = (rng.uniform(size=(num_samples, 1)) > np.cumsum(hidden, axis=1)[:, :-1]).sum(axis=1)
        if kind == "real":
            columns.append(rng.normal(tables[low, component], math.sqrt(params.variances[num_real])))
            num_real += 1
        else:
            cumulative = np.cumsum(tables[low : low + size, component], axis=0)[:-1]
            columns.append((rng.uniform(size=num_samples)[None] > cumulative).sum(axis=0))
    x = np.stack(columns, axis=1)
    return jnp.asarray(x, params.tables.dtype if variables.real.size else jnp.int32)


def holes(seed, x):
    """A mask, and the table with what must not matter under it."""
    mask = np.random.default_rng(seed).uniform(size=x.shape) < 0.7
    mask[0] = False
    junk = np.where(np.arange(x.shape[1]) % 2 == 0, 99, np.nan)[None]
    return jnp.asarray(mask), jnp.asarray(np.where(mask, x, junk), x.dtype)


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


def infer(params, x, mask, variables=MIXED, tol=1e-9, max_iters=20_000):
    dtype = params.tables.dtype
    return inference.infer_memberships(
        params, Table(x, mask, variables=variables), jnp.asarray(tol, dtype), jnp.int32(max_iters)
    )


@jax.jit
def _entries(params, x, mask):
    return inference.entry_likelihoods(params, Table(x, mask, variables=MIXED))


@jax.jit
def _bound(params, x, mask, gamma):
    return inference.evidence_bound(params, _entries(params, x, mask), gamma)


@partial(jax.jit, static_argnames="variables")
def likelihood(key, params, x, mask, gamma, variables=MIXED):
    return likelihoods_around(key, params, Table(x, mask, variables=variables), gamma, 400)


def climb(params, x, mask, steps, row_weights=None, variables=MIXED, smoothing=0.0, update_concentration=True):
    return mixed_membership.refine(
        params,
        Table(x, mask, jnp.ones(x.shape[0], params.tables.dtype) if row_weights is None else row_weights, variables),
        tol=0.0,
        max_iters=steps,
        smoothing=smoothing,
        update_concentration=update_concentration,
    )


def assert_close(a, b, tolerance):
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


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
        ratio = np.asarray(entries.likelihoods[i]) / table
        seen = np.asarray(mask[i])
        np.testing.assert_allclose(ratio[seen], np.broadcast_to(ratio[seen][:, :1], ratio[seen].shape), rtol=1e-8)
        np.testing.assert_allclose(np.asarray(entries.likelihoods[i])[~seen], 1)
        np.testing.assert_allclose(entries.log_scale[i], -np.log(ratio[seen][:, 0]).sum(), rtol=1e-8)
        log_mean = special.digamma(gamma[i]) - special.digamma(gamma[i].sum())
        share = table[seen] * np.exp(log_mean)
        share /= share.sum(axis=1, keepdims=True)
        bound = np.sum(share * (np.log(table[seen]) + log_mean - np.log(share)))
        bound += special.gammaln(alpha.sum()) - special.gammaln(alpha).sum() + np.sum((alpha - 1) * log_mean)
        bound += stats.dirichlet.entropy(gamma[i])
        np.testing.assert_allclose(bounds[i], bound, rtol=1e-9)


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
