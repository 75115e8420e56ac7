"""Matching the columns of an estimate to those of a reference, and errors that ignore their order."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from latensor.base import check_axes, check_option, matmul, positive_or_one, small_jit, smallest_normal

# In Procrustes matching, a singular value of this fraction of the median has half of the full weight. The paper has
# zero here; then a direction of pure noise counts like any other, and a few matchings in a thousand fail that the angle
# gets right. Where damping gives no permutation, the paper's rule is tried.
_DAMPING = 0.1


class Matching(NamedTuple):
    """An order of columns: `estimate[:, permutation]` lines up with the reference if `is_permutation`."""

    permutation: Int[Array, " k"]
    is_permutation: Bool[Array, ""]


def _unit_columns(matrix: Float[Array, "d k"]) -> Float[Array, "d k"]:
    # Divided by the largest entry first: squares of very long or short columns leave the floating-point range.
    matrix = matrix / positive_or_one(jnp.max(jnp.abs(matrix), axis=0))[None, :]
    return matrix / positive_or_one(jnp.linalg.norm(matrix, axis=0))[None, :]


def _check_shapes(reference: Array, estimate: Array) -> tuple[Array, Array]:
    reference, estimate = check_axes("reference", reference, "d k"), check_axes("estimate", estimate, "d k")
    if reference.shape != estimate.shape:
        raise ValueError(f"estimate: expected the shape of reference, {reference.shape}; got {estimate.shape}")
    return reference, estimate


def _angles(reference: Float[Array, "d k"], estimate: Float[Array, "d k"]) -> Float[Array, "k k"]:
    """Return the angle of each reference column (rows) with each column of the estimate.

    `2 atan2(|u − v|, |u + v|)`: exact for small angles, where `arccos` of the cosine loses half of the digits.
    """
    u, v = _unit_columns(reference)[:, :, None], _unit_columns(estimate)[:, None, :]
    return 2 * jnp.arctan2(jnp.linalg.norm(u - v, axis=0), jnp.linalg.norm(u + v, axis=0))


def _assign(cost: Float[Array, "k k"]) -> Int[Array, " k"]:
    """Return, for each row, its column in the cheapest assignment."""
    # A NaN cost would keep the algorithm's loop from ending.
    finite = jnp.isfinite(cost)
    largest = jnp.max(jnp.where(finite, jnp.abs(cost), 0))
    rows, columns = optax.assignment.hungarian_algorithm(jnp.where(finite, cost, 2 * largest + 1))
    return jnp.zeros(cost.shape[0], jnp.int32).at[rows].set(columns.astype(jnp.int32))


def _is_permutation(order: Int[Array, " k"]) -> Bool[Array, ""]:
    return jnp.all(jnp.sort(order) == jnp.arange(order.shape[0]))


# The paper's Theorem 1, that a permutation by its rule is the best one, does not hold as printed: of valid permutations
# in our random searches (k = 4, noisy), one in six to eight was not. "assignment" is the best one by definition.
def _procrustes(reference: Float[Array, "d k"], estimate: Float[Array, "d k"]) -> Int[Array, " k"]:
    """Return the largest entry in each row of the orthogonal factor, damped if that gives a permutation."""
    overlap = matmul(_unit_columns(reference).T, _unit_columns(estimate))
    left, values, right = jnp.linalg.svd(jnp.where(jnp.isfinite(overlap), overlap, 0))
    weights = values / (values + _DAMPING * jnp.median(values) + smallest_normal(values.dtype))
    damped, plain = (
        jnp.argmax(matmul(left * scale[None, :], right), axis=1).astype(jnp.int32)
        for scale in (weights, jnp.ones_like(values))
    )
    return jnp.where(_is_permutation(damped), damped, plain)


@small_jit(static_argnames="method")
def match_columns(
    reference: Float[Array, "d k"],
    estimate: Float[Array, "d k"],
    method: Literal["procrustes", "angle", "assignment"] = "assignment",
) -> Matching:
    """Find the order of the columns of `estimate` that lines them up with those of `reference`.

    Columns are compared by direction; their length does not matter, their sign does.

    Args:
      reference: `(d, k)`, columns in the desired order.
      estimate: `(d, k)`, the same columns, perturbed, in any order.
      method: `"angle"` matches each reference column to the estimate at the smallest angle, independently, so two may
        claim the same one. `"procrustes"` takes the largest entry in each row of the orthogonal factor `UVᵀ` of
        `referenceᵀ estimate = UΣVᵀ`, which makes the columns compete; directions with small singular values, whose
        sign noise can flip, count less. `"assignment"` minimizes the sum of the angles over all permutations; the
        result is always a permutation.

    Returns:
      `Matching(permutation, is_permutation)`.

    """
    reference, estimate = _check_shapes(reference, estimate)
    check_option("method", method, ("procrustes", "angle", "assignment"))
    if method == "assignment":
        permutation = _assign(_angles(reference, estimate))
    elif method == "angle":
        permutation = jnp.argmin(_angles(reference, estimate), axis=1).astype(jnp.int32)
    else:
        permutation = _procrustes(reference, estimate)
    finite = jnp.all(jnp.isfinite(reference)) & jnp.all(jnp.isfinite(estimate))
    return Matching(permutation, finite & _is_permutation(permutation))


@small_jit
def column_angles(reference: Float[Array, "d k"], estimate: Float[Array, "d k"]) -> Float[Array, " k"]:
    """Return the angle, in radians, of each reference column with its partner in the best assignment of columns.

    The assignment minimizes the sum of the angles. Lengths do not matter, signs do.
    """
    reference, estimate = _check_shapes(reference, estimate)
    angles = _angles(reference, estimate)
    return jnp.take_along_axis(angles, _assign(angles)[:, None], axis=1)[:, 0]


@small_jit
def matched_rmse(reference: Float[Array, "d k"], estimate: Float[Array, "d k"]) -> Float[Array, ""]:
    """Return the root mean squared error over all entries, after the assignment of columns that minimizes it."""
    reference, estimate = _check_shapes(reference, estimate)
    # In units of the largest entry, since squares of large numbers leave the floating range.
    unit = positive_or_one(jnp.maximum(jnp.max(jnp.abs(reference)), jnp.max(jnp.abs(estimate))))
    squares = jnp.mean(((reference / unit)[:, :, None] - (estimate / unit)[:, None, :]) ** 2, axis=0)
    return unit * jnp.sqrt(jnp.mean(jnp.take_along_axis(squares, _assign(squares)[:, None], axis=1)))
