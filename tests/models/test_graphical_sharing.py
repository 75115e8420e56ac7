"""Shared parameters, and hidden variables without cliques of their own: exact moments give the distribution back."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import graphical
from latensor.models.graphical import chain, directed, plan, undirected
from tests.models.test_graphical_moments import random_params

KEY = jax.random.key(0)
HIDDEN = ["h1", "h2", "h3"]
SIZES = dict.fromkeys(HIDDEN, 2) | {f"{name}{leaf}": 3 for name in HIDDEN for leaf in "ab"}
LEAVES = [(f"{name}{leaf}", name) for leaf in "ab" for name in HIDDEN]
PATH = [("h1", "h2"), ("h2", "h3")]
ONE = {"h": 2, "a": 3, "b": 3, "c": 3}
STAR = [("a", "h"), ("b", "h"), ("c", "h")]


def parents(**more):
    """Return a directed chain of three hidden nodes, each with two leaves."""
    return {"h1": [], "h2": ["h1"], "h3": ["h2"]} | {leaf: [name] for leaf, name in LEAVES} | more


GRAPHS = {
    "shared edges, some leaves": undirected(PATH + LEAVES, SIZES, HIDDEN, shared=[(0, 1), (2, 3, 4)]),
    "shared edges, all leaves": undirected(
        [*PATH, ("h3", "h1"), *LEAVES], SIZES, HIDDEN, shared=[(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    ),
    "with unary cliques": undirected(
        [*PATH, ("h1",), ("h2",), ("h3",), *LEAVES], SIZES, HIDDEN, shared=[(0, 1), (5, 6, 7)]
    ),
    "one hidden node": undirected(STAR, ONE, ["h"]),
    "one hidden node with a unary clique": undirected([*STAR, ("h",)], ONE, ["h"]),
    "one hidden node, leaves shared": undirected(
        [*STAR, ("u", "v")], ONE | {"u": 2, "v": 2}, ["h"], shared=[(0, 1, 2)]
    ),
    "two groups of leaves": directed(parents(), SIZES, HIDDEN, shared=[("h1a", "h2a"), ("h3b", "h2b")]),
}


def distribution(params):
    sizes = (range(params.graph.sizes[name]) for name in params.graph.observed)
    rows = np.array(list(itertools.product(*sizes)))
    return np.exp(graphical.log_likelihood(params, rows))


# Both ways to potentials where they differ; every case compiles for some seconds.
CASES = [
    ("shared edges, some leaves", "likelihood"),
    ("shared edges, all leaves", "pseudolikelihood"),
    ("with unary cliques", "likelihood"),
    ("one hidden node", "likelihood"),
    ("one hidden node with a unary clique", "pseudolikelihood"),
    ("one hidden node, leaves shared", "likelihood"),
    ("two groups of leaves", "normalize"),
]


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_exact_moments_give_the_distribution_back(name, parameters, float64):
    params = random_params(GRAPHS[name], 1)
    moments = graphical.population_moments(params, parameters=parameters)
    fit = graphical.fit_moments(KEY, moments, moments.plan)
    assert fit.status == Status.CONVERGED
    # `log_likelihood` refuses shared tables that differ.
    np.testing.assert_allclose(distribution(fit.params), distribution(params), atol=1e-8)


def test_states_of_variables_that_share_parameters_are_sorted_by_their_average(float64):
    """The first variable of the chain is in the rarer state, which a long chain leaves."""
    graph = chain(6, num_states=2, num_values=3)
    params = random_params(graph, 0)
    tables = list(params.tables)
    tables[0] = jnp.array([0.1, 0.9])
    for number in range(1, 6):
        tables[number] = jnp.array([[0.9, 0.5], [0.1, 0.5]])
    params = params._replace(tables=tuple(tables))
    fit = graphical.fit_moments(KEY, graphical.population_moments(params), graph)
    np.testing.assert_allclose(fit.params.tables[0], [0.1, 0.9], atol=1e-6)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            undirected([*PATH, ("h1", "h1a"), *LEAVES[1:]], dict.fromkeys(SIZES, 2), HIDDEN, shared=[(2, 3)]),
            r"\(h1 h1a\), \(h2a h2\)",
        ),
        (
            directed(parents(y=["h1"], z=["y"]), SIZES | {"y": 3, "z": 3}, HIDDEN, shared=[("y", "h1a")]),
            r"\(y h1\), \(h1a h1\)",
        ),
    ],
)
def test_shared_cliques_are_all_leaves_or_none(graph, message):
    with pytest.raises(ValueError, match=rf"graph: expected shared cliques that are all .* got {message}"):
        plan(graph)


def test_partly_shared_leaves_beside_shared_potentials_are_refused(float64):
    cliques = [*PATH, *LEAVES, ("c", "h3")]
    shared = [(0, 1), (2, 3, 4), (5, 6, 7, 8)]
    graph = undirected(cliques, SIZES | {"c": 3}, HIDDEN, shared=shared)
    with pytest.raises(ValueError, match=r"graph: expected hidden variables that share potentials to share all"):
        graphical.fit_moments(KEY, graphical.population_moments(random_params(graph, 0)), graph)
