"""What the data say about an estimate: the rank of the views of every hidden variable, and the gain over one state.

With one state for every hidden variable the leaves are independent, so the gain is that over independent variables.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import divide, matmul, small_jit
from latensor.decompose import Status
from latensor.decompose.internal import status_if, worst
from latensor.models.evidence import (
    Evidence,
    add_evidence,
    bounded,
    draw_halves,
    judge_gain,
    last_singular_vectors,
)
from latensor.models.graphical.estimate import Found
from latensor.models.graphical.factors import safe_log
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.groups import indicators, spread, take, value_frequencies
from latensor.models.graphical.layout import make_layout
from latensor.models.graphical.likelihood import row_log_likelihoods
from latensor.models.graphical.moments import GraphData
from latensor.models.graphical.params import Graphical, num_parameters
from latensor.models.graphical.plan import Plan, allows_exact_inference
from latensor.models.results import Fit
from latensor.moments import Table, map_over_rows, sum_over_rows
from latensor.moments.internal import choose_rows

# Rows whose likelihood is compared.
_NUM_ROWS = 512


# Three views of a hidden variable are three pairs.
_PAIRS = ((0, 1), (0, 2), (1, 2))

Columns = tuple[Int[Array, "h g1"], Int[Array, "h g2"], Int[Array, "h g3"]]
"""Three groups of variables for each hidden one; −1 is padding."""


class _Halves(NamedTuple):
    """Moments of pairs of views in two halves of the rows, for each pair and each hidden variable."""

    pairs: tuple[Float[Array, "h 2 _ _"], ...]
    rates: tuple[Float[Array, "h 2 _ _"], ...]
    """How often two variables are observed."""
    first: tuple[Float[Array, "h _"], ...]
    """Of the three views, in all rows: the sum over both halves."""


def view_ranks(key: Array, data: GraphData, columns: Columns, rank: int, size: int) -> Float[Array, " h"]:
    """Return `Evidence.rank` of hidden variables with as many states as `rank`: that of their least clear two views.

    The `rank`-th singular vectors of the pair moment in one half of the rows are looked at in the other half, in units
    of `√p`. Entries are averages over the rows that have them.

    Args:
      key: a random key, for the halves.
      data: the data.
      columns: the views.
      rank: the number of states.
      size: room for the values of every variable.

    """
    # Stages of their own: only those that read the data are compiled again for another number of rows.
    directions = _last_directions(_halve(key, data, columns, size), rank, size)
    return _judge_directions(key, data, columns, directions, size)


@small_jit(static_argnames="size")
def _halve(key: Array, data: GraphData, columns: Columns, size: int) -> _Halves:
    halves, dtype = draw_halves(key, data.codes.shape[0]), data.weights.dtype
    width = size * sum(part.shape[1] for part in columns)

    def one(groups: tuple[Array, Array, Array]) -> _Halves:
        def sums(codes: Array, both: tuple[Array, Array]) -> _Halves:
            parts = [take(codes, group) for group in groups]
            values = [indicators(part, size, dtype) for part in parts]
            seen = [(part >= 0).astype(dtype) for part in parts]
            pairs, rates = (
                tuple(jnp.stack([matmul((share[:, None] * views[a]).T, views[b]) for share in both]) for a, b in _PAIRS)
                for views in (values, seen)
            )
            return _Halves(pairs, rates, tuple(matmul(both[0] + both[1], value) for value in values))

        return sum_over_rows(sums, data.codes, halves.weights(data.weights), floats_per_row=3 * width)

    return lax.map(one, columns)


@small_jit(static_argnames=("rank", "size"))
def _last_directions(halves: _Halves, rank: int, size: int) -> tuple[Float[Array, "h 2 _ _"], ...]:
    """Return matrices: the sum of the entries that a row has is `uᵀ M v` on average, with `u, v` of the other half."""

    def one(halves: _Halves) -> tuple[Float[Array, "2 _ _"], ...]:
        units, directions = [divide(1, jnp.sqrt(part)) for part in halves.first], []
        for (a, b), pair, rate in zip(_PAIRS, halves.pairs, halves.rates, strict=True):
            scale = units[a][:, None] * units[b][None, :]
            each = jax.vmap(lambda rate: spread(divide(1, rate), size))(rate)
            u, v = last_singular_vectors(pair * each * scale[None], rank)
            every = spread(divide(1, jnp.mean(rate, axis=0)), size)
            directions.append(u[:, :, None] * v[:, None, :] * (scale * every)[None])
        return tuple(directions)

    return lax.map(one, halves)


@small_jit(static_argnames="size")
def _judge_directions(
    key: Array, data: GraphData, columns: Columns, directions: tuple[Float[Array, "h 2 _ _"], ...], size: int
) -> Float[Array, " h"]:
    halves, dtype = draw_halves(key, data.codes.shape[0]), data.weights.dtype
    width = size * sum(part.shape[1] for part in columns)

    def one(given: tuple[tuple[Array, ...], tuple[Array, ...]]) -> Float[Array, ""]:
        groups, matrices = given

        def evaluate(codes: Array) -> Float[Array, "n 6"]:
            views = [indicators(take(codes, group), size, dtype) for group in groups]
            forms = [
                jnp.sum(matmul(views[a], matrix) * views[b], axis=1)
                for (a, b), both in zip(_PAIRS, matrices, strict=True)
                for matrix in both
            ]
            return jnp.stack(forms, axis=1)

        values = map_over_rows(evaluate, data.codes, floats_per_row=3 * width)
        ranks = [halves.judge(values[:, 2 * pair : 2 * pair + 2], data.weights) for pair in range(3)]
        return jnp.min(jnp.stack(ranks))

    return lax.map(one, (columns, directions))


class _Rows(NamedTuple):
    """Some rows, and what is known of them if all observed variables are independent."""

    codes: Int[Array, "m p"]
    log_likelihoods: Float[Array, " m"]
    noise: Float[Array, ""]
    status: Int[Array, ""]
    """`UNOBSERVED` where a variable never is."""


@small_jit(static_argnames="size")
def _choose_rows(data: GraphData, size: int) -> _Rows:
    frequencies = value_frequencies(data.codes, data.weights, size)
    rows = choose_rows(Table(data.codes, row_weights=data.weights), _NUM_ROWS).x
    columns = jnp.arange(rows.shape[1])[None, :]
    logs = jnp.where(rows >= 0, safe_log(frequencies)[columns, jnp.maximum(rows, 0)], 0)
    unseen = jnp.any(jnp.sum(frequencies, axis=1) == 0)
    return _Rows(rows, jnp.sum(logs, axis=1), data.noise, status_if(unseen, Status.UNOBSERVED))


@small_jit
def _weigh_gain(params: Graphical, rows: _Rows) -> Evidence:
    """Return how much likelier rows are than if all observed variables were independent."""
    gains = row_log_likelihoods(params, rows.codes) - rows.log_likelihoods
    more = num_parameters(params) - sum(params.graph.sizes[name] - 1 for name in params.graph.observed)
    return judge_gain(None, gains, max(more, 0), divide(1, rows.noise))


def judge(key: Array, result: Fit, found: Mapping[int, Found], plan: Plan, data: GraphData) -> Fit:
    """Return an estimate with what the data say about it."""
    layout = make_layout(plan)
    ranks: dict[str, Array] = {}
    for batch in layout.triples:
        if batch.hidden:
            one, two, three = (jnp.asarray(part)[found[batch.num_states].chosen] for part in batch.columns)
            clear = view_ranks(key, data, (one, two, three), batch.num_states, layout.size)
            ranks |= dict(zip(batch.hidden, bounded(clear), strict=True))
    evidence = Evidence(None, None, None)
    rows = _choose_rows(data, layout.size)
    if allows_exact_inference(plan.canonical, plan.treewidth):
        evidence = _weigh_gain(_without_names(result.params), rows)
    rank = jnp.min(jnp.stack(list(ranks.values()))) if ranks else None
    status = worst(result.status, rows.status)
    result = result._replace(status=status, diagnostics=result.diagnostics._replace(rank=ranks))
    return add_evidence(result, evidence._replace(rank=rank))


def _without_names(params: Graphical) -> Graphical:
    """Return the same model of nodes named by their numbers: another graph of this form is compiled already."""
    graph = params.graph
    names = {node.name: str(number) for number, node in enumerate(graph.nodes)}
    nodes = tuple(node._replace(name=names[node.name]) for node in graph.nodes)
    cliques = tuple(tuple(names[name] for name in clique) for clique in graph.cliques)
    return Graphical(Graph(nodes, cliques, graph.is_directed, graph.shared), params.tables)
