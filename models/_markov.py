"""The hidden Markov model's parameters, the likelihood of its observations, and what EM makes of expected counts."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from latensor.models._chain import Chain, floor_probabilities
from latensor.moments import Sequences, spread_view, view_features

# No variance falls below this part of the observations' own: a state with one observation would have none.
_LEAST_VARIANCE = 1e-4


class HiddenMarkov(NamedTuple):
    """Parameters of a hidden Markov model with categorical or real-valued observations."""

    initial: Float[Array, " k"]
    """`P(h₁)`."""
    transition: Float[Array, "k k"]
    """`transition[i, j] = P(h_{t+1} = j | h_t = i)`; rows sum to one."""
    emission: Float[Array, "d k"]
    """`P(x | h)`, columns sum to one; or the means `E[x | h]` of real-valued observations."""
    variance: Float[Array, "d k"] | None = None
    """Of each dimension in each state, for real-valued observations; `None` for categorical ones."""


class Fit(NamedTuple):
    """An estimate and how good it is. States are in decreasing order of how often they occur after `fit`."""

    params: HiddenMarkov
    status: Int[Array, ""]
    """How the estimation ended: see `latensor.decompose.Status`."""
    num_iters: Int[Array, ""]
    """EM steps: on windows of three after `fit`, on the data after `refine`."""
    residual: Float[Array, ""]
    """After `fit`, the part of the whitened third moment that the states leave unexplained (relative norm). After
    `refine`, the relative gain in log-likelihood of the last step."""
    gap: Float[Array, ""]
    """After `fit`, how far the composite likelihood of the transitions is from its maximum, at most, before polishing;
    zero by the pseudoinverse and after `refine`."""
    log_likelihood: Float[Array, ""]
    """After `fit`, that of a window of three, on average; for symbols, less that of the table itself, so that zero is a
    perfect fit (NaN without polishing). After `refine`, that of all data."""
    simplex_distance: Float[Array, " k"]
    """After `fit`, how far the columns of `emission` were from the simplex before they were projected; else zeros."""
    singular_values: Float[Array, " k"]
    """After `fit`, the k largest singular values of the pair moment, in units in which the largest is about one and the
    noise of all entries is alike; else zeros."""
    noise: Float[Array, ""]
    """After `fit`, the size that singular values of noise alone have; the last of `singular_values` should stand well
    above it. Zero after `refine`."""
    num_dropped: Int[Array, ""]
    """After `fit`, how many sequences have fewer than three observations and could not be used; else zero."""


def is_real(params: HiddenMarkov) -> bool:
    """Return whether the observations are real-valued."""
    return params.variance is not None


def log_densities(params: HiddenMarkov, x: Float[Array, "N d"]) -> Float[Array, "N k"]:
    """Return `log P(x_t | h)` of real vectors: products with `x` and `x²`, around the mean of all states."""
    assert params.variance is not None
    centre = jnp.mean(params.emission, axis=1)
    rows = x.astype(params.emission.dtype) - centre[None, :]
    means, precision = params.emission - centre[:, None], 1 / params.variance
    distance = (
        jnp.matmul(rows * rows, precision, precision="highest")
        - 2 * jnp.matmul(rows, means * precision, precision="highest")
        + jnp.sum(means * means * precision, axis=0)[None, :]
    )
    return -(distance + jnp.sum(jnp.log(2 * math.pi * params.variance), axis=0)[None, :]) / 2


def likelihoods(params: HiddenMarkov, x: Num[Array, "N ..."]) -> tuple[Float[Array, "N k"], Float[Array, " N"]]:
    """Return the likelihood of each observation in each state, the largest of a row scaled to one, and its logarithm.

    A symbol that no state can emit is as good as not observed, and costs the logarithm of the smallest number.
    """
    if is_real(params):
        values = log_densities(params, x)
        top = jnp.max(values, axis=1)
        return jnp.exp(values - top[:, None]), top
    tops = jnp.max(params.emission, axis=1)
    scaled = jnp.where(tops[:, None] > 0, params.emission / jnp.where(tops > 0, tops, 1)[:, None], 1)
    logs = jnp.log(jnp.maximum(tops, float(jnp.finfo(tops.dtype).tiny)))
    gathered = view_features(x, jnp.concatenate([scaled, logs[:, None]], axis=1))
    unknown = (x < 0) | (x >= tops.shape[0])
    return jnp.where(unknown[:, None], 1, gathered[:, :-1]), gathered[:, -1]


def chain_of(params: HiddenMarkov, sequences: Sequences) -> tuple[Chain, Float[Array, " N"]]:
    """Return what the recursions need, and the logarithms of the likelihoods' scales."""
    values, logs = likelihoods(params, sequences.x)
    valid = sequences.valid
    chain = Chain(
        floor_probabilities(params.initial),
        floor_probabilities(params.transition),
        jnp.where(valid[:, None], values, 1),
        sequences.first,
    )
    return chain, jnp.where(valid, logs, 0)


