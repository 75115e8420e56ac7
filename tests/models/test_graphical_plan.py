"""Plans: what they promise holds in the graph, and graphs without enough views are refused by name."""

import itertools
import math
import random
import re

import jax
import pytest

from latensor.models.graphical.build import chain, grid, latent_tree
from latensor.models.graphical.graph import directed, undirected
from latensor.models.graphical.plan import Neighbourhood, Plan, Views, plan
from latensor.models.graphical.structure import are_separated, exclusive_views, find_bottleneck
from tests.models.graphical_structure_cases import (
    FIGURES,
    against_lemma_2,
    figure_3b,
    figure_3c,
    small_graph,
    with_leaves,
)


def check_views(result: Plan, views: Views):
    graph, size = result.canonical, result.canonical.sizes[views.hidden]
    assert sum([bool(views.triples), views.known is not None, views.like is not None]) == 1
    assert len(views.triples) <= 3
    assert len({frozenset(map(frozenset, triple)) for triple in views.triples}) == len(views.triples)
    for triple in views.triples:
        for one, two in itertools.combinations(map(set, triple), 2):
            assert are_separated(graph, one, two, {views.hidden})
        for group in triple:
            assert not any(are_separated(graph, {x}, {views.hidden}, set()) for x in group)
            assert len(set(group)) == len(group)
            assert sum(graph.sizes[x] - 1 for x in group) + 1 >= size


def check(result: Plan) -> Plan:
    """Assert all that a plan promises."""
    graph = result.canonical
    assert tuple(views.hidden for views in result.views) == graph.hidden
    for views in result.views:
        check_views(result, views)
    assert len({subset.hidden for subset in result.subsets}) == len(result.subsets)
    assert {name for subset in result.subsets for name in subset.hidden} == set(graph.hidden)
    for subset in result.subsets:
        members = set(subset.hidden)
        for hidden, views in zip(subset.hidden, subset.views, strict=True):
            assert set(views) <= set(exclusive_views(graph, members, hidden))
            assert math.prod(graph.sizes[x] for x in views) >= graph.sizes[hidden]
        for one, two in itertools.combinations(itertools.chain(*subset.views), 2):
            assert are_separated(graph, {one}, {two}, members)
    assert len(result.cliques) == len(graph.cliques)
    for clique, number in zip(graph.cliques, result.cliques, strict=True):
        is_leaf = not set(clique) <= set(graph.hidden)
        assert number == -1 if is_leaf else result.subsets[number].hidden == clique
    if result.parameters == "pseudolikelihood":
        for hidden, neighbourhood in zip(graph.hidden, result.neighbourhoods, strict=True):
            check_neighbourhood(result, hidden, neighbourhood)
    else:
        assert result.neighbourhoods == ()
    # The account has the names that the user knows.
    known = {star: name for name, star in result.replaced}
    account = str(result)
    assert all(f"  {known.get(name, name)} (" in account for name in graph.hidden)
    assert "*" not in account
    return result


def check_neighbourhood(result: Plan, hidden: str, neighbourhood: Neighbourhood):
    graph = result.canonical
    parts = [result.subsets[number].hidden for number in neighbourhood.subsets]
    assert neighbourhood.node == hidden
    assert all(part[0] == hidden for part in parts)
    assert sorted(itertools.chain(*(part[1:] for part in parts))) == sorted(
        set(graph.network[hidden]) & set(graph.hidden)
    )
    for one, two in itertools.combinations(parts, 2):
        assert are_separated(graph, set(one[1:]), set(two[1:]), {hidden})


@pytest.mark.parametrize("name", FIGURES)
def test_figures_have_plans(name):
    result = check(plan(FIGURES[name]))
    assert result.parameters == ("likelihood" if name in ("3b undirected", "5") else "normalize")
    assert result.replaced == ()
    if result.parameters == "likelihood":
        assert check(plan(FIGURES[name], parameters="pseudolikelihood")).parameters == "pseudolikelihood"


