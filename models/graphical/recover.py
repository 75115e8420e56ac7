"""From marginals of hidden nodes to the potentials of an undirected graph: two concave maximizations.

Likelihood: from the marginals `μ_c` of the hidden cliques,

    max_θ Σ_c ⟨θ_c, μ_c⟩ − A(θ)

with the exact log-partition function `A`, exponential in the treewidth. Its gradient is the difference of the given
marginals and those of the model. Pseudolikelihood: from the marginals of every hidden node `a` and its hidden
neighbours `N(a)`,

    max_θ Σ_a E[log p_θ(a | N(a))]

which needs no sum over more than one node. From exact marginals both give the same potentials.

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods, §4 and §5.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import divide, is_concrete, machine_epsilon, positive_or_one, small_jit
from latensor.decompose import Status
from latensor.decompose.internal import status_if, worst
from latensor.models.checks import check_reals
from latensor.models.em import em_limits
from latensor.models.graphical.elimination import Schedule, log_partition, make_schedule
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.lbfgs import Minimum, minimize
from latensor.models.graphical.stars import (
    group_stars,
    hidden_cliques,
    lay_out,
    stack_cliques,
    star_nodes,
    unstack_cliques,
)

# Gradients are differences of probabilities. float64 resolves more, but no estimate has that many digits.
_TOLERANCE, _ROUNDING = 1e-10, 100
# Sweeps over shared margins, see `_agree`: these differ by sampling noise, and every sweep shrinks that.
_SWEEPS = 20


class Recovered(NamedTuple):
    """Log-potentials of the hidden cliques, and how the maximization ended."""

    tables: tuple[Float[Array, "..."], ...]
    """One per clique of hidden nodes, in the order of the graph; the mean of each is zero."""
    gradient_norm: Float[Array, ""]
    """The largest entry of the gradient, by its absolute value."""
    num_iters: Int[Array, ""]
    """Steps of L-BFGS."""
    status: Int[Array, ""]


class _Stacked(NamedTuple):
    """As `Recovered`, but with one array per shape of tables: hundreds of small outputs take long to compile."""

    stacks: tuple[Float[Array, "_ ..."], ...]
    gradient_norm: Float[Array, ""]
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def _stacked(graph: Graph, minimum: Minimum, tol: Float[Array, ""]) -> _Stacked:
    stacks = []
    for _, index in stack_cliques(graph):
        tables = minimum.vector[index]
        # A constant in a table changes nothing but the normalization.
        stacks.append(tables - jnp.mean(tables, axis=tuple(range(1, tables.ndim)), keepdims=True))
    finite = jnp.all(jnp.isfinite(minimum.vector)) & jnp.isfinite(minimum.gradient_norm)
    status = worst(status_if(~(minimum.gradient_norm <= tol), Status.MAX_ITERS), status_if(~finite, Status.NON_FINITE))
    return _Stacked(tuple(stacks), minimum.gradient_norm, minimum.num_iters, status)


def _recovered(graph: Graph, result: _Stacked) -> Recovered:
    return Recovered(unstack_cliques(graph, result.stacks), *result[1:])


def _check_limits(tol: float | Array | None, max_iters: int | Array, dtype: Any) -> tuple[Array, Array]:
    return em_limits(max(_ROUNDING * machine_epsilon(dtype), _TOLERANCE) if tol is None else tol, max_iters, dtype)


def _check_tables(
    argument: str, given: Sequence[Array], graph: Graph, scopes: Sequence[Sequence[str]]
) -> tuple[Array, ...]:
    if graph.is_directed:
        raise ValueError("graph: expected an undirected one; got a directed one, whose tables are conditionals")
    if len(given) != len(scopes):
        raise ValueError(f"{argument}: expected {len(scopes)} tables; got {len(given)}")
    tables = []
    for number, (table, scope) in enumerate(zip(given, scopes, strict=True)):
        name, shape = f"{argument}[{number}] ({', '.join(scope)})", tuple(graph.sizes[node] for node in scope)
        tables.append(check_reals(name, table, len(shape)))
        if tables[-1].shape != shape:
            raise ValueError(f"{name}: expected shape {shape}; got {tables[-1].shape}")
        if is_concrete(tables[-1]) and np.min(np.asarray(tables[-1])) < 0:
            raise ValueError(f"{name}: expected probabilities ≥ 0; got {np.min(np.asarray(tables[-1]))}")
    dtype = jnp.result_type(*tables)
    # Not `divide`, which hides NaN.
    return tuple((table / positive_or_one(jnp.sum(table))).astype(dtype) for table in tables)


def maximize_likelihood(
    graph: Graph,
    marginals: Sequence[Float[Array, "..."]],
    *,
    tol: float | Array | None = None,
    max_iters: int | Array = 500,
) -> Recovered:
    """Return the potentials of hidden cliques that make their marginals likeliest.

    Args:
      graph: an undirected graph; only its cliques of hidden nodes count. A `ValueError` where their treewidth is too
        large for exact sums.
      marginals: `P(v_c)` of every clique of hidden nodes, in the order of the graph and with the clique's axes; not
        negative. Where cliques disagree about nodes that they have in common, as estimates do, they are made to agree
        first; the likelihood would have no maximum otherwise.
      tol: stop when no marginal of the model is farther than this from the given one; default: 100 machine epsilons in
        float32 and 1e-10 in float64.
      max_iters: limit on the steps of L-BFGS.

    Returns:
      `Recovered`. An entry of `marginals` that is zero has a potential of −∞, of which the tolerance cuts off most.
      The status is `MAX_ITERS` where no potentials have these marginals, or where rounding stops the search.

    """
    scopes = tuple(graph.cliques[number] for number in hidden_cliques(graph))
    tables = _check_tables("marginals", marginals, graph, scopes)
    _hidden_schedule(graph)
    return _recovered(graph, _maximize_likelihood(graph, tables, *_check_limits(tol, max_iters, tables[0].dtype)))


def _hidden_schedule(graph: Graph) -> Schedule:
    place = {name: i for i, name in enumerate(graph.hidden)}
    scopes = tuple(tuple(place[name] for name in graph.cliques[number]) for number in hidden_cliques(graph))
    return make_schedule(tuple(graph.sizes[name] for name in graph.hidden), scopes)


@small_jit
def _maximize_likelihood(
    graph: Graph, marginals: tuple[Array, ...], tol: Float[Array, ""], max_iters: Int[Array, ""]
) -> _Stacked:
    schedule, dtype = _hidden_schedule(graph), marginals[0].dtype
    targets = _agree(graph, marginals)
    nothing = [jnp.zeros(size, dtype) for size in schedule.sizes]

    def loss(vector: Array) -> Array:
        tables = unstack_cliques(graph, [vector[index] for _, index in stack_cliques(graph)])
        linear = sum(jnp.sum(table * target) for table, target in zip(tables, targets, strict=True))
        return log_partition(tables, nothing, schedule) - linear

    minimum = minimize(loss, jnp.zeros(lay_out(graph).size, dtype), tol, max_iters)
    return _stacked(graph, minimum, tol)


def _agree(graph: Graph, marginals: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return marginals that agree on the nodes that several cliques have in common.

    The margins of all cliques with these nodes are averaged, and every table is scaled to the averages, which keeps it
    positive. Marginals that agree stay as they are.
    """
    cliques = [graph.cliques[number] for number in hidden_cliques(graph)]
    common = {frozenset(one) & frozenset(other) for one, other in itertools.combinations(cliques, 2)} - {frozenset()}
    subsets = sorted(common, key=lambda nodes: (-len(nodes), sorted(nodes)))

    def sweep(_: Array | int, tables: tuple[Array, ...]) -> tuple[Array, ...]:
        scaled = list(tables)
        for subset in subsets:
            members = [number for number, clique in enumerate(cliques) if subset <= set(clique)]
            nodes = sorted(subset)
            margins = []
            for number in members:
                away = tuple(axis for axis, name in enumerate(cliques[number]) if name not in subset)
                kept = [name for name in cliques[number] if name in subset]
                margins.append(jnp.transpose(jnp.sum(scaled[number], axis=away), [kept.index(n) for n in nodes]))
            mean = jnp.mean(jnp.stack(margins), axis=0)
            for number, margin in zip(members, margins, strict=True):
                kept = [name for name in cliques[number] if name in subset]
                ratio = jnp.transpose(divide(mean, margin, 1), [nodes.index(name) for name in kept])
                shape = [graph.sizes[name] if name in subset else 1 for name in cliques[number]]
                scaled[number] = scaled[number] * ratio.reshape(shape)
        return tuple(scaled)

    return lax.fori_loop(0, _SWEEPS, sweep, marginals)


