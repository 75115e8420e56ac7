"""What the structure of a graph says about its hidden variables: views, bottlenecks, canonical form.

Chaganty and Liang, Estimating latent-variable graphical models using moments and likelihoods, ICML 2014: definitions 1
to 3, lemma 1, section 5.1.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import networkx as nx
from networkx.algorithms.approximation import treewidth_min_fill_in

from latensor.models.graphical.dependence import Dependence, first_separated
from latensor.models.graphical.graph import Graph, Node

NUM_COPIES = 3
"""Observed copies of a variable that canonical form makes hidden: as many as the views of a bottleneck."""


class Canonical(NamedTuple):
    """A graph whose observed variables are leaves, each the neighbour of one hidden variable only."""

    graph: Graph
    """Its first cliques are those of the original graph, by number; cliques of copies come at the end."""
    replaced: tuple[tuple[str, str], ...]
    """`(x, x*)`: observed variables of the original graph and the hidden ones in their place. `copies` names the leaves
    of `x*`."""


def copies(name: str) -> tuple[str, ...]:
    """Return the names of the observed copies of an observed variable that canonical form makes hidden."""
    return tuple(f"{name}.{number}" for number in range(1, NUM_COPIES + 1))


def is_leaf_clique(graph: Graph, clique: tuple[str, ...]) -> bool:
    """Return whether a clique of a graph in canonical form is one of an observed and a hidden variable."""
    hidden = set(graph.hidden)
    return any(name not in hidden for name in clique)


def canonical_form(graph: Graph) -> Canonical:
    """Return the graph with every observed variable as a leaf of one hidden variable (lemma 1).

    An observed variable `x` stays if its only clique is `{x, h}` with `h` hidden (directed: one parent, hidden, and no
    children). Any other becomes the hidden variable `x*`, of the same size and in the same cliques, with three copies
    as its leaves, `x.1` to `x.3`. The distributions of both graphs correspond one to one, if the copies always have the
    value of `x*`.
    """
    hidden = set(graph.hidden)
    containing: dict[str, list[tuple[str, ...]]] = {node.name: [] for node in graph.nodes}
    for clique in graph.cliques:
        for name in clique:
            containing[name].append(clique)
    new = {}
    for name in graph.observed:
        cliques = containing[name]
        is_leaf = len(cliques) == 1 and len(cliques[0]) == 2 and len(hidden & set(cliques[0])) == 1
        if not is_leaf:
            new[name] = f"{name}*"
            taken = next((other for other in (new[name], *copies(name)) if other in containing), None)
            if taken is not None:
                raise ValueError(f"graph: expected no node of the name {taken!r}, which {name!r} needs; got one")
    # Copies come last, and so do their cliques: the numbers of the original cliques, hence `shared`, stay valid.
    nodes = [node._replace(name=new[node.name], hidden=True) if node.name in new else node for node in graph.nodes]
    nodes += [Node(copy, graph.sizes[name], False) for name in new for copy in copies(name)]
    renamed = [tuple(new.get(name, name) for name in clique) for clique in graph.cliques]
    renamed += [(copy, star) for name, star in new.items() for copy in copies(name)]
    return Canonical(Graph(tuple(nodes), tuple(renamed), graph.is_directed, graph.shared), tuple(new.items()))


def are_separated(graph: Graph, a: Collection[str], b: Collection[str], given: Collection[str]) -> bool:
    """Return whether no active trail leads from `a` to `b` given `given`.

    In a directed graph this is d-separation; in an undirected one, every path from `a` to `b` meets `given`.

    Args:
      graph: the graph.
      a: names of nodes.
      b: names of nodes, none of them in `a`.
      given: names of nodes, none of them in `a` or `b`.

    """
    first, second, condition = _names(graph, "a", a), _names(graph, "b", b), _names(graph, "given", given)
    for argument, overlap in (("b", first & second), ("given", condition & (first | second))):
        if overlap:
            raise ValueError(f"{argument}: expected names that are in no other set; got {min(overlap)!r}")
    dependence = _dependence(graph)
    return not any(dependence.dependents(name, condition) & second for name in first)


def find_bottleneck(graph: Graph, hidden: str) -> tuple[str, str, str] | None:
    """Return three observed variables that depend on `hidden` and are independent given it; `None` if there are none.

    Definition 1, as far as the graph can tell: it also asks for conditional distributions of full rank. The variables
    nearest to `hidden` come first.
    """
    _check_hidden(graph, "hidden", hidden)
    dependence, given = _dependence(graph), frozenset([hidden])
    observed, dependents = set(graph.observed), dependence.dependents(hidden)
    candidates = [name for name in dependence.distances(hidden) if name in observed and name in dependents]
    triple = first_separated(candidates, lambda one, two: two in dependence.dependents(one, given), 3)
    return None if triple is None else (triple[0], triple[1], triple[2])


def exclusive_views(graph: Graph, subset: Collection[str], hidden: str) -> tuple[str, ...]:
    """Return the observed variables that depend on `hidden` and are independent of the rest of `subset` given it.

    Definition 2, as far as the graph can tell. Lemma 2, that every member of a bidependent set of bottlenecks has an
    exclusive view, holds for undirected graphs. In a directed graph, three children of `h` that are all parents of `c`
    are independent given `h`, yet each of them depends on `c`: in a set with `c`, `h` has no exclusive view among them.

    Args:
      graph: the graph.
      subset: names of hidden nodes, `hidden` among them.
      hidden: the name of a hidden node.

    """
    _check_hidden(graph, "hidden", hidden)
    members = _names(graph, "subset", subset)
    if hidden not in members:
        raise ValueError(f"subset: expected names with {hidden!r} among them; got {sorted(members)}")
    dependence, given = _dependence(graph), frozenset([hidden])
    others = [dependence.dependents(name, given) for name in members - given]
    candidates = [name for name in graph.observed if name in dependence.dependents(hidden) and name not in members]
    return tuple(name for name in candidates if not any(name in dependents for dependents in others))


def is_bidependent(graph: Graph, subset: Collection[str]) -> bool:
    """Return whether, given any node of `subset`, an active trail connects any two others (definition 3)."""
    members, dependence = _names(graph, "subset", subset), _dependence(graph)
    return all(
        members - {one} <= dependence.dependents(two, frozenset([one])) for one in members for two in members - {one}
    )


def sub_neighbourhoods(graph: Graph, node: str) -> tuple[tuple[str, ...], ...]:
    """Return the parts of a node's hidden neighbours that are independent of one another given the node (section 5.1).

    Args:
      graph: an undirected graph in canonical form.
      node: the name of a hidden node.

    """
    if graph.is_directed:
        raise ValueError("graph: expected an undirected graph; got a directed one")
    _check_hidden(graph, "node", node)
    dependence = _dependence(graph)
    neighbours = set(dependence.neighbours(node))
    ordered = [name for name in graph.hidden if name in neighbours]
    return tuple(tuple(part) for part in dependence.classes(ordered, frozenset([node])))


def treewidth(graph: Graph) -> int:
    """Return an upper bound on the treewidth of the hidden variables given the observed ones: the min-fill heuristic.

    In a directed graph, the parents of every node are connected first.
    """
    hidden = set(graph.hidden)
    # A graph of its own: the order of the nodes of a networkx subgraph, which breaks ties, varies between runs.
    network = nx.Graph()
    network.add_nodes_from(graph.hidden)
    for clique in graph.cliques:
        inside = [name for name in clique if name in hidden]
        network.add_edges_from((one, two) for place, one in enumerate(inside) for two in inside[:place])
    return treewidth_min_fill_in(network)[0] if hidden else 0


@lru_cache(maxsize=16)
def _dependence(graph: Graph) -> Dependence:
    return Dependence(graph)


def _names(graph: Graph, argument: str, names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise ValueError(f"{argument}: expected a set of names; got the text {names!r}")
    unknown = next((name for name in names if name not in graph.sizes), None)
    if unknown is not None:
        raise ValueError(f"{argument}: expected names of nodes; got {unknown!r}")
    return frozenset(names)


def _check_hidden(graph: Graph, argument: str, name: str) -> None:
    if name not in graph.hidden:
        raise ValueError(f"{argument}: expected the name of a hidden node; got {name!r}")
