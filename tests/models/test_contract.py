"""The contract that all models keep: every verb of every model, eager and transformed, in both precisions.

`contract_models.MODELS` lists the models; verbs are those in each package's `__all__`. Data and parameters have the
same shapes in all tests, so that every verb compiles once for each way to run it: most of the time is compilation.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from latensor.decompose import Status
from latensor.models.results import Fit, LogLikelihood, Refined, Sample, Spectrum
from latensor.moments import Table
from latensor.moments.internal import Rows
from tests.models.contract_models import MODELS, VARIANTS, cast, change, draw

REQUIRED = ("fit", "fit_moments", "log_likelihood", "permute", "population_moments", "posterior", "refine", "sample")
# The positional arguments of every verb; the required ones and those that only some models have.
PATTERNS = {
    "fit": ("key", "x", "num_components"),
    "fit_moments": ("key", "moments", "num_components"),
    "sample": ("key", "params", "num_samples"),
    "population_moments": ("params",),
    "permute": ("params", "order"),
    "estimate_log_likelihood": ("key", "params", "x"),
}
RESULTS = {
    "fit": Fit,
    "fit_moments": Fit,
    "refine": Refined,
    "sample": Sample,
    "estimate_log_likelihood": LogLikelihood,
}
DATA_KEYWORDS = ("mask", "lengths", "num_words", "num_symbols", "variables", "row_weights")
# Keywords whose default is the model's own: its methods, what they need, and what length is usual.
OWN_DEFAULTS = ("method", "num_restarts", "length")
ORDER = np.array([2, 0, 1])
# Of importance samplers: few, since accuracy is tested elsewhere.
NUM_DRAWS = 20


def verbs_of(model):
    """Return the names of the functions of a model's package."""
    return [name for name in model.module.__all__ if inspect.isfunction(getattr(model.module, name))]


def positional(verb):
    return PATTERNS.get(verb, ("params", "x"))


def parameters_of(model, verb):
    return inspect.signature(getattr(model.module, verb)).parameters


VERBS = [pytest.param(model, verb, id=f"{model}-{verb}") for model in MODELS for verb in verbs_of(model)]
every_model = pytest.mark.parametrize("model", MODELS, ids=str)
every_kind = pytest.mark.parametrize("model", [*MODELS, *VARIANTS], ids=str)
every_verb = pytest.mark.parametrize(("model", "verb"), VERBS)
# Verbs that only some models have share their code with one of these: they are traced with it.
every_common_verb = pytest.mark.parametrize(("model", "verb"), [each for each in VERBS if each.values[1] in REQUIRED])


def some_verbs(argument):
    """Return the verbs that take an argument, for `parametrize`."""
    chosen = [each for each in VERBS if argument in parameters_of(*each.values)]
    return pytest.mark.parametrize(("model", "verb"), chosen)


def call(model, verb, **arguments):
    """Call a verb with those of the arguments, and of the model's options, that it takes."""
    num_samples = model.num_rows if verb == "sample" else NUM_DRAWS
    available = {"num_components": model.num_components, "num_samples": num_samples, "order": ORDER}
    available |= model.options | arguments
    taken = {name: available[name] for name in parameters_of(model, verb) if name in available}
    if isinstance(taken.get("x"), Rows):
        # The data carry these.
        taken = {name: value for name, value in taken.items() if name in arguments or name not in DATA_KEYWORDS}
    positionals = [taken.pop(name) for name in positional(verb)]
    return getattr(model.module, verb)(*positionals, **taken)


def run(model, verb, key, params, data):
    """Call any verb with what it needs of a key, parameters and data. EM takes a fixed number of steps."""
    arguments = {"key": key, "params": params, "x": data}
    if "moments" in parameters_of(model, verb):
        arguments["moments"] = call(model, "population_moments", params=params)
    if verb == "refine":
        arguments |= {"tol": 0.0, "max_iters": 4}
    return call(model, verb, **arguments)


# Caches: of eager results and of compiled functions, for each model and precision.
def _mode():
    return jax.config.jax_enable_x64


def _cached(function):
    cached = functools.cache(lambda x64, *arguments: function(*arguments))
    return lambda *arguments: cached(_mode(), *arguments)


@_cached
def params_of(model):
    return cast(model.params, jnp.result_type(float))


@_cached
def data_of(model, seed=0):
    return draw(model, seed, jnp.result_type(float))


@_cached
def eager(model, verb, seed=0):
    return run(model, verb, jax.random.key(seed), params_of(model), data_of(model, seed))


