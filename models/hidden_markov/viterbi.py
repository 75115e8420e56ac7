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
from jaxtyping import Array, Bool, Float, Int, Integer

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
from latensor.models.hidden_markov.lanes import (
    cut_into_lanes,
    floor_probabilities,
    join_lanes,
    look_up,
    small_integer,
)
from latensor.models.hidden_markov.likelihood import shape_as, sum_by_sequence
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.moments import Sequences
from latensor.moments.internal import flatten_sequences


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

    seen: Float[Array, "L rows lanes"] | Integer[Array, "L lanes"]
    """Logarithms of the likelihoods and of their scale, or their places in the model's table."""
    first: Bool[Array, "L lanes"]
    valid: Bool[Array, "L lanes"]


class _Model(NamedTuple):
    """Logarithms of the model's probabilities."""

    initial: Float[Array, " k"]
    transition: Float[Array, "k k"]
    table: Float[Array, "rows places"] | None
    """As in `ScaledLogs`."""


@partial(jax.jit, static_argnames="schedule")
def _viterbi(params: HiddenMarkov, sequences: Sequences, schedule: Schedule) -> Path:
    observations = flatten_sequences(sequences)
    values, table = scaled_logs(params, observations)
    initial, transition = (jnp.log(floor_probabilities(part)) for part in (params.initial, params.transition))
    parts = (values, observations.first, observations.valid)
    steps = _Steps(*(cut_into_lanes(part, schedule.length) for part in parts))
    states, tops = _likeliest_states(_Model(initial, transition, table), steps, schedule)
    size = values.shape[0]
    return Path(
        shape_as(sequences, jnp.where(observations.valid, join_lanes(states, size).astype(jnp.int32), -1)),
        sum_by_sequence(join_lanes(tops, size), sequences, observations),
    )


def _best_ways(model: _Model, score: Float[Array, "k lanes"]) -> Float[Array, "k lanes"]:
    """Return `max_i score[i] + log T[i, j]`, state by state: as one reduction it would not be vectorized."""

    def through(best: Array, state: tuple[Array, Array]) -> tuple[Array, None]:
        score, steps = state
        return jnp.maximum(best, score[None, :] + steps[:, None]), None

    return lax.scan(through, jnp.full_like(score, -jnp.inf), (score, model.transition), unroll=16)[0]


def _ahead(model: _Model, score: Float[Array, "k lanes"], step: _Steps) -> tuple[Array, tuple[Array, Array]]:
    """Take one step ahead; return the scores, and those before it with what it adds to the best log-probability."""
    arrive = jnp.where(step.first[None, :], model.initial[:, None], _best_ways(model, score))
    seen = step.seen if model.table is None else look_up(model.table, step.seen)
    reached = arrive + seen[:-1]
    top = jnp.max(reached, axis=0)
    # Padding is no step: every state stays what it was.
    after = jnp.where(step.valid[None, :], reached - top[None, :], score)
    return after, (score, jnp.where(step.valid, top + seen[-1], 0))


def _first_largest(values: Float[Array, "k lanes"]) -> Integer[Array, " lanes"]:
    """Return `argmax` over states, as two reductions that are vectorized."""
    k = values.shape[0]
    places = jnp.where(values == jnp.max(values, axis=0)[None, :], jnp.arange(k, dtype=jnp.int32)[:, None], k - 1)
    return jnp.min(places, axis=0).astype(small_integer(k))


def _back(model: _Model, state: Integer[Array, " lanes"], inputs: tuple[_Steps, Array]) -> tuple[Array, Array]:
    """Take one step back, given the scores before the step; return the state before it and the one after it."""
    step, score = inputs
    # A sequence that begins here leaves the best end of the one before.
    ways = jnp.where(step.first[None, :], score, score + look_up(model.transition, state))
    return jnp.where(step.valid, _first_largest(ways), state), state


def _same_scores(one: Float[Array, "k lanes"], other: Float[Array, "k lanes"]) -> Bool[Array, ""]:
    rounding = ROUNDING * machine_epsilon(one.dtype)
    return jnp.all(jnp.abs(one - other) <= rounding * jnp.maximum(jnp.abs(other), 1))


def _same_states(one: Integer[Array, " lanes"], other: Integer[Array, " lanes"]) -> Bool[Array, ""]:
    return jnp.all(one == other)


def _walk(walk: Walk, schedule: Schedule) -> Walked:
    return walk_from(walk, walk.anywhere) if schedule.entry == "known" else walk_by_overlap(walk)


def _likeliest_states(
    model: _Model, steps: _Steps, schedule: Schedule
) -> tuple[Integer[Array, "L lanes"], Float[Array, "L lanes"]]:
    """Return the likeliest states of all sequences, and what each step adds to the log-probability of its sequence."""

    def ahead(steps: _Steps, score: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        # The scores before each step, as the way back needs them; and those after the last.
        leaving, outputs = lax.scan(partial(_ahead, model), score, steps)
        return leaving, (leaving, *outputs)

    def back(steps: tuple[_Steps, Array], state: Array) -> tuple[Array, Array]:
        return lax.scan(partial(_back, model), state, steps, reverse=True)

    nothing = jnp.zeros_like(model.initial)
    anywhere = jnp.zeros((*nothing.shape, steps.first.shape[1]), nothing.dtype)
    _, (last, scores, tops) = _walk(Walk(ahead, steps, nothing, anywhere, _same_scores), schedule)
    # Where a lane ends with a sequence, its last state is the best end. A walk by overlap begins with a best end, too.
    ends = _first_largest(last)
    begin = ends if schedule.entry == "known" or schedule.length <= OVERLAP else _first_largest(scores[OVERLAP])
    _, states = _walk(Walk(back, (steps, scores), ends[-1], begin, _same_states, True), schedule)
    return states, tops
