"""Mean, second and third cumulant of a table that may have holes: the common currency of the symmetric models.

`μ` is the mean, `C` the covariance and `K₃` the third central moment. Where entries are missing there are two ways:

*Available-case.* Each entry averages over the rows that observe all of its dimensions. Right for any pattern that does
not depend on the values, but `K₃` costs `O(n d³)`: for small `d`, or where dimensions go missing together. An entry
that no row observes is set to zero and counted.

*Implicit, by inverse propensities.* Where dimensions are missing independently with rates `p`, put
`z_ni = m_ni (x_ni − μ_i)/p_i`. Entries of `E[z⊗z⊗z]` with three different indices are right as they are; where indices
coincide the factor `1/p_i` came in too often. Contracted with `W`, row `w_i`, and with `y_n = Wᵀz_n`,

    K₃(W,W,W) = E[y⊗y⊗y] + sym Σ_i w_i⊗w_i⊗q_i + Σ_i r_i w_i⊗w_i⊗w_i,
    q_i = −(1 − p_i) E[z_i² y],   r_i = (1 − p_i)(2 − p_i) E[z_i³],
    (C W)_i = E[z_i y] − (1 − p_i) E[z_i²] w_i,

in `O(n d r)` and one pass over the data. The paper on partial data (Gottesman et al.) holds implicit third moments to
need complete data. They need independent missingness: where dimensions are missing together, a pair is observed more
often than `p_i p_j`, its entry is overestimated by that ratio, and no number of samples mends it.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.moments._moments import packed_cubes, symmetric_outer, third_power_sum, unpack_cubes
from latensor.moments._observed import Centred, centre, residuals, spread
from latensor.moments._rows import as_float, sum_over_rows

# The available-case tensor is made in slabs of about this many entries.
_FLOATS_PER_SLAB = 1 << 22


class Cumulants(NamedTuple):
    """Mean, covariance and third central moment."""

    mean: Float[Array, " d"]
    second: Float[Array, "d d"]
    third: Float[Array, "d d d"]
    num_unobserved: Int[Array, ""]
    """How many of the `d³` entries of `third` no row observes whole; they are zero."""


class ContractedCumulants(NamedTuple):
    """The cumulants as seen through directions `W (d, r)`."""

    mean: Float[Array, " r"]
    """`Wᵀμ`."""
    second: Float[Array, "d r"]
    """`C W`, one mode contracted."""
    third: Float[Array, "r r r"]
    """`K₃(W, W, W)`."""
    num_unobserved: Int[Array, ""]
    """How many of the `d³` entries of `K₃` no row observes whole; −1 where they are not looked at."""


def _ratio(total: Array, seen: Array) -> tuple[Array, Int[Array, ""]]:
    """Return `total / seen`, zero where nothing was seen, and how often that is."""
    there = seen > 0
    return jnp.where(there, total / jnp.where(there, seen, 1), 0), jnp.sum(~there, dtype=jnp.int32)


@jax.jit
def second_cumulant(data: Centred) -> tuple[Float[Array, "d d"], Int[Array, ""]]:
    """Return the available-case covariance, dense, and how many of its entries no row observes whole: `O(n d²)`."""

    def block_sum(x: Array, mask: Array | None, weights: Array) -> tuple[Array, Array | None]:
        rows = residuals(x, mask, data.mean)
        total = jnp.matmul((weights[:, None] * rows).T, rows, precision="highest")
        if mask is None:
            return total, None
        seen = mask.astype(weights.dtype)
        return total, jnp.matmul((weights[:, None] * seen).T, seen, precision="highest")

    d = data.mean.shape[0]
    total, seen = sum_over_rows(block_sum, (data.x, data.mask, data.row_weights), floats_per_row=4 * d)
    return (total, jnp.int32(0)) if seen is None else _ratio(total, seen)


def _inverse_rates(data: Centred) -> Float[Array, " d"]:
    return jnp.where(data.rates > 0, 1 / jnp.where(data.rates > 0, data.rates, 1), 0)


def _weighted_residuals(data: Centred, x: Array, mask: Array | None) -> Float[Array, "n d"]:
    """Return the rows `z`."""
    return residuals(x, mask, data.mean) * _inverse_rates(data)[None, :]


@jax.jit
def second_cumulant_diagonal(data: Centred) -> Float[Array, " d"]:
    """Return the variances of the dimensions, each over the rows that observe it. One pass over the data."""

    def block_sum(x: Array, mask: Array | None, weights: Array) -> Array:
        return jnp.matmul(weights, residuals(x, mask, data.mean) ** 2, precision="highest")

    d = data.mean.shape[0]
    total = sum_over_rows(block_sum, (data.x, data.mask, data.row_weights), floats_per_row=2 * d)
    return total * _inverse_rates(data)


def _project(data: Centred, directions: Float[Array, "d r"]) -> Float[Array, "n r"]:
    """Return the rows `y = Wᵀ(x − μ)` of a table without holes.

    Centred by its own mean, after the product: then the data need not be centred, and one product over all rows is
    faster than blocks.
    """
    y = jnp.matmul(as_float(data.x), directions, precision="highest")
    return y - jnp.matmul(data.row_weights, y, precision="highest")[None, :]


@jax.jit
def _apply_second(data: Centred, diagonal: Float[Array, " d"], vectors: Float[Array, "d r"]) -> Float[Array, "d r"]:
    if data.mask is None:
        return spread(data.row_weights[:, None] * _project(data, vectors), as_float(data.x))

    def block_sum(x: Array, mask: Array | None, weights: Array) -> Array:
        z = _weighted_residuals(data, x, mask)
        return spread(weights[:, None] * jnp.matmul(z, vectors, precision="highest"), z)

    d = data.mean.shape[0]
    product = sum_over_rows(block_sum, (data.x, data.mask, data.row_weights), floats_per_row=2 * d)
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
    mean = jnp.matmul(data.mean, directions, precision="highest")
    if data.mask is None:
        y = _project(data, directions)
        second = spread(data.row_weights[:, None] * y, as_float(data.x))
        return ContractedCumulants(mean, second, third_power_sum(y, data.row_weights), jnp.int32(-1))
    d, r = directions.shape

    def block_sum(x: Array, mask: Array, weights: Array) -> tuple[Array, ...]:
        z = _weighted_residuals(data, x, mask)
        y = jnp.matmul(z, directions, precision="highest")
        weighted, squares = weights[:, None] * y, z * z
        return (
            packed_cubes(y, weights),
            spread(weighted, z),
            spread(weighted, squares),
            jnp.matmul(weights, squares, precision="highest"),
            jnp.matmul(weights, squares * z, precision="highest"),
        )

    rows = (data.x, data.mask, data.row_weights)
    cubes, cross, square_cross, squares, third_powers = sum_over_rows(block_sum, rows, floats_per_row=2 * d + r * r)
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
    """Return `K₃[start : start + size]`, available-case, and how many of its entries no row observes whole."""
    d = data.mean.shape[0]

    def cubes(rows: Array, weights: Array) -> Array:
        first = lax.dynamic_slice_in_dim(rows, start, size, axis=1) * weights[:, None]
        products = (first[:, :, None] * rows[:, None, :]).reshape(-1, size * d)
        return jnp.matmul(products.T, rows, precision="highest")

    def block_sum(x: Array, mask: Array | None, weights: Array) -> tuple[Array, Array | None]:
        seen = None if mask is None else cubes(mask.astype(weights.dtype), weights)
        return cubes(residuals(x, mask, data.mean), weights), seen

    rows = (data.x, data.mask, data.row_weights)
    total, seen = sum_over_rows(block_sum, rows, floats_per_row=2 * size * d)
    slab, unobserved = (total, jnp.int32(0)) if seen is None else _ratio(total, seen)
    return slab.reshape(size, d, d), unobserved


def _contract_available(data: Centred, directions: Float[Array, "d r"], block: int | None) -> ContractedCumulants:
    directions = directions.astype(jnp.result_type(directions.dtype, data.mean.dtype))
    d, r = directions.shape
    block = max(1, min(d, _FLOATS_PER_SLAB // (d * d) if block is None else block))
    num_blocks, num_left = divmod(d, block)

    def add(total: tuple[Array, Array], start: Array | int, size: int) -> tuple[Array, Array]:
        slab, unobserved = _available_slab(data, start, size)
        last = jnp.matmul(slab, directions, precision="highest")  # (b, d, r)
        pairs = jnp.matmul(directions.T, last, precision="highest")  # (b, r, r)
        rows = lax.dynamic_slice_in_dim(directions, start, size)
        third = jnp.matmul(rows.T, pairs.reshape(size, r * r), precision="highest").reshape(r, r, r)
        return total[0] + third, total[1] + unobserved

    total = (jnp.zeros((r, r, r), directions.dtype), jnp.int32(0))
    total = lax.fori_loop(0, num_blocks, lambda i, total: add(total, i * block, block), total)
    third, unobserved = add(total, num_blocks * block, num_left) if num_left else total
    mean = jnp.matmul(data.mean, directions, precision="highest")
    second = jnp.matmul(second_cumulant(data)[0], directions, precision="highest")
    return ContractedCumulants(mean, second, third, unobserved)


@partial(jax.jit, static_argnames=("method", "block"))
def contract_cumulants(
    data: Centred,
    directions: Float[Array, "d r"],
    method: Literal["implicit", "available"] = "implicit",
    block: int | None = None,
) -> ContractedCumulants:
    """Return mean, covariance and third cumulant of a centred table as seen through `directions`.

    Args:
      data: `centre(x, mask, row_weights)`.
      directions: `W (d, r)`.
      method: what to do about holes. `"implicit"`: inverse propensities, `O(n d r)`, for dimensions that are missing
        independently. `"available"`: available-case, `O(n d³)` and `O(block · d²)` memory, for any pattern that does
        not depend on the values. Without a mask both give the same.
      block: first indices of the available-case tensor to do at a time; default: as many as fit into 16 MB of float32.

    """
    if method not in ("implicit", "available"):
        raise ValueError(f'method: expected "implicit" or "available"; got {method!r}')
    if block is not None and block < 1:
        raise ValueError(f"block: expected a number of at least 1; got {block}")
    if method == "implicit":
        return _contract_implicit(data, directions)
    return _contract_available(data, directions, block)


@partial(jax.jit, static_argnames=("method", "block"))
def contract_third_cumulant(
    x: Num[Array, "n d"],
    directions: Float[Array, "d r"],
    mask: Bool[Array, "n d"] | None = None,
    row_weights: Float[Array, " n"] | None = None,
    *,
    method: Literal["implicit", "available"] = "implicit",
    block: int | None = None,
) -> Float[Array, "r r r"]:
    """Return `K₃(W, W, W)`, the third central moment contracted in every mode, never forming `(d, d, d)`.

    Two passes over the data, `O(n d r)`, by default. `method` and `block` as in `contract_cumulants`.
    """
    return contract_cumulants(centre(x, mask, row_weights), directions, method, block).third


@jax.jit
def cumulants(
    x: Num[Array, "n d"], mask: Bool[Array, "n d"] | None = None, row_weights: Float[Array, " n"] | None = None
) -> Cumulants:
    """Return mean, covariance and third central moment, dense, available-case where masked.

    Cost `O(n d³)`, memory `O(d³)`: for small `d` and for tests. Entries that no row observes whole are zero.

    Args:
      x: samples in rows.
      mask: True where observed; `None` means everywhere. Values under a masked entry may be anything, NaN included.
      row_weights: a weight for each row (default: equal). They need not sum to one.

    """
    data = centre(x, mask, row_weights)
    third, unobserved = _available_slab(data, 0, x.shape[1])
    return Cumulants(data.mean, second_cumulant(data)[0], third, unobserved)
