"""Drawing from many categorical distributions at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from latensor.base import check_integer
from latensor.moments import Variables

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


def draw_entries(
    keys: tuple[Array, Array],
    tables: Float[Array, "rows k"],
    variances: Float[Array, "r k"] | None,
    component: Int[Array, "n p"],
    variables: Variables,
) -> Num[Array, "n p"]:
    """Return a table whose entries are drawn from the given components.

    Args:
      keys: two random keys, for categories and for numbers.
      tables: blocks of the variables, stacked.
      variances: of the real variables in each component; `None` if there are none.
      component: of each entry.
      variables: what the columns are.

    Returns:
      int32 codes if all variables are categorical, else floating numbers.

    """
    dtype, k, real = tables.dtype, tables.shape[1], variables.real
    key_category, key_noise = keys
    # A column of probabilities for each variable and component, with zeros below those of fewer categories.
    size = max(variables.sizes)
    padded = jnp.zeros((size, variables.num_variables, k), dtype)
    padded = padded.at[variables.row_categories, variables.row_variables].set(tables)
    padded = padded.at[0, real].set(1)
    column = component + k * jnp.arange(variables.num_variables, dtype=jnp.int32)[None, :]
    codes = inverse_cdf(jax.random.uniform(key_category, component.shape, dtype), padded.reshape(size, -1), column)
    if variances is None:
        return codes
    place, drawn = jnp.arange(real.size)[None, :], component[:, real]
    noise = jax.random.normal(key_noise, drawn.shape, dtype) * jnp.sqrt(variances)[place, drawn]
    means = tables[jnp.asarray(variables.offsets[:-1][real])[None, :], drawn]
    return codes.astype(dtype).at[:, real].set(means + noise)
