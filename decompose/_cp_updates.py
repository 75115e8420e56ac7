"""Updates of the factors of a CP decomposition, one mode at a time.

With two factors fixed, the best row `x` of the third minimizes `½ xᵀQx + zᵀx`, with `Q = (CᵀC)∘(BᵀB)` for all rows and
`z` a row of `Z = −M₍₁₎(C⊙B)`. The methods differ in how far and by which steps they solve this.

Source: Tan, Mukherjee (2017), Partitioned tensor factorizations for learning mixed membership models, Theorems 2 and 3;
HALS: Kim, He, Park (2014), Algorithms for nonnegative matrix and tensor factorizations.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import einsum, machine_epsilon, matmul, positive_or_one, smallest_normal
from latensor.decompose._pqp import accelerated_updates, linear_rate_phi, pqp_update

Factors = tuple[Array, Array, Array]
# Changes the rows of one factor, given the `Q` and `Z` of their quadratic programs.
ModeUpdate = Callable[[Array, Array, Array], Array]

_EXACT_PASSES = 2
_REGRESSION_PASSES = 20
# Regression leaves exact zeros, which multiplicative updates could not leave: each entry gets this share of the mean.
_REGRESSION_FLOOR = 1e-3


def _gram(factor: Array) -> Array:
    return matmul(factor.T, factor)


def sweep_modes(tensor: Float[Array, "d1 d2 d3"], factors: Factors, update: ModeUpdate) -> Factors:
    """Update all three factors in turn.

    The product of the tensor with `C` serves both `A` and `B`: two large products per sweep instead of three.
    """
    a, b, c = factors
    with_c = einsum("ijl,lh->ijh", tensor, c)
    gram_c = _gram(c)
    a = update(a, gram_c * _gram(b), -jnp.sum(with_c * b[None, :, :], axis=1))
    b = update(b, gram_c * _gram(a), -jnp.sum(with_c * a[:, None, :], axis=0))
    # Components first: the product comes in this order without a transposition.
    with_a = einsum("ijl,ih->hjl", tensor, a)
    return a, b, update(c, _gram(a) * _gram(b), -jnp.sum(with_a * b.T[:, :, None], axis=1).T)


def pqp_rows(accelerate: bool, num_updates: int | Int[Array, ""]) -> ModeUpdate:
    """Solve a PQP per row, with a common `Q`; `γ = 0` because `Q ≥ 0`."""

    def update(rows: Array, quadratic: Array, linear: Array) -> Array:
        gamma = jnp.zeros(rows.shape[1], rows.dtype)
        if accelerate:
            # No φ: long steps. Entries that these take to zero, the exact passes can bring back.
            run = jax.vmap(partial(accelerated_updates, nonnegative=True), in_axes=(0, None, 0, None, None, None))
            rows = run(rows, quadratic, linear, gamma, gamma, num_updates)
            return hals_rows(_EXACT_PASSES)(rows, quadratic, linear)
        phi = linear_rate_phi(quadratic, linear)
        step = jax.vmap(pqp_update, in_axes=(0, None, 0, None, 0))
        return lax.fori_loop(0, num_updates, lambda _, rows: step(rows, quadratic, linear, gamma, phi), rows)

    return update


def hals_rows(num_updates: int | Int[Array, ""]) -> ModeUpdate:
    """Minimize over one column after the other, exactly."""

    def update(rows: Array, quadratic: Array, linear: Array) -> Array:
        scale = positive_or_one(jnp.diagonal(quadratic))

        def column(h: Array, rows: Array) -> Array:
            gradient = matmul(rows, quadratic[:, h]) + linear[:, h]
            return rows.at[:, h].set(jnp.maximum(rows[:, h] - gradient / scale[h], 0))

        def once(_: Array, rows: Array) -> Array:
            return lax.fori_loop(0, rows.shape[1], column, rows)

        return lax.fori_loop(0, num_updates, once, rows)

    return update


def multiplicative_rows(num_updates: int | Int[Array, ""]) -> ModeUpdate:
    """Apply Lee and Seung's updates: PQP with `γ = φ = 0` on a tensor without negative entries."""

    def update(rows: Array, quadratic: Array, linear: Array) -> Array:
        zero = jnp.zeros(rows.shape[1], rows.dtype)
        step = jax.vmap(pqp_update, in_axes=(0, None, 0, None, None))
        return lax.fori_loop(0, num_updates, lambda _, rows: step(rows, quadratic, linear, zero, zero), rows)

    return update


