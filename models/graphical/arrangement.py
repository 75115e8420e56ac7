"""The arrangement of a drawing: grids by cells, chains in rows, trees by levels, other graphs by their distances."""

import re
from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np

from latensor.models.graphical.graph import Graph
from latensor.models.graphical.places import (
    LEVEL,
    Extents,
    Places,
    Point,
    Points,
    at_places,
    box_around,
    in_row,
    leaves_of,
    padding,
    side_by_side,
)

_STEPS, _SWEEPS = 300, 4
# Edges of a tree fall by at least this much for each unit that they go sideways.
_SLOPE = 0.4


def arrange(graph: Graph, extents: Extents, positions: Mapping[str, Point] | None = None) -> Places:
    """Return places at which no two nodes overlap.

    Args:
      graph: the graph.
      extents: half the width and half the height of every node.
      positions: places of nodes, in any unit; leaves that are not among them are put beside their hidden variables.

    """
    if positions is not None:
        return at_places(graph, positions, extents)
    leaves, around = leaves_of(graph), graph.network.to_undirected()
    hanging = {leaf for own in leaves.values() for leaf in own}
    inner = around.subgraph([node.name for node in graph.nodes if node.name not in hanging])
    cells = _cells(inner)
    if cells is not None:
        return at_places(graph, cells, extents, is_grid=True)
    places, right = Places({}, {}), 0.0
    for part in nx.connected_components(around):
        members = [node.name for node in graph.nodes if node.name in part]
        one = _arrange_part(graph, members, inner.subgraph(part), leaves, extents)
        left = min(x - extents[name][0] for name, (x, _) in one.points.items())
        places.add(one.moved(right - left, 0.0))
        right = max(places.points[name][0] + extents[name][0] for name in members) + LEVEL / 2
    return places


def _cells(inner: Any) -> Points | None:
    """Return the places of nodes called `h1,1` (row, column) and so on; `None` if there are others."""
    matches = {name: re.fullmatch(r"\D*(\d+),(\d+)", name) for name in inner}
    cells = {name: (float(match[2]), -0.75 * float(match[1])) for name, match in matches.items() if match}
    return cells if len(set(cells.values())) == len(inner) > 1 else None


def _arrange_part(
    graph: Graph, members: list[str], inner: Any, leaves: Mapping[str, list[str]], extents: Extents
) -> Places:
    """Return places of a connected graph; `inner` is the graph without leaves, its edges without directions."""
    part, is_tree = graph.network.subgraph(members), nx.is_tree(inner)
    # A row has arrows along it; two that lead away from a node are a tree.
    branches = graph.is_directed and max(degree for _, degree in part.subgraph(inner).out_degree) > 1
    if is_tree and not branches and max(degree for _, degree in inner.degree) <= 2:
        return _along(graph, inner, leaves, extents)
    if graph.is_directed and max(degree for _, degree in part.in_degree) > 1:
        layers = [sorted(layer, key=members.index) for layer in nx.topological_generations(part)]
        depth = {name: level for level, layer in enumerate(layers) for name in layer}
        if all(depth[child] == depth[parent] + 1 for parent, child in part.edges):
            return _in_layers(part, layers, extents)
    if is_tree:
        return _in_levels(graph, inner, leaves, extents)
    return at_places(graph, _by_distance(graph, [name for name in members if name in inner]), extents)


def _along(graph: Graph, inner: Any, leaves: Mapping[str, list[str]], extents: Extents) -> Places:
    """Return places of a chain in a row, leaves below it."""
    end = next(node.name for node in graph.nodes if node.name in inner and inner.degree(node.name) < 2)
    places, right = Places({}, {}), 0.0
    for name in nx.dfs_preorder_nodes(inner, end):
        hung = in_row(name, leaves.get(name, ()), extents)
        box = box_around(name, hung, extents)
        places.points[name] = right - box.left, 0.0
        places.add(hung.moved(right - box.left, 0.0))
        right += box.right - box.left
    return places


