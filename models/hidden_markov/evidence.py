"""What the sequences say about an estimate: the gain over a single state, in the likelihood of whole sequences.

`fit` makes windows of three likely. Where the model is wrong, as for proteins, the best model of windows can make whole
sequences less likely than independent draws do; only the sequences show it. Some segments of them are enough.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import divide, machine_epsilon, small_jit
from latensor.models.evidence import Evidence, effective_rows, judge_gain
from latensor.models.hidden_markov.chain import forward_apart
from latensor.models.hidden_markov.emissions import chain_of, find_scales, likelihoods
from latensor.models.hidden_markov.params import HiddenMarkov, count_parameters, is_real
from latensor.moments import Sequences, sum_over_rows
from latensor.moments.internal import Observations, flatten_sequences, observation_weights, spread_view

# Segments, their length, and the steps until it no longer matters that the state before a segment is unknown.
_NUM_SEGMENTS, _LENGTH, _BURN_IN = 64, 256, 16
# A standard deviation below so many machine epsilons of the mean is none.
_ROUNDING = 32
# Numbers of steps that may be judged together, and how many such groups there should be.
_GROUPS, _NUM_GROUPS = (8, 16, 32, 64, 128, 256), 60


class Segments(NamedTuple):
    """Segments of sequences, one after the other, and the best model with a single state."""

    observations: Observations
    weights: Float[Array, " N"]
    """Of each step; zero where its observation is missing, or what came before it is not in the segment."""
    one: HiddenMarkov
    number: Float[Array, ""]
    """Of all observations; of weighted ones, of as many equal ones as say as much."""


def choose_segments(sequences: Sequences) -> Segments:
    """Return segments at even distances in the sum of the weights; all observations where there are few."""
    observations = flatten_sequences(sequences)
    steps = observation_weights(observations, sequences.row_weights, sequences.dtype)
    weights = jnp.where(observations.observed, steps, 0)
    one = _one_state(observations, weights, sequences.num_symbols)
    number = effective_rows(weights)
    if sequences.lengths is not None or sequences.row_weights is not None:
        # Padding, and sequences that do not count, go to the end: segments are to hold as much as they can.
        order = jnp.nonzero(steps > 0, size=steps.shape[0], fill_value=steps.shape[0] - 1)[0]
        past = jnp.arange(steps.shape[0]) >= jnp.sum(steps > 0)
        observations = jax.tree.map(lambda leaf: leaf[order], observations)
        weights = jnp.where(past, 0, weights[order])
    places = _places(weights)
    size, length = weights.shape[0], places.shape[1]
    index = jnp.minimum(places, size - 1)
    first = observations.first[index]
    known = (jnp.cumsum(first, axis=1) > 0) | (jnp.arange(length) >= _BURN_IN)[None, :]
    # Where few observations have weight, segments overlap: each counts once.
    ends = jnp.concatenate([jnp.zeros(1, places.dtype), places[:-1, -1] + 1])
    counted = jnp.where(known & (places < size) & (places >= ends[:, None]), weights[index], 0)
    chosen = jax.tree.map(lambda leaf: leaf[index.reshape(-1)], observations)
    return Segments(chosen, counted.reshape(-1), one, number)


def _places(weights: Float[Array, " N"]) -> Int[Array, "segments length"]:
    """Return the places of the segments' steps, in order; those beyond the last observation are none."""
    size = weights.shape[0]
    length = min(_LENGTH, size)
    if size <= _NUM_SEGMENTS * _LENGTH:
        starts = length * jnp.arange(-(-size // length))
    else:
        reached = jnp.cumsum(weights)
        middle = (jnp.arange(_NUM_SEGMENTS, dtype=reached.dtype) + 0.5) / _NUM_SEGMENTS
        starts = jnp.searchsorted(reached, middle * reached[-1]) - length // 2
        starts = jnp.clip(starts, 0, size - length)
    return starts[:, None] + jnp.arange(length)[None, :]


def _one_state(observations: Observations, weights: Float[Array, " N"], num_symbols: int | None) -> HiddenMarkov:
    certain = jnp.ones((1, 1), weights.dtype)
    if num_symbols is None:
        mean, scale = find_scales(observations.x, weights)
        return HiddenMarkov(certain[0], certain, mean[:, None], scale[:, None] ** 2)
    counts = sum_over_rows(
        lambda x, w: spread_view(x, w[:, None], num_symbols), observations.x, weights, floats_per_row=0
    )
    return HiddenMarkov(certain[0], certain, divide(counts, jnp.sum(counts)))


@small_jit
def admit_symbols(params: HiddenMarkov, one: HiddenMarkov) -> HiddenMarkov:
    """Return a model that can emit every observed symbol.

    One that is in no window of three says nothing about the states: all emit it as often as it occurs.
    """
    if is_real(params):
        return params
    never = jnp.max(params.emission, axis=1, keepdims=True) == 0
    rest = 1 - jnp.sum(jnp.where(never, one.emission, 0))
    return params._replace(emission=jnp.where(never, one.emission, rest * params.emission))


def _num_parameters(params: HiddenMarkov) -> Int[Array, ""] | int:
    """Return the number of free parameters but for `initial`; symbols that are never emitted have none."""
    if is_real(params):
        return count_parameters(params, params.emission.shape[0])
    return count_parameters(params, jnp.sum(jnp.max(params.emission, axis=1) > 0))


@small_jit
def weigh_evidence(segments: Segments, params: HiddenMarkov) -> Evidence:
    """Return what the segments say about an estimate; the gain is that of an observation."""
    if params.initial.shape[0] == 1:
        return Evidence(None, None, None)
    chain, logs = chain_of(params, segments.observations)
    ours = forward_apart(chain, min(_LENGTH, logs.shape[0])) + logs
    one = segments.one
    if one.variance is not None and params.variance is not None:
        # What never varies, but for rounding, is known to both.
        rounding = (_ROUNDING * machine_epsilon(one.emission.dtype) * one.emission) ** 2
        varies, widest = one.variance > rounding, jnp.max(params.variance, axis=1, keepdims=True)
        one = one._replace(
            emission=jnp.where(varies, one.emission, params.emission[:, :1]),
            variance=jnp.where(varies, one.variance, widest),
        )
    theirs = likelihoods(one, segments.observations.x)[1]
    gains = segments.weights * jnp.where(segments.weights > 0, ours - theirs, 0)
    # Schwarz: where the rank is not judged, a gain has to be more than what the likeliest of many models has by chance.
    factor = jnp.maximum(jnp.log(jnp.maximum(segments.number, 1)) / 2, 1)
    num_parameters = factor * (_num_parameters(params) - _num_parameters(one))
    return _judge_in_groups(gains, segments.weights, num_parameters, segments.number)


def _judge_in_groups(
    gains: Float[Array, " N"], weights: Float[Array, " N"], num_parameters: Float[Array, ""], number: Float[Array, ""]
) -> Evidence:
    """Return the evidence of weighted gains, judged as sums over neighbours, which depend on each other.

    The longer a group the more it holds of what depends, the fewer there are to take an error from: the longest groups
    of which there are about 64.
    """
    counted = jnp.sum(weights > 0)

    def judge(group: int) -> Evidence:
        def total(values: Array) -> Array:
            return jnp.sum(jnp.pad(values, (0, -values.shape[0] % group)).reshape(-1, group), axis=1)

        mine = total(weights)
        return judge_gain(None, divide(total(gains), mine), num_parameters, number, mine)

    best = judge(_GROUPS[0])
    for group in _GROUPS[1:]:
        enough = counted >= _NUM_GROUPS * group
        best = jax.tree.map(lambda old, new, enough=enough: jnp.where(enough, new, old), best, judge(group))
    return best
