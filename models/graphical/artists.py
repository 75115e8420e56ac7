"""The parts of a drawing, all of them in units of the drawing, so that letters and arrows scale with the axis.

matplotlib is imported where it is used: it is not needed for anything else.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from latensor.models.graphical.places import Point, Points

INK, GREY, FILL = "#222222", "#b8b8b8", "#46566e"
# A hidden variable is a circle of diameter 0.6, or a box if its name would need smaller letters than these.
_RADIUS, _LETTERS, _LEAST_LETTERS, _PADDING = 0.3, 0.2, 0.15, 0.07
_HEAD = 0.15
# How far a curve strays from the straight line: relative to its length, and at most.
_BEND, _MOST_BEND = 0.22, 0.8


class Shape(NamedTuple):
    """The outline of a node, and the size of its letters."""

    extent: Point
    """Half the width and half the height."""
    is_circle: bool
    letters: float


class Look(NamedTuple):
    """The colours of a node."""

    fill: str
    edge: str
    ink: str


def _letters(name: str, size: float) -> tuple[Any, float, float]:
    """Return the outlines of letters, and how far they go to the left and to the right."""
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    text = name if name.strip() else repr(name)
    # Made large: outlines are rounded to fractions of a point. Dollars are dollars, not mathematics.
    path = TextPath((0, 0), text.replace("$", r"\$"), size=100).transformed(Affine2D().scale(size / 100))
    box = path.get_extents()
    return path, box.x0, box.x1


def shape_of(name: str, hidden: bool) -> Shape:
    """Return the shape of a node: a circle if it is hidden and its name short, otherwise a box."""
    _, left, right = _letters(name, _LETTERS)
    width = right - left
    letters = _LETTERS * min(1.0, (2 * _RADIUS - _PADDING) / max(width, _PADDING))
    if hidden and letters >= _LEAST_LETTERS:
        return Shape((_RADIUS, _RADIUS), True, letters)
    return Shape((max(width / 2, _PADDING) + _PADDING, _RADIUS if hidden else _RADIUS / 2), False, _LETTERS)


def boundary(middle: Point, shape: Shape, towards: Point) -> Point:
    """Return where the line from the middle of a node to another point leaves the node."""
    dx, dy = towards[0] - middle[0], towards[1] - middle[1]
    if shape.is_circle:
        share = _RADIUS / max(float(np.hypot(dx, dy)), 1e-9)
    else:
        share = 1 / max(abs(dx) / shape.extent[0], abs(dy) / shape.extent[1], 1e-9)
    return middle[0] + share * dx, middle[1] + share * dy


def add_edge(axis: Any, start: Point, end: Point, *, arrow: bool, colour: str, gid: str) -> None:
    """Draw a line, or an arrow, between two points."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Polygon

    tip = np.array(end)
    if arrow:
        along = (tip - start) / max(float(np.linalg.norm(tip - start)), 1e-9)
        base, across = tip - _HEAD * along, np.array([-along[1], along[0]])
        corners = [tip, base + _HEAD / 3 * across, base - _HEAD / 3 * across]
        axis.add_patch(Polygon(corners, facecolor=colour, linewidth=0, zorder=2, gid=gid))
        tip = base
    axis.add_line(Line2D([start[0], tip[0]], [start[1], tip[1]], color=colour, linewidth=1, zorder=1, gid=gid))


def add_node(axis: Any, name: str, middle: Point, shape: Shape, look: Look) -> None:
    """Draw a node with its name inside."""
    from matplotlib.patches import Circle, FancyBboxPatch, PathPatch
    from matplotlib.transforms import Affine2D

    x, y = middle
    width, height = shape.extent
    style: dict[str, Any] = {"facecolor": look.fill, "edgecolor": look.edge, "linewidth": 1, "zorder": 3, "gid": name}
    if shape.is_circle:
        axis.add_patch(Circle(middle, _RADIUS, **style))
    else:
        corners = f"round,pad=0,rounding_size={height / 2}"
        axis.add_patch(FancyBboxPatch((x - width, y - height), 2 * width, 2 * height, boxstyle=corners, **style))
    letters, left, right = _letters(name, shape.letters)
    # By the line that letters stand on, not by their height: names in a row stand on one line.
    moved = letters.transformed(Affine2D().translate(x - (left + right) / 2, y - 0.35 * shape.letters))
    axis.add_patch(PathPatch(moved, facecolor=look.ink, linewidth=0, zorder=4, gid=name))


def curve(start: Point, end: Point) -> np.ndarray:
    """Return the three control points of a curve that passes above the straight line between two points."""
    one, two = sorted((np.array(start), np.array(end)), key=tuple)
    along = two - one
    length = max(float(np.linalg.norm(along)), 1e-9)
    # A quadratic curve goes half the way to its control point.
    away = 2 * min(_BEND, _MOST_BEND / length) * np.array([-along[1], along[0]])
    return np.array([one, (one + two) / 2 + away, two])


def add_curve(axis: Any, control: np.ndarray, *, colour: str, style: str, gid: str) -> None:
    """Draw a curve behind everything else."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    path = Path(control, [Path.MOVETO, Path.CURVE3, Path.CURVE3])
    look: dict[str, Any] = {"edgecolor": colour, "linestyle": style, "linewidth": 1.4, "zorder": 0, "gid": gid}
    axis.add_patch(PathPatch(path, facecolor="none", **look))


def limits(points: Points, shapes: dict[str, Shape], curves: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower left and the upper right corner of a drawing."""
    middles, extents = (
        np.array(part) for part in ([points[name] for name in shapes], [s.extent for s in shapes.values()])
    )
    low, high = [middles - extents], [middles + extents]
    for control in curves:
        # The middle of the curve: its ends are in nodes.
        middle = control[[1]] / 2 + (control[[0]] + control[[2]]) / 4
        low.append(middle)
        high.append(middle)
    return np.min(np.concatenate(low), axis=0) - 0.1, np.max(np.concatenate(high), axis=0) + 0.1
