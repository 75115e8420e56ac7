"""The hidden Markov model from moments: a spectral start, EM on windows of three, and the first states."""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import (
    check_bool,
    check_integer,
    check_key,
    check_option,
    divide,
    is_concrete,
    small_jit,
)
from latensor.decompose.internal import VIEW_METHODS
from latensor.models.evidence import add_evidence
from latensor.models.hidden_markov.arrange import Diagnostics, Estimate, arrange, polished, unpolished
from latensor.models.hidden_markov.data import as_data, check_moments, check_windows, warn_of_codes
from latensor.models.hidden_markov.evidence import Segments, admit_symbols, choose_segments, weigh_evidence
from latensor.models.hidden_markov.initial import FirstObservations, first_observations
from latensor.models.hidden_markov.start import MARGINALS, Options, Start, noise_level, table_start
from latensor.models.hidden_markov.start_list import list_start
from latensor.models.hidden_markov.start_vectors import vector_start
from latensor.models.hidden_markov.starts import polish_best
from latensor.models.hidden_markov.states import part_states
from latensor.models.hidden_markov.windows import (
    Counts,
    Triples,
    polish_vectors,
    symbols_log_likelihood,
    vectors_log_likelihood,
)
from latensor.models.results import Fit
from latensor.moments import CrossMoments, Sequences
from latensor.moments.internal import (
    WINDOW,
    Windows,
    count_distinct,
    distinct_triples,
    find_windows,
    flatten_sequences,
    observation_weights,
    sequence_lengths,
    window_table,
)

__all__ = ["Diagnostics", "fit", "fit_moments"]

# Tables with up to this many entries are always dense; larger ones if the data are half as large, up to the second.
_SMALL_TABLE, _LARGEST_TABLE = 1 << 12, 1 << 26
# EM on tables with up to this many entries is as fast if compiled quickly; on larger ones it is slower by a fifth.
_QUICK_TABLE = 1 << 14
# Polishing ends when a cycle of two steps gains no more than this, in nats per window: in float64, and in float32.
_LEAST_GAIN, _LEAST_SINGLE_GAIN = 1e-15, 1e-9
# Limits on its steps: on a table; on a list of triples or on vectors. Lists are for `refine` to finish: on real words
# more steps raise the likelihood of windows and lower what `refine` then reaches.
_TABLE_STEPS, _LIST_STEPS = 599, 71


def fit(
    key: Array,
    x: Sequences | ArrayLike,
    num_components: int,
    *,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    num_symbols: int | None = None,
    row_weights: ArrayLike | None = None,
    method: Literal["power", "ojd0", "ojd1", "nojd0", "nojd1"] = "power",
    num_restarts: int = 20,
    marginals: Literal["likelihood", "pseudoinverse"] = "likelihood",
    polish: bool = True,
    num_starts: int = 8,
) -> Fit:
    """Estimate the model from the consecutive triples of sequences.

    Args:
      key: a random key, for the restarts.
      x: `Sequences`; or symbols, integers `(time,)` or `(sequences, time)`, below zero where missing; or real vectors
        `(time, d)` or `(sequences, time, d)`.
      num_components: number of states, at most the number of symbols, or `2d + 1` for real vectors.
      mask: `(time,)` or `(sequences, time)` bool, True where an observation was made; `None` means everywhere. Triples
        with a missing observation are left out.
      lengths: of the sequences that lie end to end in `(time,)`, or of the part of each row of `(sequences, time)` that
        is not padding. Sequences of one or two observations have no triple (see `Diagnostics.num_dropped`); their first
        observation still counts for `initial`.
      num_symbols: default: the largest symbol plus one. Needed where `x` is traced.
      row_weights: one weight per sequence (default: equal).
      method: the decomposition; see `latensor.decompose.conditionals_from_views`.
      num_restarts: random starts of the decomposition per state, or random projections.
      marginals: how pairs of states follow from pairs of observations: by their `"likelihood"`, or by the
        `"pseudoinverse"`, which is linear and less efficient.
      polish: whether to run EM on the likelihood of windows of three. False returns the spectral estimate.
      num_starts: starts of polishing for symbols: the spectral estimate, and random ones. All take a few steps, half of
        them some more, and the likeliest goes on. One is enough, and the others are left out, where the spectrum is
        clear: the last singular value is above twice the noise and the next one is noise. Otherwise two states have
        nearly the same past and future, or the data are from no model of this size.

    Returns:
      `Fit` with `Diagnostics`. The states are in decreasing order of how often they occur in a window. The status is
      that of polishing: `MAX_ITERS` if EM was still gaining at its limit, and `refine` will gain more; without
      polishing, that of the spectral estimate. Either way it is `POOR_FIT` if whole sequences are not clearly likelier
      than with one state, `DEGENERATE` if a returned state does not occur, and `RANK_DEFICIENT` if the columns of the
      returned `emission` are linearly dependent. With few sequences, whose first
      observations say little, `initial` is drawn to the distribution over all windows. Under `jit` or `vmap` values are
      not checked: symbols out of range count as missing, and `status` tells what went wrong.

    Cost: one pass over symbols if `num_symbols³` is at most twice the data; otherwise about twenty passes, `O(n k³)`,
    and seventy over the distinct triples, four times that from several starts.

    """
    key = check_key(key)
    sequences = as_data(x, mask=mask, lengths=lengths, num_symbols=num_symbols, row_weights=row_weights)
    options = Options(num_components, method, num_restarts, marginals, polish, num_starts)
    if sequences.num_symbols is None:
        warn_of_codes(sequences)
        options = _check_options(options, 2 * sequences.num_features + 1, " (twice the dimensions plus one)")
    else:
        options = _check_options(options, sequences.num_symbols, " (the number of symbols)")
    check_windows(sequences, options.num_components)
    if sequences.num_symbols is None:
        return _fit_vectors(key, sequences, options)
    if sequences.num_symbols**3 <= min(max(_SMALL_TABLE, 2 * sequences.x.size), _LARGEST_TABLE):
        return _fit_tables(key, _count(sequences), options)
    return _fit_list(key, sequences, options)


