"""Moments of a table whose real variables are shares: means, second moments for anchors, moments of partitions.

Stages that read data are compiled by `small_jit` like the small ones: their time goes into matrix products, for which
cheap code is as good.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import as_float, divide, machine_epsilon, matmul, small_jit
from latensor.decompose import Status
from latensor.decompose.internal import status_if, worst
from latensor.models.blocks import count_invalid, variable_rates
from latensor.moments import CrossMoments, Moments, Table, Variables, sum_over_rows
from latensor.moments.internal import average_weights, described, raw_cross_moments, row_features

Places = tuple[Int[Array, "*P r1"], Int[Array, "*P r2"], Int[Array, "*P r3"]]
"""Stacked rows in each of three modes; −1 is padding."""


class PairSums(NamedTuple):
    """Second moments of every stacked row with random combinations of all rows."""

    mixing: Float[Array, "rows m"]
    """The combinations."""
    cross: Float[Array, "rows m"]
    """Raw moments of every row with them."""
    squares: Float[Array, " rows"]
    """Raw second moment of every row with itself."""


class Summary(NamedTuple):
    """A first pass over a table."""

    mean: Float[Array, " rows"]
    """Of every stacked row, over the samples that observe its variable."""
    pairs: PairSums | None
    status: Int[Array, ""]
    """`UNOBSERVED` if a variable never is, `NON_FINITE` if an observed entry is not valid."""


@small_jit
def summarize(table: Table, mixing: Float[Array, "rows m"] | None) -> Summary:
    """Return means, second moments with the combinations `mixing` (`None`: none), and whether entries are valid.

    In the second moments missing entries count as zero, divided by their rate.
    """
    variables, dtype = described(table), as_float(table.x).dtype
    weights = average_weights(table.row_weights, table.num_rows, dtype)
    rates = variable_rates(table, weights)
    scale = divide(1, rates, 1)[variables.row_variables]
    every = jnp.arange(variables.num_rows)
    mixed = None if mixing is None else scale[:, None] * mixing

    def block(rows: Table, weights: Array) -> tuple[Array, tuple[Array, Array] | None, Array]:
        values, _ = row_features(rows, every)
        weighted = weights[:, None] * values
        pairs = None
        if mixed is not None:
            pairs = matmul(weighted.T, matmul(values, mixed)), jnp.sum(weighted * values, axis=0)
        return matmul(weights, values), pairs, count_invalid(rows, variables)

    mean, sums, num_invalid = sum_over_rows(block, table, weights, floats_per_row=variables.num_rows)
    pairs = None
    if mixing is not None and sums is not None:
        cross, squares = sums
        pairs = PairSums(mixing, scale[:, None] * cross, scale**2 * squares)
    status = worst(status_if(jnp.any(rates <= 0), Status.UNOBSERVED), status_if(num_invalid > 0, Status.NON_FINITE))
    return Summary(scale * mean, pairs, status)


def find_loadings(summary: Summary, total: Float[Array, ""], variables: Variables, rank: int) -> Float[Array, "rows k"]:
    """Return an orthonormal basis of the space that the tables' columns span, from second moments.

    The leading left singular vectors of the corrected cross-moments of every row with the random combinations of all
    other variables: nothing larger than `(rows, k)`.
    """
    mean, pairs = summary.mean, summary.pairs
    if pairs is None:
        raise ValueError("pairs: expected second moments with random combinations; got None")
    # A row's product with its own variable is no cross-moment. (Categories exclude each other; the two rows of a share
    # do not, quite, but this only chooses anchors.)
    own = jax.ops.segment_sum(mean[:, None] * pairs.mixing, variables.row_variables, variables.num_variables)
    others = matmul(mean, pairs.mixing)[None, :] - own[variables.row_variables]
    second = pairs.cross - pairs.squares[:, None] * pairs.mixing - total / (total + 1) * mean[:, None] * others
    gram = matmul(second.T, second)
    values, vectors = jnp.linalg.eigh(jnp.where(jnp.all(jnp.isfinite(gram)), gram, 0))
    top, lengths = vectors[:, -rank:], jnp.sqrt(jnp.maximum(values[-rank:], 0))
    floor = machine_epsilon(mean.dtype) * lengths[-1]
    return matmul(second, divide(top, jnp.where(lengths > floor, lengths, 0)[None, :]))


@small_jit
def partition_moments(table: Table, places: Places) -> CrossMoments:
    """Return the raw cross-moments of all partitions, one after the other: each is a large product already."""
    return lax.map(lambda one: raw_cross_moments(table, one), places)


def pick_moments(moments: Moments, places: Places) -> CrossMoments:
    """Return the cross-moments of one partition out of dense ones."""
    a, b, c = (jnp.maximum(mode, 0) for mode in places)
    f, g, h = ((mode >= 0).astype(moments.first.dtype) for mode in places)
    third = moments.third[a[:, None, None], b[None, :, None], c[None, None, :]]
    return CrossMoments(
        (moments.first[a] * f, moments.first[b] * g, moments.first[c] * h),
        (
            moments.second[a[:, None], b[None, :]] * f[:, None] * g[None, :],
            moments.second[a[:, None], c[None, :]] * f[:, None] * h[None, :],
            moments.second[b[:, None], c[None, :]] * g[:, None] * h[None, :],
        ),
        third * f[:, None, None] * g[None, :, None] * h[None, None, :],
        jnp.int32(0),
    )
