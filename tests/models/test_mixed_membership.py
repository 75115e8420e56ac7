import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status, matched_rmse
from latensor.models import mixed_membership
from latensor.models.mixed_membership import ConcentrationWarning, MixedMembership
from latensor.models.mixed_membership.meld import meld
from latensor.models.shares import share_table
from latensor.moments import Table, Variables, categorical_variables

KEY = jax.random.key(0)
P, K = 24, 5
ALIKE = categorical_variables(P, 4)
MIXED = Variables(("categorical",) * 18 + ("real",) * 6, (2, 3, 7) * 6 + (1,) * 6)
SMALL = categorical_variables(9, 3)
ANCHORS = ((0, 1), (2, 3), (4, 5))


def random_params(seed, variables, k, alpha=0.1):
    rng = np.random.default_rng(seed)
    blocks = [
        rng.dirichlet(np.full(size, 0.5), k).T if kind == "categorical" else 3 * rng.normal(size=(1, k)) + 5
        for kind, size in zip(variables.kinds, variables.sizes, strict=True)
    ]
    variances = jnp.ones(variables.real.size) if variables.real.size else None
    return MixedMembership(jnp.full(k, alpha), jnp.asarray(np.concatenate(blocks), float), variances)


def draw(seed, params, variables, n):
    """Samples by NumPy: what jax.random compiles for every shape takes longer than the test."""
    rng = np.random.default_rng(seed)
    alpha, tables = np.asarray(params.concentration, float), np.asarray(params.tables, float)
    member = rng.dirichlet(alpha, n)
    columns = []
    for j, (kind, size) in enumerate(zip(variables.kinds, variables.sizes, strict=True)):
        block = tables[variables.offsets[j] : variables.offsets[j + 1]]
        component = (rng.random(n)[:, None] > np.cumsum(member, axis=1)[:, :-1]).sum(axis=1)
        if kind == "real":
            columns.append(block[0, component] + rng.normal(size=n))
        else:
            cumulative = np.cumsum(block, axis=0).T[component]
            columns.append((rng.random(n)[:, None] > cumulative[:, :-1]).sum(axis=1).clip(0, size - 1))
    x = np.stack(columns, axis=1)
    return jnp.asarray(x, params.tables.dtype if variables.real.size else jnp.int32)


def small(x, **options):
    """The one shape that most tests share: nine variables of three categories, three components."""
    defaults = {"concentration": 0.3, "variables": SMALL, "num_partitions": 2, "anchors": ANCHORS}
    return mixed_membership.fit(KEY, x, 3, **(defaults | options))


@pytest.fixture(scope="module")
def table():
    truth = random_params(1, SMALL, 3)
    return truth, draw(2, truth, SMALL, 20_000)


# Population moments: recovery without noise.
@pytest.mark.parametrize("num_partitions", [1, 4])
@pytest.mark.parametrize("variables", [ALIKE, MIXED], ids=["alike", "mixed"])
def test_population_moments_give_the_tables_back(variables, num_partitions, float64):
    truth = random_params(0, variables, K)
    moments = mixed_membership.population_moments(truth, variables=variables)
    fit = mixed_membership.fit_moments(
        KEY, moments, K, variables=variables, concentration=0.5, num_partitions=num_partitions
    )
    assert float(matched_rmse(truth.tables, fit.params.tables)) < 1e-8
    np.testing.assert_allclose(fit.params.concentration, truth.concentration, atol=1e-7)
    assert int(fit.status) == Status.CONVERGED
    assert fit.diagnostics.matched.tolist() == [True] * num_partitions
    values, noise = fit.diagnostics.spectrum
    assert values.shape == (K,)
    assert float(noise) < 1e-12 < 1e-3 < float(values[-1])