def _in_levels(graph: Graph, inner: Any, leaves: Mapping[str, list[str]], extents: Extents) -> Places:
    """Return places of a tree, subtrees as near to each other as their outlines allow (Reingold, Tilford 1981)."""
    names = [node.name for node in graph.nodes if node.name in inner]
    roots = [name for name in names if graph.is_directed and not graph.network.in_degree(name)]
    root = (roots or [name for name in names if name in nx.center(inner)])[0]
    order, below = [root], {}
    for name in order:
        children = sorted((other for other in inner[name] if other not in order), key=names.index)
        order += children
        own = leaves.get(name, [])
        # Of a node with other nodes below it, half of the leaves are on each side of them.
        below[name] = [*own[: len(own) // 2], *children, *own[len(own) // 2 :]] if children else []
    hung = {name: in_row(name, leaves.get(name, ()), extents) for name in order if not below[name]}
    offsets = _offsets(order, below, hung, extents)
    widest = dict.fromkeys(range(len(order) + 1), 0.0)
    x, depth = {root: 0.0}, {root: 0}
    for name in order:
        for other in below[name]:
            x[other], depth[other] = x[name] + offsets[other], depth[name] + 1
            widest[depth[other]] = max(widest[depth[other]], abs(offsets[other]))
    heights = np.cumsum([max(LEVEL, _SLOPE * widest[level]) if level else 0.0 for level in widest])
    places = Places({}, {})
    for name in x:
        y = -float(heights[depth[name]])
        places.points[name] = x[name], y
        if name in hung:
            places.add(hung[name].moved(x[name], y))
        elif name not in below:
            places.anchors[name] = x[name], y + extents[name][1]
    return places


def _offsets(
    order: list[str], below: Mapping[str, list[str]], hung: Mapping[str, Places], extents: Extents
) -> dict[str, float]:
    """Return how far each node of a tree is to the right of the one above it."""
    offsets: dict[str, float] = {}
    outlines: dict[str, list[Point]] = {}

    def outline(name: str) -> list[Point]:
        room = extents[name][0] + padding(extents[name])
        return outlines.get(name, [(-room, room)])

    for name in reversed(order):
        if name in hung:
            box = box_around(name, hung[name], extents)
            # Two columns of leaves reach down several levels.
            levels = int(np.ceil(-box.bottom / LEVEL))
            outlines[name] = outline(name) + [(box.left, box.right)] * levels * bool(hung[name].points)
            continue
        merged: list[Point] = []
        for child in below[name]:
            own = outline(child)
            offsets[child] = max((old[1] - new[0] for old, new in zip(merged, own, strict=False)), default=0.0)
            moved = [(left + offsets[child], right + offsets[child]) for left, right in own]
            both = [(min(old[0], new[0]), max(old[1], new[1])) for old, new in zip(merged, moved, strict=False)]
            merged = [*both, *merged[len(both) :], *moved[len(both) :]]
        middle = (offsets[below[name][0]] + offsets[below[name][-1]]) / 2
        offsets |= {child: offsets[child] - middle for child in below[name]}
        outlines[name] = outline(name) + [(left - middle, right - middle) for left, right in merged]
    return offsets


def _in_layers(network: Any, layers: list[list[str]], extents: Extents) -> Places:
    """Return places of a directed graph whose edges all lead to the next layer: near neighbours, with few crossings."""
    x: dict[str, float] = {}
    for layer in layers:
        x |= dict(zip(layer, side_by_side(layer, extents), strict=True))
    for near in _SWEEPS * (network.pred, network.succ):
        for layer in layers:
            wanted = {name: float(np.mean([x[other] for other in near[name] or [name]])) for name in layer}
            layer.sort(key=lambda name: wanted[name])
            right, moved = -np.inf, {}
            for name in layer:
                room = extents[name][0] + padding(extents[name])
                moved[name] = max(wanted[name], right + room)
                right = moved[name] + room
            shift = np.mean([wanted[name] - moved[name] for name in layer])
            x |= {name: float(place + shift) for name, place in moved.items()}
    gap = max(LEVEL, _SLOPE * max(abs(x[one] - x[two]) for one, two in network.edges))
    return Places({name: (x[name], -gap * level) for level, layer in enumerate(layers) for name in layer}, {})


def _by_distance(graph: Graph, members: list[str]) -> Points:
    """Return places whose distances are about those in the graph: stress majorization (Gansner, Koren, North 2004)."""
    network = graph.network.subgraph(members)
    around = network.to_undirected()
    lengths = [nx.single_source_shortest_path_length(around, name) for name in members]
    wanted, number = np.array([[length[name] for name in members] for length in lengths], float), len(members)
    # The start is that of classical scaling, with a little noise: two nodes may have the same distances to all others.
    centre = np.eye(number) - 1 / number
    values, vectors = np.linalg.eigh(-centre @ wanted**2 @ centre / 2)
    points = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0)) + 0.05 * np.random.default_rng(0).normal(
        size=(number, 2)
    )
    np.fill_diagonal(wanted, 1)
    weights = 1 / wanted**2 - np.eye(number)
    inverse = np.linalg.pinv(np.diag(weights.sum(axis=1)) - weights)
    for _ in range(_STEPS):
        apart = np.linalg.norm(points[:, None] - points[None, :], axis=2) + np.eye(number)
        pull = weights * wanted / np.maximum(apart, 1e-9)
        points = inverse @ (np.diag(pull.sum(axis=1)) - pull) @ points
    # The long side is horizontal, as names are; edges of a directed graph lead downwards, or the first node is above.
    points = points @ np.linalg.svd(points, full_matrices=False)[2].T
    place = {name: i for i, name in enumerate(members)}
    fall = (
        sum(points[place[a], 1] - points[place[b], 1] for a, b in network.edges) if graph.is_directed else points[0, 1]
    )
    points = points * np.array([1.0, 1.0 if fall >= 0 else -1.0])
    return {name: (float(x), float(y)) for name, (x, y) in zip(members, points, strict=True)}
