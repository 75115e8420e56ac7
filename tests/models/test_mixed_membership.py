import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status, matched_rmse
from latensor.models import mixed_membership
from latensor.models._membership_meld import meld
from latensor.models.mixed_membership import MixedMembership
from latensor.moments import Variables, categorical_variables
from tests.helpers import lowers

KEY = jax.random.key(0)
P, K = 24, 5
ALIKE = categorical_variables(P, 4)
MIXED = Variables(("categorical",) * 18 + ("real",) * 6, (2, 3, 7) * 6 + (1,) * 6)
SMALL = categorical_variables(9, 3)


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


def small(method="ptpqp", polish=1, **options):
    """The one shape that most tests share: nine variables of three categories, three components."""

    def run(x, **more):
        return mixed_membership.fit(
            KEY, x, 3, 0.3, method, 2, ((0, 1), (2, 3), (4, 5)), variables=SMALL, polish=polish, **options, **more
        )

    return run


@pytest.fixture(scope="module")
def table():
    truth = random_params(1, SMALL, 3)
    return truth, draw(2, truth, SMALL, 20_000)


# Population moments: recovery without noise.
@pytest.mark.parametrize("num_partitions", [1, 4])
@pytest.mark.parametrize("variables", [ALIKE, MIXED], ids=["alike", "mixed"])
def test_population_moments_give_the_tables_back(variables, num_partitions, float64):
    truth = random_params(0, variables, K)
    moments = mixed_membership.population_moments(truth, variables)
    found = mixed_membership.fit_moments(KEY, moments, K, 0.5, variables, num_partitions=num_partitions)
    assert float(matched_rmse(truth.tables, found.params.tables)) < 1e-8
    np.testing.assert_allclose(found.params.concentration, truth.concentration, atol=1e-7)
    assert int(found.status) == Status.CONVERGED
    assert found.matched.tolist() == [True] * num_partitions


@pytest.mark.parametrize("method", ["hals", "tpm", "nojd0"])
def test_other_methods_recover_from_population_moments(method, float64):
    truth = random_params(1, SMALL, 3)
    moments = mixed_membership.population_moments(truth, SMALL)
    anchors = ((0, 1), (2, 3), (4, 5))
    found = mixed_membership.fit_moments(KEY, moments, 3, 0.3, SMALL, method, 2, anchors)
    assert float(matched_rmse(truth.tables, found.params.tables)) < 1e-6


# Data: margins are about twice the error seen when the test was written.
@pytest.mark.parametrize("polish", [0, 1])
def test_recovers_from_samples(polish, table):
    truth, x = table
    found = small(polish=polish)(x)
    assert float(matched_rmse(truth.tables, found.params.tables)) < 0.03
    assert int(found.status) == Status.CONVERGED
    sums = np.add.reduceat(np.asarray(found.params.tables), SMALL.offsets[:-1], axis=0)
    np.testing.assert_allclose(sums, 1, atol=1e-5)
    np.testing.assert_allclose(jnp.sum(found.params.concentration), 0.3, rtol=1e-5)


def test_generalized_method_of_moments(table):
    truth, x = table
    found = mixed_membership.fit(KEY, x, 3, 0.3, "meld", variables=SMALL)
    assert float(matched_rmse(truth.tables, found.params.tables)) < 0.03
    assert int(found.status) == Status.CONVERGED


def test_rows_of_weight_zero_and_masked_entries_do_not_matter(table):
    _, x = table
    fit = small()
    weights = (jnp.arange(len(x)) % 2).astype(jnp.float32)
    spoiled = jnp.where((jnp.arange(len(x)) % 2 == 0)[:, None], 2, x)
    a, b = fit(x, row_weights=weights), fit(spoiled, row_weights=weights)
    np.testing.assert_allclose(a.params.tables, b.params.tables, atol=1e-5)
    mask = jnp.asarray(np.random.default_rng(5).random(x.shape) < 0.8)
    a, b = fit(x, mask=mask), fit(jnp.where(mask, x, -7), mask=mask)
    np.testing.assert_allclose(a.params.tables, b.params.tables, atol=1e-6)


