"""Several starts of polishing: the spectral estimate, and random ones where the spectrum is not clear."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.decompose.internal import EMResult
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.models.hidden_markov.windows import Counts, polish_symbols, symbol_shares

# Steps from each start; then from the best of them, one in so many.
_FIRST_STEPS, _SECOND_STEPS, _KEEP_ONE_IN = 13, 39, 2


class _Race(NamedTuple):
    """Where each start has come to."""

    params: HiddenMarkov
    """With a leading axis of starts."""
    objective: Float[Array, " starts"]
    after_first: Float[Array, " starts"]
    """The objective after the first round, which decides who takes part in the second."""
    num_iters: Int[Array, " starts"]
    last: EMResult


def _random_starts(key: Array, usual: Float[Array, " d"], k: int, number: int) -> HiddenMarkov:
    """Return models with random transitions, and emissions that vary around the overall frequencies."""
    draws = jax.random.exponential(key, (number, k + usual.shape[0], k), usual.dtype)
    columns = usual[None, :, None] * draws[:, k:]
    return HiddenMarkov(
        jnp.full((number, k), 1 / k, usual.dtype),
        draws[:, :k] / jnp.sum(draws[:, :k], axis=2, keepdims=True),
        columns / jnp.sum(columns, axis=1, keepdims=True),
    )


def polish_best(
    key: Array,
    counts: Counts,
    start: HiddenMarkov,
    clear: Bool[Array, ""] | bool,
    num_starts: int,
    tol: float | Array,
    max_iters: int | Array,
) -> EMResult:
    """Run EM on triples from a start and, unless it is `clear`, from random ones; the likeliest goes on.

    A spectral start is good if the last singular value of the pair moment is clear of the noise and the next one is
    noise. Otherwise two states have nearly the same past and future, or the data are from no model of this size, and
    more starts are worth their cost. All take a few steps, the best of them some more, the likeliest goes to the end.
    """
    if num_starts == 1:
        return polish_symbols(counts, start, tol, max_iters)
    others = _random_starts(
        key, symbol_shares(counts, start.emission.shape[0]), start.emission.shape[1], num_starts - 1
    )
    starts = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), start, others)
    in_second = -(-num_starts // _KEEP_ONE_IN)
    end = num_starts + in_second

    # One after the other, in one loop that is compiled once: no start waits for the slowest.
    def run(turn: Array | int, race: _Race) -> _Race:
        turn = jnp.asarray(turn, jnp.int32)
        is_first, is_last = turn < num_starts, turn == end
        ranked = jnp.argsort(-race.after_first)[jnp.clip(turn - num_starts, 0, num_starts - 1)]
        place = jnp.where(is_first, turn, jnp.where(is_last, jnp.argmax(race.objective), ranked))
        steps = jnp.where(is_last, max_iters, jnp.where(is_first, _FIRST_STEPS, _SECOND_STEPS))
        result = polish_symbols(counts, jax.tree.map(lambda part: part[place], race.params), tol, steps)
        return _Race(
            jax.tree.map(lambda all_, one: all_.at[place].set(one), race.params, result.params),
            race.objective.at[place].set(result.objective),
            jnp.where(is_first, race.after_first.at[place].set(result.objective), race.after_first),
            race.num_iters.at[place].add(result.num_iters),
            result._replace(num_iters=race.num_iters[place] + result.num_iters),
        )

    blank = jax.eval_shape(lambda: polish_symbols(counts, start, tol, max_iters))
    unknown = jnp.full(num_starts, -jnp.inf, start.emission.dtype)
    race = _Race(
        starts,
        unknown.at[0].set(0),
        unknown,
        jnp.zeros(num_starts, jnp.int32),
        jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), blank),
    )
    return lax.fori_loop(jnp.where(clear, end, 0), end + 1, run, race).last
