"""Drawings: every node once, no two on top of each other, and what a plan says about them."""

import itertools
import random
import sys

import numpy as np
import pytest

from latensor.models import graphical
from latensor.models.graphical.arrangement import arrange
from tests.models.graphical_structure_cases import (
    FIGURES,
    against_lemma_2,
    figure_3b,
    figure_3c,
    small_graph,
    with_leaves,
)

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402


@pytest.fixture(autouse=True)
def _no_figures():
    yield
    pyplot.close("all")


def observed_inside():
    """Return a tree whose observed y has children."""
    parents = {"h1": [], "y": ["h1"], "h2": ["y"], "h3": ["y"]}
    parents |= {f"x{i}.{letter}": [f"h{i}"] for i in (1, 2, 3) for letter in "abc"}
    hidden = ["h1", "h2", "h3"]
    return graphical.directed(parents, {name: 2 if name in hidden else 3 for name in parents}, hidden)


def ring():
    return with_leaves(
        graphical.undirected(itertools.pairwise("abcdea"), dict.fromkeys("abcde", 2), list("abcde")), [2] * 5
    )


READY = FIGURES | {
    "chain": graphical.chain(6, num_states=2, num_values=5),
    "chain of three leaves": graphical.chain(3, num_states=2, num_values=5, leaves=3),
    "grid of five leaves": graphical.grid(2, 3, directed=True, leaves=5),
    "latent classes": graphical.latent_tree({}, {"attitude": [f"item {i}" for i in range(20)]}),
    "deep tree": graphical.latent_tree(
        {"a": ["b", "c"], "b": ["d", "e"], "e": ["f"]}, {h: [f"{h}{i}" for i in range(3)] for h in "abcdef"}
    ),
    "noisy or": figure_3c(),
    "observed inside": observed_inside(),
}
OTHERS = {
    "against lemma 2": against_lemma_2(),
    "two parts": graphical.undirected([["h", "x"], ["y"]], {"h": 2, "x": 2, "y": 2}, ["h"]),
    "all observed": graphical.undirected([["a", "b"], ["b", "c"]], dict.fromkeys("abc", 2), []),
    "one node": graphical.undirected([["h"]], {"h": 2}, ["h"]),
    "odd names": graphical.latent_tree({}, {"$a^$": ["", " ", "x_1", "$y$", "a rather long name"]}),
}


def shapes(axis):
    """Return the outline of each node."""
    return {patch.get_gid(): patch for patch in axis.patches if patch.get_zorder() == 3}


def boxes(axis):
    """Return left, bottom, right and top of each node."""
    extents = {name: patch.get_path().get_extents(patch.get_patch_transform()) for name, patch in shapes(axis).items()}
    return {name: extent.extents for name, extent in extents.items()}


def colours(axis):
    return {name: to_hex(patch.get_facecolor()) for name, patch in shapes(axis).items()}


def links(axis):
    return {patch.get_gid() for patch in axis.patches if patch.get_zorder() == 0}


def are_apart(one, two):
    return one[2] < two[0] or two[2] < one[0] or one[3] < two[1] or two[3] < one[1]


def check(graph, axis):
    """Assert that everything is there once, inside the axis, and nothing on top of another."""
    names = [node.name for node in graph.nodes]
    letters = [patch.get_gid() for patch in axis.patches if patch.get_zorder() == 4]
    outlines = [patch.get_gid() for patch in axis.patches if patch.get_zorder() == 3]
    assert outlines == letters == names
    assert {line.get_gid() for line in axis.lines} == {f"{a} {b}" for a, b in graph.network.edges}
    arrows = [patch for patch in axis.patches if patch.get_zorder() == 2]
    assert len(arrows) == (len(axis.lines) if graph.is_directed else 0)
    places = boxes(axis)
    for one, two in itertools.combinations(names, 2):
        assert are_apart(places[one], places[two]), (one, two)
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    assert all(left < b[0] and b[2] < right and bottom < b[1] and b[3] < top for b in places.values())


@pytest.mark.parametrize("name", [*READY, *OTHERS])
def test_every_node_and_edge_is_drawn_once(name):
    graph = (READY | OTHERS)[name]
    check(graph, graphical.draw(graph))


@pytest.mark.parametrize("name", READY)
def test_edges_of_ready_graphs_pass_no_other_node(name):
    axis = graphical.draw(READY[name])
    places = boxes(axis)
    for line in axis.lines:
        ends = set(line.get_gid().split(" ")) if name != "latent classes" else None
        x, y = (np.linspace(*ends, 200) for ends in line.get_data())
        for node, (left, bottom, right, top) in places.items():
            inside = (left < x) & (x < right) & (bottom < y) & (y < top)
            # Of names with spaces, the edge is known by its beginning and its end.
            mine = node in ends if ends is not None else line.get_gid().endswith(node) or node == "attitude"
            assert mine or not np.any(inside), (line.get_gid(), node)


@pytest.mark.parametrize("is_directed", [True, False])
def test_nodes_of_any_graph_are_apart(is_directed):
    generator = random.Random(1)
    for _ in range(15):
        graph = small_graph(5, generator.randrange(1024), is_directed)
        graph = with_leaves(graph, generator.choices(range(4), k=5))
        check(graph, graphical.draw(graph))
        pyplot.close("all")