@_cached
def jitted(model, verb):
    return jax.jit(functools.partial(run, model, verb))


@_cached
def batched(model, verb):
    return jax.jit(jax.vmap(functools.partial(run, model, verb), in_axes=(0, None, 0)))


# In NumPy, since every operation of JAX would compile for every shape.
def stack(*trees):
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)


def lane(tree, index):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], tree)


def take(data, rows):
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), data)


def floats(tree):
    """Return the floating arrays of a result."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def assert_close(actual, expected, tolerance):
    """Compare all arrays of two results, each relative to its largest entry."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        scale = np.max(np.abs(other), initial=0)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(scale, 1e-30))


def comparable(result):
    """Leave out what depends on rounding: counts of iterations, gains and residuals near zero."""
    if isinstance(result, Fit):
        return result.params, result.status
    if isinstance(result, Refined):
        return result.params, result.log_likelihood
    return result


# Signatures.
@every_model
def test_every_model_has_all_verbs(model):
    assert set(REQUIRED) <= set(verbs_of(model))
    assert model.module.__all__ == sorted(model.module.__all__)


@every_verb
def test_arguments_that_define_a_verb_come_first_and_all_others_by_keyword(model, verb):
    kinds = [(name, parameter.kind) for name, parameter in parameters_of(model, verb).items()]
    split = len(positional(verb))
    assert [name for name, _ in kinds[:split]] == list(positional(verb))
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, kind in kinds[split:])


@every_verb
def test_keywords_of_the_data_come_before_options(model, verb):
    keywords = list(parameters_of(model, verb))[len(positional(verb)) :]
    first = [*DATA_KEYWORDS, "method", "num_restarts", "tol", "max_iters"]
    present = [name for name in first if name in keywords]
    assert keywords[: len(present)] == present


@pytest.mark.parametrize("verb", sorted({verb for model in MODELS for verb in verbs_of(model)}))
def test_the_same_keyword_has_the_same_default_and_place_in_all_models(verb):
    signatures = [parameters_of(model, verb) for model in MODELS if verb in verbs_of(model)]
    defaults, before = {}, set()
    for parameters in signatures:
        names = list(parameters)
        before |= {(one, two) for i, one in enumerate(names) for two in names[i + 1 :]}
        for name, parameter in parameters.items():
            if name not in OWN_DEFAULTS:
                defaults.setdefault(name, set()).add(parameter.default)
    assert {name: values for name, values in defaults.items() if len(values) > 1} == {}
    assert not [pair for pair in before if pair[::-1] in before]


@every_model
def test_log_likelihood_takes_a_key(model):
    assert parameters_of(model, "log_likelihood")["key"].default is None


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
        assert result.status == Status.CONVERGED
        assert np.all(np.diff(model.weights(result.params)) < 0)
    if verb == "log_likelihood":
        assert result.shape == (model.num_rows,)
    if verb == "sample":
        assert result.x.shape == data.x.shape
        assert len(result.hidden) == model.num_rows
    if verb == "posterior":
        assert result.shape[0] == model.num_rows
        assert result.shape[-1] == model.num_components
        assert np.min(result) >= 0
        sums = np.sum(np.asarray(result), axis=-1)
        if getattr(data, "lengths", None) is not None:
            sums = sums[np.arange(sums.shape[1])[None, :] < np.asarray(data.lengths)[:, None]]
        np.testing.assert_allclose(sums, 1, rtol=1e-5)


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
    tolerance = 1e-7 if precision == "float64" else 2e-3
    expected = [eager(model, verb, seed) for seed in range(2)]
    data = [data_of(model, seed) for seed in range(2)]
    result = jitted(model, verb)(jax.random.key(0), params_of(model), data[0])
    assert_close(comparable(result), comparable(expected[0]), tolerance)
    keys = jnp.stack([jax.random.key(i % 2) for i in range(4)])
    good = batched(model, verb)(keys, params_of(model), stack(*data, *data))
    for i in range(4):
        assert_close(comparable(lane(good, i)), comparable(expected[i % 2]), tolerance)
    if "x" not in positional(verb):
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
    return take(data, np.zeros(len(data.x), int))


@every_verb
def test_lowers_for_accelerators(model, verb, precision):
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
        assert result.num_iters <= steps
        values.append(float(result.log_likelihood))
        if model.has_exact_likelihood:
            rows = call(model, "log_likelihood", params=result.params, x=data, key=jax.random.key(0))
            mean = np.average(rows, weights=data.row_weights)
            np.testing.assert_allclose(values[-1], mean, rtol=10 * slack)
    assert np.all(np.diff(values) >= -slack * abs(values[0]))
    if model.has_exact_likelihood:
        start = np.average(eager(model, "log_likelihood"), weights=data.row_weights)
        assert values[0] >= start - slack * abs(start)


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


