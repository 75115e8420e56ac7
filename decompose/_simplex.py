"""Projection to the probability simplex."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from latensor.base import small_jit


@small_jit
def project_columns_to_simplex(columns: Float[Array, "d k"]) -> tuple[Float[Array, "d k"], Float[Array, " k"]]:
    """Return the probability vector closest to each column, and the Euclidean distance between the two.

    Args:
      columns: `(d, k)`, entries of either sign.

    Returns:
      `(projected, distance)`: columns of `projected (d, k)` are nonnegative and sum to one; `distance (k,)` says how
      far each column was from the simplex. Cost: one sort per column.

    """
    projected = jax.vmap(optax.projections.projection_simplex, in_axes=1, out_axes=1)(columns)
    projected = projected.astype(columns.dtype)  # optax returns float64 for float32 if x64 is enabled
    return projected, jnp.linalg.norm(projected - columns, axis=0)
