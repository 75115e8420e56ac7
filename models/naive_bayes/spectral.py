"""The naive Bayes mixture from moments."""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_integer, check_key, check_option, divide, matmul, small_jit
from latensor.decompose import Status, Whitening, project_columns_to_simplex, whiten, whiten_operator
from latensor.decompose.internal import last_direction, status_if, worst
from latensor.models.checks import check_moments
from latensor.models.components import DENSE_UP_TO, METHODS, SECONDS, eigenpairs
from latensor.models.evidence import (
    IMPLICIT_ITERS,
    Evidence,
    add_evidence,
    after,
    coincide,
    draw_halves,
    effective_rows,
    judge_gain,
    last_directions,
)
from latensor.models.naive_bayes.likelihood import as_data, sum_over_topics
from latensor.models.naive_bayes.params import NaiveBayes, count_parameters
from latensor.models.results import Fit, Spectrum
from latensor.moments import Documents, Moments
from latensor.moments.internal import (
    average_weights,
    choose_rows,
    contract_documents,
    contract_third,
    document_pair_forms,
    document_second_moment,
    document_second_moment_operator,
    spread_words,
)

# Documents whose likelihood is compared with that of one topic.
_NUM_ROWS = 2048


class Diagnostics(NamedTuple):
    """How the stages of `fit` went."""

    spectrum: Spectrum
    """Of the pair moment."""
    whitening_status: Int[Array, ""]
    decomposition_status: Int[Array, ""]
    evidence: Evidence | None
    """What the documents say about the estimate; `None` where there are only moments."""
    simplex_distance: Float[Array, " k"]
    """How far each estimated word distribution was from the simplex (Euclidean) before it was projected."""
    weights_distance: Float[Array, ""]
    """The same for the mixture weights."""


class _Options(NamedTuple):
    num_components: int
    method: str
    num_restarts: int


def fit(
    key: Array,
    x: Documents | ArrayLike,
    num_components: int,
    *,
    num_words: int | None = None,
    row_weights: ArrayLike | None = None,
    method: Literal["power", "diagonalization"] = "power",
    num_restarts: int = 20,
    second: Literal["auto", "dense", "implicit"] = "auto",
) -> Fit:
    """Estimate the model from documents by the method of moments.

    Whiten by the pair moment, contract the triple moment with the whitener, decompose the small `(k, k, k)` tensor,
    undo the whitening, project to the simplex.

    Args:
      key: a random key, for the restarts.
      x: `Documents`; or counts `(n, d)`, integer or floating; or, with `num_words`, word ids `(n, L)`, below zero for
        padding. Every document needs three words.
      num_components: number of topics `k ≤ d`.
      num_words: size of the vocabulary if `x` holds word ids.
      row_weights: one weight per document (default: equal).
      method: `"power"`, the robust power method on the whole tensor; or `"diagonalization"` of one random slice of it,
        polished by power steps: faster, and more sensitive to noise.
      num_restarts: random starts per component, or random slices.
      second: `"dense"` forms the `(d, d)` pair moment, `"implicit"` iterates with products `M₂V` instead; `"auto"` is
        dense up to 256 words.

    Returns:
      `Fit` with `Diagnostics`. The status is `POOR_FIT` where the documents are no likelier than under one topic, as
      real ones may be: a word distribution that was projected to the simplex has zeros, each of which costs a document
      with that word dearly. `refine` removes them. Under `jit` or `vmap` values are not checked:
      documents that are too short are left out, and `status` tells what went wrong.

    Cost: `O(n d k)` and a handful of passes over the data, or `O(n d²)` where dense.

    """
    documents = as_data(x, num_words=num_words, row_weights=row_weights)
    d = documents.vocabulary_size
    options = _check_options(num_components, d, method, num_restarts)
    if documents.num_rows < options.num_components:
        raise ValueError(f"x: expected at least num_components = {num_components} documents; got {documents.num_rows}")
    check_option("second", second, SECONDS)
    key = check_key(key)
    moment = None
    if second == "dense" or (second == "auto" and d <= DENSE_UP_TO):
        moment = document_second_moment(documents)
        whitening = whiten(moment, options.num_components)
    else:
        whitening = _whiten_implicit(key, documents, options.num_components)
    tensor = contract_documents(documents, whitening.whitener)
    estimate, one = _read_off(key, whitening, tensor, options), _one_topic(documents)
    if options.num_components == 1:
        # The likeliest single topic has the overall frequencies, whatever the moments say.
        return add_evidence(estimate._replace(params=one), Evidence(None, None, None), whitening)
    return add_evidence(estimate, _weigh_evidence(key, documents, estimate.params, one, moment), whitening)