def test_places_are_where_readers_expect_them():
    def places(graph):
        return arrange(graph, {node.name: (0.3, 0.3) for node in graph.nodes}).points

    chain = places(READY["chain"])
    assert len({chain[f"h{t}"][1] for t in range(1, 7)}) == 1
    assert all(chain[f"x{t}"][0] == chain[f"h{t}"][0] and chain[f"x{t}"][1] < 0 for t in range(1, 7))
    assert all(chain[f"h{t}"][0] < chain[f"h{t + 1}"][0] for t in range(1, 6))
    grid = places(FIGURES["5"])
    assert len({round(grid[f"h{i},1"][0], 6) for i in (1, 2, 3)}) == 1
    assert grid["h1,1"][1] > grid["h2,1"][1]
    for tree in (figure_3b(True), figure_3b(False)):
        x, y = places(tree)["h1"]
        assert x == pytest.approx(np.mean([places(tree)[name][0] for name in ("h2", "h3", "h4")]))
        assert y > places(tree)["h2"][1] == places(tree)["h4"][1] > places(tree)["x4.a"][1]
    assert places(ring()) == places(ring())


def test_views_of_one_variable_are_coloured():
    plan = graphical.plan(FIGURES["5"])
    axis = graphical.draw(plan, focus="h2,2")
    check(FIGURES["5"], axis)
    found = colours(axis)
    for group, other in itertools.combinations(plan.views[4].triples[0], 2):
        assert len({found[leaf] for leaf in group}) == len({found[leaf] for leaf in other}) == 1
        assert found[group[0]] != found[other[0]]
    assert found["x1,1.a"] == "#ffffff"
    assert found["h2,2"] != found["h1,1"] == found["h3,3"]
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["view 1: x2,2.a", "view 2: x2,2.b", "view 3: x1,2.a x1,2.b x2,1.a x2,1.b and 4 more"]


def test_what_own_leaves_do_not_tell_is_linked():
    axis = graphical.draw(graphical.plan(figure_3b(True)))
    assert links(axis) == {f"h1 x{i}.a" for i in (2, 3, 4)}
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [
        "exclusive view that is not a leaf of its own"
    ]
    plan = graphical.plan(READY["chain"])
    assert links(graphical.draw(plan)) == {"h1 h2", "h6 h2"}
    one = graphical.draw(plan, focus="h6")
    assert links(one) == {"h6 h2"}
    assert one.get_legend().get_texts()[0].get_text() == "h6: shared parameters of h2 in place of views"
    # Nothing to say: all views are leaves of their own.
    assert graphical.draw(graphical.plan(FIGURES["1"])).get_legend() is None
    assert graphical.draw(FIGURES["1"]).get_legend() is None


def test_a_plan_is_drawn_in_the_graph_that_was_asked_for():
    graph = observed_inside()
    plan = graphical.plan(graph)
    assert plan.replaced == (("y", "y*"),)
    axis = graphical.draw(plan, focus="h2")
    check(graph, axis)
    assert colours(axis)["y"] == colours(axis)["x2.a"]
    assert axis.get_legend().get_texts()[0].get_text() == "view 1: x2.a y"


def test_given_axis_and_positions():
    figure, (axis, other) = pyplot.subplots(1, 2)
    graph = figure_3b(False)
    positions = {"h1": (0, 0), "h2": (-1, 2), "h3": np.array([3.0, 1.0]), "h4": [0, 1e-3], "x2.a": (-2, 2)}
    assert graphical.draw(graph, axis=axis, positions=positions) is axis
    check(graph, axis)
    assert not other.patches
    assert pyplot.get_fignums() == [figure.number]
    middles = {name: np.array([b[0] + b[2], b[1] + b[3]]) / 2 for name, b in boxes(axis).items()}
    for name, place in positions.items():
        np.testing.assert_allclose(middles[name] - middles["h1"], np.array(place) * middles["h3"][1], atol=1e-6)


def test_bad_arguments_are_named():
    graph = figure_3b(True)
    places = {"h1": (0, 0), "h2": (1, 0), "h3": (2, 0), "h4": (3, 0)}
    with pytest.raises(ValueError, match=r"axis: expected one matplotlib axis; got ndarray"):
        graphical.draw(graph, axis=pyplot.subplots(1, 2)[1])
    with pytest.raises(ValueError, match=r"focus: expected None for a Graph, whose plan has the views; got 'h1'"):
        graphical.draw(graph, focus="h1")
    with pytest.raises(ValueError, match=r"focus: expected the name of a hidden node; got 'x2.a'"):
        graphical.draw(graphical.plan(graph), focus="x2.a")
    with pytest.raises(ValueError, match=r"positions: expected names of nodes; got 'q'"):
        graphical.draw(graph, positions=places | {"q": (0, 0)})
    with pytest.raises(ValueError, match=r"positions: expected a place for every node but leaves; 'h4' is missing"):
        graphical.draw(graph, positions=dict(list(places.items())[:3]))
    with pytest.raises(ValueError, match=r"positions\['h2'\]: expected two finite numbers; got \(1, nan\)"):
        graphical.draw(graph, positions=places | {"h2": (1, np.nan)})
    with pytest.raises(ValueError, match=r"positions\['h2'\]: expected two finite numbers; got \[1, 2, 3\]"):
        graphical.draw(graph, positions=places | {"h2": [1, 2, 3]})
    with pytest.raises(ValueError, match=r"positions\['h2'\]: expected a place of its own; got that of 'h1'"):
        graphical.draw(graph, positions=places | {"h2": (0, 0)})


@pytest.mark.usefixtures("no_type_checks")
def test_wrong_types_are_named():
    with pytest.raises(ValueError, match=r"graph: expected a Graph or a Plan; got dict"):
        graphical.draw({})
    with pytest.raises(ValueError, match=r"positions: expected places by the names of nodes, a dict; got list"):
        graphical.draw(figure_3c(), positions=[(0, 0)])


def test_matplotlib_that_is_absent_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"draw needs matplotlib: pip install matplotlib, or .*'latensor\[bench\]'"):
        graphical.draw(figure_3c())
