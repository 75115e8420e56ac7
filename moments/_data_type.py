"""The common base of the data types: a pytree of arrays, and checks of the fields."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from latensor.base import as_float, as_int32, as_numbers, divide_by_largest, is_concrete

Data = TypeVar("Data", bound="Rows")


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Base of the data types: an immutable pytree."""

    _static: ClassVar[tuple[str, ...]] = ()
    """Fields that are not arrays: part of the type, like static arguments of `jit`."""

    def _replace(self: Data, **changes: Any) -> Data:
        """Return a copy with some fields changed, unchecked."""
        values = dict(_items(self))
        unknown = sorted(changes.keys() - values.keys())
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(unknown)}")
        return _make(type(self), {**values, **changes})

    def _set(self, **values: Any) -> None:
        """Set the fields of a new object; it cannot be changed otherwise."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        def short(value: Any) -> str:
            return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else repr(value)

        return f"{type(self).__name__}({', '.join(f'{name}={short(value)}' for name, value in _items(self))})"


def _items(data: Rows) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(data, field.name)) for field in fields(data))


def _make(kind: type[Data], values: dict[str, Any]) -> Data:
    data = object.__new__(kind)
    data._set(**values)
    return data


def register_data_type(kind: type[Data]) -> type[Data]:
    """Make a data type a pytree. Unflattening checks nothing, since JAX also unflattens leaves that are not arrays."""
    leaves = [field.name for field in fields(kind) if field.name not in kind._static]

    def flatten(data: Data) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children = [(jax.tree_util.GetAttrKey(name), getattr(data, name)) for name in leaves]
        return children, tuple(getattr(data, name) for name in kind._static)

    def unflatten(static: tuple[Any, ...], children: Any) -> Data:
        return _make(kind, dict(zip((*leaves, *kind._static), (*children, *static), strict=True)))

    jax.tree_util.register_pytree_with_keys(kind, flatten, unflatten)
    return kind


def check_row_weights(row_weights: Any, num_rows: int, row: str = "row") -> Float[Array, " n"] | None:
    """Return weights `(num_rows,)`, scaled so that the largest is one; concrete ones must be finite, ≥ 0, not all 0.

    Only ratios of weights matter; the scale keeps their sum within the floating range. Traced weights all become NaN
    where one of them is not valid: the status shows it.
    """
    if row_weights is None:
        return None
    weights = as_float(as_numbers("row_weights", row_weights, f"one weight per {row}"))
    if weights.shape != (num_rows,):
        raise ValueError(f"row_weights: expected one weight per {row}, shape ({num_rows},); got shape {weights.shape}")
    if not is_concrete(weights):
        scaled = divide_by_largest(weights)
        # Not `weights > 0`: compiled code takes the smallest numbers for zero.
        valid = jnp.all((weights >= 0) & jnp.isfinite(weights)) & (jnp.max(scaled) > 0)
        return jnp.where(valid, scaled, jnp.nan)
    values = np.asarray(weights)
    if not np.all(np.isfinite(values)):
        raise ValueError(f"row_weights: expected finite numbers; got {values[~np.isfinite(values)][0]}")
    if values.min() < 0 or values.max() == 0:
        raise ValueError(
            f"row_weights: expected numbers ≥ 0, not all zero; got values from {values.min()} to {values.max()}"
        )
    with jax.ensure_compile_time_eval():
        return jnp.asarray(values / values.max())


def check_symbols(x: Integer[Array, "..."]) -> Int[Array, "..."]:
    """Return symbols as int32; concrete ones must fit."""
    if is_concrete(x) and not np.can_cast(x.dtype, np.int32):
        limits, values = np.iinfo(np.int32), np.asarray(x)
        if values.max() > limits.max or values.min() < limits.min:
            raise ValueError(f"x: expected symbols within int32; got values from {values.min()} to {values.max()}")
    return as_int32(x)


def check_lengths(lengths: Any, shape: tuple[int, ...]) -> Int[Array, " S"] | None:
    """Return lengths `(S,)` of sequences in an array of this shape, `(time,)` or `(sequences, time)`."""
    if lengths is None:
        return None
    array = as_numbers("lengths", lengths, "the length of each sequence")
    batched = len(shape) == 2
    if array.ndim != 1 or array.size == 0 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(
            f"lengths: expected whole numbers, one per sequence; got shape {array.shape} and type {array.dtype}"
        )
    if batched and array.shape[0] != shape[0]:
        raise ValueError(f"lengths: expected one for each of the {shape[0]} sequences of x; got {array.shape[0]}")
    if is_concrete(array):
        # Python integers: a sum of 64-bit integers may wrap around.
        values = [int(value) for value in np.asarray(array)]
        if min(values) < 0:
            raise ValueError(f"lengths: expected numbers ≥ 0; got {min(values)} at position {np.argmin(values)}")
        if batched and max(values) > shape[1]:
            raise ValueError(
                f"lengths: expected at most {shape[1]}, the second axis of x; "
                f"got {max(values)} at position {np.argmax(values)}"
            )
        if not batched and sum(values) != shape[0]:
            raise ValueError(f"lengths: expected a sum of {shape[0]}, the length of x; got {sum(values)}")
    return as_int32(array)


def as_data(kind: type[Data], data: Any, given: dict[str, Any]) -> Data | None:
    """Return `data` if it is of this kind, `None` if it is not a data type; no field may be `given` a second time."""
    if not isinstance(data, Rows):
        return None
    if not isinstance(data, kind):
        name = kind.__name__
        raise ValueError(f"x: expected an array or a latensor.moments.{name}; got {type(data).__name__}")
    for name, value in given.items():
        if value is not None:
            kind_name = type(data).__name__
            raise ValueError(f"{name}: expected None where x is a {kind_name}: make it a field of that; got both")
    return data
