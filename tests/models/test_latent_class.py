import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import latent_class
from latensor.models.classes import read_off
from latensor.models.latent_class import LatentClass, density
from latensor.moments import Variables, categorical_variables
from tests.models.latent_class_cases import CODES, METHODS, MIXED, K, draw, holes, random_model, worst_error


# Population moments.
@pytest.mark.parametrize("method", METHODS)
def test_population_moments_give_the_model_back(method, float64):
    for seed in range(3):
        truth = random_model(seed, MIXED, concentration=1.0)
        moments = latent_class.population_moments(truth, variables=MIXED)
        result = latent_class.fit_moments(jax.random.key(seed), moments, K, variables=MIXED, method=method)
        assert result.status == Status.CONVERGED
        assert worst_error(truth, result.params) < 1e-6


def test_population_moments_in_float32():
    truth = random_model(0, MIXED, concentration=1.0)
    moments = latent_class.population_moments(truth, variables=MIXED)
    result = latent_class.fit_moments(jax.random.key(0), moments, K, variables=MIXED)
    assert worst_error(truth, result.params) < 1e-2


def test_as_many_classes_as_three_groups_tell_apart(float64):
    # Nine columns of three categories: every group of three reaches rank 1 + 3 · 2.
    truth = random_model(1, k=7, concentration=1.0)
    result = latent_class.fit_moments(
        jax.random.key(0), latent_class.population_moments(truth, variables=CODES), 7, variables=CODES
    )
    np.testing.assert_allclose(result.params.weights, truth.weights, atol=1e-6)
    with pytest.raises(ValueError, match="num_components: expected at most 7"):
        latent_class.fit(jax.random.key(0), draw(0, truth, 100), 8, variables=CODES)


def test_columns_of_very_different_sizes(float64):
    # Groups {4}, {3} and {2, 2} tell three classes apart; one column to each group in every round would tell two.
    variables = Variables(("categorical",) * 4, (3, 2, 4, 2))
    truth = random_model(15, variables, concentration=1.0)
    moments = latent_class.population_moments(truth, variables=variables)
    result = latent_class.fit_moments(jax.random.key(0), moments, K, variables=variables)
    assert worst_error(truth, result.params) < 1e-6
    with pytest.raises(ValueError, match="num_components: expected at most 3"):
        latent_class.fit_moments(jax.random.key(0), moments, 4, variables=variables)


def test_columns_count_by_how_often_they_are_seen(float64):
    """The blocks of two columns sum to (0.3, 0.7) and to (0.6, 0.4); the first is seen three times as often."""
    products = jnp.array([[0.1, 0.3], [0.2, 0.4], [0.15, 0.1], [0.45, 0.3]])
    found = read_off(products, jnp.array([0.9, 0.3]), jnp.full(4, 0.5), categorical_variables(2, 2))
    np.testing.assert_allclose(found.weights, [0.375, 0.625], rtol=1e-12)
    np.testing.assert_allclose(found.tables, [[1 / 3, 3 / 7], [2 / 3, 4 / 7], [0.25, 0.25], [0.75, 0.75]], rtol=1e-12)
    assert not found.raised


# Likelihoods against brute force.
def enumerate_joint(params, x, mask, variables):
    """`P(h, x)` by loops."""
    weights, tables, variances = (None if leaf is None else np.asarray(leaf) for leaf in params)
    joint = np.tile(weights, (len(x), 1))
    for row, column in itertools.product(range(len(x)), range(x.shape[1])):
        if not mask[row, column]:
            continue
        low = variables.offsets[column]
        if variables.kinds[column] == "real":
            mean, variance = tables[low], variances[list(variables.real).index(column)]
            joint[row] *= np.exp(-((x[row, column] - mean) ** 2) / (2 * variance)) / np.sqrt(2 * math.pi * variance)
        else:
            joint[row] *= tables[low + int(x[row, column])]
    return joint


@pytest.mark.parametrize("indicators", [True, False])
def test_likelihood_and_posterior_against_enumeration(indicators, precision, monkeypatch):
    # Both ways to look categories up.
    monkeypatch.setattr(density, "_ONE_HOT_UP_TO", 32 if indicators else 0)
    params = random_model(2, MIXED)
    x = draw(2, params, 40 if indicators else 41, MIXED)
    mask = holes(2, x)
    joint = enumerate_joint(params, x, mask, MIXED)
    tolerance = 1e-9 if precision == "float64" else 2e-4
    spoilt = np.where(mask, x, np.nan)
    values = latent_class.log_likelihood(params, spoilt, mask=mask, variables=MIXED)
    np.testing.assert_allclose(values, np.log(joint.sum(axis=1)), rtol=tolerance)
    rows = latent_class.posterior(params, spoilt, mask=mask, variables=MIXED)
    np.testing.assert_allclose(rows, joint / joint.sum(axis=1, keepdims=True), atol=tolerance)


