"""Drawing from many categorical distributions at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import check_integer

# A sample of more numbers than this is 64 GB in float32: no machine that we know draws it at once.
_MOST_NUMBERS = 1 << 34


def check_num_samples(num_samples: Any, numbers_per_sample: int) -> int:
    """Return how many samples to draw: at least one, and no more than fit into memory."""
    number = check_integer("num_samples", num_samples, 1)
    most = max(_MOST_NUMBERS // max(numbers_per_sample, 1), 1)
    return check_integer("num_samples", number, 1, most, " (more do not fit into memory: draw in parts)")


def inverse_cdf(
    uniforms: Float[Array, "*shape"], probabilities: Float[Array, "d k"], column: Int[Array, "..."] | int = 0
) -> Int[Array, "*shape"]:
    """Return draws from the columns of `probabilities`: the first index at which a column's sum exceeds the uniform.

    A binary search by gathers, `O(log d)` per draw and no temporary larger than the draws themselves;
    `jax.random.categorical` makes `d` random numbers for each.

    Args:
      uniforms: one number in `[0, 1)` per draw.
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


def draw_components(key: Array, weights: Float[Array, " k"], num_samples: int) -> Int[Array, " n"]:
    """Return the component of each sample of a mixture."""
    return inverse_cdf(jax.random.uniform(key, (num_samples,), weights.dtype), weights[:, None])
