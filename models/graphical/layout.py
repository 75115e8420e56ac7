"""A plan as arrays of numbers: which columns of the data, which rows of which table. On the host, once for each plan.

Everything that depends on the graph is an array, so another graph with the same shapes runs the programs that were
compiled for this one.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from latensor.models.graphical.plan import Plan, Views
from latensor.models.graphical.structure import are_separated, copies, is_leaf_clique

LARGEST_TABLE = 2**16
"""Views of a set are counted in one table of at most this many cells. Beyond it, samples are read one by one."""

Pair = tuple[str, str]
"""A hidden and an observed variable."""


class Regression(NamedTuple):
    """Pairs whose tables are found by regression on the same view of a triple."""

    pairs: tuple[Pair, ...]
    view: int
    """The place of the view in the triple: of the first candidate."""
    triples: np.ndarray
    """The number of that triple, for each pair."""
    columns: np.ndarray
    """The column of each variable."""
    references: np.ndarray
    """The columns of the view, `(pairs, g)`; −1 is padding."""


class TripleBatch(NamedTuple):
    """Triples of views of hidden variables with the same number of states."""

    num_states: int
    hidden: tuple[str, ...]
    columns: tuple[np.ndarray, np.ndarray, np.ndarray]
    """Columns of the three groups, `(triples, g)`; −1 is padding."""
    first: np.ndarray
    """The first candidate of each hidden variable."""
    num_candidates: np.ndarray
    """How many it has."""
    read: tuple[Pair, ...]
    """Pairs whose tables are rows of a triple."""
    owner: np.ndarray
    """The place in `hidden` of each of these pairs."""
    start: np.ndarray
    """The first row of the pair in each candidate of its hidden variable, `(pairs, candidates)`."""
    regressed: tuple["Regression", ...]
    """Pairs whose tables are not."""
    known: tuple[Pair, ...]
    """Pairs that are always equal: their tables are identity matrices."""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs whose tables are found here, in the order of the tables."""
        return (*self.read, *(pair for part in self.regressed for pair in part.pairs), *self.known)


class SetBatch(NamedTuple):
    """Sets of hidden variables with the same numbers of states."""

    subsets: tuple[int, ...]
    """Their numbers in the plan."""
    shape: tuple[int, ...]
    columns: tuple[np.ndarray, ...]
    """For each position the columns of the views, `(sets, v)`; −1 is padding."""
    tables: tuple[np.ndarray, ...]
    """The numbers of their tables among those of the same number of states."""
    kept: tuple[int, ...]
    """For each position, how many of its views are in the table of the sets' views: as many as leave it small."""
    is_whole: bool
    """Whether that table has all views and is small: it then stands for the samples."""


class Layout(NamedTuple):
    """A plan as arrays."""

    size: int
    """Room for the values of every observed variable."""
    sizes: Mapping[str, int]
    """The number of values of every variable of the canonical graph."""
    columns: Mapping[str, int]
    """The column of every observed variable of the canonical graph; copies have the same."""
    triples: tuple[TripleBatch, ...]
    numbers: Mapping[Pair, tuple[int, int]]
    """For every pair, the number of states and the number of its table."""
    sets: tuple[SetBatch, ...]


@lru_cache(maxsize=64)
def make_layout(plan: Plan) -> Layout:
    """Return a plan as arrays."""
    graph = plan.canonical
    place = {name: number for number, name in enumerate(plan.graph.observed)}
    columns = {name: place[name] for name in graph.observed if name in place}
    for name, _ in plan.replaced:
        columns |= dict.fromkeys(copies(name), place[name])
    size = max(graph.sizes[name] for name in graph.observed)
    needed = _needed_pairs(plan)
    by_states: dict[int, list[Views]] = {}
    for views in plan.views:
        by_states.setdefault(graph.sizes[views.hidden], []).append(views)
    triples = tuple(_triple_batch(plan, k, views, needed, columns, size) for k, views in sorted(by_states.items()))
    numbers: dict[Pair, tuple[int, int]] = {}
    for batch in triples:
        numbers |= {pair: (batch.num_states, number) for number, pair in enumerate(batch.pairs)}
    for views in plan.views:
        if views.like is not None:
            for leaf, other in _shared_leaves(plan, views.hidden, views.like):
                numbers[views.hidden, leaf] = numbers[views.like, other]
    return Layout(size, graph.sizes, columns, triples, numbers, _set_batches(plan, numbers, columns, size))


def leaf_pair(plan: Plan, clique: tuple[str, ...]) -> Pair:
    """Return the hidden and the observed variable of a clique with a leaf."""
    one, other = clique
    return (one, other) if one in plan.canonical.hidden else (other, one)


def _needed_pairs(plan: Plan) -> dict[str, list[str]]:
    """Return for each hidden variable the observed ones whose distributions given it are needed."""
    needed: dict[str, list[str]] = {name: [] for name in plan.canonical.hidden}
    for clique in plan.canonical.cliques:
        if is_leaf_clique(plan.canonical, clique):
            hidden, leaf = leaf_pair(plan, clique)
            needed[hidden].append(leaf)
    for subset in plan.subsets:
        for hidden, views in zip(subset.hidden, subset.views, strict=True):
            needed[hidden] += [name for name in views if name not in needed[hidden]]
    return needed


