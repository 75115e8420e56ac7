"""Moments of documents: pairs and triples of *different* words of one document.

A document with word counts `c (d,)` and length `L = Σ c` gives unbiased one-document estimates

    first:   c / L
    second: (c⊗c − diag c) / (L(L−1))
    third:  (c⊗c⊗c − sym(diag(c)⊗c) + 2 diag₃(c)) / (L(L−1)(L−2))

which are averaged over documents. Under a mixture with word probabilities `B (d, k)` and weights `π` they estimate
`Bπ`, `B diag(π) Bᵀ` and `Σ π_h b_h⊗b_h⊗b_h`. The subtracted terms remove pairs of a word with itself; they would add a
diagonal to `E[c cᵀ]`, which then has full rank.

Documents come as counts `(n, d)`, or as word ids `(n, L)` with `num_words = d`; an id below zero is padding, so that
documents of different lengths fit one array. A document with fewer than three words has no triple and is left out of
all three averages.

Both forms of input share the formulas, which use only two linear maps: `project_words` (`c ↦ cᵀV` for every document)
and `spread_words`, its adjoint.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Integer

from latensor.base import as_float, as_int32, divide, matmul
from latensor.moments._moments import Moments, check_directions, symmetric_outer, symmetrize_last, third_power_sum
from latensor.moments._observed import spread
from latensor.moments._rows import average_weights, map_over_rows, sum_over_rows
from latensor.moments._values import check_values, finite_moments
from latensor.moments.data import Documents, as_documents

# A document needs three words to have a triple.
MIN_WORDS = 3


def _word_or_drop(ids: Integer[Array, "..."], num_words: int) -> Int[Array, "..."]:
    # JAX counts a negative index from the end, but drops one that is too large.
    ids = as_int32(ids)
    return jnp.where(ids < 0, num_words, ids)


@jax.jit
def project_words(documents: Documents, directions: Float[Array, "d r"]) -> Float[Array, "n r"]:
    """Return `cᵀV` for every document. Cost `O(n d r)` for counts, `O(n L r)` for ids."""

    def block(rows: Documents) -> Array:
        if rows.num_words is None:
            return matmul(as_float(rows.x).astype(directions.dtype), directions)
        num_words = rows.num_words

        def add_word(total: Array, ids: Array) -> tuple[Array, None]:
            return total + directions.at[_word_or_drop(ids, num_words)].get(mode="fill", fill_value=0), None

        start = jnp.zeros((rows.num_rows, directions.shape[1]), directions.dtype)
        return lax.scan(add_word, start, rows.x.T)[0]

    return map_over_rows(block, documents, floats_per_row=0)


@jax.jit
def spread_words(documents: Documents, values: Float[Array, "n r"]) -> Float[Array, "d r"]:
    """Return `Σ_n c_n⊗values_n`: the adjoint of `project_words`."""

    def block(rows: Documents, values: Array) -> Array:
        if rows.num_words is None:
            return spread(values, as_float(rows.x).astype(values.dtype))
        num_words = rows.num_words

        def add_word(total: Array, ids: Array) -> tuple[Array, None]:
            words = _word_or_drop(ids, num_words)
            # A sum of its own for every position: a float32 scatter into one running total would lose small terms.
            return total + jnp.zeros_like(total).at[words].add(values, mode="drop"), None

        return lax.scan(add_word, jnp.zeros((num_words, values.shape[1]), values.dtype), rows.x.T)[0]

    return sum_over_rows(block, documents, values, floats_per_row=0)


def _weights_by_order(
    documents: Documents, dtype: jnp.dtype
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"]]:
    """Return each document's weight divided by `L`, by `L(L−1)` and by `L(L−1)(L−2)`."""

    def count(rows: Documents) -> Array:
        words = as_float(rows.x) if rows.num_words is None else (rows.x >= 0).astype(dtype)
        return jnp.sum(words, axis=1).astype(dtype)

    lengths = map_over_rows(count, documents, floats_per_row=0)
    usable = lengths >= MIN_WORDS
    weights = average_weights(documents.row_weights, documents.num_rows, dtype, usable)
    length = jnp.where(usable, lengths, MIN_WORDS)
    one = weights / length
    two = one / (length - 1)
    return one, two, two / (length - 2)


def _counts(rows: Documents) -> Float[Array, "n d"]:
    """Return a block of documents as counts."""
    if rows.num_words is None:
        return as_float(rows.x)
    index = jnp.arange(rows.num_rows)[:, None]
    counts = jnp.zeros((rows.num_rows, rows.num_words), rows.dtype)
    return counts.at[index, _word_or_drop(rows.x, rows.num_words)].add(1, mode="drop")


def _weighted_pairs(documents: Documents, weights: Array) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    """Return `Σ_n w_n c_n⊗c_n` and `Σ_n w_n c_n`."""

    def block_sum(rows: Documents, weights: Array) -> Array:
        counts = _counts(rows)
        return matmul((weights[:, None] * counts).T, counts)

    # Ids become counts block by block; counts are there already, and one product over many rows is fastest.
    floats_per_row = 1 if documents.num_words is None else documents.num_words
    pairs = sum_over_rows(block_sum, documents, weights, floats_per_row=floats_per_row)
    return pairs, spread_words(documents, weights[:, None])[:, 0]


