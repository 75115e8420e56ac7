"""EM for the mixture of spherical Gaussians, on the likelihood of the observed entries."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import divide, machine_epsilon, matmul
from latensor.decompose.internal import Evaluation, expectation_maximization
from latensor.models.em import as_refined, em_limits
from latensor.models.gaussian_mixture.likelihood import check_pair, joint, overall_mean
from latensor.models.gaussian_mixture.params import GaussianMixture
from latensor.models.gaussian_mixture.spectral import SMALLEST_VARIANCE
from latensor.models.partial import check_observed
from latensor.models.results import Refined
from latensor.moments import Table, sum_over_rows
from latensor.moments.internal import Centred, centre, residuals


def refine(
    params: GaussianMixture,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 200,
) -> Refined:
    """Improve `params` by EM on the likelihood of the observed entries, which never falls.

    No imputation is needed: given the component, dimensions are independent. Exact for entries that are missing for
    reasons that do not depend on their values, together or not.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: points as for `fit`.
      mask: `(n, d)` bool, True where observed.
      row_weights: one weight per row (default: equal).
      tol: stop when a step gains no more than this share of the log-likelihood; default: 10 machine epsilons in
        float32 and 1e-8 in float64.
      max_iters: limit on the steps.

    Returns:
      `Refined`. Cost: one pass over the data per step.

    """
    params, table = check_pair(params, x, mask, row_weights)
    check_observed(table)
    return _refine(params, table, *em_limits(tol, max_iters, params.means.dtype))


class _Sums(NamedTuple):
    """What the M-step needs: sums over rows."""

    value: Float[Array, ""]
    counts: Float[Array, " k"]
    first: Float[Array, "k d"]
    seen: Float[Array, "k d"] | None
    """How much of each component was observed in each dimension; `None` where that is all of it."""
    distance: Float[Array, ""]


def _collect(params: GaussianMixture, overall: Float[Array, " d"], table: Table, weights: Float[Array, " n"]) -> _Sums:
    def block(rows: Table, weights: Array) -> _Sums:
        parts_of = joint(params, overall, rows)
        value = jax.nn.logsumexp(parts_of.values, axis=1)
        parts = jnp.exp(parts_of.values - value[:, None]) * weights[:, None]
        return _Sums(
            value=jnp.sum(weights * value),
            counts=jnp.sum(parts, axis=0),
            first=matmul(parts.T, parts_of.rows),
            seen=None if rows.mask is None else matmul(parts.T, rows.mask.astype(parts.dtype)),
            distance=jnp.sum(parts * parts_of.distance),
        )

    return sum_over_rows(block, table, weights, floats_per_row=3 * table.num_dimensions)


def _smallest_variance(data: Centred, num_seen: Float[Array, ""]) -> Float[Array, ""]:
    """Return where variances end: the likelihood of a component that closes in on a single point has no bound."""

    def block(rows: Table, weights: Array) -> Array:
        return matmul(weights, jnp.sum(residuals(rows, data.mean) ** 2, axis=1))

    spread = sum_over_rows(block, data.table, data.weights, floats_per_row=data.mean.shape[0]).astype(num_seen.dtype)
    return jnp.maximum(10 * machine_epsilon(spread.dtype) * spread / num_seen, SMALLEST_VARIANCE)


@jax.jit
def _refine(params: GaussianMixture, table: Table, tol: Float[Array, ""], max_iters: Int[Array, ""]) -> Refined:
    dtype = params.means.dtype
    data = centre(table)
    num_seen = jnp.sum(data.rates.astype(dtype))
    floor = _smallest_variance(data, num_seen)
    weights = data.weights.astype(dtype)

    def step(params: GaussianMixture) -> Evaluation:
        overall = overall_mean(params)
        sums = _collect(params, overall, table, weights)
        old = (params.means - overall[:, None]).T
        seen = jnp.broadcast_to(sums.counts[:, None], old.shape) if sums.seen is None else sums.seen
        # A mean that no row informs stays where it is.
        new = divide(sums.first, seen, old)
        # The distances are to the old means; the sum of squares about the new ones is less by what they moved.
        within = sums.distance - jnp.sum(seen * (new - old) ** 2)
        variance = jnp.maximum(within / num_seen, floor)
        updated = GaussianMixture(sums.counts / jnp.sum(sums.counts), new.T + overall[:, None], variance)
        return Evaluation(updated, sums.value)

    start = params._replace(variance=jnp.maximum(params.variance, floor))
    result = expectation_maximization(step, start, tol=tol, max_iters=max_iters)
    return as_refined(result, result.params)
