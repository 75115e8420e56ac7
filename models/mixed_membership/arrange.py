"""The last step of `fit`: components in order, in the original units, and what to think of them."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from latensor.base import small_jit
from latensor.decompose import Status
from latensor.decompose.internal import finite_status, status_if, worst
from latensor.models.evidence import Evidence, coincide
from latensor.models.mixed_membership.options import Options
from latensor.models.mixed_membership.params import MixedMembership
from latensor.models.mixed_membership.units import in_original_units
from latensor.models.results import Fit, Spectrum
from latensor.models.shares import Scaling

# An entry that MELD's last sweep still moves by so much has not settled.
_MELD_TOLERANCE = 1e-3


class Diagnostics(NamedTuple):
    """How the stages of `fit` went. `"meld"` has no partitions, so the first four are `None` then."""

    spectrum: Spectrum | None
    """Singular values of the pair moment of two modes of the first partition; the noise is the next one."""
    decomposition_status: Int[Array, " P"] | None
    """How the factorization of each partition ended."""
    matched: Bool[Array, " P"] | None
    """Whether the matching of each partition gave a permutation; if not, the best assignment was taken."""
    anchors: tuple[Int[Array, " q1"], Int[Array, " q2"], Int[Array, " q3"]] | None
    """Variables that every partition has in each of its modes."""
    num_flat: Int[Array, ""]
    """Columns of variables' blocks that came out as zero and were made flat."""
    evidence: Evidence | None
    """What the samples say about the estimate; `None` for moments alone."""
    concentration_at_limit: Bool[Array, ""] | None
    """Whether the estimated total concentration is at either end of what was tried; `None` where it was given."""


class Estimate(NamedTuple):
    """An estimate before it is arranged; real variables are shares."""

    tables: Float[Array, "rows k"]
    concentration: Float[Array, " k"]
    clipped: Bool[Array, ""]
    status: Int[Array, "..."]
    num_iters: Int[Array, ""]
    residual: Float[Array, ""]
    diagnostics: Diagnostics


@small_jit(static_argnames="options", optimize=False)
def arrange(estimate: Estimate, scaling: Scaling | None, input_status: Int[Array, ""], options: Options) -> Fit:
    """Sort components by concentration, return to the original units and say what to think of the result."""
    order = jnp.argsort(-estimate.concentration)
    concentration, tables = estimate.concentration[order], estimate.tables[:, order]
    params, variance_raised = in_original_units(MixedMembership(concentration, tables), scaling, options.variables)
    boundary = estimate.clipped | variance_raised
    if estimate.diagnostics.concentration_at_limit is not None:
        boundary = boundary | estimate.diagnostics.concentration_at_limit
    unsettled = ~(estimate.residual <= _MELD_TOLERANCE) if options.method == "meld" else jnp.asarray(False)
    status = worst(
        input_status,
        jnp.max(estimate.status),
        status_if(unsettled, Status.MAX_ITERS),
        status_if(boundary, Status.BOUNDARY),
        status_if(coincide(tables), Status.DEGENERATE),
        finite_status(params),
        status_if(~jnp.all(concentration > 0), Status.NON_FINITE),
    )
    return Fit(params, status, estimate.num_iters, estimate.residual, estimate.diagnostics)
