"""Checks at the boundary: every message names the argument, what was expected and what came.

Shapes, types and options are always checked. Values are checked where arrays are concrete; under a trace (`jit`,
`vmap`) they cannot be, and the `status` of the result reports bad ones.
"""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def is_concrete(*arrays: Any) -> bool:
    """Return whether the values of all arrays can be looked at."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays))


def as_numbers(name: str, value: Any, meaning: str) -> Array:
    """Return `value` as an array of real numbers; concrete values stay concrete, even while a trace is under way."""
    if isinstance(value, jax.core.Tracer):
        array = jnp.asarray(value)
    else:
        if value is None:
            raise ValueError(f"{name}: expected {meaning}; got None")
        try:
            whole = np.asarray(value) if isinstance(value, list | tuple) and is_concrete(value) else value
            with jax.ensure_compile_time_eval():
                array = jnp.asarray(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{name}: expected {meaning}; got {type(value).__name__} ({error})") from None
        if isinstance(whole, np.ndarray) and whole.dtype.kind in "iu" and whole.size:
            # Without x64 JAX wraps 64-bit integers around in silence.
            limits = np.iinfo(array.dtype)
            if whole.max() > limits.max or whole.min() < limits.min:
                raise ValueError(
                    f"{name}: expected {meaning} within {limits.dtype}; got values from {whole.min()} to {whole.max()}"
                )
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


def check_bool(name: str, value: Any) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}: expected True or False; got {value!r}")
    return bool(value)


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


def check_matrix(name: str, value: Any, meaning: str) -> Array:
    """Return `value` as a numeric array with two axes, none of them empty."""
    array = as_numbers(name, value, meaning)
    if array.ndim != 2:
        raise ValueError(f"{name}: expected {meaning}, two axes; got {array.ndim}, shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name}: expected {meaning}, at least one row and one column; got shape {array.shape}")
    return array


def check_mask(mask: Any, shape: tuple[int, ...], of: str = "x") -> Array | None:
    """Return a mask of a given shape, True where observed; `None` stays `None`."""
    if mask is None:
        return None
    if not isinstance(mask, jax.Array | np.ndarray):
        raise ValueError(f"mask: expected an array of bool, True where observed; got {type(mask).__name__}")
    if mask.dtype != bool:
        raise ValueError(f"mask: expected bool, True where observed; got values of type {mask.dtype}")
    if mask.shape != shape:
        raise ValueError(f"mask: expected the shape of {of}, {shape}; got {mask.shape}")
    if isinstance(mask, jax.core.Tracer):
        return mask
    with jax.ensure_compile_time_eval():
        return jnp.asarray(mask)


def first_entry(x: Array, row: int, bad: Any) -> str:
    """Name the first entry of a row that is `bad`, and where it is."""
    with jax.ensure_compile_time_eval():
        values = np.asarray(x[row])
    column = int(np.flatnonzero(bad(values))[0])
    return f"{values[column]} at row {row}, column {column}"
