"""Drawings of graphs and of their plans."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from latensor.models.graphical.arrangement import arrange
from latensor.models.graphical.artists import (
    FILL,
    GREY,
    INK,
    Look,
    Shape,
    add_curve,
    add_edge,
    add_node,
    boundary,
    curve,
    limits,
    shape_of,
)
from latensor.models.graphical.graph import Graph, Node
from latensor.models.graphical.places import Points, leaves_of
from latensor.models.graphical.plan import Plan
from latensor.models.graphical.structure import copies

_VIEWS = ("#3b6fb6", "#d9822b", "#4c9a5f")
_TINTS = ("#cfdff4", "#fbdfc0", "#cfe9d5")
_FAR, _SHARED = (_VIEWS[1], ":"), (_VIEWS[2], "--")
# Of a new figure: per unit of the drawing, at most, per line of the legend, and the width of one with a legend.
_INCHES, _MOST_INCHES, _INCHES_LEGEND, _INCHES_WIDE = 0.62, 14.0, 0.2, 3.4
# A legend names this many variables of a view.
_MOST_NAMED = 4


class _Marks(NamedTuple):
    """What a drawing says about a plan."""

    view: dict[str, int]
    """The number of the view that an observed variable is in."""
    links: dict[tuple[str, str], tuple[str, str]]
    """Curves between two nodes: colour and style."""
    legend: dict[str, tuple[str, str]]
    """By label, the colours of a patch, or the colour and style of a line."""


def draw(
    graph: Graph | Plan,
    *,
    axis: Any = None,
    focus: str | None = None,
    positions: Mapping[str, Any] | None = None,
) -> Any:
    """Draw a graph, or the plan of its estimate. Needs matplotlib, which latensor does not install by itself.

    Hidden variables are dark circles (rounded boxes, if their names are long), observed ones white boxes. Edges of a
    directed graph are arrows. Of a plan, with `focus`, the three views of this hidden variable are coloured, those of
    the first triple. Without `focus`, dotted lines lead from hidden variables to their exclusive views, unless these
    are leaves of their own; dashed lines connect variables that have too few views with those whose parameters they
    share.

    Grids with names such as `h1,1`, chains, trees, and directed graphs in layers are laid out as such; any other graph
    by its distances. Everything but the legend scales with the axis.

    Args:
      graph: a `Graph`, or its `Plan`.
      axis: the matplotlib axis to draw on (default: that of a new figure).
      focus: the name of a hidden variable; for a plan only.
      positions: the place `(x, y)` of every variable, in any unit: places are scaled so that no two variables overlap.
        Observed variables with a single neighbour, a hidden one, may be left out.

    Returns:
      The axis. Artists of a node have its name as their `gid`, those of an edge `"a b"`.

    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("draw needs matplotlib: pip install matplotlib, or pip install 'latensor[bench]'") from None
    if not isinstance(graph, Graph | Plan):
        raise ValueError(f"graph: expected a Graph or a Plan; got {type(graph).__name__}")
    drawn = graph.graph if isinstance(graph, Plan) else graph
    if axis is not None and not hasattr(axis, "add_patch"):
        raise ValueError(f"axis: expected one matplotlib axis; got {type(axis).__name__}")
    given = None if positions is None else _check_positions(drawn, positions)
    marks = _marks(graph, focus)
    shapes = {node.name: shape_of(node.name, node.hidden) for node in drawn.nodes}
    points, anchors = arrange(drawn, {name: shape.extent for name, shape in shapes.items()}, given)
    curves = {pair: curve(points[pair[0]], points[pair[1]]) for pair in marks.links}
    axis = _prepare(axis, *limits(points, shapes, list(curves.values())), len(marks.legend))
    for (one, two), (colour, style) in marks.links.items():
        add_curve(axis, curves[one, two], colour=colour, style=style, gid=f"{one} {two}")
    _draw_edges(axis, drawn, points, anchors, shapes, INK if focus is None else GREY)
    for node in drawn.nodes:
        add_node(axis, node.name, points[node.name], shapes[node.name], _look(node, marks.view, focus))
    if marks.legend:
        _add_legend(axis, marks)
    return axis


def _check_positions(graph: Graph, positions: Mapping[str, Any]) -> Points:
    if not isinstance(positions, Mapping):
        raise ValueError(f"positions: expected places by the names of nodes, a dict; got {type(positions).__name__}")
    unknown = next((name for name in positions if name not in graph.sizes), None)
    if unknown is not None:
        raise ValueError(f"positions: expected names of nodes; got {unknown!r}")
    leaves = {leaf for own in leaves_of(graph).values() for leaf in own}
    missing = next((name for name in graph.sizes if name not in positions and name not in leaves), None)
    if missing is not None:
        raise ValueError(f"positions: expected a place for every node but leaves; {missing!r} is missing")
    checked: Points = {}
    taken: dict[tuple[float, float], str] = {}
    for name, given in positions.items():
        try:
            place = np.asarray(given, float)
        except (TypeError, ValueError):
            place = np.zeros(0)
        if place.shape != (2,) or not np.all(np.isfinite(place)):
            raise ValueError(f"positions[{name!r}]: expected two finite numbers; got {given!r}")
        checked[name] = float(place[0]), float(place[1])
        other = taken.setdefault(checked[name], name)
        if other != name:
            raise ValueError(f"positions[{name!r}]: expected a place of its own; got that of {other!r}")
    return checked


