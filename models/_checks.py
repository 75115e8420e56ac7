"""Checks at the boundary: every message names the argument, what was expected and what came.

Shapes, types and options are always checked. Values are checked where arrays are concrete; under a trace (`jit`,
`vmap`) they cannot be, and the result's `status` has to tell.
"""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from latensor.moments import as_float


def is_concrete(*arrays: Any) -> bool:
    """Return whether the values of all arrays can be looked at."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays))


def as_numbers(name: str, value: Any, meaning: str) -> Array:
    """Return `value` as a real numeric array, and as a concrete one if it is, whether or not a trace is under way."""
    if isinstance(value, jax.core.Tracer):
        array = jnp.asarray(value)
    else:
        if value is None:
            raise ValueError(f"{name}: expected {meaning}; got None")
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size:
            # Without x64 JAX would wrap 64-bit integers around in silence.
            limits = np.iinfo(jax.dtypes.canonicalize_dtype(value.dtype))
            if value.max() > limits.max or value.min() < limits.min:
                raise ValueError(
                    f"{name}: expected {meaning} within {limits.dtype}; got values from {value.min()} to {value.max()}"
                )
        try:
            with jax.ensure_compile_time_eval():
                array = jnp.asarray(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{name}: expected {meaning}; got {type(value).__name__} ({error})") from None
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise ValueError(f"{name}: expected {meaning}; got values of type {array.dtype}")
    return array


def check_key(key: Any) -> Array:
    """Return `key` if it is one random key, of the new or the old style."""
    expected = "key: expected a random key such as jax.random.key(0)"
    if key is None:
        raise ValueError(f"{expected}; got None")
    if not isinstance(key, jax.Array | np.ndarray):
        raise ValueError(f"{expected}; got {type(key).__name__}")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed and not (key.dtype == jnp.uint32 and key.shape in ((2,), (4,))):  # threefry or rbg
        raise ValueError(f"{expected}; got an array of type {key.dtype} and shape {key.shape}")
    if typed and key.shape != ():
        raise ValueError(f"{expected}; got {key.shape} keys (use vmap for many)")
    return jnp.asarray(key)


def check_integer(name: str, value: Any, low: int, high: int | None = None, why_high: str = "") -> int:
    """Return `value` as an int within `[low, high]`."""
    span = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}{why_high}"
    if isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}: expected {span}; got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: expected {span}; got {value!r} of type {type(value).__name__}") from None
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name}: expected {span}; got {number}")
    return number


def check_option(name: str, value: Any, options: Sequence[str]) -> None:
    """Raise unless `value` is one of `options`."""
    if value not in options:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, options))}; got {value!r}")


def check_matrix(name: str, value: Any, meaning: str) -> Array:
    """Return `value` as a numeric array with two axes, none of them empty."""
    array = as_numbers(name, value, meaning)
    if array.ndim != 2:
        raise ValueError(f"{name}: expected {meaning}, two axes; got {array.ndim}, shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name}: expected {meaning}, at least one row and one column; got shape {array.shape}")
    return array


def check_mask(mask: Any, shape: tuple[int, ...]) -> Array | None:
    """Return a mask of the table's shape, True where observed; `None` stays `None`."""
    if mask is None:
        return None
    if not isinstance(mask, jax.Array | np.ndarray):
        raise ValueError(f"mask: expected an array of bool, True where observed; got {type(mask).__name__}")
    if mask.dtype != bool:
        raise ValueError(f"mask: expected bool, True where observed; got values of type {mask.dtype}")
    if mask.shape != shape:
        raise ValueError(f"mask: expected the shape of x, {shape}; got {mask.shape}")
    if isinstance(mask, jax.core.Tracer):
        return mask
    with jax.ensure_compile_time_eval():
        return jnp.asarray(mask)


def check_row_weights(row_weights: Any, num_rows: int) -> Array | None:
    """Return weights `(num_rows,)` that are finite, not negative and not all zero, the largest of them one."""
    if row_weights is None:
        return None
    weights = as_float(as_numbers("row_weights", row_weights, "one weight a row"))
    if weights.shape != (num_rows,):
        raise ValueError(f"row_weights: expected one weight a row, shape ({num_rows},); got shape {weights.shape}")
    if is_concrete(weights):
        values = np.asarray(weights)
        if not np.all(np.isfinite(values)):
            raise ValueError(f"row_weights: expected finite numbers; got {values[~np.isfinite(values)][0]}")
        if values.min() < 0 or values.max() == 0:
            raise ValueError(
                f"row_weights: expected numbers ≥ 0, not all zero; got values from {values.min()} to {values.max()}"
            )
        # Their scale does not matter, and their sum must not leave the floating range.
        with jax.ensure_compile_time_eval():
            weights = jnp.asarray(values / values.max())
    return weights


@jax.jit
def _count_summary(x: Array) -> tuple[Array, Array, Array]:
    """Return each row's sum, its minimum, and how far its entries are from whole numbers: one pass over the data."""
    x = as_float(x)
    return jnp.sum(x, axis=1), jnp.min(x, axis=1), jnp.sum(jnp.abs(x - jnp.round(x)), axis=1)


