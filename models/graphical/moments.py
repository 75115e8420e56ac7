"""Moments of views that are groups of observed variables: the indicators of all their values, one after the other.

A group of variables that is independent of two others given a hidden variable is one view of it. More variables tell
its states better apart: the leaves of all neighbours of a node, not of one of them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import divide, matmul
from latensor.moments import sum_over_rows

Columns = tuple[Int[Array, " g1"], Int[Array, " g2"], Int[Array, " g3"]]
"""The columns of three groups of variables; −1 is padding."""
ManyColumns = tuple[Int[Array, "t g1"], Int[Array, "t g2"], Int[Array, "t g3"]]
"""Those of many such triples."""


class GroupMoments(NamedTuple):
    """First, second and third moments of three groups of variables."""

    first: tuple[Float[Array, " d1"], Float[Array, " d2"], Float[Array, " d3"]]
    second: tuple[Float[Array, "d1 d2"], Float[Array, "d1 d3"], Float[Array, "d2 d3"]]
    third: Float[Array, "d1 d2 d3"]


def take(codes: Int[Array, "n p"], columns: Int[Array, " g"]) -> Int[Array, "n g"]:
    """Return some columns of codes; −1 where a value is missing or the column is padding."""
    return jnp.where(columns[None, :] >= 0, codes[:, jnp.maximum(columns, 0)], -1)


def indicators(codes: Int[Array, "n g"], size: int, dtype: jnp.dtype) -> Float[Array, "n d"]:
    """Return the indicators of the values of a group, `size` for each variable; all zero where one is missing."""
    values = codes[:, :, None] == jnp.arange(size, dtype=codes.dtype)[None, None, :]
    return values.reshape(codes.shape[0], -1).astype(dtype)


def _sums(weights: Array, one: Array, two: Array, three: Array) -> GroupMoments:
    """Return weighted sums over rows of the views and of their products."""
    weighted = weights[:, None] * one
    both = (weighted[:, :, None] * two[:, None, :]).reshape(one.shape[0], -1)
    third = matmul(both.T, three).reshape(one.shape[1], two.shape[1], three.shape[1])
    return GroupMoments(
        (jnp.sum(weighted, axis=0), matmul(weights, two), matmul(weights, three)),
        (matmul(weighted.T, two), matmul(weighted.T, three), matmul((weights[:, None] * two).T, three)),
        third,
    )


def group_moments(
    codes: Int[Array, "n p"], weights: Float[Array, " n"], columns: Columns, size: int, complete: bool
) -> GroupMoments:
    """Return the moments of three groups, each entry an average over the rows that have it.

    Args:
      codes: one row per sample, −1 where a value is missing.
      weights: of the rows; they sum to one.
      columns: the groups.
      size: number of values that every variable is given room for.
      complete: whether no value is missing.

    """

    def block(codes: Array, weights: Array) -> tuple[GroupMoments, GroupMoments | None]:
        groups = [take(codes, part) for part in columns]
        sums = _sums(weights, *(indicators(group, size, weights.dtype) for group in groups))
        if complete:
            return sums, None
        return sums, _sums(weights, *((group >= 0).astype(weights.dtype) for group in groups))

    width = [size * part.shape[0] for part in columns]
    sums, seen = sum_over_rows(block, codes, weights, floats_per_row=width[0] * width[1] + sum(width))
    if seen is None:
        return sums

    def spread(rates: Array) -> Array:
        for axis in range(rates.ndim):
            rates = jnp.repeat(rates, size, axis=axis)
        return rates

    return jax.tree.map(lambda part, rate: divide(part, spread(rate)), sums, seen)
