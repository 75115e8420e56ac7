"""A graphical model as inference sees it: log-factors over its internal nodes, and leaves that are evidence.

A leaf is an observed node in exactly one clique, together with one hidden node. It never has to be summed out: where
`x` is observed it adds `log P(x | h)` to the evidence of its hidden node, and where it is missing nothing. All other
nodes are internal.

The table of an undirected leaf clique, `θ(h, x)`, is taken apart into `log P(x | h)` and the base
`b(h) = log Σ_x exp θ(h, x)`, which adds to the evidence of every row. Directed leaves have the base zero. So both kinds
of graphs are

    log P(x) = A(tables, evidence(x)) − A(tables, evidence(nothing))

with the log-partition function `A` of `elimination`; the second term is zero for directed graphs.
"""

import functools
from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from latensor.base import einsum, smallest_normal
from latensor.models.graphical.elimination import Schedule, log_partition, make_schedule
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.params import Graphical

IMPOSSIBLE = -1e30
"""As good as −∞ for a value that was not observed, and no NaN when several meet."""


class Leaf(NamedTuple):
    """An observed node in one clique with one hidden node."""

    clique: int
    column: int
    """Its column of the data."""
    node: int
    """The place of its hidden node among the internal nodes."""
    axis: int
    """Its axis in the clique's table."""


class Split(NamedTuple):
    """Which nodes are internal, and which are leaves. Hashable: static to JAX."""

    internal: tuple[str, ...]
    columns: tuple[int | None, ...]
    """For every internal node, its column of the data; `None` for hidden ones."""
    cliques: tuple[int, ...]
    """The cliques without a leaf, by their numbers."""
    stacks: tuple[tuple[Leaf, ...], ...]
    """The leaves; those of one stack have tables of the same shape."""
    scopes: tuple[tuple[int, ...], ...]
    """The nodes of `cliques`, as places among the internal nodes."""
    sizes: tuple[int, ...]
    """The number of values of every internal node."""

    def schedule(self) -> Schedule:
        """Return the order in which internal nodes are summed out; raise where that takes too large tables."""
        return make_schedule(self.sizes, self.scopes)


@functools.lru_cache(maxsize=256)
def split_graph(graph: Graph) -> Split:
    """Return the internal nodes and the leaves of a graph."""
    uses = Counter(name for clique in graph.cliques for name in clique)
    hidden = set(graph.hidden)
    axes: dict[int, int] = {}
    for number, clique in enumerate(graph.cliques):
        if len(clique) == 2:
            for axis, (name, other) in enumerate((clique, clique[::-1])):
                if name not in hidden and uses[name] == 1 and other in hidden:
                    axes[number] = axis
    if not graph.is_directed:
        # A shared potential is either a leaf's everywhere, with the leaf at the same axis, or nowhere.
        for group in graph.shared:
            if len({axes.get(number) for number in group}) > 1:
                axes = {number: axis for number, axis in axes.items() if number not in group}
    leaves = {graph.cliques[number][axis] for number, axis in axes.items()}
    internal = tuple(node.name for node in graph.nodes if node.name not in leaves)
    place = {name: i for i, name in enumerate(internal)}
    column = {name: i for i, name in enumerate(graph.observed)}
    stacks: dict[tuple[int, int], list[Leaf]] = {}
    for number, axis in axes.items():
        leaf, node = graph.cliques[number][axis], graph.cliques[number][1 - axis]
        stack = stacks.setdefault((graph.sizes[leaf], graph.sizes[node]), [])
        stack.append(Leaf(number, column[leaf], place[node], axis))
    cliques = tuple(number for number in range(len(graph.cliques)) if number not in axes)
    return Split(
        internal,
        tuple(column.get(name) for name in internal),
        cliques,
        tuple(tuple(stack) for stack in stacks.values()),
        tuple(tuple(place[name] for name in graph.cliques[number]) for number in cliques),
        tuple(graph.sizes[name] for name in internal),
    )


