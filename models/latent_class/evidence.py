"""What the samples say about an estimate: the rank of the pair moment of two groups, and the gain over one class."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import divide, matmul, small_jit, smallest_normal
from latensor.decompose import Status
from latensor.decompose.internal import status_if, worst
from latensor.models.blocks import count_invalid, variable_rates
from latensor.models.evidence import Evidence, after, effective_rows, judge_gain
from latensor.models.latent_class.density import log_joint
from latensor.models.latent_class.groups import deal_halves, places_of
from latensor.models.latent_class.params import LatentClass, num_parameters
from latensor.models.pair_rank import pair_rank
from latensor.models.results import Fit
from latensor.models.shares import Scaling, unscale_tables
from latensor.moments import Table, Variables, sum_over_rows
from latensor.moments.internal import average_weights, choose_rows, described, row_features

# Rows whose likelihood is compared with that of one class.
_NUM_ROWS = 2048


class Overall(NamedTuple):
    """A first pass over a table of shares."""

    mean: Float[Array, " rows"]
    """Of every stacked row, over the samples that observe its column."""
    status: Int[Array, ""]
    """`UNOBSERVED` if a column never is, `NON_FINITE` if an observed entry is not valid."""


@small_jit
def overall_frequencies(table: Table) -> Overall:
    """Return the means of all stacked rows, and whether entries are valid."""
    shares, dtype = described(table), table.dtype
    weights = average_weights(table.row_weights, table.num_rows, dtype)
    every = jnp.arange(shares.num_rows)

    def block(rows: Table, weights: Array) -> tuple[Array, Array, Array]:
        seen = jnp.ones(rows.x.shape, dtype) if rows.mask is None else rows.mask.astype(dtype)
        return matmul(weights, row_features(rows, every)[0]), matmul(weights, seen), count_invalid(rows, shares)

    sums, rates, invalid = sum_over_rows(block, table, weights, floats_per_row=2 * shares.num_rows)
    status = worst(
        status_if(jnp.any(rates <= 0), Status.UNOBSERVED),
        status_if((invalid > 0) | ~jnp.all(jnp.isfinite(weights)), Status.NON_FINITE),
    )
    return Overall(divide(sums, rates[shares.row_variables]), status)


@small_jit(static_argnames="variables")
def one_class(mean: Float[Array, " rows"], scaling: Scaling | None, variables: Variables) -> LatentClass:
    """Return the model with a single class, from the means of the stacked rows."""
    weights, tables = jnp.ones(1, mean.dtype), unscale_tables(mean[:, None], scaling, variables)
    if scaling is None or scaling.variance is None:
        return LatentClass(weights, tables)
    return LatentClass(weights, tables, jnp.maximum(scaling.variance, smallest_normal(mean.dtype) ** 0.5)[:, None])


@small_jit
def weigh_evidence(
    key: Array, estimate: Fit, table: Table, shares: Table, mean: Float[Array, " rows"], scaling: Scaling | None
) -> Evidence:
    """Return what the samples say about an estimate, beside one class with the overall frequencies."""
    params, variables = estimate.params, described(table)
    rank = _halves_rank(after(key, params.weights), shares, params)
    one, rows = one_class(mean, scaling, variables), choose_rows(table, _NUM_ROWS)
    values, single = (jax.nn.logsumexp(log_joint(each, rows), axis=1) for each in (params, one))
    more = num_parameters(params, variables=variables) - num_parameters(one, variables=variables)
    weights = average_weights(table.row_weights, table.num_rows, params.weights.dtype)
    return judge_gain(rank, values - single, more, effective_rows(weights))


def _halves_rank(key: Array, shares: Table, params: LatentClass) -> Float[Array, ""]:
    """Return `Evidence.rank` for the pair moment of two halves of the columns, dealt at random, the largest first.

    Two halves tell more classes apart than two of three groups. Missing entries count as zero, over their rates.
    """
    weights = average_weights(shares.row_weights, shares.num_rows, params.weights.dtype)
    variables = described(shares)
    key_deal, key_rows = jax.random.split(key)
    places = places_of(deal_halves(key_deal, variables), variables)
    inverse = divide(1, variable_rates(shares, weights))[variables.row_variables]
    scales = jnp.where(places >= 0, inverse[jnp.maximum(places, 0)], 0)

    def features(rows: Table) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
        one, two = (row_features(rows, places[i])[0] * scales[i][None, :] for i in range(2))
        return one, two

    k = params.weights.shape[0]
    return pair_rank(key_rows, features, weights, shares, rank=k, floats_per_row=4 * places.shape[1])
