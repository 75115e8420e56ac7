"""The hidden Markov model: a chain of hidden states, each seen through one observation.

    h₁ ~ π,   h_{t+1} | h_t = i ~ T[i],        π (k,), T (k, k), rows sum to one
    x_t | h_t = j ~ O[:, j],                   O (d, k), symbols: columns sum to one
    x_t | h_t = j ~ N(O[:, j], diag(V[:, j]))  real vectors: means O (d, k), variances V (d, k)

`fit` needs no starting point and one pass over the data: the moments of three neighbours give `O` by a tensor
decomposition, their pairs give `T` by a convex likelihood, and EM on the table of triples, whose cost does not grow
with the data, takes most of what is then missing. `refine` is Baum–Welch from there.

Sequences are symbols `(time,)`, one or several end to end with their `lengths`; or `(sequences, time)`, shorter ones
padded at the end. Real vectors have an axis more.

Identifiable when the columns of `O` and the rows of `T` are linearly independent and all states occur.

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num

from latensor.models._baum_welch import baum_welch
from latensor.models._chain import BLOCK_LENGTH, forward, forward_backward
from latensor.models._checks import check_integer, check_key, check_option, check_row_weights, is_concrete
from latensor.models._em import em_limits
from latensor.models._markov import Fit, HiddenMarkov, chain_of
from latensor.models._markov_checks import Data, check_pair, check_params, check_sequences, check_windows
from latensor.models._markov_fit import fit_sequences, fit_tables
from latensor.models._markov_spectral import MARGINALS, METHODS, Options
from latensor.models._sampling import inverse_cdf
from latensor.models._viterbi import viterbi_path
from latensor.moments import (
    CrossMoments,
    Sequences,
    count_distinct,
    flatten_sequences,
    sequence_lengths,
    window_weights,
)

__all__ = [
    "Fit",
    "HiddenMarkov",
    "Path",
    "Sample",
    "fit",
    "fit_moments",
    "log_likelihood",
    "population_moments",
    "posterior",
    "refine",
    "sample",
    "viterbi",
]

_FORMS = ("auto", "sequential", "associative")


class Sample(NamedTuple):
    """Sequences and their hidden states."""

    x: Num[Array, "sequences time ..."]
    hidden: Int[Array, "sequences time"]


class Path(NamedTuple):
    """The likeliest states of each sequence."""

    states: Int[Array, "..."]
    """As `x`, without the axis of dimensions; −1 at padding."""
    log_probability: Float[Array, " sequences"]
    """`log P(x, states)` of each sequence."""


@partial(jax.jit, static_argnames=("num_samples", "length"))
def _sample(key: Array, params: HiddenMarkov, num_samples: int, length: int) -> Sample:
    key_states, key_noise = jax.random.split(key)
    dtype = params.emission.dtype
    uniforms = jax.random.uniform(key_states, (length, num_samples), dtype)
    columns = params.transition.T

    def step(state: Array, uniform: Array) -> tuple[Array, Array]:
        return inverse_cdf(uniform, columns, state), state

    start = inverse_cdf(uniforms[0], params.initial[:, None])
    _, hidden = lax.scan(step, start, jnp.roll(uniforms, -1, axis=0))
    hidden = hidden.T
    if params.variance is None:
        draws = jax.random.uniform(key_noise, hidden.shape, dtype)
        return Sample(inverse_cdf(draws, params.emission, hidden), hidden)
    noise = jax.random.normal(key_noise, (*hidden.shape, params.emission.shape[0]), dtype)
    return Sample(params.emission.T[hidden] + jnp.sqrt(params.variance).T[hidden] * noise, hidden)


def sample(key: Array, params: HiddenMarkov, num_samples: int, length: int = 100) -> Sample:
    """Draw `num_samples` sequences of `length` observations: `Sample(x, hidden)`."""
    key = check_key(key)
    params = check_params(params)
    return _sample(key, params, check_integer("num_samples", num_samples, 1), check_integer("length", length, 1))


@jax.jit
def population_moments(params: HiddenMarkov) -> CrossMoments:
    """Return the exact moments of the first three observations of a sequence."""
    o, transition = params.emission, params.transition

    def times(a: Array, b: Array) -> Array:
        return jnp.matmul(a, b, precision="highest")

    before, after = times(o * params.initial[None, :], transition), times(o, transition.T)
    second = times(params.initial, transition)
    third = jnp.einsum("ih,jh,lh->ijl", before, o, after, precision="highest")
    return CrossMoments(
        (times(o, params.initial), times(o, second), times(after, second)),
        (times(before, o.T), times(before, after.T), times(o * second[None, :], after.T)),
        third,
        jnp.int32(0),
    )


def _options(
    num_components: int,
    limit: tuple[int, str],
    marginals: str,
    polish: bool,
    method: str,
    num_restarts: int,
    num_starts: int,
) -> Options:
    num_components = check_integer("num_components", num_components, 1, *limit)
    check_option("marginals", marginals, MARGINALS)
    check_option("method", method, METHODS)
    if not isinstance(polish, bool):
        raise ValueError(f"polish: expected True or False; got {polish!r}")
    num_restarts = check_integer("num_restarts", num_restarts, 1)
    return Options(num_components, marginals, polish, method, num_restarts, check_integer("num_starts", num_starts, 1))


def fit_moments(
    key: Array,
    moments: CrossMoments,
    num_components: int,
    marginals: Literal["likelihood", "pseudoinverse"] = "likelihood",
    polish: bool = True,
    *,
    method: Literal["tpm", "ojd0", "ojd1", "nojd0", "nojd1"] = "tpm",
    num_restarts: int = 20,
    num_starts: int = 16,
) -> Fit:
    """Recover a model of symbols from the tables of its first three observations; exact where they are.

    Arguments as for `fit`, which is this on data.
    """
    key = check_key(key)
    d = moments.third.shape[0]
    if moments.third.shape != (d, d, d):
        raise ValueError(f"moments: expected a table of three alike modes; got shape {moments.third.shape}")
    limit = (d, " (the number of symbols)")
    options = _options(num_components, limit, marginals, polish, method, num_restarts, num_starts)
    return fit_tables(key, moments, options)


def _num_triples(data: Data, row_weights: Array | None) -> int | None:
    """Return `None` where the triple table is dense, else places for the distinct triples."""
    assert data.num_symbols is not None
    size = data.x.size
    if data.num_symbols**3 <= min(max(1 << 12, 2 * size), 1 << 26):
        return None
    if not is_concrete(data.x, data.lengths, row_weights):
        return max(size - 2, 1)
    sequences = flatten_sequences(data.x, data.lengths, data.batched)
    found = int(count_distinct(sequences.x, window_weights(sequences, row_weights, jnp.dtype("float32"))))
    # A few sizes for all data: each compiles anew.
    step = 1 << max(found.bit_length() - 3, 8)
    return -(-found // step) * step


def fit(
    key: Array,
    x: ArrayLike,
    num_components: int,
    lengths: ArrayLike | None = None,
    marginals: Literal["likelihood", "pseudoinverse"] = "likelihood",
    polish: bool = True,
    *,
    num_symbols: int | None = None,
    row_weights: ArrayLike | None = None,
    method: Literal["tpm", "ojd0", "ojd1", "nojd0", "nojd1"] = "tpm",
    num_restarts: int = 20,
    num_starts: int = 16,
) -> Fit:
    """Estimate the model from the consecutive triples of sequences.

    Args:
      key: a random key, for the restarts.
      x: symbols, integers `(time,)` or `(sequences, time)`; or real vectors `(time, d)` or `(sequences, time, d)`.
      num_components: number of states, at most the number of symbols, or `2d + 1` for real vectors.
      lengths: of the sequences: those that lie end to end in `(time,)`, or the part of each row of `(sequences, time)`
        that is not padding. Sequences of one or two observations have no triple (see `Fit.num_dropped`); their first
        observation still counts for `initial`.
      marginals: how pairs of states follow from pairs of observations: by their `"likelihood"`, or by the
        `"pseudoinverse"`, linear and less efficient.
      polish: EM on the likelihood of windows of three. Without it, the spectral estimate as it is.
      num_symbols: default: the largest symbol and one. Needed where `x` is traced.
      row_weights: a weight for each sequence (default: equal).
      method: the decomposition; see `latensor.decompose.conditionals_from_views`.
      num_restarts: random starts of the decomposition for each state, or random projections.
      num_starts: starts of the polishing of a dense table: the spectral estimate, the others random. They matter where
        the last of `Fit.singular_values` is not clear of the noise; one is enough where it is.

    Returns:
      `Fit`. Where there are few sequences their first observations say little, and `initial` is drawn to the
      distribution over all windows. Under `jit` or `vmap` values are not checked: symbols out of range are not
      observed, and `status` tells what went wrong.

    Cost: one pass over symbols where `num_symbols³` is at most twice the data; else some twenty passes, `O(n k³)`, and
    sixty over the distinct triples.

    """
    key = check_key(key)
    data = check_sequences(x, lengths, num_symbols)
    if data.num_symbols is None:
        limit = (2 * data.x.shape[-1] + 1, " (twice the dimensions and one)")
    else:
        limit = (data.num_symbols, " (the number of symbols)")
    options = _options(num_components, limit, marginals, polish, method, num_restarts, num_starts)
    check_windows(data, options.num_components)
    row_weights = check_row_weights(row_weights, data.num_sequences)
    triples = None if data.num_symbols is None else _num_triples(data, row_weights)
    return fit_sequences(key, data.x, data.lengths, row_weights, options, data.batched, data.num_symbols, triples)


def _block_length(form: str) -> int | None:
    check_option("form", form, _FORMS)
    sequential = form == "sequential" or (form == "auto" and jax.default_backend() == "cpu")
    return None if sequential else BLOCK_LENGTH


def _sum_by_sequence(
    steps: Float[Array, " N"], sequences: Sequences, lengths: Int[Array, " sequences"]
) -> Float[Array, " sequences"]:
    """Return the sum over each sequence's own steps; twice, since the first time the running total loses digits."""

    def total(values: Array) -> Array:
        return jax.ops.segment_sum(jnp.where(sequences.valid, values, 0), sequences.owner, lengths.shape[0])

    number = jnp.maximum(lengths, 1).astype(steps.dtype)
    mean = total(steps) / number
    # Not `number * mean + …`, which the compiler would take for the value that the running total begins with.
    return number * (mean + total(steps - mean[sequences.owner]) / number)


