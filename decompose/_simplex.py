"""Projection to the probability simplex."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float


@jax.jit
def project_columns_to_simplex(columns: Float[Array, "d k"]) -> tuple[Float[Array, "d k"], Float[Array, " k"]]:
    """Return the nearest probability vector to every column, and how far each column was from it (Euclidean)."""
    projected = jax.vmap(optax.projections.projection_simplex, in_axes=1, out_axes=1)(columns)
    projected = projected.astype(columns.dtype)  # optax gives float64 for float32 where x64 is enabled
    return projected, jnp.linalg.norm(projected - columns, axis=0)
