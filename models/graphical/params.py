"""Parameters of a graphical model, their checks, and the same model with its hidden values in another order."""

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import is_concrete, small_jit
from latensor.models.checks import check_order, check_probabilities, check_reals, check_type
from latensor.models.graphical.graph import Graph

# Tables that are shared may differ by this much, relative to their largest entry: by rounding, or printed digits.
_SHARED_TOLERANCE = 1e-3


class Graphical(NamedTuple):
    """Parameters of a graphical model: the graph, and one table per clique.

    Directed: `P(v) = Π_c tables[c][v_child, v_parents]`. Undirected: `P(v) ∝ exp Σ_c tables[c][v_c]`.
    """

    graph: Graph
    """Static: to JAX it is structure, not data."""
    tables: tuple[Float[Array, "..."], ...]
    """One per clique of the graph, axes in the clique's order. Directed: `P(child | parents)`, axis 0 the child, sums
    to one over that axis. Undirected: log-potentials."""


def describe_table(graph: Graph, number: int) -> str:
    """Name a table in messages, such as `params.tables[2] (h2 given h1)`."""
    clique = graph.cliques[number]
    between = " given " if graph.is_directed and len(clique) > 1 else ", " if len(clique) > 1 else ""
    return f"params.tables[{number}] ({clique[0]}{between}{', '.join(clique[1:])})"


def check_params(params: Any) -> Graphical:
    """Return parameters whose tables fit the graph and whose values are valid, all of one floating type."""
    params = check_type(params, Graphical)
    graph = params.graph
    if not isinstance(graph, Graph):
        raise ValueError(f"params.graph: expected a Graph; got {type(graph).__name__}")
    if not graph.cliques:
        raise ValueError("params.graph: expected at least one clique, which has parameters; got none")
    if not isinstance(params.tables, tuple | list):
        raise ValueError(f"params.tables: expected a tuple of tables; got {type(params.tables).__name__}")
    if len(params.tables) != len(graph.cliques):
        raise ValueError(
            f"params.tables: expected {len(graph.cliques)} tables, one per clique of the graph; "
            f"got {len(params.tables)}"
        )
    check = check_probabilities if graph.is_directed else check_reals
    tables = []
    for number, (table, shape) in enumerate(zip(params.tables, graph.shapes, strict=True)):
        name = describe_table(graph, number)
        tables.append(check(name, table, len(shape)))
        if tables[-1].shape != shape:
            raise ValueError(f"{name}: expected shape {shape}; got {tables[-1].shape}")
    _check_shared(graph, tables)
    dtype = jnp.result_type(*tables)
    return Graphical(graph, tuple(table.astype(dtype) for table in tables))


def _check_shared(graph: Graph, tables: list[Array]) -> None:
    for first, *others in graph.shared:
        for number in others:
            if not is_concrete(tables[first], tables[number]):
                continue
            one, other = np.asarray(tables[first]), np.asarray(tables[number])
            difference = np.max(np.abs(one - other))
            if difference > _SHARED_TOLERANCE * max(1.0, float(np.max(np.abs(one)))):
                raise ValueError(
                    f"{describe_table(graph, number)}: expected the same as {describe_table(graph, first)}, with "
                    f"which it is shared; they differ by {difference:.3g}"
                )


def num_parameters(params: Graphical) -> int:
    """Return the number of free parameters; tables that are shared count once.

    A directed graph has one for every value of a child but the first, given each value of its parents. An undirected
    one is a log-linear model: one for every set of nodes within a clique and all values of them but the first.
    """
    graph = check_params(params).graph
    repeated = {number for group in graph.shared for number in group[1:]}
    cliques = [clique for number, clique in enumerate(graph.cliques) if number not in repeated]
    sizes = graph.sizes
    if graph.is_directed:
        return sum((sizes[clique[0]] - 1) * math.prod(sizes[name] for name in clique[1:]) for clique in cliques)
    inner = {
        frozenset(part)
        for clique in cliques
        for number in range(1, len(clique) + 1)
        for part in itertools.combinations(clique, number)
    }
    return sum(math.prod(sizes[name] - 1 for name in part) for part in inner)


def permute(params: Graphical, order: Mapping[str, ArrayLike]) -> Graphical:
    """Return the same model with the values of hidden nodes in another order.

    Args:
      params: the model.
      order: for some of the hidden nodes, by name, a permutation of its values: value `i` is the old `order[name][i]`.
        Tables that are shared must remain the same.

    """
    params = check_params(params)
    graph = params.graph
    if not isinstance(order, Mapping):
        raise ValueError(
            f"order: expected permutations by the names of hidden nodes, a dict; got {type(order).__name__}"
        )
    unknown = next((name for name in order if name not in graph.hidden), None)
    if unknown is not None:
        raise ValueError(f"order: expected names of hidden nodes; got {unknown!r}")
    permuted = reorder(params, {name: check_order(given, graph.sizes[name]) for name, given in order.items()})
    _check_shared(graph, list(permuted.tables))
    return permuted


def reorder(params: Graphical, orders: Mapping[str, Int[Array, " _"]]) -> Graphical:
    """Return the same model with the values of nodes in another order; nothing is checked."""
    tables = []
    for clique, table in zip(params.graph.cliques, params.tables, strict=True):
        axes = tuple(axis for axis, name in enumerate(clique) if name in orders)
        tables.append(_reorder(table, axes, tuple(orders[clique[axis]] for axis in axes)) if axes else table)
    return Graphical(params.graph, tuple(tables))


# One compilation for all tables of a shape, whatever the graph.
@small_jit(static_argnames="axes")
def _reorder(table: Float[Array, "..."], axes: tuple[int, ...], orders: tuple[Int[Array, " _"], ...]) -> Array:
    for axis, order in zip(axes, orders, strict=True):
        table = jnp.take(table, order, axis=axis)
    return table