# The multiplicative ones approach zeros slowly.
@pytest.mark.parametrize(
    ("method", "tolerance"),
    [(name, 1e-6) for name in ("hals", "power", "ojd0", "ojd1", "nojd0", "nojd1")]
    + [("wnmf", 0.01), ("multiplicative", 0.01)],
)
def test_other_methods_recover_from_population_moments(method, tolerance, float64):
    truth = random_params(1, SMALL, 3)
    moments = mixed_membership.population_moments(truth, variables=SMALL)
    # Two partitions of each family show that its factors are lined up.
    fit = mixed_membership.fit_moments(
        KEY,
        moments,
        3,
        variables=SMALL,
        method=method,
        concentration=0.3,
        num_partitions=2 if method in ("hals", "power") else 1,
        anchors=ANCHORS,
    )
    assert float(matched_rmse(truth.tables, fit.params.tables)) < tolerance


# Data: margins are about twice the error seen when the test was written.
@pytest.mark.parametrize("polish", [0, 1])
def test_recovers_from_samples(polish, table):
    truth, x = table
    fit = small(x, polish=polish)
    assert float(matched_rmse(truth.tables, fit.params.tables)) < 0.03
    assert int(fit.status) == Status.CONVERGED
    sums = np.add.reduceat(np.asarray(fit.params.tables), SMALL.offsets[:-1], axis=0)
    np.testing.assert_allclose(sums, 1, atol=1e-5)
    np.testing.assert_allclose(jnp.sum(fit.params.concentration), 0.3, rtol=1e-5)
    assert bool(jnp.all(jnp.diff(fit.params.concentration) <= 0))


def test_generalized_method_of_moments(table):
    truth, x = table
    fit = small(x, method="meld", num_partitions=None, anchors=None)
    assert float(matched_rmse(truth.tables, fit.params.tables)) < 0.03
    assert int(fit.status) == Status.CONVERGED
    assert fit.diagnostics[:4] == (None,) * 4


def test_rows_of_weight_zero_and_masked_entries_do_not_matter(table):
    _, x = table
    weights = (jnp.arange(len(x)) % 2).astype(jnp.float32)
    spoiled = jnp.where((jnp.arange(len(x)) % 2 == 0)[:, None], 2, x)
    a, b = small(x, row_weights=weights), small(spoiled, row_weights=weights)
    np.testing.assert_allclose(a.params.tables, b.params.tables, atol=1e-5)
    mask = jnp.asarray(np.random.default_rng(5).random(x.shape) < 0.8)
    a, b = small(x, mask=mask), small(Table(jnp.where(mask, x, -7), mask, variables=SMALL), variables=None)
    np.testing.assert_allclose(a.params.tables, b.params.tables, atol=1e-6)


def test_missing_entries_leave_the_answer(table):
    truth, x = table
    mask = jnp.asarray(np.random.default_rng(5).random(x.shape) < 0.8)
    assert float(matched_rmse(truth.tables, small(x, mask=mask).params.tables)) < 0.02


def test_real_and_categorical_variables_together(float64):
    variables = Variables(("categorical", "real", "categorical") * 4, (3, 1, 2) * 4)
    truth = random_params(3, variables, 2, alpha=0.2)
    x = draw(4, truth, variables, 5_000)
    fit = mixed_membership.fit(KEY, x, 2, concentration=0.4, variables=variables)
    assert int(fit.status) == Status.CONVERGED
    tables = np.asarray(fit.params.tables)
    order = min(([0, 1], [1, 0]), key=lambda order: np.abs(tables[:, order] - truth.tables).max())
    errors = np.abs(tables[:, order] - truth.tables)
    is_real = np.isin(variables.row_variables, variables.real)
    # Means are between −2 and 12, with standard deviation one about them.
    assert errors[is_real].max() < 0.3
    assert errors[~is_real].max() < 0.06
    np.testing.assert_allclose(fit.params.variances, 1, atol=0.5)
    posterior = mixed_membership.posterior(fit.params, x[:100], variables=variables)
    np.testing.assert_allclose(jnp.sum(posterior, axis=1), 1, atol=1e-9)


