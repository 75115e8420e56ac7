"""Asymptotic variances of the two estimators of hidden marginals, and the efficiency of the pseudoinverse.

With `m` modes flattened into one, `μ = O z`, `O (d, k)`. The last entries of `μ` and `z` follow from the others: `μ̃ =
Õ z̃ + O_{¬d,k}`, `Õ = O_{¬d,¬k} − O_{¬d,k} 1ᵀ`. From n independent draws of `μ`, `√n (ẑ̃ − z̃)` is asymptotically
normal with covariance

    Σ^pi = Õ⁺ (D̃ − μ̃μ̃ᵀ) Õ⁺ᵀ                     for ẑ̃ = Õ⁺(μ̂̃ − O_{¬d,k}),
    Σ^cl = (Õᵀ (D̃⁻¹ + d̃⁻¹ 11ᵀ) Õ)⁻¹              for the maximum of the likelihood,

`D̃ = diag(μ̃)`, `d̃ = 1 − Σ μ̃`. The efficiency of the pseudoinverse is `tr(Σ^cl (Σ^pi)⁻¹)/(k − 1)`, at most one.

All of this is about the pseudoinverse of the *reduced* problem (`reduced_pseudoinverse`), which leaves one observed
value out. `pseudoinverse_marginals` uses all of them and is more accurate: with uniform observed marginals its
asymptotic efficiency is 1.000 where the other's is 0.51 (k = 2, d = 40) or 0.96 (k = 4, d = 20).

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods, Lemmas 3–5.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import check_axes, machine_epsilon, matmul, small_jit
from latensor.decompose._singular import pseudoinverse


class MarginalVariances(NamedTuple):
    """Asymptotic covariances of `√n` times the error in the first `k − 1` hidden marginals (Lemma 3)."""

    pseudoinverse: Float[Array, "k1 k1"]
    composite_likelihood: Float[Array, "k1 k1"]


def _check(conditionals: Any) -> Array:
    array = check_axes("conditionals", conditionals, "d k")
    d, k = array.shape
    if not 2 <= k <= d:
        raise ValueError(f"conditionals: expected (d, k) with 2 ≤ k ≤ d; got shape {array.shape}")
    return array


@small_jit
def reduced_conditionals(conditionals: Float[Array, "d k"]) -> Float[Array, "d1 k1"]:
    """Return `Õ (d − 1, k − 1)`, which maps the free hidden marginals to the free observed ones."""
    conditionals = _check(conditionals)
    return conditionals[:-1, :-1] - conditionals[:-1, -1:]


@small_jit
def reduced_pseudoinverse(frequencies: Float[Array, " d"], conditionals: Float[Array, "d k"]) -> Float[Array, " k"]:
    """Return the estimator of Lemma 3: `z̃ = Õ⁺(μ̃ − O_{¬d,k})`, and the last entry such that all sum to one."""
    free = matmul(pseudoinverse(reduced_conditionals(conditionals)), frequencies[:-1] - conditionals[:-1, -1])
    return jnp.append(free, 1 - jnp.sum(free))


@small_jit
def marginal_variances(conditionals: Float[Array, "d k"], marginals: Float[Array, " k"]) -> MarginalVariances:
    """Return the asymptotic covariances of both estimators (Lemma 3). All observed marginals must be positive."""
    reduced = reduced_conditionals(conditionals)
    observed = matmul(conditionals, marginals)
    free, last = observed[:-1], observed[-1]
    inverse = pseudoinverse(reduced)
    covariance = jnp.diag(free) - free[:, None] * free[None, :]
    totals = jnp.sum(reduced, axis=0)
    information = matmul(reduced.T / free[None, :], reduced) + totals[:, None] * totals[None, :] / last
    return MarginalVariances(matmul(inverse, covariance, inverse.T), jnp.linalg.inv(information))


@small_jit
def relative_efficiency(conditionals: Float[Array, "d k"], marginals: Float[Array, " k"]) -> Float[Array, ""]:
    """Return the efficiency of the reduced pseudoinverse relative to maximum likelihood, from 0 to 1.

    One means that the pseudoinverse of the reduced problem, `Õ⁺(μ̃ − O_{¬d,k})`, is as accurate as
    `composite_likelihood_em` on large samples; 0.1 that it needs ten times as many. It is one if `Õ` is invertible
    (Lemma 4). It is not about `pseudoinverse_marginals`, which uses all observed values and is more accurate. There is
    no such number, and the result is NaN, where columns of `O` are linearly dependent or entries of `O z` are not
    positive.

    Args:
      conditionals: `O (d, k)`, columns sum to one, `2 ≤ k ≤ d`.
      marginals: the hidden distribution `z (k,)`; all entries of `O z` must be positive.

    """
    conditionals, marginals = _check(conditionals), check_axes("marginals", marginals, "k")
    if marginals.shape != conditionals.shape[1:]:
        raise ValueError(f"marginals: expected {conditionals.shape[1]}, one per column; got shape {marginals.shape}")
    reduced = reduced_conditionals(conditionals)
    values = jnp.linalg.svd(reduced, compute_uv=False)
    defined = jnp.all(matmul(conditionals, marginals) > 0) & (
        values[-1] > max(reduced.shape) * machine_epsilon(values.dtype) * values[0]
    )
    variances = marginal_variances(conditionals, marginals)
    ratio = jnp.linalg.solve(variances.pseudoinverse, variances.composite_likelihood)
    # At most one in theory; rounding may say otherwise.
    return jnp.where(defined, jnp.clip(jnp.trace(ratio) / ratio.shape[0], 0, 1), jnp.nan)


@small_jit
def uniform_efficiency(conditionals: Float[Array, "d k"]) -> Float[Array, ""]:
    """Return the efficiency of the reduced pseudoinverse if the observed marginals are uniform (Lemma 5).

    `1 − 1/(k−1) · u/(1+u) · (1 − 1/(d−u))`, `u = |Õ Õ⁺ 1|²`. The paper bounds `u` by `k − 1`, which does not hold: it
    reaches `d − 1`. So 0.51 at `k = 2`, `d = 40`, `u = k − 1` is not the worst case; at `u = 19` it is 0.095. See
    `relative_efficiency`.
    """
    conditionals = _check(conditionals)
    reduced = reduced_conditionals(conditionals)
    d, k = conditionals.shape
    ones = jnp.ones(d - 1, reduced.dtype)
    share = jnp.sum(matmul(reduced, matmul(pseudoinverse(reduced), ones)) ** 2)
    return 1 - share / (1 + share) * (1 - 1 / (d - share)) / (k - 1)
