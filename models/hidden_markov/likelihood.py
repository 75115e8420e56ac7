"""The likelihood of sequences, and the distribution of their states."""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.models.hidden_markov.chain import Schedule, choose_schedule, forward, forward_backward
from latensor.models.hidden_markov.data import check_pair
from latensor.models.hidden_markov.emissions import chain_of
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.moments import Sequences
from latensor.moments.internal import Observations, flatten_sequences, sequence_lengths


def sum_by_sequence(
    steps: Float[Array, " N"], sequences: Sequences, observations: Observations
) -> Float[Array, " sequences"]:
    """Return the sum of each sequence's steps. Two passes: a running total over a long sequence loses digits."""
    lengths = sequence_lengths(sequences)

    def total(values: Array) -> Array:
        values = jnp.where(observations.valid, values, 0)
        if sequences.is_batched or sequences.lengths is None:
            return jnp.sum(values.reshape(lengths.shape[0], -1), axis=1)
        return jax.ops.segment_sum(values, observations.owner, lengths.shape[0])

    number = jnp.maximum(lengths, 1).astype(steps.dtype)
    mean = total(steps) / number
    # Not `number * mean + …`, which the compiler would take for the value that the running total begins with.
    return number * (mean + total(steps - mean[observations.owner]) / number)


def shape_as(sequences: Sequences, flat: Array) -> Array:
    """Return one value per observation, `(N, …)`, with the time axes of the sequences."""
    return flat.reshape(*sequences.x.shape[:2], *flat.shape[1:]) if sequences.is_batched else flat


@partial(jax.jit, static_argnames="schedule")
def _log_likelihood(params: HiddenMarkov, sequences: Sequences, schedule: Schedule) -> Float[Array, " sequences"]:
    observations = flatten_sequences(sequences)
    chain, logs = chain_of(params, observations)
    return sum_by_sequence(forward(chain, schedule) + logs, sequences, observations)


def log_likelihood(
    params: HiddenMarkov,
    x: Sequences | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    key: Array | None = None,
    form: Literal["auto", "sequential", "overlapping", "associative"] = "auto",
) -> Float[Array, " sequences"]:
    """Return the log-likelihood of each sequence: that of its observed values, where there is a mask.

    Args:
      params: the model.
      x: `Sequences`, or an array as for `fit`.
      mask: as for `fit`.
      lengths: as for `fit`.
      key: ignored; models whose likelihood has to be estimated need it.
      form: how the steps are taken. `"sequential"`: one after the other. `"overlapping"`: a long sequence in many
        pieces at once, each begun some steps early; that their ends fit together is checked, and a sequence whose
        beginning is not forgotten goes step by step. `"associative"`: many pieces at once and products of matrices
        over them, for accelerators. `"auto"` is overlapping on CPUs, else associative. All are exact but for rounding.

    A symbol that no state can emit costs 87 nats in float32, 708 in float64; a step that is impossible costs 69 and
    461. The result is never −∞ or NaN.

    """
    del key
    params, sequences = check_pair(params, x, mask=mask, lengths=lengths)
    return _log_likelihood(params, sequences, choose_schedule(form, sequences))


@partial(jax.jit, static_argnames="schedule")
def _posterior(params: HiddenMarkov, sequences: Sequences, schedule: Schedule) -> Array:
    observations = flatten_sequences(sequences)
    chain, _ = chain_of(params, observations)
    states = forward_backward(chain, observations.valid.astype(chain.likelihoods.dtype), schedule).posterior
    return shape_as(sequences, jnp.where(observations.valid[:, None], states, 0))


def posterior(
    params: HiddenMarkov,
    x: Sequences | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    form: Literal["auto", "sequential", "overlapping", "associative"] = "auto",
) -> Float[Array, "*time k"]:
    """Return `P(h_t | whole sequence)` for each time step, observed or missing; zeros at padding.

    Arguments as for `log_likelihood`; the result has the time axes of `x` and one of states.
    """
    params, sequences = check_pair(params, x, mask=mask, lengths=lengths)
    return _posterior(params, sequences, choose_schedule(form, sequences))
