"""Variational inference of memberships.

With `q(g) = Dirichlet(γ)` and `q(z_j) = Categorical(φ_j)` each update is in closed form (sums over observed `j`):

    φ_jh ∝ L_jh t_h,   L_jh = p(x_j | z_j = h),   t_h = exp(E log g_h) = exp(ψ(γ_h) − ψ(Σγ)),
    γ_h = α_h + Σ_j φ_jh,

and with the best `φ` the evidence lower bound of a row is

    Σ_j log Σ_h L_jh t_h − KL(Dirichlet(γ) ‖ Dirichlet(α)).

Source: Blei, Ng, Jordan (2003); for categorical tables: Erosheva, Fienberg, Joutard (2007).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Bool, Float, Int

from latensor.base import einsum, smallest_normal
from latensor.models.blocks import observed_values
from latensor.models.mixed_membership.params import MixedMembership
from latensor.models.variational import iterate_rows
from latensor.moments import Table, Variables, map_over_rows
from latensor.moments.internal import category_rows, described


class Entries(NamedTuple):
    """How likely each entry is in each component: `p(x_j | z_j = h) = likelihoods · scale`, the largest being one."""

    likelihoods: Float[Array, "n p k"]
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
    likelihoods, log_scale = (jnp.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    if len(parts) > 1:
        order = np.argsort(np.concatenate([variables.categorical, variables.real]))
        likelihoods, log_scale = likelihoods[:, order], log_scale[:, order]
    if rows.mask is not None:
        likelihoods, log_scale = jnp.where(rows.mask[:, :, None], likelihoods, 1), jnp.where(rows.mask, log_scale, 0)
    return Entries(likelihoods, rows.mask, jnp.sum(log_scale, axis=1))


def _category_likelihoods(
    params: MixedMembership, x: Array, variables: Variables
) -> tuple[Float[Array, "n c k"], Float[Array, "n c"]]:
    tiny, columns = smallest_normal(params.tables.dtype), variables.categorical
    largest = jnp.maximum(jnp.max(params.tables, axis=1), tiny)
    # The reciprocal of the floor is far from infinite.
    scaled = jnp.where(largest[:, None] > tiny, jnp.maximum(params.tables / largest[:, None], math.sqrt(tiny)), 1)
    rows = category_rows(x, variables)
    low = jnp.asarray(variables.offsets[:-1][columns])[None, :]
    high = jnp.asarray(variables.offsets[1:][columns])[None, :]
    valid = (rows >= low) & (rows < high)
    rows = jnp.where(valid, rows, low)
    return jnp.where(valid[:, :, None], scaled[rows], jnp.nan), jnp.log(largest)[rows]


def _real_likelihoods(
    params: MixedMembership, variances: Float[Array, " r"], x: Array, variables: Variables
) -> tuple[Float[Array, "n r k"], Float[Array, "n r"]]:
    dtype, real = params.tables.dtype, variables.real
    means = params.tables[variables.offsets[:-1][real]]
    errors = (x[:, real].astype(dtype)[:, :, None] - means[None, :, :]) / jnp.sqrt(variances)[None, :, None]
    least = jnp.take_along_axis(errors, jnp.argmin(jnp.abs(errors), axis=2, keepdims=True), axis=2)
    # `e² − e₀²` as a product: far from all means the difference of the squares would be all rounding.
    excess = jnp.maximum((errors - least) * (errors + least), 0)
    likelihoods = jnp.maximum(jnp.exp(-excess / 2), math.sqrt(smallest_normal(dtype)))
    return likelihoods, -(least[:, :, 0] ** 2 + jnp.log(2 * math.pi * variances)[None, :]) / 2


def entry_ratios(entries: Entries, weights: Float[Array, "n k"]) -> Float[Array, "n p"]:
    """Return `1 / Σ_h L_jh t_h`, zero where not observed: with it `φ_jh = L_jh t_h · ratio_j`."""
    ratio = 1 / einsum("njk,nk->nj", entries.likelihoods, weights)
    return ratio if entries.observed is None else jnp.where(entries.observed, ratio, 0)


def _gamma_from(params: MixedMembership, entries: Entries, weights: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Return `γ = α + Σ_j φ_j` with `φ_jh ∝ L_jh t_h`, for weights `t` of which the largest in a row is one."""
    explained = einsum("nj,njk->nk", entry_ratios(entries, weights), entries.likelihoods)
    return params.concentration[None, :] + weights * explained


def start_gamma(params: MixedMembership, entries: Entries) -> Float[Array, "n k"]:
    """Return a start: each entry divided among the components as on average, `φ_jh ∝ L_jh α_h`."""
    prior = params.concentration / jnp.max(params.concentration)
    num_rows, _, k = entries.likelihoods.shape
    return _gamma_from(params, entries, jnp.broadcast_to(prior[None, :], (num_rows, k)))


def update_gamma(params: MixedMembership, entries: Entries, gamma: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Update `φ`, then `γ`. The bound never falls."""
    return _gamma_from(params, entries, component_weights(gamma))


def _with_total(concentration: Float[Array, "*n k"]) -> Float[Array, "*n m"]:
    # One call of a special function for the parts and their sum takes half as long to compile.
    return jnp.concatenate([concentration, jnp.sum(concentration, axis=-1, keepdims=True)], axis=-1)


def log_normalizer(concentration: Float[Array, "*n k"]) -> Float[Array, "*n"]:
    """Return `log Γ(Σγ) − Σ_h log Γ(γ_h)`."""
    values = gammaln(_with_total(concentration))
    return values[..., -1] - jnp.sum(values[..., :-1], axis=-1)


def log_memberships(gamma: Float[Array, "*n k"]) -> Float[Array, "*n k"]:
    """Return `E log g_h = ψ(γ_h) − ψ(Σγ)`."""
    values = digamma(_with_total(gamma))
    return values[..., :-1] - values[..., -1:]


def component_weights(gamma: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Return `t = exp(E log g)` up to one factor per row: the largest is one."""
    log_mean = digamma(gamma)
    return jnp.exp(log_mean - jnp.max(log_mean, axis=1, keepdims=True))


def evidence_bound(params: MixedMembership, entries: Entries, gamma: Float[Array, "n k"]) -> Float[Array, " n"]:
    """Return each row's evidence lower bound, with the best `φ`."""
    alpha = params.concentration
    log_mean = log_memberships(gamma)
    largest = jnp.max(log_mean, axis=1)
    weights = jnp.exp(log_mean - largest[:, None])
    mixed = jnp.log(einsum("njk,nk->nj", entries.likelihoods, weights)) + largest[:, None]
    if entries.observed is not None:
        mixed = jnp.where(entries.observed, mixed, 0)
    divergence = log_normalizer(gamma) - log_normalizer(alpha) + jnp.sum((gamma - alpha[None, :]) * log_mean, axis=1)
    return jnp.sum(mixed, axis=1) + entries.log_scale - divergence


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
        return iterate_rows(
            lambda gamma: update_gamma(params, entries, gamma), start_gamma(params, entries), tol, max_iters
        )

    return map_over_rows(block, table, floats_per_row=floats_per_row(params, table))
