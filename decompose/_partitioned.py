"""Factorization of the tensors of all partitions, and a common order for their components.

The columns of each factorization come in an order of their own. The anchors, which all partitions share, line them up.

Source: Tan, Mukherjee (2017), Partitioned tensor factorizations for learning mixed membership models, §4.1, §4.2, §4.7.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from latensor.base import check_axes, check_key, check_option, small_jit
from latensor.decompose._cp import nonnegative_cp
from latensor.decompose._cp_alternation import CPFactors
from latensor.decompose._cp_updates import Factors, regress_modes
from latensor.decompose._match import match_columns
from latensor.decompose._status import Status

# Partitions that start from the pilot start close to their solution: their tolerance is this much larger.
_SOONER = 10


class PartitionedFactors(NamedTuple):
    """Factors of all partitions, their columns in a common order."""

    weights: Float[Array, "P k"]
    factors: tuple[Float[Array, "P r1 k"], Float[Array, "P r2 k"], Float[Array, "P r3 k"]]
    matched: Bool[Array, " P"]
    """Whether the matching was a permutation; otherwise the best assignment was used."""
    unexplained: Float[Array, " P"]
    """`|M − M̃| / |M|` of each partition."""
    num_iters: Int[Array, " P"]
    """Sweeps of each partition."""
    status: Int[Array, " P"]


def partitioned_nonnegative_cp(
    key: Array,
    tensors: Float[Array, "P r1 r2 r3"],
    is_anchor: tuple[Bool[Array, " r1"], Bool[Array, " r2"], Bool[Array, " r3"]],
    rank: int,
    method: Literal["pqp", "hals", "wnmf", "multiplicative"] = "pqp",
    *,
    matching: Literal["procrustes", "angle", "assignment"] = "procrustes",
    start: Literal["pilot", "random"] = "pilot",
    num_restarts: int = 8,
    accelerate: bool = True,
    tol: float | Float[Array, ""] = 1e-5,
    max_iters: int | Int[Array, ""] = 2000,
) -> PartitionedFactors:
    """Factor the tensors of all partitions as one batch, and line their components up.

    Args:
      key: a random key, for the starts.
      tensors: one per partition, all of one shape; padded rows are zero.
      is_anchor: which rows of each mode belong to anchors, the same in all partitions.
      rank: number of components.
      method: as for `nonnegative_cp`.
      matching: how the columns of the stacked anchors of two partitions are matched; see `match_columns`. If the result
        is not a permutation, `matched` is False and the best assignment is used.
      start: `"pilot"` factors the first partition from `num_restarts` random starts and starts all others from its
        anchors, their own rows by regression on these; `"random"` factors every partition from `num_restarts` random
        starts of its own, as in the paper.
      num_restarts: number of random starts.
      accelerate: as for `nonnegative_cp`.
      tol: as for `nonnegative_cp`; ten times that for partitions that start from the pilot.
      max_iters: as for `nonnegative_cp`.

    Returns:
      `PartitionedFactors`, in the order of the partition that is explained best.

    Cost: as for `nonnegative_cp`, per partition. All partitions run to the slowest.

    """
    key, tensors = check_key(key), check_axes("tensors", tensors, "partitions r1 r2 r3")
    is_anchor = _check_is_anchor(is_anchor, tensors.shape[1:])
    check_option("start", start, ("pilot", "random"))
    check_option("matching", matching, ("procrustes", "angle", "assignment"))
    options = {"rank": rank, "method": method, "accelerate": accelerate, "max_iters": max_iters}
    if start == "random":
        parts = _factor_each(key, tensors, num_restarts=num_restarts, tol=tol, **options)
    else:
        parts = _factor_first(key, tensors, num_restarts=num_restarts, tol=tol, **options)
        if tensors.shape[0] > 1:
            parts = _factor_from_pilot(key, tensors, parts, is_anchor, tol=_SOONER * tol, **options)
    return line_up(parts, is_anchor, matching)


def _check_is_anchor(is_anchor: Any, sizes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    if not isinstance(is_anchor, tuple | list) or len(is_anchor) != 3:
        raise ValueError(f"is_anchor: expected three arrays of bool, one per mode; got {type(is_anchor).__name__}")
    one, two, three = (jnp.asarray(part) for part in is_anchor)
    shapes = (*one.shape, *two.shape, *three.shape)
    if shapes != tuple(sizes) or not all(part.dtype == bool for part in (one, two, three)):
        raise ValueError(f"is_anchor: expected bool for each of {sizes} rows, as in tensors; got shapes {shapes}")
    return one, two, three


# Three stages rather than one: each compiles for itself, and the cheap last one with less effort.
_OPTIONS = ("rank", "method", "num_restarts", "accelerate")


@small_jit(static_argnames=_OPTIONS)
def _factor_each(key: Array, tensors: Array, **options: Any) -> CPFactors:
    """Factor each partition from random starts of its own."""
    keys = jax.random.split(key, tensors.shape[0])
    return jax.vmap(lambda key, tensor: nonnegative_cp(key, tensor, **options))(keys, tensors)


@small_jit(static_argnames=_OPTIONS)
def _factor_first(key: Array, tensors: Array, **options: Any) -> CPFactors:
    """Factor the first partition from random starts: a batch of one."""
    return jax.tree.map(lambda leaf: leaf[None], nonnegative_cp(key, tensors[0], **options))


@small_jit(static_argnames=_OPTIONS)
def _factor_from_pilot(
    key: Array, tensors: Array, pilot: CPFactors, is_anchor: tuple[Array, Array, Array], **options: Any
) -> CPFactors:
    """Factor all partitions, starting from the anchors of the first."""
    root = jnp.cbrt(pilot.weights[0])[None, :]
    a, b, c = (factor[0] * root for factor in pilot.factors)
    if options["method"] == "pqp" and options["accelerate"]:
        # Close to the solution momentum gains little, and all lanes wait for the slowest.
        options["num_updates"] = 1

    def factor(tensor: Array) -> CPFactors:
        return nonnegative_cp(key, tensor, start=regress_modes(tensor, (a, b, c), is_anchor), **options)

    return jax.vmap(factor)(tensors)


def _stack_anchors(factors: Factors, is_anchor: tuple[Array, Array, Array]) -> Float[Array, "rows k"]:
    """Return the rows of all three modes on top of each other, those that are not anchors set to zero."""
    return jnp.concatenate([jnp.where(m[:, None], f, 0) for f, m in zip(factors, is_anchor, strict=True)])


@small_jit(static_argnames="matching", optimize=False)
def line_up(
    partitions: CPFactors,
    is_anchor: tuple[Bool[Array, " r1"], Bool[Array, " r2"], Bool[Array, " r3"]],
    matching: Literal["procrustes", "angle", "assignment"],
) -> PartitionedFactors:
    """Put the columns of all partitions in the order of the one that is explained best.

    Args:
      partitions: factors of all partitions, as `vmap` stacks them.
      is_anchor: which rows of each mode belong to anchors, the same in all partitions.
      matching: how the columns of the stacked anchors are matched; see `match_columns`. If the result is not a
        permutation, `matched` is False and the best assignment is used.

    Returns:
      `PartitionedFactors`.

    """
    stacks = jax.vmap(lambda *factors: _stack_anchors(factors, is_anchor))(*partitions.factors)
    # A partition without full rank, or with a NaN, cannot be the reference, however well it is explained.
    best = jnp.lexsort((partitions.unexplained, partitions.status >= Status.RANK_DEFICIENT))[0]
    reference = stacks[best]

    def order(stack: Array) -> tuple[Array, Array]:
        match = match_columns(reference, stack, matching)
        fallback = match_columns(reference, stack, "assignment") if matching != "assignment" else match
        return jnp.where(match.is_permutation, match.permutation, fallback.permutation), match.is_permutation

    orders, matched = jax.vmap(order)(stacks)

    def arrange(array: Array) -> Array:
        index = orders if array.ndim == 2 else orders[:, None, :]
        return jnp.take_along_axis(array, index, axis=-1)

    a, b, c = (arrange(factor) for factor in partitions.factors)
    return PartitionedFactors(
        arrange(partitions.weights),
        (a, b, c),
        matched,
        partitions.unexplained,
        partitions.num_iters,
        partitions.status,
    )
