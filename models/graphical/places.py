"""Where the nodes of a drawing are, once it is known which variables have a place and which hang on others as leaves.

Lengths are in units of the drawing, in which a hidden variable is a circle of diameter 0.6.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from latensor.models.graphical.graph import Graph

Point = tuple[float, float]
Points = dict[str, Point]
Extents = Mapping[str, Point]
"""Half the width and half the height of every node."""

LEVEL = 1.15
"""From one row of nodes to the next."""
# Rows of more leaves are two columns.
_MOST_IN_ROW = 8
# From a node to leaves above it or beside it; from the middle of two columns to each of them.
_NEAR, _SPINE = 0.3, 0.4
# For half an arrow.
_ROOM = 0.2
# Leaves go to a side only if no edge is nearer to it than this angle.
_CLEAR = np.radians(50)


class Places(NamedTuple):
    """The middles of nodes, and the points where the edges of leaves end, if these do not point at the middle."""

    points: Points
    anchors: Points

    def moved(self, x: float, y: float) -> "Places":
        """Return the same places elsewhere."""
        return Places(*({name: (old[0] + x, old[1] + y) for name, old in part.items()} for part in self))

    def add(self, other: "Places") -> None:
        """Take over the places of others."""
        self.points.update(other.points)
        self.anchors.update(other.anchors)


class Box(NamedTuple):
    """A rectangle."""

    left: float
    right: float
    bottom: float
    top: float


def leaves_of(graph: Graph) -> dict[str, list[str]]:
    """Return the observed variables that hang on one hidden variable only, by that."""
    network, hidden = graph.network, set(graph.hidden)
    found: dict[str, list[str]] = {}
    for name in graph.observed:
        near = list(network.pred[name] if graph.is_directed else network[name])
        if len(near) == 1 and near[0] in hidden and network.degree(name) == 1:
            found.setdefault(near[0], []).append(name)
    return found


def padding(extent: Point) -> float:
    """Return how much room a node needs on each side: a hidden variable more than a leaf."""
    return 0.55 * extent[1]


def box_around(name: str, hung: Places, extents: Extents) -> Box:
    """Return the box of a node at the origin and of its leaves, with some room."""
    width, height = (extent + max(1.5 * padding(extents[name]), _ROOM) for extent in extents[name])
    boxes = [(-width, width, -height, height)]
    for leaf, (x, y) in hung.points.items():
        width, height = (extent + padding(extents[leaf]) for extent in extents[leaf])
        boxes.append((x - width, x + width, y - height, y + height))
    left, right, bottom, top = zip(*boxes, strict=True)
    return Box(min(left), max(right), min(bottom), max(top))


def side_by_side(names: Sequence[str], extents: Extents) -> list[float]:
    """Return the middles of nodes in a row, whose own middle is at zero."""
    rooms = [extents[name][0] + padding(extents[name]) for name in names]
    ends = 2 * np.cumsum(rooms)
    return [float(end - room - ends[-1] / 2) for end, room in zip(ends, rooms, strict=True)]


def in_two_columns(home: str, own: Sequence[str], extents: Extents) -> Places:
    """Return places of leaves in two columns below a node at the origin; edges pass between the columns."""
    places = Places({}, {})
    spine = _SPINE + 0.06 * ((len(own) - 1) // 2)
    for number, leaf in enumerate(own):
        side = 1 if number % 2 or len(own) == 1 else -1
        width, height = extents[leaf]
        y = -extents[home][1] - 1.5 * height - number // 2 * 2.55 * height
        places.points[leaf] = side * (spine + width), y
        places.anchors[leaf] = side * spine, y
    return places


def in_row(home: str, own: Sequence[str], extents: Extents, *, above: bool = False) -> Places:
    """Return places of leaves in a row below a node at the origin, or above it; of many leaves in two columns."""
    if len(own) > _MOST_IN_ROW:
        return in_two_columns(home, own, extents)
    places, side = Places({}, {}), 1 if above else -1
    for leaf, x in zip(own, side_by_side(own, extents), strict=True):
        places.points[leaf] = x, side * LEVEL
        places.anchors[leaf] = x, side * (LEVEL - extents[leaf][1])
    return places


def _in_column(home: str, own: Sequence[str], extents: Extents, side: int) -> Places:
    """Return places of leaves in a column to the right of a node at the origin, or to the left of it."""
    places, near = Places({}, {}), side * (extents[home][0] + _NEAR)
    for number, leaf in enumerate(own):
        width, height = extents[leaf]
        y = ((len(own) - 1) / 2 - number) * 2.55 * height
        places.points[leaf], places.anchors[leaf] = (near + side * width, y), (near, y)
    return places


def _where_clear(home: str, own: Sequence[str], around: Sequence[Point], extents: Extents) -> Places:
    """Return places of leaves on the side of a node at the origin that is farthest from its edges to `around`."""
    angles = [np.arctan2(y, x) for x, y in around]

    def clearance(side: float) -> float:
        return min((abs(np.angle(np.exp(1j * (angle - side)))) for angle in angles), default=np.pi)

    # Below, above, right, left: the first of those that are equally clear.
    sides = [-np.pi / 2, np.pi / 2, 0.0, np.pi]
    best = max(range(4), key=lambda number: round(clearance(sides[number]), 3))
    if clearance(sides[best]) < _CLEAR:
        return in_two_columns(home, own, extents)
    if best < 2:
        return in_row(home, own, extents, above=best == 1)
    return _in_column(home, own, extents, 1 if best == 2 else -1)


def at_places(graph: Graph, given: Mapping[str, Point], extents: Extents, *, is_grid: bool = False) -> Places:
    """Return the given places, scaled so that no nodes overlap, and places of leaves beside their nodes.

    In a grid, where edges lead to all four sides, leaves are in two columns below; otherwise where there is room.
    """
    hung, leaves, network = {}, leaves_of(graph), graph.network.to_undirected()
    for name, (x_own, y_own) in given.items():
        absent = [leaf for leaf in leaves.get(name, ()) if leaf not in given]
        around = [(given[other][0] - x_own, given[other][1] - y_own) for other in network[name] if other in given]
        hung[name] = in_two_columns(name, absent, extents) if is_grid else _where_clear(name, absent, around, extents)
    left, right, bottom, top = np.array([box_around(name, hung[name], extents) for name in given]).T
    x, y = np.array(list(given.values()), float).T
    over, above = x[:, None] > x[None, :], y[:, None] > y[None, :]
    # Boxes do not overlap if they are far enough from each other in one of the two directions.
    needed_x = np.where(over, right[None, :] - left[:, None], right[:, None] - left[None, :])
    needed_y = np.where(above, top[None, :] - bottom[:, None], top[:, None] - bottom[None, :])
    with np.errstate(divide="ignore"):
        scales = np.minimum(needed_x / np.abs(x[:, None] - x[None, :]), needed_y / np.abs(y[:, None] - y[None, :]))
    np.fill_diagonal(scales, 0)
    scale = float(np.max(scales)) or 1.0
    places = Places({}, {})
    for name, (x_given, y_given) in given.items():
        where = scale * x_given, scale * y_given
        places.points[name] = where
        places.add(hung[name].moved(*where))
    return places
