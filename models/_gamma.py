"""Variational inference for the Gamma-Poisson model: what its `posterior`, `refine` and `log_likelihood` share.

A count is a sum over topics, `x_d = Σ_h z_dh`, `z_dh ~ Poisson(A_dh α_h)`. With `q(α_h) = Gamma(a_h, r_h)` and
`q(z_d) = Multinomial(x_d, φ_d)` each update is in closed form (sums over observed `d`):

    φ_dh ∝ A_dh g_h,   g_h = exp(E log α_h) = exp(ψ(a_h)) / r_h,
    a_h = c_h + Σ_d x_d φ_dh,   r_h = b + Σ_d A_dh,

and with the best `φ` the evidence lower bound of a row is

    Σ_d [x_d log (A g)_d − log x_d!] − Σ_h E[α_h] Σ_d A_dh − KL(q(α) ‖ Gamma(c, b)).

As matrices: `a = c + g ∘ ((x / (g Aᵀ)) A)`, two products an update.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import digamma, gammaln, polygamma
from jaxtyping import Array, Float

from latensor.moments import as_float


class GammaPoisson(NamedTuple):
    """Parameters: topics (columns sum to one), shapes of the intensities, and the rate that they share."""

    topics: Float[Array, "d k"]
    shapes: Float[Array, " k"]
    rate: Float[Array, ""]


class Intensities(NamedTuple):
    """Gamma distributions of the topics' intensities in each row."""

    shapes: Float[Array, "n k"]
    rates: Float[Array, "n k"]


def observed_counts(x: Array, mask: Array | None, dtype: jnp.dtype) -> Float[Array, "n d"]:
    """Return the counts, zero where they are not observed: a hidden count then has no say in any sum."""
    x = as_float(x).astype(dtype)
    return x if mask is None else jnp.where(mask, x, 0)


def posterior_rates(params: GammaPoisson, x: Array, mask: Array | None) -> Float[Array, "n k"]:
    """Return `r = b + Σ_d A_dh` over the observed dimensions of each row."""
    if mask is None:
        total = jnp.broadcast_to(jnp.sum(params.topics, axis=0)[None, :], (x.shape[0], params.shapes.shape[0]))
    else:
        total = jnp.matmul(mask.astype(params.topics.dtype), params.topics, precision="highest")
    return params.rate + total


def log_intensities(q: Intensities) -> Float[Array, "n k"]:
    """Return `E log α`."""
    return digamma(q.shapes) - jnp.log(q.rates)


def _mixed(params: GammaPoisson, intensity: Float[Array, "n k"]) -> Float[Array, "n d"]:
    """Return `g Aᵀ`, kept above zero: a topic matrix may have exact zeros where a count is not zero."""
    # The square root: a count divided by the smallest number itself would be infinite.
    floor = math.sqrt(float(jnp.finfo(intensity.dtype).tiny))
    return jnp.maximum(jnp.matmul(intensity, params.topics.T, precision="highest"), floor)


def shares(params: GammaPoisson, counts: Float[Array, "n d"], q: Intensities) -> tuple[Array, Array]:
    """Return `g` and `x / (g Aᵀ)`: the counts that topic h explains are `A_dh g_h x_d / (g Aᵀ)_d`."""
    intensity = jnp.exp(log_intensities(q))
    return intensity, counts / _mixed(params, intensity)


def start_intensities(params: GammaPoisson, counts: Float[Array, "n d"], rates: Float[Array, "n k"]) -> Intensities:
    """Return a start: each count divided among the topics as on average, `φ_dh ∝ A_dh c_h`."""
    weighted = params.topics * params.shapes[None, :]
    total = jnp.sum(weighted, axis=1)
    # A count that no topic can emit goes to all of them, by their shapes.
    parts = jnp.where((total > 0)[:, None], weighted, params.shapes[None, :])
    parts = parts / jnp.sum(parts, axis=1)[:, None]
    return Intensities(params.shapes[None, :] + jnp.matmul(counts, parts, precision="highest"), rates)


def update_intensities(params: GammaPoisson, counts: Float[Array, "n d"], q: Intensities) -> Intensities:
    """Update `φ`, then `a`. The bound never falls."""
    intensity, ratio = shares(params, counts, q)
    explained = intensity * jnp.matmul(ratio, params.topics, precision="highest")
    return q._replace(shapes=params.shapes[None, :] + explained)


def infer(
    params: GammaPoisson, counts: Float[Array, "n d"], rates: Float[Array, "n k"], tol: Array, max_iters: Array | int
) -> Intensities:
    """Update the rows of a block until no shape moves by more than `tol` of its row's sum."""

    def unfinished(state: tuple[Intensities, Array, Array]) -> Array:
        return (state[1] > tol) & (state[2] < max_iters)

    def step(state: tuple[Intensities, Array, Array]) -> tuple[Intensities, Array, Array]:
        q = update_intensities(params, counts, state[0])
        change = jnp.abs(q.shapes - state[0].shapes) / jnp.sum(q.shapes, axis=1)[:, None]
        return q, jnp.max(change), state[2] + 1

    start = start_intensities(params, counts, rates)
    return lax.while_loop(unfinished, step, (start, jnp.ones((), rates.dtype), jnp.int32(0)))[0]


