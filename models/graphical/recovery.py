"""From the joint distributions of cliques to parameters, in the graph that was asked for: Algorithm 3."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from latensor.base import divide, small_jit, smallest_normal
from latensor.decompose import Status
from latensor.models.graphical.alignment import Tables
from latensor.models.graphical.layout import Layout, leaf_pair
from latensor.models.graphical.order import own_margins
from latensor.models.graphical.params import Graphical
from latensor.models.graphical.plan import Plan
from latensor.models.graphical.recover import Recovered, maximize_likelihood, maximize_pseudolikelihood
from latensor.models.graphical.stars import hidden_cliques, star_nodes
from latensor.models.graphical.unaries import add_unaries

Joints = Mapping[int, Float[Array, "..."]]
"""The joint distribution of every subset of a plan, by its number."""


class Parameters(NamedTuple):
    """Parameters, and how the maximization that found them ended, if there was one."""

    params: Graphical
    gradient_norm: Float[Array, ""] | None
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def recover(
    plan: Plan,
    layout: Layout,
    tables: Tables,
    joints: Joints,
    probabilities: Mapping[str, Float[Array, " _"]],
    noise: Float[Array, ""],
) -> Parameters:
    """Return the parameters of a plan's graph.

    Estimates that were projected have exact zeros, which rule samples out that others have, and which EM never leaves:
    half a sample is added to every cell.

    Args:
      plan: the plan.
      layout: the same as arrays.
      tables: `P(x | h)`.
      joints: the joint distributions of the plan's subsets.
      probabilities: `P(h)`.
      noise: one divided by the number of samples, or zero.

    """
    graph = plan.canonical
    leaves = {
        number: _leaf_table(plan, layout, tables, number, probabilities, noise)
        for number, subset in enumerate(plan.cliques)
        if subset < 0
    }
    if graph.is_directed:
        joints = {subset: _smooth(joint, noise) for subset, joint in _average_shared(plan, joints).items()}
        found = {number: _normalize(joints[subset]) for number, subset in enumerate(plan.cliques) if subset >= 0}
        norm, num_iters, status = None, jnp.int32(0), jnp.int32(Status.CONVERGED)
    else:
        # Shared potentials need no averages: the gradient by them is a sum over their cliques.
        joints = {subset: _smooth(joint, noise) for subset, joint in joints.items()}
        best, found, bases = _maximize(plan, joints)
        leaves = {number: jnp.log(jnp.maximum(part, smallest_normal(part.dtype))) for number, part in leaves.items()}
        leaves = {number: _add_base(plan, number, part, bases) for number, part in leaves.items()}
        norm, num_iters, status = best.gradient_norm, best.num_iters, best.status
    every = found | leaves
    place = {clique: number for number, clique in enumerate(graph.cliques)}
    renamed = dict(plan.replaced)
    chosen = [place[tuple(renamed.get(name, name) for name in clique)] for clique in plan.graph.cliques]
    return Parameters(Graphical(plan.graph, tuple(every[number] for number in chosen)), norm, num_iters, status)


def _leaf_table(
    plan: Plan,
    layout: Layout,
    tables: Tables,
    number: int,
    probabilities: Mapping[str, Float[Array, " _"]],
    noise: Float[Array, ""],
) -> Float[Array, "_ _"]:
    """Return `P(x | h)` of a clique with a leaf, its axes in the clique's order."""
    clique = plan.canonical.cliques[number]
    pair = leaf_pair(plan, clique)
    k, place = layout.numbers[pair]
    table = _smooth_columns(tables[k][place, : layout.sizes[pair[1]]], probabilities[pair[0]], noise)
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


