"""The plan of an estimate: which observed variables tell what about which hidden ones, from the graph alone."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import networkx as nx

from latensor.base import check_option
from latensor.models.graphical.exclusive import choose_exclusive
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.structure import canonical_form, copies, is_leaf_clique, sub_neighbourhoods, treewidth
from latensor.models.graphical.views import Choice, Group, Layout, Triple, choose_triples, make_layout

# Exact inference up to this treewidth, and with tables of at most this many entries.
_LARGEST_TREEWIDTH, _LARGEST_TABLE = 6, 10**6
# An error names this many hidden variables, and this many cliques of each.
_MOST_NAMED = 3
_HOW = {
    "normalize": "each table is the joint distribution of its clique, divided by that of the parents",
    "likelihood": "potentials maximize the likelihood of the distributions of the cliques, by exact inference",
    "pseudolikelihood": "potentials maximize the pseudolikelihood, from the distributions of neighbourhoods",
}


class Views(NamedTuple):
    """How the conditional distributions given one hidden variable are found."""

    hidden: str
    triples: tuple[Triple, ...]
    """Candidates, the most promising first: three groups of observed variables that are independent given `hidden`. The
    one-hot vectors of a group, stacked, are one view. Empty if `known` or `like` is set."""
    known: str | None
    """The observed variable that this one is in the place of: conditional distributions are identity matrices."""
    like: str | None
    """A hidden variable whose leaves have the same parameters, for a variable that is not a bottleneck itself."""


class Subset(NamedTuple):
    """Hidden variables whose joint distribution is recovered."""

    hidden: tuple[str, ...]
    views: tuple[Group, ...]
    """Exclusive views of each. All of them are independent given the subset, so their likelihoods multiply."""


class Neighbourhood(NamedTuple):
    """A hidden variable and its hidden neighbours: `P(a, N(a)) = P(a) Π_B P(B | a)` over the sub-neighbourhoods `B`."""

    node: str
    subsets: tuple[int, ...]
    """Numbers in `Plan.subsets` of `(node, *B)`; empty if there are no hidden neighbours."""


@jax.tree_util.register_static
@dataclass(frozen=True)
class Plan:
    """How a graph is estimated. `str` gives a readable account.

    Immutable and hashable; to JAX it is structure, not data.
    """

    graph: Graph
    canonical: Graph
    """The graph with every observed variable as a leaf; see `canonical_form`. The plan is about this one."""
    replaced: tuple[tuple[str, str], ...]
    """Observed variables of `graph` and the hidden ones of `canonical` in their place."""
    views: tuple[Views, ...]
    """For every hidden variable of `canonical`, in its order."""
    subsets: tuple[Subset, ...]
    """Cliques, and `(node, *B)` of neighbourhoods if there are any. Every hidden variable is in one."""
    cliques: tuple[int, ...]
    """For every clique of `canonical`, the number of the subset with its nodes in its order; −1 for one with a leaf."""
    neighbourhoods: tuple[Neighbourhood, ...]
    """Of every hidden variable of `canonical`, in its order, if `parameters` is "pseudolikelihood"; otherwise empty."""
    treewidth: int
    """An upper bound on that of the hidden variables of `canonical`."""
    parameters: str
    """How parameters come from joint distributions: "normalize", "likelihood" or "pseudolikelihood"."""

    def __str__(self) -> str:
        graph, sizes = self.graph, self.canonical.sizes
        kind = "a directed" if graph.is_directed else "an undirected"
        counts = f"{len(graph.hidden)} hidden and {len(graph.observed)} observed variables"
        lines = [f"Plan for {kind} graph of {counts}, treewidth at most {self.treewidth}"]
        shown = {star: name for name, star in self.replaced}
        shown |= {copy: name for name, _ in self.replaced for copy in copies(name)}

        def show(names: Iterable[str]) -> str:
            return " ".join(shown.get(name, name) for name in names)

        lines += ["Conditional distributions, from three independent views:"]
        for views in self.views:
            lines.append(f"  {show([views.hidden])} ({sizes[views.hidden]} values): {_sources(views, show)}")
        lines += ["Joint distributions, from exclusive views:"]
        for subset in self.subsets:
            parts = (f"{show([name])}: {show(group)}" for name, group in zip(subset.hidden, subset.views, strict=True))
            lines.append(f"  ({show(subset.hidden)})  {'; '.join(parts)}")
        for node, numbers in self.neighbourhoods:
            sets = (f"({show(self.subsets[number].hidden)})" for number in numbers)
            lines.append(f"  neighbourhood of {show([node])}: {' '.join(sets) or 'none'}")
        return "\n".join([*lines, f"Parameters, by {self.parameters}: {_HOW[self.parameters]}"])


def plan(graph: Graph, *, parameters: Literal["auto", "normalize", "likelihood", "pseudolikelihood"] = "auto") -> Plan:
    """Return how the parameters of a graph are estimated, or raise if they cannot be.

    Every hidden variable must be a bottleneck (three views that are independent given it), or have a leaf that shares
    its parameters with one of a bottleneck. In every clique, each hidden variable must have an exclusive view, one that
    is independent of the others given it. Both are read off the graph. Numbers of values are checked as well; whether
    conditional distributions have full rank depends on the parameters, and is not.

    Cost: about linear in the number of hidden variables times that of edges.

    Args:
      graph: a graph, in canonical form or not.
      parameters: how parameters come from joint distributions. A directed graph has "normalize". An undirected one has
        "likelihood", by exact inference, or "pseudolikelihood", for which the distributions of all neighbourhoods are
        recovered. "auto" takes the likelihood for a treewidth of at most 6 with tables of at most a million entries.

    """
    if not isinstance(graph, Graph):
        raise ValueError(f"graph: expected a Graph; got {type(graph).__name__}")
    if not graph.cliques:
        raise ValueError("graph: expected at least one clique, which has parameters; got none")
    check_option("parameters", parameters, ("auto", *_HOW))
    if parameters != "auto" and graph.is_directed != (parameters == "normalize"):
        allowed = "'normalize'" if graph.is_directed else "'likelihood' or 'pseudolikelihood'"
        kind = "a directed" if graph.is_directed else "an undirected"
        raise ValueError(f"parameters: expected 'auto' or {allowed} for {kind} graph; got {parameters!r}")
    canonical = canonical_form(graph)
    layout, known = make_layout(canonical), {star: name for name, star in canonical.replaced}
    width = treewidth(canonical.graph)
    how = _choose_parameters(canonical.graph, width) if parameters == "auto" else parameters

    choices = {name: choose_triples(layout, name) for name in canonical.graph.hidden if name not in known}
    triples = {name: choice.triples for name, choice in choices.items()}
    lenders = _lenders(layout, {name for name in choices if triples[name]})
    views = []
    for name in canonical.graph.hidden:
        lender = lenders[name][0] if name in lenders else None
        views.append(Views(name, triples.get(name, ()), known.get(name), lender))

    subsets, cliques, neighbourhoods = _subsets(canonical.graph, with_neighbourhoods=how == "pseudolikelihood")
    borrowed = {name: leaves for name, (_, leaves) in lenders.items()}
    exclusive = {hidden: choose_exclusive(layout, hidden, triples, borrowed) for hidden in subsets}
    missing = [(hidden, *each) for hidden, chosen in exclusive.items() for each in chosen.missing]
    _check_shared(canonical.graph, known)
    failed = {name: choice for name, choice in choices.items() if not choice.triples and name not in lenders}
    if failed or missing:
        raise ValueError(_complaint(layout, failed, missing, known))
    chosen = tuple(Subset(hidden, exclusive[hidden].views) for hidden in subsets)
    return Plan(graph, canonical.graph, canonical.replaced, tuple(views), chosen, cliques, neighbourhoods, width, how)


def allows_exact_inference(graph: Graph, width: int) -> bool:
    """Return whether sums over all values of the hidden variables are cheap in a graph of this treewidth."""
    table = max(graph.sizes[name] for name in graph.hidden) ** (width + 1)
    return width <= _LARGEST_TREEWIDTH and table <= _LARGEST_TABLE


def _choose_parameters(graph: Graph, width: int) -> str:
    if graph.is_directed:
        return "normalize"
    return "likelihood" if allows_exact_inference(graph, width) else "pseudolikelihood"


def _check_shared(graph: Graph, known: Mapping[str, str]) -> None:
    """Raise unless the states of hidden variables in the same place of shared cliques are known to correspond.

    The order of the states of a hidden variable is arbitrary; a leaf whose parameters are shared as well tells it.
    """
    corresponding = nx.Graph()
    groups = [[graph.cliques[number] for number in group] for group in graph.shared]
    for cliques in groups:
        leaves = [is_leaf_clique(graph, clique) for clique in cliques]
        if any(leaves):
            axes = {
                next((axis for axis, name in enumerate(clique) if name not in graph.hidden), -1) for clique in cliques
            }
            if not all(leaves) or len(axes) > 1:
                names = ", ".join(f"({' '.join(known.get(name, name) for name in clique)})" for clique in cliques)
                raise ValueError(
                    "graph: expected shared cliques that are all of one hidden variable and a leaf, in the same order, "
                    f"or none of them; got {names}"
                )
            hidden = [next(name for name in clique if name in graph.hidden) for clique in cliques]
            nx.add_path(corresponding, hidden)
    for first, *others in groups:
        for other in others:
            for one, two in zip(first, other, strict=True):
                if one == two or not {one, two} <= set(graph.hidden) or {one, two} <= set(known):
                    continue
                if one not in corresponding or two not in nx.node_connected_component(corresponding, one):
                    raise ValueError(
                        f"graph: expected hidden variables in the same place of shared cliques to have leaves that "
                        f"share their parameters too, which tell whose states correspond; got {one!r} and {two!r} "
                        "without such leaves"
                    )


def _lenders(layout: Layout, bottlenecks: set[str]) -> dict[str, tuple[str, Group]]:
    """Return a bottleneck for each other hidden variable, with the leaves whose parameters both share."""
    graph = layout.graph
    group_of = {number: group for group, numbers in enumerate(graph.shared) for number in numbers}
    # By hidden variable: the leaves that share their parameters, by the group and the place of the leaf in the clique.
    sharing: dict[str, dict[tuple[int, int], list[str]]] = {}
    for number, clique in enumerate(graph.cliques):
        leaf = next((name for name in clique if name in layout.home), None)
        if leaf is not None and number in group_of:
            key = group_of[number], clique.index(leaf)
            sharing.setdefault(layout.home[leaf], {}).setdefault(key, []).append(leaf)
    lenders = {}
    for name, own in sharing.items():
        for other in graph.hidden if name not in bottlenecks else ():
            shared = [leaf for key, leaves in own.items() if key in sharing.get(other, {}) for leaf in leaves]
            if other in bottlenecks and shared:
                lenders[name] = (other, tuple(shared))
                break
    return lenders


def _subsets(
    graph: Graph, *, with_neighbourhoods: bool
) -> tuple[list[tuple[str, ...]], tuple[int, ...], tuple[Neighbourhood, ...]]:
    """Return the sets of hidden variables to recover, the number of each clique's, and those of neighbourhoods."""
    numbers: dict[tuple[str, ...], int] = {}
    cliques = [
        -1 if is_leaf_clique(graph, clique) else numbers.setdefault(clique, len(numbers)) for clique in graph.cliques
    ]
    neighbourhoods = []
    for node in graph.hidden if with_neighbourhoods else ():
        parts = [(node, *part) for part in sub_neighbourhoods(graph, node)]
        neighbourhoods.append(Neighbourhood(node, tuple(numbers.setdefault(part, len(numbers)) for part in parts)))
    # The table of a leaf needs the distribution of its hidden variable, whatever else this one is connected with.
    members = {name for subset in numbers for name in subset}
    for node in graph.hidden:
        if node not in members:
            numbers.setdefault((node,), len(numbers))
    return list(numbers), tuple(cliques), tuple(neighbourhoods)


