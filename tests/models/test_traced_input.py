"""What eager calls refuse, and traced ones cannot: it shows in the status, and at any scale of the weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import gamma_poisson, gaussian_mixture, mixed_membership, naive_bayes
from latensor.models.gamma_poisson import GammaPoisson
from latensor.models.naive_bayes import NaiveBayes
from latensor.moments import Documents, Table, categorical_variables

pytestmark = pytest.mark.usefixtures("no_type_checks")

RNG = np.random.default_rng(0)
KEY = jax.random.key(0)
HIDDEN = RNG.integers(0, 2, 40)
X = (4 * RNG.normal(size=(2, 5))[HIDDEN] + RNG.normal(size=(40, 5))).astype(np.float32)
COUNTS = RNG.poisson(np.array([[9, 1, 1, 5, 1], [1, 8, 4, 1, 2]])[HIDDEN]).astype(np.float32)
MASK, WEIGHTS = np.ones((40, 5), bool), np.ones(40, np.float32)
TABLES = {"gaussian_mixture": (gaussian_mixture, X), "gamma_poisson": (gamma_poisson, COUNTS)}
TOPICS = GammaPoisson(np.full((5, 2), 0.2, np.float32), np.ones(2, np.float32), np.float32(0.1))


@pytest.fixture(scope="module")
def traced():
    """Fits under `jit`, compiled once for all tests."""
    fits = {
        name: jax.jit(lambda x, mask, weights, fit=model.fit: fit(KEY, Table(x, mask, weights), 2))
        for name, (model, _) in TABLES.items()
    }
    return fits | {
        "naive_bayes": jax.jit(lambda x, mask, weights: naive_bayes.fit(KEY, Documents(x, None, weights), 2))
    }


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


@pytest.mark.parametrize("name", TABLES)
def test_dimensions_and_pairs_that_are_never_observed(name, traced):
    _, x = TABLES[name]
    assert traced[name](x, MASK, WEIGHTS).status != Status.UNOBSERVED
    one_each = np.arange(5)[None, :] == (np.arange(40) % 5)[:, None]
    apart = changed(changed(MASK, (slice(20), 1), False), (slice(20, None), 2), False)
    never = changed(MASK, (slice(None), 3), False)
    for mask in (one_each, apart, never):
        assert traced[name](x, mask, WEIGHTS).status == Status.UNOBSERVED
    assert traced[name](x, apart, WEIGHTS).diagnostics.unobserved_pairs == 2
    # Rows of weight zero do not count.
    weights = (np.arange(40) < 20).astype(np.float32)
    assert traced[name](x, changed(MASK, (slice(20), 3), False), weights).status == Status.UNOBSERVED


def test_pairs_that_hardly_matter_are_only_counted(traced):
    # Two dimensions that few rows observe miss each other.
    mask = changed(changed(MASK, (slice(3, None), 1), False), (slice(-3), 2), False)
    fit = traced["gaussian_mixture"](X, mask, WEIGHTS)
    assert fit.diagnostics.unobserved_pairs == 2
    assert fit.status != Status.UNOBSERVED


def test_pairs_are_counted_without_a_dense_covariance():
    one_each = np.arange(5)[None, :] == (np.arange(40) % 5)[:, None]
    fit = jax.jit(lambda mask: gamma_poisson.fit(KEY, COUNTS, 2, mask=mask, second="implicit"))(one_each)
    assert fit.status == Status.UNOBSERVED
    assert fit.diagnostics.unobserved_pairs == 20


@pytest.mark.parametrize("name", [*TABLES, "naive_bayes"])
def test_weights_of_any_scale_give_the_same_answer(name, traced):
    x = COUNTS if name == "naive_bayes" else TABLES[name][1]
    expected = traced[name](x, MASK, WEIGHTS)
    for scale in (3e38, 1e37, 1e-38, 1e-44):
        fit = traced[name](x, MASK, np.full(40, scale, np.float32))
        assert fit.status == expected.status
        for one, other in zip(jax.tree.leaves(fit.params), jax.tree.leaves(expected.params), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [*TABLES, "naive_bayes"])
def test_weights_and_values_that_are_not_valid(name, traced):
    x = COUNTS if name == "naive_bayes" else TABLES[name][1]
    for bad in (-1.0, np.nan, np.inf):
        assert traced[name](x, MASK, changed(WEIGHTS, 7, bad)).status == Status.NON_FINITE
    assert traced[name](x, MASK, 0 * WEIGHTS).status == Status.NON_FINITE
    values = (np.nan, np.inf) if name == "gaussian_mixture" else (np.nan, np.inf, -1.0, 0.5)
    for bad in values:
        assert traced[name](changed(x, (3, 2), bad), MASK, WEIGHTS).status == Status.NON_FINITE
    if name != "naive_bayes":
        masked = changed(MASK, (3, 2), False)
        assert traced[name](changed(x, (3, 2), values[-1]), masked, WEIGHTS).status != Status.NON_FINITE


def test_word_ids_beyond_the_vocabulary():
    ids = RNG.integers(0, 4, (12, 5))
    params = NaiveBayes(np.full(2, 0.5, np.float32), RNG.dirichlet(np.ones(4), 2).T.astype(np.float32))

    @jax.jit
    def run(ids):
        documents = Documents(ids, 4)
        fit, refined = naive_bayes.fit(KEY, documents, 2), naive_bayes.refine(params, documents, max_iters=3)
        return fit.status, refined.status, naive_bayes.log_likelihood(params, documents)

    for bad in (4, 2**31 - 1):
        fit, refined, rows = run(changed(ids, (5, 1), bad))
        assert fit == refined == Status.NON_FINITE
        assert np.flatnonzero(np.isnan(rows)).tolist() == [5]
    # Below zero is padding.
    assert run(changed(ids, (5, 1), -1))[1] != Status.NON_FINITE


def test_refine_of_counts_that_are_never_observed_or_not_valid():
    refine = jax.jit(lambda x, mask: gamma_poisson.refine(TOPICS, x, mask=mask, max_iters=3).status)
    assert refine(COUNTS, changed(MASK, (slice(None), 3), False)) == Status.UNOBSERVED
    assert refine(changed(COUNTS, (0, 0), -1), MASK) == Status.NON_FINITE
    assert refine(COUNTS, MASK) not in (Status.UNOBSERVED, Status.NON_FINITE)


def test_variables_that_only_rows_without_weight_observe():
    variables = categorical_variables(6, 3)
    x, mask = RNG.integers(0, 3, (20, 6)), np.ones((20, 6), bool)
    mask[10:, 2] = False
    with pytest.raises(ValueError, match="mask: expected every variable to be observed somewhere; variable 2 never is"):
        mixed_membership.fit(
            KEY,
            x,
            2,
            mask=mask,
            variables=variables,
            row_weights=(np.arange(20) >= 10).astype(float),
            concentration=1.0,
        )


def test_tables_of_numbers_refuse_variables():
    table = Table(COUNTS, variables=categorical_variables(5, 30))
    for call in (
        lambda: gaussian_mixture.fit(KEY, table, 2),
        lambda: gamma_poisson.fit(KEY, table, 2),
        lambda: gamma_poisson.posterior(TOPICS, table),
    ):
        with pytest.raises(
            ValueError, match="x: expected a Table of numbers; got one with variables of kind categorical"
        ):
            call()


def test_posterior_stops_at_its_tolerance_and_limit():
    params = GammaPoisson(np.array([[0.6, 0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1, 0.6]]).T, np.ones(2), np.array(0.1))
    best, start, loose = (
        np.asarray(gamma_poisson.posterior(params, COUNTS, **limit)) for limit in ({}, {"max_iters": 0}, {"tol": 0.9})
    )
    one = np.asarray(gamma_poisson.posterior(params, COUNTS, max_iters=1))
    assert np.max(np.abs(best - start)) > 0.01
    # A loose tolerance stops after the first update.
    np.testing.assert_allclose(loose, one, atol=1e-6)
    assert np.max(np.abs(one - start)) > 1e-3
    assert np.max(np.abs(best - one)) > 1e-3
    assert jnp.all(jnp.isfinite(best))


def test_population_moments_beyond_the_floating_range_are_refused():
    half = np.full(2, 0.5, np.float32)
    mixture = gaussian_mixture.GaussianMixture(half, np.full((3, 2), 1e20, np.float32) * [1, -1], np.float32(1))
    with pytest.raises(ValueError, match=r"params: expected numbers whose third moments are within float32"):
        gaussian_mixture.population_moments(mixture)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_other_kinds(impl):
    for key in (jax.random.key(1, impl=impl), jax.random.PRNGKey(1, impl=impl)):
        assert gamma_poisson.sample(key, TOPICS, 3).x.shape == (3, 5)


def test_a_known_mask_of_traced_values():
    expected = gaussian_mixture.fit(KEY, X, 2, mask=MASK).params.means
    result = jax.jit(lambda x: gaussian_mixture.fit(KEY, x, 2, mask=MASK).params.means)(X)
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)