# EM against loops.
@pytest.mark.parametrize("indicators", [True, False])
@pytest.mark.parametrize("pseudo_count", [0.0, 2.0])
def test_em_step_against_loops(indicators, pseudo_count, float64, monkeypatch):
    monkeypatch.setattr(density, "_ONE_HOT_UP_TO", 32 if indicators else 0)
    params = random_model(3, MIXED, concentration=2.0)
    x = draw(3, params, 50 if indicators else 51, MIXED)
    mask = holes(3, x)
    share = enumerate_joint(params, x, mask, MIXED)
    share /= share.sum(axis=1, keepdims=True)
    tables, variances = np.array(params.tables), np.array(params.variances)
    for column, (kind, low, size) in enumerate(zip(MIXED.kinds, MIXED.offsets[:-1], MIXED.sizes, strict=True)):
        seen = share * mask[:, [column]]
        if kind == "real":
            place = list(MIXED.real).index(column)
            tables[low] = seen.T @ x[:, column] / seen.sum(axis=0)
            squares = (x[:, [column]] - tables[low]) ** 2
            variances[place] = (seen * squares).sum(axis=0) / seen.sum(axis=0)
        else:
            counts = np.stack([(seen * (x[:, [column]] == value)).sum(axis=0) for value in range(size)]) + pseudo_count
            tables[low : low + size] = counts / counts.sum(axis=0)
    options = {"mask": mask, "variables": MIXED, "pseudo_count": pseudo_count, "smoothing": 0.0}
    result = latent_class.refine(params, x, **options, tol=0.0, max_iters=1)
    np.testing.assert_allclose(result.params.weights, share.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(result.params.tables, tables, atol=1e-8)
    np.testing.assert_allclose(result.params.variances, variances, atol=1e-8)


def test_em_of_a_class_that_closes_in_on_one_sample(float64):
    # The likelihood has no bound there: the variances stop at their floor, and the status says so.
    params = random_model(4, MIXED)
    x = draw(4, params, 200, MIXED)
    x[:60] = x[0]
    tables, rows = np.array(params.tables), MIXED.offsets[:-1]
    for column, kind in enumerate(MIXED.kinds):
        if kind == "real":
            tables[rows[column], 0] = x[0, column]
        else:
            tables[rows[column] : rows[column + 1] if column < 8 else None, 0] = 0.1 / MIXED.sizes[column]
            tables[rows[column] + int(x[0, column]), 0] += 0.9
    variances = params.variances.at[:, 0].set(1e-2)
    result = latent_class.refine(LatentClass(params.weights, tables, variances), x, variables=MIXED, max_iters=500)
    assert np.isfinite(result.log_likelihood)
    assert result.status == Status.BOUNDARY
    assert np.min(result.params.variances) > 0


# Estimates.
def test_fit_and_refine_come_close_to_the_truth(float64):
    truth = random_model(5, MIXED, concentration=1.0)
    x = draw(5, truth, 5_000, MIXED)
    for mask in (None, holes(5, x)):
        estimate = latent_class.fit(jax.random.key(0), x, K, mask=mask, variables=MIXED)
        assert estimate.status == Status.CONVERGED
        refined = latent_class.refine(estimate.params, x, mask=mask, variables=MIXED)
        assert refined.status == Status.CONVERGED
        # Entries have standard errors of about 0.02 and 0.03 of the largest; the limit is five times that.
        assert worst_error(truth, refined.params) < 0.15
        best = latent_class.refine(truth, x, mask=mask, variables=MIXED)
        np.testing.assert_allclose(refined.log_likelihood, best.log_likelihood, rtol=1e-6)


def test_columns_that_go_missing_together(float64):
    # Half of the people skip the last four questions: averages over those who answered are unbiased all the same.
    truth = random_model(6, concentration=1.0)
    x = draw(6, truth, 20_000)
    mask = np.ones(x.shape, bool)
    mask[np.random.default_rng(6).uniform(size=len(x)) < 0.5, 5:] = False
    estimates = [latent_class.fit(jax.random.key(0), x, K, mask=each, variables=CODES) for each in (None, mask)]
    errors = [worst_error(truth, estimate.params) for estimate in estimates]
    # Half of the data on half of the columns: at most three times the error of complete data, and small.
    assert errors[1] < min(3 * errors[0], 0.15)


def test_the_likeliest_grouping_is_taken(float64):
    truth = random_model(7)
    x = draw(7, truth, 2_000)
    result = latent_class.fit(jax.random.key(0), x, K, variables=CODES, num_groupings=5)
    scores = np.asarray(result.diagnostics.grouping_scores)
    assert scores.shape == (5,)
    assert len(set(scores)) == 5
    mean = np.mean(latent_class.log_likelihood(result.params, x, variables=CODES))
    np.testing.assert_allclose(mean, scores.max(), rtol=1e-9)
    groups = np.concatenate(result.diagnostics.groups)
    assert sorted(groups[groups >= 0]) == list(range(9))


def test_origin_and_width_of_numbers_do_not_matter(float64):
    variables = Variables(("real",) * 9, (1,) * 9)
    rng = np.random.default_rng(16)
    x = rng.normal(0, 3, (3, 9))[rng.integers(0, 3, 1_000)] + rng.normal(size=(1_000, 9))
    for shift in (0.0, 1e4, 1e8):
        assert latent_class.fit(jax.random.key(0), x + shift, 3, variables=variables).status == Status.CONVERGED
    codes = draw(16, random_model(16), 2_000)
    expected = latent_class.fit(jax.random.key(0), codes, K, variables=CODES).params
    narrow = latent_class.fit(jax.random.key(0), codes.astype(np.int8), K, variables=CODES).params
    np.testing.assert_array_equal(narrow.tables, expected.tables)
    many = Variables(("categorical",) * 5, (200,) * 5)
    params, x = random_model(17, many), rng.integers(0, 120, (50, 5))
    np.testing.assert_array_equal(
        latent_class.log_likelihood(params, x.astype(np.int8), variables=many),
        latent_class.log_likelihood(params, x, variables=many),
    )


def test_one_class_is_the_overall_frequencies(float64):
    x = draw(8, random_model(8, MIXED), 200, MIXED)
    mask = holes(8, x)
    result = latent_class.fit(jax.random.key(0), x, 1, mask=mask, variables=MIXED)
    assert result.status == Status.CONVERGED
    refined = latent_class.refine(result.params, x, mask=mask, variables=MIXED)
    np.testing.assert_allclose(refined.params.tables, result.params.tables, atol=1e-8)
    np.testing.assert_allclose(refined.params.variances, result.params.variances, rtol=1e-8)


def test_more_classes_than_there_are(float64):
    x = draw(9, random_model(9), 2_000)
    assert latent_class.fit(jax.random.key(0), x, K, variables=CODES).status == Status.CONVERGED
    assert latent_class.fit(jax.random.key(0), x, K + 2, variables=CODES).status >= Status.POOR_FIT
    noise = np.random.default_rng(9).integers(0, 3, (2_000, 9))
    assert latent_class.fit(jax.random.key(0), noise, 2, variables=CODES).status >= Status.POOR_FIT


def test_a_constant_column_does_no_harm(precision):
    x = draw(10, random_model(10, MIXED), 1_000, MIXED)
    x[:, 1], x[:, 2] = 7.0, 3
    result = latent_class.fit(jax.random.key(0), x, K, variables=MIXED)
    refined = latent_class.refine(result.params, x, variables=MIXED)
    for params in (result.params, refined.params):
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(params))
        np.testing.assert_allclose(params.tables[MIXED.offsets[1]], 7.0, rtol=1e-3)


def test_a_column_of_many_categories(float64):
    # More stacked rows than a group has room for: the column is found by regression, or alone makes a group.
    variables = Variables(("categorical",) * 7, (120, 3, 3, 3, 3, 3, 3))
    truth = random_model(11, variables)
    x = draw(11, truth, 4_000, variables)
    result = latent_class.refine(
        latent_class.fit(jax.random.key(0), x, K, variables=variables).params, x, variables=variables
    )
    best = latent_class.refine(truth, x, variables=variables)
    np.testing.assert_allclose(result.log_likelihood, best.log_likelihood, rtol=1e-3)