def test_views_of_a_grid_are_own_leaves_and_those_of_all_neighbours():
    views = plan(FIGURES["5"]).views[4]
    neighbours = tuple(f"x{node}.{letter}" for node in ("1,2", "2,1", "2,3", "3,2") for letter in "ab")
    assert views.hidden == "h2,2"
    assert views.triples[0] == (("x2,2.a",), ("x2,2.b",), neighbours)
    assert views.triples[1] == (("x2,2.a",), ("x2,2.b",), neighbours[:2])


def test_hidden_markov_model_takes_the_ends_over():
    result = check(plan(chain(5, num_states=3, num_values=4)))
    assert [views.like for views in result.views] == ["h2", None, None, None, "h2"]
    assert result.views[2].triples == ((("x3",), ("x2",), ("x4",)),)
    assert result.subsets[1].hidden == ("h2", "h1")
    assert result.subsets[1].views == (("x2",), ("x1",))
    # With two leaves at every place the ends are bottlenecks themselves.
    assert not any(views.like for views in check(plan(chain(5, num_states=3, num_values=4, leaves=2))).views)
    assert all(
        views.triples for views in check(plan(chain(5, num_states=3, num_values=4, leaves=2, share=False))).views
    )


def test_potentials_that_are_shared_the_other_way_round_are_refused():
    # The table of (x, h) is that of (x2, h2), or its transpose, where both have the same number of values.
    for last in (["x1", "h1"], ["h1", "x1"]):
        cliques = [["h1", "h2"], ["h2", "h3"], ["x2", "h2"], ["x3", "h3"], ["y3", "h3"], last]
        sizes = dict.fromkeys(itertools.chain(*cliques), 2)
        graph = undirected(cliques, sizes, ["h1", "h2", "h3"], shared=[[2, 5]])
        if last[0] == "x1":
            assert check(plan(graph)).views[0].like == "h2"
        else:
            with pytest.raises(ValueError, match=r"graph: expected shared cliques .* got \(x2 h2\), \(h1 x1\)"):
                plan(graph)


def test_latent_tree_with_a_root_without_leaves():
    for is_directed in (True, False):
        result = check(plan(figure_3b(is_directed), parameters="normalize" if is_directed else "pseudolikelihood"))
        assert result.views[0].triples[0] == (("x2.a", "x2.b"), ("x3.a", "x3.b"), ("x4.a", "x4.b"))
        subset = next(subset for subset in result.subsets if subset.hidden == ("h2", "h1"))
        assert subset.views == (("x2.a", "x2.b"), ("x3.a", "x4.a"))
    # Without leaves of its own, a neighbour is replaced by the nearest leaves behind it.
    branches = {"r": ["a", "b", "c"], "a": ["d", "e"], "d": ["f"]}
    leaves = {name: [f"{name}1", f"{name}2"] for name in "bcdef"}
    result = check(plan(latent_tree(branches, leaves)))
    assert result.views[0].hidden == "r"
    assert result.views[0].triples[0] == (("b1", "b2"), ("c1", "c2"), ("d1", "d2", "e1", "e2"))


def test_noisy_or_is_refused():
    with pytest.raises(ValueError, match=r"'h1': 1 independent view, .*bottleneck; no exclusive view in") as error:
        plan(figure_3c())
    assert "(x1 h1 h2)" in str(error.value)
    assert "'h2'" not in str(error.value)


def test_what_is_missing_is_named():
    with pytest.raises(
        ValueError, match=r"^graph: expected .*; got 'h': 2 independent views, so it is not a bottleneck$"
    ):
        plan(latent_tree({}, {"h": ["x", "y"]}))
    with pytest.raises(ValueError, match=r"got 'h': 0 independent views, .*bottleneck; no exclusive view in"):
        plan(undirected([["h"], ["x"]], {"h": 2, "x": 2}, ["h"]))
    with pytest.raises(ValueError, match=r"got 'h': no exclusive view in") as error:
        plan(against_lemma_2())
    assert "bottleneck;" not in str(error.value)
    # A hundred of them: three names.
    with pytest.raises(ValueError, match=r"97 more") as error:
        plan(grid(10, 10, directed=False, leaves=1))
    assert len(str(error.value)) < 600


