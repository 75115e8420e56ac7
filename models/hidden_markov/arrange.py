"""From an estimate to a `Fit`: the first states, the order of the states, and the status of what is returned."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import machine_epsilon
from latensor.decompose import Status
from latensor.decompose.internal import EMResult, finite_status, status_if, worst
from latensor.models.evidence import Evidence
from latensor.models.hidden_markov.initial import FirstObservations, first_states
from latensor.models.hidden_markov.params import HiddenMarkov, reorder
from latensor.models.hidden_markov.start import Start
from latensor.models.hidden_markov.states import are_independent, has_closed_in, occurrence
from latensor.models.results import Fit, Spectrum

# In nats per window and cycle of two steps.
_SETTLED_GAIN = 1e-5
# A singular value is zero if it is not above this many roundings of the largest.
_ROUNDING = 100


class Diagnostics(NamedTuple):
    """How the stages of `fit` went."""

    spectrum: Spectrum
    """The k largest singular values of the pair moment, in units in which the largest is about one and all entries have
    noise of the same size; and the size that singular values of noise alone have."""
    start_status: Int[Array, ""]
    """How the spectral estimate went, from which polishing starts; `RANK_DEFICIENT` if the last singular value is not
    clear of the noise."""
    log_likelihood: Float[Array, ""]
    """Mean log-likelihood of a window of three under the estimate. For symbols, minus its largest possible value: zero
    is a perfect fit."""
    gap: Float[Array, ""] | None
    """The transitions of the spectral estimate are at most this far from the maximum of their composite likelihood;
    `None` with `marginals="pseudoinverse"`, which does not maximize it."""
    simplex_distance: Float[Array, ""] | None
    """The largest distance from the simplex of a column of `emission` in the spectral estimate before it was projected;
    `None` for real vectors."""
    num_dropped: Int[Array, ""] | None
    """Number of sequences without a window of three observations, which count for `initial` only; `None` after
    `fit_moments`."""
    evidence: Evidence | None
    """What whole sequences say about the estimate; its rank is not judged here. `None` after `fit_moments`."""


class Estimate(NamedTuple):
    """Parameters, with the distribution of a window's first state as `initial`, and how they were found."""

    params: HiddenMarkov
    log_likelihood: Float[Array, ""]
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def polished(result: EMResult, start: Start) -> Estimate:
    """Return the estimate after polishing. Its status is EM's, but a NaN in the moments is never forgotten.

    EM at its limit has converged if what it gains still is far below the sampling error of the likelihood.
    """
    bad = status_if(start.status == Status.NON_FINITE, Status.NON_FINITE)
    settled = (result.status == Status.MAX_ITERS) & (jnp.abs(result.gain) <= _SETTLED_GAIN)
    status = jnp.where(settled, Status.CONVERGED, result.status)
    return Estimate(result.params, result.objective, result.num_iters, worst(status, bad))


def unpolished(log_likelihood: Float[Array, ""], start: Start) -> Estimate:
    """Return the spectral estimate as it is."""
    return Estimate(start.params, log_likelihood, start.num_iters, start.status)


def arrange(
    estimate: Estimate,
    start: Start,
    first: FirstObservations | None,
    num_dropped: Int[Array, ""] | None,
) -> Fit:
    """Return the `Fit`, its states in decreasing order of how often they occur.

    Args:
      estimate: the parameters to return.
      start: the spectral estimate.
      first: the first observations of sequences; `None` if `initial` is that of a window.
      num_dropped: see `Diagnostics`.

    """
    params = estimate.params
    often = occurrence(params)
    if first is not None:
        params = params._replace(initial=first_states(params, first))
    values = start.spectrum.values
    # Fewer kinds of windows than states: no start of polishing can find what the data do not hold.
    is_lacking = values[-1] <= _ROUNDING * machine_epsilon(values.dtype) * values[0]
    status = worst(
        estimate.status,
        status_if(is_lacking, Status.RANK_DEFICIENT),
        status_if(has_closed_in(estimate.params), Status.BOUNDARY),
        status_if(~jnp.all(often > machine_epsilon(often.dtype)), Status.DEGENERATE),
        status_if(~are_independent(estimate.params), Status.RANK_DEFICIENT),
        finite_status(params),
    )
    diagnostics = Diagnostics(
        start.spectrum, start.status, estimate.log_likelihood, start.gap, start.simplex_distance, num_dropped, None
    )
    order = jnp.argsort(-often)
    return Fit(reorder(params, order), status, estimate.num_iters, start.residual, diagnostics)
