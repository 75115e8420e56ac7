"""Moments of documents: pairs and triples of *different* words of one document.

A document with word counts `c (d,)` and length `L = Σ c` gives unbiased one-document estimates

    first:   c / L
    second: (c⊗c − diag c) / (L(L−1))
    third:  (c⊗c⊗c − sym(diag(c)⊗c) + 2 diag₃(c)) / (L(L−1)(L−2))

which are averaged over documents. Under a mixture with word probabilities `B (d, k)` and weights `π` they estimate
`Bπ`, `B diag(π) Bᵀ` and `Σ π_h b_h⊗b_h⊗b_h`. The subtracted terms remove a word paired with itself; without them
`E[c cᵀ]` has a diagonal of its own and no low rank.

Documents come as counts `(n, d)`, or as word ids `(n, L)` with `num_words = d`; an id below zero is padding, so that
documents of different lengths fit one array. A document with fewer than three words has no triple and is left out of
all three averages.

Everything rests on two linear maps, `project_words` (`c ↦ cᵀV` for every document) and `spread_words` (its adjoint),
so that the formulas are written once for both kinds of input.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int, Num

from latensor.moments._moments import Moments, symmetric_outer, symmetrize_last, third_power_sum
from latensor.moments._rows import as_float, average_weights, sum_over_rows

# A document needs three different words to have a triple.
_MIN_WORDS = 3


def _word_or_drop(ids: Int[Array, "..."], num_words: int) -> Int[Array, "..."]:
    # JAX wraps a negative index but drops one that is too large: padding must be the latter.
    ids = ids.astype(jnp.int32)
    return jnp.where(ids < 0, num_words, ids)


@partial(jax.jit, static_argnames="num_words")
def project_words(
    x: Num[Array, "n _"], directions: Float[Array, "d r"], num_words: int | None = None
) -> Float[Array, "n r"]:
    """Return `x @ directions` for counts, and the same sum over words for ids. Cost `O(n d r)` or `O(n L r)`."""
    if num_words is None:
        return jnp.matmul(as_float(x).astype(directions.dtype), directions, precision="highest")

    def add_word(total: Array, ids: Array) -> tuple[Array, None]:
        words = _word_or_drop(ids, num_words)
        return total + directions.at[words].get(mode="fill", fill_value=0), None

    start = jnp.zeros((x.shape[0], directions.shape[1]), directions.dtype)
    return lax.scan(add_word, start, x.T)[0]


@partial(jax.jit, static_argnames="num_words")
def spread_words(
    x: Num[Array, "n _"], values: Float[Array, "n r"], num_words: int | None = None
) -> Float[Array, "d r"]:
    """Return `x.T @ values` for counts, and the same sum over words for ids: the adjoint of `project_words`."""
    if num_words is None:
        # valuesᵀ x reads x row by row and takes little longer than x V; xᵀ values takes twice that on a CPU, and the
        # barrier keeps the compiler from turning the one into the other.
        spread = jnp.matmul(values.T, as_float(x).astype(values.dtype), precision="highest")
        return lax.optimization_barrier(spread).T

    def add_word(total: Array, ids: Array) -> tuple[Array, None]:
        words = _word_or_drop(ids, num_words)
        # A sum of its own for every position: a float32 scatter into one running total would lose small terms.
        return total + jnp.zeros_like(total).at[words].add(values, mode="drop"), None

    start = jnp.zeros((num_words, values.shape[1]), values.dtype)
    return lax.scan(add_word, start, x.T)[0]


def _weights_by_order(
    x: Num[Array, "n _"], num_words: int | None, row_weights: Float[Array, " n"] | None, dtype: jnp.dtype
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"]]:
    """Return each document's weight divided by `L`, by `L(L−1)` and by `L(L−1)(L−2)`."""
    words = as_float(x) if num_words is None else (x >= 0).astype(dtype)
    lengths = jnp.sum(words, axis=1).astype(dtype)
    usable = lengths >= _MIN_WORDS
    weights = average_weights(row_weights, usable, dtype)
    length = jnp.where(usable, lengths, _MIN_WORDS)
    one = weights / length
    two = one / (length - 1)
    return one, two, two / (length - 2)


def _dtype(x: Array, num_words: int | None) -> jnp.dtype:
    return as_float(x).dtype if num_words is None else jnp.result_type(float)


def _counts(x: Num[Array, "n _"], num_words: int | None) -> Float[Array, "n d"]:
    """Return the documents as counts; for ids only ever called on a block of rows."""
    if num_words is None:
        return as_float(x)
    rows = jnp.arange(x.shape[0])[:, None]
    counts = jnp.zeros((x.shape[0], num_words), _dtype(x, num_words))
    return counts.at[rows, _word_or_drop(x, num_words)].add(1, mode="drop")


@partial(jax.jit, static_argnames="num_words")
def document_first_moment(
    x: Num[Array, "n _"], num_words: int | None = None, row_weights: Float[Array, " n"] | None = None
) -> Float[Array, " d"]:
    """Return the mean word distribution `Bπ`. Arguments as in `document_moments`."""
    one, _, _ = _weights_by_order(x, num_words, row_weights, _dtype(x, num_words))
    return spread_words(x, one[:, None], num_words)[:, 0]


