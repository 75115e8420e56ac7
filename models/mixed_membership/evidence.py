"""What the samples say about an estimate: the rank of the pair moment of two modes, and the gain over one component."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import divide, small_jit
from latensor.models.blocks import variable_rates
from latensor.models.evidence import (
    Evidence,
    after,
    effective_rows,
    judge_gain,
)
from latensor.models.mixed_membership.inference import entry_likelihoods
from latensor.models.mixed_membership.likelihood import sample_likelihoods
from latensor.models.mixed_membership.params import MixedMembership, num_parameters
from latensor.models.mixed_membership.units import in_original_units
from latensor.models.pair_rank import pair_rank
from latensor.models.shares import Scaling
from latensor.moments import Table, Variables
from latensor.moments.internal import average_weights, choose_rows, described, row_features

# Rows whose likelihood is compared with that of one component, and draws for each of them.
_NUM_ROWS, _NUM_DRAWS = 256, 40

Modes = tuple[Int[Array, " r1"], Int[Array, " r2"]]
"""Stacked rows in two modes; −1 is padding."""


@small_jit
def weigh_evidence(
    key: Array, params: MixedMembership, table: Table, shares: Table, one: MixedMembership, modes: Modes | None
) -> Evidence:
    """Return what the samples say about an estimate, beside `one` component with the overall frequencies.

    `shares` is the table whose real variables are shares. Without `modes` the rank is not judged.
    """
    key_rank, key_draws = jax.random.split(after(key, params.concentration))
    rank = None if modes is None else _pair_rank(key_rank, shares, modes, params.concentration)
    if params.concentration.shape[0] == 1:
        return Evidence(rank, None, None)
    rows = choose_rows(table, _NUM_ROWS)
    values = sample_likelihoods(key_draws, params, rows, _NUM_DRAWS).value
    # A single component is the likeliest for every entry, so its likelihood is all scale.
    gains = values - entry_likelihoods(one, rows).log_scale
    variables = described(table)
    more = num_parameters(params, variables=variables) - num_parameters(one, variables=variables)
    weights = average_weights(table.row_weights, table.num_rows, params.concentration.dtype)
    return judge_gain(rank, gains, more, effective_rows(weights))


@small_jit(static_argnames="variables")
def one_component(mean: Float[Array, " rows"], scaling: Scaling | None, variables: Variables) -> MixedMembership:
    """Return the model with a single component, from the means of the stacked rows."""
    return in_original_units(MixedMembership(jnp.ones(1, mean.dtype), mean[:, None]), scaling, variables)[0]


def _pair_rank(key: Array, table: Table, modes: Modes, concentration: Float[Array, " k"]) -> Float[Array, ""]:
    """Return `Evidence.rank` for the pair moment `M₁₂ = E[b₁⊗b₂] − α₀/(α₀+1) E b₁⊗E b₂` of two modes.

    Missing entries count as zero, divided by their rates.
    """
    weights = average_weights(table.row_weights, table.num_rows, concentration.dtype)
    inverse = divide(1, variable_rates(table, weights))[described(table).row_variables]
    scales = tuple(jnp.where(mode >= 0, inverse[jnp.maximum(mode, 0)], 0) for mode in modes)

    def features(rows: Table) -> tuple[Float[Array, "n r1"], Float[Array, "n r2"]]:
        a, b = (row_features(rows, mode)[0] * scale[None, :] for mode, scale in zip(modes, scales, strict=True))
        return a, b

    total, width = jnp.sum(concentration), modes[0].shape[0] + modes[1].shape[0]
    return pair_rank(
        key,
        features,
        weights,
        table,
        rank=concentration.shape[0],
        shrink=total / (total + 1),
        floats_per_row=2 * width,
    )
