"""Exact moments of graphical models: against enumeration, and back to the parameters."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import graphical
from latensor.models.graphical import Graphical, chain, directed, grid, latent_tree, plan
from latensor.models.graphical.moments import GraphData, data_moments

KEY = jax.random.key(0)


def random_params(graph, seed):
    """Return parameters drawn from Dirichlet(1); potentials of hidden cliques are normal."""
    rng, hidden, tables = np.random.default_rng(seed), set(graph.hidden), []
    for clique, shape in zip(graph.cliques, graph.shapes, strict=True):
        table = np.moveaxis(rng.dirichlet(np.ones(shape[0]), shape[1:]), -1, 0)
        if not graph.is_directed:
            table = rng.normal(0, 0.7, shape) if hidden.issuperset(clique) else np.log(table)
        tables.append(jnp.asarray(table))
    for group in graph.shared:
        for number in group:
            tables[number] = tables[group[0]]
    return Graphical(graph, tuple(tables))


def mixed_graph():
    """Return a graph of hidden variables of two sizes, with an observed one between them and leaves of three sizes."""
    parents = {"h": [], "y": ["h"], "g": ["y"], **{leaf: ["h"] for leaf in "abc"}, **{leaf: ["g"] for leaf in "uvw"}}
    sizes = {"h": 2, "y": 3, "g": 3, "a": 2, "b": 2, "c": 3, "u": 3, "v": 4, "w": 3}
    return directed(parents, sizes, ["h", "g"])


def tree(num_states, num_values=5):
    """Return the tree of figure 3(b): its root has no leaves."""
    leaves = {f"h{i}": [f"{i}a", f"{i}b"] for i in (2, 3, 4)}
    return latent_tree({"h1": ["h2", "h3", "h4"]}, leaves, num_states=num_states, num_values=num_values)


SMALL = {
    "mixed": mixed_graph(),
    "tree": tree(2, 3),
    "chain": chain(5, num_states=2, num_values=3),
    "undirected": grid(2, 2, directed=False, num_values=2),
}


def all_rows(graph):
    """Return all values of the observed variables."""
    return np.array(list(itertools.product(*(range(graph.sizes[name]) for name in graph.observed))))


@pytest.mark.parametrize("name", SMALL)
def test_moments_are_those_of_all_values_with_their_probabilities(name, float64):
    params = random_params(SMALL[name], 0)
    rows = jnp.asarray(all_rows(params.graph), jnp.int32)
    weights = jnp.exp(graphical.log_likelihood(params, rows))
    np.testing.assert_allclose(jnp.sum(weights), 1, atol=1e-12)
    exact = graphical.population_moments(params)
    data = data_moments(exact.plan, GraphData(rows, weights, jnp.zeros(())), complete=True)
    assert jax.tree.structure(data) == jax.tree.structure(exact)
    assert (exact.noise, data.noise) == (0, 1 / len(rows))
    for one, other in zip(jax.tree.leaves(data[:-1]), jax.tree.leaves(exact[:-1]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def sorted_states(params):
    """Return the same model with the states of its hidden variables in decreasing order of probability, as `fit` has.

    Variables that share parameters are sorted by their average.
    """
    graph = params.graph
    nothing = jnp.full((1, len(graph.observed)), -1, jnp.int32)
    margins = graphical.posterior(params, nothing)
    if graph.shared:
        mean = sum(margins.values()) / len(margins)
        margins = dict.fromkeys(margins, mean)
    return graphical.permute(params, {name: jnp.argsort(-margin[0]) for name, margin in margins.items()})


def total_variation(one, other):
    """Return that of the joint distributions of all variables, hidden and observed, of two directed graphs."""
    graph, total = one.graph, 0.0
    states = itertools.product(*(range(graph.sizes[name]) for name in graph.hidden))
    for values in states:
        at = dict(zip(graph.hidden, values, strict=True))

        def joint(params, at=at):
            product = np.ones(())
            for clique, table in zip(graph.cliques, params.tables, strict=True):
                index = tuple(at.get(name, slice(None)) for name in clique)
                product = np.multiply.outer(product, np.asarray(table)[index])
            return product

        total += np.sum(np.abs(joint(one) - joint(other)))
    return total / 2


# The joint distributions of tables with up to ten million cells.
@pytest.mark.parametrize(
    ("graph", "seed"),
    [(grid(2, 2, directed=True), 0), (tree(3), 1), (chain(6, num_states=3, num_values=5), 2)],
    ids=["grid", "tree", "chain"],
)
def test_exact_moments_give_the_joint_distribution_back(graph, seed, float64):
    params = sorted_states(random_params(graph, seed))
    fit = graphical.fit_moments(KEY, graphical.population_moments(params), graph)
    assert fit.status == Status.CONVERGED
    for one, other in zip(fit.params.tables, params.tables, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert total_variation(params, fit.params) < 1e-5


@pytest.mark.parametrize("parameters", ["likelihood", "pseudolikelihood"])
def test_exact_moments_give_undirected_distributions_back(parameters, float64):
    params = random_params(grid(2, 3, directed=False, num_values=4), 3)
    moments = graphical.population_moments(params, parameters=parameters)
    fit = graphical.fit_moments(KEY, moments, moments.plan, marginals="pseudoinverse")
    assert fit.status == Status.CONVERGED
    assert fit.diagnostics.gradient_norm < 1e-9
    x = graphical.sample(KEY, params, 50).x
    expected = graphical.log_likelihood(params, x)
    np.testing.assert_allclose(graphical.log_likelihood(fit.params, x), expected, atol=1e-6)


def test_an_observed_variable_inside_keeps_its_parameters(float64):
    """Canonical form makes it hidden; its values and their order come back."""
    params = sorted_states(random_params(mixed_graph(), 5))
    fit = graphical.fit_moments(KEY, graphical.population_moments(params), params.graph)
    for one, other in zip(fit.params.tables, params.tables, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_refused(no_type_checks):
    graph = SMALL["tree"]
    moments = graphical.population_moments(random_params(graph, 0))
    with pytest.raises(ValueError, match=r"graph: expected the graph that the moments are of; got another one"):
        graphical.fit_moments(KEY, moments, SMALL["chain"])
    with pytest.raises(ValueError, match=r"graph: expected a Graph or a Plan; got int"):
        graphical.fit_moments(KEY, moments, 3)
    with pytest.raises(ValueError, match=r"moments: expected one array for each part of the plan"):
        graphical.fit_moments(KEY, moments._replace(sets=moments.sets[:-1]), graph)
    big = grid(12, 12, directed=False)
    with pytest.raises(ValueError, match=r"treewidth"):
        graphical.population_moments(random_params(big, 0))


def test_shared_cliques_need_leaves_that_say_whose_states_correspond():
    parents = {"h1": [], "h2": ["h1"], "h3": ["h2"]} | {f"x{i}{leaf}": [f"h{i}"] for i in (1, 2, 3) for leaf in "ab"}
    sizes = {name: 2 if name[0] == "h" else 3 for name in parents}
    alone = directed(parents, sizes, ["h1", "h2", "h3"], shared=[["h2", "h3"]])
    with pytest.raises(ValueError, match=r"graph: expected hidden variables in the same place .* 'h2' and 'h3'"):
        plan(alone)
    leaves = [["x1a", "x2a", "x3a"]]
    assert plan(directed(parents, sizes, ["h1", "h2", "h3"], shared=[["h2", "h3"], *leaves])).parameters == "normalize"
