"""Potentials from marginals: exact ones give the distribution back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models.graphical.graph import undirected
from latensor.models.graphical.recover import maximize_likelihood, maximize_pseudolikelihood
from latensor.models.graphical.stars import group_stars, hidden_cliques, star_nodes
from tests.helpers import lowers
from tests.models.graphical_inference_cases import GRAPHS, Enumeration, chain, lattice, random_params

RECOVER = {"likelihood": maximize_likelihood, "pseudolikelihood": maximize_pseudolikelihood}
NAMES = ["pairs", "triangle", "grid", "shared grid"]
every_method = pytest.mark.parametrize("method", RECOVER)


def hidden_part(graph, tables):
    """Return the distribution of the hidden nodes under potentials of the hidden cliques."""
    cliques = [graph.cliques[number] for number in hidden_cliques(graph)]
    return Enumeration(graph, tables, graph.hidden, cliques)


@functools.cache
def truth(name, seed=0):
    graph = GRAPHS[name]
    tables = random_params(graph, seed).tables
    return hidden_part(graph, [tables[number] for number in hidden_cliques(graph)])


def inputs(graph, exact, method):
    """Return the marginals that a method needs, of the default floating type."""
    if method == "likelihood":
        scopes = [graph.cliques[number] for number in hidden_cliques(graph)]
    else:
        scopes = star_nodes(graph)
    return tuple(jnp.asarray(exact.marginal(scope), float) for scope in scopes)


@every_method
@pytest.mark.parametrize("name", NAMES)
def test_exact_marginals_give_the_distribution_back(name, method, float64):
    graph, exact = GRAPHS[name], truth(name)
    result = RECOVER[method](graph, inputs(graph, exact, method))
    assert result.status == Status.CONVERGED
    assert {table.dtype.name for table in result.tables} == {"float64"}
    # float32: a gradient of 1e-5, over the curvature.
    tolerance = 1e-8
    np.testing.assert_allclose(hidden_part(graph, result.tables).joint, exact.joint, atol=tolerance)
    for table, number in zip(result.tables, hidden_cliques(graph), strict=True):
        assert table.shape == graph.shapes[number]
        assert abs(float(jnp.mean(table))) < 1e-5


def test_both_methods_agree_on_shared_potentials(float64):
    graph = GRAPHS["shared grid"]
    results = [RECOVER[method](graph, inputs(graph, truth("shared grid"), method)) for method in RECOVER]
    for result in results:
        for table in result.tables:
            np.testing.assert_allclose(table, result.tables[0], atol=1e-12)


def test_marginals_that_disagree_are_averaged(float64):
    graph, exact = GRAPHS["grid"], truth("grid")
    rng = np.random.default_rng(0)
    noisy = [table * rng.uniform(0.9, 1.1, table.shape) for table in inputs(graph, exact, "likelihood")]
    result = maximize_likelihood(graph, noisy)
    assert result.status == Status.CONVERGED
    model = hidden_part(graph, result.tables)
    for scope, table in zip(graph.cliques, noisy, strict=False):
        np.testing.assert_allclose(model.marginal(scope), table / table.sum(), atol=0.03)
    # The same cliques in another order, and with their axes swapped, have the same distribution.
    cliques = [graph.cliques[number][::-1] for number in hidden_cliques(graph)][::-1]
    swapped = undirected(cliques, dict.fromkeys(graph.hidden, 2), graph.hidden)
    other = maximize_likelihood(swapped, [table.T for table in noisy[::-1]])
    np.testing.assert_allclose(hidden_part(swapped, other.tables).joint, model.joint, atol=1e-8)


def test_zero_probabilities_give_finite_potentials(precision):
    graph = undirected([("a", "b")], {"a": 2, "b": 2}, ["a", "b"])
    table = jnp.asarray([[0.5, 0.0], [0.2, 0.3]], float)
    for result in (maximize_likelihood(graph, [table]), maximize_pseudolikelihood(graph, [table, table.T])):
        assert np.all(np.isfinite(result.tables[0]))
        assert hidden_part(graph, result.tables).joint[0, 1] < 1e-3


@every_method
def test_vmap_equals_a_loop(method, float64):
    graph = GRAPHS["pairs"]
    several = [inputs(graph, truth("pairs", seed), method) for seed in range(3)]
    batch = jax.tree.map(lambda *parts: jnp.stack(parts), *several)
    result = jax.vmap(lambda tables: RECOVER[method](graph, tables))(batch)
    assert np.all(result.status == Status.CONVERGED)
    for i, tables in enumerate(several):
        one = RECOVER[method](graph, tables)
        for a, b in zip(result.tables, one.tables, strict=True):
            np.testing.assert_allclose(a[i], b, atol=1e-6)


@every_method
def test_traced_nan_is_not_success(method, float64):
    graph = GRAPHS["pairs"]
    tables = inputs(graph, truth("pairs"), method)
    run = jax.jit(lambda tables: RECOVER[method](graph, tables))
    assert run((tables[0] * jnp.nan, *tables[1:])).status == Status.NON_FINITE
    assert run(tables).status == Status.CONVERGED


def test_a_large_grid_has_few_groups_of_stars(float64):
    graph = lattice(10, num_leaves=0)
    groups = group_stars(graph)
    # Corners, edges and inner nodes: two, three and four neighbours.
    assert sorted((len(group.stars), len(group.terms)) for group in groups) == [(4, 2), (32, 3), (64, 4)]
    even = [jnp.full((2,) * len(star), 0.5 ** len(star)) for star in star_nodes(graph)]
    result = maximize_pseudolikelihood(graph, even)
    assert result.status == Status.CONVERGED
    assert len(result.tables) == 180
    assert max(float(jnp.max(jnp.abs(table))) for table in result.tables) < 1e-8


@every_method
def test_lowers_for_accelerators(method):
    graph = GRAPHS["triangle"]
    lowers(functools.partial(RECOVER[method], graph), inputs(graph, truth("triangle"), method))


def test_limits_and_bad_input(float64, no_type_checks):
    graph = GRAPHS["pairs"]
    tables = inputs(graph, truth("pairs"), "likelihood")
    result = maximize_likelihood(graph, tables, max_iters=1)
    assert (result.status, result.num_iters) == (Status.MAX_ITERS, 1)
    for given, expected in [
        (tables[:1], "marginals: expected 2 tables; got 1"),
        ((tables[0].T, tables[1]), r"marginals\[0\] \(a, b\): expected shape \(2, 3\); got \(3, 2\)"),
        ((tables[0] - 1, tables[1]), r"marginals\[0\] \(a, b\): expected probabilities ≥ 0"),
    ]:
        with pytest.raises(ValueError, match=expected):
            maximize_likelihood(graph, given)
    with pytest.raises(ValueError, match="graph: expected an undirected one"):
        maximize_likelihood(chain(), tables)
    with pytest.raises(ValueError, match="tol: expected"):
        maximize_likelihood(graph, tables, tol=-1.0)
