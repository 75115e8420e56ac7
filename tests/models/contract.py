"""How the contract suite calls verbs, and what it keeps of them.

Data and parameters have the same shapes in all tests, so that every verb compiles once for each way to run it: most of
the time is compilation.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models.results import Fit, LogLikelihood, Refined, Sample
from latensor.moments import Labels
from latensor.moments.internal import Rows
from tests.models.contract_entry import cast, draw
from tests.models.contract_models import MODELS
from tests.models.contract_variants import VARIANTS

REQUIRED = (
    "fit",
    "fit_moments",
    "log_likelihood",
    "num_parameters",
    "permute",
    "population_moments",
    "posterior",
    "refine",
    "sample",
)
# Of models with one hidden variable: functions over models know data and components by these.
GENERIC = ("as_data", "component_columns")
# The positional arguments of every verb; the required ones and those that only some models have.
PATTERNS = {
    "fit": ("key", "x", "num_components"),
    "fit_moments": ("key", "moments", "num_components"),
    "sample": ("key", "params", "num_samples"),
    "population_moments": ("params",),
    "permute": ("params", "order"),
    "as_data": ("x",),
    "component_columns": ("params",),
    "num_parameters": ("params",),
    "estimate_log_likelihood": ("key", "params", "x"),
}
RESULTS = {
    "fit": Fit,
    "fit_moments": Fit,
    "refine": Refined,
    "sample": Sample,
    "estimate_log_likelihood": LogLikelihood,
}
DATA_KEYWORDS = (
    "mask",
    "lengths",
    "num_words",
    "num_symbols",
    "num_items",
    "num_workers",
    "variables",
    "row_weights",
)
# Keywords whose default is the model's own: its methods, what they need, what length is usual, and its prior.
OWN_DEFAULTS = ("method", "num_restarts", "length", "pseudo_count")
# The components of the contract in another order: `Model.order` says it to `permute`.
ORDER = np.array([2, 0, 1])
# Of importance samplers: few, since accuracy is tested elsewhere.
NUM_DRAWS = 20


def verbs_of(model):
    """Return the names of the verbs of a model's package."""
    names = (name for name in model.module.__all__ if name not in model.other_functions)
    return [name for name in names if inspect.isfunction(getattr(model.module, name))]


def positional(model, verb):
    """Return the arguments that define a verb. A graph says how many components its hidden variables have."""
    pattern = PATTERNS.get(verb, ("params", "x"))
    return tuple("graph" if name == "num_components" and model.node else name for name in pattern)


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
    components = {"graph" if model.node else "num_components": model.num_components}
    available = {"num_samples": num_samples, "order": model.order} | components
    available |= model.options | arguments
    taken = {name: available[name] for name in parameters_of(model, verb) if name in available}
    if isinstance(taken.get("x"), Rows):
        # The data carry these.
        taken = {name: value for name, value in taken.items() if name in arguments or name not in DATA_KEYWORDS}
    positionals = [taken.pop(name) for name in positional(model, verb)]
    result = getattr(model.module, verb)(*positionals, **taken)
    return result[model.node] if verb == "posterior" and model.node else result


def run(model, verb, key, params, data):
    """Call any verb with what it needs of a key, parameters and data. EM takes a fixed number of steps."""
    arguments = {"key": key, "params": params, "x": data}
    if "moments" in parameters_of(model, verb):
        arguments["moments"] = call(model, "population_moments", params=params)
    if verb == "refine":
        arguments |= {"tol": 0.0, "max_iters": 4}
    result = call(model, verb, **arguments)
    # A number of Python, which has no type of its own among arrays.
    return np.int32(result) if verb == "num_parameters" else result


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
    """Return some rows of data: of labels, some items."""
    if isinstance(data, Labels):
        return take_items(data, rows)
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), data)


def take_items(labels, items):
    """Return the labels of some items, which are numbered anew; every item has as many labels in the contract."""
    x = np.asarray(labels.x)
    each = x[np.argsort(x[:, 0], kind="stable")].reshape(labels.num_items, -1, 3)[items].copy()
    each[:, :, 0] = np.arange(len(items))[:, None]
    weights = jnp.asarray(np.asarray(labels.row_weights)[items])
    return labels._replace(x=jnp.asarray(each.reshape(-1, 3)), row_weights=weights)


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
        return result.params, result.status, result.log_likelihood
    return result
