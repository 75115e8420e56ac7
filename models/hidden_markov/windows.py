"""Window likelihood: EM on windows of three neighbours instead of whole sequences.

    P(x₁, x₂, x₃) = Σ_h π[h₁] O[x₁,h₁] T[h₁,h₂] O[x₂,h₂] T[h₂,h₃] O[x₃,h₃] = Σ_{h₂} A[x₁,h₂] O[x₂,h₂] B[x₃,h₂],
    A = O diag(π) T,   B = O Tᵀ,

with `π` the distribution of a window's first state. Under this model the triples of a sequence have a composite
likelihood. Its maximum is consistent and uses the whole triple table, where the spectral step uses its leading
directions; and once the triples have been counted its cost does not grow with the data. From the spectral start EM ends
near the global maximum; from random ones it often does not.

Expected counts are parameters times derivatives, `θ ∂L/∂θ`, for every multinomial in a polynomial with positive
coefficients (Baum, Eagon 1967). The derivatives by `A`, `O` and `B` are three matrix products with a dense table, or
gathers for a list of triples with counts.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import matmul, positive_or_one, smallest_normal
from latensor.decompose.internal import EMResult, Evaluation, expectation_maximization
from latensor.models.hidden_markov.emissions import (
    EmissionSums,
    divide_rows,
    feasible,
    likelihoods,
    reestimate,
    sum_emissions,
)
from latensor.models.hidden_markov.lanes import floor_probabilities
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.moments import sum_over_rows
from latensor.moments.internal import WINDOW, Windows, spread_view, view_features

# An observed triple is expected at least this share of the times that it was observed.
_LEAST_CHANCE = 1e-12
# A probability below this share of the symbol's overall one, which the likelihood would raise by more than a percent,
# is lifted to a tenth of the overall one before EM begins, since EM never leaves a zero.
_NO_CHANCE, _WANTED, _LIFT = 1e-3, 1.01, 0.1


class Triples(NamedTuple):
    """Distinct triples of symbols, and how often each occurs; codes below zero are no triple."""

    codes: tuple[Int[Array, " m"], Int[Array, " m"], Int[Array, " m"]]
    counts: Float[Array, " m"]


Counts = Float[Array, "d d d"] | Triples
"""Relative frequencies of triples: the dense table, or the distinct ones."""


class _Slopes(NamedTuple):
    """The log-likelihood minus its largest possible value, and its derivatives by `A`, `O` (the middle one) and `B`.

    `−Σ M log(M / P)` instead of `Σ M log P`: near zero, so that float32 resolves gains of 1e-8 per window.
    """

    value: Float[Array, ""]
    before: Float[Array, "d k"]
    middle: Float[Array, "d k"]
    after: Float[Array, "d k"]


def _ratio(counts: Array, fitted: Array) -> tuple[Array, Array]:
    """Return observed over expected frequencies, the impossible as very unlikely; and the log-likelihood."""
    fitted = jnp.maximum(fitted, _LEAST_CHANCE * counts)
    ratio = counts / positive_or_one(fitted)
    seen = counts > 0
    return ratio, -jnp.sum(jnp.where(seen, counts * jnp.log(jnp.where(seen, ratio, 1)), 0))


def _table_slopes(table: Float[Array, "d d d"], a: Array, o: Array, b: Array) -> _Slopes:
    # States first and the long axis of pairs last: twice as fast as the other way round.
    d, k = o.shape
    both = (o.T[:, :, None] * b.T[:, None, :]).reshape(k, d * d)
    ratio, value = _ratio(table.reshape(d, d * d), matmul(a, both))
    around = matmul(a.T, ratio).reshape(k, d, d)
    return _Slopes(
        value,
        matmul(ratio, both.T),
        jnp.sum(around * b.T[:, None, :], axis=2).T,
        jnp.sum(around * o.T[:, :, None], axis=1).T,
    )


def _list_slopes(triples: Triples, a: Array, o: Array, b: Array) -> _Slopes:
    d, k = o.shape

    def block(codes: tuple[Array, Array, Array], counts: Array) -> _Slopes:
        first, second, third = (view_features(c, w) for c, w in zip(codes, (a, o, b), strict=True))
        pair = first * second
        ratio, value = _ratio(counts, jnp.sum(pair * third, axis=1))
        spread = ratio[:, None]
        return _Slopes(
            value,
            spread_view(codes[0], spread * second * third, d),
            spread_view(codes[1], spread * first * third, d),
            spread_view(codes[2], spread * pair, d),
        )

    # Every block adds to three (d, k) tables: blocks are no shorter than those.
    return sum_over_rows(block, triples.codes, triples.counts, floats_per_row=min(8 * k, max(1, (1 << 20) // d)))


def _slopes(counts: Counts, params: HiddenMarkov) -> tuple[_Slopes, Array, Array]:
    """Return the derivatives by `A`, `O`, `B`; by the emissions in all; and by the first emission alone."""
    o, transition = params.emission, params.transition
    a, b = matmul(o * params.initial[None, :], transition), matmul(o, transition.T)
    slopes = _list_slopes(counts, a, o, b) if isinstance(counts, Triples) else _table_slopes(counts, a, o, b)
    arrive = matmul(slopes.before, transition.T)
    emission = arrive * params.initial[None, :] + slopes.middle + matmul(slopes.after, transition)
    return slopes, emission, arrive


def symbols_log_likelihood(counts: Counts, params: HiddenMarkov) -> Float[Array, ""]:
    """Return the mean log-likelihood of a window minus its largest possible value; `initial` is that of a window."""
    return _slopes(counts, params)[0].value


def symbol_shares(counts: Counts, num_symbols: int) -> Float[Array, " d"]:
    """Return how often each symbol occurs, in the middle of a window."""
    if isinstance(counts, Triples):
        return spread_view(counts.codes[1], counts.counts[:, None], num_symbols)[:, 0]
    return jnp.sum(counts, axis=(0, 2))


def _lift_zeros(counts: Counts, params: HiddenMarkov) -> HiddenMarkov:
    emission = params.emission
    _, slope, _ = _slopes(counts, params)
    usual = symbol_shares(counts, emission.shape[0])[:, None]
    wanted = slope > _WANTED * jnp.sum(emission * slope, axis=0)[None, :]
    lifted = jnp.where((emission < _NO_CHANCE * usual) & wanted, _LIFT * usual, emission)
    return params._replace(emission=divide_rows(lifted.T, emission.T).T)


def _climb(
    step: Callable[[HiddenMarkov], Evaluation], start: HiddenMarkov, tol: float | Array, max_iters: int | Array
) -> EMResult:
    start = start._replace(initial=floor_probabilities(start.initial), transition=floor_probabilities(start.transition))
    return expectation_maximization(step, start, tol=tol, max_iters=max_iters, scale=1.0, feasible=feasible)


def polish_symbols(counts: Counts, start: HiddenMarkov, tol: float | Array, max_iters: int | Array) -> EMResult:
    """Run EM on the relative frequencies of triples of symbols; `initial` is that of a window.

    Args:
      counts: the dense table, or the distinct triples.
      start: where to begin.
      tol: stop when a cycle of two steps gains no more than this, in nats per window.
      max_iters: limit on the steps.

    """
    return _climb(partial(step_symbols, counts), _lift_zeros(counts, start), tol, max_iters)


def step_symbols(counts: Counts, params: HiddenMarkov) -> Evaluation:
    """Take one EM step on triples of symbols."""
    o, transition = params.emission, params.transition
    slopes, emission, arrive = _slopes(counts, params)
    pairs = matmul((o * params.initial[None, :]).T, slopes.before) + matmul(slopes.after.T, o)
    updated = HiddenMarkov(
        divide_rows(params.initial * jnp.sum(o * arrive, axis=0), params.initial),
        divide_rows(transition * pairs, transition),
        divide_rows((o * emission).T, o.T).T,
    )
    return Evaluation(updated, slopes.value)


class _WindowSums(NamedTuple):
    """What the M-step needs of windows of real vectors."""

    value: Float[Array, ""]
    emissions: EmissionSums
    first: Float[Array, " k"]
    pairs: Float[Array, "k k"]


def _sum_windows(windows: Windows, params: HiddenMarkov) -> _WindowSums:
    def block(x: Array, weights: Array) -> _WindowSums:
        weights = weights[: 1 - WINDOW]
        values, logs = likelihoods(params, x)
        one, two, three = values[:-2], values[1:-1], values[2:]
        begin = one * params.initial[None, :]
        before, after = matmul(begin, params.transition), matmul(three, params.transition.T)
        middle = before * two * after
        chance = jnp.maximum(jnp.sum(middle, axis=1), smallest_normal(values.dtype))
        share = (weights / chance)[:, None]
        back, ahead = two * after, before * two
        start_of = share * begin * matmul(back, params.transition.T)
        end_of = share * three * matmul(ahead, params.transition)
        states = (
            jnp.pad(start_of, ((0, 2), (0, 0)))
            + jnp.pad(share * middle, ((1, 1), (0, 0)))
            + jnp.pad(end_of, ((2, 0), (0, 0)))
        )
        return _WindowSums(
            jnp.sum(weights * (jnp.log(chance) + logs[:-2] + logs[1:-1] + logs[2:])),
            sum_emissions(params, x, states),
            jnp.sum(start_of, axis=0),
            params.transition * (matmul((share * begin).T, back) + matmul((share * ahead).T, three)),
        )

    padded = jnp.pad(windows.weights, (0, WINDOW - 1))
    return sum_over_rows(block, windows.x, padded, floats_per_row=0, overlap=WINDOW - 1)


def vectors_log_likelihood(windows: Windows, params: HiddenMarkov) -> Float[Array, ""]:
    """Return the mean log-likelihood of a window of real vectors, whose weights sum to one."""
    return _sum_windows(windows, params).value


def polish_vectors(windows: Windows, start: HiddenMarkov, tol: float | Array, max_iters: int | Array) -> EMResult:
    """Run EM on all windows of real vectors, whose weights sum to one. `O(N (d k + k²))` per step."""

    def step(params: HiddenMarkov) -> Evaluation:
        sums = _sum_windows(windows, params)
        return Evaluation(reestimate(params, sums.emissions, sums.first, sums.pairs), sums.value)

    return _climb(step, start, tol, max_iters)
