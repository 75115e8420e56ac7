"""The distribution of the first state: from the first observations of all sequences, given the emissions."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num

from latensor.base import matmul, smallest_normal
from latensor.models.hidden_markov.emissions import likelihoods
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.moments import Sequences, sum_over_rows
from latensor.moments.internal import flatten_sequences, sequence_lengths, spread_view

# Prior strength of the windows' distribution of states, in sequences: few sequences say little.
_PRIOR_SEQUENCES = 2.0
_STEPS = 50


class FirstObservations(NamedTuple):
    """The first observations of sequences: one per sequence, or one per symbol with the total weight of each."""

    x: Num[Array, "m ..."]
    weights: Float[Array, " m"]
    """Of the sequence; zero if it is empty or its first observation is missing."""


def first_observations(sequences: Sequences) -> FirstObservations:
    """Return the first observation of each sequence; of symbols, how often each comes first."""
    observations, sizes = flatten_sequences(sequences), sequence_lengths(sequences)
    starts = jnp.arange(sizes.shape[0]) * sequences.x.shape[1] if sequences.is_batched else jnp.cumsum(sizes) - sizes
    starts = jnp.minimum(starts, observations.x.shape[0] - 1)
    weights = ((sizes > 0) & observations.observed[starts]).astype(sequences.dtype)
    if sequences.row_weights is not None:
        weights = weights * sequences.row_weights.astype(weights.dtype)
    x = observations.x[starts]
    if sequences.num_symbols is None:
        return FirstObservations(x, weights)
    number = sequences.num_symbols
    counts = sum_over_rows(lambda x, w: spread_view(x, w[:, None], number)[:, 0], x, weights, floats_per_row=0)
    return FirstObservations(jnp.arange(number, dtype=x.dtype), counts)


def first_states(params: HiddenMarkov, first: FirstObservations) -> Float[Array, " k"]:
    """Return `P(h₁)` by EM on the first observations; `params.initial`, that of a window, is prior and start."""
    values, _ = likelihoods(params, first.x)
    total = jnp.sum(first.weights) + _PRIOR_SEQUENCES

    def step(_: Array | int, initial: Array) -> Array:
        def block(values: Array, weights: Array) -> Array:
            joint = values * initial[None, :]
            chance = jnp.maximum(jnp.sum(joint, axis=1), smallest_normal(values.dtype))
            return matmul(weights / chance, joint)

        counts = sum_over_rows(block, values, first.weights, floats_per_row=0)
        return (counts + _PRIOR_SEQUENCES * params.initial) / total

    initial = lax.fori_loop(0, _STEPS, step, params.initial)
    return initial / jnp.sum(initial)
