"""The stages of an estimate: moments, conditional distributions, joint distributions, parameters."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from latensor.base import divide, small_jit
from latensor.decompose import Marginals
from latensor.decompose.internal import ViewMethod, finite_status, worst
from latensor.models.evidence import Evidence
from latensor.models.graphical.alignment import Tables, align_tables
from latensor.models.graphical.conditionals import choose_triples, factor_all, read_tables, regress_tables
from latensor.models.graphical.layout import Layout, Pair, make_layout
from latensor.models.graphical.marginals import Position, sample_marginals, table_marginals
from latensor.models.graphical.moments import GraphData, GraphMoments
from latensor.models.graphical.order import sort_states, state_probabilities
from latensor.models.graphical.recovery import recover
from latensor.models.results import Fit, Spectrum
from latensor.models.views import Factored


class Diagnostics(NamedTuple):
    """How the stages of `fit` went."""

    spectrum: Spectrum | None
    """Of the hidden variables with the most states, that of the one least clear of noise; see `spectra`."""
    spectra: dict[str, Spectrum]
    """For each hidden variable with views: the singular values of the pair of them that is least clear of noise, in
    units of `√p`, and the size of those of noise alone."""
    triple: dict[str, Int[Array, ""]]
    """For each of them, the number of the triple of views that was chosen, of those that hold all that is needed."""
    rank: dict[str, Float[Array, ""]]
    """For each of them, `evidence.rank` of its least clear pair of views; empty for exact moments."""
    conditionals_status: Int[Array, ""]
    """How the decompositions went."""
    marginals_status: Int[Array, ""]
    """How the joint distributions were found."""
    gap: Float[Array, ""]
    """The log-likelihood of no joint distribution is farther than this from its maximum, in nats per sample."""
    gradient_norm: Float[Array, ""] | None
    """Of the likelihood or pseudolikelihood at the potentials of an undirected graph; `None` for a directed one."""
    evidence: Evidence
    """What the data say about the estimate. The gain is that over independent variables, where exact inference is
    possible; `None` elsewhere, and for exact moments."""


class Options(NamedTuple):
    """Those of `fit` that decide what is computed."""

    marginals: str
    method: ViewMethod
    num_restarts: int


class Found(NamedTuple):
    """The decompositions of hidden variables with the same number of states, and which triple was chosen for each."""

    factored: Factored
    chosen: Int[Array, " h"]


def estimate(
    key: Array, moments: GraphMoments, options: Options, data: GraphData | None
) -> tuple[Fit, dict[int, Found]]:
    """Return the estimate from moments, and the decompositions behind it, by the number of states.

    `data` are read where the moments lack the table of a set of views.
    """
    layout = make_layout(moments.plan)
    found, tables = _find_conditionals(key, moments, layout, options)
    tables = align_tables(moments.plan, layout, tables)
    joints = _find_joints(moments, layout, tables, options.marginals, data)
    return _assemble(moments, layout, found, tables, joints), found


def _find_conditionals(
    key: Array, moments: GraphMoments, layout: Layout, options: Options
) -> tuple[dict[int, Found], Tables]:
    found, tables = {}, {}
    for batch, triples, pairs in zip(layout.triples, moments.triples, moments.pairs, strict=True):
        k, parts = batch.num_states, []
        if triples is not None:
            factored = factor_all(key, triples, moments.noise, k, options.method, options.num_restarts)
            chosen = choose_triples(factored, jnp.asarray(batch.first), jnp.asarray(batch.num_candidates))
            found[k] = Found(factored, chosen)
            sizes = _sizes(layout, batch.read)
            owner, first, start = map(jnp.asarray, (batch.owner, batch.first[batch.owner], batch.start))
            parts.append(read_tables(factored.rows, chosen, owner, first, start, sizes, layout.size))
            widths = np.cumsum([0, *(layout.size * group.shape[1] for group in batch.columns)])
            for part, moment in zip(batch.regressed, pairs, strict=True):
                rows = factored.rows[part.triples, widths[part.view] : widths[part.view + 1]]
                states = factored.weights[part.triples]
                parts.append(regress_tables(moment, rows, states, _sizes(layout, part.pairs)))
        if batch.known:
            parts.append(jnp.broadcast_to(jnp.eye(layout.size, k), (len(batch.known), layout.size, k)))
        tables[k] = jnp.concatenate(parts)
    return found, tables


def _sizes(layout: Layout, pairs: tuple[Pair, ...]) -> Int[Array, " pairs"]:
    """Return the number of values of the observed variable of each pair."""
    return jnp.asarray([layout.sizes[leaf] for _, leaf in pairs], jnp.int32)


def _find_joints(
    moments: GraphMoments, layout: Layout, tables: Tables, method: str, data: GraphData | None
) -> list[Marginals]:
    joints = []
    for batch, counts in zip(layout.sets, moments.sets, strict=True):
        places = tuple(
            Position(jnp.asarray(c), jnp.asarray(t)) for c, t in zip(batch.columns, batch.tables, strict=True)
        )
        mine = tuple(tables[k] for k in batch.shape)
        if counts is not None:
            joints.append(table_marginals(counts, places, mine, batch.kept, method))
        else:
            assert data is not None
            joints.append(sample_marginals(data.codes, data.weights, places, mine, method))
    return joints


class _Summary(NamedTuple):
    conditionals_status: Int[Array, ""]
    marginals_status: Int[Array, ""]
    status: Int[Array, ""]
    gap: Float[Array, ""]
    num_iters: Int[Array, ""]
    residual: Float[Array, ""]


@small_jit
def _summarize(
    found: dict[int, Found], joints: list[Marginals], recovered_status: Array, tables: tuple[Array, ...]
) -> _Summary:
    """Return how the stages ended: the worst of every kind."""
    factored = [jax.tree.map(lambda part, chosen=one.chosen: part[chosen], one.factored) for one in found.values()]
    gap = jnp.max(jnp.stack([jnp.max(one.gap) for one in joints]))
    conditionals, marginals = (worst(*(jnp.max(one.status) for one in part)) for part in (factored, joints))
    return _Summary(
        conditionals,
        marginals,
        worst(conditionals, marginals, recovered_status, finite_status(tables)),
        gap,
        jnp.max(jnp.stack([jnp.max(one.num_iters) for one in (*factored, *joints)])),
        jnp.max(jnp.stack([jnp.zeros_like(gap), *(jnp.max(one.residual) for one in factored)])),
    )


@small_jit
def _least_clear(found: dict[int, Found]) -> Spectrum | None:
    if not found:
        return None
    factored, chosen = found[max(found)]
    values, noise = factored.spectrum.values[chosen], factored.spectrum.noise[chosen]
    least = jnp.argmin(divide(values[:, -1], noise, values[:, -1]))
    return Spectrum(values[least], noise[least])


def _assemble(
    moments: GraphMoments, layout: Layout, found: dict[int, Found], tables: Tables, joints: list[Marginals]
) -> Fit:
    by_subset = {
        number: one.table[place]
        for batch, one in zip(layout.sets, joints, strict=True)
        for place, number in enumerate(batch.subsets)
    }
    probabilities = state_probabilities(moments.plan, by_subset)
    recovered = recover(moments.plan, layout, tables, by_subset, probabilities, moments.noise)
    params = sort_states(recovered.params, probabilities)
    summary = _summarize(found, joints, recovered.status, params.tables)
    spectra, triples = {}, {}
    for batch in layout.triples:
        for place, name in enumerate(batch.hidden):
            one = found[batch.num_states]
            spectra[name] = jax.tree.map(lambda part, t=one.chosen[place]: part[t], one.factored.spectrum)
            triples[name] = one.chosen[place] - batch.first[place]
    diagnostics = Diagnostics(
        _least_clear(found),
        spectra,
        triples,
        {},
        summary.conditionals_status,
        summary.marginals_status,
        summary.gap,
        recovered.gradient_norm,
        Evidence(None, None, None),
    )
    return Fit(params, summary.status, summary.num_iters, summary.residual, diagnostics)
