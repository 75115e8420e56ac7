"""Variational inference for the Gamma-Poisson model: what its `posterior`, `refine` and `log_likelihood` share.

A count is a sum over topics, `x_d = Σ_h z_dh`, `z_dh ~ Poisson(A_dh α_h)`. With `q(α_h) = Gamma(a_h, r_h)` and
`q(z_d) = Multinomial(x_d, φ_d)` each update is in closed form (sums over observed `d`):

    φ_dh ∝ A_dh g_h,   g_h = exp(E log α_h) = exp(ψ(a_h)) / r_h,
    a_h = c_h + Σ_d x_d φ_dh,   r_h = b + Σ_d A_dh,

and with the best `φ` the evidence lower bound of a row is

    Σ_d [x_d log (A g)_d − log x_d!] − Σ_h E[α_h] Σ_d A_dh − KL(q(α) ‖ Gamma(c, b)).

As matrices: `a = c + g ∘ ((x / (g Aᵀ)) A)`, two products per update.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Float, Int

from latensor.base import as_float, matmul, smallest_normal
from latensor.models.gamma_poisson.params import GammaPoisson
from latensor.models.variational import iterate_rows
from latensor.moments import Table


class Gammas(NamedTuple):
    """Independent Gamma distributions of the topics' intensities, `q(α)`, for a block of rows."""

    shapes: Float[Array, "n k"]
    rates: Float[Array, "n k"]


def observed_counts(rows: Table, dtype: Any) -> Float[Array, "n d"]:
    """Return the counts, zero where they are not observed: a masked count then adds nothing to any sum."""
    x = as_float(rows.x).astype(dtype)
    return x if rows.mask is None else jnp.where(rows.mask, x, 0)


def posterior_rates(params: GammaPoisson, rows: Table) -> Float[Array, "n k"]:
    """Return `r = b + Σ_d A_dh` over the observed dimensions of each row."""
    if rows.mask is None:
        shape = (rows.num_rows, params.shapes.shape[0])
        return params.rate + jnp.broadcast_to(jnp.sum(params.topics, axis=0)[None, :], shape)
    return params.rate + matmul(rows.mask.astype(params.topics.dtype), params.topics)


def log_intensities(q: Gammas) -> Float[Array, "n k"]:
    """Return `E log α`."""
    return digamma(q.shapes) - jnp.log(q.rates)


def _mix(params: GammaPoisson, intensity: Float[Array, "n k"]) -> Float[Array, "n d"]:
    """Return `g Aᵀ`, kept above zero: topics may have exact zeros where a count is not zero."""
    # The square root: a count divided by the smallest number itself would be infinite.
    floor = math.sqrt(smallest_normal(intensity.dtype))
    return jnp.maximum(matmul(intensity, params.topics.T), floor)


def share_counts(params: GammaPoisson, counts: Float[Array, "n d"], q: Gammas) -> tuple[Array, Array]:
    """Return `g` and `x / (g Aᵀ)`: the counts that topic h explains are `A_dh g_h x_d / (g Aᵀ)_d`."""
    intensity = jnp.exp(log_intensities(q))
    return intensity, counts / _mix(params, intensity)


def start_gammas(params: GammaPoisson, counts: Float[Array, "n d"], rates: Float[Array, "n k"]) -> Gammas:
    """Return a start: each count divided among the topics as on average, `φ_dh ∝ A_dh c_h`."""
    weighted = params.topics * params.shapes[None, :]
    # A count that no topic can emit goes to all of them, by their shapes.
    parts = jnp.where((jnp.sum(weighted, axis=1) > 0)[:, None], weighted, params.shapes[None, :])
    parts = parts / jnp.sum(parts, axis=1)[:, None]
    return Gammas(params.shapes[None, :] + matmul(counts, parts), rates)


def update_gammas(params: GammaPoisson, counts: Float[Array, "n d"], q: Gammas) -> Gammas:
    """Update `φ`, then `a`. The bound never falls."""
    intensity, ratio = share_counts(params, counts, q)
    return q._replace(shapes=params.shapes[None, :] + intensity * matmul(ratio, params.topics))


def infer(params: GammaPoisson, rows: Table, tol: Float[Array, ""], max_iters: Int[Array, ""] | int) -> Gammas:
    """Update a block of rows until no shape moves by more than `tol` of its row's sum."""
    counts, rates = observed_counts(rows, params.topics.dtype), posterior_rates(params, rows)

    def update(shapes: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return update_gammas(params, counts, Gammas(shapes, rates)).shapes

    return Gammas(iterate_rows(update, start_gammas(params, counts, rates).shapes, tol, max_iters), rates)


def log_factorials(counts: Float[Array, "n d"]) -> Float[Array, " n"]:
    """Return `Σ_d log x_d!` of each row."""
    return jnp.sum(gammaln(counts + 1), axis=1)


def evidence_bound(
    params: GammaPoisson, counts: Float[Array, "n d"], q: Gammas, factorials: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Return each row's evidence lower bound, with the best `φ`; `factorials` are `log_factorials(counts)`."""
    log_mean, mean = log_intensities(q), q.shapes / q.rates
    words = jnp.sum(counts * jnp.log(_mix(params, jnp.exp(log_mean))), axis=1) - factorials
    prior = (
        params.shapes[None, :] * jnp.log(params.rate)
        - gammaln(params.shapes)[None, :]
        + (params.shapes[None, :] - 1) * log_mean
    )
    entropy = q.shapes - jnp.log(q.rates) + gammaln(q.shapes) + (1 - q.shapes) * digamma(q.shapes)
    # `b E[α]` of the prior and `E[α] Σ_d A` of the words together are `r E[α]`.
    return words + jnp.sum(prior + entropy - q.rates * mean, axis=1)
