"""Variational inference of memberships.

With `q(g) = Dirichlet(γ)` and `q(z_j) = Categorical(φ_j)` each update is in closed form (sums over observed `j`):

    φ_jh ∝ L_jh t_h,   L_jh = p(x_j | z_j = h),   t_h = exp(E log g_h) = exp(ψ(γ_h) − ψ(Σγ)),
    γ_h = α_h + Σ_j φ_jh,

and with the best `φ` the evidence lower bound of a row is

    Σ_j log Σ_h L_jh t_h − KL(Dirichlet(γ) ‖ Dirichlet(α)).

Source: Blei, Ng, Jordan (2003); for categorical tables: Erosheva, Fienberg, Joutard (2007).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.base import matmul, smallest_normal
from latensor.models.blocks import observed_values
from latensor.models.mixed_membership.params import MixedMembership
from latensor.models.special import digamma, log_gamma
from latensor.models.variational import SHORTER_BLOCKS, RowStep, allows_newton, iterate_rows
from latensor.moments import Table, Variables, map_over_rows
from latensor.moments.internal import category_rows, described


class Entries(NamedTuple):
    """How likely each entry is in each component: `p(x_j | z_j = h) = likelihoods · scale`, the largest being one."""

    likelihoods: Float[Array, "k n p"]
    """Ones where an entry is not observed."""
    observed: Bool[Array, "n p"] | None
    log_scale: Float[Array, " n"]
    """Sum of the logarithms of the observed entries' scales."""


