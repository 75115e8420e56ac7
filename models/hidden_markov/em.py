"""Baum–Welch: EM on the likelihood of whole sequences, extrapolated and monotone."""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_bool, divide
from latensor.decompose import Status
from latensor.decompose.internal import Evaluation, expectation_maximization, status_if, worst
from latensor.models.em import em_limits, history_length
from latensor.models.hidden_markov.chain import Schedule, choose_schedule, forward, forward_backward
from latensor.models.hidden_markov.data import check_any_observed, check_pair
from latensor.models.hidden_markov.emissions import chain_of, feasible, reestimate, sum_emissions
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.models.results import Refined
from latensor.moments import Sequences
from latensor.moments.internal import flatten_sequences, observation_weights


def refine(
    params: HiddenMarkov,
    x: Sequences | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 200,
    accelerate: bool = True,
    form: Literal["auto", "sequential", "overlapping", "associative"] = "auto",
    history: bool = False,
) -> Refined:
    """Improve `params` by EM on the likelihood of whole sequences (Baum–Welch), which never falls.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: `Sequences`, or an array as for `fit`; sequences of one or two observations count too.
      mask: as for `fit`. A missing observation says nothing about emissions; its state still counts for transitions.
      lengths: as for `fit`.
      row_weights: one weight per sequence (default: equal).
      tol: stop when a cycle of two steps gains no more than this share of the log-likelihood; default: 10 machine
        epsilons in float32 and 1e-8 in float64. Where states are hard to tell apart EM is slow: a smaller tolerance
        gains a few nats more, at many more steps.
      max_iters: limit on the steps.
      accelerate: extrapolate (Varadhan, Roland 2008) where that raises the likelihood; False is plain Baum–Welch.
      form: of the recursions; see `log_likelihood`.
      history: also return the log-likelihood at the start and after each step; one compilation per `max_iters`.

    Returns:
      `Refined`; its `log_likelihood` is the weighted mean over sequences. Zeros of `initial` and `transition` stay
      zeros: a left-to-right model remains one. No variance falls by more than a factor of a thousand per step, nor
      below the resolution of the state's own values. Under a trace, the status of data without any observation is
      `UNOBSERVED`. Cost: one forward and one backward pass per step.

    """
    params, sequences = check_pair(params, x, mask=mask, lengths=lengths, row_weights=row_weights)
    check_any_observed(sequences)
    length = history_length(history, max_iters)
    tol, max_iters = em_limits(tol, max_iters, params.emission.dtype)
    return _refine(
        params,
        sequences,
        tol,
        max_iters,
        choose_schedule(form, sequences),
        check_bool("accelerate", accelerate),
        length,
    )


@partial(jax.jit, static_argnames=("schedule", "accelerate", "history"))
def _refine(
    params: HiddenMarkov,
    sequences: Sequences,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
    schedule: Schedule,
    accelerate: bool,
    history: int | None,
) -> Refined:
    observations, dtype = flatten_sequences(sequences), params.emission.dtype
    weights = observation_weights(observations, sequences.row_weights, dtype)
    number = jnp.maximum(jnp.sum(weights), 1)
    chain, logs = chain_of(params, observations)
    # Relative to the start: a sum over a million steps leaves no digits in float32 for what EM gains.
    usual = jnp.sum(weights * (forward(chain, schedule) + logs)) / number
    seen = jnp.where(observations.observed, weights, 0)

    def step(params: HiddenMarkov) -> Evaluation:
        chain, logs = chain_of(params, observations)
        smoothed = forward_backward(chain, weights, schedule)
        starts = jnp.where(observations.first, weights, 0)
        sums = sum_emissions(params, observations.x, smoothed.posterior * seen[:, None])
        first = jnp.sum(smoothed.posterior * starts[:, None], axis=0)
        updated = reestimate(params, sums, first, smoothed.pairs)
        return Evaluation(updated, jnp.sum(weights * (smoothed.log_scales + logs - usual)))

    total = usual * number
    result = expectation_maximization(
        step,
        params,
        tol=tol,
        max_iters=max_iters,
        scale=jnp.maximum(jnp.abs(total), 1),
        feasible=feasible if accelerate else None,
        history=history,
    )
    num_sequences = sequences.num_sequences if sequences.row_weights is None else jnp.sum(sequences.row_weights)

    def per_sequence(gained: Float[Array, "..."]) -> Float[Array, "..."]:
        return divide(total + gained, jnp.asarray(num_sequences, dtype))

    status = worst(result.status, status_if(~(jnp.sum(seen) > 0), Status.UNOBSERVED))
    return Refined(
        result.params,
        status,
        result.num_iters,
        result.gain,
        per_sequence(result.objective),
        None if result.history is None else per_sequence(result.history),
    )
