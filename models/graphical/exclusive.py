"""The choice of exclusive views, from which the joint distribution of several hidden variables is recovered."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from latensor.models.graphical.views import Group, Layout, Triple, useful_nodes


class Exclusive(NamedTuple):
    """Exclusive views of the members of a set of hidden variables."""

    views: tuple[Group, ...]
    """For every member. All of them are independent given the set, and each depends on its own member only."""
    missing: tuple[tuple[str, int], ...]
    """Members whose values the views cannot tell apart, each with the number of its views."""


def choose_exclusive(
    layout: Layout,
    subset: tuple[str, ...],
    triples: Mapping[str, tuple[Triple, ...]],
    borrowed: Mapping[str, Group],
) -> Exclusive:
    """Return exclusive views of every member of `subset`.

    These are a member's own leaves. Where it has none, or they have too few values, variables that hang on hidden ones
    outside the set join them: one of every class that is independent of the rest given the set, the nearest first.

    Args:
      layout: the graph.
      subset: names of hidden variables.
      triples: view triples of hidden variables. The conditional distribution of another view is found by regression on
        one of the three, independent of it.
      borrowed: leaves of hidden variables that are not bottlenecks, but share the parameters of these leaves with one.
        No other conditional distributions are known of such a variable.

    """
    chosen = {member: list(borrowed.get(member, layout.leaves[member])) for member in subset}
    wanting = [member for member in subset if not _is_enough(layout, member, chosen[member])]
    candidates = {
        member: [] if member in borrowed else _candidates(layout, subset, member, triples.get(member, ()))
        for member in wanting
    }
    # First one view for each member, so that none takes the only one of another.
    first = _assign(
        layout, frozenset(subset), [(member, candidates[member]) for member in wanting if candidates[member]]
    )
    taken = list(first.values())
    for member, node in first.items():
        chosen[member].append(_best_leaf(layout, node))
    for member in wanting:
        for node in candidates[member]:
            if _is_free(layout, node, taken, frozenset(subset)):
                taken.append(node)
                chosen[member].append(_best_leaf(layout, node))
    missing = [(member, len(chosen[member])) for member in wanting if not _is_enough(layout, member, chosen[member])]
    return Exclusive(tuple(tuple(chosen[member]) for member in subset), tuple(missing))


def _is_enough(layout: Layout, member: str, views: list[str]) -> bool:
    """Return whether the likelihoods of independent views can tell the values of `member` apart.

    Their product has rank `Π dᵢ` at most, where a view counts no more values than the hidden variable it hangs on.
    """
    return math.prod(_num_values(layout, view) for view in views) >= layout.graph.sizes[member]


def _num_values(layout: Layout, leaf: str) -> int:
    return min(layout.graph.sizes[leaf], layout.graph.sizes[layout.home[leaf]])


def _best_leaf(layout: Layout, node: str) -> str:
    return max(layout.leaves[node], key=lambda leaf: layout.graph.sizes[leaf])


def _candidates(layout: Layout, subset: tuple[str, ...], member: str, triples: tuple[Triple, ...]) -> list[str]:
    """Return hidden variables whose leaves are exclusive views of `member`: first sufficient ones, then the nearest."""
    given, size = frozenset([member]), layout.graph.sizes[member]
    others = [layout.dependence.dependents(other, given) for other in subset if other != member]
    homes = [[{layout.home[leaf] for leaf in group} for group in triple] for triple in triples]

    def is_known(node: str) -> bool:
        dependents = layout.dependence.dependents(node, given)
        return all(any(not group & dependents for group in groups) for groups in homes)

    nodes = useful_nodes(layout, member)
    exclusive = [node for node in nodes if not any(node in dependents for dependents in others) and is_known(node)]
    return sorted(exclusive, key=lambda node: _num_values(layout, _best_leaf(layout, node)) < size)


def _is_free(layout: Layout, node: str, taken: list[str], subset: frozenset[str]) -> bool:
    """Return whether the leaves of `node` are independent, given the set, of all those taken."""
    return not any(other in layout.dependence.dependents(node, subset) for other in taken)


def _assign(layout: Layout, subset: frozenset[str], options: list[tuple[str, list[str]]]) -> dict[str, str]:
    """Return one node for each member such that all are independent given the set; as many as there can be, in order.

    In an undirected graph the first options are always independent. Colliders can make views of different members
    dependent although each is exclusive.
    """

    def extend(place: int, taken: list[str]) -> list[str] | None:
        if place == len(options):
            return taken
        for node in options[place][1]:
            if _is_free(layout, node, taken, subset):
                full = extend(place + 1, [*taken, node])
                if full is not None:
                    return full
        return None

    while options:
        nodes = extend(0, [])
        if nodes is not None:
            return {member: node for (member, _), node in zip(options, nodes, strict=True)}
        options = options[:-1]
    return {}
