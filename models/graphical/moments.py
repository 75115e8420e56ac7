"""All that a plan needs to know of the observed variables: moments of groups, and tables of exclusive views."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.models.checks import check_reals
from latensor.models.graphical.counts import tables_of_views
from latensor.models.graphical.groups import GroupMoments, PairMoments, moments_of_groups, moments_of_pairs
from latensor.models.graphical.layout import Regression, TripleBatch, make_layout
from latensor.models.graphical.plan import Plan


class GraphMoments(NamedTuple):
    """All that a plan needs to know of a distribution of the observed variables."""

    plan: Plan
    """Static: to JAX it is structure, not data."""
    triples: tuple[GroupMoments | None, ...]
    """For hidden variables of each number of states, the moments of their views; `None` without any."""
    pairs: tuple[tuple[PairMoments, ...], ...]
    """For each number of states, those of variables that are in no view."""
    sets: tuple[Float[Array, "sets ..."] | None, ...]
    """For sets of hidden variables of each shape, the joint distributions of their exclusive views: one axis per hidden
    variable, over the values of its views, the last view fastest. Every view has one value more, for missing ones.
    `None` where the table would be too large: `fit` reads the samples instead."""
    noise: Float[Array, ""]
    """One divided by the number of rows, whatever their weights; zero for exact moments."""


class GraphData(NamedTuple):
    """Data that were checked against a graph."""

    codes: Int[Array, "n p"]
    """One row per sample, −1 where a value is missing."""
    weights: Float[Array, " n"]
    """Of the rows; they sum to one."""
    noise: Float[Array, ""]
    """One divided by the number of samples; of weighted ones, by that of as many equal ones as say as much."""


def data_moments(plan: Plan, data: GraphData, complete: bool) -> GraphMoments:
    """Return the moments of data; `complete` says that no value is missing."""
    layout, (codes, weights, _) = make_layout(plan), data
    size = layout.size

    def triples(batch: TripleBatch) -> GroupMoments:
        one, two, three = map(jnp.asarray, batch.columns)
        return moments_of_groups(codes, weights, (one, two, three), size, complete)

    def pairs(part: Regression) -> PairMoments:
        variables, references = jnp.asarray(part.columns), jnp.asarray(part.references)
        return moments_of_pairs(codes, weights, variables, references, size, complete)

    return GraphMoments(
        plan,
        tuple(triples(batch) if batch.hidden else None for batch in layout.triples),
        tuple(tuple(pairs(part) for part in batch.regressed) for batch in layout.triples),
        tuple(tables_of_views(codes, weights, layout.sets, size)),
        jnp.full_like(data.noise, 1 / codes.shape[0]),
    )


def check_graph_moments(moments: Any) -> GraphMoments:
    """Return moments whose arrays have the shapes of their plan, and are finite unless traced."""
    if not isinstance(moments, GraphMoments) or not isinstance(moments.plan, Plan):
        name = type(moments).__name__
        raise ValueError(f"moments: expected GraphMoments, as population_moments gives them; got {name}")
    expected = jax.eval_shape(_empty_moments, moments.plan)
    structure: Any = jax.tree.structure(expected)
    if structure != jax.tree.structure(moments):
        raise ValueError("moments: expected one array for each part of the plan; some are missing")
    arrays = []
    for array, shape in zip(jax.tree.leaves(moments), jax.tree.leaves(expected), strict=True):
        arrays.append(check_reals("moments", array, len(shape.shape)))
        if arrays[-1].shape != shape.shape:
            raise ValueError(f"moments: expected an array of shape {shape.shape}; got {arrays[-1].shape}")
    dtype = jnp.result_type(*arrays)
    return jax.tree.unflatten(structure, [array.astype(dtype) for array in arrays])


def _empty_moments(plan: Plan) -> GraphMoments:
    layout, codes = make_layout(plan), jnp.zeros((1, len(plan.graph.observed)), jnp.int32)
    sets = tuple(
        jnp.zeros((len(batch.subsets), *((layout.size + 1) ** kept for kept in batch.kept))) for batch in layout.sets
    )
    return data_moments(plan, GraphData(codes, jnp.ones(1), jnp.ones(())), True)._replace(sets=sets)
