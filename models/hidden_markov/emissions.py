"""Observations given their states: their likelihood, and the parameters that make expected counts likeliest."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Integer, Num

from latensor.base import as_int32, divide, machine_epsilon, matmul, positive_or_one, smallest_normal
from latensor.models.hidden_markov.lanes import Chain, floor_probabilities, small_integer
from latensor.models.hidden_markov.params import HiddenMarkov, is_real
from latensor.moments import map_over_rows, sum_over_rows
from latensor.moments.internal import Observations, spread_view, view_features

# One step takes at most this factor off a variance: a state that closes in on one observation does so slowly.
_LEAST_REMAINDER = 1e-3
# Variances below this many machine epsilons of what they are a difference of are rounding.
_ROUNDING = 16
# An extrapolation keeps at least this share of each probability or variance of the EM iterate.
_LEAST_SHARE = 0.01
# The logarithm of an impossible likelihood: on no likeliest path, unless all paths have one.
_IMPOSSIBLE = -1e6


def _log_densities(params: HiddenMarkov, x: Float[Array, "N d"]) -> Float[Array, "N k"]:
    """Return `log P(x_t | h)` of real vectors.

    From differences, state by state. Products with `x` and `x²` are no faster, and cancel where states are many
    standard deviations apart.
    """
    assert params.variance is not None
    states, dtype = (params.emission.T, params.variance.T), params.emission.dtype
    # Far beyond every state all are as likely: squares that overflow would leave infinity minus infinity.
    farthest = float(jnp.finfo(dtype).max) / 4

    def block(x: Array) -> Array:
        def distance(state: tuple[Array, Array]) -> Array:
            mean, variance = state
            error = (x - mean[None, :]).astype(dtype)
            return jnp.minimum(matmul(error * error, 1 / variance), farthest)

        return lax.map(distance, states).T

    distances = map_over_rows(block, x, floats_per_row=2 * x.shape[1])
    return -(distances + jnp.sum(jnp.log(2 * math.pi * params.variance), axis=0)[None, :]) / 2


class Scaled(NamedTuple):
    """Likelihoods of each observation in each state, the largest of a row scaled to one."""

    values: Float[Array, "N k"]
    log_scales: Float[Array, " N"]
    """Logarithms of the scales."""


def _scale_densities(params: HiddenMarkov, x: Float[Array, "N d"]) -> Scaled:
    """Return logarithms of the likelihoods of real vectors, the largest of a row zero."""
    values = _log_densities(params, x)
    top = jnp.max(values, axis=1)
    return Scaled(values - top[:, None], top)


def _scale_table(params: HiddenMarkov) -> Scaled:
    """Return the likelihoods of each symbol; all are one where no state can emit it."""
    tops = jnp.max(params.emission, axis=1)
    scales = jnp.log(jnp.maximum(tops, smallest_normal(tops.dtype)))
    return Scaled(divide(params.emission, tops[:, None], 1), scales)


def likelihoods(params: HiddenMarkov, x: Num[Array, "N ..."]) -> Scaled:
    """Return the likelihood of each observation in each state, the largest of a row scaled to one.

    A symbol that no state can emit counts as not observed, and costs the logarithm of the smallest number.
    """
    if is_real(params):
        values, top = _scale_densities(params, x)
        return Scaled(jnp.exp(values), top)
    table, scales = _scale_table(params)
    gathered = view_features(x, jnp.concatenate([table, scales[:, None]], axis=1))
    unknown = (x < 0) | (x >= table.shape[0])
    return Scaled(jnp.where(unknown[:, None], 1, gathered[:, :-1]), gathered[:, -1])


class ScaledLogs(NamedTuple):
    """Logarithms of the likelihoods of each observation, as steps of a chain look them up.

    One for each state, scaled so that the largest is zero, and last that of the scale: `k + 1` rows. All are zero where
    the observation is missing.
    """

    values: Float[Array, "N rows"] | Integer[Array, " N"]
    """Of real vectors, the logarithms. Of symbols, their places in the table: one small number in place of the rows,
    which for long chains take more time to arrange than the steps do."""
    table: Float[Array, "rows places"] | None
    """The logarithms for each symbol; the last place is that of missing ones."""


def scaled_logs(params: HiddenMarkov, observations: Observations) -> ScaledLogs:
    """Return logarithms of the likelihoods and of their scales; zeros where nothing is observed."""
    seen = observations.observed
    if is_real(params):
        values, scales = _scale_densities(params, observations.x)
        values = jnp.concatenate([jnp.maximum(values, _IMPOSSIBLE), scales[:, None]], axis=1)
        return ScaledLogs(jnp.where(seen[:, None], values, 0), None)
    table, scales = _scale_table(params)
    d = table.shape[0]
    logs = jnp.where(table > 0, jnp.log(positive_or_one(table)), _IMPOSSIBLE)
    codes = as_int32(observations.x)
    places = jnp.where(seen & (codes >= 0) & (codes < d), codes, d)
    columns = jnp.concatenate([logs.T, scales[None, :]])
    return ScaledLogs(places.astype(small_integer(d + 1)), jnp.pad(columns, ((0, 0), (0, 1))))


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


class Scales(NamedTuple):
    """How real vectors are standardized."""

    mean: Float[Array, " d"]
    scale: Float[Array, " d"]


def find_scales(x: Float[Array, "N d"], weights: Float[Array, " N"]) -> Scales:
    """Return the means and standard deviations of all observations; zero where nothing varies."""
    share = divide(weights, jnp.sum(weights))
    mean = sum_over_rows(lambda x, share: jnp.sum(share[:, None] * x, axis=0), x, share, floats_per_row=0)

    def square(x: Array, share: Array) -> Array:
        rows = jnp.where(share[:, None] > 0, x - mean[None, :], 0)
        return jnp.sum(share[:, None] * rows * rows, axis=0)

    scale = jnp.sqrt(sum_over_rows(square, x, share, floats_per_row=0))
    return Scales(mean, scale)


class EmissionSums(NamedTuple):
    """What the M-step needs of the observations: sums over them, weighted by how much each counts for each state."""

    first: Float[Array, "d k"]
    """Of symbols, their counts; of real vectors, the sum of `x − m`, with `m` the state's mean before the step."""
    squares: Float[Array, "d k"] | None
    """Of real vectors, the sum of `(x − m)²`."""
    totals: Float[Array, " k"]


