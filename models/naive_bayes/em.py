"""EM for the naive Bayes mixture."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_number, divide
from latensor.decompose.internal import Evaluation, expectation_maximization
from latensor.models.em import as_refined, better_start, blend, em_limits, history_length
from latensor.models.naive_bayes.likelihood import check_pair, log_joint, sum_over_topics
from latensor.models.naive_bayes.params import NaiveBayes
from latensor.models.results import Refined
from latensor.moments import Documents
from latensor.moments.internal import average_weights, spread_words


def refine(
    params: NaiveBayes,
    x: Documents | ArrayLike,
    *,
    num_words: int | None = None,
    row_weights: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 200,
    smoothing: float | Array = 1e-2,
    history: bool = False,
) -> Refined:
    """Improve `params` by EM on the documents. The log-likelihood never falls.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: documents as for `fit`.
      num_words: size of the vocabulary if `x` holds word ids.
      row_weights: one weight per document (default: equal).
      tol: stop when a step gains no more than this share of the log-likelihood; default: 10 machine epsilons in
        float32 and 1e-8 in float64.
      max_iters: limit on the steps.
      smoothing: share of the overall word frequencies that is blended into the start, where that raises its
        likelihood.
      history: also return the log-likelihood at the start and after each step; one compilation per `max_iters`.

    Returns:
      `Refined`. Cost: two passes over the data per step.

    """
    params, documents = check_pair(params, x, num_words, row_weights)
    dtype = params.word_probs.dtype
    share = jnp.asarray(check_number("smoothing", smoothing, 0.0, 1.0), dtype)
    return _refine(params, documents, *em_limits(tol, max_iters, dtype), share, history_length(history, max_iters))


@partial(jax.jit, static_argnames="history")
def _refine(
    params: NaiveBayes,
    documents: Documents,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
    smoothing: Float[Array, ""],
    history: int | None,
) -> Refined:
    row_weights = average_weights(documents.row_weights, documents.num_rows, params.word_probs.dtype)

    def step(params: NaiveBayes) -> Evaluation:
        joint = log_joint(params, documents)
        topics = jax.nn.softmax(joint, axis=1) * row_weights[:, None]
        words = spread_words(documents, topics)
        weights = jnp.sum(topics, axis=0)
        # A topic that no document belongs to keeps its words.
        word_probs = divide(words, jnp.sum(words, axis=0)[None, :], params.word_probs)
        objective = jnp.sum(row_weights * jax.nn.logsumexp(joint, axis=1))
        return Evaluation(NaiveBayes(weights / jnp.sum(weights), word_probs), objective)

    def begin(params: NaiveBayes) -> tuple[NaiveBayes, Array]:
        return params, jnp.sum(row_weights * sum_over_topics(params, documents))

    overall = spread_words(documents, row_weights[:, None])[:, 0]
    even = jnp.full_like(params.weights, 1 / params.weights.shape[0])
    share = jnp.where(jnp.sum(overall) > 0, smoothing, 0)
    blended = NaiveBayes((1 - share) * params.weights + share * even, blend(params.word_probs, overall, smoothing))
    start = better_start(begin, params, blended)
    result = expectation_maximization(step, start, tol=tol, max_iters=max_iters, history=history)
    return as_refined(result, result.params)