def divide_rows(counts: Float[Array, "*rows k"], otherwise: Float[Array, "*rows k"]) -> Float[Array, "*rows k"]:
    """Return counts scaled so that the last axis sums to one; what was there before, where there are none."""
    totals = jnp.sum(counts, axis=-1, keepdims=True)
    return jnp.where(totals > 0, counts / jnp.where(totals > 0, totals, 1), otherwise)


def reestimate(
    params: HiddenMarkov,
    x: Num[Array, "N ..."],
    states: Float[Array, "N k"],
    first: Float[Array, " k"],
    pairs: Float[Array, "k k"],
) -> HiddenMarkov:
    """Return the parameters that make expected counts likeliest: the M-step.

    Args:
      params: those that the counts are from, kept where nothing is counted.
      x: the observations.
      states: how much each observation counts for each state.
      first: how often a sequence begins in each state.
      pairs: how often a state follows another.

    """
    initial, transition = divide_rows(first, params.initial), divide_rows(pairs, params.transition)
    d = params.emission.shape[0]
    if not is_real(params):
        emission = divide_rows(spread_view(x, states, d).T, params.emission.T).T
        return HiddenMarkov(initial, transition, emission)
    assert params.variance is not None
    totals = jnp.sum(states, axis=0)
    used = (totals > 0)[None, :]
    share = states / jnp.where(totals > 0, totals, 1)[None, :]
    centre = jnp.mean(params.emission, axis=1)
    rows = x.astype(states.dtype) - centre[None, :]
    means = jnp.matmul(rows.T, share, precision="highest")
    squares = jnp.matmul((rows * rows).T, share, precision="highest")
    # All observations, whatever their state: the scale below which no variance falls.
    weight = jnp.sum(states, axis=1, keepdims=True) / jnp.maximum(jnp.sum(totals), float(jnp.finfo(states.dtype).tiny))
    spread = jnp.sum(weight * rows * rows, axis=0) - jnp.sum(weight * rows, axis=0) ** 2
    variance = jnp.maximum(squares - means * means, (_LEAST_VARIANCE * spread)[:, None])
    variance = jnp.where(variance > 0, variance, params.variance)
    return HiddenMarkov(
        initial,
        transition,
        jnp.where(used, means + centre[:, None], params.emission),
        jnp.where(used, variance, params.variance),
    )


def feasible(jump: HiddenMarkov, back: HiddenMarkov) -> HiddenMarkov:
    """Return parameters that are allowed from an extrapolation: no probability or variance below a part of EM's."""
    least = 0.01

    def at_least(new: Array, old: Array) -> Array:
        return jnp.maximum(new, least * old)

    def rows(new: Array, old: Array) -> Array:
        return divide_rows(at_least(new, old), old)

    initial, transition = rows(jump.initial, back.initial), rows(jump.transition, back.transition)
    if jump.variance is None or back.variance is None:
        return HiddenMarkov(initial, transition, rows(jump.emission.T, back.emission.T).T)
    return HiddenMarkov(initial, transition, jump.emission, at_least(jump.variance, back.variance))


def reorder(params: HiddenMarkov, order: Int[Array, " k"]) -> HiddenMarkov:
    """Return the same model with its states in another order."""
    return HiddenMarkov(
        params.initial[order],
        params.transition[order][:, order],
        params.emission[:, order],
        None if params.variance is None else params.variance[:, order],
    )
