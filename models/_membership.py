"""The mixed-membership model: its parameters, draws from it, and variational inference.

Row i has a membership `g_i ~ Dirichlet(α)`. Each variable j of the row draws a component of its own,
`z_ij ~ Categorical(g_i)`, and its value given `z_ij = h`: a category from `Θ_j[:, h]`, or `Normal(Θ_jh, σ_j²)`.

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
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.models._sampling import inverse_cdf
from latensor.moments import Variables, category_rows, map_over_rows


class MixedMembership(NamedTuple):
    """Parameters: concentration of the memberships, and what each variable is like in each component."""

    concentration: Float[Array, " k"]
    tables: Float[Array, "rows k"]
    """Blocks of the variables, stacked in order: a categorical one has a row a category, and each column of its block
    sums to one; a real one has one row, its means."""
    variances: Float[Array, " r"] | None = None
    """Of the real variables in order; `None` where there are none."""


class Entries(NamedTuple):
    """What each entry says of its component: `p(x_j | z_j = h) = likelihoods · scale`, the largest likelihood one."""

    likelihoods: Float[Array, "n p k"]
    log_scale: Float[Array, " n"]
    """Sum of the logarithms of the observed entries' scales."""


@partial(jax.jit, static_argnames=("variables", "num_samples"))
def sample_memberships(
    key: Array, params: MixedMembership, variables: Variables, num_samples: int
) -> tuple[Num[Array, "n p"], Float[Array, "n k"]]:
    """Draw rows, and the membership of each: int32 codes if all variables are categorical, else floating numbers."""
    dtype, k, real = params.tables.dtype, params.tables.shape[1], variables.real
    key_hidden, key_component, key_category, key_noise = jax.random.split(key, 4)
    shape = (num_samples, variables.num_variables)
    # Through logarithms: a Gamma variable of a small shape is often below the smallest number.
    concentration = jnp.broadcast_to(params.concentration[None, :].astype(dtype), (num_samples, k))
    hidden = jax.nn.softmax(jax.random.loggamma(key_hidden, concentration, dtype=dtype), axis=1)
    cumulative = jnp.cumsum(hidden, axis=1)
    cumulative = cumulative / cumulative[:, -1:]
    uniforms = jax.random.uniform(key_component, shape, dtype)
    component = jnp.sum(uniforms[:, :, None] >= cumulative[:, None, :-1], axis=2, dtype=jnp.int32)

    # A column of probabilities for each variable and component, with zeros below those of fewer categories.
    size = max(variables.sizes)
    padded = jnp.zeros((size, variables.num_variables, k), dtype)
    padded = padded.at[variables.row_categories, variables.row_variables].set(params.tables)
    padded = padded.at[0, real].set(1)
    column = component + k * jnp.arange(variables.num_variables, dtype=jnp.int32)[None, :]
    codes = inverse_cdf(jax.random.uniform(key_category, shape, dtype), padded.reshape(size, -1), column)
    if params.variances is None:
        return codes, hidden
    rows = jnp.asarray(variables.offsets[:-1][real])[None, :]
    noise = jax.random.normal(key_noise, (num_samples, real.size), dtype) * jnp.sqrt(params.variances)[None, :]
    return codes.astype(dtype).at[:, real].set(params.tables[rows, component[:, real]] + noise), hidden


def normalize_blocks(
    counts: Float[Array, "rows m"], otherwise: Float[Array, "rows m"], variables: Variables
) -> tuple[Float[Array, "rows m"], Int[Array, ""]]:
    """Scale the columns of each block to sum to one; an empty one is taken from `otherwise`. Also count these."""
    owner = variables.row_variables
    totals = jax.ops.segment_sum(counts, owner, variables.num_variables)
    # A total next to nothing is nothing: its parts may have been rounded to zero.
    used = totals > float(jnp.finfo(counts.dtype).tiny) ** 0.75
    shares = counts / jnp.where(used, totals, 1)[owner]
    return jnp.where(used[owner], shares, otherwise), jnp.sum(~used, dtype=jnp.int32)