def test_shares_have_the_scale_of_what_is_observed(float64):
    """Two standard deviations times the root of the number of components to both sides of the mean."""
    rng = np.random.default_rng(5)
    x, mask, weights = rng.normal(5, 2, (40, 3)), rng.random((40, 3)) < 0.6, rng.random(40)
    x[:, 1] = rng.integers(0, 2, 40)
    variables = Variables(("real", "categorical", "real"), (1, 2, 1))
    given = Table(jnp.asarray(np.where(mask, x, np.nan)), jnp.asarray(mask), jnp.asarray(weights), variables)
    shares, scaling = share_table(given, 4)
    for place, column in enumerate((0, 2)):
        seen = mask[:, column]
        mean = np.average(x[seen, column], weights=weights[seen])
        variance = np.average((x[seen, column] - mean) ** 2, weights=weights[seen])
        half = 2 * np.sqrt(4) * np.sqrt(variance)
        np.testing.assert_allclose(scaling.variance[place], variance, rtol=1e-12)
        np.testing.assert_allclose([scaling.low[place], scaling.width[place]], [mean - half, 2 * half], rtol=1e-12)
        np.testing.assert_allclose(shares.x[seen, column], 0.5 + (x[seen, column] - mean) / (2 * half), atol=1e-12)


# The total concentration.
def test_the_concentration_can_be_estimated(table):
    """A total of 0.3: within a factor of two (the likelihood is flat), whatever is in rows of weight zero."""
    _, x = table
    x = x[:4000]
    options = {"concentration": None, "method": "power", "num_partitions": 1, "polish": 0}
    weights = (np.arange(len(x)) % 2).astype(np.float32)
    noise = np.random.default_rng(0).integers(0, 3, x.shape)
    spoiled = jnp.where((weights == 0)[:, None], noise, x)
    a, b = small(x, row_weights=weights, **options), small(spoiled, row_weights=weights, **options)
    np.testing.assert_allclose(a.params.concentration, b.params.concentration, rtol=1e-3)
    assert 0.15 < float(jnp.sum(a.params.concentration)) < 0.6
    assert not bool(a.diagnostics.concentration_at_limit)


def test_a_concentration_at_the_end_of_its_grid_is_reported():
    """Every sample belongs to one component."""
    rng = np.random.default_rng(0)
    tables = 0.97 * np.eye(3)[rng.permuted(np.tile(np.arange(3), (9, 1)), axis=1)] + 0.01
    component = rng.integers(0, 3, 150)
    x = np.stack([(rng.random(150)[:, None] > np.cumsum(t[component], axis=1)[:, :-1]).sum(axis=1) for t in tables], 1)

    def fit(x):
        return small(x, concentration=None, method="power", num_partitions=1, polish=0)

    with pytest.warns(ConcentrationWarning, match="concentration is 0.05, the end of the grid"):
        eager = fit(jnp.asarray(x, jnp.int32))
    traced = jax.jit(fit)(jnp.asarray(x, jnp.int32))
    assert int(eager.status) == int(traced.status) == Status.BOUNDARY
    assert bool(eager.diagnostics.concentration_at_limit)
    np.testing.assert_allclose(jnp.sum(eager.params.concentration), 0.05, rtol=1e-5)
    np.testing.assert_allclose(traced.params.tables, eager.params.tables, atol=1e-3)


