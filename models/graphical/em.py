"""EM on the likelihood of rows, extrapolated and monotone.

E-step: the gradient of the log-likelihood by the log-factors, which is the expected counts of all cliques. M-step:
of a directed graph, normalized counts. Of an undirected graph, `log P(x | h)` of the leaves likewise; all other
potentials are moved towards

    max_θ Σ_c ⟨θ_c, μ_c⟩ − A(θ)

by one sweep of iterative proportional fitting, `θ_c += log μ_c − log P_θ(v_c)`, clique by clique, each of which is the
exact maximum over `θ_c`. For `m` cliques that share a potential, `θ += (log Σ_c μ_c − log Σ_c P_θ(v_c)) / m`, which
never lowers the objective either (generalized iterative scaling; Darroch, Ratcliff 1972).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_bool, check_number, divide
from latensor.decompose import Status
from latensor.decompose.internal import Evaluation, expectation_maximization, status_if, worst
from latensor.models.em import as_refined, better_start, blend, em_limits, history_length
from latensor.models.graphical.data import check_any_observed, check_pair
from latensor.models.graphical.factors import (
    Factors,
    Split,
    factors_of,
    floats_per_row,
    log_normalizer,
    row_partitions,
    safe_log,
    split_graph,
)
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.groups import value_frequencies
from latensor.models.graphical.params import Graphical
from latensor.models.results import Refined
from latensor.moments import Table, sum_over_rows
from latensor.moments.internal import average_weights

# An extrapolation keeps at least this share of each probability of the EM iterate.
_LEAST_SHARE = 0.01


def refine(
    params: Graphical,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 200,
    smoothing: float | Array = 1e-2,
    accelerate: bool = True,
    history: bool = False,
) -> Refined:
    """Improve `params` by EM on the likelihood of the rows, which never falls.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: integers `(n, d)`, one column per observed node in the order of the graph; or a `Table` of them. Values below
        zero are missing.
      mask: True where observed (default: everywhere).
      row_weights: one weight per row (default: equal).
      tol: stop when a cycle of two steps gains no more than this share of the log-likelihood; default: 10 machine
        epsilons in float32 and 1e-8 in float64.
      max_iters: limit on the steps.
      smoothing: of a directed graph, the share of overall frequencies (even ones, of hidden nodes) that is blended into
        the start, where that raises its likelihood.
      accelerate: extrapolate (Varadhan, Roland 2008) where that raises the likelihood; False is plain EM.
      history: also return the log-likelihood at the start and after each step; one compilation per `max_iters`.

    Returns:
      `Refined`. Probabilities of zero in the tables of a directed graph stay zero, unless blended, and shared tables
      stay the same.
      The status is `UNOBSERVED` where an observed node never is. Cost per step: three eliminations per row; for
      undirected graphs, one further elimination per clique of hidden nodes.

    """
    params, codes, weights = check_pair(params, x, mask=mask, row_weights=row_weights)
    check_any_observed(codes, weights)
    dtype = params.tables[0].dtype
    length = history_length(history, max_iters)
    tol, max_iters = em_limits(tol, max_iters, dtype)
    share = jnp.asarray(check_number("smoothing", smoothing, 0.0, 1.0), dtype)
    return _refine(params, codes, weights, tol, max_iters, share, check_bool("accelerate", accelerate), length)


@partial(jax.jit, static_argnames=("accelerate", "history"))
def _refine(
    params: Graphical,
    codes: Int[Array, "n d"],
    row_weights: Float[Array, " n"] | None,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
    smoothing: Float[Array, ""],
    accelerate: bool,
    history: int | None,
) -> Refined:
    graph, dtype = params.graph, params.tables[0].dtype
    split = split_graph(graph)
    weights = average_weights(row_weights, codes.shape[0], dtype)

    def step(params: Graphical) -> Evaluation:
        factors = factors_of(params)

        def block(codes: Array, weights: Array) -> tuple[Array, Factors]:
            def total(factors: Factors) -> Array:
                return jnp.sum(weights * row_partitions(split, factors, codes))

            return jax.value_and_grad(total)(factors)

        value, counts = sum_over_rows(block, codes, weights, floats_per_row=floats_per_row(split))
        # Weights that sum to one, within rounding.
        objective = value - jnp.sum(weights) * log_normalizer(graph, factors)
        update = _normalize_counts if graph.is_directed else _fit_potentials
        return Evaluation(update(params, split, factors, counts), objective)

    def begin(params: Graphical) -> tuple[Graphical, Array]:
        factors = factors_of(params)

        def block(codes: Array, weights: Array) -> Array:
            return jnp.sum(weights * row_partitions(split, factors, codes))

        return params, sum_over_rows(block, codes, weights, floats_per_row=floats_per_row(split))

    if graph.is_directed:
        params = better_start(begin, params, _blend(params, codes, weights, smoothing))
    result = expectation_maximization(
        step,
        params,
        tol=tol,
        max_iters=max_iters,
        feasible=_feasible if accelerate else None,
        history=history,
    )
    seen = jnp.any((codes >= 0) & (weights > 0)[:, None], axis=0)
    status = worst(result.status, status_if(~jnp.all(seen), Status.UNOBSERVED))
    return as_refined(result._replace(status=status), result.params)


def _blend(
    params: Graphical, codes: Int[Array, "n d"], weights: Float[Array, " n"], share: Float[Array, ""]
) -> Graphical:
    """Return the tables of a directed graph with a share of overall frequencies, of even ones for hidden nodes."""
    graph = params.graph
    frequencies = value_frequencies(codes, weights, max(graph.sizes.values()))
    columns = {name: column for column, name in enumerate(graph.observed)}
    tables = []
    for clique, table in zip(graph.cliques, params.tables, strict=True):
        d = table.shape[0]
        even = jnp.full(d, 1 / d, table.dtype)
        overall = frequencies[columns[clique[0]], :d] if clique[0] in columns else even
        tables.append(blend(table.reshape(d, -1), overall, share).reshape(table.shape))
    for group in graph.shared:
        mean = jnp.mean(jnp.stack([tables[number] for number in group]), axis=0)
        for number in group:
            tables[number] = mean
    return Graphical(graph, tuple(tables))


def _by_clique(graph: Graph, split: Split, parts: Factors) -> list[Array]:
    """Return tables and leaves of one kind of factors, such as counts, in the order and with the axes of cliques."""
    tables: list[Any] = [None] * len(graph.cliques)
    for number, table in zip(split.cliques, parts.tables, strict=True):
        tables[number] = table
    for stack, leaves in zip(split.stacks, parts.leaves, strict=True):
        for leaf, table in zip(stack, leaves, strict=True):
            tables[leaf.clique] = table if leaf.axis == 0 else table.T
    return tables


def _groups(graph: Graph) -> list[tuple[int, ...]]:
    """Return the groups of cliques that have the same parameters, those of one clique included."""
    grouped = {number for group in graph.shared for number in group}
    return [*(group for group in graph.shared if group), *((i,) for i in range(len(graph.cliques)) if i not in grouped)]


def _normalize_counts(params: Graphical, split: Split, factors: Factors, counts: Factors) -> Graphical:
    """Return the tables of a directed graph that make expected counts likeliest; those without counts stay."""
    del factors
    counted, tables = _by_clique(params.graph, split, counts), list(params.tables)
    for group in _groups(params.graph):
        table = params.tables[group[0]]
        # Zeros are the structure of the model; their counts are those of the floor that keeps logarithms finite.
        total = jnp.where(table > 0, sum(counted[number] for number in group), 0)
        updated = divide(total, jnp.sum(total, axis=0, keepdims=True), table)
        for number in group:
            tables[number] = updated
    return Graphical(params.graph, tuple(tables))


def _potentials(graph: Graph, split: Split, parts: Factors) -> list[Array]:
    """Return what iterative proportional fitting moves, by clique: the table, or the base of a leaf."""
    potentials: list[Any] = [None] * len(graph.cliques)
    for number, table in zip(split.cliques, parts.tables, strict=True):
        potentials[number] = table
    for stack, bases in zip(split.stacks, parts.bases, strict=True):
        for leaf, base in zip(stack, bases, strict=True):
            potentials[leaf.clique] = base
    return potentials


def _fitted_groups(graph: Graph, split: Split) -> list[tuple[int, ...]]:
    """Return the groups of cliques that are fitted.

    The base of a leaf is fitted only where it says what no other clique of its hidden node can: where there is none,
    or where their potentials are shared.
    """
    shared = {number for group in graph.shared if len(group) > 1 for number in group}
    scopes = zip(split.cliques, split.scopes, strict=True)
    free = {node for number, scope in scopes for node in scope if number not in shared}
    redundant = {leaf.clique for stack in split.stacks for leaf in stack if leaf.node in free} - shared
    return [group for group in _groups(graph) if not redundant.issuperset(group)]


def _fit_potentials(params: Graphical, split: Split, factors: Factors, counts: Factors) -> Graphical:
    """Return potentials of an undirected graph whose expected log-likelihood is higher, or as high."""
    graph, fitted = params.graph, _fitted_groups(params.graph, split)
    targets = _potentials(graph, split, counts)

    def normalizer(potentials: tuple[Array, ...]) -> Array:
        tables = tuple(potentials[number] for number in split.cliques)
        bases = tuple(jnp.stack([potentials[leaf.clique] for leaf in stack]) for stack in split.stacks)
        return log_normalizer(graph, Factors(tables, factors.leaves, bases))

    # One copy of the elimination for all groups: it gives the marginals of every clique anyway.
    def fit(number: Array | int, potentials: tuple[Array, ...]) -> tuple[Array, ...]:
        marginals, moved = jax.grad(normalizer)(potentials), list(potentials)
        for place, group in enumerate(fitted):
            target, marginal = (sum((part[i] for i in group[1:]), part[group[0]]) for part in (targets, marginals))
            step = (safe_log(target) - safe_log(marginal)) / len(group)
            for member in group:
                moved[member] = potentials[member] + jnp.where(place == number, step, 0)
        return tuple(moved)

    potentials = list(lax.fori_loop(0, len(fitted), fit, tuple(_potentials(graph, split, factors))))
    counted, before = _by_clique(graph, split, counts), _by_clique(graph, split, factors)
    axes = {leaf.clique: leaf.axis for stack in split.stacks for leaf in stack}
    for group in _groups(graph):
        if group[0] in axes:
            axis = axes[group[0]]
            total = sum(counted[member] for member in group)
            share = divide(total, jnp.sum(total, axis=axis, keepdims=True), jnp.exp(before[group[0]]))
            for member in group:
                potentials[member] = safe_log(share) + jnp.expand_dims(potentials[member], axis)
    return Graphical(graph, tuple(potentials))


def _feasible(jump: Graphical, back: Graphical) -> Graphical:
    """Return valid parameters from an extrapolation: of a directed graph, no probability below a share of EM's."""
    if not jump.graph.is_directed:
        return jump
    tables = []
    for new, old in zip(jump.tables, back.tables, strict=True):
        raised = jnp.maximum(new, _LEAST_SHARE * old)
        tables.append(divide(raised, jnp.sum(raised, axis=0, keepdims=True), old))
    return Graphical(jump.graph, tuple(tables))
