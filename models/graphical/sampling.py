"""Draws from a graphical model: ancestral for directed graphs, Gibbs sampling for undirected ones."""

import functools
import math
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import check_integer, check_key
from latensor.models.graphical.factors import Factors, Split, factors_of, make_evidence, split_graph
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.params import Graphical, check_params
from latensor.models.results import Sample
from latensor.models.sampling import check_num_samples, inverse_cdf


def sample(key: Array, params: Graphical, num_samples: int, *, num_sweeps: int = 200) -> Sample:
    """Draw rows and their hidden values.

    Args:
      key: a random key.
      params: the model.
      num_samples: number of rows.
      num_sweeps: for undirected graphs, the number of times that every internal node is drawn given its neighbours.
        Every row is a Markov chain of its own, which starts from uniform values; strong potentials need more sweeps.
        Ignored for directed graphs, whose draws are exact.

    Returns:
      `Sample(x, hidden)`: integers `(num_samples, d)`, the observed nodes in the order of the graph, and
      `(num_samples, m)`, the hidden ones.

    """
    key, params = check_key(key), check_params(params)
    num_samples = check_num_samples(num_samples, len(params.graph.nodes))
    num_sweeps = check_integer("num_sweeps", num_sweeps, 1)
    if params.graph.is_directed:
        return _sample_directed(key, params, num_samples)
    return _sample_undirected(key, params, num_samples, jnp.int32(num_sweeps))


def _as_sample(graph: Graph, values: dict[str, Int[Array, " n"]], num_samples: int) -> Sample:
    def columns(names: Iterable[str]) -> Array:
        # The empty table first: there may be no such nodes.
        empty = jnp.zeros((num_samples, 0), jnp.int32)
        return jnp.concatenate([empty, *(values[name][:, None] for name in names)], axis=1)

    return Sample(columns(graph.observed), columns(graph.hidden))


def _ancestral_batches(graph: Graph) -> list[list[int]]:
    """Return the cliques of a directed graph, parents first, those that can be drawn at once in one list."""
    network = graph.network
    place = {name: number for number, name in enumerate(node.name for node in graph.nodes)}
    batches: dict[tuple[float, int], list[int]] = {}
    for level, generation in enumerate(nx.topological_generations(network)):
        for name in generation:
            # Nodes without children can wait for the last batch, which then has all emissions.
            when = level if network.out_degree(name) else math.inf
            batches.setdefault((when, graph.sizes[name]), []).append(place[name])
    return [batches[when] for when in sorted(batches)]


@partial(jax.jit, static_argnames="num_samples")
def _sample_directed(key: Array, params: Graphical, num_samples: int) -> Sample:
    graph, dtype = params.graph, params.tables[0].dtype
    batches = _ancestral_batches(graph)
    values: dict[str, Array] = {}
    for key_batch, batch in zip(jax.random.split(key, len(batches)), batches, strict=True):
        size = graph.shapes[batch[0]][0]
        tables, columns, offset = [], [], 0
        for number in batch:
            column = jnp.full(num_samples, 0, jnp.int32)
            for parent in graph.cliques[number][1:]:
                column = column * graph.sizes[parent] + values[parent]
            tables.append(params.tables[number].reshape(size, -1))
            columns.append(column + offset)
            offset += tables[-1].shape[1]
        uniforms = jax.random.uniform(key_batch, (num_samples, len(batch)), dtype)
        draws = inverse_cdf(uniforms, jnp.concatenate(tables, axis=1), jnp.stack(columns, axis=1))
        values |= {graph.cliques[number][0]: draws[:, i] for i, number in enumerate(batch)}
    return _as_sample(graph, values, num_samples)


class _Term(NamedTuple):
    """One factor for each node of a batch, by its place in the vector of all log-factors."""

    offset: Int[np.ndarray, " m"]
    own: Int[np.ndarray, " m"]
    """The step from one value of the node to the next."""
    others: tuple[tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]], ...]
    """Further nodes of the factor, and their steps."""


class _Batch(NamedTuple):
    """Nodes of one colour and size: given all others they are independent."""

    nodes: Int[np.ndarray, " m"]
    size: int
    terms: tuple[_Term, ...]


