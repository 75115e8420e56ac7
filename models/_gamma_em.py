"""Variational EM for the Gamma-Poisson model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.models._em import EMResult, expectation_maximization
from latensor.models._gamma import (
    GammaPoisson,
    Intensities,
    evidence_bound,
    log_intensities,
    observed_counts,
    posterior_rates,
    shares,
    start_intensities,
    update_intensities,
    update_prior,
    update_topics,
)
from latensor.moments import average_weights, centre, map_over_rows, spread, sum_over_rows

# Updates of a row's intensities between two updates of the parameters: one is enough for EM to rise, more rise faster.
_LOCAL_UPDATES = 3


class _Sums(NamedTuple):
    """What the M-step needs: sums over rows."""

    bound: Float[Array, ""]
    explained: Float[Array, "d k"]
    exposure: Float[Array, "d k"] | None
    mean: Float[Array, " k"]
    log_mean: Float[Array, " k"]


class _State(NamedTuple):
    params: GammaPoisson
    shapes: Float[Array, "n k"]


@jax.jit
def variational_em(
    params: GammaPoisson,
    x: Num[Array, "n d"],
    mask: Bool[Array, "n d"] | None,
    row_weights: Float[Array, " n"] | None,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
    smoothing: Float[Array, ""],
) -> tuple[EMResult, Float[Array, " d"]]:
    """Climb the evidence bound from `params`; return where that ended, and the observation rates."""
    dtype = params.topics.dtype
    weights = average_weights(row_weights, jnp.ones(x.shape[0], bool), dtype)
    floats = 4 * x.shape[1]

    def local(params: GammaPoisson, shapes: Array | None) -> Float[Array, "n k"]:
        def block(x: Array, mask: Array | None, shapes: Array | None) -> Array:
            counts, rates = observed_counts(x, mask, dtype), posterior_rates(params, x, mask)
            q = start_intensities(params, counts, rates) if shapes is None else Intensities(shapes, rates)
            for _ in range(_LOCAL_UPDATES):
                q = update_intensities(params, counts, q)
            return q.shapes

        return map_over_rows(block, (x, mask, shapes), floats_per_row=floats)

    def collect(params: GammaPoisson, shapes: Float[Array, "n k"]) -> _Sums:
        def block(x: Array, mask: Array | None, weights: Array, shapes: Array) -> _Sums:
            counts = observed_counts(x, mask, dtype)
            q = Intensities(shapes, posterior_rates(params, x, mask))
            intensity, ratio = shares(params, counts, q)
            mean = weights[:, None] * q.shapes / q.rates
            return _Sums(
                bound=jnp.sum(weights * evidence_bound(params, counts, q)),
                explained=params.topics * spread(weights[:, None] * intensity, ratio),
                exposure=None if mask is None else spread(mean, mask.astype(dtype)),
                mean=jnp.sum(mean, axis=0),
                log_mean=jnp.sum(weights[:, None] * log_intensities(q), axis=0),
            )

        return sum_over_rows(block, (x, mask, weights, shapes), floats_per_row=floats)

    def step(state: _State) -> tuple[_State, Array]:
        shapes = local(state.params, state.shapes)
        sums = collect(state.params, shapes)
        topics = update_topics(state.params.topics, sums.explained, sums.exposure)
        prior, rate = update_prior(state.params.shapes, sums.log_mean, sums.mean)
        return _State(GammaPoisson(topics, prior, rate), shapes), sums.bound

    # Topics from moments have exact zeros, which rule a topic out for a count that is not zero. Starting from a mixture
    # with the overall frequencies mends that; parameters that are better as they are stay as they are.
    data = centre(x, mask, row_weights)
    overall = data.mean.astype(dtype)
    total = jnp.sum(overall)
    share = jnp.where(total > 0, smoothing, 0)
    mixed = (1 - share) * params.topics + share * (overall / jnp.where(total > 0, total, 1))[:, None]
    choices = [_State(p, local(p, None)) for p in (params, params._replace(topics=mixed))]
    as_given, smoothed = (collect(*choice).bound for choice in choices)
    start = jax.tree.map(lambda a, b: jnp.where(as_given >= smoothed, a, b), *choices)

    result = expectation_maximization(step, start, jnp.maximum(as_given, smoothed), tol, max_iters)
    return result._replace(params=result.params.params), data.rates.astype(dtype)