def sum_emissions(params: HiddenMarkov, x: Num[Array, "N ..."], states: Float[Array, "N k"]) -> EmissionSums:
    """Return the sums over observations; `states` says how much each counts for each state."""
    d = params.emission.shape[0]

    def block(x: Array, states: Array) -> EmissionSums:
        totals = jnp.sum(states, axis=0)
        if not is_real(params):
            return EmissionSums(spread_view(x, states, d), None, totals)

        def one(state: tuple[Array, Array]) -> tuple[Array, Array]:
            mean, share = state
            error = (x - mean[None, :]).astype(states.dtype)
            return matmul(share, error), matmul(share, error * error)

        first, squares = lax.map(one, (params.emission.T, states.T))
        return EmissionSums(first.T, squares.T, totals)

    return sum_over_rows(block, x, states, floats_per_row=2 * d if is_real(params) else 0)


def reestimate(
    params: HiddenMarkov, sums: EmissionSums, first: Float[Array, " k"], pairs: Float[Array, "k k"]
) -> HiddenMarkov:
    """Return the parameters that make expected counts likeliest: the M-step.

    Probabilities of zero stay zero: they are the structure of the model, as in left-to-right chains.

    Args:
      params: those that the counts are from, kept where nothing is counted.
      sums: sums over the observations.
      first: how often a sequence begins in each state.
      pairs: how often a state follows another.

    """
    first, pairs = jnp.where(params.initial > 0, first, 0), jnp.where(params.transition > 0, pairs, 0)
    initial, transition = divide_rows(first, params.initial), divide_rows(pairs, params.transition)
    if params.variance is None or sums.squares is None:
        return HiddenMarkov(initial, transition, divide_rows(sums.first.T, params.emission.T).T)
    totals = sums.totals[None, :]
    shift, squares = divide(sums.first, totals), divide(sums.squares, totals)
    means = params.emission + shift
    variance = _bound_below(squares - shift * shift, params.variance, shift, means)
    used = totals > 0
    return HiddenMarkov(
        initial, transition, jnp.where(used, means, params.emission), jnp.where(used, variance, params.variance)
    )


def _bound_below(
    best: Float[Array, "d k"], before: Float[Array, "d k"], shift: Float[Array, "d k"], means: Float[Array, "d k"]
) -> Float[Array, "d k"]:
    """Return the likeliest variances that are not below what can be resolved in the units of their own state.

    As a function of a variance the expected log-likelihood has one maximum, `best`. A bound between it and the variance
    `before` the step keeps part of the gain; one above `before` could lose all of it, so no bound is.
    """
    eps = machine_epsilon(best.dtype)
    rounding = _ROUNDING * jnp.maximum(eps * shift * shift, (eps * means) ** 2)
    least = jnp.maximum(jnp.maximum(_LEAST_REMAINDER * before, rounding), smallest_normal(best.dtype))
    return jnp.maximum(best, jnp.minimum(least, before))


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
