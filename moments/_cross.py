"""Pair and triple moments of three views of one hidden variable.

    M₁₂ = E[x₁⊗x₂],  M₁₃ = E[x₁⊗x₃],  M₂₃ = E[x₂⊗x₃],  M₁₂₃ = E[x₁⊗x₂⊗x₃]

A view is a vector of category codes `(n,)`, which stand for indicators `e_x`, or a table of real vectors `(n, d)`.
Where the views are independent given the hidden variable `h` and `O_v = E[x_v | h]`, these are `O₁ diag(π) O₂ᵀ` and so
on.

Dense tables are for small `d`. For large `d` everything is contracted with directions `(d, r)` as the rows go by: an
indicator times a matrix is a row of it, so that a view costs a gather and the triple moment `O(n r³)`. Code below zero,
or too large, is no observation: its features are zero, and a row with one belongs into no average (see `present_rows`).

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods, §3.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.moments._rows import as_float, sum_over_rows

# Beyond, places no longer fit 32-bit integers, nor the table most memories.
_MAX_TABLE = 2**31 - 2


class CrossMoments(NamedTuple):
    """Moments of three modes; entries that no sample observes are zero."""

    first: tuple[Float[Array, " r1"], Float[Array, " r2"], Float[Array, " r3"]]
    second: tuple[Float[Array, "r1 r2"], Float[Array, "r1 r3"], Float[Array, "r2 r3"]]
    third: Float[Array, "r1 r2 r3"]
    num_unobserved: Int[Array, ""]
    """Entries of `third` that no sample observes whole, where data are missing; else zero."""


def cross_sums(weights: Array, first: Array, second: Array, third: Array) -> Any:
    """Return weighted sums over rows of one, two and three of the features `(n, r)`, as in `CrossMoments`."""
    weighted = weights[:, None] * first
    pair = (second[:, :, None] * third[:, None, :]).reshape(second.shape[0], -1)
    shape = (first.shape[1], second.shape[1], third.shape[1])

    def product(a: Array, b: Array) -> Array:
        return jnp.matmul(a.T, b, precision="highest")

    return (
        (jnp.sum(weighted, axis=0), product(second, weights[:, None])[:, 0], product(third, weights[:, None])[:, 0]),
        (product(weighted, second), product(weighted, third), product(weights[:, None] * second, third)),
        product(weighted, pair).reshape(shape),
    )


def is_categorical(view: Num[Array, "n ..."]) -> bool:
    """Return whether a view holds category codes."""
    return view.ndim == 1


def view_features(view: Num[Array, "n ..."], directions: Float[Array, "d r"]) -> Float[Array, "n r"]:
    """Return `Wᵀx` for every row: a gather for codes, a product for real vectors."""
    if is_categorical(view):
        place = jnp.where(view < 0, directions.shape[0], view)  # JAX wraps negative indices, and fills beyond the end
        return directions.at[place].get(mode="fill", fill_value=0)
    return jnp.matmul(view.astype(directions.dtype), directions, precision="highest")


def spread_view(view: Num[Array, "n ..."], values: Float[Array, "n r"], size: int) -> Float[Array, "d r"]:
    """Return `Σ_n x_n⊗values_n`: the adjoint of `view_features`."""
    if is_categorical(view):
        place = jnp.where(view < 0, size, view)
        return jnp.zeros((size, values.shape[1]), values.dtype).at[place].add(values, mode="drop")
    return jnp.matmul(view.astype(values.dtype).T, values, precision="highest")


def _dtype(views: tuple[Array, ...], row_weights: Array | None) -> jnp.dtype:
    reals = [as_float(view).dtype for view in views if not is_categorical(view)]
    if row_weights is not None:
        reals.append(as_float(row_weights).dtype)
    return jnp.result_type(*reals) if reals else jnp.result_type(float)


def present_rows(views: tuple[Array, ...], sizes: tuple[int, ...]) -> Bool[Array, " n"]:
    """Return the rows in which every categorical view has a code within its range."""
    present = jnp.ones(views[0].shape[0], bool)
    for view, size in zip(views, sizes, strict=True):
        if is_categorical(view):
            present = present & (view >= 0) & (view < size)
    return present


def _view_sizes(
    views: tuple[Array, Array, Array], num_categories: int | tuple[int | None, ...] | None
) -> tuple[int, ...]:
    named = (num_categories,) * 3 if num_categories is None or isinstance(num_categories, int) else num_categories
    if len(named) != 3:
        raise ValueError(f"num_categories: expected one number or three; got {num_categories!r}")
    if len({view.shape[0] for view in views}) != 1:
        raise ValueError(f"x1, x2, x3: expected as many rows; got {', '.join(str(v.shape[0]) for v in views)}")
    if views[0].shape[0] == 0:
        raise ValueError("x1, x2, x3: expected at least one row; got none")
    sizes = []
    for place, (view, size) in enumerate(zip(views, named, strict=True), 1):
        if view.ndim not in (1, 2):
            raise ValueError(f"x{place}: expected codes (n,) or real vectors (n, d); got shape {view.shape}")
        if not is_categorical(view):
            sizes.append(view.shape[1])
        elif not jnp.issubdtype(view.dtype, jnp.integer):
            raise ValueError(f"x{place}: expected integer codes where there is one axis; got type {view.dtype}")
        elif size is None:
            raise ValueError(f"num_categories: expected the number of categories of x{place}; got None")
        else:
            sizes.append(size)
    return tuple(sizes)


def average_sums(sums: Any, total: Array) -> CrossMoments:
    """Return moments from sums over rows and the sum of the rows' weights; zeros, not NaN, where that is zero."""
    scale = 1 / jnp.where(total > 0, total, 1)
    first, second, third = jax.tree.map(lambda part: part * scale, sums)
    return CrossMoments(first, second, third, jnp.int32(0))


