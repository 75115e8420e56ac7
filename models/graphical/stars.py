"""Stars of an undirected graph: a hidden node with its hidden neighbours, and where its log-potentials are.

The log-potentials of the hidden cliques are one vector, so that those of many nodes are one gather: a grid of a
hundred nodes compiles as fast as one of nine.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from latensor.models.graphical.graph import Graph


@functools.lru_cache(maxsize=256)
def hidden_cliques(graph: Graph) -> tuple[int, ...]:
    """Return the cliques all of whose nodes are hidden, by their numbers."""
    hidden = set(graph.hidden)
    return tuple(number for number, clique in enumerate(graph.cliques) if hidden.issuperset(clique))


@functools.lru_cache(maxsize=256)
def star_nodes(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Return for every hidden node itself and its hidden neighbours, in the order of the graph: the axes of a star."""
    hidden = set(graph.hidden)
    neighbours: dict[str, set[str]] = {name: set() for name in graph.hidden}
    for number in hidden_cliques(graph):
        for name in graph.cliques[number]:
            neighbours[name] |= set(graph.cliques[number]) & hidden - {name}
    place = {name: i for i, name in enumerate(graph.hidden)}
    return tuple((name, *sorted(neighbours[name], key=lambda other: place[other])) for name in graph.hidden)


class Layout(NamedTuple):
    """Where the log-potentials of hidden cliques are in one vector; shared ones are there once."""

    offsets: dict[int, int]
    """The first entry of every hidden clique, by its number."""
    size: int


@functools.lru_cache(maxsize=256)
def lay_out(graph: Graph) -> Layout:
    """Return the places of the log-potentials of hidden cliques in one vector."""
    first_of = {number: group[0] for group in graph.shared for number in group}
    offsets: dict[int, int] = {}
    starts: dict[int, int] = {}
    size = 0
    for number in hidden_cliques(graph):
        owner = first_of.get(number, number)
        if owner not in starts:
            starts[owner] = size
            size += math.prod(graph.shapes[number])
        offsets[number] = starts[owner]
    return Layout(offsets, size)


@functools.lru_cache(maxsize=256)
def stack_cliques(graph: Graph) -> tuple[tuple[tuple[int, ...], Int[np.ndarray, "cliques ..."]], ...]:
    """Return the hidden cliques of each shape, as places among the hidden cliques, and their entries in the vector."""
    layout = lay_out(graph)
    stacks: dict[tuple[int, ...], list[tuple[int, np.ndarray]]] = {}
    for place, number in enumerate(hidden_cliques(graph)):
        shape = graph.shapes[number]
        index = layout.offsets[number] + np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
        stacks.setdefault(shape, []).append((place, index))
    return tuple(
        (tuple(place for place, _ in stack), np.stack([index for _, index in stack])) for stack in stacks.values()
    )


def unstack_cliques(graph: Graph, stacks: Sequence[Float[Array, "_ ..."]]) -> tuple[Float[Array, "..."], ...]:
    """Return the tables of the hidden cliques, in the order of the graph, from one array per shape."""
    tables: dict[int, Array] = {}
    for (places, _), stack in zip(stack_cliques(graph), stacks, strict=True):
        tables |= {place: stack[i] for i, place in enumerate(places)}
    return tuple(tables[place] for place in sorted(tables))


class StarGroup(NamedTuple):
    """Stars with the same shapes."""

    stars: tuple[int, ...]
    """Their places among the hidden nodes."""
    terms: tuple[Int[np.ndarray, "stars ..."], ...]
    """For every clique of the central node, where its entries are in the vector: one axis per node of a star, of length
    one where the potential does not depend on it."""


@functools.lru_cache(maxsize=64)
def group_stars(graph: Graph) -> tuple[StarGroup, ...]:
    """Return all stars, those of the same shape and with cliques in the same places in one group."""
    layout, stars = lay_out(graph), star_nodes(graph)
    groups: dict[Any, list[tuple[int, list[int]]]] = {}
    for place, star in enumerate(stars):
        cliques = [number for number in hidden_cliques(graph) if star[0] in graph.cliques[number]]
        # Cliques in the order of the star's nodes: in a grid, all inner nodes then look the same.
        cliques.sort(key=lambda number: sorted(star.index(name) for name in graph.cliques[number]))
        scopes = tuple(tuple(sorted(star.index(name) for name in graph.cliques[number])) for number in cliques)
        shape = tuple(graph.sizes[name] for name in star)
        groups.setdefault((shape, scopes), []).append((place, cliques))

    def index(place: int, number: int) -> np.ndarray:
        star, clique, shape = stars[place], graph.cliques[number], graph.shapes[number]
        total = np.full((1,) * len(star), layout.offsets[number], np.int32)
        for axis, name in enumerate(clique):
            step = math.prod(shape[axis + 1 :])
            along = [shape[axis] if other == name else 1 for other in star]
            total = total + step * np.arange(shape[axis], dtype=np.int32).reshape(along)
        return total

    return tuple(
        StarGroup(
            tuple(place for place, _ in members),
            tuple(np.stack([index(place, cliques[i]) for place, cliques in members]) for i in range(len(scopes))),
        )
        for (_, scopes), members in groups.items()
    )
