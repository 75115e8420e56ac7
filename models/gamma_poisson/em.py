"""Variational EM for the Gamma-Poisson model."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_number, divide, positive_or_one, smallest_normal
from latensor.decompose import Status
from latensor.decompose.internal import status_if, worst
from latensor.models.em import blend, em_limits, history_length
from latensor.models.gamma_poisson.inference import (
    Gammas,
    evidence_bound,
    log_factorials,
    observed_counts,
    posterior_rates,
    share_counts,
    start_gammas,
    update_gammas,
)
from latensor.models.gamma_poisson.likelihood import check_pair
from latensor.models.gamma_poisson.params import GammaPoisson
from latensor.models.partial import check_observed
from latensor.models.results import Refined
from latensor.models.special import digamma, trigamma
from latensor.models.variational import LARGEST_SHRINKAGE, LOCAL_UPDATES, variational_em
from latensor.moments import Table, map_over_rows, sum_over_rows
from latensor.moments.internal import average_weights, centre, spread


def refine(
    params: GammaPoisson,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 200,
    smoothing: float | Array = 1e-2,
    history: bool = False,
) -> Refined:
    """Improve `params` by variational EM on the observed counts. The evidence lower bound never falls.

    The bound is not the likelihood. Where topics overlap it is loose, and its optimum can be worse than the `fit` that
    it started from: compare `log_likelihood` before and after. It is tight where topics have words of their own.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: counts as for `fit`.
      mask: `(n, d)` bool, True where observed.
      row_weights: one weight per row (default: equal).
      tol: stop when a step gains no more than this share of the bound; default: 10 machine epsilons in float32 and
        1e-8 in float64.
      max_iters: limit on the steps.
      smoothing: share of the overall frequencies that is blended into the topics of the start, where that raises its
        bound.
      history: also return the bound at the start and after each step; one compilation per `max_iters`.

    Returns:
      `Refined`; its `log_likelihood` is the evidence lower bound.

    Cost: five passes over the data per step, and an `(n, k)` array of the rows' intensities.

    """
    params, table = check_pair(params, x, mask, row_weights)
    check_observed(table)
    dtype = params.topics.dtype
    share = jnp.asarray(check_number("smoothing", smoothing, 0.0, 1.0), dtype)
    return _refine(params, table, *em_limits(tol, max_iters, dtype), share, history_length(history, max_iters))


class _Sums(NamedTuple):
    """What the M-step needs: sums over rows."""

    bound: Float[Array, ""]
    explained: Float[Array, "d k"]
    exposure: Float[Array, "d k"] | None
    """`None` where it is the same for all dimensions, because all are observed."""
    mean: Float[Array, " k"]
    log_mean: Float[Array, " k"]


@partial(jax.jit, static_argnames="history")
def _refine(
    params: GammaPoisson,
    table: Table,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
    smoothing: Float[Array, ""],
    history: int | None,
) -> Refined:
    dtype = params.topics.dtype
    floats = 4 * table.num_dimensions
    data = centre(table)
    overall = data.mean.astype(dtype)
    weights = average_weights(table.row_weights, table.num_rows, dtype)
    factorials = map_over_rows(lambda rows: log_factorials(observed_counts(rows, dtype)), table, floats_per_row=floats)

    def local(params: GammaPoisson, shapes: Array | None) -> Float[Array, "n k"]:
        def block(rows: Table, shapes: Array | None) -> Array:
            counts, rates = observed_counts(rows, dtype), posterior_rates(params, rows)
            q = start_gammas(params, counts, rates) if shapes is None else Gammas(shapes, rates)
            return lax.fori_loop(0, LOCAL_UPDATES, lambda _, q: update_gammas(params, counts, q), q).shapes

        return map_over_rows(block, table, shapes, floats_per_row=floats)

    def collect(params: GammaPoisson, shapes: Float[Array, "n k"]) -> _Sums:
        return _collect(params, table, weights, factorials, shapes)

    def update(params: GammaPoisson, sums: _Sums) -> GammaPoisson:
        topics = update_topics(params.topics, sums.explained, sums.exposure)
        return GammaPoisson(topics, *update_prior(params.shapes, sums.log_mean, sums.mean))

    blended = params._replace(topics=blend(params.topics, overall, smoothing))
    refined = variational_em(
        local, collect, update, _feasible, _size, weights, params, blended, tol, max_iters, history
    )
    never = status_if(~jnp.all(data.rates > 0), Status.UNOBSERVED)
    return refined._replace(status=worst(refined.status, never))


def _collect(
    params: GammaPoisson,
    table: Table,
    weights: Float[Array, " n"],
    factorials: Float[Array, " n"],
    shapes: Float[Array, "n k"],
) -> _Sums:
    dtype = params.topics.dtype

    def block(rows: Table, weights: Array, factorials: Array, shapes: Array) -> _Sums:
        counts, q = observed_counts(rows, dtype), Gammas(shapes, posterior_rates(params, rows))
        shared = share_counts(params, counts, q)
        mean = weights[:, None] * q.shapes / q.rates
        return _Sums(
            bound=jnp.sum(weights * evidence_bound(params, counts, q, factorials)),
            explained=params.topics * spread(weights[:, None] * shared.intensity, shared.ratio),
            exposure=None if rows.mask is None else spread(mean, rows.mask.astype(dtype)),
            mean=jnp.sum(mean, axis=0),
            log_mean=jnp.sum(weights[:, None] * (shared.digamma - jnp.log(q.rates)), axis=0),
        )

    return sum_over_rows(block, table, weights, factorials, shapes, floats_per_row=4 * table.num_dimensions)


def _feasible(jump: GammaPoisson, nearest: GammaPoisson) -> GammaPoisson:
    """Return an extrapolated model with topics on the simplex and a positive prior; no zero that EM would not leave."""
    jump = jax.tree.map(lambda one, two: jnp.maximum(one, two / LARGEST_SHRINKAGE), jump, nearest)
    return jump._replace(topics=divide(jump.topics, jnp.sum(jump.topics, axis=0)[None, :], nearest.topics))


def _size(change: GammaPoisson) -> Float[Array, ""]:
    return jnp.sum(change.topics**2) + jnp.sum(change.shapes**2) + change.rate**2


def inverse_digamma(value: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return `c` with `ψ(c) = value`: Minka's start, then Newton steps, which double the digits (five are enough)."""

    def newton(_: Array | int, c: Array) -> Array:
        return c - (digamma(c) - value) / trigamma(c)

    start = jnp.where(value > -2.22, jnp.exp(value) + 0.5, -1 / (value - digamma(jnp.ones_like(value))))
    return lax.fori_loop(0, 5, newton, start)


