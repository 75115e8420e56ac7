"""Standard errors by the delta method: influences against finite differences, known errors, and what is refused."""

from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.inference import confidence_intervals, covariance, influence, standard_errors
from latensor.models import gamma_poisson, gaussian_mixture, graphical, naive_bayes
from tests.inference.toy import fit, toy
from tests.models.contract import call, data_of
from tests.models.contract_models import MODELS

N = 50
# Whose `fit` is a smooth function of the row weights on the data of the contract, up to 1e-8.
SMOOTH = ("naive_bayes", "gaussian_mixture", "gamma_poisson", "latent_class")


def rows(dtype=np.float64):
    return (np.random.default_rng(0).normal(size=(N, 2)) + np.array([0.0, 5.0])).astype(dtype)


def estimate(x, **keywords):
    return fit(jax.random.key(0), toy.as_data(x, **keywords), 2, shuffled=False)


@pytest.mark.parametrize("weighted", [False, True])
def test_errors_of_means(weighted, precision):
    x = rows(precision)
    row_weights = np.random.default_rng(1).uniform(0.5, 1, N).astype(precision) if weighted else None
    original = estimate(x, row_weights=row_weights)
    share = np.ones(N) / N if row_weights is None else row_weights / row_weights.sum()
    expected = share[:, None] * (x - share @ x)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if precision == "float32" else {"rtol": 1e-12, "atol": 1e-14}
    keywords = {} if row_weights is None else {"row_weights": row_weights}
    np.testing.assert_allclose(influence(toy, original, x, **keywords).means, expected, **tolerance)
    errors = standard_errors(toy, original, x, **keywords).means
    assert errors.dtype == precision
    np.testing.assert_allclose(errors, np.sqrt(np.sum(expected**2, axis=0)), **tolerance)
    np.testing.assert_allclose(covariance(toy, original, x, **keywords), expected.T @ expected, **tolerance)
    lower, upper = confidence_intervals(toy, original, x, 0.9, **keywords)
    width = NormalDist().inv_cdf(0.95) * np.asarray(errors)
    np.testing.assert_allclose(lower.means, original.params.means - width, **tolerance)
    np.testing.assert_allclose(upper.means, original.params.means + width, **tolerance)


def test_components_keep_the_order_of_the_estimate(float64):
    x, original = rows(), estimate(rows())
    swapped = original._replace(params=toy.permute(original.params, np.array([1, 0])))
    one, two = (influence(toy, each, x) for each in (original, swapped))
    np.testing.assert_allclose(one.means, two.means[:, ::-1], rtol=1e-12)


# Data of the contract have row weights, and a mask where the model takes one. Complete tables have a way of their own.
@pytest.mark.parametrize(
    ("model", "complete"),
    [(model, False) for model in MODELS if str(model) in SMOOTH]
    + [(model, True) for model in MODELS if hasattr(model.module, "reduce_fit")],
    ids=str,
)
def test_influence_is_what_a_row_changes(model, complete, float64):
    data = data_of(model)
    key, step = jax.random.key(0), 1e-4
    if complete:
        data = data._replace(x=jnp.where(data.mask, data.x, jnp.nanmean(data.x, axis=0)[None, :].round()), mask=None)
        assert model.module.reduce_fit(key, data, model.num_components) is not None

    def at(row, by):
        weights = np.array(data.row_weights)
        weights[row] *= 1 + by
        return call(model, "fit", key=key, x=data._replace(row_weights=jnp.asarray(weights)))

    original = at(0, 0.0)
    found = influence(model.module, original, data, key=key)
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(found)]
    for row in (0, 17):
        up, down = (jax.tree.leaves(at(row, by).params) for by in (step, -step))
        for one, a, b in zip(flat, up, down, strict=True):
            expected = (np.asarray(a) - np.asarray(b)) / (2 * step)
            np.testing.assert_allclose(one[row], expected, rtol=0, atol=1e-4 * np.max(np.abs(one)))
    # An estimate does not change if all weights are multiplied.
    for one in flat:
        np.testing.assert_allclose(one.sum(axis=0), 0, atol=1e-6 * np.max(np.abs(one)) * len(one))


def test_influence_on_a_refined_estimate(float64):
    truth = naive_bayes.NaiveBayes(jnp.array([0.6, 0.4]), jnp.array([[0.6, 0.1], [0.3, 0.2], [0.1, 0.7]]))
    x = naive_bayes.sample(jax.random.key(0), truth, 200, length=8).x
    step, row = 1e-3, 5

    def at(by):
        weights = jnp.ones(200).at[row].add(by)
        return naive_bayes.refine(truth, x, row_weights=weights, tol=1e-15, max_iters=5000, smoothing=0.0)

    up, down = at(step).params, at(-step).params
    found = influence(naive_bayes, at(0.0), x)
    for one, a, b in zip(*map(jax.tree.leaves, (found, up, down)), strict=True):
        np.testing.assert_allclose(one[row], (a - b) / (2 * step), rtol=0, atol=1e-4 * np.max(np.abs(one)))


def test_under_vmap(float64):
    x = jnp.stack([jnp.asarray(rows()), 2 * jnp.asarray(rows())])

    def errors(x):
        return standard_errors(toy, fit(jax.random.key(0), toy.as_data(x), 2, shuffled=False), x).means

    both = jax.vmap(errors)(x)
    np.testing.assert_allclose(both[1], 2 * both[0], rtol=1e-12)
    np.testing.assert_allclose(both[0], errors(x[0]), rtol=1e-12)


def test_estimates_without_a_derivative_are_refused(no_type_checks):
    truth = gamma_poisson.GammaPoisson(jnp.array([[0.7, 0.1], [0.2, 0.2], [0.1, 0.7]]), jnp.array([0.3, 0.2]), 0.01)
    x = gamma_poisson.sample(jax.random.key(0), truth, 50).x
    refined = gamma_poisson.refine(truth, x, max_iters=2)
    with pytest.raises(ValueError, match=r"model: expected one whose refine climbs the likelihood.*use bootstrap"):
        standard_errors(gamma_poisson, refined, x, allow_unconverged=True)


def test_bad_input(no_type_checks):
    x, original = rows(), estimate(rows())
    failed = original._replace(status=jnp.int32(Status.MAX_ITERS))
    with pytest.raises(ValueError, match="fit: expected an estimate that converged; its status is MAX_ITERS"):
        confidence_intervals(toy, failed, x)
    standard_errors(toy, failed, x, allow_unconverged=True)
    for level in (0, 1, 1.5, -0.1, np.nan, "high"):
        with pytest.raises(ValueError, match="level: expected a number above 0 and below 1"):
            confidence_intervals(toy, original, x, level)
    with pytest.raises(ValueError, match=r"fit: expected what .*fit or .*refine returns; got Means"):
        standard_errors(toy, original.params, x)
    with pytest.raises(ValueError, match="fit: expected the estimate that these data and options give"):
        standard_errors(toy, original, x + 3)
    with pytest.raises(ValueError, match=r"model: expected a module of latensor\.models"):
        standard_errors(graphical, original, x)
    with pytest.raises(TypeError, match="unexpected keyword argument 'masks'"):
        standard_errors(toy, original, x, masks=None)
    with pytest.raises(ValueError, match="fit: expected an estimate by gaussian_mixture"):
        standard_errors(gaussian_mixture, original, x)