# Invariances.
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
    np.testing.assert_allclose(call(model, "posterior", params=params, x=data), eager(model, "posterior"), atol=1e-9)
    if model.has_exact_likelihood:
        expected = np.asarray(eager(model, "log_likelihood")) + symmetry.log_likelihood(data)
        np.testing.assert_allclose(call(model, "log_likelihood", params=params, x=data), expected, rtol=1e-9)


# Bad arguments: a ValueError that names the argument.
@pytest.fixture
def good(no_type_checks, model):
    """Arguments for any verb, none of them bad."""
    params = params_of(model)
    moments = call(model, "population_moments", params=params)
    return {"key": jax.random.key(0), "params": params, "x": data_of(model), "moments": moments}


def assert_refused(model, verb, name, good, value):
    with pytest.raises(ValueError, match=rf"^{name}[.:]"):
        call(model, verb, **(good | {name: value}))


@some_verbs("params")
def test_bad_params(model, verb, good):
    params = good["params"]
    other = next(each for each in MODELS if each.name != model.name)
    for bad in (params_of(other), tuple(params), None, eager(model, "fit")):
        assert_refused(model, verb, "params", good, bad)
    for name, leaf in params._asdict().items():
        if leaf is not None:
            assert_refused(model, verb, "params", good, params._replace(**{name: leaf * jnp.nan}))
            assert_refused(model, verb, "params", good, params._replace(**{name: leaf[None]}))
            if leaf.ndim:
                assert_refused(model, verb, "params", good, params._replace(**{name: leaf[..., :-1]}))


@some_verbs("key")
def test_bad_key(model, verb, good):
    for bad in (0, np.zeros(3), jax.random.split(jax.random.key(0), 2), *(["key"] if verb != "log_likelihood" else [])):
        if verb != "log_likelihood" or not model.has_exact_likelihood:
            assert_refused(model, verb, "key", good, bad)
    if verb != "log_likelihood" or not model.has_exact_likelihood:
        assert_refused(model, verb, "key", good, None)


@some_verbs("num_components")
def test_bad_num_components(model, verb, good):
    for bad in (0, -1, 10_000, 2.0, True, "2", None):
        assert_refused(model, verb, "num_components", good, bad)


@some_verbs("moments")
def test_bad_moments(model, verb, good):
    for bad in (None, np.zeros(3), tuple(good["moments"])):
        assert_refused(model, verb, "moments", good, bad)


@some_verbs("x")
def test_bad_data(model, verb, good):
    x = np.asarray(good["x"].x)
    for bad in (None, "data", x[(None,) * 3], x[:0], x * 1j):
        assert_refused(model, verb, "x", good, bad)
    other = Table(np.ones((4, 3))) if not isinstance(good["x"], Table) else data_of(MODELS[0])
    assert_refused(model, verb, "x", good, other)
    if not np.issubdtype(x.dtype, np.integer):
        assert_refused(model, verb, "x", good, np.where(np.arange(x.size).reshape(x.shape) == 5, np.nan, x))


@some_verbs("row_weights")
def test_bad_row_weights(model, verb, good):
    n = model.num_rows
    good["x"] = np.asarray(good["x"].x)
    for bad in (np.ones(n - 1), -np.ones(n), np.zeros(n), np.full(n, np.nan), np.ones((n, 1)), "equal"):
        assert_refused(model, verb, "row_weights", good, bad)


@some_verbs("mask")
def test_bad_mask(model, verb, good):
    mask = np.asarray(good["x"].mask)
    good["x"] = np.asarray(good["x"].x)
    for bad in (mask[:-1], mask[:, :-1], mask.astype(float), mask.tolist(), True):
        assert_refused(model, verb, "mask", good, bad)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("num_samples", (0, -1, 2.5, True, None)),
        ("order", ([0, 0, 1], [0, 1], [0.0, 1.0, 2.0], 0)),
        ("method", ("newton", None)),
        ("num_restarts", (0, 2.5, True)),
        ("tol", (-1.0, np.nan, "small")),
        ("max_iters", (-1, 2.5, True)),
        ("smoothing", (-0.1, 1.5)),
    ],
)
@every_model
def test_bad_options(model, name, bad, good):
    for verb in verbs_of(model):
        if name in parameters_of(model, verb):
            for value in bad:
                assert_refused(model, verb, name, good, value)