# MELD's criterion against its definition.
def criterion(tables, concentration, x, variables):
    """All pairs and triples of variables, formed."""
    b = np.stack([np.eye(3)[np.asarray(x)[:, j]] for j in range(variables.num_variables)], axis=1)
    t = np.asarray(tables, float).reshape(variables.num_variables, 3, -1)
    alpha = np.asarray(concentration, float)
    total, n = alpha.sum(), len(b)
    eta, lam = alpha / (total * (total + 1)), 2 * alpha / (total * (total + 1) * (total + 2))
    mean = b.mean(axis=0)
    pair = {}
    value = 0.0
    for j in range(variables.num_variables):
        for s in range(j):
            raw = b[:, s].T @ b[:, j] / n
            pair[s, j] = raw
            corrected = raw - total / (total + 1) * np.outer(mean[s], mean[j])
            value += np.sum((corrected - (t[s] * eta) @ t[j].T) ** 2)
    for i in range(variables.num_variables):
        for s in range(i):
            for j in range(s):
                raw = np.einsum("na,nb,nc->abc", b[:, j], b[:, s], b[:, i], optimize=True) / n
                mixed = (
                    np.einsum("ab,c->abc", pair[j, s], mean[i])
                    + np.einsum("ac,b->abc", pair[j, i], mean[s])
                    + np.einsum("bc,a->abc", pair[s, i], mean[j])
                )
                outer = np.einsum("a,b,c->abc", mean[j], mean[s], mean[i])
                corrected = raw - total / (total + 2) * mixed + 2 * total**2 / ((total + 1) * (total + 2)) * outer
                value += np.sum((corrected - np.einsum("h,ah,bh,ch->abc", lam, t[j], t[s], t[i])) ** 2)
    return value / 2


def test_meld_falls_by_what_it_says(float64):
    truth = random_params(6, SMALL, 3, alpha=0.2)
    x = draw(7, truth, SMALL, 300)
    start = random_params(8, SMALL, 3).tables
    before = criterion(start, truth.concentration, x, SMALL)
    values = [0.0]
    for sweeps in (1, 2):
        result = meld(start, truth.concentration, Table(x, variables=SMALL), sweeps)
        after = criterion(result.tables, truth.concentration, x, SMALL)
        np.testing.assert_allclose(result.objective, after - before, rtol=1e-8)
        values.append(float(result.objective))
    assert values[2] < values[1] < 0


# What the status says of the result.
@pytest.mark.parametrize("repeated", [False, True])
def test_rows_that_coincide_have_no_components(repeated):
    x = np.zeros((30, 9), np.int32) if not repeated else np.tile(np.arange(9) % 3, (30, 1)).astype(np.int32)
    fit = small(x)
    assert int(fit.status) == Status.RANK_DEFICIENT
    if not repeated:
        # Otherwise rounding decides whether the factors of one row, over and over, coincide.
        assert jnp.max(fit.diagnostics.decomposition_status) == Status.DEGENERATE
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(fit.params))


def test_under_a_trace_the_status_tells_of_bad_values():
    variables = Variables(("categorical",) * 6 + ("real",) * 3, (3,) * 6 + (1,) * 3)
    good = np.asarray(draw(4, random_params(4, variables, 2, alpha=0.2), variables, 400))
    lanes = [(good, 0.4, True), (good, 0.0, True), (good, 0.4, False)]
    for entry, value in (((0, 0), np.nan), ((0, 7), np.inf), ((0, 0), 3), ((0, 0), -1), ((0, 0), 0.5)):
        x = good.copy()
        x[entry] = value
        lanes.append((x, 0.4, True))
    x, total, seen = (jnp.asarray(np.stack(part)) for part in zip(*lanes, strict=True))

    @jax.jit
    @jax.vmap
    def fit(x, total, seen):
        mask = jnp.ones(x.shape, bool).at[:, 8].set(seen)
        return mixed_membership.fit(
            KEY, x, 2, mask=mask, variables=variables, concentration=total, anchors=ANCHORS, polish=0, method="power"
        )

    result = fit(x, total.astype(jnp.float32), seen)
    assert result.status.tolist() == [Status.CONVERGED, Status.NON_FINITE, Status.UNOBSERVED] + [Status.NON_FINITE] * 5
    assert bool(jnp.all(jnp.isfinite(result.params.variances[0])))


def test_chosen_anchors_are_the_same_under_jit(table):
    _, x = table

    def fit(x):
        return small(x[:2000], num_partitions=1, anchors=None, polish=0).diagnostics.anchors

    a, b = fit(x), jax.jit(fit)(x)
    assert [group.tolist() for group in a] == [group.tolist() for group in b]
    assert len({int(j) for group in a for j in group}) == 3 * len(a[0])
