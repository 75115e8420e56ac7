"""Graphical models from moments: conditional distributions, joint distributions of cliques, then parameters."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_integer, check_key, check_option, is_concrete, small_jit
from latensor.decompose import Marginals, Status
from latensor.decompose.internal import VIEW_METHODS, ViewMethod, finite_status, status_if, worst
from latensor.models.evidence import effective_rows
from latensor.models.graphical.alignment import Tables, align_tables
from latensor.models.graphical.conditionals import (
    Factored,
    choose_triples,
    factor_all,
    moments_of_groups,
    read_tables,
    regress_tables,
)
from latensor.models.graphical.data import check_any_observed, check_codes
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.layout import Layout, TripleBatch, make_layout
from latensor.models.graphical.marginals import MARGINALS, Position, set_marginals
from latensor.models.graphical.plan import Plan
from latensor.models.graphical.plan import plan as make_plan
from latensor.models.graphical.recovery import recover
from latensor.models.results import Fit, Spectrum
from latensor.moments import Table
from latensor.moments.internal import average_weights


class Diagnostics(NamedTuple):
    """How the stages of `fit` went."""

    spectrum: dict[str, Spectrum]
    """For each hidden variable with views: the singular values of the pair of them that is least clear of noise, in
    units of `√p`, and the size of those of noise alone. What is not clear of it cannot be told apart."""
    triple: dict[str, Int[Array, ""]]
    """For each of them, the number of the triple of views that was chosen, of those that hold all that is needed."""
    conditionals_status: Int[Array, ""]
    """How the decompositions went."""
    marginals_status: Int[Array, ""]
    """How the joint distributions were found."""
    gap: Float[Array, ""]
    """The log-likelihood of no joint distribution is farther than this from its maximum, in nats per sample."""
    gradient_norm: Float[Array, ""] | None
    """Of the likelihood or pseudolikelihood at the potentials of an undirected graph; `None` for a directed one."""


class _Options(NamedTuple):
    marginals: str
    method: ViewMethod
    num_restarts: int


def fit(
    key: Array,
    x: Table | ArrayLike,
    graph: Graph | Plan,
    *,
    mask: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    marginals: Literal["likelihood", "pseudoinverse"] = "likelihood",
    parameters: Literal["auto", "normalize", "likelihood", "pseudolikelihood"] = "auto",
    method: Literal["power", "ojd0", "ojd1", "nojd0", "nojd1"] = "power",
    num_restarts: int = 20,
) -> Fit:
    """Estimate the parameters of a graph with hidden variables.

    Args:
      key: a random key, for the restarts.
      x: a `Table`, or integers `(n, p)`: the values of the observed nodes, in the order of `graph.observed`; below zero
        where missing.
      graph: a `Graph`, or its `Plan`.
      mask: `(n, p)` bool, True where observed. Values must be missing for reasons that do not depend on them.
      row_weights: one weight per sample (default: equal).
      marginals: how joint distributions of hidden variables follow from those of their views: by the composite
        `"likelihood"`, or by the `"pseudoinverse"`, which is linear and less efficient.
      parameters: how parameters follow from joint distributions; see `plan`. Ignored where `graph` is a plan.
      method: the decomposition of three views; see `latensor.decompose.conditionals_from_views`.
      num_restarts: random starts of the decomposition per state, or random projections.

    Returns:
      `Fit` with `Diagnostics`. States of a hidden variable are in decreasing order of their probability. The status is
      `RANK_DEFICIENT` where the views of a hidden variable do not tell all its states apart from noise.

    Cost: one pass over the data for each hidden variable, and some for each clique, `O(n Π k)` each.

    """
    key = check_key(key)
    check_option("marginals", marginals, MARGINALS)
    check_option("method", method, VIEW_METHODS)
    options = _Options(marginals, method, check_integer("num_restarts", num_restarts, 1))
    if not isinstance(graph, Graph | Plan):
        raise ValueError(f"graph: expected a Graph or a Plan; got {type(graph).__name__}")
    plan = graph if isinstance(graph, Plan) else make_plan(graph, parameters=parameters)
    codes, given = check_codes(plan.graph, x, mask=mask, row_weights=row_weights)
    check_any_observed(codes, given)
    layout = make_layout(plan)
    data = _prepare(codes, given)
    complete = is_concrete(codes) and not np.any(np.asarray(codes) < 0)
    found, tables = _find_conditionals(key, data, layout, options, complete)
    tables = align_tables(plan, layout, tables)
    joints = _find_joints(data, layout, tables, marginals)
    return _assemble(plan, layout, found, tables, joints, data.number)


class _Data(NamedTuple):
    codes: Int[Array, "n p"]
    weights: Float[Array, " n"]
    """They sum to one."""
    number: Float[Array, ""]
    """Of samples; of weighted ones, of as many equal ones as say as much."""


class _Found(NamedTuple):
    """The decompositions of hidden variables with the same number of states, and which triple was chosen for each."""

    factored: Factored
    chosen: Int[Array, " h"]


@jax.jit
def _prepare(codes: Int[Array, "n p"], row_weights: Float[Array, " n"] | None) -> _Data:
    weights = average_weights(row_weights, codes.shape[0], jnp.result_type(float))
    return _Data(codes, weights, effective_rows(weights))


def _find_conditionals(
    key: Array, data: _Data, layout: Layout, options: _Options, complete: bool
) -> tuple[dict[int, _Found], Tables]:
    found, tables = {}, {}
    for batch in layout.triples:
        k, parts = batch.num_states, []
        if batch.hidden:
            moments = moments_of_groups(data.codes, data.weights, batch.columns, layout.size, complete)
            factored = factor_all(key, moments, data.number, k, options.method, options.num_restarts)
            chosen = choose_triples(factored, jnp.asarray(batch.first), jnp.asarray(batch.num_candidates))
            found[k] = _Found(factored, chosen)
            parts.append(_read(layout, batch, factored, chosen))
            if batch.regressed:
                parts.append(_regress(data, layout, batch, factored, complete))
        if batch.known:
            parts.append(jnp.broadcast_to(jnp.eye(layout.size, k), (len(batch.known), layout.size, k)))
        tables[k] = jnp.concatenate(parts)
    return found, tables


def _read(
    layout: Layout, batch: TripleBatch, factored: Factored, chosen: Int[Array, " h"]
) -> Float[Array, "pairs size k"]:
    mine = chosen[batch.owner]
    start = jnp.take_along_axis(jnp.asarray(batch.start), (mine - batch.first[batch.owner])[:, None], axis=1)[:, 0]
    sizes = np.array([layout.sizes[leaf] for _, leaf in batch.read], np.int32)
    return read_tables(factored.rows, mine, start, sizes, layout.size)


def _regress(
    data: _Data, layout: Layout, batch: TripleBatch, factored: Factored, complete: bool
) -> Float[Array, "pairs size k"]:
    """Return the tables of pairs that are in no view, each from a view of the first candidate."""
    widths = np.cumsum([0, *(layout.size * group.shape[1] for group in batch.columns)])
    tables = []
    for (hidden, leaf), view in batch.regressed:
        triple = int(batch.first[batch.hidden.index(hidden)])
        rows = factored.rows[triple, widths[view] : widths[view + 1]]
        tables.append(
            regress_tables(
                data.codes,
                data.weights,
                np.array([layout.columns[leaf]]),
                batch.columns[view][triple][None],
                rows[None],
                factored.weights[triple][None],
                np.array([layout.sizes[leaf]]),
                layout.size,
                complete,
            )
        )
    return jnp.concatenate(tables)


def _find_joints(data: _Data, layout: Layout, tables: Tables, method: str) -> list[Marginals]:
    return [
        set_marginals(
            data.codes,
            data.weights,
            tuple(Position(jnp.asarray(c), jnp.asarray(t)) for c, t in zip(batch.columns, batch.tables, strict=True)),
            tuple(tables[k] for k in batch.shape),
            method,
        )
        for batch in layout.sets
    ]


@small_jit
def _status(found: dict[int, _Found], joints: list[Marginals]) -> tuple[Array, Array, Array, Array]:
    """Return the statuses of decompositions and of joint distributions, the largest gap, and the most iterations."""
    factored = [jax.tree.map(lambda part, chosen=one.chosen: part[chosen], one.factored) for one in found.values()]
    statuses = [jnp.max(one.status) for one in factored]
    for one in factored:
        unclear = one.spectrum.values[:, -1] <= one.spectrum.noise
        statuses.append(status_if(jnp.any(unclear), Status.RANK_DEFICIENT))
    iters = jnp.stack([jnp.max(one.num_iters) for one in (*factored, *joints)])
    gap = jnp.max(jnp.stack([jnp.max(one.gap) for one in joints]))
    return worst(*statuses), worst(*(jnp.max(one.status) for one in joints)), gap, jnp.max(iters)


def _assemble(
    plan: Plan,
    layout: Layout,
    found: dict[int, _Found],
    tables: Tables,
    joints: list[Marginals],
    number: Float[Array, ""],
) -> Fit:
    by_subset = {
        number: one.table[place]
        for batch, one in zip(layout.sets, joints, strict=True)
        for place, number in enumerate(batch.subsets)
    }
    recovered = recover(plan, layout, tables, by_subset, number)
    conditionals_status, marginals_status, gap, num_iters = _status(found, joints)
    spectra, triples = {}, {}
    for batch in layout.triples:
        for place, name in enumerate(batch.hidden):
            one = found[batch.num_states]
            spectra[name] = jax.tree.map(lambda part, t=one.chosen[place]: part[t], one.factored.spectrum)
            triples[name] = one.chosen[place] - batch.first[place]
    residual = jnp.max(jnp.stack([jnp.max(one.factored.residual[one.chosen]) for one in found.values()]))
    status = worst(conditionals_status, marginals_status, recovered.status, finite_status(recovered.params.tables))
    diagnostics = Diagnostics(spectra, triples, conditionals_status, marginals_status, gap, recovered.gradient_norm)
    return Fit(recovered.params, status, num_iters, residual, diagnostics)