def als_rows(rows: Array, quadratic: Array, linear: Array) -> Array:
    """Return the unconstrained minimum `X = −Z Q⁻¹`, with a ridge at rounding level for a singular `Q`."""
    k = rows.shape[1]
    ridge = 10 * k * machine_epsilon(rows.dtype) * jnp.trace(quadratic) / k + smallest_normal(rows.dtype)
    factor = jnp.linalg.cholesky(quadratic + ridge * jnp.eye(k, dtype=rows.dtype))
    return jax.scipy.linalg.cho_solve((factor, True), -linear.T).T


def wnmf_sweep(tensor: Float[Array, "d1 d2 d3"], factors: Factors, num_updates: int | Int[Array, ""]) -> Factors:
    """Take one sweep of weighted NMF, which ignores the negative entries: PQP with `γ = φ = 0` and one `Q` per row.

    Row `i` uses only its nonnegative entries `Ω_i`: `Q_i = H diag(Ω_i) Hᵀ`, `z_i = −H (Ω_i ∘ M_i)`, `H = (C⊙B)ᵀ`.
    """
    seen = (tensor >= 0).astype(tensor.dtype)
    zero = jnp.zeros(factors[0].shape[1], tensor.dtype)
    step = jax.vmap(pqp_update, in_axes=(0, 0, 0, None, None))
    updated = list(factors)
    for mode in range(3):
        first, second = (updated[other] for other in range(3) if other != mode)
        omega, values = jnp.moveaxis(seen, mode, 0), jnp.moveaxis(tensor, mode, 0)
        half = einsum("ijl,lhg->ijhg", omega, second[:, :, None] * second[:, None, :])
        quadratic = einsum("ijhg,jhg->ihg", half, first[:, :, None] * first[:, None, :])
        linear = -einsum("ijl,jh,lh->ih", omega * values, first, second)
        updated[mode] = lax.fori_loop(
            0, num_updates, lambda _, rows, q=quadratic, z=linear: step(rows, q, z, zero, zero), updated[mode]
        )
    return updated[0], updated[1], updated[2]


def regress_modes(tensor: Float[Array, "d1 d2 d3"], factors: Factors, known: tuple[Array, Array, Array]) -> Factors:
    """Return nonnegative factors whose `known` rows are given and whose other rows are regressed on them.

    Each other row of a mode is fitted to the part of the tensor that has known rows in both other modes.
    """
    trusted = [jnp.where(m[:, None], f, 0) for f, m in zip(factors, known, strict=True)]
    solve = hals_rows(_REGRESSION_PASSES)
    completed = []
    for mode, letters in enumerate(("jh,lh->ih", "ih,lh->jh", "ih,jh->lh")):
        first, second = (trusted[other] for other in range(3) if other != mode)
        linear = -einsum(f"ijl,{letters}", tensor, first, second)
        start = jnp.broadcast_to(jnp.mean(trusted[mode], axis=0, keepdims=True), trusted[mode].shape)
        rows = solve(start, _gram(first) * _gram(second), linear)
        rows = rows + _REGRESSION_FLOOR * jnp.mean(rows, axis=0, keepdims=True)
        completed.append(jnp.where(known[mode][:, None], trusted[mode], rows))
    return completed[0], completed[1], completed[2]
