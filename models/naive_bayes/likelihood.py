"""The likelihood of documents under a naive Bayes mixture, and the posterior of their topics."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from latensor.base import is_concrete, smallest_normal
from latensor.models.checks import spoil_bad_counts
from latensor.models.naive_bayes.params import NaiveBayes, check_params
from latensor.moments import Documents
from latensor.moments.internal import MIN_WORDS, as_documents, check_values, project_words


def check_documents(documents: Documents, min_words: int = 0) -> Documents:
    """Return documents whose concrete values are valid, and of which none is shorter than `min_words`.

    Traced counts that are not valid become NaN; a document with a traced id beyond the vocabulary gets weight NaN.
    """
    if documents.num_words is None:
        lengths = check_values(documents.x, counts=True, hint="")
    elif is_concrete(documents.x):
        ids = np.asarray(documents.x)
        if ids.max() >= documents.num_words:
            raise ValueError(f"x: expected word ids below num_words = {documents.num_words}; got {ids.max()}")
        lengths = np.sum(ids >= 0, axis=1)
    else:
        return _spoil_bad_ids(documents)
    if lengths is None:
        return spoil_bad_counts(documents)
    short = np.flatnonzero(lengths < min_words)
    if short.size:
        rows = "row" if short.size == 1 else "rows"
        raise ValueError(
            f"x: expected at least {min_words} words in every document; "
            f"got {int(lengths[short[0]])} in row {short[0]} ({short.size} such {rows} in all): leave them out"
        )
    return documents


def as_data(
    x: Documents | ArrayLike, *, num_words: int | None = None, row_weights: ArrayLike | None = None
) -> Documents:
    """Return the data of this model: `Documents`, checked, none of them too short to `fit`. Arguments as for `fit`."""
    return check_documents(as_documents(x, num_words=num_words, row_weights=row_weights), MIN_WORDS)


def _has_bad_id(documents: Documents) -> Bool[Array, " n"]:
    return jnp.any(documents.x >= documents.vocabulary_size, axis=1)


def _spoil_bad_ids(documents: Documents) -> Documents:
    weights = jnp.ones(documents.num_rows, documents.dtype) if documents.row_weights is None else documents.row_weights
    return documents._replace(row_weights=jnp.where(_has_bad_id(documents), jnp.nan, weights))


def check_pair(params: Any, x: Any, num_words: Any, row_weights: Any = None) -> tuple[NaiveBayes, Documents]:
    """Return a model, and documents of its vocabulary."""
    params = check_params(params)
    documents = check_documents(as_documents(x, num_words=num_words, row_weights=row_weights))
    words = params.word_probs.shape[0]
    if documents.vocabulary_size != words:
        name = "x: expected counts of" if documents.num_words is None else "num_words: expected"
        raise ValueError(f"{name} {words} words, as in params.word_probs; got {documents.vocabulary_size}")
    return params, documents


def _safe_log(probabilities: Array) -> Array:
    # log 0 would meet a count of zero as 0 · −∞ = NaN. The logarithm of the smallest normal number is as good as −∞ for
    # any word that does occur, and harmless for those that do not.
    return jnp.log(jnp.maximum(probabilities, smallest_normal(probabilities.dtype)))


def log_joint(params: NaiveBayes, documents: Documents) -> Float[Array, "n k"]:
    """Return `log P(h, x)` for every document and topic."""
    values = project_words(documents, _safe_log(params.word_probs)) + _safe_log(params.weights)[None, :]
    # A document of 1e37 words that no topic can emit would be at −∞ in all of them.
    values = jnp.maximum(values, float(jnp.finfo(values.dtype).min))
    return values if documents.num_words is None else jnp.where(_has_bad_id(documents)[:, None], jnp.nan, values)


@jax.jit
def sum_over_topics(params: NaiveBayes, documents: Documents) -> Float[Array, " n"]:
    """Return each document's log-probability."""
    return jax.nn.logsumexp(log_joint(params, documents), axis=1)


def log_likelihood(
    params: NaiveBayes, x: Documents | ArrayLike, *, num_words: int | None = None, key: Array | None = None
) -> Float[Array, " n"]:
    """Return each document's log-probability, words in order: `log Σ_h π_h Π_i B_ih^{c_i}`.

    The multinomial coefficient, which does not depend on the parameters, is left out: counts and ids agree. A word
    that no topic can emit costs its document about 87 nats each time in float32, 708 in float64, never −∞ or NaN.

    Args:
      params: the model.
      x: documents as for `fit`.
      num_words: size of the vocabulary if `x` holds word ids.
      key: ignored; models whose likelihood has to be estimated need it.

    """
    del key
    return sum_over_topics(*check_pair(params, x, num_words))


@jax.jit
def _posterior(params: NaiveBayes, documents: Documents) -> Float[Array, "n k"]:
    return jax.nn.softmax(log_joint(params, documents), axis=1)


def posterior(params: NaiveBayes, x: Documents | ArrayLike, *, num_words: int | None = None) -> Float[Array, "n k"]:
    """Return the probability of each topic given each document. Arguments as for `log_likelihood`."""
    return _posterior(*check_pair(params, x, num_words))
