"""Back from shares to the original units of real variables."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from latensor.base import matmul, positive_or_one
from latensor.models.mixed_membership.params import MixedMembership
from latensor.models.shares import Scaling, as_shares
from latensor.moments import Variables

# A real variable's variance within components is at least this share of its variance.
_SMALLEST_VARIANCE = 1e-3


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
    real, shares = variables.real, as_shares(variables)
    # The second row of a share is the one of `y` itself.
    is_real = np.isin(shares.row_variables, real)
    kept = tables[np.flatnonzero(~is_real | (shares.row_categories == 1))]
    rows = variables.offsets[:-1][real]
    means = scaling.low[:, None] + scaling.width[:, None] * kept[rows]
    tables = kept.at[rows].set(means)
    if scaling.variance is None:
        return MixedMembership(concentration, tables), jnp.asarray(False)
    share = concentration / jnp.sum(concentration)
    centred = means - matmul(means, share)[:, None]
    within = scaling.variance - matmul(centred**2, share)
    floor = _SMALLEST_VARIANCE * positive_or_one(scaling.variance)
    return MixedMembership(concentration, tables, jnp.maximum(within, floor)), jnp.any(within < floor)
