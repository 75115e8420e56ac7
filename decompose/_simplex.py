"""Projection to the probability simplex."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from latensor.base import check_axes, divide_by_largest, small_jit


@small_jit
def project_columns_to_simplex(columns: Float[Array, "d k"]) -> tuple[Float[Array, "d k"], Float[Array, " k"]]:
    """Return the probability vector closest to each column, and the Euclidean distance between the two.

    Args:
      columns: `(d, k)`, entries of either sign.

    Returns:
      `(projected, distance)`: columns of `projected (d, k)` are nonnegative and sum to one; `distance (k,)` says how
      far each column was from the simplex. Cost: one sort per column.

    """
    columns = check_axes("columns", columns, "d k")
    # A constant added to a column changes nothing, and an entry that is below the largest by one or more becomes zero:
    # so large numbers leave no digits behind.
    lowered = jnp.maximum(columns - jnp.max(columns, axis=0)[None, :], -1)
    projected = jax.vmap(optax.projections.projection_simplex, in_axes=1, out_axes=1)(lowered)
    projected = projected.astype(columns.dtype)  # optax returns float64 for float32 if x64 is enabled
    away = jnp.abs(projected - columns)
    # In units of the largest part, since squares of large numbers leave the floating range.
    distance = jnp.max(away, axis=0) * jnp.linalg.norm(jax.vmap(divide_by_largest, 1, 1)(away), axis=0)
    return projected, jnp.minimum(distance, float(jnp.finfo(distance.dtype).max))


def to_simplex(table: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the joint distribution that is nearest to a table."""
    return project_columns_to_simplex(table.reshape(-1, 1))[0].reshape(table.shape)