def first_entry(x: Array, row: int, bad: Any) -> str:
    """Name the first entry of a row that is `bad`, and where it is."""
    values = np.asarray(x[row])
    column = int(np.flatnonzero(bad(values))[0])
    return f"{values[column]} at row {row}, column {column}"


def _check_counts(x: Array) -> np.ndarray:
    sums, smallest, fraction = (np.asarray(part) for part in _count_summary(x))
    bad = np.flatnonzero(~np.isfinite(sums))
    if bad.size:
        row = int(bad[0])
        if np.all(np.isfinite(np.asarray(x[row]))):
            raise ValueError(f"x: expected documents whose length is finite in {sums.dtype}; row {row} is longer")
        raise ValueError(f"x: expected finite counts; got {first_entry(x, row, lambda v: ~np.isfinite(v))}")
    bad = np.flatnonzero(smallest < 0)
    if bad.size:
        raise ValueError(f"x: expected counts ≥ 0; got {first_entry(x, int(bad[0]), lambda v: v < 0)}")
    bad = np.flatnonzero(fraction > 0)
    if bad.size:
        raise ValueError(f"x: expected whole counts; got {first_entry(x, int(bad[0]), lambda v: v != np.round(v))}")
    return sums


def _check_ids(x: Array, num_words: int) -> np.ndarray:
    largest = int(jnp.max(x))
    if largest >= num_words:
        raise ValueError(f"x: expected word ids below num_words = {num_words}; got {largest}")
    return np.asarray(jnp.sum(x >= 0, axis=1))


def check_documents(x: Any, num_words: Any = None, min_words: int = 0) -> tuple[Array, int]:
    """Return documents, counts `(n, d)` or word ids `(n, L)`, and the size of their vocabulary.

    `min_words` is the shortest document that is allowed; the first that is shorter is named by its row.
    """
    if num_words is None:
        x = check_matrix("x", x, "counts (documents, words)")
    else:
        num_words = check_integer("num_words", num_words, 1)
        x = check_matrix("x", x, "word ids (documents, words of a document)")
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(f"x: expected integer word ids where num_words is given; got type {x.dtype}")
    if is_concrete(x):
        # Concrete data may be closed over by a function that is being traced: look at them now, not in the trace.
        with jax.ensure_compile_time_eval():
            lengths = _check_counts(x) if num_words is None else _check_ids(x, num_words)
        short = np.flatnonzero(lengths < min_words)
        if short.size:
            rows = "row" if short.size == 1 else "rows"
            raise ValueError(
                f"x: expected at least {min_words} words in every document; "
                f"got {int(lengths[short[0]])} in row {short[0]} ({short.size} such {rows} in all)"
            )
    return x, x.shape[1] if num_words is None else num_words


def check_number(name: str, value: Any, low: float, high: float | None = None) -> Any:
    """Return `value` if it is traced, or a number within `[low, high]`."""
    if not is_concrete(value):
        return value
    span = f"a number of at least {low:g}" if high is None else f"a number from {low:g} to {high:g}"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected {span}; got {value!r}") from None
    if not (low <= number and (high is None or number <= high)):
        raise ValueError(f"{name}: expected {span}; got {value!r}")
    return value


def check_probabilities(name: str, value: Any, num_axes: int, tolerance: float = 1e-3) -> Array:
    """Return probability vectors, one or the columns of a matrix; concrete ones must sum to one within `tolerance`."""
    array = as_float(as_numbers(name, value, "probabilities"))
    if array.ndim != num_axes or array.size == 0:
        raise ValueError(f"{name}: expected probabilities with {num_axes} axes, not empty; got shape {array.shape}")
    if not is_concrete(array):
        return array
    values = np.asarray(array)
    if not np.all(np.isfinite(values)):
        raise ValueError(f"{name}: expected finite probabilities; got {values[~np.isfinite(values)][0]}")
    if values.min() < 0:
        raise ValueError(f"{name}: expected probabilities ≥ 0; got {values.min()}")
    worst = np.max(np.abs(values.sum(axis=0) - 1))
    if worst > tolerance:
        raise ValueError(f"{name}: expected probabilities that sum to one; the sum is off by {worst:.3g}")
    return array


def check_reals(name: str, value: Any, num_axes: int, *, positive: bool = False) -> Array:
    """Return finite numbers with `num_axes` axes, none of them empty; above zero where `positive`."""
    meaning = "a positive number" if positive else "finite numbers"
    array = as_float(as_numbers(name, value, meaning))
    if array.ndim != num_axes or array.size == 0:
        raise ValueError(f"{name}: expected {meaning} with {num_axes} axes, not empty; got shape {array.shape}")
    if is_concrete(array):
        values = np.asarray(array)
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name}: expected finite numbers; got {values[~np.isfinite(values)][0]}")
        if positive and values.min() <= 0:
            raise ValueError(f"{name}: expected numbers above zero; got {values.min()}")
    return array