@partial(jax.jit, static_argnames=("batched", "block_length"))
def _log_likelihood(
    params: HiddenMarkov, x: Array, lengths: Array | None, batched: bool, block_length: int | None
) -> Float[Array, " sequences"]:
    sequences = flatten_sequences(x, lengths, batched)
    chain, logs = chain_of(params, sequences)
    return _sum_by_sequence(forward(chain, block_length) + logs, sequences, sequence_lengths(x, lengths, batched))


def log_likelihood(
    params: HiddenMarkov,
    x: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    form: Literal["auto", "sequential", "associative"] = "auto",
) -> Float[Array, " sequences"]:
    """Return the log-likelihood of each sequence.

    Args:
      params: the model.
      x: sequences, as for `fit`.
      lengths: likewise.
      form: `"sequential"`, one step after the other; or `"associative"`, many blocks at once and a scan over them, for
        accelerators. `"auto"` is sequential on CPUs.

    A symbol that no state can emit costs 87 nats in float32, 708 in float64; a step that is impossible costs 69 and
    461. Never −∞ or NaN.

    """
    params, data = check_pair(params, x, lengths)
    return _log_likelihood(params, data.x, data.lengths, data.batched, _block_length(form))


def _shaped(flat: Array, data_x: Array, batched: bool) -> Array:
    return flat.reshape(*data_x.shape[:2], *flat.shape[1:]) if batched else flat


