"""The joint distributions of sets of hidden variables, from exclusive views of each of them.

All exclusive views are independent of each other given the set, so the likelihood of a sample is a product over the
variables of the set of `P(views | h)`, which is itself a product: Algorithm 2 with all views at once, where the paper
has one view for each variable.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import divide, machine_epsilon, small_jit
from latensor.decompose import (
    Marginals,
    Status,
    composite_likelihood_em,
    composite_likelihood_em_samples,
    pseudoinverse_marginals,
)
from latensor.decompose.internal import to_simplex
from latensor.models.graphical.groups import take
from latensor.moments import sum_over_rows

MARGINALS = ("likelihood", "pseudoinverse")
# Limit on the evaluations of the likelihood.
_EVALUATIONS = 200
# The gap at which the likelihood of a table counts as maximal: small, since Newton steps on a table cost nothing.
_TOLERANCE, _ROUNDING = 1e-14, 100
# Newton steps up to this number of joint states.
_NEWTON_UP_TO = 256


class Position(NamedTuple):
    """One place in sets of hidden variables of the same shape: the views of the variable there, in each of the sets."""

    columns: Int[Array, "sets v"]
    """Columns of the views; −1 is padding."""
    tables: Int[Array, "sets v"]
    """Numbers of their tables `P(x | h)`."""


def _view_likelihoods(codes: Int[Array, "n v"], tables: Float[Array, "v size k"]) -> Float[Array, "n k"]:
    """Return `Π_v P(x_v | h)`, over the views that are observed; the largest of a row is one."""
    product = jnp.ones((codes.shape[0], tables.shape[2]), tables.dtype)
    for view in range(tables.shape[0]):
        seen = codes[:, view] >= 0
        values = tables[view][jnp.maximum(codes[:, view], 0)]
        product = product * jnp.where(seen[:, None], values, 1)
        # Views that contradict each other: such a sample says nothing.
        product = divide(product, jnp.max(product, axis=1, keepdims=True), 1)
    return product


def joint_views(tables: Float[Array, "v size k"]) -> Float[Array, "cells k"]:
    """Return `P(views | h)` for all values of independent views, each of which has one more that stands for missing."""
    joint = jnp.ones((1, tables.shape[2]), tables.dtype)
    for table in tables:
        table = jnp.concatenate([table, jnp.ones((1, table.shape[1]), table.dtype)])
        joint = (joint[:, None, :] * table[None, :, :]).reshape(-1, table.shape[1])
    return joint


@small_jit(static_argnames=("kept", "method"))
def table_marginals(
    counts: Float[Array, "sets ..."],
    positions: tuple[Position, ...],
    tables: tuple[Float[Array, "_ size _"], ...],
    kept: tuple[int, ...],
    method: str,
) -> Marginals:
    """Return the joint distributions of sets of hidden variables from those of their views, `GraphMoments.sets`.

    `kept` is the number of views of each position; other arguments as for `sample_marginals`.
    """

    def one(given: tuple[Array, tuple[Position, ...]]) -> Marginals:
        counts, places = given
        parts = [
            jnp.where((place.columns >= 0)[:number, None, None], table[place.tables[:number]], 0)
            for place, table, number in zip(places, tables, kept, strict=True)
        ]
        conditionals = [joint_views(part) for part in parts]
        if method == "likelihood":
            tol = max(_TOLERANCE, _ROUNDING * machine_epsilon(counts.dtype))
            return composite_likelihood_em(counts, tuple(conditionals), tol=tol, max_iters=_EVALUATIONS)
        # Only rows without missing values. Views that are padding are missing everywhere.
        for axis, (place, number) in enumerate(zip(places, kept, strict=True)):
            full = jnp.ones(1, bool)
            for view in range(number):
                seen = jnp.arange(tables[axis].shape[1] + 1) < tables[axis].shape[1]
                full = (full[:, None] & (seen == (place.columns[view] >= 0))[None, :]).reshape(-1)
            conditionals[axis] = jnp.where(full[:, None], conditionals[axis], 0)
            counts = jnp.where(full.reshape([-1 if other == axis else 1 for other in range(counts.ndim)]), counts, 0)
        return _as_marginals(pseudoinverse_marginals(counts, tuple(conditionals)), jnp.sum(counts))

    return lax.map(one, (counts, positions))


def _as_marginals(sums: Float[Array, "..."], total: Float[Array, ""]) -> Marginals:
    """Return what inversion gives of sums over rows whose weights have a total."""
    zero = jnp.zeros((), sums.dtype)
    status = jnp.where(total > 0, Status.CONVERGED, Status.UNOBSERVED)
    return Marginals(to_simplex(divide(sums, total)), zero, zero, jnp.int32(0), status.astype(jnp.int32))


@partial(jax.jit, static_argnames="method")
def sample_marginals(
    codes: Int[Array, "n p"],
    weights: Float[Array, " n"],
    positions: tuple[Position, ...],
    tables: tuple[Float[Array, "_ size _"], ...],
    method: str,
) -> Marginals:
    """Return the joint distributions of sets of hidden variables that have the same shape, from single samples.

    Args:
      codes: the data, −1 where a value is missing.
      weights: of the rows.
      positions: the views of each variable of the sets.
      tables: for each position, the tables of its number of states.
      method: `"likelihood"` or `"pseudoinverse"`.

    """

    def one(places: tuple[Position, ...]) -> Marginals:
        views = [take(codes, place.columns) for place in places]
        parts = [
            jnp.where((place.columns >= 0)[:, None, None], table[place.tables], 1)
            for place, table in zip(places, tables, strict=True)
        ]
        if method == "likelihood":
            rows = tuple(_view_likelihoods(view, part) for view, part in zip(views, parts, strict=True))
            newton = math.prod(part.shape[2] for part in parts) <= _NEWTON_UP_TO
            return composite_likelihood_em_samples(rows, weights, max_iters=_EVALUATIONS, newton=newton)
        return _invert(views, parts, [place.columns for place in places], weights)

    return lax.map(one, positions)


def _invert(
    views: list[Int[Array, "n v"]], tables: list[Float[Array, "v size k"]], columns: list[Array], weights: Array
) -> Marginals:
    """Return `E[⊗ O_i⁺ x_i]` with `x_i` the indicators of all views of a variable, over the rows that have them all."""
    complete = jnp.ones(weights.shape, bool)
    for view, column in zip(views, columns, strict=True):
        complete = complete & jnp.all((view >= 0) | (column < 0)[None, :], axis=1)
    shares = jnp.where(complete, weights, 0)

    def inverse(table: Array, column: Array) -> Array:
        stacked = jnp.where((column >= 0)[:, None, None], table, 0).reshape(-1, table.shape[2])
        return jnp.linalg.pinv(stacked).T.reshape(table.shape)

    inverses = [inverse(table, column) for table, column in zip(tables, columns, strict=True)]

    def block(shares: Array, *views: Array) -> Array:
        total = shares[:, None]
        for view, part in zip(views, inverses, strict=True):
            features = jnp.zeros((view.shape[0], part.shape[2]), part.dtype)
            for v in range(part.shape[0]):
                features += jnp.where((view[:, v] >= 0)[:, None], part[v][jnp.maximum(view[:, v], 0)], 0)
            total = (total[:, :, None] * features[:, None, :]).reshape(total.shape[0], -1)
        return jnp.sum(total, axis=0)

    width = 1
    for table in tables:
        width *= table.shape[2]
    sums = sum_over_rows(block, shares, *views, floats_per_row=2 * width)
    shape = tuple(table.shape[2] for table in tables)
    return _as_marginals(sums.reshape(shape), jnp.sum(shares))
