"""Structure of all graphs of up to six nodes: separation, views and bidependence against their definitions.

Directed graphs: all sets of edges that lead from earlier to later nodes, which is every graph up to the names of its
nodes. Undirected ones: all sets of edges. The oracle knows no trails: two nodes of a directed graph are separated given
others if these part them in the moral graph of all their ancestors. Up to five nodes every choice of hidden nodes is
looked at, beyond that one of them for every graph, at random. Lemma 2 of Chaganty and Liang (2014), that the members of
a bidependent set of bottlenecks have exclusive views, is looked at in each of them.

Claims: no answer differs from the oracle's; lemma 2 holds wherever the graph is undirected or has no node with two
parents. (With two it fails for larger graphs; `plan` refuses those.)
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks.runner import Claim, Options, Report
from latensor.models.graphical.graph import Graph, directed, undirected
from latensor.models.graphical.structure import are_separated, exclusive_views, find_bottleneck, is_bidependent

_LETTERS = "abcdef"
# Every choice of hidden nodes up to this number of nodes.
_ALL_CHOICES = 5


class _Case(NamedTuple):
    """A graph as sets of bits: the parents of every node, or its neighbours."""

    near: tuple[int, ...]
    is_directed: bool

    def separated(self, a: int, b: int, given: int) -> bool:
        """Return whether nodes are separated given a set of bits, in the moral graph of the ancestors of all three."""
        near = self.near
        if self.is_directed:
            kept = waiting = 1 << a | 1 << b | given
            while waiting:
                node = waiting.bit_length() - 1
                waiting &= ~(1 << node)
                new = near[node] & ~kept
                kept, waiting = kept | new, waiting | new
            links = [0] * len(near)
            for child, parents in enumerate(near):
                if kept >> child & 1:
                    family = parents | 1 << child
                    for node in range(len(near)):
                        if family >> node & 1:
                            links[node] |= family
        else:
            links = list(near)
        reached = waiting = 1 << a
        while waiting:
            node = waiting.bit_length() - 1
            waiting &= ~(1 << node)
            new = links[node] & ~reached & ~given
            reached, waiting = reached | new, waiting | new
        return not reached >> b & 1


def _cases(num_nodes: int, is_directed: bool) -> Iterator[_Case]:
    pairs = list(itertools.combinations(range(num_nodes), 2))
    for code in range(2 ** len(pairs)):
        near = [0] * num_nodes
        for place, (a, b) in enumerate(pairs):
            if code >> place & 1:
                near[b] |= 1 << a
                if not is_directed:
                    near[a] |= 1 << b
        yield _Case(tuple(near), is_directed)


def _graph(case: _Case, hidden: tuple[int, ...]) -> Graph:
    names = _LETTERS[: len(case.near)]
    sizes, chosen = dict.fromkeys(names, 2), [names[node] for node in hidden]
    around = {
        name: [names[i] for i in range(len(names)) if near >> i & 1]
        for name, near in zip(names, case.near, strict=True)
    }
    if case.is_directed:
        return directed(around, sizes, chosen)
    return undirected([(one, two) for one in names for two in around[one] if one < two], sizes, chosen)


def _bits(nodes: tuple[int, ...]) -> int:
    return sum(1 << node for node in nodes)


def _check_separation(case: _Case) -> tuple[int, int]:
    """Return the number of questions, and of wrong answers."""
    nodes, names = range(len(case.near)), _LETTERS
    graph, asked, wrong = _graph(case, tuple(nodes)), 0, 0
    for count in range(len(nodes) - 1):
        for given in itertools.combinations(nodes, count):
            condition, bits = frozenset(names[node] for node in given), _bits(given)
            for a, b in itertools.combinations([node for node in nodes if node not in given], 2):
                asked += 1
                wrong += are_separated(graph, {names[a]}, {names[b]}, condition) != case.separated(a, b, bits)
    return asked, wrong


def _check_views(case: _Case, hidden: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return numbers of questions, wrong answers, sets that lemma 2 is about, and those of them where it fails."""
    graph, names = _graph(case, hidden), _LETTERS
    observed = [node for node in range(len(case.near)) if node not in hidden]
    asked = wrong = sets = failures = 0
    bottlenecks = []
    for h in hidden:
        views = [x for x in observed if not case.separated(x, h, 0)]
        triples = {
            tuple(names[x] for x in triple)
            for triple in itertools.combinations(views, 3)
            if all(case.separated(a, b, 1 << h) for a, b in itertools.combinations(triple, 2))
        }
        found = find_bottleneck(graph, names[h])
        asked += 1
        wrong += (tuple(sorted(found)) not in triples) if found else bool(triples)
        bottlenecks += [h] if triples else []
    for count in range(1, len(hidden) + 1):
        for subset in itertools.combinations(hidden, count):
            members = [names[node] for node in subset]
            together = all(
                not case.separated(a, b, 1 << one)
                for one in subset
                for a, b in itertools.combinations([node for node in subset if node != one], 2)
            )
            lacking = False
            for h in subset:
                exclusive = [
                    names[x]
                    for x in observed
                    if not case.separated(x, h, 0)
                    and all(case.separated(x, other, 1 << h) for other in subset if other != h)
                ]
                asked += 1
                wrong += list(exclusive_views(graph, members, names[h])) != exclusive
                lacking |= not exclusive
            asked += 1
            wrong += is_bidependent(graph, members) != together
            if together and set(subset) <= set(bottlenecks):
                sets, failures = sets + 1, failures + lacking
    return asked, wrong, sets, failures


def _choices(num_nodes: int, rng: random.Random) -> list[tuple[int, ...]]:
    if num_nodes > _ALL_CHOICES:
        return [tuple(sorted(rng.sample(range(num_nodes), rng.randint(1, num_nodes - 1))))]
    return [part for count in range(1, num_nodes) for part in itertools.combinations(range(num_nodes), count)]


def run(options: Options) -> Report:
    """Ask about all graphs."""
    rows: list[list[Any]] = []
    total_wrong, holds, fails = 0, 0, 0
    for num_nodes, is_directed in itertools.product(range(2, 5 if options.quick else 7), (True, False)):
        rng = random.Random(num_nodes)
        graphs = asked = wrong = 0
        lemma = {True: [0, 0], False: [0, 0]}
        for case in tqdm(_cases(num_nodes, is_directed), desc=f"{num_nodes} nodes", leave=False):
            graphs += 1
            collides = is_directed and any(parents.bit_count() > 1 for parents in case.near)
            results = [(*_check_separation(case), 0, 0)]
            results += [_check_views(case, hidden) for hidden in _choices(num_nodes, rng)]
            for each in results:
                asked, wrong = asked + each[0], wrong + each[1]
                lemma[collides][0] += each[2]
                lemma[collides][1] += each[3]
        total_wrong += wrong
        holds, fails = holds + lemma[False][1], fails + lemma[True][1]
        kind = "directed" if is_directed else "undirected"
        cells = [f"{failures} of {count}" for count, failures in (lemma[False], lemma[True])]
        rows.append([num_nodes, kind, graphs, asked, wrong, *cells])
    claims = [
        Claim(
            "no answer differs from the definition's",
            f"{total_wrong} of {sum(row[3] for row in rows):,}",
            not total_wrong,
            any_size=True,
        ),
        Claim("lemma 2 holds without two parents of one node", f"{holds} failures", not holds, any_size=True),
    ]
    columns = ["nodes", "", "graphs", "questions", "wrong", "lemma 2 fails", "with two parents"]
    return Report(columns, rows, claims, {"failures_with_two_parents": fails})
