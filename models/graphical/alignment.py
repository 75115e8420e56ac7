"""Cliques that share their parameters: labels that agree, and tables that are averaged.

Every hidden variable is decomposed on its own, so the order of its states is arbitrary. Where two of them have leaves
with the same table, the columns of that table tell which states are the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latensor.decompose import match_columns
from latensor.models.graphical.layout import Layout, Pair, leaf_pair
from latensor.models.graphical.plan import Plan
from latensor.models.graphical.structure import is_leaf_clique

Tables = dict[int, Float[Array, "pairs size k"]]
"""`P(x | h)` of all pairs that are needed, by the number of states."""


def _shared_pairs(plan: Plan) -> list[list[Pair]]:
    """Return the groups of leaves that share a table."""
    graph = plan.canonical
    groups = []
    for group in graph.shared:
        cliques = [graph.cliques[number] for number in group]
        if all(is_leaf_clique(graph, clique) for clique in cliques):
            groups.append([leaf_pair(plan, clique) for clique in cliques])
    return groups


def align_tables(plan: Plan, layout: Layout, tables: Tables) -> Tables:
    """Return the tables with states in the same order wherever leaves are shared, and shared leaves averaged."""
    groups, aligned = _shared_pairs(plan), set[str]()
    while groups:
        # A group with a hidden variable whose order is settled comes first: its other variables follow that order.
        pairs = next((group for group in groups if aligned.intersection(name for name, _ in group)), groups[0])
        groups.remove(pairs)
        pairs = sorted(pairs, key=lambda pair: pair[0] not in aligned)
        k = layout.numbers[pairs[0]][0]
        numbers = [layout.numbers[pair][1] for pair in pairs]
        table = tables[k]
        order = jax.vmap(lambda one, first=table[numbers[0]]: match_columns(first, one, "assignment").permutation)
        orders = order(table[np.array(numbers)])
        # All tables of a hidden variable follow the order of its shared leaf.
        place = np.full(table.shape[0], -1)
        for hidden, mine in {name: i for i, (name, _) in reversed(list(enumerate(pairs)))}.items():
            if hidden not in aligned and mine > 0:
                place[[number for states, number in _own(layout, hidden) if states == k]] = mine
        chosen = jnp.where(jnp.asarray(place >= 0)[:, None], orders[np.maximum(place, 0)], jnp.arange(k)[None, :])
        table = jnp.take_along_axis(table, chosen[:, None, :], axis=2)
        mean = jnp.mean(table[np.array(sorted(set(numbers)))], axis=0)
        tables = tables | {k: table.at[np.array(numbers)].set(mean[None])}
        aligned |= {name for name, _ in pairs}
    return tables


def _own(layout: Layout, hidden: str) -> set[tuple[int, int]]:
    """Return the numbers of the tables that a hidden variable was decomposed for, not those it takes over."""
    taken = set()
    for batch in layout.triples:
        taken |= {(batch.num_states, number) for number, pair in enumerate(batch.pairs) if pair[0] == hidden}
    return taken
