"""Variational EM for the mixed-membership model."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import polygamma
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.models._em import EMResult, expectation_maximization
from latensor.models._membership import (
    MixedMembership,
    component_weights,
    entry_likelihoods,
    entry_ratios,
    evidence_bound,
    floats_per_row,
    log_memberships,
    log_normalizer,
    normalize_blocks,
    observed_entries,
    start_gamma,
    update_gamma,
)
from latensor.moments import Variables, average_weights, category_rows, map_over_rows, sum_over_rows

# Updates of a row's membership between two updates of the parameters: one is enough for EM to rise, more rise faster.
_LOCAL_UPDATES = 3
# Newton steps on the concentration in an update, and how often each may be halved.
_NEWTON_STEPS, _HALVINGS = 3, 10
# Below this a component is in hardly any row, and `E log g` grows beyond what float32 can add up.
_SMALLEST_CONCENTRATION = 1e-4
# A real variable's variance stays above this share of its overall variance.
_SMALLEST_VARIANCE = 1e-6


class _Sums(NamedTuple):
    """What the M-step needs: weighted sums over rows."""

    counts: Float[Array, "rows k"]
    """Of the entries that a component explains, by stacked row."""
    first: Float[Array, "r k"]
    """Of the differences between real entries and their component's mean."""
    second: Float[Array, "r k"]
    """Of their squares."""
    log_mean: Float[Array, " k"]


class _State(NamedTuple):
    params: MixedMembership
    gamma: Float[Array, "n k"]


def sum_by_row(values: Float[Array, "n p m"], x: Num[Array, "n p"], variables: Variables) -> Float[Array, "rows m"]:
    """Add each entry's values up in the stacked row of its category, or in the one row of its real variable."""
    categorical, real = variables.categorical, variables.real
    sums = jnp.zeros((variables.num_rows, values.shape[2]), values.dtype)
    if categorical.size:
        sums = sums.at[category_rows(x, variables)].add(
            values if not real.size else values[:, categorical], mode="drop"
        )
    if real.size:
        sums = sums.at[variables.offsets[:-1][real]].set(jnp.sum(values[:, real], axis=0))
    return sums


def update_prior(concentration: Float[Array, " k"], log_mean: Float[Array, " k"]) -> Float[Array, " k"]:
    """Return `α` that makes `log Γ(Σα) − Σ_h log Γ(α_h) + Σ_h (α_h − 1) E log g_h` larger.

    Newton's steps on a concave function whose Hessian is a diagonal plus a constant, so `O(k)` a step (Minka 2000):

        δ_h = (∇_h − b) / ψ'(α_h),   b = Σ_l (∇_l / ψ'(α_l)) / (Σ_l 1 / ψ'(α_l) − 1 / ψ'(Σα)),

    taken in the logarithm, `α_h exp(s δ_h / α_h)`, which agrees with `α + s δ` near the optimum and is always
    positive. Of the lengths `s = 1, 1/2, 1/4, …` and zero the best is taken: the function never falls.
    """
    eps = float(jnp.finfo(concentration.dtype).eps)
    lengths = jnp.concatenate([jnp.zeros(1), 0.5 ** jnp.arange(_HALVINGS)]).astype(concentration.dtype)
    # Beyond the upper limit the memberships are all but equal, and their likelihood is lost in rounding.
    low = jnp.minimum(concentration, _SMALLEST_CONCENTRATION)
    high = jnp.maximum(concentration, eps**-0.5)

    def newton(_: Array | int, alpha: Array) -> Array:
        curvature = polygamma(1, jnp.append(alpha, jnp.sum(alpha)))
        gradient = log_mean - log_memberships(alpha)
        inverse, inverse_total = 1 / curvature[:-1], 1 / curvature[-1]
        # Below zero, by little where `α` is large: there rounding may say otherwise.
        gap = jnp.sum(inverse) - inverse_total
        shift = jnp.sum(gradient * inverse) / jnp.where(gap < 0, gap, -1)
        step = (gradient - shift) * inverse / alpha
        step = step * (3 / jnp.maximum(jnp.max(jnp.abs(step)), 3))
        choices = jnp.clip(alpha[None, :] * jnp.exp(lengths[:, None] * step[None, :]), low[None, :], high[None, :])
        # Differences from where it is now, which a large `E log g` does not drown.
        values = log_normalizer(choices) + jnp.sum((choices - alpha[None, :]) * log_mean[None, :], axis=1)
        return choices[jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))]

    return lax.fori_loop(0, _NEWTON_STEPS, newton, concentration)


def _update_real(
    params: MixedMembership, sums: _Sums, floor: Float[Array, " r"], variables: Variables
) -> tuple[Float[Array, "r k"], Float[Array, " r"] | None]:
    """Return the means and variances of the real variables that the entries of each component have."""
    rows = variables.offsets[:-1][variables.real]
    counts, means = sums.counts[rows], params.tables[rows]
    if params.variances is None:
        return means, None
    used = counts > float(jnp.finfo(counts.dtype).tiny) ** 0.75
    shift = jnp.where(used, sums.first / jnp.where(used, counts, 1), 0)
    total = jnp.sum(counts, axis=1)
    left = jnp.sum(sums.second - shift * sums.first, axis=1) / jnp.where(total > 0, total, 1)
    return means + shift, jnp.where(total > 0, jnp.maximum(left, floor), params.variances)


