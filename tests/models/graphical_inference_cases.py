"""Small graphs, random parameters, and sums over all values of all nodes."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np

from latensor.models.graphical.graph import directed, undirected
from latensor.models.graphical.params import Graphical


def _with_leaves(parents, leaves, hidden_size, leaf_size):
    """Return the arguments of `directed`: each of the leaves given as (name, parent)."""
    sizes = dict.fromkeys(parents, hidden_size) | {name: leaf_size for name, _ in leaves}
    return parents | {name: [parent] for name, parent in leaves}, sizes, list(parents)


def chain(shared=()):
    leaves = [(f"x{t}", f"h{t}") for t in range(3)]
    return directed(*_with_leaves({"h0": [], "h1": ["h0"], "h2": ["h1"]}, leaves, 2, 3), shared=shared)


def tree():
    leaves = [(f"x{i}{h}", h) for h in ("a", "b", "c") for i in range(2)]
    return directed(*_with_leaves({"a": [], "b": ["a"], "c": ["a"]}, leaves, 3, 2), shared=())


def directed_grid():
    parents = {"a": [], "b": ["a"], "c": ["a"], "d": ["c", "b"]}
    return directed(*_with_leaves(parents, [(f"x{h}", h) for h in parents], 2, 3))


def observed_inside():
    """Return a graph with observed nodes that are not leaves: a root, one between hidden nodes, a child of both."""
    parents = {"r": [], "h": ["r"], "u": ["h"], "g": ["u"], "v": ["g", "h"], "x": ["g"], "y": ["h"]}
    return directed(parents, {"r": 2, "h": 3, "u": 2, "g": 2, "v": 3, "x": 3, "y": 4}, ["h", "g"])


def pairs():
    cliques = [("a", "b"), ("c", "b"), ("a", "x"), ("y", "b"), ("c", "z"), ("c", "w")]
    return undirected(cliques, {"a": 2, "b": 3, "c": 2, "x": 3, "y": 2, "z": 2, "w": 3}, ["a", "b", "c"])


def triangle():
    cliques = [("b", "a", "c"), ("a",), ("a", "x"), ("b", "y"), ("c", "z"), ("c", "d"), ("d", "x2")]
    sizes = {"a": 2, "b": 2, "x": 3, "c": 3, "d": 2, "y": 2, "z": 2, "x2": 3}
    return undirected(cliques, sizes, ["a", "b", "c", "d"])


def undirected_observed():
    """Return a graph with an observed node in two cliques, and a hidden node with nothing but leaves."""
    cliques = [("a", "u"), ("u", "b"), ("a", "x"), ("b", "y"), ("s", "p"), ("s", "q"), ("r", "s")]
    sizes = {"a": 2, "b": 2, "u": 3, "x": 3, "y": 2, "s": 2, "p": 2, "q": 3, "r": 2}
    return undirected(cliques, sizes, ["a", "b", "s"])


def lattice(side, size=2, leaf_size=2, num_leaves=1, share=False):
    """Return a square grid of hidden nodes with leaves."""
    nodes = list(itertools.product(range(side), range(side)))
    edges = [((i, j), (i, j + 1)) for i, j in nodes if j + 1 < side]
    edges += [((i, j), (i + 1, j)) for i, j in nodes if i + 1 < side]
    name = {node: f"h{node[0]}_{node[1]}" for node in nodes}
    cliques = [(name[a], name[b]) for a, b in edges]
    leaves = [(h, f"x{n}{h}") for h in name.values() for n in range(num_leaves)]
    sizes = dict.fromkeys(name.values(), size) | {leaf: leaf_size for _, leaf in leaves}
    shared = [range(len(cliques)), range(len(cliques), len(cliques) + len(leaves))] if share else ()
    return undirected([*cliques, *leaves], sizes, list(name.values()), shared=shared)


GRAPHS = {
    "chain": chain(),
    "shared chain": chain([["x0", "x1", "x2"], ["h1", "h2"]]),
    "tree": tree(),
    "directed grid": directed_grid(),
    "observed inside": observed_inside(),
    "pairs": pairs(),
    "triangle": triangle(),
    "undirected, observed inside": undirected_observed(),
    "grid": lattice(3),
    "shared grid": lattice(2, leaf_size=3, share=True),
}


def random_params(graph, seed=0, scale=1.0):
    """Return parameters in the default floating type; those of shared cliques are the same."""
    rng = np.random.default_rng(seed)
    tables = []
    for shape in graph.shapes:
        if graph.is_directed:
            columns = rng.dirichlet(np.full(shape[0], 1.5), shape[1:])
            tables.append(jnp.asarray(np.moveaxis(columns, -1, 0), float))
        else:
            tables.append(jnp.asarray(scale * rng.normal(size=shape), float))
    for first, *others in graph.shared:
        for number in others:
            tables[number] = tables[first]
    return Graphical(graph, tuple(tables))


class Enumeration:
    """The joint distribution of all nodes as one table."""

    def __init__(self, graph, tables, names=None, cliques=None):
        self.graph = graph
        self.names = names or tuple(node.name for node in graph.nodes)
        place = {name: axis for axis, name in enumerate(self.names)}
        logs = np.zeros([graph.sizes[name] for name in self.names])
        for clique, table in zip(cliques or graph.cliques, tables, strict=True):
            table = np.asarray(table, np.float64)
            axes = sorted(range(len(clique)), key=lambda axis: place[clique[axis]])
            shape = [graph.sizes[name] if name in clique else 1 for name in self.names]
            with np.errstate(divide="ignore"):
                logs = logs + (np.log(table) if graph.is_directed else table).transpose(axes).reshape(shape)
        joint = np.exp(logs - logs.max())
        self.joint = joint / joint.sum()

    def marginal(self, names):
        away = tuple(axis for axis, name in enumerate(self.names) if name not in names)
        kept = [name for name in self.names if name in names]
        return self.joint.sum(axis=away).transpose([kept.index(name) for name in names])

    def conditional(self, row):
        """Return the joint table restricted to the observed values of a row; a value below zero is missing."""
        values = dict(zip(self.graph.observed, row, strict=True))
        table = self.joint
        for axis, name in enumerate(self.names):
            value = values.get(name, -1)
            if value >= 0:
                keep = np.zeros(table.shape[axis])
                keep[value] = 1
                table = table * keep.reshape([-1 if i == axis else 1 for i in range(table.ndim)])
        return table

    def log_likelihood(self, x):
        return np.array([np.log(self.conditional(row).sum()) for row in x])

    def posterior(self, x, name):
        axes = tuple(axis for axis, other in enumerate(self.names) if other != name)
        tables = np.array([self.conditional(row).sum(axis=axes) for row in x])
        return tables / tables.sum(axis=1, keepdims=True)


def enumerate_params(params):
    return Enumeration(params.graph, params.tables)


def all_rows(graph):
    """Return every possible row of data."""
    return np.array(list(itertools.product(*(range(graph.sizes[name]) for name in graph.observed))))


@functools.cache
def some_rows(name, num_rows=6):
    """Return random rows of which a third is missing; the first is complete, the second misses all."""
    graph, rng = GRAPHS[name], np.random.default_rng(1)
    x = np.stack([rng.integers(0, graph.sizes[node], num_rows) for node in graph.observed], axis=1)
    mask = rng.random(x.shape) < 0.67
    mask[0], mask[1] = True, False
    return x, mask
