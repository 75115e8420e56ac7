"""Graphs with hidden variables and the plans of their estimates, drawn: views, treewidth, seconds for `plan`.

The graphs of Chaganty and Liang (2014), Estimating latent-variable graphical models using moments and likelihoods,
figures 1, 3 and 5; a tree with an observed variable inside; a long chain and a large grid. A plan depends on the graph
alone, so no data are drawn.

Claims: all of them but figure 3(c) have a plan; figure 3(c), a noisy-or network, is refused, and the message names the
hidden variable that lacks views; the views of every hidden variable are independent given it, as networkx has it, whose
code for separation is not ours; the three ways to parameters all occur.
"""

import itertools
import re
from functools import partial
from typing import Any

import networkx as nx

from benchmarks.plotting import INK, figure
from benchmarks.runner import Claim, Options, Report, measure
from latensor.models import graphical
from latensor.models.graphical import Graph, Plan

# Panels are at least this wide, in units of the drawing, so that circles have about the same size.
_LEAST_WIDTH = 5.5
_REFUSED = "figure 3(c): noisy or"
_WAYS = ("normalize", "likelihood", "pseudolikelihood")


def _tree() -> Graph:
    """Return figure 3(b), a tree whose root has no leaves."""
    leaves = {f"h{i}": [f"x{i}.a", f"x{i}.b"] for i in (2, 3, 4)}
    return graphical.latent_tree({"h1": ["h2", "h3", "h4"]}, leaves)


def _noisy_or() -> Graph:
    """Return figure 3(c): every child of h1 is a child of h2 too."""
    parents = {"h1": [], "h2": [], "x1": ["h1", "h2"], "x2": ["h1", "h2"], "x3": ["h2"], "x4": ["h2"], "x5": ["h2"]}
    return graphical.directed(parents, dict.fromkeys(parents, 2), ["h1", "h2"])


def _observed_inside() -> Graph:
    """Return a tree in which the observed y has hidden variables below it."""
    parents = {"h1": [], "y": ["h1"], "h2": ["y"], "h3": ["y"]}
    parents |= {f"x{i}.{letter}": [f"h{i}"] for i in (1, 2, 3) for letter in "abc"}
    hidden = ["h1", "h2", "h3"]
    return graphical.directed(parents, {name: 2 if name in hidden else 4 for name in parents}, hidden)


def _graphs() -> dict[str, Graph]:
    """Return graphs by their names; the first six are drawn."""
    return {
        "figure 1: 2 × 2, directed": graphical.grid(2, 2, directed=True),
        "figure 5: 3 × 3, undirected": graphical.grid(3, 3, directed=False),
        "figure 3(b): tree": _tree(),
        "chain of 6": graphical.chain(6, num_states=2, num_values=5),
        "y observed inside": _observed_inside(),
        _REFUSED: _noisy_or(),
        "chain of 100": graphical.chain(100, num_states=2, num_values=5),
        "10 × 10, undirected": graphical.grid(10, 10, directed=False),
    }


def _separated(plan: Plan, one: tuple[str, ...], two: tuple[str, ...], hidden: str) -> bool:
    """Return whether two groups are separated by a hidden variable in the graph of networkx."""
    network = plan.canonical.network
    if plan.canonical.is_directed:
        return bool(nx.is_d_separator(network, set(one), set(two), {hidden}))
    rest = network.subgraph([name for name in network if name != hidden])
    return not any(nx.has_path(rest, a, b) for a in one for b in two)


def _count_separated(plan: Plan) -> tuple[int, int]:
    """Return how many pairs of views of one triple are independent, and how many there are."""
    good = [
        _separated(plan, one, two, views.hidden)
        for views in plan.views
        for triple in views.triples
        for one, two in itertools.combinations(triple, 2)
    ]
    return sum(good), len(good)


def run(options: Options) -> Report:
    """Plan every graph, check the views of the plans, and draw them."""
    del options
    graphs, rows = _graphs(), []
    plans: dict[str, Plan] = {}
    refused: dict[str, str] = {}
    for name, graph in graphs.items():
        row: list[Any] = [name, len(graph.hidden), len(graph.observed)]
        try:
            timing, plan = measure(partial(graphical.plan, graph))
        except ValueError as error:
            refused[name] = str(error)
            rows.append([*row, "–", "refused", "–"])
            continue
        plans[name] = plan
        rows.append([*row, plan.treewidth, plan.parameters, 1e3 * timing.warm])
    good, pairs = (sum(counts) for counts in zip(*map(_count_separated, plans.values()), strict=True))
    others = [name for name in graphs if name != _REFUSED]
    message = refused.get(_REFUSED, "not refused")
    named = re.findall(r"'(h\d)': ", message)
    used = [way for way in _WAYS if any(plan.parameters == way for plan in plans.values())]
    claims = [
        Claim(
            "all graphs but figure 3(c) have a plan",
            f"{sum(name in plans for name in others)} of {len(others)}",
            all(name in plans for name in others),
        ),
        Claim("figure 3(c) is refused for h1", message, named == ["h1"]),
        Claim(
            "the three views of a hidden variable are independent given it",
            f"{good:,} of {pairs:,} pairs of views, of all candidates",
            good == pairs,
        ),
        Claim("the three ways to parameters occur", ", ".join(used), len(used) == len(_WAYS)),
    ]
    columns = ["graph", "hidden", "observed", "treewidth ≤", "parameters by", "ms for plan"]
    return Report(columns, rows, claims, {"refused": refused}, _picture(graphs, plans))


def _picture(graphs: dict[str, Graph], plans: dict[str, Plan]) -> Any:
    focus = {"figure 1: 2 × 2, directed": "h1,1", "figure 5: 3 × 3, undirected": "h2,2", "y observed inside": "h2"}
    made, axes = figure(3, (9.6, 6.0), rows=2)
    made.get_layout_engine().set(h_pad=0.15)
    for axis, name in zip(axes, list(graphs)[:6], strict=True):
        graphical.draw(plans.get(name, graphs[name]), axis=axis, focus=focus.get(name) if name in plans else None)
        left, right = axis.get_xlim()
        room = max(0.0, _LEAST_WIDTH - (right - left)) / 2
        axis.set_xlim(left - room, right + room)
        shown = f"; views of {focus[name]}" if name in focus else "" if name in plans else "; refused"
        axis.set_title(name + shown, color=INK, fontsize=9)
    return made
