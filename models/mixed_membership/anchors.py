"""Which variables are anchors, and how the others are divided into partitions."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from latensor.base import is_concrete, small_jit
from latensor.decompose import Partitions, choose_anchors, partition_variables
from latensor.decompose.internal import anchor_capacity
from latensor.models.mixed_membership.moments import Summary, find_loadings
from latensor.models.mixed_membership.options import ANCHOR_ROOM, Options, count_partitions
from latensor.moments import Moments

# Random combinations of all variables beyond the rank, for the space that the tables span.
_OVERSAMPLING = 8

Groups = tuple[Any, Any, Any]
"""Variables of each mode, three vectors of integers."""


class Division(NamedTuple):
    """Anchors, and partitions that contain them."""

    anchors: Groups
    partitions: Partitions


@small_jit(static_argnames=("options", "dtype"), optimize=False)
def draw_mixing(key: Array, options: Options, dtype: Any) -> Float[Array, "rows m"]:
    """Return random combinations of all stacked rows."""
    width = options.num_components + _OVERSAMPLING
    return jax.random.normal(jax.random.split(key)[0], (options.shares.num_rows, width), dtype)


@small_jit(static_argnames="options", optimize=False)
def anchors_of_table(summary: Summary, total: Float[Array, ""], options: Options) -> Int[Array, "3 q"]:
    """Choose anchors by a first pass over a table."""
    shares = options.shares
    loadings = find_loadings(summary, total, shares, options.num_components)
    return choose_anchors(loadings, shares.sizes, options.num_anchors)


@small_jit(static_argnames="options", optimize=False)
def anchors_of_moments(moments: Moments, options: Options) -> Int[Array, "3 q"]:
    """Choose anchors by dense moments."""
    loadings = jnp.linalg.eigh(moments.second)[1][:, -options.num_components :]
    return choose_anchors(loadings, options.shares.sizes, options.num_anchors)


def settle_anchors(chosen: Int[Array, "3 q"], options: Options) -> Options:
    """Return options with the anchors of variables that differ in size, as many as the rank needs; on the host."""
    if not is_concrete(chosen):
        raise ValueError("anchors: expected to be given under jit or vmap, where variables differ in size; got None")
    sizes, wanted = options.shares.sizes, math.ceil(ANCHOR_ROOM * options.num_components) + 1
    groups = []
    for group in np.asarray(chosen).tolist():
        enough = [q for q in range(1, len(group) + 1) if anchor_capacity([sizes[j] for j in group[:q]]) >= wanted]
        groups.append(tuple(group[: enough[0]] if enough else group))
    return options._replace(anchors=tuple(groups))


def divide_variables(chosen: Int[Array, "3 q"] | None, options: Options) -> Division:
    """Return the partitions, with the anchors `chosen` or those of the options."""
    anchors: Any = options.anchors if chosen is None else chosen
    if chosen is not None and is_concrete(chosen):  # then all of it happens in NumPy
        anchors = np.asarray(chosen).tolist()
    number = count_partitions(options, sum(len(group) for group in anchors))
    partitions = partition_variables(options.shares.sizes, number, anchors)
    a, b, c = (np.asarray(group, np.int32) if isinstance(group, list | tuple) else group for group in anchors)
    return Division((a, b, c), partitions)
