"""Graphical models from samples: parameters that explain new data as well as the true ones, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import graphical
from latensor.models.graphical import Graphical, directed, grid, latent_tree, plan

KEY = jax.random.key(0)
NUM_SAMPLES = 20_000


def clear_params(graph, seed):
    """Return parameters whose hidden states are easy to tell apart."""
    rng = np.random.default_rng(seed)
    tables = []
    for clique, shape in zip(graph.cliques, graph.shapes, strict=True):
        states = shape[1] if len(shape) > 1 else 1
        if any(name not in graph.hidden for name in clique) and len(clique) == 2:
            table = rng.dirichlet(np.full(shape[0], 0.5), states).T
            for state in range(states):
                table[state % shape[0], state] += 1.5
        elif graph.is_directed:
            table = rng.dirichlet(np.full(shape[0], 2.0), shape[1:] if len(shape) > 1 else ())
            table = np.moveaxis(table, -1, 0) if len(shape) > 1 else table
            table = table + 0.8 * np.eye(shape[0], states).reshape(shape) if len(shape) == 2 else table
        else:
            tables.append(jnp.asarray(rng.normal(0, 0.7, shape), jnp.float32))
            continue
        table = table / table.sum(axis=0, keepdims=True)
        tables.append(jnp.asarray(table if graph.is_directed else np.log(table), jnp.float32))
    for group in graph.shared:
        for number in group:
            tables[number] = tables[group[0]]
    return Graphical(graph, tuple(tables))


def inner_graph():
    """Return a chain of three hidden nodes, with an observed one between the last two."""
    parents = {"h1": [], "h2": ["h1"], "y": ["h2"], "h3": ["y"]}
    parents |= {f"x{i}{leaf}": [f"h{i}"] for i in (1, 2, 3) for leaf in "abc"}
    sizes = {name: 2 if name[0] == "h" else 3 if name == "y" else 4 for name in parents}
    return directed(parents, sizes, ["h1", "h2", "h3"])


GRAPHS = {
    "grid": grid(2, 2, directed=True, num_values=4),
    "tree": latent_tree({"h1": ["h2", "h3", "h4"]}, {f"h{i}": [f"{i}a", f"{i}b"] for i in (2, 3, 4)}, num_values=4),
    "chain": graphical.chain(5, num_states=2, num_values=4),
    "inner": inner_graph(),
    "undirected": grid(2, 2, directed=False, num_values=4),
}


# All tests of a graph have the same samples, and the same fit to them: each takes seconds.
@functools.cache
def samples(name):
    truth = clear_params(GRAPHS[name], 1)
    # The potentials are weak: 40 sweeps, as in the test of draws, forget the start.
    draw = np.asarray(graphical.sample(jax.random.key(1), truth, 2 * NUM_SAMPLES, num_sweeps=40).x)
    return truth, draw[:NUM_SAMPLES], draw[NUM_SAMPLES:]


@functools.cache
def fit_of(name):
    return graphical.fit(KEY, samples(name)[1], GRAPHS[name])


@functools.cache
def best_log_likelihoods(name):
    """Return those of new data under the truth."""
    truth, _, new = samples(name)
    return np.asarray(graphical.log_likelihood(truth, new))


def loss(name, params):
    """Return how much less likely new data are than under the truth, in nats per sample."""
    values = graphical.log_likelihood(params, samples(name)[2])
    return float(np.mean(best_log_likelihoods(name) - np.asarray(values)))


@pytest.mark.parametrize("name", GRAPHS)
def test_new_data_are_nearly_as_likely_as_under_the_truth(name):
    """The likeliest parameters would lose about half of their number divided by that of the samples: 0.001."""
    fit = fit_of(name)
    assert fit.status <= Status.MAX_ITERS
    assert fit.params.graph == GRAPHS[name]
    assert loss(name, fit.params) < 0.01
    best = graphical.refine(fit.params, samples(name)[1], max_iters=20)
    assert loss(name, best.params) < 0.003


def test_missing_values_and_weights():
    graph, (_, x, _) = GRAPHS["grid"], samples("grid")
    rng = np.random.default_rng(0)
    mask = rng.random(x.shape) < 0.8
    masked = graphical.fit(KEY, x, graph, mask=mask).params
    assert loss("grid", masked) < 0.02
    np.testing.assert_array_equal(graphical.fit(KEY, np.where(mask, x, -1), graph).params.tables[1], masked.tables[1])
    # Rows of weight zero are not there.
    junk = np.concatenate([x, rng.integers(0, 4, x.shape)])
    weights = np.repeat([1.0, 0.0], NUM_SAMPLES)
    weighted = graphical.fit(KEY, junk, graph, row_weights=weights)
    for one, other in zip(weighted.params.tables, fit_of("grid").params.tables, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


def test_pseudoinverse_and_pseudolikelihood_are_consistent_too():
    fit = graphical.fit(KEY, samples("grid")[1], GRAPHS["grid"], marginals="pseudoinverse")
    assert loss("grid", fit.params) < 0.02
    fit = graphical.fit(KEY, samples("undirected")[1], plan(GRAPHS["undirected"], parameters="pseudolikelihood"))
    assert loss("undirected", fit.params) < 0.02
    assert fit.diagnostics.gradient_norm < 1e-3


def test_an_observed_node_inside_the_graph_keeps_its_place():
    fit, (truth, _, _) = fit_of("inner"), samples("inner")
    number = [clique[0] for clique in GRAPHS["inner"].cliques].index("y")
    order = np.argmax(np.asarray(truth.tables[number]).T @ np.asarray(fit.params.tables[number]), axis=1)
    np.testing.assert_allclose(fit.params.tables[number][:, order], truth.tables[number], atol=0.05)


def test_under_jit_nothing_is_checked_and_the_answer_is_the_same():
    way = plan(GRAPHS["chain"])
    jitted = jax.jit(lambda x: graphical.fit(KEY, x, way))(samples("chain")[1])
    for one, other in zip(fit_of("chain").params.tables, jitted.params.tables, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((5, 3), int)}, r"x: expected 8 columns, the observed nodes of the graph"),
        ({"x": np.full((5, 8), 9)}, r"x: expected values from 0 to 3 for x1,1\.a"),
        ({"graph": 3}, r"graph: expected a Graph or a Plan; got int"),
        ({"marginals": "em"}, r"marginals: expected"),
        ({"num_restarts": 0}, r"num_restarts: expected"),
    ],
)
def test_bad_input(change, message, no_type_checks):
    given = {"x": np.zeros((5, 8), int), "graph": GRAPHS["grid"]} | change
    with pytest.raises(ValueError, match=message):
        graphical.fit(KEY, given.pop("x"), given.pop("graph"), **given)