class Factors(NamedTuple):
    """The parameters of a model as logarithms, none of them infinite."""

    tables: tuple[Float[Array, "..."], ...]
    """Of `Split.cliques`."""
    leaves: tuple[Float[Array, "L d k"], ...]
    """`log P(x | h)` of every leaf, stacked as in `Split.stacks`."""
    bases: tuple[Float[Array, "L k"], ...]
    """What a leaf adds to the evidence of its hidden node whether it is observed or not; zero for directed graphs."""


def safe_log(probabilities: Array) -> Array:
    """Return logarithms, that of zero as that of the smallest number: −87 in float32, −708 in float64."""
    return jnp.log(jnp.maximum(probabilities, smallest_normal(probabilities.dtype)))


def leaf_tables(split: Split, tables: tuple[Array, ...]) -> tuple[Float[Array, "L d k"], ...]:
    """Return the tables of leaves, axis 1 the leaf, stacked as in `Split.stacks`."""
    return tuple(
        jnp.stack([tables[leaf.clique] if leaf.axis == 0 else tables[leaf.clique].T for leaf in stack])
        for stack in split.stacks
    )


def factors_of(params: Graphical) -> Factors:
    """Return the log-factors of a model."""
    split = split_graph(params.graph)
    tables, leaves = tuple(params.tables[number] for number in split.cliques), leaf_tables(split, params.tables)
    if params.graph.is_directed:
        bases = tuple(jnp.zeros((len(stack), stack.shape[2]), stack.dtype) for stack in leaves)
        return Factors(jax.tree.map(safe_log, tables), jax.tree.map(safe_log, leaves), bases)
    bases = tuple(jax.nn.logsumexp(stack, axis=1) for stack in leaves)
    return Factors(tables, tuple(jax.nn.log_softmax(stack, axis=1) for stack in leaves), bases)


def make_evidence(split: Split, factors: Factors, codes: Int[Array, "n d"]) -> tuple[Float[Array, "n _"], ...]:
    """Return the unary log-evidence of every internal node in every row; a code below zero is missing."""
    dtype = jax.tree.leaves(factors)[0].dtype
    evidence = [jnp.zeros((codes.shape[0], size), dtype) for size in split.sizes]
    for node, (column, size) in enumerate(zip(split.columns, split.sizes, strict=True)):
        if column is not None:
            code = codes[:, column, None]
            allowed = (code < 0) | (code == jnp.arange(size)[None, :])
            evidence[node] = jnp.where(allowed, 0, jnp.asarray(IMPOSSIBLE, dtype))
    for stack, logs, base in zip(split.stacks, factors.leaves, factors.bases, strict=True):
        observed = codes[:, np.array([leaf.column for leaf in stack])]
        # Beyond the end, where the gather gives zero: JAX would count a negative index from the end.
        observed = jnp.where(observed < 0, logs.shape[1], observed)
        values = logs.at[jnp.arange(len(stack))[None, :], observed].get(mode="fill", fill_value=0) + base[None]
        nodes = sorted({leaf.node for leaf in stack})
        owner = np.array([[leaf.node == node for node in nodes] for leaf in stack])
        sums = einsum("nlk,lm->mnk", values, jnp.asarray(owner, dtype))
        for node, total in zip(nodes, sums, strict=True):
            evidence[node] = evidence[node] + total
    return tuple(evidence)


def row_partitions(split: Split, factors: Factors, codes: Int[Array, "n d"]) -> Float[Array, " n"]:
    """Return `A(tables, evidence(x))` of every row."""
    schedule = split.schedule()
    evidence = make_evidence(split, factors, codes)
    return jax.vmap(lambda row: log_partition(factors.tables, row, schedule))(evidence)


def log_normalizer(graph: Graph, factors: Factors) -> Float[Array, ""]:
    """Return `A(tables, evidence(nothing))`: the logarithm of the sum of an undirected model over all values."""
    if graph.is_directed:
        return jnp.zeros((), jax.tree.leaves(factors)[0].dtype)
    nothing = jnp.full((1, max(len(graph.observed), 1)), -1, jnp.int32)
    return row_partitions(split_graph(graph), factors, nothing)[0]


def floats_per_row(split: Split) -> int:
    """Return the size of the temporaries of one row, gradients included."""
    leaves = sum(len(stack) * split.sizes[stack[0].node] for stack in split.stacks)
    return 3 * (sum(split.schedule().table_sizes) + leaves)