@functools.lru_cache(maxsize=64)
def _gibbs_batches(split: Split) -> list[_Batch]:
    """Return which internal nodes can be drawn at once.

    The log-factors are one vector: the tables, the evidence of every node, and a zero, to which factors point that
    some nodes of a batch do not have.
    """
    network = nx.Graph()
    network.add_nodes_from(range(len(split.sizes)))
    terms: list[list[tuple[int, dict[int, int]]]] = [[] for _ in split.sizes]
    end = 0
    for scope in (*split.scopes, *((node,) for node in range(len(split.sizes)))):
        network.add_edges_from((one, other) for i, one in enumerate(scope) for other in scope[:i])
        shape = [split.sizes[node] for node in scope]
        steps = {node: math.prod(shape[axis + 1 :]) for axis, node in enumerate(scope)}
        for node in scope:
            terms[node].append((end, steps))
        end += math.prod(shape)
    groups: dict[tuple[int, int], list[int]] = {}
    for node, colour in nx.greedy_color(network).items():
        groups.setdefault((colour, split.sizes[node]), []).append(node)

    def batch(nodes: list[int], size: int) -> _Batch:
        padded = []
        for place in range(max(len(terms[node]) for node in nodes)):
            rows = [terms[node][place] if place < len(terms[node]) else (end, {}) for node in nodes]
            others = [
                [(other, step) for other, step in steps.items() if other != node]
                for node, (_, steps) in zip(nodes, rows, strict=True)
            ]
            most = max(len(row) for row in others)
            table = np.array([row + [(0, 0)] * (most - len(row)) for row in others], np.int32)
            pairs = tuple((table[:, i, 0], table[:, i, 1]) for i in range(most))
            own = [steps.get(node, 0) for node, (_, steps) in zip(nodes, rows, strict=True)]
            padded.append(_Term(np.array([row[0] for row in rows], np.int32), np.array(own, np.int32), pairs))
        return _Batch(np.array(nodes, np.int32), size, tuple(padded))

    return [batch(groups[key], key[1]) for key in sorted(groups)]


def _scores(batch: _Batch, factors: Float[Array, " _"], values: Int[Array, "n nodes"]) -> Float[Array, "n m k"]:
    """Return the log-probability of every value of the nodes of a batch given their neighbours, up to a constant."""
    total: Any = 0
    for term in batch.terms:
        index = jnp.asarray(term.offset)[None, :]
        for nodes, steps in term.others:
            index = index + values[:, nodes] * steps[None, :]
        own = term.own[:, None] * np.arange(batch.size, dtype=np.int32)[None, :]
        total = total + factors[index[:, :, None] + own[None]]
    return jnp.broadcast_to(total, (values.shape[0], len(batch.nodes), batch.size))


@partial(jax.jit, static_argnames="num_samples")
def _sample_undirected(key: Array, params: Graphical, num_samples: int, num_sweeps: Int[Array, ""]) -> Sample:
    """Draw the internal nodes by Gibbs sampling, then the leaves given these, exactly."""
    key_start, key_sweeps, key_leaves = jax.random.split(key, 3)
    split, factors = split_graph(params.graph), factors_of(params)
    batches, dtype = _gibbs_batches(split), params.tables[0].dtype
    sizes = jnp.asarray(split.sizes, jnp.int32)
    start = jax.random.randint(key_start, (num_samples, len(split.sizes)), 0, sizes[None, :], jnp.int32)
    nothing = jnp.full((1, max(len(params.graph.observed), 1)), -1, jnp.int32)
    evidence = make_evidence(split, factors, nothing)
    flat = jnp.concatenate([jnp.ravel(part) for part in (*factors.tables, *evidence)] + [jnp.zeros(1, dtype)])

    def sweep(number: Array, values: Array) -> Array:
        keys = jax.random.split(jax.random.fold_in(key_sweeps, number), len(batches))
        for key_batch, batch in zip(keys, batches, strict=True):
            cumulative = jnp.cumsum(jax.nn.softmax(_scores(batch, flat, values), axis=2), axis=2)
            uniforms = jax.random.uniform(key_batch, cumulative.shape[:2], dtype)
            draws = jnp.sum(uniforms[:, :, None] >= cumulative[:, :, :-1], axis=2, dtype=jnp.int32)
            values = values.at[:, batch.nodes].set(draws)
        return values

    internal = lax.fori_loop(0, num_sweeps, sweep, start)
    values = {name: internal[:, i] for i, name in enumerate(split.internal)}
    values |= _draw_leaves(key_leaves, params.graph, split, factors, internal)
    return _as_sample(params.graph, values, num_samples)


def _draw_leaves(
    key: Array, graph: Graph, split: Split, factors: Factors, internal: Int[Array, "n nodes"]
) -> dict[str, Int[Array, " n"]]:
    values: dict[str, Array] = {}
    for number, (stack, logs) in enumerate(zip(split.stacks, factors.leaves, strict=True)):
        num_leaves, size, k = logs.shape
        # One column per leaf and value of its hidden node.
        columns = jnp.exp(jnp.transpose(logs, (1, 0, 2))).reshape(size, num_leaves * k)
        states = internal[:, np.array([leaf.node for leaf in stack])]
        place = states + k * jnp.arange(num_leaves, dtype=jnp.int32)[None, :]
        uniforms = jax.random.uniform(jax.random.fold_in(key, number), place.shape, logs.dtype)
        draws = inverse_cdf(uniforms, columns, place)
        values |= {graph.observed[leaf.column]: draws[:, i] for i, leaf in enumerate(stack)}
    return values
