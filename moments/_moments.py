"""The result type of all moment functions, and the third-order products that they share."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.moments._rows import sum_over_rows


class Moments(NamedTuple):
    """First, second and third moments in the form that a model asks for, with its corrections applied."""

    first: Float[Array, " d"]
    second: Float[Array, "d d"]
    third: Float[Array, "d d d"]


def third_power_sum(rows: Float[Array, "n r"], weights: Float[Array, " n"]) -> Float[Array, "r r r"]:
    """Return `Σ_n weights_n · y_n⊗y_n⊗y_n` for the rows `y_n`.

    One matrix product of the `(n, r²)` row-wise Kronecker square with the rows. That square is the only large
    temporary, so it is walked over in blocks that stay in cache.
    """
    r = rows.shape[1]

    def block_sum(y: Array, w: Array) -> Array:
        squares = (y[:, :, None] * y[:, None, :]).reshape(-1, r * r)
        return jnp.matmul(squares.T, w[:, None] * y, precision="highest").reshape(r, r, r)

    return sum_over_rows(block_sum, (rows, weights), floats_per_row=r * r)


def symmetric_outer(pairs: Float[Array, "d r"], singles: Float[Array, "d r"]) -> Float[Array, "r r r"]:
    """Return `sym Σ_i p_i⊗p_i⊗q_i`: the sum over the three places that `q` can take."""
    r = pairs.shape[1]
    squares = (pairs[:, :, None] * pairs[:, None, :]).reshape(-1, r * r)
    last = jnp.matmul(squares.T, singles, precision="highest").reshape(r, r, r)
    return last + jnp.moveaxis(last, 2, 1) + jnp.moveaxis(last, 2, 0)


@jax.jit
def contract_third(third: Float[Array, "d d d"], directions: Float[Array, "d r"]) -> Float[Array, "r r r"]:
    """Return `T(W, W, W)` for a dense tensor, one mode after the other: `O(d³ r)`."""
    partial = third
    for _ in range(3):  # contracts the last mode and moves the new one to the front: three turns meet every mode once
        partial = jnp.moveaxis(jnp.matmul(partial, directions, precision="highest"), -1, 0)
    return partial
