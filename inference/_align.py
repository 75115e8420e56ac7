"""Components of many estimates in the order of one of them."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import divide, freeze, positive_or_one
from latensor.decompose import match_columns

# With a constant coordinate so many times as long as the columns, their angles are proportional to their distances
# (within a percent).
_REACH = 10


def align_components(model: ModuleType, reference: Any, estimates: Any) -> Any:
    """Return estimates with their components in the order of those of the reference.

    Columns are matched by distance. A row of them has its median deviation over all estimates as unit: rows that differ
    between components, and rows that are mere noise, count by what they tell.

    Args:
      model: a module of `latensor.models`.
      reference: parameters.
      estimates: parameters with a leading axis of estimates. Those with a number that is not finite stay as they are.

    """
    target = model.component_columns(reference)
    if target.shape[1] == 1:
        return estimates
    # An order has no derivative.
    columns = freeze(jax.vmap(model.component_columns)(estimates))
    is_finite = jnp.all(jnp.isfinite(columns), axis=(1, 2))
    columns = jnp.where(is_finite[:, None, None], columns, target[None])
    centre = jnp.mean(target, axis=1)[:, None]
    unit = jnp.median(jnp.mean(jnp.abs(columns - centre[None]), axis=2), axis=0)[:, None]
    standard = divide(target - centre, unit)
    reach = _REACH * positive_or_one(jnp.max(jnp.linalg.norm(standard, axis=0)))

    def lift(standard: Float[Array, "d k"]) -> Float[Array, "e k"]:
        return jnp.concatenate([standard, jnp.full((1, standard.shape[1]), reach)])

    def order(columns: Float[Array, "d k"]) -> Array:
        return match_columns(lift(standard), lift(divide(columns - centre, unit)), method="assignment").permutation

    return jax.vmap(model.permute)(estimates, jax.vmap(order)(columns))
