"""Multiplicative updates for nonnegative quadratic programs: parallel quadratic programming (PQP).

    minimize F(x) = ½ xᵀQx + zᵀx   subject to x ≥ 0,   Q positive definite, entries of Q and z of either sign

Split `Q = Q⁺ − Q⁻` and `z = z⁺ − z⁻` into nonnegative parts, with a constant added to both: `Q^± = (±Q)₊ + diag γ` and
`z^± = (±z)₊ + φ`. The update is `x ← x ∘ (Q⁻x + z⁻) / (Q⁺x + z⁺)`: each coordinate separately, no step size, never
negative. It minimizes a separable quadratic that lies above `F` and touches it at `x`, for `γ ≥ (−Q)₊1` and any
`φ ≥ 0`, so `F` never rises. Large `γ` and `φ` make the steps short; Theorem 6 gives the `φ` for which convergence is
linear from everywhere. Lee and Seung's updates and weighted NMF are this with `γ = φ = 0` and particular `Q` and `z`.

Source: Brand, Chen (2011), Parallel quadratic programming for image processing; Tan, Mukherjee (2017), Partitioned
tensor factorizations for learning mixed membership models, eq. (16)–(19).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import divide, machine_epsilon, matmul, smallest_normal


def pqp_update(
    x: Float[Array, " n"],
    quadratic: Float[Array, "n n"],
    linear: Float[Array, " n"],
    gamma: Float[Array, " n"],
    phi: Float[Array, " n"],
) -> Float[Array, " n"]:
    """Return one multiplicative update (17) of `x`. Coordinates with a zero denominator stay unchanged."""
    shift = gamma * x + phi
    above = matmul(jnp.maximum(quadratic, 0), x) + jnp.maximum(linear, 0) + shift
    below = matmul(jnp.maximum(-quadratic, 0), x) + jnp.maximum(-linear, 0) + shift
    return x * divide(below, above, 1)


def smallest_gamma(quadratic: Float[Array, "n n"]) -> Float[Array, " n"]:
    """Return `(−Q)₊1`, the smallest `γ` for which the updates are known to be monotone."""
    return jnp.sum(jnp.maximum(-quadratic, 0), axis=1)


def smallest_phi(linear: Float[Array, "*rows n"]) -> Float[Array, "*rows 1"]:
    """Return a `φ` at rounding level, which keeps coordinates from becoming zero and then staying zero."""
    eps = machine_epsilon(linear.dtype)
    return eps * jnp.max(jnp.abs(linear), axis=-1, keepdims=True) + smallest_normal(linear.dtype)


def linear_rate_phi(quadratic: Float[Array, "n n"], linear: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """Return the `φ` of Theorem 6, `½(√(zᵀQ⁻¹z / λ_min) diag Q − |z|)₊` plus `smallest_phi`, for one `z` or many.

    The smallest eigenvalue is floored at rounding level: a singular `Q` has no such `φ`.
    """
    values, vectors = jnp.linalg.eigh(quadratic)
    values = jnp.maximum(values, machine_epsilon(values.dtype) * values[-1])
    energy = jnp.sum(matmul(linear, vectors) ** 2 / jnp.broadcast_to(values, linear.shape), axis=-1, keepdims=True)
    size = jnp.sqrt(energy / values[0])
    phi = jnp.maximum(size * jnp.broadcast_to(jnp.diagonal(quadratic), linear.shape) - jnp.abs(linear), 0) / 2
    return phi + smallest_phi(linear)


class _Momentum(NamedTuple):
    x: Float[Array, " n"]
    product: Float[Array, " n"]
    """`Qx`."""
    before: Float[Array, " n"]
    objective: Float[Array, ""]
    speed: Float[Array, ""]


def accelerated_updates(
    x: Float[Array, " n"],
    quadratic: Float[Array, "n n"],
    linear: Float[Array, " n"],
    gamma: Float[Array, " n"],
    phi: Float[Array, " n"],
    num_updates: int | Int[Array, ""],
    nonnegative: bool = False,
) -> Float[Array, " n"]:
    """Return `x` after multiplicative updates with Nesterov's momentum, under which the objective never rises.

    Every update starts from `x` extrapolated in its last direction; if the objective there is higher than at `x`, it
    starts from `x` itself and the momentum is reset. `nonnegative` says that `Q ≥ 0`: then `Q⁻ = 0` needs no product.
    """
    above, below = jnp.maximum(linear, 0), jnp.maximum(-linear, 0)
    negative = jnp.maximum(-quadratic, 0)

    def value(x: Array, product: Array) -> Array:
        return jnp.sum(x * (product / 2 + linear))

    def update(_: Array | int, state: _Momentum) -> _Momentum:
        faster = (1 + jnp.sqrt(1 + 4 * state.speed**2)) / 2
        ahead = jnp.maximum(state.x + (state.speed - 1) / faster * (state.x - state.before), 0)
        product = matmul(quadratic, ahead)
        good = value(ahead, product) <= state.objective
        start, product = jnp.where(good, ahead, state.x), jnp.where(good, product, state.product)
        # The update (17), with `Q⁺x = Qx + Q⁻x`.
        shift = gamma * start + phi if nonnegative else gamma * start + phi + matmul(negative, start)
        x = start * divide(below + shift, product + above + shift, 1)
        product = matmul(quadratic, x)
        objective = value(x, product)
        # Only rounding can make an update rise.
        fell = objective <= state.objective
        return _Momentum(
            jnp.where(fell, x, state.x),
            jnp.where(fell, product, state.product),
            state.x,
            jnp.where(fell, objective, state.objective),
            jnp.where(good & fell, faster, 1),
        )

    product = matmul(quadratic, x)
    first = _Momentum(x, product, x, value(x, product), jnp.ones((), x.dtype))
    return lax.fori_loop(0, num_updates, update, first).x
