"""Window likelihood: EM on what three neighbours look like, in place of whole sequences.

    P(x₁, x₂, x₃) = Σ_h π[h₁] O[x₁,h₁] T[h₁,h₂] O[x₂,h₂] T[h₂,h₃] O[x₃,h₃] = Σ_{h₂} A[x₁,h₂] O[x₂,h₂] B[x₃,h₂],
    A = O diag(π) T,   B = O Tᵀ,

with `π` the distribution of a window's first state. The triples of a sequence under this model are a composite
likelihood: its maximum is consistent, uses all that the triple table tells where the spectral step uses its leading
directions, and costs nothing that grows with the length of the data once the triples have been counted. From the
spectral start EM ends near the global maximum; from random ones it often does not.

Expected counts are parameters times derivatives: `θ ∂L/∂θ`, for every multinomial in a polynomial with positive
coefficients (Baum, Eagon 1967). `A`, `O` and `B` take their derivatives from a dense table by three matrix products, or
from a list of triples with counts by gathers.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.decompose import Accelerated, Evaluation, accelerated_em
from latensor.models._chain import floor_probabilities
from latensor.models._markov import HiddenMarkov, divide_rows, feasible, likelihoods, reestimate
from latensor.moments import spread_view, sum_over_rows, view_features

# A triple that was seen is expected at least this part of the times that it was.
_LEAST_CHANCE = 1e-12
# A probability below this part of the symbol's usual one, which the likelihood would raise by more than a percent, is
# lifted to a tenth of the usual one before EM begins, which never leaves a zero.
_NO_CHANCE, _WANTED, _LIFT = 1e-3, 1.01, 0.1


class Triples(NamedTuple):
    """Distinct triples of symbols, and how often each occurs; below zero there is none."""

    codes: tuple[Int[Array, " m"], Int[Array, " m"], Int[Array, " m"]]
    counts: Float[Array, " m"]


class _Slopes(NamedTuple):
    """The log-likelihood less its largest possible value, and its derivatives by `A`, `O` (the middle one) and `B`.

    `−Σ M log(M / P)` in place of `Σ M log P`: near zero, so that float32 sees gains of 1e-8 a window.
    """

    value: Float[Array, ""]
    before: Float[Array, "d k"]
    middle: Float[Array, "d k"]
    after: Float[Array, "d k"]


def _times(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")


def _ratio(counts: Array, fitted: Array) -> Array:
    """Return what was seen divided by what the model expects; the impossible counts as very unlikely."""
    fitted = jnp.maximum(fitted, _LEAST_CHANCE * counts)
    return counts / jnp.where(fitted > 0, fitted, 1)


def _table_slopes(table: Float[Array, "d d d"], a: Array, o: Array, b: Array) -> _Slopes:
    d, k = o.shape
    both = (a[:, None, :] * o[None, :, :]).reshape(d * d, k)
    counts = table.reshape(d * d, d)
    ratio = _ratio(counts, _times(both, b.T))
    ahead = _times(ratio, b).reshape(d, d, k)
    return _Slopes(
        -jnp.sum(jnp.where(counts > 0, counts * jnp.log(jnp.where(counts > 0, ratio, 1)), 0)),
        jnp.sum(ahead * o[None, :, :], axis=1),
        jnp.sum(ahead * a[:, None, :], axis=0),
        _times(ratio.T, both),
    )


def _list_slopes(triples: Triples, a: Array, o: Array, b: Array) -> _Slopes:
    d, k = o.shape

    def block(codes: tuple[Array, Array, Array], counts: Array) -> _Slopes:
        first, second, third = (view_features(c, w) for c, w in zip(codes, (a, o, b), strict=True))
        pair = first * second
        ratio = _ratio(counts, jnp.sum(pair * third, axis=1))
        spread = ratio[:, None]
        return _Slopes(
            -jnp.sum(jnp.where(counts > 0, counts * jnp.log(jnp.where(counts > 0, ratio, 1)), 0)),
            spread_view(codes[0], spread * second * third, d),
            spread_view(codes[1], spread * first * third, d),
            spread_view(codes[2], spread * pair, d),
        )

    # Every block adds to three (d, k) tables: blocks are no shorter than those.
    return sum_over_rows(block, (triples.codes, triples.counts), floats_per_row=min(8 * k, max(1, (1 << 20) // d)))


def _polish(
    step: Callable[[HiddenMarkov], Evaluation], start: HiddenMarkov, tol: float | Array, max_iters: int | Array
) -> Accelerated:
    start = HiddenMarkov(
        floor_probabilities(start.initial), floor_probabilities(start.transition), start.emission, start.variance
    )
    return accelerated_em(step, start, feasible, tol, max_iters)


def polish_symbols(
    counts: Float[Array, "d d d"] | Triples, start: HiddenMarkov, tol: float | Array, max_iters: int | Array
) -> Accelerated:
    """Run EM on the counts of triples of symbols, which sum to one; `initial` is that of a window.

    Args:
      counts: the dense table, or the distinct triples.
      start: where to begin.
      tol: stop where two steps gain no more than this, in nats a window.
      max_iters: limit on the steps.

    """

    def slopes(params: HiddenMarkov) -> tuple[_Slopes, Array, Array]:
        """Return the derivatives by `A`, `O`, `B`; by the emissions in all; and by the first emission alone."""
        o, transition = params.emission, params.transition
        a, b = _times(o * params.initial[None, :], transition), _times(o, transition.T)
        found = _list_slopes(counts, a, o, b) if isinstance(counts, Triples) else _table_slopes(counts, a, o, b)
        arrive = _times(found.before, transition.T)
        return found, arrive * params.initial[None, :] + found.middle + _times(found.after, transition), arrive

    def step(params: HiddenMarkov) -> Evaluation:
        o, transition = params.emission, params.transition
        found, emission, arrive = slopes(params)
        pairs = _times((o * params.initial[None, :]).T, found.before) + _times(found.after.T, o)
        updated = HiddenMarkov(
            divide_rows(params.initial * jnp.sum(o * arrive, axis=0), params.initial),
            divide_rows(transition * pairs, transition),
            divide_rows((o * emission).T, o.T).T,
        )
        return Evaluation(updated, found.value, jnp.asarray(False))

    emission = start.emission
    _, slope, _ = slopes(start)
    if isinstance(counts, Triples):
        usual = spread_view(counts.codes[1], counts.counts[:, None], emission.shape[0])
    else:
        usual = jnp.sum(counts, axis=(0, 2))[:, None]
    wanted = slope > _WANTED * jnp.sum(emission * slope, axis=0)[None, :]
    lifted = jnp.where((emission < _NO_CHANCE * usual) & wanted, _LIFT * usual, emission)
    return _polish(step, start._replace(emission=divide_rows(lifted.T, emission.T).T), tol, max_iters)


# Steps after which the likeliest of several starts is taken.
_HEAT = 80


def polish_best(
    key: Array,
    table: Float[Array, "d d d"],
    start: HiddenMarkov,
    num_starts: int,
    tol: float | Array,
    max_iters: int | Array,
) -> Accelerated:
    """Run EM on a table from a start and, all at once, from random ones; the likeliest goes on.

    A spectral start is as good as the last singular value of the pair moment is clear of the noise. Where it is not,
    two states have nearly the same past and future, and more starts are worth their small cost.
    """
    if num_starts == 1:
        return polish_symbols(table, start, tol, max_iters)
    d, k = start.emission.shape
    draws = jax.random.exponential(key, (num_starts - 1, k + d, k), table.dtype)
    usual = jnp.sum(table, axis=(0, 1))
    columns = usual[None, :, None] * draws[:, k:]
    others = HiddenMarkov(
        jnp.full((num_starts - 1, k), 1 / k, table.dtype),
        draws[:, :k] / jnp.sum(draws[:, :k], axis=2, keepdims=True),
        columns / jnp.sum(columns, axis=1, keepdims=True),
    )
    params = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), start, others)
    heat = jax.vmap(lambda params: polish_symbols(table, params, tol, _HEAT))(params)
    best = jnp.argmax(heat.objective)
    found = polish_symbols(table, jax.tree.map(lambda part: part[best], heat.params), tol, max_iters)
    return found._replace(num_iters=found.num_iters + jnp.max(heat.num_iters))


def polish_reals(
    x: Float[Array, "N d"],
    weights: Float[Array, " windows"],
    start: HiddenMarkov,
    tol: float | Array,
    max_iters: int | Array,
) -> Accelerated:
    """Run EM on all windows of real vectors, weights summing to one. `O(N (d k + k²))` a step."""

    def step(params: HiddenMarkov) -> Evaluation:
        values, logs = likelihoods(params, x)
        one, two, three = values[:-2], values[1:-1], values[2:]
        begin = one * params.initial[None, :]
        before, after = _times(begin, params.transition), _times(three, params.transition.T)
        middle = before * two * after
        chance = jnp.sum(middle, axis=1)
        share = (weights / jnp.maximum(chance, float(jnp.finfo(chance.dtype).tiny)))[:, None]
        back, ahead = two * after, before * two
        start_of, end_of = (
            share * begin * _times(back, params.transition.T),
            share * three * _times(ahead, params.transition),
        )
        states = (
            jnp.pad(start_of, ((0, 2), (0, 0)))
            + jnp.pad(share * middle, ((1, 1), (0, 0)))
            + jnp.pad(end_of, ((2, 0), (0, 0)))
        )
        pairs = params.transition * (_times((share * begin).T, back) + _times((share * ahead).T, three))
        updated = reestimate(params, x, states, jnp.sum(start_of, axis=0), pairs)
        total = jnp.log(jnp.maximum(chance, float(jnp.finfo(chance.dtype).tiny))) + logs[:-2] + logs[1:-1] + logs[2:]
        return Evaluation(updated, jnp.sum(weights * total), jnp.asarray(False))

    return _polish(step, start, tol, max_iters)
