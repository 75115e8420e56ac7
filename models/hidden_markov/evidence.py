"""What the sequences say about an estimate: the gain over a single state, in the likelihood of whole sequences.

`fit` makes windows of three likely. Where the model is wrong, as for proteins, the best model of windows can make whole
sequences less likely than independent draws do; only the sequences show it. Some segments of them are enough. They are
the ones that the model was fitted to, so the gain is lowered by what as many parameters gain on noise (Akaike).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import divide, small_jit
from latensor.models.evidence import Evidence, judge_gain
from latensor.models.hidden_markov.chain import forward_apart
from latensor.models.hidden_markov.emissions import chain_of, find_scales, likelihoods
from latensor.models.hidden_markov.params import HiddenMarkov, is_real
from latensor.moments import Sequences, sum_over_rows
from latensor.moments.internal import Observations, flatten_sequences, observation_weights, spread_view

# Segments, their length, and the steps until it no longer matters that the state before a segment is unknown.
_NUM_SEGMENTS, _LENGTH, _BURN_IN = 64, 256, 16
# The least number of steps that are judged together, as a power of two.
_LEAST_GROUP = 3


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
    weights = observation_weights(observations, sequences.row_weights, sequences.dtype)
    weights = jnp.where(observations.observed, weights, 0)
    places = _places(weights)
    index = jnp.minimum(places, weights.shape[0] - 1)
    first = observations.first[index]
    known = (jnp.cumsum(first, axis=1) > 0) | (jnp.arange(places.shape[1]) >= _BURN_IN)[None, :]
    counted = jnp.where(known & (places < weights.shape[0]), weights[index], 0)
    chosen = jax.tree.map(lambda leaf: leaf[index.reshape(-1)], observations)
    number = divide(jnp.sum(weights) ** 2, jnp.sum(weights**2))
    return Segments(chosen, counted.reshape(-1), _one_state(observations, weights, sequences.num_symbols), number)


def _places(weights: Float[Array, " N"]) -> Int[Array, "segments length"]:
    """Return the places of the segments' steps; those beyond the last observation are none."""
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
    d, k = params.emission.shape
    each = 2 * d if is_real(params) else jnp.sum(jnp.max(params.emission, axis=1) > 0) - 1
    return k * (k - 1) + k * each


@small_jit
def weigh_evidence(segments: Segments, params: HiddenMarkov) -> Evidence:
    """Return what the segments say about an estimate; the gain is that of an observation."""
    if params.initial.shape[0] == 1:
        return Evidence(None, None, None)
    chain, logs = chain_of(params, segments.observations)
    ours = forward_apart(chain, min(_LENGTH, logs.shape[0])) + logs
    theirs = likelihoods(segments.one, segments.observations.x)[1]
    by_noise = divide(_num_parameters(params) - _num_parameters(segments.one), segments.number)
    # Neighbours depend on each other, so the gains of some in a row are judged, as many as make about 64 groups.
    size = segments.weights.shape[0]
    group = min(_LENGTH, 1 << max((size // _NUM_SEGMENTS).bit_length() - 1, _LEAST_GROUP))

    def total(values: Array) -> Array:
        return jnp.sum(jnp.pad(values, (0, -size % group)).reshape(-1, group), axis=1)

    weights = total(segments.weights)
    sums = total(jnp.where(segments.weights > 0, segments.weights * (ours - theirs), 0))
    return judge_gain(None, divide(sums, weights) - by_noise, weights)
