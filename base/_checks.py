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

from latensor.base._arrays import as_float
from latensor.base._input import Plain, as_plain, to_jax


def is_concrete(*arrays: Any) -> bool:
    """Return whether the values of all arrays can be looked at."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays))


def as_numbers(name: str, value: Any, meaning: str, *, allow_bool: bool = False) -> Array:
    """Return `value` as an array of real numbers; concrete values stay concrete, even while a trace is under way.

    Where `allow_bool`, True and False count as 1 and 0.
    """
    if isinstance(value, jax.core.Tracer):
        return _check_kind(name, jnp.asarray(value), meaning, allow_bool)
    plain = as_plain(name, value, meaning)
    if plain.missing is not None:
        raise ValueError(f"{name}: expected {meaning}, none of them missing; got {_describe_missing(plain)}")
    return _check_kind(name, _to_concrete(name, plain, meaning), meaning, allow_bool)


def read_numbers(name: str, value: Any, meaning: str) -> tuple[Array, Plain | None]:
    """Return numbers of which some may be missing, and which; True and False count as 1 and 0. See `merge_missing`."""
    if isinstance(value, jax.core.Tracer):
        return _check_kind(name, jnp.asarray(value), meaning, allow_bool=True), None
    plain = as_plain(name, value, meaning)
    return _check_kind(name, _to_concrete(name, plain, meaning), meaning, allow_bool=True), plain


def merge_missing(name: str, mask: Array | None, plain: Plain | None, num_axes: int) -> Array | None:
    """Return the mask of what was observed, over the leading axes: the given one, and that of a masked array.

    Missing values of a data frame or of a list must be marked in the given mask.
    """
    if plain is None or plain.missing is None:
        return mask
    missing = plain.missing.reshape(*plain.missing.shape[:num_axes], -1).any(axis=-1)
    if plain.masked:
        own = ~missing
        if not isinstance(mask, jax.core.Tracer):
            with jax.ensure_compile_time_eval():
                return jnp.asarray(own if mask is None else own & np.asarray(mask))
        return mask & own
    if mask is None or (is_concrete(mask) and np.any(np.asarray(mask) & missing)):
        each = "" if num_axes == plain.missing.ndim else ".all(axis=1)"
        raise ValueError(
            f"{name}: expected numbers, or a mask that is False where there is none; got {_describe_missing(plain)}: "
            f"pass mask={name}.notna(){each}"
        )
    return mask


def _to_concrete(name: str, plain: Plain, meaning: str) -> Array:
    return plain.values if isinstance(plain.values, jax.core.Tracer) else to_jax(name, plain.values, meaning)


def _describe_missing(plain: Plain) -> str:
    places = np.argwhere(np.asarray(plain.missing))
    return f"no value at {plain.where(tuple(int(i) for i in places[0]))} ({len(places)} missing in all)"


def _check_kind(name: str, array: Array, meaning: str, allow_bool: bool) -> Array:
    if allow_bool and array.dtype == bool:
        return array.astype(jnp.int32)
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
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape != ():
            raise ValueError(f"{expected}; got {key.shape} keys (use vmap for many)")
        return jnp.asarray(key)
    if key.dtype != jnp.uint32 or key.shape not in ((2,), (4,)):
        raise ValueError(f"{expected}; got an array of type {key.dtype} and shape {key.shape}")
    # Keys of the old style do not say what they are, and JAX takes all of them for the default kind.
    default_size = 2 if getattr(jax.config, "jax_default_prng_impl", "threefry2x32") == "threefry2x32" else 4
    if key.shape == (default_size,):
        return jnp.asarray(key)
    return jax.random.wrap_key_data(jnp.asarray(key), impl="rbg" if key.shape == (4,) else "threefry2x32")


def check_integer(name: str, value: Any, low: int, high: int | None = None, why_high: str = "") -> int:
    """Return `value` as an int within `[low, high]`; without `high`, within 32 bits."""
    span = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}{why_high}"
    if isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}: expected {span}; got {value!r}")
    if isinstance(value, jax.core.Tracer):
        raise ValueError(
            f"{name}: expected {span}, known before tracing; got a traced value: "
            f'close over it, or pass static_argnames="{name}" to jax.jit'
        )
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: expected {span}; got {value!r} of type {type(value).__name__}") from None
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name}: expected {span}; got {number}")
    if number > 2**31 - 1:
        raise ValueError(f"{name}: expected {span}, within 32 bits; got {number}")
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
    """Return `value` as a numeric array with two axes, none of them empty; True and False count as 1 and 0."""
    array = as_numbers(name, value, meaning, allow_bool=True)
    if array.ndim != 2:
        hint = f": pass {name}[:, None] for a single column, {name}[None] for a single row" if array.ndim == 1 else ""
        raise ValueError(f"{name}: expected {meaning}, two axes; got {array.ndim}, shape {array.shape}{hint}")
    if array.size == 0:
        raise ValueError(f"{name}: expected {meaning}, at least one row and one column; got shape {array.shape}")
    return array


def check_mask(mask: Any, shape: tuple[int, ...], of: str = "x") -> Array | None:
    """Return a mask of a given shape, True where observed; `None` stays `None`. One and zero stand for True and False.

    A mask of floating numbers is refused: these may be weights, or the data.
    """
    if mask is None:
        return None
    meaning = "True where observed and False elsewhere, or 1 and 0"
    if not isinstance(mask, jax.core.Tracer):
        plain = as_plain("mask", mask, meaning)
        if plain.missing is not None:
            raise ValueError(f"mask: expected {meaning}; got {_describe_missing(plain)}")
        mask = _to_concrete("mask", plain, meaning)
    if mask.shape != shape:
        raise ValueError(f"mask: expected the shape of {of}, {shape}; got {mask.shape}")
    if jnp.issubdtype(mask.dtype, jnp.integer):
        if not is_concrete(mask):
            return mask != 0
        values = np.asarray(mask)
        if np.any((values != 0) & (values != 1)):
            raise ValueError(f"mask: expected {meaning}; got {values[(values != 0) & (values != 1)][0]}")
        with jax.ensure_compile_time_eval():
            return jnp.asarray(values == 1)
    if mask.dtype != bool:
        raise ValueError(f"mask: expected {meaning}; got values of type {mask.dtype}")
    return mask


def check_axes(name: str, value: Any, axes: str) -> Array:
    """Return `value` as floating numbers whose axes are named by `axes`, such as `"d d"`: the same name, the same size.

    None of them may be empty.
    """
    names = axes.split()
    meaning = f"numbers ({', '.join(names)}{',' if len(names) == 1 else ''})"
    array = as_float(as_numbers(name, value, meaning))
    if array.ndim != len(names) or array.size == 0 or len(set(zip(names, array.shape, strict=True))) > len(set(names)):
        raise ValueError(f"{name}: expected {meaning}, none of the axes empty; got shape {array.shape}")
    return array


def first_entry(x: Array, row: int, bad: Any) -> str:
    """Name the first entry of a row that is `bad`, and where it is."""
    with jax.ensure_compile_time_eval():
        values = np.asarray(x[row])
    column = int(np.flatnonzero(bad(values))[0])
    return f"{values[column]} at row {row}, column {column}"