def _overall(
    x: Array, mask: Array | None, weights: Array, variables: Variables
) -> tuple[Float[Array, "rows 1"], Float[Array, " r"]]:
    """Return the total weight of each stacked row, and the smallest variance that each real variable may have."""
    real, dtype = variables.real, weights.dtype

    def block(x: Array, mask: Array | None, weights: Array) -> tuple[Array, Array, Array]:
        seen = jnp.ones(x.shape, dtype) if mask is None else mask.astype(dtype)
        x, seen = observed_entries(x, mask), seen * weights[:, None]
        values = x[:, real].astype(dtype)
        first = jnp.sum(seen[:, real] * values, axis=0)
        return sum_by_row(seen[:, :, None], x, variables), first, jnp.sum(seen[:, real] * values**2, axis=0)

    totals, first, second = sum_over_rows(block, (x, mask, weights), floats_per_row=3 * x.shape[1])
    weight = totals[variables.offsets[:-1][real], 0]
    weight = jnp.where(weight > 0, weight, 1)
    first, second = first / weight, second / weight
    info = jnp.finfo(dtype)
    # Never below the rounding of the entries themselves, so that a variable that is constant does no harm.
    rounding = float(info.eps) ** 2 * second
    share = _SMALLEST_VARIANCE * jnp.maximum(second - first**2, 0)
    return totals, jnp.maximum(jnp.maximum(share, rounding), float(info.tiny) ** 0.5)


@partial(jax.jit, static_argnames=("variables", "update_concentration"))
def variational_em(
    params: MixedMembership,
    x: Num[Array, "n p"],
    mask: Bool[Array, "n p"] | None,
    row_weights: Float[Array, " n"] | None,
    variables: Variables,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
    smoothing: Float[Array, ""],
    update_concentration: bool,
) -> EMResult:
    """Climb the evidence bound, averaged over rows, from `params`; return where that ended."""
    dtype, real = params.tables.dtype, variables.real
    weights = average_weights(row_weights, jnp.ones(x.shape[0], bool), dtype)
    floats = floats_per_row(params, variables)
    totals, floor = _overall(x, mask, weights, variables)
    if params.variances is not None:
        params = params._replace(variances=jnp.maximum(params.variances, floor))

    def local(params: MixedMembership, gamma: Array | None) -> tuple[Float[Array, "n k"], Float[Array, ""]]:
        def block(x: Array, mask: Array | None, gamma: Array | None) -> tuple[Array, Array]:
            entries = entry_likelihoods(params, x, mask, variables)
            gamma = start_gamma(params, entries.likelihoods, mask) if gamma is None else gamma
            gamma = lax.fori_loop(
                0, _LOCAL_UPDATES, lambda _, g: update_gamma(params, entries.likelihoods, mask, g), gamma
            )
            return gamma, evidence_bound(params, entries, mask, gamma)

        gamma, bounds = map_over_rows(block, (x, mask, gamma), floats_per_row=floats)
        return gamma, jnp.sum(weights * bounds)

    def collect(params: MixedMembership, gamma: Float[Array, "n k"]) -> _Sums:
        means = params.tables[variables.offsets[:-1][real]]

        def block(x: Array, mask: Array | None, weights: Array, gamma: Array) -> _Sums:
            likelihoods = entry_likelihoods(params, x, mask, variables).likelihoods
            x = observed_entries(x, mask)
            share = component_weights(gamma)
            ratio = entry_ratios(likelihoods, mask, share) * weights[:, None]
            explained = likelihoods * share[:, None, :] * ratio[:, :, None]
            error = x[:, real].astype(dtype)[:, :, None] - means[None, :, :]
            return _Sums(
                counts=sum_by_row(explained, x, variables),
                first=jnp.sum(explained[:, real] * error, axis=0),
                second=jnp.sum(explained[:, real] * error**2, axis=0),
                log_mean=jnp.sum(weights[:, None] * log_memberships(gamma), axis=0),
            )

        return sum_over_rows(block, (x, mask, weights, gamma), floats_per_row=floats)

    def step(state: _State) -> tuple[_State, Array]:
        gamma, bound = local(state.params, state.gamma)
        sums = collect(state.params, gamma)
        tables, _ = normalize_blocks(sums.counts, state.params.tables, variables)
        means, variances = _update_real(state.params, sums, floor, variables)
        tables = tables.at[variables.offsets[:-1][real]].set(means)
        concentration = state.params.concentration
        if update_concentration:
            concentration = update_prior(concentration, sums.log_mean)
        return _State(MixedMembership(concentration, tables, variances), gamma), bound

    # Tables from moments have exact zeros, which rule a component out for a category that occurs. Starting from a
    # mixture with the overall frequencies mends that; parameters that are better as they are stay as they are.
    rows_of_real = variables.offsets[:-1][real]
    overall, _ = normalize_blocks(jnp.broadcast_to(totals, params.tables.shape), params.tables, variables)
    mixed = ((1 - smoothing) * params.tables + smoothing * overall).at[rows_of_real].set(params.tables[rows_of_real])

    def begin(tables: Float[Array, "rows k"]) -> tuple[_State, Array]:
        start = params._replace(tables=tables)
        gamma, bound = local(start, None)
        return _State(start, gamma), bound

    states, bounds = lax.map(begin, jnp.stack([params.tables, mixed]))
    chosen = jnp.where(bounds[0] >= bounds[1], 0, 1)
    start = jax.tree.map(lambda leaf: leaf[chosen], states)

    result = expectation_maximization(step, start, bounds[chosen], tol, max_iters)
    return result._replace(params=result.params.params)
