"""Derivatives of CP factors: of a stationary point of `½|M − Σ_h a_h⊗b_h⊗c_h|²`, nonnegative or not.

Entries above zero are free, and the derivative of the objective by them vanishes; the others stay zero. The system is
singular, since the lengths of a component's columns can be exchanged: conjugate gradients leave such changes out, and
columns of fixed length do not know of them.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float

from latensor.base import attach_tangent, einsum, machine_epsilon, positive_or_one

Factors = tuple[Array, Array, Array]
_MAX_ITERS = 500


def _objective(factors: Factors, tensor: Array, seen: Array | None) -> Array:
    missed = tensor - einsum("ih,jh,lh->ijl", *factors)
    return jnp.sum((missed if seen is None else seen * missed) ** 2) / 2


def _scaled(order: int, factors: Factors) -> tuple[Array, Factors]:
    """Return weights, and columns that sum to one or have length one."""
    sums = [jnp.sum(jnp.abs(factor) ** order, axis=0) for factor in factors]
    one, two, three = (positive_or_one(total) if order == 1 else jnp.sqrt(positive_or_one(total)) for total in sums)
    a, b, c = factors
    return one * two * three, (a / one[None, :], b / two[None, :], c / three[None, :])


def _tangent(order: int, solution: tuple[Array, Factors], inputs: Any, changes: Any) -> tuple[Array, Factors]:
    (weights, columns), (tensor, seen) = solution, inputs
    root = jnp.cbrt(weights)[None, :]
    factors: Any = jax.tree.map(lambda column: column * root, columns)
    free: Any = jax.tree.map(lambda factor: (factor > 0) | (order == 2), factors)

    def kept(tree: Any) -> Any:
        return jax.tree.map(lambda part, is_free: jnp.where(is_free, part, 0), tree, free)

    def slope(factors: Factors, tensor: Array) -> Factors:
        return jax.grad(_objective)(factors, tensor, seen)

    def matvec(move: Any) -> Any:
        return kept(jax.jvp(lambda factors: slope(factors, tensor), (factors,), (kept(move),))[1])

    def solve(matvec: Any, right: Any) -> Any:
        return cg(matvec, right, tol=100 * machine_epsilon(weights.dtype), maxiter=_MAX_ITERS)[0]

    _, right = jax.jvp(lambda tensor: slope(factors, tensor), (tensor,), (changes[0],))
    move = lax.custom_linear_solve(matvec, kept(jax.tree.map(jnp.negative, right)), solve, symmetric=True)
    return jax.jvp(partial(_scaled, order), (factors,), (kept(move),))[1]


def attach_factors(
    tensor: Float[Array, "d1 d2 d3"], seen: Array | None, weights: Float[Array, " k"], columns: Factors, order: int
) -> tuple[Array, Factors]:
    """Return the weights and factors of a tensor, of which some entries are `seen`, with their derivatives.

    Columns sum to one and are nonnegative for `order` 1, or have length one for `order` 2.
    """
    return attach_tangent(partial(_tangent, order), (weights, columns), (tensor, seen))