def fit_moments(
    key: Array,
    moments: CrossMoments,
    num_components: int,
    *,
    method: Literal["power", "ojd0", "ojd1", "nojd0", "nojd1"] = "power",
    num_restarts: int = 20,
    marginals: Literal["likelihood", "pseudoinverse"] = "likelihood",
    polish: bool = True,
    num_starts: int = 8,
) -> Fit:
    """Recover a model of symbols from the tables of its first three observations; exact where they are.

    Arguments as for `fit`, which is this on data. The tables count as free of noise.
    """
    key = check_key(key)
    moments = check_moments(moments)
    options = Options(num_components, method, num_restarts, marginals, polish, num_starts)
    options = _check_options(options, moments.third.shape[0], " (the number of symbols)")
    noise = np.zeros((), moments.third.dtype)
    return _fit_tables(key, _Tables(moments, noise, None, None, None), options)


def _check_options(options: Options, largest: int, why: str) -> Options:
    check_option("method", options.method, VIEW_METHODS)
    check_option("marginals", options.marginals, MARGINALS)
    return options._replace(
        num_components=check_integer("num_components", options.num_components, 1, largest, why),
        num_restarts=check_integer("num_restarts", options.num_restarts, 1),
        polish=check_bool("polish", options.polish),
        num_starts=check_integer("num_starts", options.num_starts, 1),
    )


class _Tables(NamedTuple):
    """Data as tables of symbols, whose size does not depend on the number of observations."""

    moments: CrossMoments
    noise: Any
    first: FirstObservations | None
    num_dropped: Int[Array, ""] | None
    segments: Segments | None


class _Prepared(NamedTuple):
    """Data as windows."""

    windows: Windows
    weights: Float[Array, " N"]
    """Of the observations; zero where one is missing."""
    first: FirstObservations
    num_dropped: Int[Array, ""]
    segments: Segments


def _count_dropped(sequences: Sequences) -> Int[Array, ""]:
    """Return the number of sequences without a window of three observations."""
    if sequences.mask is None:
        return jnp.sum(sequence_lengths(sequences) < WINDOW, dtype=jnp.int32)
    inside = find_windows(sequences._replace(row_weights=None)).weights > 0
    owner = flatten_sequences(sequences).owner[: 1 - WINDOW]
    number = jax.ops.segment_sum(inside.astype(jnp.int32), owner, sequences.num_sequences)
    return jnp.sum(number == 0, dtype=jnp.int32)