def test_missing_entries_leave_the_answer(table):
    truth, x = table
    mask = jnp.asarray(np.random.default_rng(5).random(x.shape) < 0.8)
    found = small()(x, mask=mask)
    assert float(matched_rmse(truth.tables, found.params.tables)) < 0.05


def test_real_and_categorical_variables_together(float64):
    variables = Variables(("categorical", "real", "categorical") * 4, (3, 1, 2) * 4)
    truth = random_params(3, variables, 2, alpha=0.2)
    x = draw(4, truth, variables, 5_000)
    found = mixed_membership.fit(KEY, x, 2, 0.4, variables=variables)
    tables = np.asarray(found.params.tables)
    errors = min(np.abs(tables[:, order] - truth.tables).max() for order in ([0, 1], [1, 0]))
    # Means are between −2 and 12, probabilities below one; 5,000 samples.
    assert errors < 0.5
    np.testing.assert_allclose(found.params.variances, 1, atol=0.5)
    posterior = mixed_membership.posterior(found.params, x[:100], variables=variables)
    np.testing.assert_allclose(jnp.sum(posterior.mean, axis=1), 1, atol=1e-9)


def test_the_concentration_can_be_estimated(table):
    """A total of 0.3: within a factor of two (the likelihood is flat)."""
    _, x = table
    found = mixed_membership.fit(KEY, x[:4000], 3, None, num_partitions=1, anchors=((0, 1), (2, 3), (4, 5)), polish=0)
    assert 0.15 < float(jnp.sum(found.params.concentration)) < 0.6


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
        found = meld(start, truth.concentration, x, None, None, SMALL, sweeps)
        after = criterion(found.tables, truth.concentration, x, SMALL)
        np.testing.assert_allclose(found.objective, after - before, rtol=1e-8)
        values.append(float(found.objective))
    assert values[2] < values[1] < 0


# Transformations.
def test_trials_are_one_vmap(table):
    _, x = table
    fit = small()
    batch = jnp.stack([x[:2000], x[2000:4000]])
    together = jax.jit(jax.vmap(lambda x: fit(x).params.tables))(batch)
    np.testing.assert_allclose(together[1], fit(batch[1]).params.tables, atol=2e-3)


def test_chosen_anchors_are_the_same_under_jit(table):
    _, x = table

    def fit(x):
        return mixed_membership.fit(KEY, x[:2000], 3, 0.3, num_partitions=1, variables=SMALL, polish=0)

    a, b = fit(x), jax.jit(fit)(x)
    assert [group.tolist() for group in a.anchors] == [group.tolist() for group in b.anchors]
    assert len({int(j) for group in a.anchors for j in group}) == 3 * len(a.anchors[0])


def test_lowers_for_accelerators(table):
    truth, x = table
    x = x[:50]
    lowers(lambda x: small()(x), x)
    lowers(lambda p, x: mixed_membership.posterior(MixedMembership(*p), x, variables=SMALL), tuple(truth), x)
    lowers(lambda p: mixed_membership.population_moments(MixedMembership(*p), SMALL), tuple(truth))


def test_public_verbs_agree_with_each_other(table):
    _truth, x = table
    found = small()(x)
    refined = mixed_membership.refine(found.params, x, variables=SMALL, max_iters=5)
    assert type(refined) is type(found)
    np.testing.assert_allclose(refined.params.concentration, found.params.concentration)
    sampled = mixed_membership.sample(KEY, found.params, 200, variables=SMALL)
    assert sampled.x.shape == (200, 9)
    assert int(jnp.max(sampled.x)) <= 2
    value = mixed_membership.log_likelihood(KEY, found.params, x[:200], variables=SMALL, num_samples=50)
    assert bool(jnp.all(value.value < 0))
    inferred = mixed_membership.posterior(found.params, sampled.x, variables=SMALL)
    # What was drawn is what is found, roughly: nine variables tell the main component of most.
    same = jnp.mean(jnp.argmax(inferred.mean, axis=1) == jnp.argmax(sampled.hidden, axis=1))
    assert float(same) > 0.7


def test_float64_stays(float64):
    x = draw(2, random_params(1, SMALL, 3), SMALL, 500)
    assert small(polish=1)(x).params.tables.dtype == "float64"
