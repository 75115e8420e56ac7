"""What users bring, as plain arrays: data frames, masked and object arrays, lists, numbers of other machines.

pandas and scipy are not needed for this: their objects are known by what they can do.
"""

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Plain(NamedTuple):
    """An array that JAX can take, and which of its entries are missing."""

    values: Any
    """A NumPy or JAX array, or a tracer."""
    missing: np.ndarray | None
    """True where a masked array or a data frame has no value; `None` where it has all of them. Zero or NaN there."""
    masked: bool
    """Whether a masked array says so, which is meant as a mask."""
    where: Callable[[tuple[int, ...]], str]
    """Names the place of an entry."""


def place_of(index: tuple[int, ...]) -> str:
    """Name the place of an entry of an array."""
    if len(index) == 2:
        return f"row {index[0]}, column {index[1]}"
    return f"position {', '.join(str(part) for part in index)}"


def is_frame(value: Any) -> bool:
    """Return whether this is a pandas DataFrame or Series, or something that acts as one."""
    return hasattr(value, "to_numpy") and hasattr(value, "isna") and hasattr(value, "shape")


def refuse_sparse(name: str, value: Any, meaning: str) -> None:
    """Raise where `value` is a sparse matrix of scipy or JAX, which would be unpacked entry by entry, or not at all."""
    dense = next((method for method in ("toarray", "todense") if hasattr(value, method)), None)
    if dense is None or isinstance(value, np.ndarray | jax.Array):
        return
    gigabytes = 4e-9 * float(np.prod([int(size) for size in value.shape]))
    raise ValueError(
        f"{name}: expected {meaning}, dense; got a sparse {type(value).__name__} of shape {tuple(value.shape)}: "
        f"pass {name}.{dense}(), {gigabytes:.3f} GB in float32 (naive_bayes also takes word ids, with num_words=)"
    )


def has_masked_parts(value: Any) -> bool:
    """Return whether this is a list of NumPy's masked arrays."""
    return isinstance(value, list | tuple) and any(isinstance(part, np.ma.MaskedArray) for part in value)


def as_plain(name: str, value: Any, meaning: str) -> Plain:
    """Return `value` as an array of numbers in the byte order of this machine; what is not numbers is refused."""
    if isinstance(value, jax.Array):
        return Plain(value, None, False, place_of)
    refuse_sparse(name, value, meaning)
    if value is None:
        raise ValueError(f"{name}: expected {meaning}; got None")
    if is_frame(value):
        return _from_frame(name, value, meaning)
    if isinstance(value, bool | int | float):
        return Plain(value, None, False, place_of)  # whose type gives way to that of others
    missing, masked = None, isinstance(value, np.ma.MaskedArray)
    if masked:
        missing, value = np.ma.getmaskarray(value), value.data
    elif has_masked_parts(value):
        raise ValueError(
            f"{name}: expected {meaning}; got a list of masked arrays, whose masks would be lost: pass "
            f"numpy.ma.stack({name}), or plain arrays and mask="
        )
    elif isinstance(value, list | tuple) and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
        return Plain(_stack(name, value, meaning), None, False, place_of)
    array = _as_array(name, value, meaning)
    if array.dtype.kind == "O":
        array, absent = _from_objects(name, array, meaning, place_of)
        missing = absent if missing is None else missing | absent
    return Plain(_as_native(array), missing if missing is not None and missing.any() else None, masked, place_of)


def _stack(name: str, value: Any, meaning: str) -> Any:
    """Return nested lists of JAX arrays, or of tracers, as one array."""
    try:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
            return jnp.asarray(value)
        with jax.ensure_compile_time_eval():
            return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise _refusal(name, value, meaning, error) from None