@partial(jax.jit, static_argnames=("batched", "block_length"))
def _posterior(params: HiddenMarkov, x: Array, lengths: Array | None, batched: bool, block_length: int | None) -> Array:
    sequences = flatten_sequences(x, lengths, batched)
    chain, _ = chain_of(params, sequences)
    states = forward_backward(chain, sequences.valid.astype(chain.likelihoods.dtype), block_length).posterior
    return _shaped(jnp.where(sequences.valid[:, None], states, 0), x, batched)


def posterior(
    params: HiddenMarkov,
    x: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    form: Literal["auto", "sequential", "associative"] = "auto",
) -> Float[Array, "*shape k"]:
    """Return `P(h_t | whole sequence)` for each observation, zero at padding. Arguments as for `log_likelihood`."""
    params, data = check_pair(params, x, lengths)
    return _posterior(params, data.x, data.lengths, data.batched, _block_length(form))


@partial(jax.jit, static_argnames="batched")
def _viterbi(params: HiddenMarkov, x: Array, lengths: Array | None, batched: bool) -> Path:
    sequences = flatten_sequences(x, lengths, batched)
    chain, logs = chain_of(params, sequences)
    states, steps = viterbi_path(chain, sequences.valid)
    return Path(
        _shaped(jnp.where(sequences.valid, states, -1), x, batched),
        _sum_by_sequence(steps + logs, sequences, sequence_lengths(x, lengths, batched)),
    )


def viterbi(params: HiddenMarkov, x: ArrayLike, lengths: ArrayLike | None = None) -> Path:
    """Return the likeliest states of each sequence. Arguments as for `log_likelihood`."""
    params, data = check_pair(params, x, lengths)
    return _viterbi(params, data.x, data.lengths, data.batched)


def refine(
    params: HiddenMarkov,
    x: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    row_weights: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 200,
    accelerate: bool = True,
    form: Literal["auto", "sequential", "associative"] = "auto",
) -> Fit:
    """Raise the likelihood of the sequences from `params` on: Baum–Welch. It never falls.

    Args:
      params: where to begin, a fit's `params` for instance.
      x: sequences, as for `fit`; those of one or two observations count too.
      lengths: likewise.
      row_weights: a weight for each sequence (default: equal).
      tol: stop where two steps gain less than this, relative to the log-likelihood; default 1e-8, or 1e-6 in
        float32. Where states are hard to tell apart EM creeps: a smaller one gains some nats more, slowly.
      max_iters: limit on the forward and backward passes; the first tells the likelihood of the start.
      accelerate: extrapolate (Varadhan, Roland 2008) where that raises the likelihood; False is Baum–Welch as it
        stands.
      form: of the recursions; see `log_likelihood`.

    Returns:
      `Fit`; its `log_likelihood` is that of `params`.

    """
    params, data = check_pair(params, x, lengths)
    row_weights = check_row_weights(row_weights, data.num_sequences)
    tol, max_iters = em_limits(tol, max_iters, params.emission.dtype)
    return baum_welch(
        params, data.x, data.lengths, row_weights, tol, max_iters, data.batched, _block_length(form), accelerate
    )
