"""Parameters of the naive Bayes mixture, draws from it, and its exact moments."""

from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num

from latensor.base import check_bool, check_integer, check_key, einsum, matmul, small_jit
from latensor.models.checks import check_order, check_probabilities, check_type
from latensor.models.results import Sample
from latensor.models.sampling import check_num_samples, draw_components, inverse_cdf
from latensor.moments import Moments

# A number of dimensions, or a traced one of those that occur.
Count = TypeVar("Count", int, Array)


class NaiveBayes(NamedTuple):
    """Parameters of a mixture of documents."""

    weights: Float[Array, " k"]
    """Probability of each topic."""
    word_probs: Float[Array, "d k"]
    """Probability of each word in each topic: columns sum to one."""


def check_params(params: Any) -> NaiveBayes:
    """Return parameters whose shapes agree and whose probabilities are valid."""
    params = check_type(params, NaiveBayes)
    weights = check_probabilities("params.weights", params.weights, 1)
    word_probs = check_probabilities("params.word_probs", params.word_probs, 2)
    if word_probs.shape[1] != weights.shape[0]:
        raise ValueError(
            f"params: expected weights (k,) and word_probs (d, k); got shapes {weights.shape} and {word_probs.shape}"
        )
    return NaiveBayes(weights.astype(word_probs.dtype), word_probs)


def num_parameters(params: NaiveBayes) -> int:
    """Return the number of free parameters: `k − 1` weights, and `d − 1` probabilities of words per topic."""
    d, k = check_params(params).word_probs.shape
    return count_parameters(k, d)


def count_parameters(num_components: int, num_words: Count) -> Count:
    """Return the number of free parameters of topics that have some words; that of words may be traced."""
    return num_components - 1 + num_components * (num_words - 1)


def permute(params: NaiveBayes, order: ArrayLike) -> NaiveBayes:
    """Return the same model with its topics in another order: topic `i` is the old `order[i]`."""
    params = check_params(params)
    index = check_order(order, params.weights.shape[0])
    return NaiveBayes(params.weights[index], params.word_probs[:, index])


def component_columns(params: NaiveBayes) -> Float[Array, "d k"]:
    """Return one column per topic, by which the topics of two estimates are matched: the word probabilities."""
    return check_params(params).word_probs


def sample(
    key: Array,
    params: NaiveBayes,
    num_samples: int,
    *,
    length: int | tuple[int, int] = (20, 60),
    word_ids: bool = False,
) -> Sample:
    """Draw documents and their topics.

    Args:
      key: a random key.
      params: the model.
      num_samples: number of documents.
      length: words per document; a pair draws each length uniformly between the two, both included.
      word_ids: give word ids `(n, longest)`, −1 beyond a document's end, in place of counts `(n, d)`.

    Returns:
      `Sample(x, hidden)`; counts have the floating type of the parameters.

    """
    key, params = check_key(key), check_params(params)
    if isinstance(length, tuple) and len(length) != 2:
        raise ValueError(f"length: expected an integer or a pair of them; got {length!r}")
    low, high = length if isinstance(length, tuple) else (length, length)
    low = check_integer("length", low, 1)
    high = check_integer("length", high, low)
    num_samples = check_num_samples(num_samples, max(high, params.word_probs.shape[0]))
    return _sample(key, params, num_samples, (low, high), check_bool("word_ids", word_ids))


@partial(jax.jit, static_argnames=("num_samples", "length", "word_ids"))
def _sample(key: Array, params: NaiveBayes, num_samples: int, length: tuple[int, int], word_ids: bool) -> Sample:
    key_topic, key_words = jax.random.split(key)
    hidden = draw_components(key_topic, params.weights, num_samples)
    return Sample(_draw_documents(key_words, params.word_probs, hidden, length, word_ids), hidden)


def _draw_documents(
    key: Array, word_probs: Float[Array, "d k"], hidden: Int[Array, " n"], length: tuple[int, int], word_ids: bool
) -> Num[Array, "n _"]:
    """Return a document for each entry of `hidden`, its words from that column of `word_probs`."""
    (d, _), n, dtype = word_probs.shape, hidden.shape[0], word_probs.dtype
    key_length, key_words = jax.random.split(key)
    lengths = jax.random.randint(key_length, (n,), length[0], length[1] + 1)
    uniforms = jax.random.uniform(key_words, (n, length[1]), dtype)
    words = inverse_cdf(uniforms, word_probs, hidden[:, None])
    beyond = jnp.arange(length[1])[None, :] >= lengths[:, None]
    if word_ids:
        return jnp.where(beyond, -1, words)
    rows = jnp.arange(n)[:, None]
    return jnp.zeros((n, d), dtype).at[rows, jnp.where(beyond, d, words)].add(1, mode="drop")


def population_moments(params: NaiveBayes) -> Moments:
    """Return the exact moments `Bπ`, `B diag(π) Bᵀ` and `Σ_h π_h b_h⊗b_h⊗b_h`, which those of a sample estimate."""
    return _population_moments(check_params(params))


@small_jit
def _population_moments(params: NaiveBayes) -> Moments:
    probs, weighted = params.word_probs, params.word_probs * params.weights[None, :]
    return Moments(
        first=jnp.sum(weighted, axis=1),
        second=matmul(weighted, probs.T),
        third=einsum("ih,jh,lh->ijl", weighted, probs, probs),
    )