def update_prior(
    shapes: Float[Array, " k"], log_mean: Float[Array, " k"], mean: Float[Array, " k"]
) -> tuple[Array, Array]:
    """Return `c` and `b` that raise `Σ_h c_h log b − log Γ(c_h) + (c_h − 1) E log α_h − b E α_h`.

    By turns: `b = Σ c / Σ E α`, then `ψ(c_h) = log b + E log α_h`, each the best given the other.
    """
    total = jnp.maximum(jnp.sum(mean), smallest_normal(mean.dtype))

    def turn(_: Array | int, shapes: Array) -> Array:
        return inverse_digamma(jnp.log(jnp.sum(shapes) / total) + log_mean)

    shapes = lax.fori_loop(0, 5, turn, shapes)
    return shapes, jnp.sum(shapes) / total


def update_topics(
    topics: Float[Array, "d k"], explained: Float[Array, "d k"], exposure: Float[Array, "d k"] | None
) -> Float[Array, "d k"]:
    """Return columns on the simplex that maximize `Σ_d N_dh log A_dh − M_dh A_dh`.

    `N` are the counts that a topic explains, `M` its intensity summed over the rows that observe the dimension; without
    a mask `M` is one number per column and `A ∝ N`. Otherwise `A_dh = N_dh / (M_dh + λ_h)`, where `λ_h` makes the
    column sum to one: Newton's method on a convex, decreasing function, from the left of its root, which it cannot
    pass. The unknown is the distance of `λ_h` from the nearest pole, `−min_d M_dh`, so that nothing cancels.
    """
    total = jnp.sum(explained, axis=0)[None, :]
    if exposure is None:
        return divide(explained, total, topics)
    # In units of the column's total, so that nothing leaves the floating range. Negligible entries count as zero.
    scale = positive_or_one(total)
    n = explained / scale
    present = n > smallest_normal(n.dtype) ** 0.75
    low = jnp.min(jnp.where(present, exposure, jnp.inf), axis=0)[None, :]
    gap = jnp.where(present, (exposure - low) / scale, 1)

    def shares_at(distance: Array) -> Array:
        return jnp.where(present, n / (gap + distance[None, :]), 0)

    def newton(_: Array | int, distance: Array) -> Array:
        value = shares_at(distance)
        slope = jnp.sum(jnp.where(present, value / (gap + distance[None, :]), 0), axis=0)
        return distance + (jnp.sum(value, axis=0) - 1) / positive_or_one(slope)

    # No single share exceeds one at the root: the root is to the right of where the first of them is one.
    start = jnp.where(total[0] > 0, jnp.max(jnp.where(present, n - gap, 0), axis=0), 1)
    updated = shares_at(lax.fori_loop(0, 60, newton, start))
    return jnp.where(total > 0, updated / positive_or_one(jnp.sum(updated, axis=0))[None, :], topics)