def _marks(graph: Graph | Plan, focus: str | None) -> _Marks:
    if not isinstance(graph, Plan):
        if focus is not None:
            raise ValueError(f"focus: expected None for a Graph, whose plan has the views; got {focus!r}")
        return _Marks({}, {}, {})
    if focus is None:
        return _marks_of_all(graph)
    if focus not in graph.graph.hidden:
        raise ValueError(f"focus: expected the name of a hidden node; got {focus!r}")
    return _marks_of_one(graph, focus)


def _originals(plan: Plan) -> dict[str, str]:
    """Return which nodes of the graph stand for those that its canonical form adds."""
    names = {star: name for name, star in plan.replaced}
    return names | {copy: name for name, _ in plan.replaced for copy in copies(name)}


def _marks_of_one(plan: Plan, focus: str) -> _Marks:
    """Return the three views of a hidden variable, or whose parameters it shares."""
    views, names = next(views for views in plan.views if views.hidden == focus), _originals(plan)
    if views.like is not None:
        label = f"{focus}: shared parameters of {views.like} in place of views"
        return _Marks({}, {(focus, views.like): _SHARED}, {label: _SHARED})
    view: dict[str, int] = {}
    legend = {}
    for number, group in enumerate(views.triples[0]):
        members = [names.get(leaf, leaf) for leaf in group]
        more = f" and {len(members) - _MOST_NAMED} more" if len(members) > _MOST_NAMED else ""
        legend[f"view {number + 1}: {' '.join(members[:_MOST_NAMED])}{more}"] = _TINTS[number], _VIEWS[number]
        view |= dict.fromkeys(members, number)
    return _Marks(view, {}, legend)


def _marks_of_all(plan: Plan) -> _Marks:
    """Return from where hidden variables have what their own leaves do not tell."""
    names, network, links, legend = _originals(plan), plan.canonical.network, {}, {}
    for subset in plan.subsets:
        for hidden, group in zip(subset.hidden, subset.views, strict=True):
            for leaf in group:
                if not network.has_edge(hidden, leaf) and not network.has_edge(leaf, hidden):
                    links[names.get(hidden, hidden), names.get(leaf, leaf)] = _FAR
                    legend["exclusive view that is not a leaf of its own"] = _FAR
    for views in plan.views:
        if views.like is not None:
            links[views.hidden, views.like] = _SHARED
            legend["shared parameters in place of views"] = _SHARED
    return _Marks({}, links, legend)


def _prepare(axis: Any, low: np.ndarray, high: np.ndarray, legend_lines: int) -> Any:
    """Return the axis, or that of a new figure, with room for the drawing."""
    if axis is None:
        from matplotlib import pyplot

        width, height = np.maximum(min(_INCHES, _MOST_INCHES / np.max(high - low)) * (high - low), 0.8)
        if legend_lines:
            width, height = max(width, _INCHES_WIDE), height + _INCHES_LEGEND * (legend_lines + 1)
        _, axis = pyplot.subplots(figsize=(width, height), layout="constrained")
    axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axis.set_axis_off()
    return axis


def _draw_edges(
    axis: Any, graph: Graph, points: Points, anchors: Points, shapes: Mapping[str, Shape], colour: str
) -> None:
    for one, two in graph.network.edges:
        start, end = (
            anchors.get(name) or boundary(points[name], shapes[name], anchors.get(other, points[other]))
            for name, other in ((one, two), (two, one))
        )
        add_edge(axis, start, end, arrow=graph.is_directed, colour=colour, gid=f"{one} {two}")


def _look(node: Node, view: Mapping[str, int], focus: str | None) -> Look:
    if node.name in view:
        return Look(_TINTS[view[node.name]], _VIEWS[view[node.name]], INK)
    is_grey = focus is not None and node.name != focus
    if node.hidden:
        colour = GREY if is_grey else FILL
        return Look(colour, colour, "white")
    return Look("white", GREY if is_grey else INK, "#8a8a8a" if is_grey else INK)


def _add_legend(axis: Any, marks: _Marks) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for label, (one, two) in marks.legend.items():
        line: dict[str, Any] = {"color": one, "linestyle": two, "linewidth": 1.4, "label": label}
        handles.append(Patch(facecolor=one, edgecolor=two, label=label) if marks.view else Line2D([], [], **line))
    axis.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), frameon=False, fontsize=8, handlelength=1.8
    )