def observed_entries(x: Num[Array, "n p"], mask: Bool[Array, "n p"] | None) -> Num[Array, "n p"]:
    """Return the table with zeros where it is not observed: valid codes and finite numbers."""
    return x if mask is None else jnp.where(mask, x, jnp.zeros((), x.dtype))


def entry_likelihoods(
    params: MixedMembership, x: Num[Array, "n p"], mask: Bool[Array, "n p"] | None, variables: Variables
) -> Entries:
    """Return how likely each entry is in each component, up to its scale; ones where it is not observed.

    The largest likelihood of an entry is one and none is zero, so that sums over components, weighted by memberships,
    are never zero: tables may have exact zeros, also in all components. A code out of range gives NaN.
    """
    dtype = params.tables.dtype
    tiny = float(jnp.finfo(dtype).tiny)
    floor = math.sqrt(tiny)  # its reciprocal is far from infinite
    x = observed_entries(x, mask)
    parts, log_scales = [], []
    categorical, real = variables.categorical, variables.real
    if categorical.size:
        largest = jnp.maximum(jnp.max(params.tables, axis=1), tiny)
        scaled = jnp.where(largest[:, None] > tiny, jnp.maximum(params.tables / largest[:, None], floor), 1)
        rows = category_rows(x, variables)
        low = jnp.asarray(variables.offsets[:-1][categorical])[None, :]
        high = jnp.asarray(variables.offsets[1:][categorical])[None, :]
        valid = (rows >= low) & (rows < high)
        rows = jnp.where(valid, rows, low)
        parts.append(jnp.where(valid[:, :, None], scaled[rows], jnp.nan))
        log_scales.append(jnp.log(largest)[rows])
    if params.variances is not None:
        means, variances = params.tables[variables.offsets[:-1][real]], params.variances
        errors = (x[:, real].astype(dtype)[:, :, None] - means[None, :, :]) / jnp.sqrt(variances)[None, :, None]
        least = jnp.take_along_axis(errors, jnp.argmin(jnp.abs(errors), axis=2, keepdims=True), axis=2)
        # `e² − e₀²` as a product: far from all means the difference of the squares would be all rounding.
        excess = jnp.maximum((errors - least) * (errors + least), 0)
        parts.append(jnp.maximum(jnp.exp(-excess / 2), floor))
        log_scales.append(-(least[:, :, 0] ** 2 + jnp.log(2 * math.pi * variances)[None, :]) / 2)
    likelihoods, log_scale = jnp.concatenate(parts, axis=1), jnp.concatenate(log_scales, axis=1)
    if len(parts) > 1:
        order = np.argsort(np.concatenate([categorical, real]))
        likelihoods, log_scale = likelihoods[:, order], log_scale[:, order]
    if mask is not None:
        likelihoods, log_scale = jnp.where(mask[:, :, None], likelihoods, 1), jnp.where(mask, log_scale, 0)
    return Entries(likelihoods, jnp.sum(log_scale, axis=1))


def start_gamma(
    params: MixedMembership, likelihoods: Float[Array, "n p k"], observed: Bool[Array, "n p"] | None
) -> Float[Array, "n k"]:
    """Return a start: each entry divided among the components as on average, `φ_jh ∝ L_jh α_h`."""
    prior = params.concentration / jnp.max(params.concentration)
    return _gamma_from(
        params, likelihoods, observed, jnp.broadcast_to(prior[None, :], _rows_by_components(likelihoods))
    )


def _rows_by_components(likelihoods: Array) -> tuple[int, int]:
    return likelihoods.shape[0], likelihoods.shape[2]


def entry_ratios(
    likelihoods: Float[Array, "n p k"], observed: Bool[Array, "n p"] | None, weights: Float[Array, "n k"]
) -> Float[Array, "n p"]:
    """Return `1 / Σ_h L_jh t_h`, zero where not observed: with it `φ_jh = L_jh t_h · ratio_j`."""
    ratio = 1 / jnp.einsum("njk,nk->nj", likelihoods, weights, precision="highest")
    return ratio if observed is None else jnp.where(observed, ratio, 0)