# One compilation for all graphs with cliques of a shape, as below.
@small_jit
def _normalize(joint: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return `P(child | parents)`; even where the parents' values never occur together."""
    return divide(joint, jnp.sum(joint, axis=0, keepdims=True), 1 / joint.shape[0])


@small_jit
def _smooth_columns(
    table: Float[Array, "d k"], states: Float[Array, " k"], noise: Float[Array, ""]
) -> Float[Array, "d k"]:
    """Return `P(x | h)` with half a sample more in each cell, spread as `P(x)` and evenly."""
    d = table.shape[0]
    share = divide(d * noise, d * noise + 2 * states, 1.0)[None, :]
    overall = jnp.sum(table * states[None, :], axis=1, keepdims=True)
    return (1 - share) * table + share * (overall + 1 / d) / 2


@small_jit
def _smooth(joint: Float[Array, "..."], noise: Float[Array, ""]) -> Float[Array, "..."]:
    """Return a joint distribution with half a sample more in each cell, spread as if its variables were independent."""
    independent = jnp.ones_like(joint)
    for axis in range(joint.ndim):
        others = tuple(other for other in range(joint.ndim) if other != axis)
        independent = independent * jnp.sum(joint, axis=others, keepdims=True)
    even = jnp.full_like(joint, 1 / joint.size)
    share = joint.size * noise / (joint.size * noise + 2)
    return (1 - share) * joint + share * (independent + even) / 2


def _maximize(plan: Plan, joints: Joints) -> tuple[Recovered, dict[int, Array], dict[int, Array]]:
    """Return the maximum, the log-potentials of hidden cliques, and what is added to the tables of leaves."""
    augmented = add_unaries(plan)
    if not hidden_cliques(augmented.graph):
        # Nothing but observed variables that stand alone.
        zero = jnp.zeros((), jnp.result_type(*joints.values()))
        return Recovered((), zero, jnp.int32(0), jnp.int32(Status.CONVERGED)), {}, {}
    margins = own_margins(plan, joints)
    if plan.parameters == "pseudolikelihood":
        best = maximize_pseudolikelihood(augmented.graph, _stars(plan, joints, margins))
    else:
        cliques = [joints[plan.cliques[number]] for number in hidden_cliques(plan.canonical)]
        best = maximize_likelihood(augmented.graph, [*cliques, *(margins[name] for name in augmented.hidden)])
    tables = dict(zip(hidden_cliques(augmented.graph), best.tables, strict=True))
    bases: dict[int, Array] = {}
    place = len(plan.canonical.cliques)
    for unary in augmented.unaries:
        bases |= dict.fromkeys(unary.leaves, tables[place] / unary.num_leaves)
        place += len(unary.hidden)
    return best, {number: tables[number] for number in hidden_cliques(plan.canonical)}, bases


def _add_base(plan: Plan, number: int, table: Float[Array, "_ _"], bases: Mapping[int, Array]) -> Float[Array, "_ _"]:
    """Return the table of a leaf with a function of its hidden variable added, where there is one."""
    if number not in bases:
        return table
    clique = plan.canonical.cliques[number]
    hidden, _ = leaf_pair(plan, clique)
    return table + (bases[number][None, :] if clique[1] == hidden else bases[number][:, None])


def _stars(plan: Plan, joints: Joints, margins: Mapping[str, Float[Array, " _"]]) -> list[Float[Array, "..."]]:
    """Return `P(a, N(a)) = P(a) Π_B P(B | a)` of every hidden variable, its neighbours in the order of the graph."""
    stars = []
    for neighbourhood, axes in zip(plan.neighbourhoods, star_nodes(plan.canonical), strict=True):
        parts = [(plan.subsets[n].hidden, joints[n]) for n in neighbourhood.subsets]
        stars.append(_star(axes, parts) if parts else margins[axes[0]])
    return stars


def _star(axes: tuple[str, ...], parts: list[tuple[tuple[str, ...], Float[Array, "..."]]]) -> Float[Array, "..."]:
    node = axes[0]
    margins = [jnp.sum(joint, axis=tuple(range(1, joint.ndim))) for _, joint in parts]
    star, names = jnp.mean(jnp.stack(margins), axis=0), [node]
    for (hidden, joint), margin in zip(parts, margins, strict=True):
        given = divide(joint, margin.reshape(-1, *[1] * (joint.ndim - 1)), 1 / np.prod(joint.shape[1:]))
        star = star.reshape(*star.shape, *[1] * (joint.ndim - 1))
        star = star * given.reshape(given.shape[0], *[1] * (len(names) - 1), *given.shape[1:])
        names += hidden[1:]
    return jnp.transpose(star, [names.index(name) for name in axes])
