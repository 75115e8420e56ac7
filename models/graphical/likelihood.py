"""The exact likelihood of rows, and the distribution of their hidden nodes."""

import jax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.models.graphical.data import check_pair
from latensor.models.graphical.elimination import log_partition
from latensor.models.graphical.factors import (
    factors_of,
    floats_per_row,
    log_normalizer,
    make_evidence,
    row_partitions,
    split_graph,
)
from latensor.models.graphical.params import Graphical
from latensor.moments import Table, map_over_rows


@jax.jit
def row_log_likelihoods(params: Graphical, codes: Int[Array, "n d"]) -> Float[Array, " n"]:
    """Return the log-probability of rows of codes, −1 where a value is missing; nothing is checked."""
    split, factors = split_graph(params.graph), factors_of(params)

    def block(codes: Array) -> Array:
        return row_partitions(split, factors, codes)

    values = map_over_rows(block, codes, floats_per_row=floats_per_row(split))
    return values - log_normalizer(params.graph, factors)


def log_likelihood(
    params: Graphical, x: Table | ArrayLike, *, mask: ArrayLike | None = None, key: Array | None = None
) -> Float[Array, " n"]:
    """Return each row's log-probability, that of its observed values.

    Args:
      params: the model.
      x: integers `(n, d)`, one column per observed node in the order of the graph; or a `Table` of them. Values below
        zero are missing.
      mask: True where observed (default: everywhere).
      key: ignored; models whose likelihood has to be estimated need it.

    Exact, by variable elimination: exponential in the treewidth of the hidden nodes, and a `ValueError` where that is
    too large. Every probability of zero that a row needs costs 87 nats in float32, 708 in float64; the result is never
    −∞ or NaN.

    """
    del key
    params, codes, _ = check_pair(params, x, mask=mask)
    return row_log_likelihoods(params, codes)


@jax.jit
def _posterior(params: Graphical, codes: Int[Array, "n d"]) -> tuple[Float[Array, "n _"], ...]:
    split, factors = split_graph(params.graph), factors_of(params)
    schedule = split.schedule()

    def marginals(evidence: tuple[Array, ...]) -> tuple[Array, ...]:
        return jax.grad(lambda row: log_partition(factors.tables, row, schedule))(evidence)

    def block(codes: Array) -> tuple[Array, ...]:
        return jax.vmap(marginals)(make_evidence(split, factors, codes))

    nodes = dict(zip(split.internal, map_over_rows(block, codes, floats_per_row=floats_per_row(split)), strict=True))
    return tuple(nodes[name] for name in params.graph.hidden)


def posterior(
    params: Graphical, x: Table | ArrayLike, *, mask: ArrayLike | None = None
) -> dict[str, Float[Array, "n _"]]:
    """Return `P(h | x)` of every hidden node, by its name: one row per row of `x`, one column per value of the node.

    Arguments as for `log_likelihood`. Exact.
    """
    params, codes, _ = check_pair(params, x, mask=mask)
    # Named here: JAX would sort the names.
    return dict(zip(params.graph.hidden, _posterior(params, codes), strict=True))