def evidence_bound(params: GammaPoisson, counts: Float[Array, "n d"], q: Intensities) -> Float[Array, " n"]:
    """Return each row's evidence lower bound, with the best `φ`."""
    log_mean, mean = log_intensities(q), q.shapes / q.rates
    words = counts * jnp.log(_mixed(params, jnp.exp(log_mean))) - gammaln(counts + 1)
    prior = (
        params.shapes[None, :] * jnp.log(params.rate)
        - gammaln(params.shapes)[None, :]
        + (params.shapes[None, :] - 1) * log_mean
    )
    entropy = q.shapes - jnp.log(q.rates) + gammaln(q.shapes) + (1 - q.shapes) * digamma(q.shapes)
    # `b E[α]` of the prior and `E[α] Σ_d A` of the words together are `r E[α]`.
    return jnp.sum(words, axis=1) + jnp.sum(prior + entropy - q.rates * mean, axis=1)


def inverse_digamma(value: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return `c` with `ψ(c) = value`: Minka's start, then Newton steps, which double the digits (five are enough)."""
    c = jnp.where(value > -2.22, jnp.exp(value) + 0.5, -1 / (value - digamma(jnp.ones_like(value))))
    for _ in range(5):
        c = c - (digamma(c) - value) / polygamma(1, c)
    return c


def update_prior(
    shapes: Float[Array, " k"], log_mean: Float[Array, " k"], mean: Float[Array, " k"]
) -> tuple[Array, Array]:
    """Return `c` and `b` that make `Σ_h c_h log b − log Γ(c_h) + (c_h − 1) E log α_h − b E α_h` larger.

    By turns: `b = Σ c / Σ E α`, then `ψ(c_h) = log b + E log α_h`, each the best given the other.
    """
    tiny = float(jnp.finfo(mean.dtype).tiny)

    def turn(_: Array | int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rate = jnp.sum(state[0]) / jnp.maximum(jnp.sum(mean), tiny)
        return inverse_digamma(jnp.log(rate) + log_mean), rate

    shapes, _ = lax.fori_loop(0, 5, turn, (shapes, jnp.ones((), mean.dtype)))
    return shapes, jnp.sum(shapes) / jnp.maximum(jnp.sum(mean), tiny)


def update_topics(
    topics: Float[Array, "d k"], explained: Float[Array, "d k"], exposure: Float[Array, "d k"] | None
) -> Float[Array, "d k"]:
    """Return columns on the simplex that maximize `Σ_d N_dh log A_dh − M_dh A_dh`.

    `N` are the counts that a topic explains, `M` its intensity summed over the rows that observe the dimension; without
    holes `M` is one number a column and `A ∝ N`. Otherwise `A_dh = N_dh / (M_dh + λ_h)`, where `λ_h` makes the column
    sum to one: Newton's method on a convex, decreasing function, from the left of its root, which it cannot pass. The
    unknown is the distance of `λ_h` from the nearest pole, `−min_d M_dh`, so that nothing cancels.
    """
    total = jnp.sum(explained, axis=0)
    used = (total > 0)[None, :]
    if exposure is None:
        return jnp.where(used, explained / jnp.where(used, total[None, :], 1), topics)
    # In units of the column's total, so that nothing leaves the floating range; what is next to nothing there is
    # nothing.
    scale = jnp.where(used, total[None, :], 1)
    n = explained / scale
    present = n > float(jnp.finfo(n.dtype).tiny) ** 0.75
    low = jnp.min(jnp.where(present, exposure, jnp.inf), axis=0)[None, :]
    gap = jnp.where(present, (exposure - low) / scale, 1)

    def shares_at(distance: Array) -> Array:
        return jnp.where(present, n / (gap + distance[None, :]), 0)

    def newton(_: Array | int, distance: Array) -> Array:
        value = shares_at(distance)
        slope = jnp.sum(jnp.where(present, value / (gap + distance[None, :]), 0), axis=0)
        return distance + (jnp.sum(value, axis=0) - 1) / jnp.where(slope > 0, slope, 1)

    # No single share exceeds one at the root: the root is to the right of where the first of them is one.
    start = jnp.where(used[0], jnp.max(jnp.where(present, n - gap, 0), axis=0), 1)
    updated = shares_at(lax.fori_loop(0, 60, newton, start))
    return jnp.where(used, updated / jnp.where(used, jnp.sum(updated, axis=0)[None, :], 1), topics)