def test_too_few_values_are_no_view():
    with pytest.raises(ValueError, match=r"'h': 3 independent views with too few values to tell its 3 states apart"):
        plan(latent_tree({}, {"h": ["x", "y", "z"]}, num_states=3, num_values=2))
    # Stacked in pairs they are enough: 1 + 1 + 1.
    result = check(plan(latent_tree({}, {"h": list("abcdef")}, num_states=3, num_values=2)))
    assert sorted(map(len, result.views[0].triples[0])) == [2, 2, 2]
    # One of four values needs no partner, the two of two do.
    sizes = {"a": 4, "b": 4, "c": 2, "d": 2, "e": 2}
    check(plan(latent_tree({}, {"h": list("abcde")}, num_states=4, num_values=sizes | {"d": 3})))
    with pytest.raises(ValueError, match=r"too few values to tell its 5 states apart"):
        plan(latent_tree({}, {"h": list("abcde")}, num_states=5, num_values=sizes))


def test_hidden_nodes_of_different_sizes():
    leaves = {name: [f"{name}1", f"{name}2"] for name in "bcd"}
    check(plan(latent_tree({"a": ["b", "c", "d"]}, leaves, num_states={"a": 3, "b": 4, "c": 3, "d": 5})))
    # Through a variable of two values pass no three.
    with pytest.raises(ValueError, match=r"'a': 3 independent views with too few values"):
        plan(latent_tree({"a": ["b", "c", "d"]}, leaves, num_states={"a": 3, "b": 2, "c": 3, "d": 5}))


def test_farther_leaves_help_out_where_near_ones_have_too_few_values():
    # Three arms of two nodes each; a leaf of two values at every node.
    branches = {"h": ["a", "b", "c"], "a": ["d"], "b": ["e"], "c": ["f"]}
    leaves = {name: [f"{name}{i}" for i in range(2)] for name in "abcdef"}
    sizes = {"h": 3} | dict.fromkeys("abcdef", 2)
    views = check(plan(latent_tree(branches, leaves, num_states=sizes, num_values=2))).views[0]
    assert views.triples == ((("a0", "a1", "d0", "d1"), ("b0", "b1", "e0", "e1"), ("c0", "c1", "f0", "f1")),)


def test_colliders_part_a_class():
    # Given h, its children u and v are independent, but not of their child c.
    parents = {"h": [], "u": ["h"], "v": ["h"], "c": ["u", "v"], "x": ["h"]}
    parents |= {f"{name}{i}": [name] for name in "uvc" for i in (1, 2)}
    graph = directed(parents, {name: 2 if name in "huvc" else 5 for name in parents}, list("huvc"))
    assert check(plan(graph)).views[0].triples == ((("x",), ("u1", "u2"), ("v1", "v2")),)


def test_observed_parents_are_known():
    # y is observed and has a child: it becomes hidden, with copies.
    parents = {"y": [], "h": ["y"], "a": ["h"], "b": ["h"], "c": ["h"]}
    result = check(plan(directed(parents, {"y": 3, "h": 2} | dict.fromkeys("abc", 4), ["h"])))
    assert result.replaced == (("y", "y*"),)
    assert result.views[0] == Views("y*", (), "y", None)
    assert result.subsets[1].hidden == ("h", "y*")
    assert result.subsets[1].views == (("a", "b", "c"), ("y.1",))
    assert result.cliques == (0, 1, -1, -1, -1, -1, -1, -1)
    # All observed: nothing to find out.
    result = check(plan(undirected([["a", "b"], ["b", "c"]], dict.fromkeys("abc", 2), [])))
    assert all(views.known for views in result.views)


@pytest.mark.parametrize("is_directed", [True, False])
def test_small_graphs_have_plans_if_they_have_the_views(is_directed):
    generator, num_plans = random.Random(0), 0
    for _ in range(60):
        graph = small_graph(4, generator.randrange(64), is_directed)
        graph = with_leaves(graph, generator.choices(range(4), [1, 2, 6, 3], k=4))
        hidden = set(graph.hidden)
        cliques = [clique for clique in graph.cliques if set(clique) <= hidden]
        has_views = all(find_bottleneck(graph, name) for name in hidden) and all(
            exclusive_views(graph, clique, name) for clique in cliques for name in clique
        )
        if has_views:
            num_plans += 1
            check(plan(graph))
            if not is_directed:
                check(plan(graph, parameters="pseudolikelihood"))
        else:
            with pytest.raises(ValueError, match=r"bottleneck"):
                plan(graph)
    assert 15 < num_plans < 45


