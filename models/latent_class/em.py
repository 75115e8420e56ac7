"""EM for latent classes."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_number, divide, smallest_normal
from latensor.decompose import Status
from latensor.decompose.internal import status_if, worst
from latensor.models.blocks import blend_blocks, normalize_blocks, overall_counts
from latensor.models.classes import counted, log_prior, penalized_em, update_tables
from latensor.models.columns import check_all_observed
from latensor.models.em import better_start, em_limits, history_length
from latensor.models.latent_class.data import check_pair
from latensor.models.latent_class.density import RealSums, Sums, expect, log_joint
from latensor.models.latent_class.params import LatentClass
from latensor.models.results import Refined
from latensor.moments import Table, Variables
from latensor.moments.internal import average_weights, described

# An extrapolated probability or variance is at least this share of that of the EM iterate.
_LEAST_KEPT = 0.01


def refine(
    params: LatentClass,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    variables: Variables | None = None,
    row_weights: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 200,
    smoothing: float | Array = 1e-2,
    pseudo_count: float | Array = 0.0,
    history: bool = False,
) -> Refined:
    """Improve `params` by EM on the observed entries. The log-likelihood never falls.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: samples as for `fit`.
      mask: `(n, p)` bool, True where observed.
      variables: what the columns are; as for `fit`.
      row_weights: one weight per sample (default: equal).
      tol: stop when a cycle of two steps gains no more than this share of the log-likelihood; default: 10 machine
        epsilons in float32 and 1e-8 in float64.
      max_iters: limit on the steps.
      smoothing: share of the overall frequencies that is blended into the start, where that raises its likelihood.
      pseudo_count: samples that are added to every category in every class (a Dirichlet prior). Above zero, no category
        is ever ruled out, and what never falls is the likelihood times the prior. Zero is maximum likelihood.
      history: also return the log-likelihood at the start and after each step; one compilation per `max_iters`.

    Returns:
      `Refined`. The status is `BOUNDARY` where a class has closed in on a single value of a real column. Cost: one walk
      over the data per step.

    """
    params, table = check_pair(params, x, mask, variables, row_weights)
    check_all_observed(table)
    dtype = params.tables.dtype
    share = jnp.asarray(check_number("smoothing", smoothing, 0.0, 1.0), dtype)
    pseudo = jnp.asarray(check_number("pseudo_count", pseudo_count, 0.0), dtype)
    return _refine(params, table, *em_limits(tol, max_iters, dtype), share, pseudo, history_length(history, max_iters))


@partial(jax.jit, static_argnames="history")
def _refine(
    params: LatentClass,
    table: Table,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
    smoothing: Float[Array, ""],
    pseudo_count: Float[Array, ""],
    history: int | None,
) -> Refined:
    variables, dtype = described(table), params.tables.dtype
    weights = average_weights(table.row_weights, table.num_rows, dtype)
    totals, floor = overall_counts(table, weights)
    floor = floor[:, None]
    if params.variances is not None:
        # Never above the start: its likelihood must not fall.
        floor = jnp.minimum(floor, jnp.min(params.variances, axis=1, keepdims=True))
    pseudo = pseudo_count / table.num_rows

    def update(params: LatentClass, sums: Sums) -> LatentClass:
        tables = update_tables(sums.classes, params.tables, pseudo, variables)
        sizes = sums.classes.sizes
        return _with_real(
            LatentClass(divide(sizes, jnp.sum(sizes), params.weights), tables, params.variances),
            params,
            sums.real,
            floor,
            variables,
        )

    def penalty(params: LatentClass) -> Float[Array, ""]:
        return log_prior(params.tables, pseudo, variables)

    def begin(params: LatentClass) -> tuple[LatentClass, Array]:
        rows = jax.nn.logsumexp(log_joint(params, table), axis=1)
        return params, jnp.sum(weights * counted(rows, weights)) + penalty(params)

    def feasible(jump: LatentClass, back: LatentClass) -> LatentClass:
        sizes = jnp.maximum(jump.weights, _LEAST_KEPT * back.weights)
        real = variables.offsets[:-1][variables.real]
        tables, _ = normalize_blocks(jnp.maximum(jump.tables, _LEAST_KEPT * back.tables), back.tables, variables)
        tables = tables.at[real].set(jump.tables[real])
        variances = None
        if jump.variances is not None and back.variances is not None:
            variances = jnp.maximum(jump.variances, jnp.maximum(_LEAST_KEPT * back.variances, floor))
        return LatentClass(sizes / jnp.sum(sizes), tables, variances)

    even = jnp.full_like(params.weights, 1 / params.weights.shape[0])
    blended = LatentClass(
        (1 - smoothing) * params.weights + smoothing * even,
        blend_blocks(params.tables, totals, smoothing, variables),
        params.variances,
    )
    result = penalized_em(
        lambda params: expect(params, table, weights),
        update,
        penalty,
        better_start(begin, params, blended),
        tol=tol,
        max_iters=max_iters,
        feasible=feasible,
        history=history,
    )
    if result.params.variances is None:
        return result
    closed = jnp.any(result.params.variances <= floor) & (result.num_iters > 0)
    return result._replace(status=worst(result.status, status_if(closed, Status.BOUNDARY)))


def _with_real(
    updated: LatentClass, params: LatentClass, sums: RealSums | None, floor: Float[Array, "r 1"], variables: Variables
) -> LatentClass:
    """Return parameters with the means and variances that the entries of each class have."""
    if sums is None or params.variances is None:
        return updated
    rows = variables.offsets[:-1][variables.real]
    # A class without entries keeps what it had.
    used = sums.counts > smallest_normal(sums.counts.dtype) ** 0.75
    shift = divide(sums.first, jnp.where(used, sums.counts, 0))
    within = divide(sums.second - shift * sums.first, jnp.where(used, sums.counts, 0))
    return updated._replace(
        tables=updated.tables.at[rows].set(params.tables[rows] + shift),
        variances=jnp.where(used, jnp.maximum(within, floor), params.variances),
    )