def maximize_pseudolikelihood(
    graph: Graph,
    stars: Sequence[Float[Array, "..."]],
    *,
    tol: float | Array | None = None,
    max_iters: int | Array = 500,
) -> Recovered:
    """Return the potentials of hidden cliques that make every hidden node likeliest given its hidden neighbours.

    Args:
      graph: an undirected graph; only its cliques of hidden nodes count.
      stars: for every hidden node, in the order of the graph, its marginal with its hidden neighbours: the axes are
        those of `star_nodes(graph)`. Not negative.
      tol: stop when no entry of the gradient is larger; default: 100 machine epsilons in float32 and 1e-10 in float64.
      max_iters: limit on the steps of L-BFGS.

    Returns:
      `Recovered`. Cost per step: the number of entries of all stars.

    """
    tables = _check_tables("stars", stars, graph, star_nodes(graph))
    stacks = tuple(jnp.stack([tables[place] for place in group.stars]) for group in group_stars(graph))
    return _recovered(graph, _maximize_pseudolikelihood(graph, stacks, *_check_limits(tol, max_iters, stacks[0].dtype)))


@small_jit
def _maximize_pseudolikelihood(
    graph: Graph, stars: tuple[Array, ...], tol: Float[Array, ""], max_iters: Int[Array, ""]
) -> _Stacked:
    groups = group_stars(graph)

    def loss(vector: Array) -> Array:
        total = jnp.zeros((), vector.dtype)
        for group, weights in zip(groups, stars, strict=True):
            # A hidden node without cliques has no parameters.
            if group.terms:
                scores = sum(vector[entries] for entries in group.terms)
                total = total - jnp.sum(weights * jax.nn.log_softmax(scores, axis=1))
        return total

    minimum = minimize(loss, jnp.zeros(lay_out(graph).size, stars[0].dtype), tol, max_iters)
    return _stacked(graph, minimum, tol)
