"""From sequences to a fitted hidden Markov model: the spectral start, the likelihood of windows, the first states."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from latensor.decompose import Accelerated, Status, status_if, worst
from latensor.models._markov import Fit, HiddenMarkov, likelihoods, reorder
from latensor.models._markov_spectral import (
    Options,
    Spectral,
    list_spectral,
    noise_level,
    real_spectral,
    table_spectral,
)
from latensor.models._markov_window import Triples, polish_best, polish_reals, polish_symbols
from latensor.moments import (
    WINDOW,
    CrossMoments,
    distinct_triples,
    flatten_sequences,
    sequence_lengths,
    sequence_moments,
    window_weights,
)

# Singular values of a (d, d) matrix of noise of variance 1/n end at about 2√(d/n); so much more is clear of it.
_CLEAR_OF_NOISE = 1.25
# Where the sample has no say, sequences begin as windows do; this many sequences' worth of say.
_PRIOR_SEQUENCES = 2.0
# Polishing ends where two steps gain less than this a window, or after so many steps on a table or on a list.
_TOL, _TABLE_STEPS, _LIST_STEPS = 1e-9, 400, 60


def first_states(
    params: HiddenMarkov, x: Num[Array, "S ..."], weights: Float[Array, " S"], num_iters: int = 50
) -> Float[Array, " k"]:
    """Return `P(h₁)` from the first observations of all sequences, by EM, given what states look like.

    Few sequences say little: the distribution over windows counts as `_PRIOR_SEQUENCES` sequences more.
    """
    values, _ = likelihoods(params, x)
    total = jnp.sum(weights) + _PRIOR_SEQUENCES

    def step(_: Array | int, initial: Array) -> Array:
        joint = values * initial[None, :]
        chance = jnp.maximum(jnp.sum(joint, axis=1), float(jnp.finfo(values.dtype).tiny))
        counts = jnp.matmul(weights / chance, joint, precision="highest")
        return (counts + _PRIOR_SEQUENCES * params.initial) / total

    found = lax.fori_loop(0, num_iters, step, params.initial)
    return found / jnp.sum(found)


def _finish(spectral: Spectral, polished: Accelerated | None, initial: Array | None, dropped: Array) -> Fit:
    """Put a `Fit` together, states in decreasing order of how often they occur."""
    found = spectral.found
    params = spectral.params if polished is None else polished.params
    params = params if initial is None else params._replace(initial=initial)
    order = jnp.argsort(-spectral.weights)
    unclear = found.singular_values[-1] <= _CLEAR_OF_NOISE * spectral.noise
    finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))
    value = jnp.full((), jnp.nan, params.emission.dtype) if polished is None else polished.objective
    return Fit(
        params=reorder(params, order),
        status=worst(
            found.status,
            status_if(unclear, Status.RANK_DEFICIENT),
            status_if(~finite, Status.NON_FINITE),
        ),
        num_iters=jnp.int32(0) if polished is None else polished.num_iters,
        residual=found.residual,
        gap=spectral.gap,
        log_likelihood=value,
        simplex_distance=found.simplex_distance[1, order],
        singular_values=found.singular_values,
        noise=spectral.noise,
        num_dropped=dropped,
    )


def _polish_table(key: Array, table: Array, spectral: Spectral, options: Options) -> Accelerated | None:
    if not options.polish:
        return None
    return polish_best(key, table, spectral.params, options.num_starts, _TOL, _TABLE_STEPS)


@partial(jax.jit, static_argnames="options")
def fit_tables(key: Array, moments: CrossMoments, options: Options) -> Fit:
    """Recover a model of symbols from the tables of the first three observations of sequences."""
    key_spectral, key_polish = jax.random.split(key)
    spectral = table_spectral(key_spectral, moments, jnp.zeros((), moments.third.dtype), options)
    polished = _polish_table(key_polish, moments.third, spectral, options)
    return _finish(spectral, polished, None, jnp.int32(0))


@partial(jax.jit, static_argnames=("options", "batched", "num_symbols", "num_triples"))
def fit_sequences(
    key: Array,
    x: Num[Array, "..."],
    lengths: Int[Array, " S"] | None,
    row_weights: Float[Array, " S"] | None,
    options: Options,
    batched: bool,
    num_symbols: int | None,
    num_triples: int | None,
) -> Fit:
    """Estimate from sequences; `num_triples=None` for dense tables, `num_symbols=None` for real vectors."""
    key_spectral, key_polish = jax.random.split(key)
    sizes = sequence_lengths(x, lengths, batched)
    starts = jnp.arange(sizes.shape[0]) * x.shape[1] if batched else jnp.cumsum(sizes) - sizes
    sequences = flatten_sequences(x, lengths, batched)
    x = sequences.x
    dtype = jnp.result_type(float) if num_symbols is not None else x.dtype
    weights = window_weights(sequences, row_weights, dtype, num_symbols)
    share = weights / jnp.maximum(jnp.sum(weights), float(jnp.finfo(dtype).tiny))
    polished = None
    if num_symbols is None:
        tokens = sequences.valid.astype(dtype)
        if row_weights is not None:
            tokens = tokens * row_weights.astype(dtype)[sequences.owner]
        spectral = real_spectral(key_spectral, x, tokens, weights, options)
        if options.polish:
            polished = polish_reals(x, share, spectral.params, _TOL, _LIST_STEPS)
    elif num_triples is None:
        moments, _ = sequence_moments(x, weights, num_symbols)
        spectral = table_spectral(key_spectral, moments, noise_level(jnp.sum(moments.first[1] > 0), weights), options)
        polished = _polish_table(key_polish, moments.third, spectral, options)
    else:
        spectral = list_spectral(key_spectral, x, weights, num_symbols, options)
        if options.polish:
            triples = Triples(*distinct_triples(x, share, num_triples))
            polished = polish_symbols(triples, spectral.params, _TOL, _LIST_STEPS)
    params = spectral.params if polished is None else polished.params
    some = (sizes > 0).astype(dtype) * (1 if row_weights is None else row_weights.astype(dtype))
    initial = first_states(params, x[jnp.minimum(starts, x.shape[0] - 1)], some)
    return _finish(spectral, polished, initial, jnp.sum(sizes < WINDOW, dtype=jnp.int32))
