"""Moments of views that are groups of observed variables: the indicators of all their values, one after the other.

A group of variables that is independent of two others given a hidden variable is one view of it. More variables tell
its states better apart: the leaves of all neighbours of a node, not of one of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import divide, matmul, small_jit
from latensor.moments import sum_over_rows

Columns = tuple[Int[Array, " g1"], Int[Array, " g2"], Int[Array, " g3"]]
"""The columns of three groups of variables; −1 is padding."""


class GroupMoments(NamedTuple):
    """First, second and third moments of three groups of variables; of many, with a leading axis."""

    first: tuple[Float[Array, "*t d1"], Float[Array, "*t d2"], Float[Array, "*t d3"]]
    second: tuple[Float[Array, "*t d1 d2"], Float[Array, "*t d1 d3"], Float[Array, "*t d2 d3"]]
    third: Float[Array, "*t d1 d2 d3"]


class PairMoments(NamedTuple):
    """Moments of a variable and of a group that is independent of it given a hidden variable; many of them."""

    first: Float[Array, "*pairs d"]
    """Of the group."""
    second: Float[Array, "*pairs size d"]


def take(codes: Int[Array, "n p"], columns: Int[Array, " g"]) -> Int[Array, "n g"]:
    """Return some columns of codes; −1 where a value is missing or the column is padding."""
    return jnp.where(columns[None, :] >= 0, codes[:, jnp.maximum(columns, 0)], -1)


def indicators(codes: Int[Array, "n g"], size: int, dtype: jnp.dtype) -> Float[Array, "n d"]:
    """Return the indicators of the values of a group, `size` for each variable; all zero where one is missing."""
    values = codes[:, :, None] == jnp.arange(size, dtype=codes.dtype)[None, None, :]
    return values.reshape(codes.shape[0], -1).astype(dtype)


def spread(rates: Float[Array, "..."], size: int) -> Float[Array, "..."]:
    """Return rates of variables as those of their values: every axis is repeated `size` times."""
    for axis in range(rates.ndim):
        rates = jnp.repeat(rates, size, axis=axis)
    return rates


def _triple_sums(weights: Array, one: Array, two: Array, three: Array) -> GroupMoments:
    """Return weighted sums over rows of the views and of their products."""
    weighted = weights[:, None] * one
    both = (weighted[:, :, None] * two[:, None, :]).reshape(one.shape[0], -1)
    third = matmul(both.T, three).reshape(one.shape[1], two.shape[1], three.shape[1])
    return GroupMoments(
        (jnp.sum(weighted, axis=0), matmul(weights, two), matmul(weights, three)),
        (matmul(weighted.T, two), matmul(weighted.T, three), matmul((weights[:, None] * two).T, three)),
        third,
    )


def _pair_sums(weights: Array, variable: Array, reference: Array) -> PairMoments:
    weighted = weights[:, None] * reference
    return PairMoments(jnp.sum(weighted, axis=0), matmul(variable.T, weighted))


def _averages(
    sums: Callable[..., Any],
    codes: Int[Array, "n p"],
    weights: Float[Array, " n"],
    groups: tuple[Int[Array, " _"], ...],
    size: int,
    complete: bool,
    floats_per_row: int,
) -> Any:
    """Return weighted sums of the indicators of groups, each entry divided by how often it is observed."""

    def block(codes: Array, weights: Array) -> tuple[Any, Any]:
        parts = [take(codes, group) for group in groups]
        values = sums(weights, *(indicators(part, size, weights.dtype) for part in parts))
        return values, None if complete else sums(weights, *((part >= 0).astype(weights.dtype) for part in parts))

    total, seen = sum_over_rows(block, codes, weights, floats_per_row=floats_per_row)
    return total if seen is None else jax.tree.map(lambda part, rate: divide(part, spread(rate, size)), total, seen)


@small_jit(static_argnames=("size", "complete"))
def moments_of_groups(
    codes: Int[Array, "n p"],
    weights: Float[Array, " n"],
    columns: tuple[Int[Array, "t g1"], Int[Array, "t g2"], Int[Array, "t g3"]],
    size: int,
    complete: bool,
) -> GroupMoments:
    """Return the moments of many triples of groups, each entry an average over the rows that have it.

    Args:
      codes: one row per sample, −1 where a value is missing.
      weights: of the rows; they sum to one.
      columns: the groups, with a leading axis of triples.
      size: number of values that every variable is given room for.
      complete: whether no value is missing.

    """

    def one(columns: Columns) -> GroupMoments:
        width = [size * part.shape[0] for part in columns]
        per_row = width[0] * width[1] + sum(width)
        return _averages(_triple_sums, codes, weights, columns, size, complete, per_row)

    return lax.map(one, columns)


@small_jit(static_argnames=("size", "complete"))
def moments_of_pairs(
    codes: Int[Array, "n p"],
    weights: Float[Array, " n"],
    variables: Int[Array, " pairs"],
    references: Int[Array, "pairs g"],
    size: int,
    complete: bool,
) -> PairMoments:
    """Return the moments of variables and of groups beside them, in the way of `moments_of_groups`."""

    def one(columns: tuple[Array, Array]) -> PairMoments:
        groups = (columns[0][None], columns[1])
        return _averages(_pair_sums, codes, weights, groups, size, complete, 2 * size * (1 + references.shape[1]))

    return lax.map(one, (variables, references))


def value_frequencies(codes: Int[Array, "n p"], weights: Float[Array, " n"], size: int) -> Float[Array, "p size"]:
    """Return how often each value of each variable occurs, among the rows that have it; zero where there is none."""
    everything = jnp.arange(codes.shape[1])

    def sums(codes: Array, weights: Array) -> tuple[Array, Array]:
        seen = (codes >= 0).astype(weights.dtype)
        return matmul(weights, indicators(take(codes, everything), size, weights.dtype)), matmul(weights, seen)

    counts, rates = sum_over_rows(sums, codes, weights, floats_per_row=2 * size * codes.shape[1])
    return divide(counts, spread(rates, size)).reshape(-1, size)
