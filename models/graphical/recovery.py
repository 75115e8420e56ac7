"""From the joint distributions of cliques to parameters, in the graph that was asked for: Algorithm 3."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from latensor.base import divide, smallest_normal
from latensor.decompose import Status
from latensor.models.graphical.alignment import Tables
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.layout import Layout, leaf_pair
from latensor.models.graphical.params import Graphical
from latensor.models.graphical.plan import Plan
from latensor.models.graphical.recover import maximize_likelihood, maximize_pseudolikelihood
from latensor.models.graphical.stars import hidden_cliques, star_nodes

Joints = Mapping[int, Float[Array, "..."]]
"""The joint distribution of every subset of a plan, by its number."""


class Parameters(NamedTuple):
    """Parameters, and how the maximization that found them ended, if there was one."""

    params: Graphical
    gradient_norm: Float[Array, ""] | None
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def recover(plan: Plan, layout: Layout, tables: Tables, joints: Joints, number: Float[Array, ""]) -> Parameters:
    """Return the parameters of a plan's graph; `number` is that of the samples, infinite for exact distributions."""
    graph = plan.canonical
    leaves = {
        number: _leaf_table(plan, layout, tables, number) for number, subset in enumerate(plan.cliques) if subset < 0
    }
    joints = _average_shared(plan, joints)
    if graph.is_directed:
        found = {number: _normalize(joints[subset]) for number, subset in enumerate(plan.cliques) if subset >= 0}
        norm, num_iters, status = None, jnp.int32(0), jnp.int32(Status.CONVERGED)
    else:
        # No potentials have a probability of zero.
        joints = {subset: _smooth(joint, number) for subset, joint in joints.items()}
        if plan.parameters == "pseudolikelihood":
            best = maximize_pseudolikelihood(graph, _stars(plan, joints))
        else:
            best = maximize_likelihood(graph, [joints[plan.cliques[number]] for number in hidden_cliques(graph)])
        found = dict(zip(hidden_cliques(graph), best.tables, strict=True))
        leaves = {number: jnp.log(jnp.maximum(part, smallest_normal(part.dtype))) for number, part in leaves.items()}
        leaves |= _priors(plan, joints, leaves)
        norm, num_iters, status = best.gradient_norm, best.num_iters, best.status
    every = found | leaves
    place = {clique: number for number, clique in enumerate(graph.cliques)}
    renamed = dict(plan.replaced)
    chosen = [place[tuple(renamed.get(name, name) for name in clique)] for clique in plan.graph.cliques]
    return Parameters(Graphical(plan.graph, tuple(every[number] for number in chosen)), norm, num_iters, status)


def _leaf_table(plan: Plan, layout: Layout, tables: Tables, number: int) -> Float[Array, "_ _"]:
    """Return `P(x | h)` of a clique with a leaf, its axes in the clique's order."""
    clique = plan.canonical.cliques[number]
    pair = leaf_pair(plan, clique)
    k, place = layout.numbers[pair]
    table = tables[k][place, : layout.sizes[pair[1]]]
    return table if clique[0] == pair[1] else table.T


def _average_shared(plan: Plan, joints: Joints) -> dict[int, Array]:
    """Return the joint distributions, those of cliques that share their parameters averaged."""
    averaged = dict(joints)
    for group in plan.canonical.shared:
        subsets = [plan.cliques[number] for number in group]
        if min(subsets) >= 0:
            mean = jnp.mean(jnp.stack([joints[subset] for subset in subsets]), axis=0)
            averaged |= dict.fromkeys(subsets, mean)
    return averaged


def _normalize(joint: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return `P(child | parents)`; even where the parents' values never occur together."""
    return divide(joint, jnp.sum(joint, axis=0, keepdims=True), 1 / joint.shape[0])


def _smooth(joint: Float[Array, "..."], number: Float[Array, ""]) -> Float[Array, "..."]:
    """Return a joint distribution with half a sample more in each cell, spread as if its variables were independent."""
    independent = jnp.ones_like(joint)
    for axis in range(joint.ndim):
        others = tuple(other for other in range(joint.ndim) if other != axis)
        independent = independent * jnp.sum(joint, axis=others, keepdims=True)
    even = jnp.full_like(joint, 1 / joint.size)
    share = joint.size / (joint.size + 2 * number)
    return (1 - share) * joint + share * (independent + even) / 2


def _priors(plan: Plan, joints: Joints, leaves: Mapping[int, Array]) -> dict[int, Array]:
    """Return leaf tables that also hold `log P(h)`, for hidden variables that are in no other clique."""
    graph = plan.canonical
    inner = {name for number in hidden_cliques(graph) for name in graph.cliques[number]}
    found = {}
    for number, clique in enumerate(graph.cliques):
        if plan.cliques[number] >= 0:
            continue
        hidden, _ = leaf_pair(plan, clique)
        if hidden in inner:
            continue
        inner.add(hidden)
        joint = next(joints[n] for n, subset in enumerate(plan.subsets) if subset.hidden == (hidden,))
        prior = jnp.log(jnp.maximum(joint, smallest_normal(joint.dtype)))
        found[number] = leaves[number] + (prior[None, :] if clique[1] == hidden else prior[:, None])
    return found


def _stars(plan: Plan, joints: Joints) -> list[Float[Array, "..."]]:
    """Return `P(a, N(a)) = P(a) Π_B P(B | a)` of every hidden variable, its neighbours in the order of the graph."""
    stars = []
    for neighbourhood, axes in zip(plan.neighbourhoods, star_nodes(plan.canonical), strict=True):
        stars.append(_star(plan.canonical, axes, [(plan.subsets[n].hidden, joints[n]) for n in neighbourhood.subsets]))
    return stars


def _star(
    graph: Graph, axes: tuple[str, ...], parts: list[tuple[tuple[str, ...], Float[Array, "..."]]]
) -> Float[Array, "..."]:
    node = axes[0]
    if not parts:
        return jnp.full(graph.sizes[node], 1 / graph.sizes[node])
    margins = [jnp.sum(joint, axis=tuple(range(1, joint.ndim))) for _, joint in parts]
    star, names = jnp.mean(jnp.stack(margins), axis=0), [node]
    for (hidden, joint), margin in zip(parts, margins, strict=True):
        given = divide(joint, margin.reshape(-1, *[1] * (joint.ndim - 1)), 1 / np.prod(joint.shape[1:]))
        star = star.reshape(*star.shape, *[1] * (joint.ndim - 1))
        star = star * given.reshape(given.shape[0], *[1] * (len(names) - 1), *given.shape[1:])
        names += hidden[1:]
    return jnp.transpose(star, [names.index(name) for name in axes])
