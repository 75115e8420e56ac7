"""Drawing from many categorical distributions at once, and documents from them."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num


def inverse_cdf(
    uniforms: Float[Array, "*shape"], probabilities: Float[Array, "d k"], column: Int[Array, "..."] | int = 0
) -> Int[Array, "*shape"]:
    """Return draws from the columns of `probabilities`: the first index at which a column's sum exceeds the uniform.

    A binary search by gathers, `O(log d)` a draw and no temporary larger than the draws themselves;
    `jax.random.categorical` makes `d` random numbers for each.

    Args:
      uniforms: one number in `[0, 1)` a draw.
      probabilities: columns sum to one.
      column: which column each draw is from; broadcasts against `uniforms`.

    """
    d = probabilities.shape[0]
    cumulative = jnp.cumsum(probabilities, axis=0)
    # Scaled by the column's own sum, which rounding leaves a little off one.
    cumulative = cumulative / cumulative[-1:]
    column = jnp.broadcast_to(jnp.asarray(column), uniforms.shape)

    def halve(_: Array | int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        above = cumulative[middle, column] > uniforms
        return jnp.where(above, low, middle + 1), jnp.where(above, middle, high)

    low = jnp.zeros(uniforms.shape, jnp.int32)
    low, _ = lax.fori_loop(0, (d - 1).bit_length(), halve, (low, low + (d - 1)))
    return low


def draw_documents(
    key: Array, word_probs: Float[Array, "d k"], hidden: Int[Array, " n"], length: tuple[int, int], word_ids: bool
) -> Num[Array, "n _"]:
    """Return a document for each entry of `hidden`, its words from that column of `word_probs`.

    Lengths are uniform from `length[0]` to `length[1]`. Counts `(n, d)`, or ids `(n, length[1])` then −1.
    """
    d, dtype = word_probs.shape[0], word_probs.dtype
    n = hidden.shape[0]
    key_length, key_words = jax.random.split(key)
    lengths = jax.random.randint(key_length, (n,), length[0], length[1] + 1)
    uniforms = jax.random.uniform(key_words, (n, length[1]), dtype)
    words = inverse_cdf(uniforms, word_probs, hidden[:, None])
    beyond = jnp.arange(length[1])[None, :] >= lengths[:, None]
    if word_ids:
        return jnp.where(beyond, -1, words)
    rows = jnp.arange(n)[:, None]
    return jnp.zeros((n, d), dtype).at[rows, jnp.where(beyond, d, words)].add(1, mode="drop")
