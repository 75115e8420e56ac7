"""The choice of three views per hidden variable, from which its conditional distributions are found."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from latensor.models.graphical.dependence import Dependence, first_separated
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.structure import Canonical, copies

Group = tuple[str, ...]
"""Observed variables that make one view: their one-hot vectors, stacked."""
Triple = tuple[Group, Group, Group]
"""Three views that are independent given a hidden variable."""

_MOST_TRIPLES = 3
# If no even spread of units over three groups will do, all spreads are tried, with at most this many units.
_MOST_UNITS = 8


class Layout(NamedTuple):
    """A graph in canonical form: its hidden variables and the leaves of each."""

    graph: Graph
    dependence: Dependence
    """That of the hidden variables. Leaves of two hidden variables are separated if the hidden variables are."""
    leaves: dict[str, Group]
    """Of every hidden variable; of one in the place of an observed variable, only the first copy."""
    home: dict[str, str]
    """The hidden variable of every leaf."""


class Choice(NamedTuple):
    """View triples of a hidden variable."""

    triples: tuple[Triple, ...]
    """The most promising first; none if the variable is not a bottleneck."""
    num_views: int
    """Number of independent views, up to three. If it is three without a triple, views have too few values."""


def make_layout(canonical: Canonical) -> Layout:
    """Return the layout of a graph in canonical form."""
    graph = canonical.graph
    superfluous = {copy for name, _ in canonical.replaced for copy in copies(name)[1:]}
    home = {}
    for name in graph.observed:
        (home[name],) = graph.network.pred[name] if graph.is_directed else graph.network[name]
    leaves: dict[str, list[str]] = {name: [] for name in graph.hidden}
    for leaf, hidden in home.items():
        if leaf not in superfluous:
            leaves[hidden].append(leaf)
    own = {hidden: tuple(names) for hidden, names in leaves.items()}
    return Layout(graph, Dependence(graph, hidden_only=True), own, home)


def largest_rank(layout: Layout, group: Iterable[str]) -> int:
    """Return the largest rank that the conditional means of a stacked view can have.

    One-hot vectors of sizes `d₁, d₂, …` span `1 + Σ (dᵢ − 1)` dimensions. Leaves of one hidden variable depend on other
    variables through it alone, so they never span more dimensions than it has values.
    """
    sizes = layout.graph.sizes
    spans: dict[str, int] = {}
    for leaf in group:
        spans[layout.home[leaf]] = spans.get(layout.home[leaf], 0) + sizes[leaf] - 1
    return 1 + sum(min(span, sizes[hidden] - 1) for hidden, span in spans.items())


def choose_triples(layout: Layout, hidden: str) -> Choice:
    """Return up to three triples of views of a hidden variable, the most promising first.

    Each of its own leaves is one unit. Other variables fall into classes that are independent of one another given
    `hidden`; the leaves nearest to `hidden` in each class, stacked, are one more unit. Farther leaves would add more
    noise than information. Units are spread evenly over three groups; alternatives begin elsewhere, or take one node of
    each class only.

    Where a collider makes dependence not transitive, there may be three independent views in fewer than three classes:
    then each view is the leaves of one hidden variable.
    """
    own = [(leaf,) for leaf in layout.leaves[hidden]]
    branches = [[layout.leaves[node] for node in nodes] for nodes in _branches(layout, hidden)]
    stacked = [tuple(itertools.chain(*leaves)) for leaves in branches]
    single = [leaves[0] for leaves in branches]
    spreads = [_spread(own, stacked, 0), _spread(own, single, 0), _spread(own, stacked, 1), _spread(own, stacked, 2)]
    triples = _distinct(layout, hidden, spreads)
    units = own + stacked
    if not triples and 3 <= len(units) <= _MOST_UNITS:
        triples = _distinct(layout, hidden, _all_spreads(units))[:1]
    if triples or not layout.dependence.has_colliders:
        return Choice(triples, min(len(units), 3))
    return _single_nodes(layout, hidden)


def useful_nodes(layout: Layout, hidden: str) -> list[str]:
    """Return the other hidden variables with leaves that depend on `hidden`, the nearest first."""
    dependents = layout.dependence.dependents(hidden)
    near = layout.dependence.distances(hidden)
    return [node for node in near if node != hidden and node in dependents and layout.leaves[node]]


def _branches(layout: Layout, hidden: str) -> list[list[str]]:
    """Return, for each class of hidden variables, those whose leaves make its view, the nearest first."""
    dependence, size = layout.dependence, layout.graph.sizes[hidden]
    nearest = [_behind(layout, hidden, start) for start in dict.fromkeys(dependence.neighbours(hidden))]
    branches = []
    for members in dependence.classes(useful_nodes(layout, hidden), frozenset([hidden])):
        inside, chosen = set(members), set()
        for depths in nearest:
            here = {node: depth for node, depth in depths.items() if node in inside}
            chosen |= {node for node, depth in here.items() if depth == min(here.values())}
        nodes = [node for node in members if node in chosen]
        # Farther nodes only where the near ones cannot tell the values of `hidden` apart.
        for node in members:
            if largest_rank(layout, itertools.chain(*(layout.leaves[near] for near in nodes))) >= size:
                break
            if node not in chosen:
                nodes.append(node)
        branches.append(nodes)
    return branches


def _behind(layout: Layout, hidden: str, start: str) -> dict[str, int]:
    """Return the first nodes with leaves on the way from `hidden` through its neighbour `start`, with their depths."""
    dependents = layout.dependence.dependents(hidden)
    depths, waiting = {start: 0}, [start]
    for node in waiting:
        if not layout.leaves[node]:
            near = (other for other in layout.dependence.neighbours(node) if other != hidden and other in dependents)
            new = [other for other in near if other not in depths]
            depths |= dict.fromkeys(new, depths[node] + 1)
            waiting += dict.fromkeys(new)
    return {node: depth for node, depth in depths.items() if layout.leaves[node]}


def _spread(own: Sequence[Group], branches: Sequence[Group], shift: int) -> list[Group]:
    """Return three groups: own leaves in turn, then branches in turn, `shift` groups farther on."""
    groups: list[list[str]] = [[], [], []]
    for place, unit in enumerate((*own, *branches)):
        groups[(place + (shift if place >= len(own) else 0)) % 3] += unit
    return [tuple(group) for group in groups]


def _all_spreads(units: Sequence[Group]) -> Iterable[list[Group]]:
    # The first unit goes to the first group: the order of groups does not matter.
    for places in itertools.product(range(3), repeat=len(units) - 1):
        where = list(zip((0, *places), units, strict=True))
        yield [tuple(itertools.chain(*(unit for place, unit in where if place == group))) for group in range(3)]


def _distinct(layout: Layout, hidden: str, spreads: Iterable[list[Group]]) -> tuple[Triple, ...]:
    """Return the first few different spreads in which each group can tell the values of `hidden` apart."""
    size = layout.graph.sizes[hidden]
    triples: dict[frozenset[Group], Triple] = {}
    for groups in spreads:
        if all(group and largest_rank(layout, group) >= size for group in groups):
            triples.setdefault(frozenset(tuple(sorted(group)) for group in groups), (groups[0], groups[1], groups[2]))
            if len(triples) == _MOST_TRIPLES:
                break
    return tuple(triples.values())


def _single_nodes(layout: Layout, hidden: str) -> Choice:
    """Return a triple of views each of which is the leaves of one hidden variable, or an own leaf."""
    given, size = frozenset([hidden]), layout.graph.sizes[hidden]

    def are_dependent(one: Group, two: Group) -> bool:
        homes = layout.home[one[0]], layout.home[two[0]]
        return hidden not in homes and homes[1] in layout.dependence.dependents(homes[0], given)

    views: list[Group] = [(leaf,) for leaf in layout.leaves[hidden]]
    views += [layout.leaves[node] for node in useful_nodes(layout, hidden)]
    sufficient = [view for view in views if largest_rank(layout, view) >= size]
    triple = first_separated(sufficient, are_dependent, 3)
    if triple is not None:
        return Choice(((triple[0], triple[1], triple[2]),), 3)
    return Choice((), max(count for count in range(4) if first_separated(views, are_dependent, count) is not None))