def count_table(
    codes: tuple[Int[Array, " n"], ...], sizes: tuple[int, ...], weights: Float[Array, " n"]
) -> Float[Array, "..."]:
    """Return the sum of weights at each combination of codes, `(d₁, …, d_m)`; rows with a code out of range add none.

    Weights of one add up without rounding to 2²⁴ in float32: divide afterwards, not before.
    """
    size = 1
    place = jnp.zeros(codes[0].shape, jnp.int32)
    inside = present_rows(codes, sizes)
    for code, number in zip(codes, sizes, strict=True):
        place, size = place * number + code.astype(jnp.int32), size * number
    if size > _MAX_TABLE:
        raise ValueError(f"num_categories: expected a table of at most {_MAX_TABLE} entries; got {sizes}")
    place = jnp.where(inside, place, size)
    return jnp.zeros(size, weights.dtype).at[place].add(weights, mode="drop").reshape(sizes)


@partial(jax.jit, static_argnames="num_categories")
def cross_moments(
    x1: Num[Array, "n ..."],
    x2: Num[Array, "n ..."],
    x3: Num[Array, "n ..."],
    num_categories: int | tuple[int | None, ...] | None = None,
    row_weights: Float[Array, " n"] | None = None,
) -> CrossMoments:
    """Return the first, pair and triple moments of three views, dense.

    Args:
      x1: category codes `(n,)`, integers; or real vectors `(n, d)`.
      x2: the second view, likewise.
      x3: the third.
      num_categories: the number of categories of the categorical views, one for all or one for each (`None` for real).
        Rows with a code out of range are left out.
      row_weights: a weight for each row (default: equal). They need not sum to one.

    Returns:
      `CrossMoments(first, second = (M₁₂, M₁₃, M₂₃), third)`. Where all views are categorical these are tables of
      relative frequencies, `O(n + d³)`; else `O(n d³)`, in blocks of rows.

    """
    views = (x1, x2, x3)
    sizes = _view_sizes(views, num_categories)
    dtype = _dtype(views, row_weights)
    weights = present_rows(views, sizes).astype(dtype)
    weights = weights if row_weights is None else weights * row_weights.astype(dtype)
    if all(is_categorical(view) for view in views):
        return table_moments(count_table(views, sizes, weights))
    identities = tuple(jnp.eye(size, dtype=dtype) for size in sizes)
    return average_sums(_contract(views, weights, identities), jnp.sum(weights))


def table_moments(table: Float[Array, "d1 d2 d3"]) -> CrossMoments:
    """Return the moments of three categorical views from the table of their joint counts."""
    pairs = (jnp.sum(table, 2), jnp.sum(table, 1), jnp.sum(table, 0))
    singles = (jnp.sum(pairs[0], 1), jnp.sum(pairs[0], 0), jnp.sum(pairs[1], 0))
    return average_sums((singles, pairs, table), jnp.sum(singles[0]))


def _contract(views: tuple[Array, ...], weights: Array, directions: tuple[Array, ...]) -> Any:
    def block(rows: tuple[Array, ...], weights: Array) -> Any:
        return cross_sums(weights, *(view_features(v, w) for v, w in zip(rows, directions, strict=True)))

    width = directions[1].shape[1] * directions[2].shape[1]
    return sum_over_rows(block, (views, weights), floats_per_row=width)


@jax.jit
def contract_cross_moments(
    x1: Num[Array, "n ..."],
    x2: Num[Array, "n ..."],
    x3: Num[Array, "n ..."],
    directions: tuple[Float[Array, "d1 r1"], Float[Array, "d2 r2"], Float[Array, "d3 r3"]],
    row_weights: Float[Array, " n"] | None = None,
) -> CrossMoments:
    """Return the moments of `W₁ᵀx₁`, `W₂ᵀx₂`, `W₃ᵀx₃`, never forming those of the views themselves.

    Arguments as for `cross_moments`; `directions` are `(d, r)`, one matrix a view. Cost `O(n r³)` after gathers for
    codes, `O(n (d r + r³))` for real vectors, in blocks of rows.
    """
    views, sizes = (x1, x2, x3), tuple(w.shape[0] for w in directions)
    _view_sizes(views, sizes)
    weights = present_rows(views, sizes).astype(directions[0].dtype)
    weights = weights if row_weights is None else weights * row_weights.astype(weights.dtype)
    return average_sums(_contract(views, weights, directions), jnp.sum(weights))