def _as_array(name: str, value: Any, meaning: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _refusal(name, value, meaning, error) from None
    if array.dtype.kind not in "biufO" or (array.dtype.kind == "O" and array.ndim == 0):
        got = f"values of type {array.dtype}" if array.dtype.kind in "cmMV" else type(value).__name__
        if array.dtype.kind in "US" and array.size and not isinstance(value, str | bytes):
            first = str(array.reshape(-1)[0])[:40]
            hint = "number words, letters or categories first, as numpy.unique(return_inverse=True) does"
            got = f"text ({first!r}): {hint}"
        raise ValueError(f"{name}: expected {meaning}; got {got}")
    return array


def _refusal(name: str, value: Any, meaning: str, error: Exception) -> ValueError:
    # The first line: the others may be the data themselves.
    reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return ValueError(f"{name}: expected {meaning}; got {type(value).__name__} ({reason})")


def _as_native(array: np.ndarray) -> np.ndarray:
    """Return numbers of another byte order, or wider than 64 bits, as JAX takes them."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):
            return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def is_missing(entry: Any) -> bool:
    """Return whether an object stands for no value: None, NaN, the NA and NaT of pandas."""
    return (
        entry is None or type(entry).__name__ in ("NAType", "NaTType") or (isinstance(entry, float) and entry != entry)
    )


def _from_objects(
    name: str, array: np.ndarray, meaning: str, where: Callable[[tuple[int, ...]], str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers that were stored as Python objects, integers as such, and which of them are missing."""
    flat = list(array.reshape(-1))
    missing = np.array([is_missing(entry) for entry in flat], bool).reshape(array.shape)
    for position, entry in enumerate(flat):
        if not is_missing(entry) and not isinstance(entry, numbers.Real):
            index = tuple(int(part) for part in np.unravel_index(position, array.shape))
            text = repr(entry) if len(repr(entry)) < 40 else type(entry).__name__
            raise ValueError(f"{name}: expected {meaning}; got {text} at {where(index)}")
    whole = all(isinstance(entry, numbers.Integral) for entry, no in zip(flat, missing.flat, strict=True) if not no)
    filled = [(0 if whole else np.nan) if no else entry for entry, no in zip(flat, missing.flat, strict=True)]
    try:
        return np.array(filled, np.int64 if whole else np.float64).reshape(array.shape), missing
    except OverflowError as error:
        raise _refusal(name, array, meaning, error) from None


def _from_frame(name: str, frame: Any, meaning: str) -> Plain:
    """Return the numbers of a data frame or a series, column by column, so that a message can name the column."""
    single = len(frame.shape) == 1
    labels = [getattr(frame, "name", None)] if single else list(frame.columns)
    columns, absent = [], []
    for place, label in enumerate(labels):
        column = frame if single else frame.iloc[:, place]
        values, missing = _from_column(name, column, meaning, f"column {label!r}")
        columns.append(values)
        absent.append(missing)
    kind = np.result_type(*columns) if columns else np.dtype(float)
    values = np.stack([column.astype(kind) for column in columns], axis=-1) if columns else np.zeros(frame.shape)
    missing = np.stack(absent, axis=-1) if absent else np.zeros(frame.shape, bool)
    if single:
        values, missing = values[..., 0], missing[..., 0]

    def where(index: tuple[int, ...]) -> str:
        return f"row {index[0]}, column {labels[0 if single else index[1]]!r}"

    return Plain(values, missing if missing.any() else None, False, where)


def _from_column(name: str, column: Any, meaning: str, label: str) -> tuple[np.ndarray, np.ndarray]:
    dtype, missing = column.dtype, np.asarray(column.isna(), bool)
    # Types of pandas' own have a kind too: "O" for categories and text, "M" for dates.
    kind = getattr(dtype, "kind", "O")
    if kind == "O" and str(dtype) == "object":
        values, missing = _from_objects(name, np.asarray(column), meaning, lambda index: f"row {index[0]}, {label}")
        return values, missing
    if kind not in "biuf":
        hint = "its codes (.cat.codes), or leave it out" if str(dtype) == "category" else "numbers, or leave it out"
        raise ValueError(f"{name}: expected {meaning}; {label} is of type {dtype}: pass {hint}")
    if isinstance(dtype, np.dtype):
        return _as_native(np.asarray(column)), missing
    plain = {"b": bool, "i": np.int64, "u": np.uint64, "f": np.float64}[kind]
    return column.to_numpy(dtype=plain, na_value=np.nan if kind == "f" else 0), missing


def to_jax(name: str, values: Any, meaning: str) -> jax.Array:
    """Return a concrete array as one of JAX; numbers that its type cannot hold are refused, not wrapped around."""
    try:
        with jax.ensure_compile_time_eval(), np.errstate(over="ignore"):
            array = jnp.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise _refusal(name, values, meaning, error) from None
    if not isinstance(values, np.ndarray) or values.dtype == array.dtype or not values.size:
        return array
    if values.dtype.kind in "iu":
        # Without x64 JAX wraps 64-bit integers around in silence.
        limits = np.iinfo(array.dtype)
        if values.max() > limits.max or values.min() < limits.min:
            raise ValueError(
                f"{name}: expected {meaning} within {limits.dtype}; got values from {values.min()} to {values.max()}"
            )
    elif values.dtype.kind == "f" and np.isinf(np.asarray(array)).any():
        lost = np.isfinite(values) & np.isinf(np.asarray(array))
        if lost.any():
            raise ValueError(
                f"{name}: expected {meaning} within {array.dtype}, up to {float(jnp.finfo(array.dtype).max):.3g}; got "
                f'{values[lost][0]:g}: rescale, or use float64 by jax.config.update("jax_enable_x64", True)'
            )
    return array


def missing_hint(present: np.ndarray, mask: Any, without_mask: str) -> str:
    """Return what to do about an entry that is not there (NaN, a code below zero) though it is marked as observed."""
    if mask is None:
        return without_mask
    mask = np.asarray(mask)
    if (~present & ~mask).any() or mask.all():
        return ""
    return " (all missing values are marked as observed: a mask is True where observed; did you mean ~mask?)"