def entry_likelihoods(params: MixedMembership, rows: Table) -> Entries:
    """Return how likely each entry is in each component, up to its scale.

    The largest likelihood of an entry is one and none is zero, so that sums over components, weighted by memberships,
    are never zero: tables may have exact zeros, also in all components. A code out of range gives NaN.
    """
    variables, x = described(rows), observed_values(rows)
    parts = []
    if variables.categorical.size:
        parts.append(_category_likelihoods(params, x, variables))
    if params.variances is not None:
        parts.append(_real_likelihoods(params, params.variances, x, variables))
    likelihoods, log_scale = (jnp.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
    if len(parts) > 1:
        order = np.argsort(np.concatenate([variables.categorical, variables.real]))
        likelihoods, log_scale = likelihoods[:, :, order], log_scale[:, order]
    if rows.mask is not None:
        likelihoods, log_scale = jnp.where(rows.mask[None], likelihoods, 1), jnp.where(rows.mask, log_scale, 0)
    return Entries(likelihoods, rows.mask, jnp.sum(log_scale, axis=1))


def _category_likelihoods(
    params: MixedMembership, x: Array, variables: Variables
) -> tuple[Float[Array, "k n c"], Float[Array, "n c"]]:
    tiny, columns = smallest_normal(params.tables.dtype), variables.categorical
    largest = jnp.maximum(jnp.max(params.tables, axis=1), tiny)
    # The reciprocal of the floor is far from infinite.
    scaled = jnp.where(largest[:, None] > tiny, jnp.maximum(params.tables / largest[:, None], math.sqrt(tiny)), 1)
    rows = category_rows(x, variables)
    low = jnp.asarray(variables.offsets[:-1][columns])[None, :]
    high = jnp.asarray(variables.offsets[1:][columns])[None, :]
    valid = (rows >= low) & (rows < high)
    rows = jnp.where(valid, rows, low)
    return jnp.where(valid[None], scaled.T[:, rows], jnp.nan), jnp.log(largest)[rows]


def _real_likelihoods(
    params: MixedMembership, variances: Float[Array, " r"], x: Array, variables: Variables
) -> tuple[Float[Array, "k n r"], Float[Array, "n r"]]:
    dtype, real = params.tables.dtype, variables.real
    means = params.tables[variables.offsets[:-1][real]]
    errors = (x[:, real].astype(dtype)[None] - means.T[:, None, :]) / jnp.sqrt(variances)[None, None, :]
    least = jnp.take_along_axis(errors, jnp.argmin(jnp.abs(errors), axis=0, keepdims=True), axis=0)
    # `e² − e₀²` as a product: far from all means the difference of the squares would be all rounding.
    excess = jnp.maximum((errors - least) * (errors + least), 0)
    likelihoods = jnp.maximum(jnp.exp(-excess / 2), math.sqrt(smallest_normal(dtype)))
    return likelihoods, -(least[0] ** 2 + jnp.log(2 * math.pi * variances)[None, :]) / 2


def mix_entries(entries: Entries, weights: Float[Array, "k n"]) -> Float[Array, "n p"]:
    """Return `Σ_h L_jh t_h`. Written out: a product of matrices for every row takes four times as long on a CPU."""
    return sum(likelihood * weight[:, None] for likelihood, weight in zip(entries.likelihoods, weights, strict=True))


def entry_shares(entries: Entries, weights: Float[Array, "k n"], mixed: Float[Array, "n p"]) -> Float[Array, "k n p"]:
    """Return `φ_jh = L_jh t_h / Σ_l L_jl t_l`, zero where not observed."""
    ratio = 1 / mixed
    ratio = ratio if entries.observed is None else jnp.where(entries.observed, ratio, 0)
    return entries.likelihoods * weights[:, :, None] * ratio[None]


def _sum_entries(values: Float[Array, "k n p"]) -> Float[Array, "k n"]:
    # As a product: the loop that XLA makes of a sum along the last axis adds one number at a time.
    return matmul(values, jnp.ones(values.shape[2], values.dtype))


def start_gamma(params: MixedMembership, entries: Entries) -> Float[Array, "k n"]:
    """Return a start: each entry divided among the components as on average, `φ_jh ∝ L_jh α_h`."""
    prior = params.concentration / jnp.max(params.concentration)
    weights = jnp.broadcast_to(prior[:, None], entries.likelihoods.shape[:2])
    return _gamma_from(params, entries, weights)


def _gamma_from(params: MixedMembership, entries: Entries, weights: Float[Array, "k n"]) -> Float[Array, "k n"]:
    shares = entry_shares(entries, weights, mix_entries(entries, weights))
    return params.concentration[:, None] + _sum_entries(shares)


def update_gamma(params: MixedMembership, entries: Entries, gamma: Float[Array, "k n"]) -> Float[Array, "k n"]:
    """Update `φ`, then `γ`. The bound never falls."""
    return _gamma_from(params, entries, component_weights(gamma))


def _with_total(concentration: Float[Array, "*n k"]) -> Float[Array, "*n m"]:
    # One call of a special function for the parts and their sum takes half as long to compile.
    return jnp.concatenate([concentration, jnp.sum(concentration, axis=-1, keepdims=True)], axis=-1)


def log_normalizer(concentration: Float[Array, "*n k"]) -> Float[Array, "*n"]:
    """Return `log Γ(Σγ) − Σ_h log Γ(γ_h)`."""
    values = log_gamma(_with_total(concentration))
    return values[..., -1] - jnp.sum(values[..., :-1], axis=-1)


def log_memberships(gamma: Float[Array, "*n k"]) -> Float[Array, "*n k"]:
    """Return `E log g_h = ψ(γ_h) − ψ(Σγ)`."""
    values = digamma(_with_total(gamma))
    return values[..., :-1] - values[..., -1:]


def component_weights(gamma: Float[Array, "k n"]) -> Float[Array, "k n"]:
    """Return `t = exp(E log g)` up to one factor per row: the largest is one."""
    log_mean = digamma(gamma)
    return jnp.exp(log_mean - jnp.max(log_mean, axis=0, keepdims=True))


def evidence_bound(
    params: MixedMembership, entries: Entries, gamma: Float[Array, "k n"], mixed: Float[Array, "n p"] | None = None
) -> Float[Array, " n"]:
    """Return each row's evidence lower bound, with the best `φ`.

    `mixed` is `mix_entries(entries, component_weights(gamma))`.
    """
    alpha = params.concentration
    mixed = mix_entries(entries, component_weights(gamma)) if mixed is None else mixed
    logs = jnp.log(mixed) if entries.observed is None else jnp.where(entries.observed, jnp.log(mixed), 0)
    log_mean = log_memberships(gamma.T)
    number = jnp.sum(jnp.ones_like(mixed) if entries.observed is None else entries.observed, axis=1)
    divergence = (
        log_normalizer(gamma.T) - log_normalizer(alpha) + jnp.sum((gamma.T - alpha[None, :]) * log_mean, axis=1)
    )
    return jnp.sum(logs, axis=1) + number * jnp.max(log_mean, axis=1) + entries.log_scale - divergence


def row_step(params: MixedMembership, entries: Entries, gamma: Float[Array, "k n"]) -> RowStep:
    """Return an update of a block of rows, and what Newton's steps need."""
    weights = component_weights(gamma)
    mixed = mix_entries(entries, weights)
    shares = entry_shares(entries, weights, mixed)
    explained, spread, k = _sum_entries(shares), None, gamma.shape[0]
    if allows_newton(k):
        between = lax.map(lambda share: _sum_entries(shares * share[None]), shares)
        spread = jnp.eye(k, dtype=gamma.dtype)[:, :, None] * explained[None] - between
    bound = evidence_bound(params, entries, gamma, mixed)
    return RowStep(params.concentration[:, None] + explained, bound, spread)


def floats_per_row(params: MixedMembership, table: Table) -> int:
    """Return the size of the temporaries of one row."""
    return 3 * table.num_dimensions * params.concentration.shape[0]


@jax.jit
def infer_memberships(
    params: MixedMembership, table: Table, tol: Float[Array, ""], max_iters: Int[Array, ""]
) -> Float[Array, "n k"]:
    """Return `γ` of each row's variational posterior: its mean membership is `γ / Σγ`."""

    def block(rows: Table) -> Array:
        entries = entry_likelihoods(params, rows)
        return iterate_rows(partial(row_step, params, entries), start_gamma(params, entries), tol, max_iters).T

    return map_over_rows(block, table, floats_per_row=SHORTER_BLOCKS * floats_per_row(params, table))
