"""The contract that all models keep: every verb of every model, eager and transformed, in both precisions.

`contract_models.MODELS` lists the models; verbs are those in each package's `__all__`. Signatures,
invariances and what every verb refuses have files of their own.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from latensor.decompose import Status
from latensor.models.results import Spectrum
from tests.models.contract import (
    DATA_KEYWORDS,
    RESULTS,
    assert_close,
    batched,
    call,
    comparable,
    data_of,
    eager,
    every_common_verb,
    every_model,
    every_verb,
    floats,
    jitted,
    lane,
    parameters_of,
    params_of,
    positional,
    run,
    some_verbs,
    stack,
    take,
)
from tests.models.contract_entry import cast, change


# Types of results.
@every_verb
def test_result_has_its_type_and_the_precision_of_its_arguments(model, verb, precision):
    result = eager(model, verb)
    data, params = data_of(model), params_of(model)
    if verb in RESULTS:
        assert type(result) is RESULTS[verb]
    assert {array.dtype.name for array in floats(result)} <= {precision}
    assert all(np.all(np.isfinite(array)) for array in floats(result))
    if verb in ("fit", "fit_moments", "refine", "permute"):
        estimate = result if verb == "permute" else result.params
        assert type(estimate) is type(params)
        assert [leaf.shape for leaf in jax.tree.leaves(estimate)] == [leaf.shape for leaf in jax.tree.leaves(params)]
    if verb == "fit":
        assert type(result.diagnostics) is model.module.Diagnostics
        assert type(result.diagnostics.spectrum) is Spectrum
        values, noise = result.diagnostics.spectrum
        assert np.all(np.diff(values) <= 0)
        assert 0 < noise < values[-1]
        assert result.num_iters > 0
        # A sample never fits exactly.
        assert result.residual > 1e-6
        assert result.status == Status.CONVERGED
        assert np.all(np.diff(model.weights(result.params)) < 0)
    if verb == "log_likelihood":
        assert result.shape == (model.num_rows,)
    if verb == "sample":
        assert result.x.shape == data.x.shape
        assert len(result.hidden) == model.num_rows
    if verb == "as_data":
        assert type(result) is type(data)
    if verb == "component_columns":
        assert result.ndim == 2
        assert result.shape[1] == len(model.weights(params))
        # Components move together with their columns.
        np.testing.assert_array_equal(
            call(model, verb, params=call(model, "permute", params=params)), np.asarray(result)[:, model.order]
        )
    if verb == "posterior":
        assert result.shape[0] == model.num_rows
        assert result.shape[-1] == len(model.weights(params))
        assert np.min(result) >= 0
        sums = np.sum(np.asarray(result), axis=-1)
        if getattr(data, "lengths", None) is not None:
            sums = sums[np.arange(sums.shape[1])[None, :] < np.asarray(data.lengths)[:, None]]
        np.testing.assert_allclose(sums, 1, rtol=1e-5)


@every_model
def test_hidden_variables_of_a_sample_are_those_of_its_rows(model, float64):
    sample = eager(model, "sample")
    data = data_of(model)._replace(x=sample.x)
    posterior = np.asarray(call(model, "posterior", params=params_of(model), x=data))
    hidden = np.asarray(model.hidden(sample.hidden))
    share = np.eye(posterior.shape[-1])[hidden] if hidden.dtype.kind == "i" else hidden / hidden.sum(-1, keepdims=True)
    if share.shape != posterior.shape:
        # Of each variable; a row's share is the average.
        share = share.mean(axis=1)
    # Rows that belong together agree far better than rows that do not: by a tenth at least, where chance gives 0.03.
    agreement, chance = (np.mean(np.sum(share * rows, axis=-1)) for rows in (posterior, posterior[::-1]))
    assert agreement > chance + 0.1


@some_verbs("mask")
def test_values_under_a_mask_do_not_matter(model, verb, float64):
    if verb == "as_data":
        pytest.skip("data keep them")
    data = data_of(model)
    hidden = ~np.asarray(data.mask)
    spoilt = np.array(data.x)
    spoilt[hidden] = np.nan if spoilt.dtype.kind == "f" else 1
    arguments = {"key": jax.random.key(0), "params": params_of(model), "x": data._replace(x=jnp.asarray(spoilt))}
    arguments |= {"tol": 0.0, "max_iters": 4} if verb == "refine" else {}
    assert_close(call(model, verb, **arguments), eager(model, verb), 1e-13)


@every_verb
def test_float32_stays_float32_where_x64_is_enabled(model, verb, float64):
    params, data = cast(model.params, jnp.float32), data_of(model)
    if verb == "fit" and jnp.issubdtype(data.x.dtype, jnp.integer):
        pytest.skip("integers have no floating type of their own")
    data = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf, data)
    result = jax.eval_shape(functools.partial(run, model, verb), jax.random.key(0), params, data)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(result)} <= {"float32", "int32", "bool"}


# Data: an array with keywords, or a data type.
@some_verbs("x")
def test_array_with_keywords_equals_data_type(model, verb, float64):
    data = data_of(model)
    keywords = {name: getattr(data, name) for name in DATA_KEYWORDS if hasattr(data, name)}
    arguments = {"key": jax.random.key(0), "params": params_of(model)}
    arguments |= {"tol": 0.0, "max_iters": 4} if verb == "refine" else {}
    result = call(model, verb, **arguments, x=np.asarray(data.x), **keywords)
    assert_close(result, eager(model, verb), 1e-13)
    for name, value in keywords.items():
        if name in parameters_of(model, verb) and value is not None:
            with pytest.raises(ValueError, match=rf"{name}: expected None where x is a {type(data).__name__}"):
                call(model, verb, **arguments, x=data, **{name: value})


# Transformations.
# Eager results, `jit` and `vmap` differ by rounding, which an estimate amplifies by its condition number.
@every_common_verb
def test_jit_and_vmap_equal_eager(model, verb, precision):
    if precision == "float64":
        tolerance = model.compiled_tolerance if verb == "fit" else 1e-7
    else:
        tolerance = model.single_tolerance if verb == "fit" else 2e-3
    expected = [eager(model, verb, seed) for seed in range(2)]
    data = [data_of(model, seed) for seed in range(2)]
    # Whole estimates take longest to compile: alone in float32, where `fit` has the stages of `fit_moments`; as a batch
    # in float64. Of other verbs, the batch in both and the call alone in one.
    is_estimate = verb in ("fit", "fit_moments", "refine")
    if (precision == "float32") == is_estimate and verb != "fit_moments":
        result = jitted(model, verb)(jax.random.key(0), params_of(model), data[0])
        assert_close(comparable(result), comparable(expected[0]), tolerance)
    if is_estimate and precision == "float32":
        return
    keys = jnp.stack([jax.random.key(i % 2) for i in range(4)])
    good = batched(model, verb)(keys, params_of(model), stack(*data, *data))
    for i in range(4):
        assert_close(comparable(lane(good, i)), comparable(expected[i % 2]), tolerance)
    if "x" not in positional(model, verb):
        return
    mixed = batched(model, verb)(keys, params_of(model), stack(data[0], data[1], spoiled(data[0]), alike(data[0])))
    for i in range(2):
        assert_close(comparable(lane(mixed, i)), comparable(expected[i]), tolerance)
    if hasattr(mixed, "status"):
        assert mixed.status[2] != Status.CONVERGED
        for i in range(4):
            assert mixed.status[i] == Status.NON_FINITE or all(np.all(np.isfinite(a)) for a in floats(lane(mixed, i)))
    else:
        assert all(np.all(np.isfinite(array[3])) for array in floats(mixed))


def spoiled(data):
    """Return data with a NaN: in an entry that is observed, or in a weight if entries are integers."""
    if jnp.issubdtype(data.x.dtype, jnp.integer):
        return change(data, row_weights=lambda weights: np.where(np.arange(len(weights)) == 0, np.nan, weights))
    mask = getattr(data, "mask", None)
    first = 0 if mask is None else np.flatnonzero(mask)[0]
    return change(data, x=lambda x: np.where(np.arange(x.size).reshape(x.shape) == first, np.nan, x))


def alike(data):
    """Return data whose rows are all the same: there is one component."""
    return take(data, np.zeros(len(data.row_weights), int))


@every_verb
def test_lowers_for_accelerators(model, verb):
    arguments = jax.random.key(0), params_of(model), data_of(model)
    exported = export.export(jitted(model, verb), platforms=("cuda", "tpu"))(*arguments)
    assert exported.platforms == ("cuda", "tpu")


# Estimates.
@every_model
def test_population_moments_give_the_model_back(model, float64):
    result = eager(model, "fit_moments")
    assert result.status == Status.CONVERGED
    assert_close(result.params, params_of(model), 1e-6)


@every_model
def test_refine_never_lowers_the_likelihood(model, precision):
    # Sums over rows: float32 rounding is about 1e-6 of the value.
    slack = 1e-12 if precision == "float64" else 1e-5
    params, data = params_of(model), data_of(model)
    values = []
    for steps in (0, 1, 2, 10):
        result = call(model, "refine", params=params, x=data, max_iters=steps, tol=0.0)
        assert np.isfinite(result.gain)
        assert result.num_iters == steps or (steps == 10 and 2 < result.num_iters < 10)
        values.append(float(result.log_likelihood))
        if steps == 1:
            rise = (values[1] - values[0]) / abs(values[1])
            np.testing.assert_allclose(result.gain, rise, rtol=1e-2, atol=10 * slack)
        if model.has_exact_likelihood:
            rows = call(model, "log_likelihood", params=result.params, x=data, key=jax.random.key(0))
            mean = np.average(rows, weights=data.row_weights)
            np.testing.assert_allclose(values[-1], mean, rtol=10 * slack)
    assert np.all(np.diff(values) >= -slack * abs(values[0]))
    if model.has_exact_likelihood:
        start = np.average(eager(model, "log_likelihood"), weights=data.row_weights)
        assert values[0] >= start - slack * abs(start)


@every_model
def test_history_of_refine_ends_where_refine_does(model, precision):
    params, data = params_of(model), data_of(model)
    result = call(model, "refine", params=params, x=data, max_iters=4, tol=0.0, history=True)
    plain = eager(model, "refine")
    assert plain.history is None
    assert result.history.shape == (5,)
    assert result.history.dtype == precision
    tolerance = 1e-12 if precision == "float64" else 1e-5
    np.testing.assert_allclose(result.log_likelihood, plain.log_likelihood, rtol=tolerance)
    np.testing.assert_allclose(result.history[int(result.num_iters) :], result.log_likelihood, rtol=tolerance)
    assert np.all(np.diff(result.history) >= -tolerance * abs(result.log_likelihood))
    start = call(model, "refine", params=params, x=data, max_iters=0, tol=0.0)
    np.testing.assert_allclose(result.history[0], start.log_likelihood, rtol=tolerance)
    with pytest.raises(ValueError, match="history: expected False where max_iters is traced"):
        jax.jit(lambda limit: call(model, "refine", params=params, x=data, max_iters=limit, history=True))(4)


@every_model
def test_number_of_parameters_is_a_plain_integer(model):
    number = call(model, "num_parameters", params=params_of(model))
    assert type(number) is int
    # Three components, of more than one parameter each.
    assert number > 6


@every_model
def test_evidence_bound_is_below_the_likelihood(model, float64):
    if model.has_exact_likelihood:
        pytest.skip("the likelihood is exact")
    params, data = params_of(model), data_of(model)
    bound = call(model, "refine", params=params, x=data, max_iters=0, tol=0.0)
    estimate = call(model, "estimate_log_likelihood", key=jax.random.key(0), params=bound.params, x=data)
    weights = np.asarray(data.row_weights) / np.sum(data.row_weights)
    error = np.sqrt(np.sum((weights * np.asarray(estimate.standard_error)) ** 2))
    # Four standard errors of the estimate.
    assert bound.log_likelihood <= np.sum(weights * np.asarray(estimate.value)) + 4 * error
    np.testing.assert_array_equal(
        estimate.value, call(model, "log_likelihood", key=jax.random.key(0), params=bound.params, x=data)
    )
