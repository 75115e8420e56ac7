"""The order of the states of hidden variables: by how often they occur."""

from collections.abc import Mapping

import jax.numpy as jnp
import networkx as nx
from jaxtyping import Array, Float, Int

from latensor.base import small_jit
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.params import Graphical, reorder
from latensor.models.graphical.plan import Plan


def linked_nodes(graph: Graph) -> list[tuple[str, ...]]:
    """Return the hidden nodes in classes whose states correspond, since they are in the same place of shared tables."""
    links = nx.Graph()
    links.add_nodes_from(graph.hidden)
    for group in graph.shared:
        first, *others = (graph.cliques[number] for number in group)
        for other in others:
            links.add_edges_from((a, b) for a, b in zip(first, other, strict=True) if a in links and b in links)
    place = {name: number for number, name in enumerate(graph.hidden)}
    return [tuple(sorted(part, key=lambda name: place[name])) for part in nx.connected_components(links)]


def own_margins(plan: Plan, joints: Mapping[int, Float[Array, "..."]]) -> dict[str, Float[Array, " _"]]:
    """Return `P(h)` of the hidden variables of the canonical graph from the distributions of the plan's subsets."""
    margins: dict[str, Array] = {}
    for number, subset in enumerate(plan.subsets):
        for axis, name in enumerate(subset.hidden):
            if name not in margins:
                margins[name] = _margin(joints[number], axis)
    return margins


def state_probabilities(plan: Plan, joints: Mapping[int, Float[Array, "..."]]) -> dict[str, Float[Array, " _"]]:
    """Return `P(h)` as `own_margins` does; of hidden variables that share parameters, the average."""
    margins = own_margins(plan, joints)
    for names in linked_nodes(plan.canonical):
        if len(names) > 1:
            margins |= dict.fromkeys(names, _mean(tuple(margins[name] for name in names)))
    return margins


def sort_states(params: Graphical, probabilities: Mapping[str, Float[Array, " _"]]) -> Graphical:
    """Return the same model with the states of every hidden variable in decreasing order of their probability."""
    return reorder(params, {name: _decreasing(probabilities[name]) for name in params.graph.hidden})


# One compilation for all graphs with sets of these shapes.
@small_jit(static_argnames="axis")
def _margin(joint: Float[Array, "..."], axis: int) -> Float[Array, " _"]:
    return jnp.sum(joint, axis=tuple(other for other in range(joint.ndim) if other != axis))


@small_jit
def _mean(margins: tuple[Float[Array, " k"], ...]) -> Float[Array, " k"]:
    return jnp.mean(jnp.stack(margins), axis=0)


@small_jit
def _decreasing(margin: Float[Array, " k"]) -> Int[Array, " k"]:
    return jnp.argsort(-margin).astype(jnp.int32)
