"""Small graphs, the figures of the paper, and separation by brute force."""

import itertools
import random

from latensor.models.graphical.build import chain, grid, latent_tree
from latensor.models.graphical.graph import Graph, directed, undirected

LETTERS = "abcdef"


def figure_3b(is_directed):
    leaves = {f"h{i}": [f"x{i}.a", f"x{i}.b"] for i in (2, 3, 4)}
    return latent_tree({"h1": ["h2", "h3", "h4"]}, leaves, directed=is_directed)


def figure_3c():
    """Return the noisy-or network: all children of h1 are children of h2 too, which has others."""
    parents = {"h1": [], "h2": [], "x1": ["h1", "h2"], "x2": ["h1", "h2"], "x3": ["h2"], "x4": ["h2"], "x5": ["h2"]}
    return directed(parents, dict.fromkeys(parents, 2), ["h1", "h2"])


FIGURES = {
    "1": grid(2, 2, directed=True),
    "3a": chain(3, num_states=2, num_values=5),
    "3b directed": figure_3b(True),
    "3b undirected": figure_3b(False),
    "5": grid(3, 3, directed=False),
}


def against_lemma_2():
    """Return a directed graph in which `h` is a bottleneck without an exclusive view in the clique (c, h, p)."""
    parents = {"h": [], "u1": ["h"], "u2": ["h"], "u3": ["h"], "p": ["u1", "u2", "u3"], "c": ["h", "p"]}
    hidden = list(parents)
    for name in ("u1", "u2", "u3", "p", "c"):
        parents |= {f"x{name}{i}": [name] for i in range(3)}
    return directed(parents, {name: 2 if name in hidden else 5 for name in parents}, hidden)


def small_graph(num_nodes, code, is_directed, hidden=None):
    """Return the graph with the edges that the bits of `code` say; without `hidden`, every node is."""
    names = LETTERS[:num_nodes]
    pairs = [pair for place, pair in enumerate(itertools.combinations(names, 2)) if code >> place & 1]
    hidden, sizes = names if hidden is None else hidden, dict.fromkeys(names, 2)
    if is_directed:
        return directed({name: [a for a, b in pairs if b == name] for name in names}, sizes, list(hidden))
    return undirected(pairs, sizes, list(hidden))


def small_graphs(num_nodes, is_directed, limit, *, observed=False):
    """Yield all graphs of so many nodes, or `limit` of them chosen evenly; `observed`: with some nodes not hidden."""
    count, generator = 2 ** (num_nodes * (num_nodes - 1) // 2), random.Random(num_nodes)
    for code in generator.sample(range(count), limit) if limit < count else range(count):
        names = LETTERS[:num_nodes]
        hidden = generator.sample(names, generator.randint(1, num_nodes - 1)) if observed else None
        yield small_graph(num_nodes, code, is_directed, hidden)


def with_leaves(graph, counts, size=5):
    """Return a graph of hidden nodes with `counts` observed leaves for each."""
    cliques = list(graph.cliques)
    leaves = {f"{name}{i}": name for name, count in zip(graph.hidden, counts, strict=True) for i in range(count)}
    sizes = graph.sizes | dict.fromkeys(leaves, size)
    if graph.is_directed:
        parents = {clique[0]: clique[1:] for clique in cliques} | {leaf: [name] for leaf, name in leaves.items()}
        return directed(parents, sizes, graph.hidden)
    return undirected(cliques + list(leaves.items()), sizes, graph.hidden)


def trails(graph: Graph, a, b):
    """Yield all trails from a to b that meet no node twice."""
    near = {node.name: set() for node in graph.nodes}
    for one, two in graph.network.edges:
        near[one].add(two)
        near[two].add(one)

    def extend(trail):
        if trail[-1] == b:
            yield trail
        else:
            for other in near[trail[-1]] - set(trail):
                yield from extend([*trail, other])

    yield from extend([a])


def separated(graph: Graph, a, b, given):
    """Return whether all trails from node a to node b are blocked, by the definition."""
    edges = set(graph.network.edges)

    def descendants(node):
        return {node}.union(*(descendants(child) for parent, child in edges if parent == node))

    def passes(before, node, after):
        if graph.is_directed and (before, node) in edges and (after, node) in edges:
            return bool(descendants(node) & set(given))
        return node not in given

    return not any(
        all(passes(*triple) for triple in zip(trail, trail[1:], trail[2:], strict=False))
        for trail in trails(graph, a, b)
    )


def all_separations(graph: Graph, most_given=6):
    """Yield `(a, b, given)` for every two nodes and every set of others."""
    names = [node.name for node in graph.nodes]
    for a, b in itertools.combinations(names, 2):
        others = [name for name in names if name not in (a, b)]
        for count in range(min(len(others), most_given) + 1):
            for given in itertools.combinations(others, count):
                yield a, b, given
