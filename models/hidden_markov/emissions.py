"""Observations given their states: their likelihood, and the parameters that make expected counts likeliest."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from latensor.base import divide, matmul, smallest_normal
from latensor.models.hidden_markov.chain import Chain, floor_probabilities
from latensor.models.hidden_markov.params import HiddenMarkov, is_real
from latensor.moments import sum_over_rows
from latensor.moments.internal import Observations, spread_view, view_features

# No variance falls below this share of that of all observations: a state with one observation would have none.
_LEAST_VARIANCE = 1e-4
# An extrapolation keeps at least this share of each probability or variance of the EM iterate.
_LEAST_SHARE = 0.01


def _log_densities(params: HiddenMarkov, x: Float[Array, "N d"]) -> Float[Array, "N k"]:
    """Return `log P(x_t | h)` of real vectors: products with `x` and `x²`, around the mean of all states."""
    assert params.variance is not None
    centre = jnp.mean(params.emission, axis=1)
    rows = x.astype(params.emission.dtype) - centre[None, :]
    means, precision = params.emission - centre[:, None], 1 / params.variance
    distance = (
        matmul(rows * rows, precision)
        - 2 * matmul(rows, means * precision)
        + jnp.sum(means * means * precision, axis=0)[None, :]
    )
    return -(distance + jnp.sum(jnp.log(2 * math.pi * params.variance), axis=0)[None, :]) / 2


def likelihoods(params: HiddenMarkov, x: Num[Array, "N ..."]) -> tuple[Float[Array, "N k"], Float[Array, " N"]]:
    """Return the likelihood of each observation in each state, the largest of a row scaled to one, and its logarithm.

    A symbol that no state can emit counts as not observed, and costs the logarithm of the smallest number.
    """
    if is_real(params):
        values = _log_densities(params, x)
        top = jnp.max(values, axis=1)
        return jnp.exp(values - top[:, None]), top
    tops = jnp.max(params.emission, axis=1)
    scaled = divide(params.emission, tops[:, None], 1)
    logs = jnp.log(jnp.maximum(tops, smallest_normal(tops.dtype)))
    gathered = view_features(x, jnp.concatenate([scaled, logs[:, None]], axis=1))
    unknown = (x < 0) | (x >= tops.shape[0])
    return jnp.where(unknown[:, None], 1, gathered[:, :-1]), gathered[:, -1]


def chain_of(params: HiddenMarkov, observations: Observations) -> tuple[Chain, Float[Array, " N"]]:
    """Return the input of the recursions, and the logarithms of the likelihoods' scales.

    A missing observation has likelihood one in every state.
    """
    values, logs = likelihoods(params, observations.x)
    chain = Chain(
        floor_probabilities(params.initial),
        floor_probabilities(params.transition),
        jnp.where(observations.observed[:, None], values, 1),
        observations.first,
    )
    return chain, jnp.where(observations.observed, logs, 0)


def divide_rows(counts: Float[Array, "*rows k"], otherwise: Float[Array, "*rows k"]) -> Float[Array, "*rows k"]:
    """Return counts scaled such that the last axis sums to one; `otherwise` where there are none."""
    return divide(counts, jnp.sum(counts, axis=-1, keepdims=True), otherwise)


class EmissionSums(NamedTuple):
    """What the M-step needs of the observations: sums over them, weighted by how much each counts for each state."""

    first: Float[Array, "d k"]
    """Of symbols, their counts; of real vectors, the sum of `x − centre`."""
    squares: Float[Array, "d k"] | None
    """Of real vectors, the sum of `(x − centre)²`."""
    totals: Float[Array, " k"]


def _centre(params: HiddenMarkov) -> Float[Array, " d"]:
    return jnp.mean(params.emission, axis=1)


def sum_emissions(params: HiddenMarkov, x: Num[Array, "N ..."], states: Float[Array, "N k"]) -> EmissionSums:
    """Return the sums over observations; `states` says how much each counts for each state."""
    centre, d = _centre(params), params.emission.shape[0]

    def block(x: Array, states: Array) -> EmissionSums:
        totals = jnp.sum(states, axis=0)
        if not is_real(params):
            return EmissionSums(spread_view(x, states, d), None, totals)
        rows = x.astype(states.dtype) - centre[None, :]
        return EmissionSums(matmul(rows.T, states), matmul((rows * rows).T, states), totals)

    return sum_over_rows(block, x, states, floats_per_row=0)


def reestimate(
    params: HiddenMarkov, sums: EmissionSums, first: Float[Array, " k"], pairs: Float[Array, "k k"]
) -> HiddenMarkov:
    """Return the parameters that make expected counts likeliest: the M-step.

    Args:
      params: those that the counts are from, kept where nothing is counted.
      sums: sums over the observations.
      first: how often a sequence begins in each state.
      pairs: how often a state follows another.

    """
    initial, transition = divide_rows(first, params.initial), divide_rows(pairs, params.transition)
    if params.variance is None or sums.squares is None:
        return HiddenMarkov(initial, transition, divide_rows(sums.first.T, params.emission.T).T)
    totals = sums.totals[None, :]
    means, squares = divide(sums.first, totals), divide(sums.squares, totals)
    # The variance of all observations, whatever their state: the scale of the smallest one allowed.
    number = jnp.maximum(jnp.sum(totals), smallest_normal(totals.dtype))
    spread = jnp.sum(sums.squares, axis=1) / number - (jnp.sum(sums.first, axis=1) / number) ** 2
    variance = jnp.maximum(squares - means * means, (_LEAST_VARIANCE * spread)[:, None])
    variance = jnp.where(variance > 0, variance, params.variance)
    used = totals > 0
    return HiddenMarkov(
        initial,
        transition,
        jnp.where(used, means + _centre(params)[:, None], params.emission),
        jnp.where(used, variance, params.variance),
    )


def feasible(jump: HiddenMarkov, back: HiddenMarkov) -> HiddenMarkov:
    """Return valid parameters from an extrapolation: no probability or variance below a share of EM's."""

    def at_least(new: Array, old: Array) -> Array:
        return jnp.maximum(new, _LEAST_SHARE * old)

    def rows(new: Array, old: Array) -> Array:
        return divide_rows(at_least(new, old), old)

    initial, transition = rows(jump.initial, back.initial), rows(jump.transition, back.transition)
    if jump.variance is None or back.variance is None:
        return HiddenMarkov(initial, transition, rows(jump.emission.T, back.emission.T).T)
    return HiddenMarkov(initial, transition, jump.emission, at_least(jump.variance, back.variance))
