"""Products at full precision, guarded division, types of numbers: the arithmetic that every layer shares."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Integer, Num

from latensor.base._implicit import attach_tangent, freeze


def matmul(first: Array, *others: Array) -> Array:
    """Return the product of two or more matrices, from left to right, in full precision.

    By default GPUs and TPUs multiply float32 with 10-bit mantissas or less, which is too coarse for moments.
    """
    product = first
    for other in others:
        product = jnp.matmul(product, other, precision="highest")
    return product


def einsum(subscripts: str, *operands: Array) -> Array:
    """Return `jnp.einsum` in full precision."""
    return jnp.einsum(subscripts, *operands, precision="highest")


def positive_or_one(values: Array) -> Array:
    """Return `values`, with one in place of every value that is not above zero: safe to divide by.

    Enough where the numerator vanishes with the denominator. A NaN in the numerator still shows in the quotient.
    """
    return jnp.where(values > 0, values, 1)


def divide(numerator: Any, denominator: Array, otherwise: Any = 0) -> Array:
    """Return `numerator / denominator`, and `otherwise` where the denominator is not above zero (NaN included).

    Where the numerator is finite, neither the value nor the derivative is NaN. Ranks must agree, scalars apart.
    """
    return jnp.where(denominator > 0, numerator / positive_or_one(denominator), otherwise)


def square_root(values: Array) -> Array:
    """Return the square root, and zero where a value is not above zero; there the derivative is zero, too."""
    return jnp.where(values > 0, jnp.sqrt(positive_or_one(values)), 0)


def divide_by_largest(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return numbers divided by the largest of them, of any scale; as they are where none is above zero.

    Compiled code takes numbers below the smallest normal one for zero, and divides by multiplying with `1 / x`, which
    for a huge `x` is such a number. So everything is moved by half of the range first, and the digits of the smallest
    numbers are read off their bits.
    """
    given, values = values, freeze(values)
    finfo = jnp.finfo(values.dtype)
    half = finfo.maxexp // 2
    bits = lax.bitcast_convert_type(values, jnp.int32 if finfo.bits == 32 else jnp.int64)
    subnormal = (bits > 0) & (bits < 1 << finfo.nmant)
    digits = bits.astype(values.dtype) * 2.0 ** (finfo.minexp - finfo.nmant + half)
    raised = jnp.where(subnormal, digits, values * 2.0**half)
    moved = jnp.where(jnp.max(values) < 1, raised, values * 2.0**-half)
    # With a derivative of its own: that of the steps would leave the range.
    return attach_tangent(_ratio_tangent, moved / positive_or_one(jnp.max(moved)), given)


def _ratio_tangent(ratio: Array, values: Array, change: Array) -> Array:
    largest = jnp.argmax(values)
    return divide(change - ratio * change.reshape(-1)[largest], jnp.broadcast_to(jnp.max(values), values.shape))


def float_type(dtype: Any) -> Any:
    """Return the type itself if it is floating; the default one (float64 only under x64) for integers and 16 bits."""
    keep = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize >= 4
    return dtype if keep else jnp.result_type(float)


def as_float(x: Num[Array, "..."]) -> Float[Array, "..."]:
    """Return `x` in its `float_type`."""
    dtype = float_type(x.dtype)
    return x if x.dtype == dtype else x.astype(dtype)


def as_int32(x: Integer[Array, "..."]) -> Int[Array, "..."]:
    """Return integers as int32, clipped to its range: a code that is out of range must not wrap into it.

    Concrete arrays stay concrete, even while a trace is under way.
    """
    if x.dtype == jnp.int32:
        return x
    if isinstance(x, jax.core.Tracer):
        return _clip_to_int32(x)
    with jax.ensure_compile_time_eval():
        return _clip_to_int32(x)


def _clip_to_int32(x: Array) -> Array:
    limits = jnp.iinfo(jnp.int32)
    if x.dtype.itemsize >= 4:
        x = jnp.minimum(x, limits.max)
        if not jnp.issubdtype(x.dtype, jnp.unsignedinteger):
            x = jnp.maximum(x, limits.min)
    return x.astype(jnp.int32)


def machine_epsilon(dtype: Any) -> float:
    """Return the distance from one to the next number, as a Python number, which promotes no array's type."""
    return float(jnp.finfo(dtype).eps)


def smallest_normal(dtype: Any) -> float:
    """Return the smallest positive number of full precision, as a Python number."""
    return float(jnp.finfo(dtype).tiny)