def fit_moments(
    key: Array,
    moments: Moments,
    num_components: int,
    *,
    method: Literal["power", "diagonalization"] = "power",
    num_restarts: int = 20,
) -> Fit:
    """Recover the model from dense moments; exact where they are. `fit` is this on data, without `(d, d, d)`."""
    _, second, third = check_moments(moments, Moments, ("first", "second", "third"))
    options = _check_options(num_components, second.shape[0], method, num_restarts)
    whitening = whiten(second, options.num_components)
    estimate = _read_off(check_key(key), whitening, contract_third(third, whitening.whitener), options)
    return estimate._replace(status=jnp.maximum(estimate.status, whitening.status))


def _check_options(num_components: int, num_words: int, method: str, num_restarts: int) -> _Options:
    check_option("method", method, METHODS)
    return _Options(
        check_integer("num_components", num_components, 1, num_words, " (the number of words)"),
        method,
        check_integer("num_restarts", num_restarts, 1),
    )


@partial(jax.jit, static_argnames="rank")
def _whiten_implicit(key: Array, documents: Documents, rank: int) -> Whitening:
    key_whiten, _ = jax.random.split(key)
    operator = document_second_moment_operator(documents)
    return whiten_operator(key_whiten, operator, documents.vocabulary_size, rank, dtype=documents.dtype)


@small_jit
def _one_topic(documents: Documents) -> NaiveBayes:
    weights = average_weights(documents.row_weights, documents.num_rows, documents.dtype)
    overall = spread_words(documents, weights[:, None])
    return NaiveBayes(jnp.ones(1, overall.dtype), divide(overall, jnp.sum(overall)))


@small_jit
def _weigh_evidence(
    key: Array, documents: Documents, params: NaiveBayes, one: NaiveBayes, moment: Float[Array, "d d"] | None
) -> Evidence:
    """Return what the documents say: of the k-th direction of their pair moment, and of the estimate's likelihood."""
    key_halves, key_start = jax.random.split(after(jax.random.split(key)[0], params.weights))
    halves = draw_halves(key_halves, documents.num_rows)
    d, k = params.word_probs.shape
    if moment is not None:
        half = document_second_moment(halves.first(documents))
        directions = last_directions(key_start, half, 2 * moment - half, k)
    else:
        weights = average_weights(documents.row_weights, documents.num_rows, documents.dtype)
        parts = (documents._replace(row_weights=part) for part in halves.weights(weights))
        here, there = (document_second_moment_operator(part) for part in parts)
        dtype = documents.dtype
        directions = last_direction(key_start, here, there, d, k, num_iters=IMPLICIT_ITERS, dtype=dtype)[:, None]
    forms, weights = document_pair_forms(documents, directions)
    rows = choose_rows(documents, _NUM_ROWS)
    gains = sum_over_topics(params, rows) - sum_over_topics(one, rows)
    # Words that never occur have no parameters.
    words = jnp.sum(one.word_probs > 0)
    more = count_parameters(k, words) - count_parameters(1, words)
    return judge_gain(halves.judge(forms, weights), gains, more, effective_rows(weights))


@small_jit(static_argnames="options")
def _read_off(key: Array, whitening: Whitening, tensor: Float[Array, "k k k"], options: _Options) -> Fit:
    """Decompose the whitened tensor, and turn its eigenpairs into weights and word probabilities.

    `B v_h = √π_h b_h` and `b_h` sums to one, so the sum of `B v_h` is `√π_h`. That is the notes' `π = B⁺M₁` (because
    `M₂1 = M₁`) and, unlike `π_h = λ_h⁻²`, uses second moments only.
    """
    _, key_decompose = jax.random.split(key)
    pairs = eigenpairs(key_decompose, tensor, options.method, options.num_restarts)
    scaled = matmul(whitening.unwhitener, pairs.vectors)
    roots = jnp.sum(scaled, axis=0)
    columns = jnp.where(roots[None, :] != 0, scaled / jnp.where(roots != 0, roots, 1)[None, :], 1 / scaled.shape[0])
    order = jnp.argsort(-(roots**2))
    word_probs, distance = project_columns_to_simplex(columns[:, order])
    weights, weights_distance = project_columns_to_simplex((roots**2)[order][:, None])
    degenerate = ~jnp.all(weights > 0) | coincide(word_probs)
    return Fit(
        params=NaiveBayes(weights[:, 0], word_probs),
        status=worst(pairs.status, status_if(degenerate, Status.DEGENERATE)),
        num_iters=pairs.num_iters,
        residual=pairs.unexplained,
        diagnostics=Diagnostics(
            Spectrum(whitening.eigenvalues, whitening.noise),
            whitening.status,
            pairs.status,
            None,
            distance,
            weights_distance[0],
        ),
    )