def _shared_leaves(plan: Plan, hidden: str, like: str) -> list[Pair]:
    """Return the leaves of a hidden variable and those of another one that they share their tables with."""
    graph = plan.canonical
    found = []
    for group in graph.shared:
        cliques = [graph.cliques[number] for number in group]
        mine = [clique for clique in cliques if hidden in clique and is_leaf_clique(graph, clique)]
        theirs = [clique for clique in cliques if like in clique and is_leaf_clique(graph, clique)]
        if mine and theirs:
            other = next(name for name in theirs[0] if name != like)
            found += [(next(name for name in clique if name != hidden), other) for clique in mine]
    return found


def _pad(rows: list[list[int]]) -> np.ndarray:
    """Return lists of numbers as one array; −1 is padding."""
    width = max(len(row) for row in rows)
    return np.array([row + [-1] * (width - len(row)) for row in rows], np.int32)


def _triple_batch(
    plan: Plan,
    num_states: int,
    all_views: list[Views],
    needed: dict[str, list[str]],
    columns: dict[str, int],
    size: int,
) -> TripleBatch:
    sizes = plan.canonical.sizes
    found: list[list[tuple[str, ...]]] = []
    hidden, first, count = [], [], []
    for views in all_views:
        if not views.triples:
            continue
        # A candidate that lacks what is needed would have it by regression, which is less accurate.
        whole = [triple for triple in views.triples if set(needed[views.hidden]) <= {v for g in triple for v in g}]
        candidates = whole or list(views.triples[:1])
        hidden.append(views.hidden)
        first.append(len(found))
        count.append(len(candidates))
        # The view with most variables comes last: the others are mapped to it.
        found += [sorted(triple, key=len) for triple in candidates]
    none = np.zeros((0, 1), np.int32)
    groups = [_pad([[columns[name] for name in triple[g]] for triple in found]) if found else none for g in range(3)]
    offsets = np.cumsum([0, *(size * group.shape[1] for group in groups)])

    read, owner, start, known = [], [], [], []
    regressed: dict[int, list[tuple[Pair, int]]] = {}
    for number, name in enumerate(hidden):
        mine = found[first[number] : first[number] + count[number]]
        for leaf in needed[name]:
            rows = [_row_of(leaf, triple, offsets, size) for triple in mine]
            here = [row for row in rows if row is not None]
            if len(here) == len(rows):
                read.append((name, leaf))
                owner.append(number)
                start.append(here)
                continue
            given = (g for g, group in enumerate(mine[0]) if are_separated(plan.canonical, group, [leaf], [name]))
            regressed.setdefault(next(given), []).append(((name, leaf), first[number]))
    for views in all_views:
        if views.known is not None:
            known += [(views.hidden, leaf) for leaf in needed[views.hidden] if sizes[leaf] == num_states]
    return TripleBatch(
        num_states,
        tuple(hidden),
        (groups[0], groups[1], groups[2]),
        np.array(first, np.int32),
        np.array(count, np.int32),
        tuple(read),
        np.array(owner, np.int32),
        _pad(start) if start else np.zeros((0, 1), np.int32),
        tuple(
            Regression(
                tuple(pair for pair, _ in members),
                view,
                np.array([triple for _, triple in members], np.int32),
                np.array([columns[leaf] for (_, leaf), _ in members], np.int32),
                groups[view][np.array([triple for _, triple in members])],
            )
            for view, members in sorted(regressed.items())
        ),
        tuple(known),
    )


def _row_of(leaf: str, triple: list[tuple[str, ...]], offsets: np.ndarray, size: int) -> int | None:
    """Return the first row of a variable in the stacked conditionals of a triple."""
    for offset, group in zip(offsets, triple, strict=False):
        if leaf in group:
            return int(offset) + size * group.index(leaf)
    return None


def _set_batches(
    plan: Plan, numbers: Mapping[Pair, tuple[int, int]], columns: Mapping[str, int], size: int
) -> tuple[SetBatch, ...]:
    sizes = plan.canonical.sizes
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for number, subset in enumerate(plan.subsets):
        by_shape.setdefault(tuple(sizes[name] for name in subset.hidden), []).append(number)
    batches = []
    for shape, subsets in sorted(by_shape.items()):
        parts = [plan.subsets[number] for number in subsets]
        at_columns, at_tables = [], []
        for position in range(len(shape)):
            views = [(part.hidden[position], part.views[position]) for part in parts]
            at_columns.append(_pad([[columns[leaf] for leaf in group] for _, group in views]))
            at_tables.append(_pad([[numbers[name, leaf][1] for leaf in group] for name, group in views]))
        # A hidden variable needs as many views as tell its states apart, in the sets where it has the fewest values.
        least = [
            max(_num_sufficient(sizes, k, part.views[position]) for part in parts) for position, k in enumerate(shape)
        ]
        present = tuple(part.shape[1] for part in at_columns)
        kept = _keep_views(present, least, size + 1)
        is_whole = kept == present and (size + 1) ** sum(kept) <= LARGEST_TABLE
        batches.append(SetBatch(tuple(subsets), shape, tuple(at_columns), tuple(at_tables), kept, is_whole))
    return tuple(batches)


def _num_sufficient(sizes: Mapping[str, int], num_states: int, views: Sequence[str]) -> int:
    """Return how many of the first views have enough values together."""
    values = 1
    for number, view in enumerate(views, 1):
        values *= sizes[view]
        if values >= num_states:
            return number
    return len(views)


def _keep_views(present: Sequence[int], least: Sequence[int], base: int) -> tuple[int, ...]:
    """Return how many views of each position are kept, at least `least`, such that the table has few cells."""
    kept = list(present)
    while base ** sum(kept) > LARGEST_TABLE:
        spare = [have - need for have, need in zip(kept, least, strict=True)]
        if max(spare) <= 0:
            break
        kept[spare.index(max(spare))] -= 1
    return tuple(kept)