def _weighted_pairs(x: Array, weights: Array, num_words: int | None) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    """Return `Σ_n w_n c_n⊗c_n` and `Σ_n w_n c_n`."""

    def block_sum(rows: Array, weights: Array) -> Array:
        counts = _counts(rows, num_words)
        return jnp.matmul((weights[:, None] * counts).T, counts, precision="highest")

    # Ids become counts block by block; counts are there already and one product over all rows is fastest.
    pairs = sum_over_rows(block_sum, (x, weights), floats_per_row=1 if num_words is None else num_words)
    return pairs, spread_words(x, weights[:, None], num_words)[:, 0]


def _second(x: Array, two: Array, num_words: int | None) -> Float[Array, "d d"]:
    pairs, singles = _weighted_pairs(x, two, num_words)
    return pairs - jnp.diag(singles)


@partial(jax.jit, static_argnames="num_words")
def document_second_moment(
    x: Num[Array, "n _"], num_words: int | None = None, row_weights: Float[Array, " n"] | None = None
) -> Float[Array, "d d"]:
    """Return the pair moment `B diag(π) Bᵀ`, dense: `O(n d²)`. Arguments as in `document_moments`."""
    _, two, _ = _weights_by_order(x, num_words, row_weights, _dtype(x, num_words))
    return _second(x, two, num_words)


@partial(jax.jit, static_argnames="num_words")
def _apply_second(num_words: int | None, x: Array, two: Array, diagonal: Array, vectors: Array) -> Array:
    projected = project_words(x, vectors, num_words)
    return spread_words(x, two[:, None] * projected, num_words) - diagonal * vectors


@partial(jax.jit, static_argnames="num_words")
def document_second_moment_operator(
    x: Num[Array, "n _"], num_words: int | None = None, row_weights: Float[Array, " n"] | None = None
) -> Callable[[Float[Array, "d r"]], Float[Array, "d r"]]:
    """Return the map `V ↦ M₂ V`, which never forms `M₂`. Arguments as in `document_moments`.

    The map is a pytree (`jax.tree_util.Partial`) and may cross `jit`. Each call costs `O(n d r)`, two passes over the
    data, and `O((n + d) r)` memory; the weights and the diagonal are computed once, here.
    """
    x = as_float(x) if num_words is None else x
    _, two, _ = _weights_by_order(x, num_words, row_weights, _dtype(x, num_words))
    diagonal = spread_words(x, two[:, None], num_words)
    return Partial(partial(_apply_second, num_words), x, two, diagonal)


@partial(jax.jit, static_argnames="num_words")
def contract_document_moments(
    x: Num[Array, "n _"],
    directions: Float[Array, "d r"],
    num_words: int | None = None,
    row_weights: Float[Array, " n"] | None = None,
) -> Float[Array, "r r r"]:
    """Return the triple moment contracted with `directions` in every mode, `M₃(W, W, W)`.

    With `y_n = Wᵀc_n` and `s_n` the document's weight over `L(L−1)(L−2)`,

        M₃(W,W,W) = Σ_n s_n y_n⊗y_n⊗y_n − sym Σ_i w_i⊗w_i⊗q_i + 2 Σ_i m_i w_i⊗w_i⊗w_i,
        q = Σ_n s_n c_n⊗y_n,   m = Σ_n s_n c_n.

    The last sum is folded into the one before it, since `w_i⊗w_i⊗w_i` counts three times under `sym`.
    Two passes over the data, `O(n d r)` (ids: `O(n L r)`), never `(d, d, d)`. Arguments as in `document_moments`.
    """
    _, _, three = _weights_by_order(x, num_words, row_weights, directions.dtype)
    projected = project_words(x, directions, num_words)
    spread = spread_words(x, three[:, None] * jnp.pad(projected, ((0, 0), (0, 1)), constant_values=1), num_words)
    repair = spread[:, :-1] - (2 / 3) * spread[:, -1:] * directions
    return third_power_sum(projected, three) - symmetric_outer(directions, repair)


@partial(jax.jit, static_argnames="num_words")
def document_moments(
    x: Num[Array, "n _"], num_words: int | None = None, row_weights: Float[Array, " n"] | None = None
) -> Moments:
    """Return the first, pair and triple moments of different words of a document, dense.

    Args:
      x: counts `(n, d)`; or, where `num_words` is given, word ids `(n, L)`, below zero for padding.
      num_words: size `d` of the vocabulary; `None` means that `x` holds counts.
      row_weights: a weight for every document (default: equal). They need not sum to one.

    Returns:
      `Moments(first (d,), second (d, d), third (d, d, d))`. Cost `O(n d³)`, memory `O(d³)`: for small `d` and for
      tests. `contract_document_moments` and `document_second_moment_operator` are for everything else.

    """
    one, two, three = _weights_by_order(x, num_words, row_weights, _dtype(x, num_words))
    d = x.shape[1] if num_words is None else num_words

    def cubes(rows: Array, weights: Array) -> Array:
        return third_power_sum(_counts(rows, num_words), weights)

    # Without the pairs and triples of a word with itself, as in the contracted form: entry (i, i, l) of the part to
    # subtract is `repair[i, l]`, and the other two placements follow.
    pairs, singles = _weighted_pairs(x, three, num_words)
    repair = pairs - (2 / 3) * jnp.diag(singles)
    diagonal = jnp.eye(d, dtype=repair.dtype)[:, :, None] * repair[:, None, :]
    return Moments(
        first=spread_words(x, one[:, None], num_words)[:, 0],
        second=_second(x, two, num_words),
        third=sum_over_rows(cubes, (x, three), floats_per_row=d * d) - symmetrize_last(diagonal),
    )