@pytest.mark.parametrize("is_directed", [True, False])
def test_large_grid_has_few_kinds_of_views(is_directed):
    result = plan(grid(10, 10, directed=is_directed))
    assert result.parameters == ("normalize" if is_directed else "pseudolikelihood")
    for views in result.views[::7]:
        check_views(result, views)
    assert len({tuple(map(len, views.triples[0])) for views in result.views}) <= 4
    assert len({tuple(map(len, subset.views)) for subset in result.subsets}) <= 5


def test_ways_to_parameters():
    assert plan(grid(6, 6, directed=False)).parameters == "likelihood"
    # Treewidth 4, but tables of 20⁵ entries.
    assert plan(grid(4, 5, directed=False, num_states=20, num_values=20)).parameters == "pseudolikelihood"
    assert plan(grid(9, 9, directed=False), parameters="likelihood").parameters == "likelihood"
    with pytest.raises(ValueError, match=r"parameters: expected 'auto' or 'normalize' for a directed graph; got 'lik"):
        plan(FIGURES["1"], parameters="likelihood")
    with pytest.raises(ValueError, match=r"parameters: expected 'auto' or 'likelihood' or 'pseudo.* for an undirected"):
        plan(FIGURES["5"], parameters="normalize")


@pytest.mark.usefixtures("no_type_checks")
def test_unknown_way_to_parameters():
    with pytest.raises(ValueError, match=r"parameters: expected one of 'auto'"):
        plan(FIGURES["5"], parameters="em")


def test_a_plan_is_static_and_readable():
    result = plan(FIGURES["3b directed"])
    assert hash(result) == hash(plan(figure_3b(True)))
    assert jax.tree.leaves(result) == []
    account = str(result).splitlines()
    assert account[0] == "Plan for a directed graph of 4 hidden and 6 observed variables, treewidth at most 1"
    assert "  h1 (2 values): x2.a x2.b | x3.a x3.b | x4.a x4.b" in account
    assert "  (h2 h1)  h2: x2.a x2.b; h1: x3.a x4.a" in account
    assert account[-1].startswith("Parameters, by normalize: ")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: directed({"a": ["b"], "b": ["a"]}, {"a": 2, "b": 2}, ["a"]), "parents: expected no cycle; got"),
        (lambda: undirected([["a", "b"]], {"a": 2}, ["a"]), "cliques[0]: expected names of nodes (a); got 'b'"),
        (
            lambda: latent_tree({"a": ["b"], "c": ["b"]}, {}),
            "branches['c']: expected names below no other node; got 'b'",
        ),
        (lambda: latent_tree({"a": ["b"], "c": ["d"]}, {}), "branches: expected a tree with one root; got 2 roots"),
        (lambda: latent_tree({"a": [], "b": ["c"], "c": ["b"]}, {}), "branches: expected a tree; got 'c'"),
        (lambda: latent_tree({"a": ["x"]}, {"a": ["x"]}), "leaves['a']: expected names below no other node; got 'x'"),
        (lambda: latent_tree({}, {"a": ["x"], "x": ["y"]}), "leaves: expected observed variables with nothing below"),
        (lambda: latent_tree({}, {"a": ["x"]}, num_values={}), "num_values: expected the number of values of 'x'"),
        (lambda: grid(0, 2, directed=True), "rows: expected an integer of at least 1; got 0"),
        (lambda: grid(2, 2, directed=True, leaves=0), "leaves: expected an integer from 1 to 26; got 0"),
        (lambda: chain(0, num_states=2, num_values=2), "length: expected an integer of at least 1; got 0"),
    ],
)
def test_bad_graphs_are_refused(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call()