@jax.jit
def _count(sequences: Sequences) -> _Tables:
    """Count the windows of symbols: the one stage that depends on the number of observations."""
    assert sequences.num_symbols is not None
    windows = find_windows(sequences)
    moments = window_table(windows, sequences.num_symbols)
    noise = noise_level(jnp.sum(moments.first[1] > 0), windows.weights)
    return _Tables(moments, noise, first_observations(sequences), _count_dropped(sequences), choose_segments(sequences))


@jax.jit
def _prepare(sequences: Sequences) -> _Prepared:
    windows, observations = find_windows(sequences), flatten_sequences(sequences)
    weights = observation_weights(observations, sequences.row_weights, sequences.dtype)
    weights = jnp.where(observations.observed, weights, 0)
    segments = choose_segments(sequences)
    return _Prepared(windows, weights, first_observations(sequences), _count_dropped(sequences), segments)


def _add_evidence(found: Fit, segments: Segments | None) -> Fit:
    if segments is None:
        return found
    found = found._replace(params=admit_symbols(found.params, segments.one))
    return add_evidence(found, weigh_evidence(segments, found.params))


def _fit_tables(key: Array, tables: _Tables, options: Options) -> Fit:
    start = table_start(key, tables.moments, tables.noise, options)
    finish = _finish_small if tables.moments.third.size <= _QUICK_TABLE else _finish_large
    return _add_evidence(finish(key, tables._replace(segments=None), start, options), tables.segments)


def _tolerance(start: Start) -> float:
    return _LEAST_SINGLE_GAIN if start.params.emission.dtype == jnp.float32 else _LEAST_GAIN


def _polish_counts(key: Array, counts: Counts, start: Start, options: Options, max_iters: int) -> Estimate:
    if not options.polish:
        return unpolished(symbols_log_likelihood(counts, start.params), start)
    key_states, key_starts = jax.random.split(jax.random.split(key)[1])
    begin = part_states(key_states, start.params)
    return polished(
        polish_best(key_starts, counts, begin, start.clear, options.num_starts, _tolerance(start), max_iters), start
    )


def _finish_tables(key: Array, tables: _Tables, start: Start, options: Options) -> Fit:
    estimate = _polish_counts(key, tables.moments.third, start, options, _TABLE_STEPS)
    return arrange(estimate, start, tables.first, tables.num_dropped)


_finish_small = small_jit(static_argnames="options")(_finish_tables)
_finish_large = jax.jit(_finish_tables, static_argnames="options")
_arrange_symbols = small_jit(arrange)


def _fit_list(key: Array, sequences: Sequences, options: Options) -> Fit:
    assert sequences.num_symbols is not None
    prepared = _prepare(sequences)
    start = list_start(key, prepared.windows, sequences.num_symbols, options)
    estimate = _polish_list(key, prepared.windows, start, options, _num_places(prepared.windows))
    found = _arrange_symbols(estimate, start, prepared.first, prepared.num_dropped)
    return _add_evidence(found, prepared.segments)


def _num_places(windows: Windows) -> int:
    """Return the number of places for the distinct triples: one of a few sizes, since each compiles anew."""
    if not is_concrete(windows):
        return windows.weights.shape[0]
    number = int(count_distinct(windows))
    step = 1 << max(number.bit_length() - 3, 8)
    return -(-number // step) * step


def _relative(windows: Windows) -> Windows:
    return windows._replace(weights=divide(windows.weights, jnp.sum(windows.weights)))


@partial(jax.jit, static_argnames=("options", "num_places"))
def _polish_list(key: Array, windows: Windows, start: Start, options: Options, num_places: int) -> Estimate:
    triples = Triples(*distinct_triples(_relative(windows), num_places))
    return _polish_counts(key, triples, start, options, _LIST_STEPS)


def _fit_vectors(key: Array, sequences: Sequences, options: Options) -> Fit:
    prepared = _prepare(sequences)
    start = vector_start(key, prepared.windows, prepared.weights, options)
    return _add_evidence(_finish_vectors(key, prepared, start, options), prepared.segments)


@partial(jax.jit, static_argnames="options")
def _finish_vectors(key: Array, prepared: _Prepared, start: Start, options: Options) -> Fit:
    windows = _relative(prepared.windows)
    if options.polish:
        begin = part_states(jax.random.split(key)[1], start.params)
        estimate = polished(polish_vectors(windows, begin, _tolerance(start), _LIST_STEPS), start)
    else:
        estimate = unpolished(vectors_log_likelihood(windows, start.params), start)
    return arrange(estimate, start, prepared.first, prepared.num_dropped)
