"""Pair and triple moments of three views of one hidden variable.

    M₁₂ = E[x₁⊗x₂],  M₁₃ = E[x₁⊗x₃],  M₂₃ = E[x₂⊗x₃],  M₁₂₃ = E[x₁⊗x₂⊗x₃]

A view is a vector of category codes `(n,)`, which stand for indicators `e_x`, or a table of real vectors `(n, d)`.
Where the views are independent given the hidden variable `h` and `O_v = E[x_v | h]`, these are `O₁ diag(π) O₂ᵀ` and so
on.

Dense tables are for small `d`. For large `d` every view is contracted with directions `(d, r)`, block by block: an
indicator times a matrix is a row of it, so that a view costs a gather and the triple moment `O(n r³)`. A code below
zero, or too large, is not an observation: its features are zero, and its row is left out of all averages (see
`present_rows`).

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods, §3.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Integer, Num

from latensor.base import as_int32, as_numbers, check_axes, check_integer, divide, float_type, is_concrete, matmul
from latensor.moments._data_type import check_row_weights
from latensor.moments._moments import check_directions
from latensor.moments._rows import sum_over_rows
from latensor.moments._values import finite_moments

# Entries of a larger table cannot be numbered by 32-bit integers.
_MAX_TABLE = 2**31 - 2


class CrossMoments(NamedTuple):
    """Moments of three modes; entries that no sample observes are zero."""

    first: tuple[Float[Array, " r1"], Float[Array, " r2"], Float[Array, " r3"]]
    second: tuple[Float[Array, "r1 r2"], Float[Array, "r1 r3"], Float[Array, "r2 r3"]]
    third: Float[Array, "r1 r2 r3"]
    num_unobserved: Int[Array, ""]
    """Entries of `third` that no sample fully observes, where data are missing; else zero."""


def cross_sums(weights: Array, first: Array, second: Array, third: Array) -> Any:
    """Return weighted sums over rows of one, two and three of the features `(n, r)`, as in `CrossMoments`."""
    weighted = weights[:, None] * first
    pair = (second[:, :, None] * third[:, None, :]).reshape(second.shape[0], -1)
    shape = (first.shape[1], second.shape[1], third.shape[1])

    def product(a: Array, b: Array) -> Array:
        return matmul(a.T, b)

    return (
        (jnp.sum(weighted, axis=0), product(second, weights[:, None])[:, 0], product(third, weights[:, None])[:, 0]),
        (product(weighted, second), product(weighted, third), product(weights[:, None] * second, third)),
        product(weighted, pair).reshape(shape),
    )


def feature_moments(
    features: Callable[..., Any], weights: Float[Array, " n"], *rows: Any, floats_per_row: int
) -> tuple[CrossMoments, Float[Array, "r1 r2 r3"] | None]:
    """Return the moments of three sets of features, each entry an average over the rows that observe all its parts.

    Args:
      features: maps blocks of rows to three pairs `(values (n, r), observed (n, r) or None)`. Values that are not
        observed are zero; all three are observed everywhere, or none is said to be. Where `s` values in a row are
        always observed together, such as the indicators of one column, `observed` may be `(n, r / s)`.
      weights: of the rows; they sum to one.
      *rows: what `features` is given blocks of.
      floats_per_row: see `sum_over_rows`.

    Returns:
      `CrossMoments`, without a count of what no row observes; and the weight of the rows behind each entry of the third
      moment, `None` where everything is observed.

    """

    def block(weights: Array, *rows: Any) -> Any:
        parts = features(*rows)
        values = cross_sums(weights, *(value for value, _ in parts))
        seen = [each.astype(weights.dtype) for _, each in parts if each is not None]
        return values, cross_sums(weights, *seen) if seen else None

    values, counts = sum_over_rows(block, weights, *rows, floats_per_row=floats_per_row)
    if counts is not None:
        counts = jax.tree.map(lambda part, count: _widen(count, part.shape), values, counts)
    first, second, third = values if counts is None else jax.tree.map(divide, values, counts)
    return CrossMoments(first, second, third, jnp.int32(0)), None if counts is None else counts[2]


def _widen(counts: Float[Array, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Repeat counts of what is observed together along every axis, up to a shape."""
    for axis, size in enumerate(shape):
        counts = jnp.repeat(counts, size // counts.shape[axis], axis=axis)
    return counts


def is_categorical(view: Num[Array, "n ..."]) -> bool:
    """Return whether a view holds category codes."""
    return view.ndim == 1


def _place(codes: Integer[Array, " n"], size: int) -> Int[Array, " n"]:
    """Return codes as indices: JAX counts negative ones from the end, but can fill or drop those beyond it."""
    codes = as_int32(codes)
    return jnp.where(codes < 0, size, codes)


def view_features(view: Num[Array, "n ..."], directions: Float[Array, "d r"]) -> Float[Array, "n r"]:
    """Return `Wᵀx` for every row: a gather for codes, a product for real vectors."""
    if is_categorical(view):
        return directions.at[_place(view, directions.shape[0])].get(mode="fill", fill_value=0)
    return matmul(view.astype(directions.dtype), directions)


def spread_view(view: Num[Array, "n ..."], values: Float[Array, "n r"], size: int) -> Float[Array, "d r"]:
    """Return `Σ_n x_n⊗values_n`: the adjoint of `view_features`."""
    if is_categorical(view):
        return jnp.zeros((size, values.shape[1]), values.dtype).at[_place(view, size)].add(values, mode="drop")
    return matmul(view.astype(values.dtype).T, values)


def _dtype(views: tuple[Array, ...], row_weights: Array | None) -> jnp.dtype:
    reals = [float_type(view.dtype) for view in views if not is_categorical(view)]
    if row_weights is not None:
        reals.append(row_weights.dtype)
    return jnp.result_type(*reals) if reals else jnp.result_type(float)


def present_rows(views: tuple[Array, ...], sizes: tuple[int, ...]) -> Bool[Array, " n"]:
    """Return the rows in which every categorical view has a code within its range."""
    present = jnp.ones(views[0].shape[0], bool)
    for view, size in zip(views, sizes, strict=True):
        if is_categorical(view):
            codes = as_int32(view)
            present = present & (codes >= 0) & (codes < size)
    return present


def _check_views(views: tuple[Any, Any, Any], num_categories: Any) -> tuple[tuple[Array, ...], tuple[int, ...]]:
    """Return the views as arrays, and the number of categories or dimensions of each."""
    meaning = "codes (n,) or real vectors (n, d)"
    arrays = tuple(as_numbers(f"x{place}", view, meaning) for place, view in enumerate(views, 1))
    named = num_categories if isinstance(num_categories, tuple | list) else (num_categories,) * 3
    if len(named) != 3:
        raise ValueError(f"num_categories: expected one number or three; got {num_categories!r}")
    sizes = []
    for place, (view, size) in enumerate(zip(arrays, named, strict=True), 1):
        if view.ndim not in (1, 2):
            raise ValueError(f"x{place}: expected {meaning}; got shape {view.shape}")
        if not is_categorical(view):
            sizes.append(view.shape[1])
            if view.size and is_concrete(view) and not np.all(np.isfinite(np.asarray(view))):
                raise ValueError(f"x{place}: expected finite numbers; got NaN or infinity")
        elif not jnp.issubdtype(view.dtype, jnp.integer):
            raise ValueError(f"x{place}: expected integer codes where there is one axis; got type {view.dtype}")
        elif size is None:
            raise ValueError(f"num_categories: expected the number of categories of x{place}; got None")
        else:
            sizes.append(check_integer("num_categories", size, 1))
    if len({view.shape[0] for view in arrays}) != 1:
        raise ValueError(f"x1, x2, x3: expected as many rows; got {', '.join(str(v.shape[0]) for v in arrays)}")
    if arrays[0].shape[0] == 0:
        raise ValueError("x1, x2, x3: expected at least one row; got none")
    return arrays, tuple(sizes)


def average_sums(sums: Any, total: Array) -> CrossMoments:
    """Return moments from sums over rows and the sum of the rows' weights; zeros, not NaN, where that is zero."""
    scale = divide(1, total, 1)
    first, second, third = jax.tree.map(lambda part: part * scale, sums)
    return CrossMoments(first, second, third, jnp.int32(0))


def count_table(
    codes: tuple[Integer[Array, " n"], ...], sizes: tuple[int, ...], weights: Float[Array, " n"]
) -> Float[Array, "..."]:
    """Return the sum of weights at each combination of codes, `(d₁, …, d_m)`, without rows that have one out of range.

    Weights of one add up without rounding to 2²⁴ in float32: divide afterwards, not before.
    """
    size = math.prod(sizes)
    if size > _MAX_TABLE:
        raise ValueError(f"num_categories: expected a table of at most {_MAX_TABLE} entries; got {sizes}")

    def block(codes: tuple[Array, ...], weights: Array) -> Array:
        place = jnp.zeros(weights.shape, jnp.int32)
        for code, number in zip(codes, sizes, strict=True):
            place = place * number + as_int32(code)
        place = jnp.where(present_rows(codes, sizes), place, size)
        return jnp.zeros(size, weights.dtype).at[place].add(weights, mode="drop")

    return sum_over_rows(block, codes, weights, floats_per_row=0).reshape(sizes)


def cross_moments(
    x1: ArrayLike,
    x2: ArrayLike,
    x3: ArrayLike,
    num_categories: int | tuple[int | None, ...] | None = None,
    row_weights: ArrayLike | None = None,
) -> CrossMoments:
    """Return the first, pair and triple moments of three views, dense.

    Args:
      x1: category codes `(n,)`, integers; or real vectors `(n, d)`.
      x2: the second view, likewise.
      x3: the third.
      num_categories: the number of categories of the categorical views, one for all or one per view (`None` for real
        vectors). Rows with a code out of range are left out.
      row_weights: one weight per row (default: equal). Only their ratios matter.

    Returns:
      `CrossMoments(first, second = (M₁₂, M₁₃, M₂₃), third)`. Where all views are categorical these are tables of
      relative frequencies, `O(n + d³)`; else `O(n d³)`, in blocks of rows.

    """
    views, sizes = _check_views((x1, x2, x3), num_categories)
    weights = check_row_weights(row_weights, views[0].shape[0])
    return finite_moments("x1, x2, x3", _moments(views, weights, sizes))


@partial(jax.jit, static_argnames="sizes")
def _moments(views: tuple[Array, ...], row_weights: Array | None, sizes: tuple[int, ...]) -> CrossMoments:
    dtype = _dtype(views, row_weights)
    if all(is_categorical(view) for view in views):
        weights = jnp.ones(views[0].shape, dtype) if row_weights is None else row_weights.astype(dtype)
        return table_moments(count_table(views, sizes, weights))
    return _contract(views, row_weights, tuple(jnp.eye(size, dtype=dtype) for size in sizes))


def table_moments(table: Float[Array, "d1 d2 d3"]) -> CrossMoments:
    """Return the moments of three categorical views from the table of their joint counts."""
    pairs = (jnp.sum(table, 2), jnp.sum(table, 1), jnp.sum(table, 0))
    singles = (jnp.sum(pairs[0], 1), jnp.sum(pairs[0], 0), jnp.sum(pairs[1], 0))
    return average_sums((singles, pairs, table), jnp.sum(singles[0]))


@jax.jit
def _contract(views: tuple[Array, ...], row_weights: Array | None, directions: tuple[Array, ...]) -> CrossMoments:
    sizes, dtype = tuple(w.shape[0] for w in directions), directions[0].dtype

    def block(views: tuple[Array, ...], row_weights: Array | None) -> Any:
        weights = present_rows(views, sizes).astype(dtype)
        weights = weights if row_weights is None else weights * row_weights.astype(dtype)
        features = (view_features(view, w) for view, w in zip(views, directions, strict=True))
        return cross_sums(weights, *features), jnp.sum(weights)

    width = directions[1].shape[1] * directions[2].shape[1]
    return average_sums(*sum_over_rows(block, views, row_weights, floats_per_row=width))


def contract_cross_moments(
    x1: ArrayLike,
    x2: ArrayLike,
    x3: ArrayLike,
    directions: tuple[Float[Array, "d1 r1"], Float[Array, "d2 r2"], Float[Array, "d3 r3"]],
    row_weights: ArrayLike | None = None,
) -> CrossMoments:
    """Return the moments of `W₁ᵀx₁`, `W₂ᵀx₂`, `W₃ᵀx₃`, never forming those of the views themselves.

    Arguments as for `cross_moments`; `directions` are `(d, r)`, one matrix per view. Cost `O(n r³)` after gathers for
    codes, `O(n (d r + r³))` for real vectors, in blocks of rows.
    """
    if not isinstance(directions, tuple | list) or len(directions) != 3:
        raise ValueError("directions: expected three matrices, one per view; got something else")
    given = [check_axes("directions", part, "d r") for part in directions]
    views, sizes = _check_views((x1, x2, x3), tuple(part.shape[0] for part in given))
    matrices = tuple(check_directions(part, size) for part, size in zip(given, sizes, strict=True))
    weights = check_row_weights(row_weights, views[0].shape[0])
    return finite_moments("x1, x2, x3", _contract(views, weights, matrices))
