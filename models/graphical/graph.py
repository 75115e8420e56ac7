"""The description of a graph: its nodes, which of them are hidden, and the cliques that have parameters."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import networkx as nx

from latensor.base import check_integer

# A message lists this many nodes.
_MOST_NAMES = 8


class Node(NamedTuple):
    """A variable with the values `0, 1, …, size − 1`."""

    name: str
    size: int
    hidden: bool


@jax.tree_util.register_static
@dataclass(frozen=True)
class Graph:
    """A directed or undirected graph of categorical variables, hidden or observed.

    Make one by `directed` or `undirected`. Immutable and hashable; to JAX it is structure, not data.
    """

    nodes: tuple[Node, ...]
    """In the order that they were given; columns of data are the observed ones in this order."""
    cliques: tuple[tuple[str, ...], ...]
    """What has parameters: of a directed graph, `(child, *parents)` of every node in the order of the nodes; of an
    undirected one, sets of nodes."""
    is_directed: bool
    shared: tuple[tuple[int, ...], ...] = ()
    """Groups of cliques, by their numbers, that have the same parameters."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The number of values of every node."""
        return {node.name: node.size for node in self.nodes}

    @cached_property
    def hidden(self) -> tuple[str, ...]:
        """The names of the hidden nodes."""
        return tuple(node.name for node in self.nodes if node.hidden)

    @cached_property
    def observed(self) -> tuple[str, ...]:
        """The names of the observed nodes: the columns of data."""
        return tuple(node.name for node in self.nodes if not node.hidden)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of every clique's table."""
        return tuple(tuple(self.sizes[name] for name in clique) for clique in self.cliques)

    @cached_property
    def network(self) -> Any:
        """The graph as one of networkx: edges from parents to children, or between any two nodes of a clique."""
        network = nx.DiGraph() if self.is_directed else nx.Graph()
        network.add_nodes_from(node.name for node in self.nodes)
        for clique in self.cliques:
            if self.is_directed:
                network.add_edges_from((parent, clique[0]) for parent in clique[1:])
            else:
                network.add_edges_from((a, b) for i, a in enumerate(clique) for b in clique[:i])
        return network


def directed(
    parents: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
    hidden: Collection[str],
    *,
    shared: Iterable[Sequence[str]] = (),
) -> Graph:
    """Return a directed graph.

    Args:
      parents: the parents of every node, `[]` for a root. Columns of data are the observed nodes in this order.
      sizes: the number of values of every node.
      hidden: the names of the nodes that are not observed.
      shared: groups of nodes that have the same table given their parents, such as the emissions of a hidden Markov
        model.

    """
    if not isinstance(parents, Mapping):
        raise ValueError(f"parents: expected the parents of every node, by name; got {type(parents).__name__}")
    nodes = _check_nodes("parents", list(parents), sizes, hidden)
    cliques = []
    for child, above in parents.items():
        _check_list(f"parents[{child!r}]", above)
        _check_members(f"parents[{child!r}]", above, sizes, child)
        cliques.append((child, *above))
    graph = Graph(nodes, tuple(cliques), True)
    if not nx.is_directed_acyclic_graph(graph.network):
        cycle = " → ".join(edge[0] for edge in nx.find_cycle(graph.network))
        raise ValueError(f"parents: expected no cycle; got {cycle} → {cycle.split(' → ')[0]}")
    place = {node.name: i for i, node in enumerate(nodes)}
    groups = []
    for group in _check_list("shared", shared):
        _check_list("shared", group)
        unknown = next((name for name in group if name not in place), None)
        if unknown is not None:
            raise ValueError(f"shared: expected names of nodes; got {unknown!r}")
        groups.append(tuple(place[name] for name in group))
    return _with_shared(graph, groups)


def undirected(
    cliques: Iterable[Sequence[str]],
    sizes: Mapping[str, int],
    hidden: Collection[str],
    *,
    shared: Iterable[Sequence[int]] = (),
) -> Graph:
    """Return an undirected graph.

    Args:
      cliques: sets of nodes; each has a potential, a table of positive numbers.
      sizes: the number of values of every node. Columns of data are the observed nodes in this order.
      hidden: the names of the nodes that are not observed.
      shared: groups of cliques, by their numbers, that have the same potential.

    """
    nodes = _check_nodes("sizes", list(sizes), sizes, hidden)
    found: list[tuple[str, ...]] = []
    for number, clique in enumerate(_check_list("cliques", cliques)):
        _check_list(f"cliques[{number}]", clique)
        _check_members(f"cliques[{number}]", clique, sizes)
        if not clique or any(set(clique) == set(other) for other in found):
            what = "nothing" if not clique else f"{tuple(clique)} twice"
            raise ValueError(f"cliques[{number}]: expected names that no clique before has; got {what}")
        found.append(tuple(clique))
    graph = Graph(nodes, tuple(found), False)
    groups = []
    for group in _check_list("shared", shared):
        _check_list("shared", group)
        groups.append(tuple(check_integer("shared", number, 0, len(found) - 1) for number in group))
    return _with_shared(graph, groups)


def _check_nodes(
    argument: str, names: list[str], sizes: Mapping[str, int], hidden: Collection[str]
) -> tuple[Node, ...]:
    _check_list("hidden", hidden)
    if not isinstance(sizes, Mapping):
        raise ValueError(f"sizes: expected the number of values of every node, by name; got {type(sizes).__name__}")
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{argument}: expected names (text); got {name!r}")
        if name not in sizes:
            raise ValueError(f"sizes: expected the number of values of every node; {name!r} is missing")
    for argument, given in (("sizes", sizes), ("hidden", hidden)):
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise ValueError(
                f"{argument}: expected names of nodes ({_shorten(names)}); got {unknown!r}. The nodes of a directed "
                "graph are those that `parents` has a list for, roots with []"
            )
    if not names:
        raise ValueError(f"{argument}: expected at least one node; got none")
    return tuple(Node(name, check_integer(f"sizes[{name!r}]", sizes[name], 2), name in set(hidden)) for name in names)


def _check_list(where: str, given: Any) -> Any:
    """Return what can be walked over, and is no text."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        what = f"the text {given!r}" if isinstance(given, str) else type(given).__name__
        raise ValueError(f"{where}: expected a list; got {what}")
    return given


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")


def _check_members(where: str, members: Sequence[str], sizes: Mapping[str, int], child: str | None = None) -> None:
    unknown = next((name for name in members if not isinstance(name, str) or name not in sizes), None)
    if unknown is not None:
        raise ValueError(f"{where}: expected names of nodes ({_shorten(list(sizes))}); got {unknown!r}")
    if len(set(members)) != len(members) or child in members:
        raise ValueError(f"{where}: expected different nodes; got {list(members)}")


def _with_shared(graph: Graph, groups: list[tuple[int, ...]]) -> Graph:
    seen: set[int] = set()
    groups = [group for group in groups if group]
    for group in groups:
        shapes = {graph.shapes[number] for number in group}
        if len(shapes) > 1:
            names = [graph.cliques[number] for number in group]
            raise ValueError(f"shared: expected cliques with the same numbers of values; got {names}")
        if seen & set(group) or len(set(group)) != len(group):
            raise ValueError(f"shared: expected every clique in at most one group; got {groups}")
        seen |= set(group)
    return Graph(graph.nodes, graph.cliques, graph.is_directed, tuple(groups))
