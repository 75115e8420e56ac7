"""Exact sums over all values of a few nodes: variable elimination in log-space.

For log-factors `f_c` over subsets of the nodes and unary evidence `e_i`,

    A(f, e) = log Σ_v exp(Σ_c f_c(v_c) + Σ_i e_i(v_i))

is computed by summing one node after the other out. Its gradients are marginals: `∂A/∂f_c = P(v_c)` and
`∂A/∂e_i = P(v_i)`, so there is no separate backward pass.

The order is found once per graph by the greedy min-fill rule (Koller, Friedman 2009, §9.4.3.2).
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# Tables of more entries, one per row of data, leave no room for blocks of rows.
_MAX_ENTRIES = 2**20


class Schedule(NamedTuple):
    """In which order nodes are summed out. Hashable: static to JAX."""

    sizes: tuple[int, ...]
    """The number of values of every node."""
    scopes: tuple[tuple[int, ...], ...]
    """The nodes of every factor, in the order of its axes."""
    order: tuple[int, ...]
    joint_scopes: tuple[tuple[int, ...], ...]
    """For every node in `order`, the nodes of the table that it is summed out of; it is the last of them."""

    @property
    def table_sizes(self) -> tuple[int, ...]:
        """The number of entries of every intermediate table."""
        return tuple(math.prod(self.sizes[node] for node in scope) for scope in self.joint_scopes)

    @property
    def treewidth(self) -> int:
        """The number of nodes of the largest table, less one: an upper bound on the treewidth of the graph."""
        return max(len(scope) for scope in self.joint_scopes) - 1


@functools.lru_cache(maxsize=256)
def make_schedule(sizes: tuple[int, ...], scopes: tuple[tuple[int, ...], ...]) -> Schedule:
    """Return a schedule for factors over nodes of the given sizes; raise where a table would be too large."""
    neighbours: dict[int, set[int]] = {node: set() for node in range(len(sizes))}
    for scope in scopes:
        for one, other in itertools.permutations(scope, 2):
            neighbours[one].add(other)
    order, joint_scopes = [], []
    while neighbours:
        node = _next_node(neighbours, sizes)
        around = neighbours.pop(node)
        for one in around:
            neighbours[one] |= around
            neighbours[one] -= {one, node}
        order.append(node)
        joint_scopes.append((*sorted(around), node))
    schedule = Schedule(sizes, scopes, tuple(order), tuple(joint_scopes))
    largest = max(schedule.table_sizes)
    if largest > _MAX_ENTRIES:
        raise ValueError(
            f"graph: expected one whose nodes can be summed out in tables of at most {_MAX_ENTRIES} "
            f"entries; got one of treewidth {schedule.treewidth}, which needs {largest}: likelihoods, posteriors and "
            "EM need these sums; fits by pseudolikelihood do not"
        )
    return schedule


def _next_node(neighbours: dict[int, set[int]], sizes: tuple[int, ...]) -> int:
    """Return the node whose elimination connects the fewest pairs of nodes, of these the one of the smallest table."""
    best, least = -1, (math.inf, math.inf)
    for node, around in neighbours.items():
        fill = sum(other not in neighbours[one] for one, other in itertools.combinations(around, 2))
        cost = (fill, sizes[node] * math.prod(sizes[other] for other in around))
        if cost < least:
            best, least = node, cost
        if fill == 0:
            break  # never a wrong choice, and long chains would take quadratic time
    return best


def _align(table: Array, scope: Sequence[int], target: Sequence[int]) -> Array:
    """Return a table with one axis per node of `target`: of length one for nodes that it does not depend on."""
    axes = sorted(range(len(scope)), key=lambda axis: target.index(scope[axis]))
    sizes = {node: table.shape[axis] for axis, node in enumerate(scope)}
    return jnp.transpose(table, axes).reshape([sizes.get(node, 1) for node in target])


def log_partition(
    tables: Sequence[Float[Array, "..."]], evidence: Sequence[Float[Array, " _"]], schedule: Schedule
) -> Float[Array, ""]:
    """Return the log-partition function `A` of the tables of logarithms and unary logarithms, all of them finite.

    Cost: the sum of `schedule.table_sizes`; with the gradient about three times that.
    """
    factors: list[tuple[tuple[int, ...], Array]] = [((node,), values) for node, values in enumerate(evidence)]
    factors += list(zip(schedule.scopes, tables, strict=True))
    total = jnp.zeros((), evidence[0].dtype)
    for node, target in zip(schedule.order, schedule.joint_scopes, strict=True):
        joint: Array | None = None
        for scope, table in factors:
            if node in scope:
                aligned = _align(table, scope, target)
                joint = aligned if joint is None else joint + aligned
        assert joint is not None
        # Half the operations of `jax.nn.logsumexp`, which also looks for infinities; graphs compile node by node.
        top = lax.stop_gradient(jnp.max(joint, axis=-1))
        message = top + jnp.log(jnp.sum(jnp.exp(joint - top[..., None]), axis=-1))
        factors = [(scope, table) for scope, table in factors if node not in scope]
        if len(target) == 1:
            total = total + message
        else:
            factors.append((target[:-1], message))
    return total
