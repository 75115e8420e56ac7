"""The naive Bayes mixture of documents: one topic a document.

    h ~ Multinomial(π),        π (k,)
    x_1, …, x_L | h ~ b_h,     B = (b_1 … b_k) (d, k), columns sum to one

A document is the counts of its words `(d,)`, or the list of their ids. Two and three *different* words of a document
have moments `M₂ = B diag(π) Bᵀ` and `M₃ = Σ_h π_h b_h⊗b_h⊗b_h`, from which `fit` recovers `π` and `B`: globally, in a
few passes over the data, without a starting point. `refine` is EM from there.

Identifiable when the columns of `B` are linearly independent (so `k ≤ d`) and documents have three words or more.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num

from latensor.decompose import (
    Eigenpairs,
    Whitening,
    project_columns_to_simplex,
    whiten,
    whiten_operator,
    worst,
)
from latensor.models._checks import (
    check_documents,
    check_integer,
    check_key,
    check_number,
    check_option,
    check_probabilities,
    check_row_weights,
)
from latensor.models._em import em_limits, expectation_maximization
from latensor.models._sampling import draw_documents, inverse_cdf
from latensor.models._spectral import DENSE_UP_TO, METHODS, SECONDS, eigenpairs
from latensor.moments import (
    Moments,
    as_float,
    average_weights,
    contract_document_moments,
    contract_third,
    document_second_moment,
    document_second_moment_operator,
    project_words,
    spread_words,
)

_MIN_WORDS = 3


class NaiveBayes(NamedTuple):
    """Parameters: mixture weights and word probabilities (columns sum to one)."""

    weights: Float[Array, " k"]
    word_probs: Float[Array, "d k"]


class Sample(NamedTuple):
    """Documents (counts, or ids below zero beyond a document's end) and the topic of each."""

    x: Num[Array, "n _"]
    hidden: Int[Array, " n"]


class Fit(NamedTuple):
    """An estimate and how good it is. Components are in decreasing order of weight after `fit`."""

    params: NaiveBayes
    status: Int[Array, ""]
    """How the estimation ended: see `latensor.decompose.Status`."""
    num_iters: Int[Array, ""]
    """Steps taken: of the tensor decomposition after `fit`, of EM after `refine`."""
    residual: Float[Array, ""]
    """After `fit`, the part of the whitened third moment that the components leave unexplained (relative norm). After
    `refine`, the relative gain in log-likelihood of the last step."""
    simplex_distance: Float[Array, " k"]
    """How far each estimated word distribution was from the simplex (Euclidean) before it was projected."""
    weights_distance: Float[Array, ""]
    """The same for the mixture weights."""
    eigenvalues: Float[Array, " k"]
    """After `fit`, the k largest eigenvalues of the second moment; zeros after `refine`."""
    noise: Float[Array, ""]
    """After `fit`, magnitude of the most negative eigenvalue of the second moment: the last of `eigenvalues` should
    stand well above it. Zero after `refine`."""


@partial(jax.jit, static_argnames=("num_samples", "length", "word_ids"))
def _sample(key: Array, params: NaiveBayes, num_samples: int, length: tuple[int, int], word_ids: bool) -> Sample:
    key_topic, key_words = jax.random.split(key)
    uniforms = jax.random.uniform(key_topic, (num_samples,), params.weights.dtype)
    hidden = inverse_cdf(uniforms, params.weights[:, None])
    return Sample(draw_documents(key_words, params.word_probs, hidden, length, word_ids), hidden)


def sample(
    key: Array,
    params: NaiveBayes,
    num_samples: int,
    length: int | tuple[int, int] = (20, 60),
    *,
    word_ids: bool = False,
) -> Sample:
    """Draw documents.

    Args:
      key: a random key.
      params: the model.
      num_samples: number of documents.
      length: words a document; a pair draws each length uniformly between the two, both included.
      word_ids: give word ids `(n, longest)`, −1 beyond a document's end, in place of counts `(n, d)`.

    Returns:
      `Sample(x, hidden)`; counts have the floating type of the parameters.

    """
    key = check_key(key)
    params = _check_params(params)
    num_samples = check_integer("num_samples", num_samples, 1)
    if isinstance(length, tuple) and len(length) != 2:
        raise ValueError(f"length: expected an integer or a pair of them; got {length!r}")
    low, high = length if isinstance(length, tuple) else (length, length)
    low = check_integer("length", low, 1)
    return _sample(key, params, num_samples, (low, check_integer("length", high, low)), word_ids)


@jax.jit
def population_moments(params: NaiveBayes) -> Moments:
    """Return the exact moments `Bπ`, `B diag(π) Bᵀ` and `Σ_h π_h b_h⊗b_h⊗b_h`, which a sample's estimate."""
    probs, weights = params.word_probs, params.weights
    weighted = probs * weights[None, :]
    return Moments(
        first=jnp.sum(weighted, axis=1),
        second=jnp.matmul(weighted, probs.T, precision="highest"),
        third=jnp.einsum("ih,jh,lh->ijl", weighted, probs, probs, precision="highest"),
    )


def _unwhiten(whitening: Whitening, pairs: Eigenpairs) -> Fit:
    """Turn eigenpairs of the whitened tensor into weights and word probabilities.

    `B v_h = √π_h b_h` and `b_h` sums to one, so the sum of `B v_h` is `√π_h`. That is the notes' `π = B⁺M₁` (because
    `M₂1 = M₁`) and, unlike `π_h = λ_h⁻²`, uses second moments only.
    """
    scaled = jnp.matmul(whitening.unwhitener, pairs.vectors, precision="highest")
    roots = jnp.sum(scaled, axis=0)
    found = roots != 0
    columns = jnp.where(found[None, :], scaled / jnp.where(found, roots, 1)[None, :], 1 / scaled.shape[0])
    order = jnp.argsort(-(roots**2))
    word_probs, distance = project_columns_to_simplex(columns[:, order])
    weights, weights_distance = project_columns_to_simplex((roots**2)[order][:, None])
    return Fit(
        params=NaiveBayes(weights[:, 0], word_probs),
        status=worst(whitening.status, pairs.status),
        num_iters=pairs.num_iters,
        residual=pairs.unexplained,
        simplex_distance=distance,
        weights_distance=weights_distance[0],
        eigenvalues=whitening.eigenvalues,
        noise=whitening.noise,
    )


@partial(jax.jit, static_argnames=("num_components", "method", "num_restarts"))
def _fit_moments(key: Array, moments: Moments, num_components: int, method: str, num_restarts: int) -> Fit:
    whitening = whiten(moments.second, num_components)
    tensor = contract_third(moments.third, whitening.whitener)
    return _unwhiten(whitening, eigenpairs(key, tensor, method, num_restarts))


def fit_moments(
    key: Array,
    moments: Moments,
    num_components: int,
    method: Literal["power", "diagonalization"] = "power",
    *,
    num_restarts: int = 20,
) -> Fit:
    """Recover the model from dense moments; exact where they are. `fit` is this on data, without `(d, d, d)`."""
    key = check_key(key)
    num_components = check_integer("num_components", num_components, 1, moments.second.shape[0], " (words)")
    check_option("method", method, METHODS)
    return _fit_moments(key, moments, num_components, method, check_integer("num_restarts", num_restarts, 1))


@partial(jax.jit, static_argnames=("num_components", "method", "num_words", "dense", "num_restarts"))
def _fit(
    key: Array,
    x: Num[Array, "n _"],
    row_weights: Float[Array, " n"] | None,
    num_components: int,
    method: str,
    num_words: int | None,
    dense: bool,
    num_restarts: int,
) -> Fit:
    key_whiten, key_decompose = jax.random.split(key)
    if dense:
        whitening = whiten(document_second_moment(x, num_words, row_weights), num_components)
    else:
        operator = document_second_moment_operator(x, num_words, row_weights)
        d = x.shape[1] if num_words is None else num_words
        dtype = as_float(x).dtype if num_words is None else None
        whitening = whiten_operator(key_whiten, operator, d, num_components, dtype=dtype)
    tensor = contract_document_moments(x, whitening.whitener, num_words, row_weights)
    return _unwhiten(whitening, eigenpairs(key_decompose, tensor, method, num_restarts))


def fit(
    key: Array,
    x: ArrayLike,
    num_components: int,
    method: Literal["power", "diagonalization"] = "power",
    *,
    num_words: int | None = None,
    row_weights: ArrayLike | None = None,
    second: Literal["auto", "dense", "implicit"] = "auto",
    num_restarts: int = 20,
) -> Fit:
    """Estimate the model from documents by the method of moments.

    Whiten by the pair moment, contract the triple moment with the whitener, decompose the small `(k, k, k)` tensor,
    undo the whitening, project to the simplex.

    Args:
      key: a random key, for the restarts.
      x: counts `(n, d)`, integer or floating; or, with `num_words`, word ids `(n, L)`, below zero for padding. Every
        document needs three words.
      num_components: number of topics `k ≤ d`.
      method: `"power"`, the robust power method on the whole tensor; or `"diagonalization"`, of one random slice of it,
        without iterations and more sensitive to noise.
      num_words: size of the vocabulary if `x` holds word ids.
      row_weights: a weight for each document (default: equal).
      second: `"dense"` forms the `(d, d)` pair moment, `"implicit"` iterates with products `M₂V` instead; `"auto"` is
        dense up to 256 words.
      num_restarts: random starts for each component, or random slices.

    Returns:
      `Fit`. Under `jit` or `vmap` values are not checked: documents that are too short are left out, and `status`
      tells what went wrong.

    Cost: `O(n d k)` and a handful of passes over the data, or `O(n d²)` where dense.

    """
    key = check_key(key)
    x, d = check_documents(x, num_words, min_words=_MIN_WORDS)
    num_components = check_integer("num_components", num_components, 1, d, " (the number of words)")
    if x.shape[0] < num_components:
        raise ValueError(f"x: expected at least num_components = {num_components} documents; got {x.shape[0]}")
    check_option("method", method, METHODS)
    check_option("second", second, SECONDS)
    num_restarts = check_integer("num_restarts", num_restarts, 1)
    row_weights = check_row_weights(row_weights, x.shape[0])
    dense = second == "dense" or (second == "auto" and d <= DENSE_UP_TO)
    return _fit(key, x, row_weights, num_components, method, num_words, dense, num_restarts)


def _check_params(params: NaiveBayes) -> NaiveBayes:
    if not isinstance(params, NaiveBayes):
        hint = " (pass its .params)" if isinstance(params, Fit) else ""
        raise ValueError(f"params: expected a NaiveBayes; got {type(params).__name__}{hint}")
    weights = check_probabilities("params.weights", params.weights, 1)
    word_probs = check_probabilities("params.word_probs", params.word_probs, 2)
    if word_probs.shape[1] != weights.shape[0]:
        raise ValueError(
            f"params: expected weights (k,) and word_probs (d, k); got shapes {weights.shape} and {word_probs.shape}"
        )
    return NaiveBayes(weights, word_probs)


def _check_pair(params: NaiveBayes, x: ArrayLike, num_words: int | None) -> tuple[NaiveBayes, Array, int | None]:
    params = _check_params(params)
    words = params.word_probs.shape[0]
    x, d = check_documents(x, num_words)
    if d != words:
        name = "x: expected counts of" if num_words is None else "num_words: expected"
        raise ValueError(f"{name} {words} words, as in params.word_probs; got {d}")
    return params, x, num_words


def _safe_log(probabilities: Array) -> Array:
    # log 0 would meet a count of zero as 0 · −∞ = NaN. The logarithm of the smallest normal number is as good as −∞ for
    # any word that does occur, and harmless for those that do not.
    return jnp.log(jnp.maximum(probabilities, float(jnp.finfo(probabilities.dtype).tiny)))


def _joint(params: NaiveBayes, x: Num[Array, "n _"], num_words: int | None) -> Float[Array, "n k"]:
    """Return `log P(h, x)` for every document and topic."""
    return project_words(x, _safe_log(params.word_probs), num_words) + _safe_log(params.weights)[None, :]


@partial(jax.jit, static_argnames="num_words")
def _log_likelihood(params: NaiveBayes, x: Num[Array, "n _"], num_words: int | None) -> Float[Array, " n"]:
    return jax.nn.logsumexp(_joint(params, x, num_words), axis=1)


def log_likelihood(params: NaiveBayes, x: ArrayLike, *, num_words: int | None = None) -> Float[Array, " n"]:
    """Return each document's log-probability, words in order: `log Σ_h π_h Π_i B_ih^{c_i}`.

    (The multinomial coefficient, which does not depend on the parameters, is left out: counts and ids agree.) A word
    that no topic can emit costs its document about 87 nats each time in float32, 708 in float64, never −∞ or NaN.
    """
    return _log_likelihood(*_check_pair(params, x, num_words))


@partial(jax.jit, static_argnames="num_words")
def _posterior(params: NaiveBayes, x: Num[Array, "n _"], num_words: int | None) -> Float[Array, "n k"]:
    return jax.nn.softmax(_joint(params, x, num_words), axis=1)


def posterior(params: NaiveBayes, x: ArrayLike, *, num_words: int | None = None) -> Float[Array, "n k"]:
    """Return the probability of each topic given each document (counts, or ids where `num_words` is given)."""
    return _posterior(*_check_pair(params, x, num_words))


@partial(jax.jit, static_argnames="num_words")
def _refine(
    params: NaiveBayes,
    x: Num[Array, "n _"],
    num_words: int | None,
    row_weights: Float[Array, " n"] | None,
    tol: Array,
    max_iters: Array,
    smoothing: Array,
) -> Fit:
    dtype = params.word_probs.dtype
    n, k = x.shape[0], params.weights.shape[0]
    docs = average_weights(row_weights, jnp.ones(n, bool), dtype)

    def mean_log_likelihood(params: NaiveBayes) -> Array:
        return jnp.sum(docs * _log_likelihood(params, x, num_words))

    def step(params: NaiveBayes) -> tuple[NaiveBayes, Array]:
        joint = _joint(params, x, num_words)
        topics = jax.nn.softmax(joint, axis=1) * docs[:, None]
        words = spread_words(x, topics, num_words)
        weights, totals = jnp.sum(topics, axis=0), jnp.sum(words, axis=0)
        # A topic that no document belongs to keeps its words: dividing by zero would make it NaN.
        used = (totals > 0)[None, :]
        word_probs = jnp.where(used, words / jnp.where(used, totals[None, :], 1), params.word_probs)
        value = jnp.sum(docs * jax.nn.logsumexp(joint, axis=1))
        return NaiveBayes(weights / jnp.sum(weights), word_probs), value

    # Projection to the simplex leaves exact zeros, which rule a topic out for every document with that word. Starting
    # from a mixture with the overall word frequencies mends that; parameters that are better as they are stay as they
    # are.
    overall = spread_words(x, docs[:, None], num_words)
    num_seen = jnp.sum(overall)
    smoothing = jnp.where(num_seen > 0, smoothing, 0)
    overall = overall / jnp.where(num_seen > 0, num_seen, 1)
    mixed = NaiveBayes(
        (1 - smoothing) * params.weights + smoothing / k, (1 - smoothing) * params.word_probs + smoothing * overall
    )
    as_given, smoothed = mean_log_likelihood(params), mean_log_likelihood(mixed)
    better = smoothed > as_given
    start = jax.tree.map(lambda a, b: jnp.where(better, a, b), mixed, params)

    result = expectation_maximization(step, start, jnp.where(better, smoothed, as_given), tol, max_iters)
    zero, zeros = jnp.zeros((), dtype), jnp.zeros(k, dtype)
    return Fit(result.params, result.status, result.num_iters, result.gain, zeros, zero, zeros, zero)


def refine(
    params: NaiveBayes,
    x: ArrayLike,
    *,
    num_words: int | None = None,
    row_weights: ArrayLike | None = None,
    tol: float | None = None,
    max_iters: int = 200,
    smoothing: float = 1e-2,
) -> Fit:
    """Improve `params` by EM on the documents. The log-likelihood never falls.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: documents as for `fit`.
      num_words: size of the vocabulary if `x` holds word ids.
      row_weights: a weight for each document (default: equal).
      tol: stop when a step gains less than this share of the log-likelihood; default: 10 machine epsilons in float32
        and 1e-8 in float64.
      max_iters: limit on the steps.
      smoothing: share of the overall word frequencies that is mixed into the start, where that raises its likelihood.

    Returns:
      `Fit`, of the same type as that of `fit`.

    Cost: two passes over the data a step.

    """
    params, x, num_words = _check_pair(params, x, num_words)
    dtype = params.word_probs.dtype
    row_weights = check_row_weights(row_weights, x.shape[0])
    limits = em_limits(tol, max_iters, dtype)
    share = jnp.asarray(check_number("smoothing", smoothing, 0.0, 1.0), dtype)
    return _refine(params, x, num_words, row_weights, *limits, share)
