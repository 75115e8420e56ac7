"""What must not change an estimate, or must change it in a known way."""

import jax
import numpy as np
import pytest

from tests.models.contract import (
    DATA_KEYWORDS,
    ORDER,
    assert_close,
    call,
    data_of,
    eager,
    every_kind,
    params_of,
    take,
)
from tests.models.contract_entry import change
from tests.models.contract_models import MODELS
from tests.models.contract_variants import VARIANTS


@every_kind
def test_example_of_the_contract_is_not_too_easy(model, float64):
    # Where EM is at rounding, its last step is taken or not by chance, and the tests below compare different steps.
    refined = eager(model, "refine")
    assert refined.num_iters == 4
    assert refined.gain > 1e-10


def fit_and_refine(model, data, params=None):
    """Return the parameters after `fit`, and after EM from the given ones."""
    fit = call(model, "fit", key=jax.random.key(0), x=data)
    refined = call(model, "refine", params=params_of(model) if params is None else params, x=data, max_iters=4, tol=0.0)
    return fit.params, refined.params


def assert_same(model, data, expected):
    fitted, refined = fit_and_refine(model, data)
    assert_close(refined, expected[1], 1e-9)
    assert_close(fitted, expected[0], model.fit_tolerance)


@every_kind
def test_order_of_rows_does_not_matter(model, float64):
    data = data_of(model)
    order = np.random.default_rng(0).permutation(model.num_rows)
    assert_same(model, take(data, order), fit_and_refine(model, data))
    if model.has_exact_likelihood:
        rows = call(model, "log_likelihood", params=params_of(model), x=take(data, order))
        np.testing.assert_allclose(rows, np.asarray(eager(model, "log_likelihood"))[order], rtol=1e-12)


@every_kind
def test_duplicated_rows_are_rows_of_twice_the_weight(model, float64):
    data, n = data_of(model), model.num_rows // 3
    rows = np.arange(model.num_rows)
    once = change(data, row_weights=np.ones_like)
    # The first third twice and the second once; the last third has no weight, so that shapes stay the same.
    twice = take(once, np.concatenate([rows[:n], rows[:n], rows[n : 2 * n]]))
    weighted = change(once, row_weights=lambda _: np.repeat([2.0, 1.0, 0.0], n))
    assert_same(model, weighted, fit_and_refine(model, twice))


@every_kind
def test_scale_of_row_weights_does_not_matter(model, float64):
    data = data_of(model)
    keywords = {name: getattr(data, name) for name in DATA_KEYWORDS if hasattr(data, name)}
    scaled = type(data)(data.x, **keywords | {"row_weights": 1e3 * np.asarray(data.row_weights)})
    assert_same(model, scaled, fit_and_refine(model, data))


@every_kind
def test_order_of_components_is_a_name_only(model, float64):
    params, data = params_of(model), data_of(model)
    permuted = eager(model, "permute")
    np.testing.assert_allclose(model.weights(permuted), np.asarray(model.weights(params))[ORDER], rtol=1e-12)
    posterior = call(model, "posterior", params=permuted, x=data)
    np.testing.assert_allclose(posterior, np.asarray(eager(model, "posterior"))[..., ORDER], atol=1e-6)
    refined = call(model, "refine", params=permuted, x=data, tol=0.0, max_iters=4)
    assert_close(refined.params, call(model, "permute", params=eager(model, "refine").params), 1e-9)
    if model.has_exact_likelihood:
        rows = call(model, "log_likelihood", params=permuted, x=data)
        np.testing.assert_allclose(rows, eager(model, "log_likelihood"), rtol=1e-12)
    moments, again = (call(model, "population_moments", params=each) for each in (params, permuted))
    assert_close(again, moments, 1e-12)


SYMMETRIES = [
    pytest.param(model, symmetry, id=f"{model}-{symmetry.name}")
    for model in (*MODELS, *VARIANTS)
    for symmetry in model.symmetries
]


@pytest.mark.parametrize(("model", "symmetry"), SYMMETRIES)
def test_fit_follows_a_change_of_the_data(model, symmetry, float64, request):
    if symmetry.broken:
        request.applymarker(pytest.mark.xfail(reason=symmetry.broken, strict=True))
    fitted = call(model, "fit", key=jax.random.key(0), x=symmetry.data(data_of(model))).params
    assert_close(fitted, symmetry.params(eager(model, "fit").params), model.fit_tolerance)


@pytest.mark.parametrize(("model", "symmetry"), SYMMETRIES)
def test_other_verbs_follow_a_change_of_the_data(model, symmetry, float64):
    params, data = symmetry.params(params_of(model)), symmetry.data(data_of(model))
    refined = call(model, "refine", params=params, x=data, tol=0.0, max_iters=4).params
    # Accelerated EM takes other strides in other units.
    assert_close(refined, symmetry.params(eager(model, "refine").params), 1e-6)
    posterior = symmetry.posterior(eager(model, "posterior"))
    np.testing.assert_allclose(call(model, "posterior", params=params, x=data), posterior, atol=1e-9)
    if model.has_exact_likelihood:
        expected = np.asarray(eager(model, "log_likelihood")) + symmetry.log_likelihood(data)
        np.testing.assert_allclose(call(model, "log_likelihood", params=params, x=data), expected, rtol=1e-9)