def _gamma_from(
    params: MixedMembership, likelihoods: Array, observed: Array | None, weights: Array
) -> Float[Array, "n k"]:
    """Return `γ = α + Σ_j φ_j` with `φ_jh ∝ L_jh t_h`, for weights `t` of which the largest in a row is one."""
    ratio = entry_ratios(likelihoods, observed, weights)
    explained = jnp.einsum("nj,njk->nk", ratio, likelihoods, precision="highest")
    return params.concentration[None, :] + weights * explained


def _with_total(concentration: Float[Array, "*n k"]) -> Float[Array, "*n m"]:
    # One call of a special function for the parts and their sum: half as long to compile.
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
    """Return `t = exp(E log g)` up to a factor a row: the largest is one."""
    log_mean = digamma(gamma)
    return jnp.exp(log_mean - jnp.max(log_mean, axis=1, keepdims=True))


def update_gamma(
    params: MixedMembership,
    likelihoods: Float[Array, "n p k"],
    observed: Bool[Array, "n p"] | None,
    gamma: Float[Array, "n k"],
) -> Float[Array, "n k"]:
    """Update `φ`, then `γ`. The bound never falls."""
    return _gamma_from(params, likelihoods, observed, component_weights(gamma))


def infer(
    params: MixedMembership,
    likelihoods: Float[Array, "n p k"],
    observed: Bool[Array, "n p"] | None,
    start: Float[Array, "n k"] | None,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
) -> Float[Array, "n k"]:
    """Update the rows of a block until no `γ` moves by more than `tol` of its row's sum."""

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return state[1] & (state[2] < max_iters)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        gamma = update_gamma(params, likelihoods, observed, state[0])
        change = jnp.abs(gamma - state[0])
        # A row that is NaN does not move, and leaves the others of its block to finish.
        return gamma, jnp.any(change > tol * jnp.sum(gamma, axis=1, keepdims=True)), state[2] + 1

    first = start_gamma(params, likelihoods, observed) if start is None else start
    return lax.while_loop(unfinished, step, (first, jnp.array(True), jnp.int32(0)))[0]


def floats_per_row(params: MixedMembership, variables: Variables) -> int:
    """Return the size of the temporaries of one row."""
    return 3 * variables.num_variables * params.concentration.shape[0]


@partial(jax.jit, static_argnames="variables")
def memberships(
    params: MixedMembership,
    x: Num[Array, "n p"],
    mask: Bool[Array, "n p"] | None,
    variables: Variables,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
) -> Float[Array, "n k"]:
    """Return `γ` of each row's variational posterior: its mean membership is `γ / Σγ`."""

    def block(x: Array, mask: Array | None) -> Array:
        return infer(params, entry_likelihoods(params, x, mask, variables).likelihoods, mask, None, tol, max_iters)

    return map_over_rows(block, (x, mask), floats_per_row=floats_per_row(params, variables))


def evidence_bound(
    params: MixedMembership, entries: Entries, observed: Bool[Array, "n p"] | None, gamma: Float[Array, "n k"]
) -> Float[Array, " n"]:
    """Return each row's evidence lower bound, with the best `φ`."""
    alpha = params.concentration
    log_mean = log_memberships(gamma)
    largest = jnp.max(log_mean, axis=1)
    weights = jnp.exp(log_mean - largest[:, None])
    mixed = jnp.log(jnp.einsum("njk,nk->nj", entries.likelihoods, weights, precision="highest")) + largest[:, None]
    if observed is not None:
        mixed = jnp.where(observed, mixed, 0)
    divergence = log_normalizer(gamma) - log_normalizer(alpha) + jnp.sum((gamma - alpha[None, :]) * log_mean, axis=1)
    return jnp.sum(mixed, axis=1) + entries.log_scale - divergence
