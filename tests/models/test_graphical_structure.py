"""Separation, canonical form, views and bidependence, against their definitions on small graphs."""

import itertools
import re

import networkx as nx
import pytest

from latensor.models.graphical.build import chain, grid, latent_tree
from latensor.models.graphical.graph import directed, undirected
from latensor.models.graphical.structure import (
    are_separated,
    canonical_form,
    exclusive_views,
    find_bottleneck,
    is_bidependent,
    sub_neighbourhoods,
    treewidth,
)
from tests.models.graphical_structure_cases import (
    FIGURES,
    against_lemma_2,
    all_separations,
    figure_3b,
    figure_3c,
    separated,
    small_graph,
    small_graphs,
    with_leaves,
)

KINDS = pytest.mark.parametrize("is_directed", [True, False])
# All graphs of up to four nodes, some of the larger ones.
LIMITS = {2: 10, 3: 10, 4: 100, 5: 60, 6: 12}


@KINDS
@pytest.mark.parametrize("num_nodes", LIMITS)
def test_separation_of_single_nodes_is_that_of_all_trails(num_nodes, is_directed):
    for graph in small_graphs(num_nodes, is_directed, LIMITS[num_nodes]):
        for a, b, given in all_separations(graph):
            expected = separated(graph, a, b, given)
            assert are_separated(graph, {a}, {b}, set(given)) == expected
            assert are_separated(graph, {b}, {a}, set(given)) == expected
            assert not is_directed or nx.is_d_separator(graph.network, {a}, {b}, set(given)) == expected


@KINDS
def test_separation_of_sets_is_that_of_their_pairs(is_directed):
    for graph in small_graphs(5, is_directed, 40):
        for a, b, c, d in itertools.permutations("abcde", 4):
            given = set("abcde") - {a, b, c, d}
            expected = all(separated(graph, one, two, given) for one in (a, b) for two in (c, d))
            assert are_separated(graph, {a, b}, {c, d}, given) == expected
        assert are_separated(graph, {"a"}, set(), {"b"})


@KINDS
@pytest.mark.parametrize("num_nodes", [4, 5, 6])
def test_views_by_definition(num_nodes, is_directed):
    for graph in small_graphs(num_nodes, is_directed, 60, observed=True):
        for hidden in graph.hidden:
            views = [x for x in graph.observed if not separated(graph, x, hidden, ())]
            triples = [
                triple
                for triple in itertools.combinations(views, 3)
                if all(separated(graph, *pair, {hidden}) for pair in itertools.combinations(triple, 2))
            ]
            triple = find_bottleneck(graph, hidden)
            assert (triple is None and not triples) or tuple(sorted(triple)) in triples
            for count in range(3):
                for others in itertools.combinations([name for name in graph.hidden if name != hidden], count):
                    exclusive = [x for x in views if all(separated(graph, x, other, {hidden}) for other in others)]
                    assert exclusive_views(graph, {hidden, *others}, hidden) == tuple(exclusive)


@KINDS
@pytest.mark.parametrize("num_nodes", [3, 4, 5])
def test_bidependence_by_definition(num_nodes, is_directed):
    for graph in small_graphs(num_nodes, is_directed, 60):
        for count in range(1, num_nodes + 1):
            for subset in itertools.combinations(graph.hidden, count):
                given = ((a, set(subset) - {a}) for a in subset)
                broken = any(
                    separated(graph, *pair, {a}) for a, rest in given for pair in itertools.combinations(rest, 2)
                )
                assert is_bidependent(graph, subset) != broken
        # With three parents, two of them may be independent given the third.
        for clique in graph.cliques:
            assert is_bidependent(graph, clique) or (is_directed and len(clique) > 3)


def test_collider_makes_dependence_not_transitive():
    # h → u, v → c: all depend on c given h, but u and v are independent.
    parents = {"h": [], "u": ["h"], "v": ["h"], "c": ["u", "v"], "x": ["h"], "y": ["u"], "z": ["v"], "w": ["c"]}
    graph = directed(parents, dict.fromkeys(parents, 2), ["h", "u", "v", "c"])
    assert set(find_bottleneck(graph, "h")) == {"x", "y", "z"}
    assert exclusive_views(graph, {"h", "u"}, "h") == ("x", "z")
    assert is_bidependent(graph, {"h", "u", "c"})
    assert not is_bidependent(graph, {"h", "u", "v"})


