"""Tables of categorical and real variables, checked at the boundary."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from latensor.base import is_concrete
from latensor.models.columns import as_data
from latensor.models.mixed_membership.options import Options
from latensor.models.mixed_membership.params import MixedMembership, check_params
from latensor.models.partial import DependentMissingnessWarning, dependence, describe_dependence, spread_columns
from latensor.moments import Table, joint_observation_rates
from latensor.moments.internal import described


def check_pair(
    params: Any, x: Any, mask: Any, variables: Any, row_weights: Any = None
) -> tuple[MixedMembership, Table]:
    """Return a model, and a table of its variables."""
    table = as_data(x, mask=mask, variables=variables, row_weights=row_weights)
    return check_params(params, described(table)), table


def find_missing_together(table: Table, options: Options) -> Bool[Array, ""] | None:
    """Return whether variables go missing together, where that matters: polishing divides by their rates.

    Of tables with many variables some are looked at. Warns where the mask is concrete; then the result is too.
    """
    if table.mask is None or not (options.polish or options.method == "meld"):
        return None
    columns = spread_columns(table.num_dimensions)
    if not is_concrete(table.mask, table.row_weights):
        return _missing_together(table.mask[:, columns], table.row_weights)[0]
    with jax.ensure_compile_time_eval():
        together, score, joint = _missing_together(jnp.asarray(table.mask)[:, columns], table.row_weights)
    if bool(together):
        help = (
            "which method='meld' assumes: use another method, and refine its estimate"
            if options.method == "meld"
            else "which polishing assumes: it is left out; refine the estimate instead"
        )
        warnings.warn(
            f"{describe_dependence(np.asarray(score), np.asarray(joint), columns, 'variables')}, {help}.",
            DependentMissingnessWarning,
            stacklevel=3,  # the line that calls `fit`
        )
    return together


@jax.jit
def _missing_together(
    mask: Bool[Array, "n p"], row_weights: Float[Array, " n"] | None
) -> tuple[Bool[Array, ""], Float[Array, "p p"], Float[Array, "p p"]]:
    joint = joint_observation_rates(Table(mask.astype(jnp.result_type(float)), mask, row_weights))
    score = dependence(joint, row_weights, mask.shape[0])
    return jnp.any(score > 0), score, joint
