"""Lining up the columns of an estimate with those of a reference, and errors that ignore their order."""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

# A singular value of this share of the median counts half in Procrustes matching. The paper has zero here; then a
# direction that is all noise counts like any other, and a few matchings in a thousand fail that the angle gets right.
# Where this gives no permutation, the paper's way may.
_DAMPING = 0.1


class Matching(NamedTuple):
    """`estimate[:, permutation]` lines up with the reference, if `is_permutation`."""

    permutation: Int[Array, " k"]
    is_permutation: Bool[Array, ""]


def _unit_columns(matrix: Float[Array, "d k"]) -> Float[Array, "d k"]:
    # By the largest entry first: squares of very long or short columns leave the floating range.
    largest = jnp.max(jnp.abs(matrix), axis=0)
    matrix = matrix / jnp.where(largest > 0, largest, 1)[None, :]
    norms = jnp.linalg.norm(matrix, axis=0)
    return matrix / jnp.where(norms > 0, norms, 1)[None, :]


def _check_shapes(reference: Array, estimate: Array) -> None:
    if reference.ndim != 2 or reference.shape != estimate.shape:
        raise ValueError(f"estimate: expected the shape of reference, {reference.shape}; got {estimate.shape}")


def _angles(reference: Float[Array, "d k"], estimate: Float[Array, "d k"]) -> Float[Array, "k k"]:
    """Return the angle of every reference column (rows) with every column of the estimate.

    `2 atan2(|u − v|, |u + v|)`: exact for small angles, where `arccos` of the cosine loses half of the digits.
    """
    u, v = _unit_columns(reference)[:, :, None], _unit_columns(estimate)[:, None, :]
    return 2 * jnp.arctan2(jnp.linalg.norm(u - v, axis=0), jnp.linalg.norm(u + v, axis=0))


def _assign(cost: Float[Array, "k k"]) -> Int[Array, " k"]:
    """Return, for every row, its column in the cheapest assignment."""
    # A NaN cost would keep the algorithm's loop from ending.
    finite = jnp.isfinite(cost)
    largest = jnp.max(jnp.where(finite, jnp.abs(cost), 0))
    rows, columns = optax.assignment.hungarian_algorithm(jnp.where(finite, cost, 2 * largest + 1))
    return jnp.zeros(cost.shape[0], jnp.int32).at[rows].set(columns.astype(jnp.int32))


def _is_permutation(order: Int[Array, " k"]) -> Bool[Array, ""]:
    return jnp.all(jnp.sort(order) == jnp.arange(order.shape[0]))


@partial(jax.jit, static_argnames="method")
def match_columns(
    reference: Float[Array, "d k"],
    estimate: Float[Array, "d k"],
    method: Literal["procrustes", "angle", "assignment"] = "assignment",
) -> Matching:
    """Find the order of the columns of `estimate` that lines them up with those of `reference`.

    Columns are compared by direction; their length does not matter, their sign does.

    Args:
      reference: columns in the order wanted.
      estimate: the same columns, perturbed, in any order.
      method: `"angle"` gives each reference column the estimate at the smallest angle, each for itself, so two may
        claim the same one. `"procrustes"` takes the largest entry in each row of the orthogonal factor `UVᵀ` of
        `referenceᵀ estimate = UΣVᵀ`, which makes the columns compete; directions with small singular values, whose
        sense noise can turn round, count less. `"assignment"` minimizes the sum of the angles over all permutations; it
        is always one.

    Returns:
      `Matching(permutation, is_permutation)`.

    """
    _check_shapes(reference, estimate)
    if method == "assignment":
        permutation = _assign(_angles(reference, estimate))
    elif method == "angle":
        permutation = jnp.argmin(_angles(reference, estimate), axis=1).astype(jnp.int32)
    elif method == "procrustes":
        overlap = jnp.matmul(_unit_columns(reference).T, _unit_columns(estimate), precision="highest")
        left, values, right = jnp.linalg.svd(jnp.where(jnp.isfinite(overlap), overlap, 0))
        damped = values / (values + _DAMPING * jnp.median(values) + float(jnp.finfo(values.dtype).tiny))
        permutation, plain = (
            jnp.argmax(jnp.matmul(left * scale[None, :], right, precision="highest"), axis=1).astype(jnp.int32)
            for scale in (damped, jnp.ones_like(values))
        )
        permutation = jnp.where(_is_permutation(permutation), permutation, plain)
    else:
        raise ValueError(f'method: expected "procrustes", "angle" or "assignment"; got {method!r}')
    finite = jnp.all(jnp.isfinite(reference)) & jnp.all(jnp.isfinite(estimate))
    return Matching(permutation, finite & _is_permutation(permutation))


@jax.jit
def column_angles(reference: Float[Array, "d k"], estimate: Float[Array, "d k"]) -> Float[Array, " k"]:
    """Return the angle, in radians, of each reference column with its partner in the best assignment of columns."""
    _check_shapes(reference, estimate)
    angles = _angles(reference, estimate)
    return jnp.take_along_axis(angles, _assign(angles)[:, None], axis=1)[:, 0]


@jax.jit
def matched_rmse(reference: Float[Array, "d k"], estimate: Float[Array, "d k"]) -> Float[Array, ""]:
    """Return the root mean squared error over all entries, after the assignment of columns that makes it smallest."""
    _check_shapes(reference, estimate)
    squares = jnp.mean((reference[:, :, None] - estimate[:, None, :]) ** 2, axis=0)
    return jnp.sqrt(jnp.mean(jnp.take_along_axis(squares, _assign(squares)[:, None], axis=1)))