def test_variables_that_do_not_depend_on_a_hidden_one_are_no_views():
    graph = directed({"h": [], "x": ["h"], "y": ["h"], "z": []}, dict.fromkeys("hxyz", 2), ["h"])
    assert find_bottleneck(graph, "h") is None
    assert exclusive_views(graph, {"h"}, "h") == ("x", "y")


@KINDS
def test_canonical_form_maps_cliques_one_to_one_and_keeps_separation(is_directed):
    for graph in itertools.chain(*(small_graphs(n, is_directed, 40, observed=True) for n in (3, 4, 5))):
        canonical, replaced = canonical_form(graph)
        names = {node.name: node.name for node in graph.nodes} | dict(replaced)
        assert canonical.cliques[: len(graph.cliques)] == tuple(tuple(names[a] for a in c) for c in graph.cliques)
        assert canonical.shapes[: len(graph.cliques)] == graph.shapes
        added = canonical.cliques[len(graph.cliques) :]
        assert added == tuple((f"{x}.{i}", star) for x, star in replaced for i in (1, 2, 3))
        if is_directed:
            assert [node.name for node in canonical.nodes] == [clique[0] for clique in canonical.cliques]
        for x in canonical.observed:
            (clique,) = [clique for clique in canonical.cliques if x in clique]
            assert len(clique) == 2
            assert len(set(clique) & set(canonical.hidden)) == 1
        assert canonical_form(canonical).replaced == ()
        for a, b, given in all_separations(graph, 2):
            mapped = [{names[name] for name in group} for group in ({a}, {b}, given)]
            assert are_separated(canonical, *mapped) == are_separated(graph, {a}, {b}, set(given))


def test_canonical_form_replaces_what_is_not_a_leaf_and_carries_sharing_over():
    sizes = {"h": 2, "x": 3, "y": 4, "z": 3, "g": 2}
    graph = directed(
        {"h": [], "x": ["h"], "y": ["h", "g"], "z": ["g"], "g": []}, sizes, ["h", "g"], shared=[["x", "z"]]
    )
    canonical, replaced = canonical_form(graph)
    assert replaced == (("y", "y*"),)
    assert canonical.hidden == ("h", "y*", "g")
    assert canonical.observed == ("x", "z", "y.1", "y.2", "y.3")
    assert canonical.sizes == {"h": 2, "x": 3, "y*": 4, "z": 3, "g": 2, "y.1": 4, "y.2": 4, "y.3": 4}
    assert canonical.shared == graph.shared
    # An undirected leaf with a potential of its own is in two cliques.
    graph = undirected([["x", "h"], ["x"], ["y", "h"]], {"h": 2, "x": 3, "y": 3}, ["h"], shared=[[0, 2]])
    canonical, replaced = canonical_form(graph)
    assert (replaced, canonical.shared) == ((("x", "x*"),), ((0, 2),))
    assert canonical.cliques[:3] == (("x*", "h"), ("x*",), ("y", "h"))
    with pytest.raises(ValueError, match=r"graph: expected no node of the name 'x\.2'.*'x'"):
        canonical_form(undirected([["x", "x.2"], ["x"]], {"x": 2, "x.2": 2}, ["x.2"]))


@KINDS
def test_lemma_2_bidependent_bottlenecks_have_exclusive_views(is_directed):
    """For undirected graphs and those without colliders: of 4 hidden nodes with 0 to 2 leaves, one in eleven."""
    cases = itertools.product(range(2**6), itertools.product(range(3), repeat=4))
    num_checked = 0
    for code, counts in itertools.islice(cases, 0, None, 11):
        graph = small_graph(4, code, is_directed)
        if is_directed and any(len(clique) > 2 for clique in graph.cliques):
            continue
        graph = with_leaves(graph, counts)
        bottlenecks = [name for name in graph.hidden if find_bottleneck(graph, name)]
        for count in range(1, len(bottlenecks) + 1):
            for subset in itertools.combinations(bottlenecks, count):
                if is_bidependent(graph, subset):
                    num_checked += 1
                    assert all(exclusive_views(graph, subset, name) for name in subset)
    assert num_checked > 200


