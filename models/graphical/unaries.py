"""Unary potentials for hidden variables whose cliques leave them no freedom of their own.

The table of a leaf of an undirected graph is `log P(x | h)` and a function of `h` alone. Where `h` is in a clique of
hidden variables whose potential is not shared, that clique can take the function over. Otherwise it is estimated as a
potential of its own, on `(h,)`, and put into the table of a leaf afterwards.
"""

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from latensor.models.graphical.graph import Graph
from latensor.models.graphical.layout import leaf_pair
from latensor.models.graphical.plan import Plan
from latensor.models.graphical.stars import hidden_cliques
from latensor.models.graphical.structure import is_leaf_clique


class Unary(NamedTuple):
    """A unary potential that some hidden variables share."""

    hidden: tuple[str, ...]
    leaves: tuple[int, ...]
    """The cliques, by their numbers in the canonical graph, whose tables take it over."""
    num_leaves: int
    """How many of these each of the hidden variables has; each takes as large a part."""


class Augmented(NamedTuple):
    """A graph with unary cliques added at its end, and what they are for."""

    graph: Graph
    unaries: tuple[Unary, ...]

    @property
    def hidden(self) -> tuple[str, ...]:
        """The hidden variables of the unary cliques, in their order."""
        return tuple(name for unary in self.unaries for name in unary.hidden)


@lru_cache(maxsize=64)
def add_unaries(plan: Plan) -> Augmented:
    """Return the canonical graph of a plan with the unary cliques that it needs."""
    graph = plan.canonical
    unaries = _find_unaries(plan)
    cliques, shared = list(graph.cliques), list(graph.shared)
    for unary in unaries:
        numbers = tuple(range(len(cliques), len(cliques) + len(unary.hidden)))
        cliques += [(name,) for name in unary.hidden]
        shared += [numbers] if len(numbers) > 1 else []
    return Augmented(Graph(graph.nodes, tuple(cliques), False, tuple(shared)), unaries)


def _find_unaries(plan: Plan) -> tuple[Unary, ...]:
    graph = plan.canonical
    group_of = {number: group for group, numbers in enumerate(graph.shared) if len(numbers) > 1 for number in numbers}
    taken = {name for number in hidden_cliques(graph) if number not in group_of for name in graph.cliques[number]}
    # Observed variables in the place of hidden ones have no leaves of their own.
    taken |= {star for _, star in plan.replaced}
    leaves: dict[str, list[int]] = {}
    for number, clique in enumerate(graph.cliques):
        if is_leaf_clique(graph, clique):
            leaves.setdefault(leaf_pair(plan, clique)[0], []).append(number)
    unaries = []
    # Hidden variables whose leaves are all shared, by the groups of these.
    alike: dict[frozenset[tuple[int, int]], list[str]] = {}
    for name in graph.hidden:
        mine = leaves.get(name, [])
        if name in taken or not mine:
            continue
        own = next((number for number in mine if number not in group_of), None)
        if own is not None:
            unaries.append(Unary((name,), (own,), 1))
        else:
            alike.setdefault(frozenset(Counter(group_of[number] for number in mine).items()), []).append(name)
    for signature, names in alike.items():
        group, count = min(signature)
        numbers = graph.shared[group]
        others = {leaf_pair(plan, graph.cliques[number])[0] for number in numbers} - set(names)
        if others:
            raise ValueError(
                "graph: expected hidden variables that share potentials to share all of their leaves, or to have one "
                f"that is not shared; {names[0]!r} and {min(others)!r} share some of them"
            )
        unaries.append(Unary(tuple(names), numbers, count))
    return tuple(unaries)
