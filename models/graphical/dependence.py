"""Which nodes of a graph depend on one another given others: active trails, with the answers kept."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from latensor.models.graphical.graph import Graph

Item = TypeVar("Item")

# Answers are kept for this many sets of given nodes. One takes memory in proportion to the graph.
_MOST_KEPT = 256


class Dependence:
    """Answers questions about active trails between the nodes of a graph.

    In a directed graph, a trail is active given a set of nodes if each of its colliders `a → c ← b` is in the set or
    has a descendant in it, and none of its other nodes is in the set (d-separation; Koller and Friedman 2009, algorithm
    3.1). In an undirected graph, a path is active if none of its nodes is in the set.

    Dependence is symmetric. In an undirected graph it is transitive too; in a directed one it is not: both parents of
    `c` depend on `c`, but not on each other. In both, two sets are separated if all pairs of their nodes are.
    """

    def __init__(self, graph: Graph, *, hidden_only: bool = False):
        """Read the graph.

        Args:
          graph: any graph.
          hidden_only: whether to leave out observed nodes. In canonical form this changes no answer about hidden nodes
            given hidden nodes, since no trail passes through a leaf.

        """
        network, names = graph.network, graph.hidden if hidden_only else [node.name for node in graph.nodes]
        kept = set(names)
        above = network.pred if graph.is_directed else network.adj
        # In an undirected graph, parents and children are the neighbours.
        self.parents = {name: tuple(other for other in above[name] if other in kept) for name in names}
        self.children = {name: tuple(other for other in network.adj[name] if other in kept) for name in names}
        self.is_directed = graph.is_directed
        self.has_colliders = graph.is_directed and any(len(parents) > 1 for parents in self.parents.values())
        """Without them, trails are active as in the undirected graph, and dependence is transitive."""
        self._kept: dict[frozenset[str], dict[str, frozenset[str]]] = {}
        self._opened: tuple[frozenset[str], set[str]] = (frozenset(), set())

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Return the nodes that share an edge with one."""
        return (*self.parents[name], *self.children[name]) if self.is_directed else self.children[name]

    def dependents(self, name: str, given: frozenset[str] = frozenset()) -> frozenset[str]:
        """Return the nodes with an active trail to `name`, itself included; `name` is not in `given`."""
        if given not in self._kept:
            if len(self._kept) == _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[given] = {}
        kept = self._kept[given]
        if name not in kept:
            if self.has_colliders:
                kept[name] = self._directed(name, given)
            else:
                kept |= dict.fromkeys(component := self._connected(name, given), component)
        return kept[name]

    def classes(self, names: Iterable[str], given: frozenset[str]) -> list[list[str]]:
        """Return the finest partition of `names` whose parts are separated from one another, in the same order."""
        classes: list[list[str]] = []
        left = dict.fromkeys(names)
        while left:
            first = next(iter(left))
            connected = self._connected(first, given)
            pool = [name for name in left if name in connected]
            members, waiting = {first}, [first]
            # The first usually depends on all of the pool: stop when none is left, without asking the others.
            while waiting and len(members) < len(pool):
                dependents = self.dependents(waiting.pop(), given)
                new = [name for name in pool if name in dependents and name not in members]
                members.update(new)
                waiting += new
            classes.append([name for name in pool if name in members])
            left = {name: None for name in left if name not in members}
        return classes

    def distances(self, name: str) -> dict[str, int]:
        """Return the number of edges between `name` and every node that it is connected with, nearest first."""
        distances, waiting = {name: 0}, [name]
        for node in waiting:
            new = [other for other in self.neighbours(node) if other not in distances]
            distances |= dict.fromkeys(new, distances[node] + 1)
            waiting += dict.fromkeys(new)
        return distances

    def _connected(self, name: str, given: frozenset[str]) -> frozenset[str]:
        """Return the nodes to which there is a trail that passes given nodes as colliders only, active or not."""
        component, waiting = {name}, [name]
        while waiting:
            node = waiting.pop()
            near = set(self.neighbours(node))
            if self.has_colliders:
                near.update(*(self.parents[child] for child in given.intersection(self.children[node])))
            near -= given
            waiting += near - component
            component |= near
        return frozenset(component)

    def _directed(self, name: str, given: frozenset[str]) -> frozenset[str]:
        if self._opened[0] != given:
            self._opened = (given, self._with_ancestors(given))
        opened = self._opened[1]
        # A trail goes on from a node as if it had come from a child of it (upward), or from a parent (downward).
        visited: set[tuple[str, bool]] = set()
        reached: set[str] = set()
        waiting = [(name, True)]
        while waiting:
            node, upward = step = waiting.pop()
            if step in visited:
                continue
            visited.add(step)
            if node not in given:
                reached.add(node)
                waiting += [(child, False) for child in self.children[node]]
            if (node not in given) if upward else (node in opened):
                waiting += [(parent, True) for parent in self.parents[node]]
        return frozenset(reached)

    def _with_ancestors(self, given: frozenset[str]) -> set[str]:
        found, waiting = set(given), list(given)
        while waiting:
            new = [parent for parent in self.parents[waiting.pop()] if parent not in found]
            found.update(new)
            waiting += new
        return found


def first_separated(
    items: Sequence[Item], are_dependent: Callable[[Item, Item], bool], count: int
) -> tuple[Item, ...] | None:
    """Return the first `count` items no two of which are dependent; `None` if there are none.

    Exact also where dependence is not transitive. Cost: `O(len(items)^count)` questions if there are none.
    """
    if count == 0:
        return ()
    for place, item in enumerate(items):
        others = [other for other in items[place + 1 :] if not are_dependent(item, other)] if count > 1 else []
        rest = first_separated(others, are_dependent, count - 1)
        if rest is not None:
            return (item, *rest)
    return None
