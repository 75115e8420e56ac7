"""Anchor variables: the ones that all partitions share (see `_partition`)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import check_axes, check_integer, small_jit, smallest_normal
from latensor.decompose._linalg import check_sizes

# Every mode starts with this fraction of the largest variable's size in each direction, so that log det is finite.
_NEGLIGIBLE = 1e-2


def anchor_capacity(sizes: Sequence[int]) -> int:
    """Return the largest rank that variables of these sizes can have together in one mode.

    The columns of each variable's block sum to one, so each block after the first adds one less than its rows.
    """
    return 1 + sum(size - 1 for size in sizes) if sizes else 0


def check_anchors(
    sizes: tuple[int, ...], anchors: Sequence[Sequence[int]] | Int[Array, "3 q"], rank: int
) -> tuple[tuple[int, ...], ...]:
    """Return anchors as three tuples of variable numbers, or raise a `ValueError`."""
    if len(anchors) != 3:
        raise ValueError(f"anchors: expected three groups of variables, one per mode; got {len(anchors)}")
    groups = tuple(tuple(int(j) for j in np.asarray(group).reshape(-1)) for group in anchors)
    named = [j for group in groups for j in group]
    outside = [j for j in named if not 0 <= j < len(sizes)]
    if outside:
        raise ValueError(f"anchors: expected variables from 0 to {len(sizes) - 1}; got {outside[0]}")
    twice = sorted({j for j in named if named.count(j) > 1})
    if twice:
        raise ValueError(f"anchors: expected three groups that do not overlap; variables {twice} appear twice")
    for mode, group in enumerate(groups):
        capacity = anchor_capacity([sizes[j] for j in group])
        if capacity < rank:
            total = sum(sizes[j] for j in group)
            raise ValueError(
                f"anchors: expected a group of rank at least num_components = {rank}; group {mode} has {len(group)} "
                f"variables with {total} rows, which reach rank {capacity}: {rank - capacity} more rows are needed, "
                "not counting the first of each further variable"
            )
    return groups


@small_jit(static_argnames=("sizes", "num_anchors"))
def choose_anchors(loadings: Float[Array, "rows k"], sizes: tuple[int, ...], num_anchors: int) -> Int[Array, "3 q"]:
    """Choose `num_anchors` variables per mode whose rows tell `k` components apart.

    Greedily, in turn for the three modes: the variable that adds most to `log det` of its mode's `Σ_j L_jᵀL_j`. So the
    k-th singular value of each mode's stacked rows is large, and with it that of its cross-moments.

    Args:
      loadings: the stacked rows of all variables in a space of `k` dimensions, such as the `k` leading left singular
        vectors of their cross-moments with other variables: `Θ` times an unknown invertible matrix.
      sizes: number of rows of each variable.
      num_anchors: number of anchors per mode, at most a third of the variables.

    Returns:
      Variable numbers `(3, num_anchors)`, those of each mode in the order in which they were chosen.

    Cost: one Cholesky factorization of `k × k` per variable and anchor.

    """
    loadings, sizes = check_axes("loadings", loadings, "rows k"), check_sizes(sizes)
    if loadings.shape[0] != sum(sizes):
        raise ValueError(f"loadings: expected {sum(sizes)} rows, the sum of sizes; got {loadings.shape[0]}")
    check_integer("num_anchors", num_anchors, 1)
    if 3 * num_anchors > len(sizes):
        raise ValueError(
            f"num_anchors: expected at most {len(sizes) // 3} for {len(sizes)} variables; got {num_anchors}"
        )
    p, k = len(sizes), loadings.shape[1]
    owner = jnp.asarray(np.repeat(np.arange(p), sizes))
    grams = jax.ops.segment_sum(loadings[:, :, None] * loadings[:, None, :], owner, p)
    negligible = _NEGLIGIBLE * jnp.max(jnp.trace(grams, axis1=1, axis2=2)) / k + smallest_normal(loadings.dtype)
    start = negligible * jnp.broadcast_to(jnp.eye(k, dtype=loadings.dtype)[None], (3, k, k))

    def choose(state: tuple[Array, Array], turn: Array) -> tuple[tuple[Array, Array], Array]:
        sums, taken = state
        roots = jnp.linalg.cholesky(sums[turn % 3][None] + grams)
        size = jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1)
        best = jnp.argmax(jnp.where(taken, -jnp.inf, size)).astype(jnp.int32)
        return (sums.at[turn % 3].add(grams[best]), taken.at[best].set(True)), best

    _, chosen = lax.scan(choose, (start, jnp.zeros(p, bool)), jnp.arange(3 * num_anchors))
    return chosen.reshape(num_anchors, 3).T