def _sources(views: Views, show: Callable[[Iterable[str]], str]) -> str:
    if views.known is not None:
        return "observed"
    if views.like is not None:
        return f"those of {views.like}, which has the same parameters"
    more = f"  (or {len(views.triples) - 1} more)" if len(views.triples) > 1 else ""
    return " | ".join(show(group) for group in views.triples[0]) + more


def _complaint(
    layout: Layout,
    failed: Mapping[str, Choice],
    missing: list[tuple[tuple[str, ...], str, int]],
    known: Mapping[str, str],
) -> str:
    """Return the message of the error: by hidden variable, what it lacks."""
    lacks: dict[str, list[str]] = {}
    for name, choice in failed.items():
        views = f"{choice.num_views} independent view{'' if choice.num_views == 1 else 's'}"
        why = (
            "" if choice.num_views < 3 else f" with too few values to tell its {layout.graph.sizes[name]} states apart"
        )
        lacks.setdefault(name, []).append(f"{views}{why}, so it is not a bottleneck")
    for subset, name, count in missing:
        nodes = " ".join(known.get(member, member) for member in subset)
        why = f" with enough values to tell its {layout.graph.sizes[name]} states apart" if count else ""
        lacks.setdefault(name, []).append(f"no exclusive view{why} in ({nodes})")
    named = [f"{name!r}: {'; '.join(what[: _MOST_NAMED + 1])}" for name, what in list(lacks.items())[:_MOST_NAMED]]
    rest = f". {len(lacks) - _MOST_NAMED} more hidden variables lack views" if len(lacks) > _MOST_NAMED else ""
    return (
        "graph: expected every hidden variable to be a bottleneck (three independent views, or shared parameters of a "
        f"leaf) with an exclusive view in each of its cliques; got {'. '.join(named)}{rest}"
    )
