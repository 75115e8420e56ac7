"""Mean, second and third cumulant of a table that may be incomplete: the common currency of the symmetric models.

`μ` is the mean, `C` the covariance and `K₃` the third central moment. There are two ways to treat missing entries:

*Available-case.* Each entry averages over the rows that observe all of its dimensions. Correct for any pattern that
does not depend on the values, but `K₃` costs `O(n d³)`: for small `d`, or where dimensions are missing together. An
entry that no row observes is set to zero and counted.

*Implicit, by inverse propensities.* Where dimensions are missing independently with rates `p`, let
`z_ni = m_ni (x_ni − μ_i)/p_i`. Entries of `E[z⊗z⊗z]` with three different indices are unbiased; where indices coincide
the factor `1/p_i` enters too often. Contracted with `W`, row `w_i`, and with `y_n = Wᵀz_n`,

    K₃(W,W,W) = E[y⊗y⊗y] + sym Σ_i w_i⊗w_i⊗q_i + Σ_i r_i w_i⊗w_i⊗w_i,
    q_i = −(1 − p_i) E[z_i² y],   r_i = (1 − p_i)(2 − p_i) E[z_i³],
    (C W)_i = E[z_i y] − (1 − p_i) E[z_i²] w_i,

in `O(n d r)` and one pass over the data. The paper on partial data (Gottesman et al.) states that implicit third
moments need complete data. Independent missingness is enough. Where dimensions are missing together, a pair is observed
more often than `p_i p_j`, and its entry is overestimated by that ratio for any number of samples.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import as_float, check_integer, check_option, divide, matmul
from latensor.moments._moments import check_directions, packed_cubes, symmetric_outer, third_power_sum, unpack_cubes
from latensor.moments._noise import NoiseDirections, contract_noise, trace_noise
from latensor.moments._observed import Centred, centre, observed, residuals, spread
from latensor.moments._rows import map_over_rows, sum_over_rows
from latensor.moments._values import as_finite_table, finite_moments
from latensor.moments.data import Table

THIRD_METHODS = ("implicit", "available")
# The available-case tensor is computed in slabs of about this many entries.
_FLOATS_PER_SLAB = 1 << 22


class Cumulants(NamedTuple):
    """Mean, covariance and third central moment."""

    mean: Float[Array, " d"]
    second: Float[Array, "d d"]
    third: Float[Array, "d d d"]
    num_unobserved: Int[Array, ""]
    """How many of the `d³` entries of `third` no row fully observes; they are zero."""


class ContractedCumulants(NamedTuple):
    """The cumulants as seen through directions `W (d, r)`."""

    mean: Float[Array, " r"]
    """`Wᵀμ`."""
    second: Float[Array, "d r"]
    """`C W`, one mode contracted."""
    third: Float[Array, "r r r"]
    """`K₃(W, W, W)`."""
    num_unobserved: Int[Array, ""]
    """How many of the `d³` entries of `K₃` no row fully observes; −1 where they are not counted."""
    noise: Float[Array, " r"] | None = None
    """`Wᵀm`, see `contract_noise`, where it was asked for."""


def _ratio(total: Array, seen: Array) -> tuple[Array, Int[Array, ""]]:
    """Return `total / seen`, zero where nothing was seen, and how often that is."""
    return divide(total, seen), jnp.sum(~(seen > 0), dtype=jnp.int32)


@jax.jit
def second_cumulant(data: Centred) -> tuple[Float[Array, "d d"], Bool[Array, "d d"]]:
    """Return the available-case covariance, dense, and which of its entries no row fully observes: `O(n d²)`."""

    def block_sum(rows: Table, weights: Array) -> tuple[Array, Array | None]:
        values = residuals(rows, data.mean)
        total = matmul((weights[:, None] * values).T, values)
        if rows.mask is None:
            return total, None
        seen = observed(rows, weights.dtype)
        return total, matmul((weights[:, None] * seen).T, seen)

    total, seen = sum_over_rows(block_sum, data.table, data.weights, floats_per_row=4 * data.mean.shape[0])
    return (total, jnp.zeros(total.shape, bool)) if seen is None else (divide(total, seen), ~(seen > 0))


def _inverse_rates(data: Centred) -> Float[Array, " d"]:
    return divide(1, data.rates)


def _weighted_residuals(data: Centred, rows: Table) -> Float[Array, "n d"]:
    """Return the rows `z`."""
    return residuals(rows, data.mean) * _inverse_rates(data)[None, :]


@jax.jit
def second_cumulant_diagonal(data: Centred) -> Float[Array, " d"]:
    """Return the variances of the dimensions, each over the rows that observe it. One pass over the data."""

    def block_sum(rows: Table, weights: Array) -> Array:
        return matmul(weights, residuals(rows, data.mean) ** 2)

    total = sum_over_rows(block_sum, data.table, data.weights, floats_per_row=2 * data.mean.shape[0])
    return total * _inverse_rates(data)


def _project(data: Centred, directions: Float[Array, "d r"]) -> Float[Array, "n r"]:
    """Return the rows `y = Wᵀ(x − μ)` of a complete table.

    The products are centred, by their own mean, and not the data: one product over all rows is faster than blocks.
    """
    y = map_over_rows(lambda rows: matmul(as_float(rows.x), directions), data.table, floats_per_row=0)
    mean = sum_over_rows(matmul, data.weights, y, floats_per_row=0)
    return y - mean[None, :]


def _spread_over(data: Centred, y: Float[Array, "n r"]) -> Float[Array, "d r"]:
    """Return `E[x⊗y]` of a complete table."""

    def block_sum(rows: Table, weights: Array, y: Array) -> Array:
        return spread(weights[:, None] * y, as_float(rows.x))

    return sum_over_rows(block_sum, data.table, data.weights, y, floats_per_row=0)


@jax.jit
def _apply_second(data: Centred, diagonal: Float[Array, " d"], vectors: Float[Array, "d r"]) -> Float[Array, "d r"]:
    if data.table.mask is None:
        return _spread_over(data, _project(data, vectors))

    def block_sum(rows: Table, weights: Array) -> Array:
        z = _weighted_residuals(data, rows)
        return spread(weights[:, None] * matmul(z, vectors), z)

    product = sum_over_rows(block_sum, data.table, data.weights, floats_per_row=2 * data.mean.shape[0])
    # E[z_i²] is C_ii / p_i, of which C_ii is right.
    excess = diagonal * (1 - data.rates) * _inverse_rates(data)
    return product - excess[:, None] * vectors


def second_cumulant_operator(
    data: Centred, diagonal: Float[Array, " d"]
) -> Callable[[Float[Array, "d r"]], Float[Array, "d r"]]:
    """Return the map `V ↦ C V` by inverse propensities, which never forms `C`; it is a pytree and may cross `jit`.

    `diagonal` is `second_cumulant_diagonal(data)`. Each call costs `O(n d r)` and one pass over the data.
    """
    return Partial(_apply_second, data, diagonal)


def _contract_implicit(data: Centred, directions: Float[Array, "d r"]) -> ContractedCumulants:
    mean = matmul(data.mean, directions)
    if data.table.mask is None:
        y = _project(data, directions)
        third = third_power_sum(y, data.weights)
        return ContractedCumulants(mean, _spread_over(data, y), third, jnp.int32(-1))
    d, r = directions.shape

    def block_sum(rows: Table, weights: Array) -> tuple[Array, ...]:
        z = _weighted_residuals(data, rows)
        y = matmul(z, directions)
        weighted, squares = weights[:, None] * y, z * z
        return (
            packed_cubes(y, weights),
            spread(weighted, z),
            spread(weighted, squares),
            matmul(weights, squares),
            matmul(weights, squares * z),
        )

    sums = sum_over_rows(block_sum, data.table, data.weights, floats_per_row=2 * d + r * r)
    cubes, cross, square_cross, squares, third_powers = sums
    hidden = (1 - data.rates)[:, None]
    # `w_i⊗w_i⊗w_i` counts three times under `sym`.
    thirds = (2 - data.rates)[:, None] * third_powers[:, None] * directions / 3
    return ContractedCumulants(
        mean=mean,
        second=cross - hidden * squares[:, None] * directions,
        third=unpack_cubes(cubes) + symmetric_outer(directions, hidden * (thirds - square_cross)),
        num_unobserved=jnp.int32(-1),
    )


def _available_slab(data: Centred, start: Array | int, size: int) -> tuple[Float[Array, "b d d"], Int[Array, ""]]:
    """Return `K₃[start : start + size]`, available-case, and how many of its entries no row fully observes."""
    d = data.mean.shape[0]

    def cubes(values: Array, weights: Array) -> Array:
        first = lax.dynamic_slice_in_dim(values, start, size, axis=1) * weights[:, None]
        products = (first[:, :, None] * values[:, None, :]).reshape(-1, size * d)
        return matmul(products.T, values)

    def block_sum(rows: Table, weights: Array) -> tuple[Array, Array | None]:
        seen = None if rows.mask is None else cubes(observed(rows, weights.dtype), weights)
        return cubes(residuals(rows, data.mean), weights), seen

    total, seen = sum_over_rows(block_sum, data.table, data.weights, floats_per_row=2 * size * d)
    slab, unobserved = (total, jnp.int32(0)) if seen is None else _ratio(total, seen)
    return slab.reshape(size, d, d), unobserved


def _contract_available(
    data: Centred, directions: Float[Array, "d r"], block: int | None, noise: NoiseDirections | None
) -> ContractedCumulants:
    directions = directions.astype(jnp.result_type(directions.dtype, data.mean.dtype))
    d, r = directions.shape
    block = max(1, min(d, _FLOATS_PER_SLAB // (d * d) if block is None else block))
    num_blocks, num_left = divmod(d, block)

    def add(total: tuple[Array, ...], start: Array | int, size: int) -> tuple[Array, ...]:
        slab, unobserved = _available_slab(data, start, size)
        pairs = matmul(directions.T, matmul(slab, directions))  # (b, r, r)
        rows = lax.dynamic_slice_in_dim(directions, start, size)
        third = matmul(rows.T, pairs.reshape(size, r * r)).reshape(r, r, r)
        traced = total[2] if noise is None else total[2] + trace_noise(slab, rows, noise)
        return total[0] + third, total[1] + unobserved, traced

    total = (jnp.zeros((r, r, r), directions.dtype), jnp.int32(0), jnp.zeros(r, directions.dtype))
    total = lax.fori_loop(0, num_blocks, lambda i, total: add(total, i * block, block), total)
    third, unobserved, traced = add(total, num_blocks * block, num_left) if num_left else total
    second = matmul(second_cumulant(data)[0], directions)
    return ContractedCumulants(
        matmul(data.mean, directions), second, third, unobserved, None if noise is None else traced
    )


@partial(jax.jit, static_argnames=("method", "block"))
def contract_cumulants(
    data: Centred,
    directions: Float[Array, "d r"],
    method: str = "implicit",
    block: int | None = None,
    noise: NoiseDirections | None = None,
) -> ContractedCumulants:
    """Return mean, covariance and third cumulant of a centred table as seen through `directions`.

    `method` and `block` as in `contract_third_cumulant`. With directions of `noise`, also the third cumulant traced
    over them.
    """
    check_option("method", method, THIRD_METHODS)
    block = None if block is None else check_integer("block", block, 1)
    if method == "available":
        return _contract_available(data, directions, block, noise)
    seen = _contract_implicit(data, directions)
    return seen if noise is None else seen._replace(noise=contract_noise(data, directions, noise))


@partial(jax.jit, static_argnames=("method", "block"))
def _contract_third(table: Table, directions: Array, method: str, block: int | None) -> Array:
    # One jit, so that the contraction of the covariance, which nobody reads, is not computed.
    return contract_cumulants(centre(table), directions, method, block).third


def contract_third_cumulant(
    data: Table | ArrayLike,
    directions: Float[Array, "d r"],
    *,
    method: Literal["implicit", "available"] = "implicit",
    block: int | None = None,
) -> Float[Array, "r r r"]:
    """Return `K₃(W, W, W)`, the third central moment contracted in every mode, never forming `(d, d, d)`.

    Args:
      data: a `Table`, or an array of samples in rows.
      directions: `W (d, r)`.
      method: how to treat missing entries. `"implicit"`: inverse propensities, `O(n d r)` and two passes over the
        data, for dimensions that are missing independently. `"available"`: available-case, `O(n d³)` and
        `O(block · d²)` memory, for any pattern that does not depend on the values. Without a mask both give the same.
      block: how many first indices of the available-case tensor to compute at a time; default: as many as fit into
        16 MB of float32.

    """
    table = as_finite_table(data)
    return finite_moments(
        "data", _contract_third(table, check_directions(directions, table.num_dimensions), method, block)
    )


@jax.jit
def _cumulants(table: Table) -> Cumulants:
    data = centre(table)
    third, unobserved = _available_slab(data, 0, table.num_dimensions)
    return Cumulants(data.mean, second_cumulant(data)[0], third, unobserved)


def cumulants(data: Table | ArrayLike) -> Cumulants:
    """Return mean, covariance and third central moment, dense, available-case where masked.

    Cost `O(n d³)`, memory `O(d³)`: for small `d` and for tests. Entries that no row fully observes are zero.
    """
    return finite_moments("data", _cumulants(as_finite_table(data)))
