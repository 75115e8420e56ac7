"""The likeliest sequence of states (Viterbi).

Forward: the score of the best way into every state. Then back along the best way. Both in lanes, like the recursions of
`chain`: best ways into different states soon have the same beginning, so that the scores in a lane do not depend on how
it began, but for a constant; and ways back from different states soon meet. Both are checked, by `walk_by_overlap`.

Logarithms of whole sequences would lose digits: the best score is subtracted at every step.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import machine_epsilon
from latensor.models.hidden_markov.boundaries import (
    OVERLAP,
    ROUNDING,
    Walk,
    Walked,
    walk_by_overlap,
    walk_from,
)
from latensor.models.hidden_markov.chain import Schedule, choose_schedule
from latensor.models.hidden_markov.data import check_pair
from latensor.models.hidden_markov.emissions import scaled_logs
from latensor.models.hidden_markov.lanes import cut_into_lanes, floor_probabilities, join_lanes
from latensor.models.hidden_markov.likelihood import shape_as, sum_by_sequence
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.moments import Sequences
from latensor.moments.internal import Observations, flatten_sequences


class Path(NamedTuple):
    """The likeliest states of each sequence."""

    states: Int[Array, "*time"]
    """One state per time step, observed or missing; −1 at padding."""
    log_probability: Float[Array, " sequences"]
    """`log P(x, states)` of each sequence."""


def viterbi(
    params: HiddenMarkov,
    x: Sequences | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
) -> Path:
    """Return the likeliest states of each sequence. Arguments as for `log_likelihood`."""
    params, sequences = check_pair(params, x, mask=mask, lengths=lengths)
    # Products of lanes are for sums; the likeliest states of long chains are found by overlap on any device.
    return _viterbi(params, sequences, choose_schedule("overlapping", sequences))


class _Steps(NamedTuple):
    """The steps of a chain, in lanes."""

    logs: Float[Array, "L k lanes"]
    """Logarithms of the likelihoods."""
    first: Bool[Array, "L lanes"]
    valid: Bool[Array, "L lanes"]


class _Model(NamedTuple):
    """Logarithms of the model's probabilities."""

    initial: Float[Array, " k"]
    transition: Float[Array, "k k"]


@partial(jax.jit, static_argnames="schedule")
def _viterbi(params: HiddenMarkov, sequences: Sequences, schedule: Schedule) -> Path:
    observations = flatten_sequences(sequences)
    logs, scales = scaled_logs(params, observations)
    model = _Model(*(jnp.log(floor_probabilities(part)) for part in (params.initial, params.transition)))
    states, steps = _likeliest_states(model, logs, observations, schedule)
    return Path(
        shape_as(sequences, jnp.where(observations.valid, states, -1)),
        sum_by_sequence(steps + scales, sequences, observations),
    )


def _best_ways(model: _Model, score: Float[Array, "k lanes"]) -> Float[Array, "k lanes"]:
    """Return `max_i score[i] + log T[i, j]`, state by state: as one reduction it would not be vectorized."""

    def through(best: Array, state: tuple[Array, Array]) -> tuple[Array, None]:
        score, steps = state
        return jnp.maximum(best, score[None, :] + steps[:, None]), None

    return lax.scan(through, jnp.full_like(score, -jnp.inf), (score, model.transition), unroll=16)[0]


def _ahead(model: _Model, score: Float[Array, "k lanes"], step: _Steps) -> tuple[Array, tuple[Array, Array]]:
    """Take one step ahead; return the scores, and again with what the step adds to the best way's log-probability."""
    arrive = jnp.where(step.first[None, :], model.initial[:, None], _best_ways(model, score))
    reached = arrive + step.logs
    top = jnp.max(reached, axis=0)
    # Padding is no step: every state stays what it was.
    score = jnp.where(step.valid[None, :], reached - top[None, :], score)
    return score, (score, jnp.where(step.valid, top, 0))


def _first_largest(values: Float[Array, "k lanes"]) -> Int[Array, " lanes"]:
    """Return `argmax` over states, as two reductions that are vectorized."""
    k = values.shape[0]
    places = jnp.where(values == jnp.max(values, axis=0)[None, :], jnp.arange(k, dtype=jnp.int32)[:, None], k - 1)
    return jnp.min(places, axis=0)


def _back(model: _Model, state: Int[Array, " lanes"], inputs: tuple[_Steps, Array]) -> tuple[Array, Array]:
    """Take one step back, given the scores before the step; return the state before it and the one after it."""
    step, score = inputs
    # A sequence that begins here leaves the best end of the one before.
    ways = jnp.where(step.first[None, :], score, score + model.transition[:, state])
    return jnp.where(step.valid, _first_largest(ways), state), state


def _same_scores(one: Float[Array, "k lanes"], other: Float[Array, "k lanes"]) -> Bool[Array, ""]:
    rounding = ROUNDING * machine_epsilon(one.dtype)
    return jnp.all(jnp.abs(one - other) <= rounding * jnp.maximum(jnp.abs(other), 1))


def _walk(walk: Walk, schedule: Schedule) -> Walked:
    return walk_from(walk, walk.anywhere) if schedule.entry == "known" else walk_by_overlap(walk)


def _likeliest_states(
    model: _Model, logs: Float[Array, "N k"], observations: Observations, schedule: Schedule
) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
    """Return the likeliest states of all sequences, and what each step adds to the log-probability of its sequence."""
    parts = (logs, observations.first, observations.valid)
    steps = _Steps(*(cut_into_lanes(part, schedule.length) for part in parts))

    def ahead(steps: _Steps, score: Array) -> tuple[Array, tuple[Array, Array]]:
        return lax.scan(partial(_ahead, model), score, steps)

    def back(steps: tuple[_Steps, Array], state: Array) -> tuple[Array, Array]:
        return lax.scan(partial(_back, model), state, steps, reverse=True)

    nothing = jnp.zeros_like(model.initial)
    before, (scores, tops) = _walk(Walk(ahead, steps, nothing, jnp.zeros_like(steps.logs[0]), _same_scores), schedule)
    previous = jnp.concatenate([before[None], scores[:-1]])
    # Where a lane ends with a sequence, its last state is the best end. A walk by overlap begins with a best end, too.
    last = schedule.length if schedule.entry == "known" else min(OVERLAP, schedule.length)
    best = _first_largest(scores[-1])[-1], _first_largest(scores[last - 1])
    _, states = _walk(Walk(back, (steps, previous), *best, lambda one, other: jnp.all(one == other), True), schedule)
    size = logs.shape[0]
    return join_lanes(states, size), join_lanes(tops, size)
