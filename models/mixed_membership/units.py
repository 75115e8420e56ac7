"""Moments of real variables as shares, and back to the original units."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import matmul, positive_or_one, small_jit
from latensor.models.mixed_membership.params import MixedMembership
from latensor.models.shares import (
    Scaling,
    append_constant,
    choose_interval,
    share_matrix,
    transform_moments,
    unscale_tables,
)
from latensor.moments import Moments, Variables

# A real variable's variance within components is at least this share of its variance.
_SMALLEST_VARIANCE = 1e-3


def share_moments(
    moments: Moments, total: Float[Array, ""], variables: Variables, num_components: int
) -> tuple[Moments, Scaling | None]:
    """Do to dense moments what `share_table` does to data."""
    if not variables.real.size:
        return moments, None
    return _scale_moments(moments, total, variables, num_components)


@small_jit(static_argnames=("variables", "num_components"))
def _scale_moments(
    moments: Moments, total: Float[Array, ""], variables: Variables, num_components: int
) -> tuple[Moments, Scaling]:
    """Scale the moments of real variables: a share is an affine function of its variable."""
    real = variables.real
    rows = variables.offsets[:-1][real]
    # (α₀+1) M₂ has Σ_h a_h θ_h² on its diagonal, for proportions a.
    spread = (total + 1) * jnp.diagonal(moments.second)[rows] - moments.first[rows] ** 2
    low, width = choose_interval(moments.first[rows], spread, num_components)
    matrix = share_matrix(variables, low, width)
    return transform_moments(matrix, append_constant(moments, total)), Scaling(low, width, None)


def in_original_units(
    params: MixedMembership, scaling: Scaling | None, variables: Variables
) -> tuple[MixedMembership, Array]:
    """Return parameters of the original variables, and whether a variance came out too small.

    Categories stay as they are. Real variables get their means on their own scale, and the variance that these leave
    unexplained.
    """
    concentration, tables, _ = params
    if scaling is None:
        return params, jnp.asarray(False)
    tables = unscale_tables(tables, scaling, variables)
    means = tables[variables.offsets[:-1][variables.real]]
    if scaling.variance is None:
        return MixedMembership(concentration, tables), jnp.asarray(False)
    share = concentration / jnp.sum(concentration)
    centred = means - matmul(means, share)[:, None]
    within = scaling.variance - matmul(centred**2, share)
    floor = _SMALLEST_VARIANCE * positive_or_one(scaling.variance)
    return MixedMembership(concentration, tables, jnp.maximum(within, floor)), jnp.any(within < floor)