def _second(documents: Documents, two: Array) -> Float[Array, "d d"]:
    pairs, singles = _weighted_pairs(documents, two)
    return pairs - jnp.diag(singles)


@jax.jit
def document_second_moment(documents: Documents) -> Float[Array, "d d"]:
    """Return the pair moment `B diag(π) Bᵀ`, dense: `O(n d²)`."""
    _, two, _ = _weights_by_order(documents, documents.dtype)
    return _second(documents, two)


@jax.jit
def document_pair_forms(
    documents: Documents, directions: Float[Array, "d c"]
) -> tuple[Float[Array, "n c"], Float[Array, " n"]]:
    """Return each document's estimate of `vᵀM₂v` for every direction, and its weight."""
    count = directions.shape[1]
    one, _, _ = _weights_by_order(documents, directions.dtype)
    columns = jnp.concatenate([directions, directions**2, jnp.ones_like(directions[:, :1])], axis=1)
    sums, squares, length = jnp.split(project_words(documents, columns), [count, 2 * count], axis=1)
    return divide(sums**2 - squares, length * (length - 1)), one * length[:, 0]


@jax.jit
def _apply_second(documents: Documents, two: Array, diagonal: Array, vectors: Array) -> Array:
    projected = project_words(documents, vectors)
    return spread_words(documents, two[:, None] * projected) - diagonal * vectors


@jax.jit
def document_second_moment_operator(documents: Documents) -> Callable[[Float[Array, "d r"]], Float[Array, "d r"]]:
    """Return the map `V ↦ M₂ V`, which never forms `M₂`.

    The map is a pytree (`jax.tree_util.Partial`) and may cross `jit`. Each call costs `O(n d r)`, two passes over the
    data, and `O((n + d) r)` memory; the weights and the diagonal are computed once, here.
    """
    if documents.num_words is None:
        documents = documents._replace(x=as_float(documents.x))
    _, two, _ = _weights_by_order(documents, documents.dtype)
    return Partial(_apply_second, documents, two, spread_words(documents, two[:, None]))


@jax.jit
def contract_documents(documents: Documents, directions: Float[Array, "d r"]) -> Float[Array, "r r r"]:
    """Return the contracted triple moment, unchecked; see `contract_document_moments`."""
    _, _, three = _weights_by_order(documents, directions.dtype)
    projected = project_words(documents, directions)
    sums = spread_words(documents, three[:, None] * jnp.pad(projected, ((0, 0), (0, 1)), constant_values=1))
    # The last sum of the docstring is folded into the one before it: `w_i⊗w_i⊗w_i` counts three times under `sym`.
    repair = sums[:, :-1] - (2 / 3) * sums[:, -1:] * directions
    return third_power_sum(projected, three) - symmetric_outer(directions, repair)


def _as_finite_documents(data: Documents | ArrayLike) -> Documents:
    documents = as_documents(data)
    if documents.num_words is None:
        check_values(documents.x, hint="")
    return documents


def contract_document_moments(data: Documents | ArrayLike, directions: Float[Array, "d r"]) -> Float[Array, "r r r"]:
    """Return the triple moment contracted with `directions` in every mode, `M₃(W, W, W)`.

    With `y_n = Wᵀc_n` and `s_n` the document's weight over `L(L−1)(L−2)`,

        M₃(W,W,W) = Σ_n s_n y_n⊗y_n⊗y_n − sym Σ_i w_i⊗w_i⊗q_i + 2 Σ_i m_i w_i⊗w_i⊗w_i,
        q = Σ_n s_n c_n⊗y_n,   m = Σ_n s_n c_n.

    Two passes over the data, `O(n d r)` (ids: `O(n L r)`), never `(d, d, d)`.
    """
    documents = _as_finite_documents(data)
    directions = check_directions(directions, documents.vocabulary_size)
    return finite_moments("data", contract_documents(documents, directions))


@jax.jit
def _moments(documents: Documents) -> Moments:
    one, two, three = _weights_by_order(documents, documents.dtype)
    d = documents.vocabulary_size

    def cubes(rows: Documents, weights: Array) -> Array:
        return third_power_sum(_counts(rows), weights)

    # Without the pairs and triples of a word with itself, as in the contracted form: entry (i, i, l) of the part to
    # subtract is `repair[i, l]`, and the other two placements follow.
    pairs, singles = _weighted_pairs(documents, three)
    repair = pairs - (2 / 3) * jnp.diag(singles)
    diagonal = jnp.eye(d, dtype=repair.dtype)[:, :, None] * repair[:, None, :]
    return Moments(
        first=spread_words(documents, one[:, None])[:, 0],
        second=_second(documents, two),
        third=sum_over_rows(cubes, documents, three, floats_per_row=d * d) - symmetrize_last(diagonal),
    )


def document_moments(data: Documents | ArrayLike) -> Moments:
    """Return the first, pair and triple moments of different words of a document, dense.

    Cost `O(n d³)`, memory `O(d³)`: for small `d` and for tests. `contract_document_moments` is for everything else.
    """
    return finite_moments("data", _moments(_as_finite_documents(data)))
