"""What every verb of every model refuses: a `ValueError` that names the argument."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from latensor.models.results import Fit
from latensor.moments import Table
from tests.models.contract import call, data_of, every_model, parameters_of, params_of, some_verbs, verbs_of
from tests.models.contract_models import MODELS


@pytest.fixture
def good(no_type_checks, model):
    """Arguments for any verb, none of them bad."""
    params = params_of(model)
    moments = call(model, "population_moments", params=params)
    return {"key": jax.random.key(0), "params": params, "x": data_of(model), "moments": moments}


def assert_refused(model, verb, name, good, value):
    with pytest.raises(ValueError, match=rf"^{name}[.:]"):
        call(model, verb, **(good | {name: value}))


def with_leaf(tree, place, value):
    """Return a tree with another value for one of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [value if number == place else leaf for number, leaf in enumerate(leaves)])


@some_verbs("params")
def test_bad_params(model, verb, good):
    params = good["params"]
    other = next(each for each in MODELS if each.name != model.name)
    # A fit in place of its parameters; only its type is looked at, so that nothing has to be fitted.
    fit = Fit(params, *[jnp.zeros(())] * 4)
    for bad in (params_of(other), tuple(params), None, fit):
        assert_refused(model, verb, "params", good, bad)
    for place, leaf in enumerate(jax.tree.leaves(params)):
        assert_refused(model, verb, "params", good, with_leaf(params, place, leaf * jnp.nan))
        assert_refused(model, verb, "params", good, with_leaf(params, place, leaf[None]))
        if leaf.ndim:
            assert_refused(model, verb, "params", good, with_leaf(params, place, leaf[..., :-1]))


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
    moments = good["moments"]
    leaves = jax.tree.leaves(moments)
    place = max(range(len(leaves)), key=lambda number: leaves[number].ndim)
    third = leaves[place]
    wrong = (None, third * jnp.nan, third[:-1], third[0], "third")
    changed = (with_leaf(moments, place, part) for part in wrong)
    for bad in (None, np.zeros(3), tuple(moments), *changed):
        assert_refused(model, verb, "moments", good, bad)


@some_verbs("x")
def test_bad_data(model, verb, good):
    x = np.asarray(good["x"].x)
    for bad in (None, "data", x[(None,) * 3], x[:0], x * 1j, csr_matrix(np.eye(3)), [[1, 2], ["a"]]):
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
    for bad in (mask[:-1], mask[:, :-1], mask.astype(float), 2 * mask.astype(int), True, "mask"):
        assert_refused(model, verb, "mask", good, bad)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("num_samples", (0, -1, 2.5, True, None, 10**15)),
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
