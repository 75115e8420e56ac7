"""What the benchmarks of graphical models share: graphs, random parameters, exact draws, errors after relabelling."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from latensor.models import graphical
from latensor.models.graphical import Graph, Graphical
from latensor.models.graphical.factors import factors_of, row_partitions, split_graph

NUM_VALUES = 5


def figure_3b(num_states: int) -> Graph:
    """Return the latent tree of figure 3(b): a root without leaves, and three children with two leaves each."""
    leaves = {f"h{i}": [f"x{i}.a", f"x{i}.b"] for i in (2, 3, 4)}
    return graphical.latent_tree({"h1": ["h2", "h3", "h4"]}, leaves, num_states=num_states, num_values=NUM_VALUES)


def draw_params(rng: np.random.Generator, graph: Graph, *, structure: float, scale: float = 0.7) -> Graphical:
    """Return random parameters, in the default precision.

    Directed tables: columns from Dirichlet(1), with a share `structure` of: for a leaf, one value per hidden state, a
    different one for each if there are enough; for a hidden node, the value of its parent (of one of them, each as
    likely), and for a root the uniform distribution. Undirected: leaves likewise, all other log-potentials normal with
    the deviation `scale`.
    """
    hidden, tables = set(graph.hidden), []
    for clique, shape in zip(graph.cliques, graph.shapes, strict=True):
        leaf = next((axis for axis, name in enumerate(clique) if name not in hidden), None)
        if leaf is not None:
            table = _emissions(rng, shape[leaf], shape[1 - leaf], structure)
            table = table if leaf == 0 else table.T
            table = table if graph.is_directed else np.log(np.maximum(table, 1e-12))
        elif graph.is_directed:
            random = np.moveaxis(rng.dirichlet(np.ones(shape[0]), shape[1:]), -1, 0)
            table = structure * _copies(shape) + (1 - structure) * random
        else:
            table = rng.normal(0, scale, shape)
        tables.append(jnp.asarray(table, float))
    for group in graph.shared:
        for number in group:
            tables[number] = tables[group[0]]
    return Graphical(graph, tuple(tables))


def _emissions(rng: np.random.Generator, num_values: int, num_states: int, structure: float) -> np.ndarray:
    random = rng.dirichlet(np.ones(num_values), num_states).T
    peaks = np.resize(rng.permutation(num_values), num_states)
    return structure * np.eye(num_values)[:, peaks] + (1 - structure) * random


def _copies(shape: tuple[int, ...]) -> np.ndarray:
    """Return `P(child | parents)` of a child that has the value of one of its parents; uniform for a root."""
    if len(shape) == 1:
        return np.full(shape, 1 / shape[0])
    table = np.zeros(shape)
    for axis in range(1, len(shape)):
        along = [size if other in (0, axis) else 1 for other, size in enumerate(shape)]
        table += np.eye(shape[0], shape[axis]).reshape(along) / (len(shape) - 1)
    return table


def draw_exactly(rng: np.random.Generator, params: Graphical, num_samples: int) -> np.ndarray:
    """Return rows of data of a graph whose observed nodes are all leaves; hidden values by enumeration of all."""
    graph = params.graph
    split, factors = split_graph(graph), factors_of(params)
    logs = np.zeros(split.sizes)
    bases = zip(itertools.chain(*split.stacks), itertools.chain(*factors.bases), strict=True)
    parts = [*zip(split.scopes, factors.tables, strict=True), *(((leaf.node,), base) for leaf, base in bases)]
    for scope, table in parts:
        aligned = np.asarray(table, np.float64).transpose(np.argsort(scope))
        logs = logs + aligned.reshape([size if node in scope else 1 for node, size in enumerate(split.sizes)])
    probabilities = np.exp(logs - logs.max()).ravel()
    chosen = rng.choice(len(probabilities), num_samples, p=probabilities / probabilities.sum())
    states = np.unravel_index(chosen, split.sizes)
    x = np.zeros((num_samples, len(graph.observed)), np.int32)
    for stack, tables in zip(split.stacks, factors.leaves, strict=True):
        for leaf, table in zip(stack, np.exp(np.asarray(tables, np.float64)), strict=True):
            cumulative = np.cumsum(table, axis=0)[:-1, states[leaf.node]]
            x[:, leaf.column] = np.sum(rng.random(num_samples) >= cumulative, axis=0)
    return x


class Distributions(NamedTuple):
    """What a model says about its hidden cliques and its leaves."""

    cliques: dict[tuple[str, ...], np.ndarray]
    """The joint distribution of every clique without a leaf."""
    leaves: dict[tuple[str, str], np.ndarray]
    """`P(x | h)`, one column per state, by the names of `h` and `x`."""


@jax.jit
def _clique_marginals(params: Graphical) -> tuple[Array, ...]:
    split, factors = split_graph(params.graph), factors_of(params)
    nothing = jnp.full((1, len(params.graph.observed)), -1, jnp.int32)

    def total(tables: tuple[Array, ...]) -> Array:
        return row_partitions(split, factors._replace(tables=tables), nothing)[0]

    return jax.grad(total)(factors.tables)


def leaf_tables(params: Graphical) -> dict[tuple[str, str], np.ndarray]:
    """Return `P(x | h)` of all leaves, one column per state, by the names of `h` and `x`."""
    split = split_graph(params.graph)
    leaves = zip(itertools.chain(*split.stacks), itertools.chain(*factors_of(params).leaves), strict=True)
    return {
        (split.internal[leaf.node], params.graph.observed[leaf.column]): np.exp(np.asarray(table))
        for leaf, table in leaves
    }


def distributions(params: Graphical) -> Distributions:
    """Return the distributions of a model, by exact inference: marginals are gradients of the log-partition function.

    Potentials have a gauge, which these do not depend on.
    """
    cliques = [params.graph.cliques[number] for number in split_graph(params.graph).cliques]
    marginals = map(np.asarray, _clique_marginals(params))
    return Distributions(dict(zip(cliques, marginals, strict=True)), leaf_tables(params))


class Errors(NamedTuple):
    """Total variation, half of the sum of absolute differences."""

    cliques: float
    """Mean over the joint distributions of cliques."""
    leaves: float
    """Mean over leaves and states."""
    mean: float
    """Mean over cliques and leaves."""


def errors(truth: Distributions, estimate: Distributions) -> Errors:
    """Return how far the distributions of an estimate are from the true ones; the order of states counts."""
    cliques = [np.abs(table - estimate.cliques[clique]).sum() / 2 for clique, table in truth.cliques.items()]
    leaves = leaf_errors(truth.leaves, estimate.leaves)
    return Errors(float(np.mean(cliques)), float(np.mean(leaves)), float(np.mean([*cliques, *leaves])))


def leaf_errors(truth: dict[tuple[str, str], np.ndarray], estimate: dict[tuple[str, str], np.ndarray]) -> list[float]:
    """Return the total variation of each `P(x | h)`, the mean over states."""
    return [float(np.abs(table - estimate[pair]).sum(axis=0).mean() / 2) for pair, table in truth.items()]


def relabel(truth: Graphical, estimate: Graphical) -> Graphical:
    """Return an estimate with the states of every hidden variable in the order that fits the truth best.

    Of all orders: for a variable with leaves, the one that makes the distributions of its leaves most similar. Then for
    the others, one after the other, the one that makes those of the cliques most similar.
    """
    graph, true_leaves, found = truth.graph, leaf_tables(truth), leaf_tables(estimate)
    orders: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(hidden for hidden, _ in true_leaves):
        pairs = [pair for pair in true_leaves if pair[0] == name]
        differences = sum(np.abs(true_leaves[p][:, :, None] - found[p][:, None, :]).sum(axis=0) for p in pairs)
        candidates = _orders(graph, name)
        costs = [np.trace(differences[:, order]) for order in candidates]
        orders[name] = candidates[int(np.argmin(costs))]
    estimate = graphical.permute(estimate, orders)
    for name in graph.hidden:
        if name not in orders:
            models = [graphical.permute(estimate, {name: order}) for order in _orders(graph, name)]
            costs = [errors(distributions(truth), distributions(model)).cliques for model in models]
            estimate = models[int(np.argmin(costs))]
    return estimate


def _orders(graph: Graph, name: str) -> list[np.ndarray]:
    return [np.array(order) for order in itertools.permutations(range(graph.sizes[name]))]
