"""EM for the mixture of Gaussians, on the likelihood of the observed entries."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import divide, machine_epsilon, matmul, positive_or_one
from latensor.decompose import Status
from latensor.decompose.internal import Evaluation, expectation_maximization, inverse_root, status_if, worst
from latensor.models.em import as_refined, em_limits, history_length
from latensor.models.gaussian_mixture.covariance import Family, family_of, smallest_variance
from latensor.models.gaussian_mixture.density import (
    Products,
    Terms,
    difference_terms,
    differences,
    full_terms,
    product_terms,
)
from latensor.models.gaussian_mixture.likelihood import check_pair, floats_per_row, floats_per_tile
from latensor.models.gaussian_mixture.params import GaussianMixture
from latensor.models.gaussian_mixture.tiles import Tiles, group_rows
from latensor.models.partial import check_observed
from latensor.models.results import Refined
from latensor.moments import Table, sum_over_rows
from latensor.moments.internal import centre, second_cumulant_diagonal


def refine(
    params: GaussianMixture,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 200,
    history: bool = False,
) -> Refined:
    """Improve `params` by EM on the likelihood of the observed entries, which never falls.

    The covariances stay in their family, which is that of `params.variance`. No imputation is needed: where covariances
    are full, what is missing enters by its conditional mean and covariance given what was observed. Exact for entries
    that are missing for reasons that do not depend on their values, together or not.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: points as for `fit`.
      mask: `(n, d)` bool, True where observed.
      row_weights: one weight per row (default: equal).
      tol: stop when a step gains no more than this share of the log-likelihood; default: 10 machine epsilons in
        float32 and 1e-8 in float64.
      max_iters: limit on the steps.
      history: also return the log-likelihood at the start and after each step; one compilation per `max_iters`.

    Returns:
      `Refined`. The status is `BOUNDARY` where a component has closed in on a few points or on a plane, on which the
      likelihood has no bound: ask for fewer components, or for a shared or simpler covariance.

    Cost: one pass over the data per step, `O(n d k)`; with full covariances `O(n d² k)`, and `O(d³ k)` for
      each pattern of missing entries (for each row under `jit`, where patterns are not known).

    """
    params, table = check_pair(params, x, mask, row_weights)
    check_observed(table)
    data = prepare(params, table)
    length = history_length(history, max_iters)
    return _refine(params, data, *em_limits(tol, max_iters, params.means.dtype), length)


# A covariance within this factor of the bounds goes no nearer to them.
MARGIN = 10.0


class Data(NamedTuple):
    """What EM reads: rows with weights, and how far they can be resolved."""

    rows: Table | Tiles
    """Tiles where covariances are full."""
    weights: Float[Array, " n"] | None
    """Of the rows; `None` where tiles have their own."""
    floor: Float[Array, " d"]
    """Where variances end in each dimension."""
    is_observed: Bool[Array, ""]
    """Whether every dimension is."""


@jax.jit
def _describe(table: Table) -> tuple[Array, Array, Array]:
    data = centre(table)
    floor = smallest_variance(second_cumulant_diagonal(data), data.mean)
    return data.weights, floor, jnp.all(data.rates > 0)


def prepare(params: GaussianMixture, table: Table) -> Data:
    """Return a table as EM reads it."""
    weights, floor, is_observed = _describe(table)
    weights, floor = weights.astype(params.means.dtype), floor.astype(params.means.dtype)
    if params.variance.ndim < 3:
        return Data(table, weights, floor, is_observed)
    return Data(group_rows(table, weights)[0], None, floor, is_observed)


@partial(jax.jit, static_argnames="history")
def _refine(
    params: GaussianMixture, data: Data, tol: Float[Array, ""], max_iters: Int[Array, ""], history: int | None
) -> Refined:
    floor = variance_floor(params, data.floor)
    result = expectation_maximization(
        lambda params: em_step(params, data, floor), params, tol=tol, max_iters=max_iters, history=history
    )
    refined = as_refined(result, result.params)
    # A component that has closed in on a few points, or on a plane.
    status = worst(
        refined.status,
        status_if(_at_floor(refined.params, floor), Status.BOUNDARY),
        status_if(~data.is_observed, Status.UNOBSERVED),
    )
    return refined._replace(status=status)


def _at_floor(params: GaussianMixture, floor: Float[Array, "..."]) -> Bool[Array, ""]:
    if params.variance.ndim == 3:
        return ~jnp.all(is_regular(params.variance, floor, MARGIN))
    return jnp.any(params.variance <= floor)


def variance_floor(params: GaussianMixture, floor: Float[Array, " d"]) -> Float[Array, "..."]:
    """Return where variances end, in the shape of their family; for full covariances one for each dimension.

    For spherical and diagonal components it is never above what EM starts from: the start satisfies the same bound as
    all that follows, so that no step lowers the likelihood. For full covariances see `_bounded`.
    """
    if params.variance.ndim == 3:
        return floor
    return jnp.minimum(jnp.mean(floor) if params.variance.ndim < 2 else floor[:, None], params.variance)


class _Sums(NamedTuple):
    """What the M-step needs: sums over rows of each component, weighted by how much of a row it owns."""

    value: Float[Array, ""]
    """The log-likelihood."""
    counts: Float[Array, " k"]
    seen: Float[Array, "k d"] | None
    """How much of each component was observed in each dimension; `None` where that is all of it."""
    first: Float[Array, "k d"]
    """Of `x − a_h`."""
    second: Float[Array, "k ..."]
    """Of squares of `x − a_h`, as the family has them: `(k,)`, `(k, d)` or `(k, d, d)`."""


def _diagonal_sums(params: GaussianMixture, data: Data) -> _Sums:
    def block(rows: Table, weights: Array) -> _Sums:
        products = product_terms(params, rows)
        return lax.cond(
            products.is_accurate,
            lambda: _sums_by_products(params, rows, weights, products),
            lambda: _sums_by_differences(params, rows, weights),
        )

    return sum_over_rows(block, data.rows, data.weights, floats_per_row=floats_per_row(params))


class _Owned(NamedTuple):
    """How much of each row a component owns, `parts`, and the sums that need nothing else."""

    parts: Float[Array, "k n"]
    value: Float[Array, ""]
    counts: Float[Array, " k"]
    seen: Float[Array, "k d"] | None
    distance: Float[Array, " k"]


def _own(terms: Terms, rows: Table, weights: Float[Array, " n"]) -> _Owned:
    value = jax.nn.logsumexp(terms.values, axis=0)
    parts = jnp.exp(terms.values - value[None, :]) * weights[None, :]
    seen = None if rows.mask is None else matmul(parts, rows.mask.astype(parts.dtype))
    distance = jnp.sum(parts * terms.distance, axis=1)
    return _Owned(parts, jnp.sum(weights * value), jnp.sum(parts, axis=1), seen, distance)


def _sums_by_products(params: GaussianMixture, rows: Table, weights: Float[Array, " n"], products: Products) -> _Sums:
    """Return the sums of a block from sums about the centre."""
    own = _own(products.terms, rows, weights)
    number = own.counts[:, None] if own.seen is None else own.seen
    first = matmul(own.parts, products.centred)
    if params.variance.ndim < 2:
        second = own.distance * params.variance
    else:
        second = matmul(own.parts, products.centred**2) + products.means * (number * products.means - 2 * first)
    return _Sums(own.value, own.counts, own.seen, first - number * products.means, second)


def _sums_by_differences(params: GaussianMixture, rows: Table, weights: Float[Array, " n"]) -> _Sums:
    """Return the sums of a block, where products cancel."""
    apart = differences(params, rows)
    own = _own(difference_terms(params, rows, apart), rows, weights)
    if params.variance.ndim < 2:
        second = own.distance * params.variance
    else:
        second = matmul(own.parts[:, None, :], apart * apart)[:, 0]
    return _Sums(own.value, own.counts, own.seen, matmul(own.parts[:, None, :], apart)[:, 0], second)


def _full_sums(params: GaussianMixture, data: Data) -> _Sums:
    def block(tiles: Tiles) -> _Sums:
        terms = full_terms(params, tiles)
        value = jax.nn.logsumexp(terms.values, axis=0)
        parts = jnp.exp(terms.values - value[None]) * tiles.weights[None]
        k, d = terms.differences.shape[0], terms.differences.shape[-1]
        rows, flat = terms.differences.reshape(k, -1, d), parts.reshape(k, -1)
        second = matmul(jnp.swapaxes(rows * flat[:, :, None], 1, 2), rows)
        if terms.hidden is not None:
            owned = jnp.sum(parts, axis=2)
            second = second + matmul(owned[:, None, :], terms.hidden.reshape(k, -1, d * d)).reshape(k, d, d)
        first = matmul(flat[:, None, :], rows)[:, 0]
        return _Sums(jnp.sum(tiles.weights * value), jnp.sum(flat, axis=1), None, first, second)

    return sum_over_rows(
        block, data.rows, floats_per_row=floats_per_tile(params, data.rows.x.shape[1], data.rows.mask is None)
    )


def em_step(params: GaussianMixture, data: Data, floor: Float[Array, "..."]) -> Evaluation:
    """Return the parameters after one step of EM, and the log-likelihood before it."""
    family = family_of(params.variance, params.weights.shape[0])
    sums = (_full_sums if family.covariance == "full" else _diagonal_sums)(params, data)
    seen = jnp.broadcast_to(sums.counts[:, None], sums.first.shape) if sums.seen is None else sums.seen
    # A mean that no row informs stays where it is.
    move = divide(sums.first, seen)
    variance = _update_variance(params.variance, family, sums, seen, move, floor)
    updated = GaussianMixture(sums.counts / jnp.sum(sums.counts), params.means + move.T, variance)
    return Evaluation(updated, sums.value)


def _update_variance(
    old: Array, family: Family, sums: _Sums, seen: Array, move: Array, floor: Array
) -> Float[Array, "..."]:
    """Return the variances about the new means: sums of squares are about the old ones, and less by what they moved."""
    if family.covariance == "full":
        within = sums.second - sums.counts[:, None, None] * move[:, :, None] * move[:, None, :]
        number = sums.counts[:, None, None]
    elif family.covariance == "diagonal":
        within, number = sums.second - seen * move**2, seen
    else:
        within, number = sums.second - jnp.sum(seen * move**2, axis=1), jnp.sum(seen, axis=1)
    if family.shared:
        within, number = jnp.sum(within, axis=0, keepdims=True), jnp.sum(number, axis=0, keepdims=True)
    # As in `params`: components come last, and there is no axis where one variance is shared by all.
    within, number = jnp.moveaxis(within, 0, -1), jnp.moveaxis(number, 0, -1)
    variance = divide(within, number, old)
    if family.covariance == "full":
        return _bounded(variance, old, floor)
    return jnp.maximum(variance.reshape(old.shape), floor)


def is_regular(covariances: Float[Array, "d d k"], floor: Float[Array, " d"], margin: float = 1.0) -> Bool[Array, " k"]:
    """Return whether covariances are clear of singular ones, by as much as rounding asks for.

    Each variance has to be above its floor; and the share of it that the other dimensions do not explain, above
    rounding. Both are the component's own: how far the others are away does not matter.
    """
    variances = jnp.diagonal(covariances).T  # (d, k)
    scale = 1 / jnp.sqrt(positive_or_one(variances))
    correlations = jnp.moveaxis(covariances * scale[:, None, :] * scale[None, :, :], -1, 0)
    # A variance given all others is one over an entry of the diagonal of the inverse, `RᵀR`.
    share = 1 / jnp.max(jnp.sum(inverse_root(correlations) ** 2, axis=1), axis=1)
    rounding = 10 * floor.shape[0] * machine_epsilon(floor.dtype)
    return jnp.all(variances > margin * floor[:, None], axis=0) & (share > margin * rounding)


def _bounded(new: Array, old: Array, floor: Float[Array, " d"]) -> Float[Array, "d d k"]:
    """Return new covariances, kept away from singular ones: on the way from the old ones where they come too close.

    On the straight line from old to new the M-step's objective never falls: with `Σ_old = I` and `Σ_new = diag(s)`, its
    derivative by the share `t` of the way is `Σ_i (1 − t)(s_i − 1)²/(1 − t + t s_i)² ≥ 0`. What is nearly singular
    already stays.
    """
    new = (new + jnp.swapaxes(new, 0, 1)) / 2
    near = jnp.where(is_regular(old, floor, MARGIN), 1 - 1 / MARGIN, 0)
    share = jnp.where(is_regular(new, floor), 1, near)[None, None, :].astype(new.dtype)
    # Not `old + share (new − old)`, which rounds the new ones to the size of the old.
    return jnp.where(share == 1, new, (1 - share) * old + share * new)
