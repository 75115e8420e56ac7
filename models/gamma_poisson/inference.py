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
from jaxtyping import Array, Float, Int

from latensor.base import as_float, matmul, smallest_normal
from latensor.models.gamma_poisson.params import GammaPoisson
from latensor.models.special import digamma, log_gamma
from latensor.models.variational import RowStep, allows_newton, iterate_rows
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


def _mix(params: GammaPoisson, intensity: Float[Array, "n k"]) -> Float[Array, "n d"]:
    """Return `g Aᵀ`, kept above zero: topics may have exact zeros where a count is not zero."""
    # The square root: a count divided by the smallest number itself would be infinite.
    floor = math.sqrt(smallest_normal(intensity.dtype))
    return jnp.maximum(matmul(intensity, params.topics.T), floor)


class Shared(NamedTuple):
    """How counts are divided among topics: topic h explains `A_dh g_h x_d / (g Aᵀ)_d` of them."""

    digamma: Float[Array, "n k"]
    """`ψ(a)`."""
    intensity: Float[Array, "n k"]
    """`g`."""
    mixed: Float[Array, "n d"]
    """`g Aᵀ`."""
    ratio: Float[Array, "n d"]
    """`x / (g Aᵀ)`."""


def share_counts(params: GammaPoisson, counts: Float[Array, "n d"], q: Gammas) -> Shared:
    """Return how counts are divided among topics."""
    value = digamma(q.shapes)
    intensity = jnp.exp(value - jnp.log(q.rates))
    mixed = _mix(params, intensity)
    return Shared(value, intensity, mixed, counts / mixed)


def start_gammas(params: GammaPoisson, counts: Float[Array, "n d"], rates: Float[Array, "n k"]) -> Gammas:
    """Return a start: each count divided among the topics as on average, `φ_dh ∝ A_dh c_h`."""
    weighted = params.topics * params.shapes[None, :]
    # A count that no topic can emit goes to all of them, by their shapes.
    parts = jnp.where((jnp.sum(weighted, axis=1) > 0)[:, None], weighted, params.shapes[None, :])
    parts = parts / jnp.sum(parts, axis=1)[:, None]
    return Gammas(params.shapes[None, :] + matmul(counts, parts), rates)


def update_gammas(params: GammaPoisson, counts: Float[Array, "n d"], q: Gammas) -> Gammas:
    """Update `φ`, then `a`. The bound never falls."""
    shared = share_counts(params, counts, q)
    return q._replace(shapes=params.shapes[None, :] + shared.intensity * matmul(shared.ratio, params.topics))


def infer(params: GammaPoisson, rows: Table, tol: Float[Array, ""], max_iters: Int[Array, ""] | int) -> Gammas:
    """Step with a block of rows until an update moves no shape by more than `tol` of its row's sum."""
    counts, rates = observed_counts(rows, params.topics.dtype), posterior_rates(params, rows)
    d, k = params.topics.shape
    pairs = (params.topics[:, :, None] * params.topics[:, None, :]).reshape(d, k * k)

    def evaluate(shapes: Float[Array, "k n"]) -> RowStep:
        q = Gammas(shapes.T, rates)
        shared = share_counts(params, counts, q)
        explained = shared.intensity * matmul(shared.ratio, params.topics)
        updated, spread = (params.shapes[None, :] + explained).T, None
        if allows_newton(k):
            between = matmul(shared.ratio / shared.mixed, pairs).T.reshape(k, k, -1)
            outer = shared.intensity.T[:, None, :] * shared.intensity.T[None, :, :]
            spread = jnp.eye(k, dtype=shapes.dtype)[:, :, None] * explained.T[None, :, :] - between * outer
        return RowStep(updated, _bound(params, counts, q, shared), spread)

    start = start_gammas(params, counts, rates).shapes
    return Gammas(iterate_rows(evaluate, start.T, tol, max_iters).T, rates)


def floats_per_row(params: GammaPoisson) -> int:
    """Return the size of the temporaries of one row."""
    d, k = params.topics.shape
    return 4 * int(d) + (3 * int(k) ** 2 if allows_newton(k) else 0)


def log_factorials(counts: Float[Array, "n d"]) -> Float[Array, " n"]:
    """Return `Σ_d log x_d!` of each row."""
    return jnp.sum(log_gamma(counts + 1), axis=1)


def evidence_bound(
    params: GammaPoisson, counts: Float[Array, "n d"], q: Gammas, factorials: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Return each row's evidence lower bound, with the best `φ`; `factorials` are `log_factorials(counts)`."""
    return _bound(params, counts, q, share_counts(params, counts, q)) - factorials


def _bound(params: GammaPoisson, counts: Float[Array, "n d"], q: Gammas, shared: Shared) -> Float[Array, " n"]:
    """Return the evidence lower bound but for the factorials of the counts.

    The divergence and the expected counts, `E[α_h] Σ_d A_dh`, together are in each topic

        log Γ(c) − log Γ(a) + (a − c) ψ(a) + c (log r − log b).
    """
    words = jnp.sum(counts * jnp.log(shared.mixed), axis=1)
    prior = params.shapes[None, :]
    gain = log_gamma(q.shapes) - log_gamma(params.shapes)[None, :]
    gain = gain + (prior - q.shapes) * shared.digamma - prior * jnp.log(q.rates / params.rate)
    return words + jnp.sum(gain, axis=1)
