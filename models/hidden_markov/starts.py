"""Several starts of polishing: the spectral estimate, and random ones where the spectrum is not clear."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.base import freeze, machine_epsilon, solve_fixed_point
from latensor.decompose.internal import EMResult
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.models.hidden_markov.windows import Counts, polish_symbols, step_symbols, symbol_shares

# Steps from each start; then from the best of them, one in so many.
_FIRST_STEPS, _SECOND_STEPS, _KEEP_ONE_IN = 13, 39, 2


# Starts whose log-likelihoods per window differ by less lead to the same optimum.
_SAME_OPTIMUM = 1e-5


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


def _rounded(objective: Float[Array, " starts"]) -> Float[Array, " starts"]:
    """Return log-likelihoods to compare: of starts that are as good the first is chosen, not one by its last digits."""
    return jnp.round(objective / _SAME_OPTIMUM)


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
    given, counts, start = counts, freeze(counts), freeze(start)
    clear = jnp.asarray(clear) | (num_starts == 1)
    others = _random_starts(
        key, symbol_shares(counts, start.emission.shape[0]), start.emission.shape[1], num_starts - 1
    )
    starts = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), start, others)
    in_second = -(-num_starts // _KEEP_ONE_IN)
    end = num_starts + in_second

    # One after the other, in one loop that is compiled once: no start waits for the slowest.
    def run(turn: Array | int, race: _Race) -> _Race:
        turn = jnp.asarray(turn, jnp.int32)
        is_first, is_last = turn < num_starts, turn >= end
        ranked = jnp.argsort(-_rounded(race.after_first))[jnp.clip(turn - num_starts, 0, num_starts - 1)]
        place = jnp.where(is_first, turn, jnp.where(is_last, jnp.argmax(_rounded(race.objective)), ranked))
        steps = jnp.where(is_first, _FIRST_STEPS, _SECOND_STEPS)
        steps = jnp.where(is_last, jnp.maximum(max_iters - race.num_iters[place], 0), steps)
        result = polish_symbols(counts, jax.tree.map(lambda part: part[place], race.params), tol, steps)
        result = result._replace(num_iters=race.num_iters[place] + result.num_iters)
        return _Race(
            jax.tree.map(lambda all_, one: all_.at[place].set(one), race.params, result.params),
            race.objective.at[place].set(result.objective),
            jnp.where(is_first, race.after_first.at[place].set(result.objective), race.after_first),
            race.num_iters.at[place].set(result.num_iters),
            jax.tree.map(lambda old, new: jnp.where(steps > 0, new, old), race.last, result),
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
    # The last turn comes twice: extrapolation that begins afresh often finds more to gain where it had come to rest.
    best = lax.fori_loop(jnp.where(clear, end, 0), end + 2, run, race).last
    # The derivative is that of where EM comes to rest, whatever the starts.
    params = solve_fixed_point(
        lambda counts, at: step_symbols(counts, at).updated, best.params, given, machine_epsilon(best.gain.dtype) * 100
    )
    return best._replace(params=params)