def test_lemma_2_fails_with_colliders():
    graph = against_lemma_2()
    clique = {"c", "h", "p"}
    assert all(find_bottleneck(graph, name) for name in graph.hidden)
    assert is_bidependent(graph, clique)
    assert exclusive_views(graph, clique, "h") == ()


def test_figures():
    for name, graph in FIGURES.items():
        for hidden in graph.hidden:
            assert (find_bottleneck(graph, hidden) is None) == (name == "3a" and hidden in ("h1", "h3"))
    tree = figure_3b(False)
    assert find_bottleneck(tree, "h1") == ("x2.a", "x3.a", "x4.a")
    assert exclusive_views(tree, {"h1", "h2"}, "h1") == ("x3.a", "x3.b", "x4.a", "x4.b")
    assert sub_neighbourhoods(tree, "h1") == (("h2",), ("h3",), ("h4",))
    assert sub_neighbourhoods(FIGURES["5"], "h2,2") == (("h1,2", "h2,1", "h2,3", "h3,2"),)
    canonical = canonical_form(figure_3c()).graph
    assert find_bottleneck(canonical, "h1") is None
    assert exclusive_views(canonical, {"x1*", "h1", "h2"}, "h1") == ()


def test_sub_neighbourhoods_by_definition():
    for graph in small_graphs(6, False, 100):
        for node in graph.hidden:
            parts = sub_neighbourhoods(graph, node)
            assert sorted(itertools.chain(*parts)) == sorted(graph.network[node])
            where = {name: number for number, part in enumerate(parts) for name in part}
            for a, b in itertools.combinations(where, 2):
                assert (where[a] != where[b]) == separated(graph, a, b, {node})


def test_treewidth():
    assert treewidth(chain(6, num_states=2, num_values=3)) == 1
    assert treewidth(figure_3b(True)) == 1
    assert treewidth(grid(3, 3, directed=False)) == 3
    # Above and to the left become neighbours: diagonals.
    assert treewidth(grid(2, 2, directed=True)) == 2
    assert treewidth(latent_tree({}, {"h": ["x", "y", "z"]})) == 0
    assert treewidth(undirected([["x", "y"]], {"x": 2, "y": 2}, [])) == 0
    # Parents of an observed node depend on one another given it.
    assert (
        treewidth(
            directed({"a": [], "b": [], "c": [], "x": ["a", "b", "c"]}, dict.fromkeys("abcx", 2), ["a", "b", "c"])
        )
        == 2
    )


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: are_separated(g, {"h1"}, {"nobody"}, set()), "b: expected names of nodes; got 'nobody'"),
        (lambda g: are_separated(g, "h1", {"h2"}, set()), "a: expected a set of names; got the text 'h1'"),
        (lambda g: are_separated(g, {"h1"}, {"h1"}, set()), "b: expected names that are in no other set; got 'h1'"),
        (
            lambda g: are_separated(g, {"h1"}, {"h2"}, {"h2"}),
            "given: expected names that are in no other set; got 'h2'",
        ),
        (lambda g: find_bottleneck(g, "x2.a"), "hidden: expected the name of a hidden node; got 'x2.a'"),
        (lambda g: exclusive_views(g, {"h1"}, "h2"), "subset: expected names with 'h2' among them; got"),
        (lambda g: exclusive_views(g, {"h9"}, "h2"), "subset: expected names of nodes; got 'h9'"),
        (lambda g: is_bidependent(g, {"h1", "h9"}), "subset: expected names of nodes; got 'h9'"),
        (lambda g: sub_neighbourhoods(g, "h1"), "graph: expected an undirected graph; got a directed one"),
        (
            lambda g: sub_neighbourhoods(figure_3b(False), "x2.a"),
            "node: expected the name of a hidden node; got 'x2.a'",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call(figure_3b(True))
