"""Linear algebra that stays finite where a matrix is singular or close to it."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import lu_factor
from jaxtyping import Array, Bool, Float

from latensor.base import (
    check_axes,
    check_integer,
    freeze,
    machine_epsilon,
    matmul,
    positive_or_one,
    smallest_normal,
)

# More starts, slices or components than this are a slip: their arrays do not fit into memory.
_MOST = 1 << 20


def check_rank(rank: int, dimension: int) -> None:
    """Raise unless `rank` is between 1 and `dimension`."""
    check_integer("rank", rank, 1, dimension, " (the dimension)")


def check_number_of(name: str, value: Any) -> int:
    """Return how many starts, slices or components there are to be."""
    return check_integer(name, check_integer(name, value, 1), 1, _MOST)


def check_three(name: str, arrays: Any, axes: str) -> tuple[Array, Array, Array]:
    """Return three arrays of floating numbers whose axes are named by `axes`, one per mode; see `check_axes`."""
    if not isinstance(arrays, tuple | list) or len(arrays) != 3:
        raise ValueError(f"{name}: expected three arrays ({axes.replace(' ', ', ')}); got {type(arrays).__name__}")
    one, two, three = (check_axes(name, array, axes) for array in arrays)
    return one, two, three


def check_sizes(sizes: Any) -> tuple[int, ...]:
    """Return the number of rows of each variable."""
    if not isinstance(sizes, tuple | list) or not sizes:
        raise ValueError(f"sizes: expected one integer per variable; got {sizes!r}")
    return tuple(check_integer("sizes", size, 1) for size in sizes)


def replace_unless_finite(arrays: tuple[Array, ...]) -> tuple[tuple[Array, ...], Bool[Array, ""]]:
    """Return whether all arrays are finite, and ones in place of all of them if not: LAPACK may hang on a NaN."""
    finite = jnp.stack([jnp.all(jnp.isfinite(array)) for array in arrays]).all()
    return tuple(jnp.where(finite, array, 1) for array in arrays), finite


def least_squares(columns: Float[Array, "d k"], target: Float[Array, " d"]) -> Float[Array, " k"]:
    """Return the solution of `columns y = target`, from normal equations with unit columns and a ridge of rounding."""
    gram = matmul(columns.T, columns)
    lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(gram), smallest_normal(gram.dtype)))
    gram = gram / (lengths[:, None] * lengths[None, :])
    gram = gram + 10 * machine_epsilon(gram.dtype) * jnp.eye(gram.shape[0], dtype=gram.dtype)
    right = matmul(columns.T, target) / lengths
    return jnp.linalg.solve(gram, right) / lengths


def solve_or_zero(system: Float[Array, "m m"], right: Float[Array, "m ..."]) -> Float[Array, "m ..."]:
    """Return the solution of a linear system, linear in `right`; zeros where the system is singular."""
    pivots = jnp.abs(jnp.diagonal(lu_factor(freeze(system))[0]))
    regular = jnp.min(pivots) > machine_epsilon(system.dtype) * jnp.max(pivots)
    system = jnp.where(regular, system, jnp.eye(system.shape[0], dtype=system.dtype))
    return jnp.linalg.solve(system, jnp.where(regular, right, 0))


def orthonormal_basis(columns: Float[Array, "d r"]) -> Float[Array, "d r"]:
    """Return an orthonormal basis of the column space; where the columns are dependent, some columns are zero.

    From the eigenvectors of the Gram matrix, twice (the second pass removes the rounding of the first). A QR of the
    tall matrix does the same, but it is slow on GPUs, and on CPUs the LAPACK threads that it wakes keep spinning and
    take the cores from the products that follow: 130 instead of 80 ms per iteration at n = 100,000, d = 1,000.
    """
    eps = machine_epsilon(columns.dtype)
    for _ in range(2):
        columns = columns / positive_or_one(jnp.linalg.norm(columns, axis=0))[None, :]
        values, vectors = jnp.linalg.eigh(matmul(columns.T, columns))
        usable = values > 10 * eps * values[-1]
        scale = jnp.where(usable, 1 / jnp.sqrt(jnp.where(usable, values, 1)), 0)
        columns = matmul(columns, vectors * scale[None, :])
    return columns


def nearest_orthonormal(columns: Float[Array, "k r"]) -> Float[Array, "k r"]:
    """Return the matrix with orthonormal columns that is closest to `columns`."""
    left, _, right = jnp.linalg.svd(columns, full_matrices=False)
    return matmul(left, right)


def inverse_root(matrices: Float[Array, "... d d"]) -> Float[Array, "... d d"]:
    """Return `L⁻¹` of matrices `LLᵀ`, row by row for all of them at once.

    From the inverse root `R` of the first rows and columns, and the next column `c` with its end `a` on the diagonal:
    the next row of `L` is `Rc`, its end `s = √(a − |Rc|²)`, and the next row of `L⁻¹` is `(−(Rc)ᵀR, 1)/s`. For many
    small matrices this is faster than LAPACK, whose threads wake for each of them and, within a loop, may wait for each
    other for ever (seen with jax 0.10.2 on two cores).
    """
    size = matrices.shape[-1]
    unit = jnp.eye(size, dtype=matrices.dtype)
    eps = machine_epsilon(matrices.dtype)

    def border(i: Array, inverse: Array) -> Array:
        column = lax.dynamic_slice_in_dim(matrices, i, 1, -1)
        end = lax.dynamic_slice_in_dim(column, i, 1, -2)
        row = jnp.swapaxes(matmul(inverse, column), -1, -2)
        # Positive in theory; at rounding level it need not be.
        left = jnp.maximum(end - jnp.sum(row * row, axis=-1, keepdims=True), eps * end)
        known = jnp.broadcast_to(unit[i], row.shape) - matmul(row, inverse)
        return lax.dynamic_update_slice_in_dim(inverse, known / jnp.sqrt(left), i, -2)

    return lax.fori_loop(0, size, border, jnp.zeros_like(matrices))
