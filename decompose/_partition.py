"""Dividing many variables into small tensors that share anchors: the partitions of PTPQP.

The tensor of `p` variables has `(Σ d_j)³` entries, and a few variables are enough to tell `k` components apart. So
three groups of *anchor* variables, one a mode, are joined to every partition, and the others are dealt out, each to one
mode of one partition. Every partition's tensor is identifiable if that of the anchors is. All have one shape (shorter
ones are padded), so that they are one batch. The columns of each factorization come in an order of its own; the
anchors, which all have in common, line them up.

Source: Tan, Mukherjee (2017), Partitioned tensor factorizations for learning mixed membership models, §4.1, §4.2, §4.7.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.decompose._cp import CPFactors, Factors, nonnegative_cp, regress_modes
from latensor.decompose._match import match_columns
from latensor.decompose._status import Status

# An anchor is worth what it adds in the directions that its mode has not yet got; this share of the largest variable's
# own size counts as having none.
_NEGLIGIBLE = 1e-2
# Partitions that start from the pilot's anchors start near their end.
_SOONER = 10


class Partitions(NamedTuple):
    """Which stacked row is at which place of each mode of each partition; anchors come first."""

    rows: tuple[Int[Array, "P r1"], Int[Array, "P r2"], Int[Array, "P r3"]]
    """Rows of the variables' stacked blocks; −1 is padding."""
    is_anchor: tuple[Bool[Array, " r1"], Bool[Array, " r2"], Bool[Array, " r3"]]


class PartitionedFactors(NamedTuple):
    """Factors of all partitions, the columns of all in the order of one of them."""

    weights: Float[Array, "P k"]
    factors: tuple[Float[Array, "P r1 k"], Float[Array, "P r2 k"], Float[Array, "P r3 k"]]
    matched: Bool[Array, " P"]
    """Whether the matching gave a permutation; if not, the best assignment was taken."""
    unexplained: Float[Array, " P"]
    num_iters: Int[Array, " P"]
    status: Int[Array, " P"]


def anchor_capacity(sizes: Sequence[int]) -> int:
    """Return the largest rank that variables of these sizes can have together in one mode.

    The columns of every variable's block sum to one, so each block after the first adds one row less than it has.
    """
    return 1 + sum(size - 1 for size in sizes) if sizes else 0


def check_anchors(
    sizes: tuple[int, ...], anchors: Sequence[Sequence[int]] | Int[Array, "3 q"], rank: int
) -> tuple[tuple[int, ...], ...]:
    """Return anchors as three tuples of variable numbers, or say what is wrong with them."""
    if len(anchors) != 3:
        raise ValueError(f"anchors: expected three groups of variables, one for each mode; got {len(anchors)}")
    groups = tuple(tuple(int(j) for j in np.asarray(group).reshape(-1)) for group in anchors)
    named = [j for group in groups for j in group]
    outside = [j for j in named if not 0 <= j < len(sizes)]
    if outside:
        raise ValueError(f"anchors: expected variables from 0 to {len(sizes) - 1}; got {outside[0]}")
    twice = sorted({j for j in named if named.count(j) > 1})
    if twice:
        raise ValueError(f"anchors: expected three groups that do not overlap; variables {twice} are there twice")
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


def partition_variables(
    sizes: tuple[int, ...], num_partitions: int, anchors: Sequence[Sequence[int]] | Int[Array, "3 q"]
) -> Partitions:
    """Deal variables out to partitions that all contain the anchors.

    Args:
      sizes: number of rows (categories) of every variable.
      num_partitions: number of partitions; at most as many as there are variables that are not anchors.
      anchors: three groups of variable numbers, or an array `(3, q)` of them, which may be traced if all variables have
        the same size. `choose_anchors` finds good ones.

    Returns:
      `Partitions`. Variables of similar size are spread evenly, so that little is padded.

    """
    count = [len(group) for group in anchors]
    num_others = len(sizes) - sum(count)
    if num_partitions < 1 or num_partitions > max(1, num_others):
        raise ValueError(
            f"num_partitions: expected an integer from 1 to {max(1, num_others)} (the variables that are not anchors); "
            f"got {num_partitions}"
        )
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(anchors)):
        if len(set(sizes)) > 1:
            raise ValueError("anchors: expected concrete numbers where variables differ in size; got a traced array")
        flat = jnp.concatenate([jnp.asarray(group, jnp.int32).reshape(-1) for group in anchors])
        taken = jnp.zeros(len(sizes), jnp.int32).at[flat].set(1)
        others = jnp.argsort(taken, stable=True)[:num_others].astype(jnp.int32)
        ends = np.cumsum([0, *count])
        return _deal(sizes, num_partitions, [flat[ends[m] : ends[m + 1]] for m in range(3)], others, jnp)
    # In NumPy: one at a time, operations on arrays of so many shapes take JAX a second to compile.
    groups = [np.asarray(group, np.int32).reshape(-1) for group in anchors]
    named = set(np.concatenate(groups).tolist())
    by_size = sorted((j for j in range(len(sizes)) if j not in named), key=lambda j: -sizes[j])
    return _deal(sizes, num_partitions, groups, np.asarray(by_size, np.int32), np)


def _deal(sizes: tuple[int, ...], num_partitions: int, anchors: list[Any], others: Any, xp: Any) -> Partitions:
    # In turn to the partitions of the first mode, of the second, of the third, and round again.
    turns = -(-others.shape[0] // (3 * num_partitions)) if others.shape[0] else 0
    padding = 3 * num_partitions * turns - others.shape[0]
    dealt = xp.concatenate([others, xp.full(padding, -1, xp.int32)]).reshape(turns, 3, num_partitions)
    rows, is_anchor = [], []
    for mode in range(3):
        # The last turn may not reach this mode at all.
        full = turns - 1 if padding >= (3 - mode) * num_partitions else turns
        own = dealt[:full, mode].T
        shared = xp.broadcast_to(anchors[mode][None, :], (num_partitions, anchors[mode].shape[0]))
        slots = xp.concatenate([shared, own], axis=1)
        rows.append(_traced_rows(sizes[0], slots) if xp is jnp else _rows(sizes, slots))
        num_anchor_rows = (
            anchors[mode].shape[0] * sizes[0] if xp is jnp else sum(sizes[j] for j in anchors[mode].tolist())
        )
        is_anchor.append(jnp.asarray(np.arange(rows[mode].shape[1]) < num_anchor_rows))
    return Partitions((rows[0], rows[1], rows[2]), (is_anchor[0], is_anchor[1], is_anchor[2]))


def _traced_rows(size: int, slots: Int[Array, "P s"]) -> Int[Array, "P rows"]:
    """Turn the numbers of variables of one size into those of their stacked rows, padded with −1."""
    rows = slots[:, :, None] * size + jnp.arange(size, dtype=jnp.int32)[None, None, :]
    return jnp.where(slots[:, :, None] >= 0, rows, -1).reshape(slots.shape[0], -1)


def _rows(sizes: tuple[int, ...], slots: np.ndarray) -> Int[Array, "P rows"]:
    """Turn the numbers of variables into those of their stacked rows, padded with −1."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    lists = [[row for j in part if j >= 0 for row in range(offsets[j], offsets[j + 1])] for part in slots.tolist()]
    longest = max(len(part) for part in lists)
    return jnp.asarray(np.asarray([part + [-1] * (longest - len(part)) for part in lists], np.int32))


@partial(jax.jit, static_argnames=("sizes", "num_anchors"))
def choose_anchors(loadings: Float[Array, "rows k"], sizes: tuple[int, ...], num_anchors: int) -> Int[Array, "3 q"]:
    """Choose `num_anchors` variables for each of the three modes, whose rows tell `k` components apart.

    Args:
      loadings: the stacked rows of all variables in a space of `k` dimensions, such as the `k` leading left singular
        vectors of their cross-moments with other variables: `Θ` times an unknown invertible matrix.
      sizes: number of rows of every variable.
      num_anchors: anchors of each mode.

    Returns:
      Variable numbers, each mode's in the order in which they were chosen: greedily, in turn for the three modes, the
      variable that adds most to `log det` of its mode's `Σ_j L_jᵀL_j`. So the k-th singular value of each mode's stack
      is large, and with it that of its cross-moments.

    """
    if 3 * num_anchors > len(sizes):
        raise ValueError(
            f"num_anchors: expected at most {len(sizes) // 3} for {len(sizes)} variables; got {num_anchors}"
        )
    p, k = len(sizes), loadings.shape[1]
    owner = jnp.asarray(np.repeat(np.arange(p), sizes))
    grams = jax.ops.segment_sum(loadings[:, :, None] * loadings[:, None, :], owner, p)
    negligible = _NEGLIGIBLE * jnp.max(jnp.trace(grams, axis1=1, axis2=2)) / k + float(jnp.finfo(loadings.dtype).tiny)
    start = negligible * jnp.broadcast_to(jnp.eye(k, dtype=loadings.dtype)[None], (3, k, k))

    def choose(state: tuple[Array, Array], turn: Array) -> tuple[tuple[Array, Array], Array]:
        sums, taken = state
        roots = jnp.linalg.cholesky(sums[turn % 3][None] + grams)
        size = jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1)
        best = jnp.argmax(jnp.where(taken, -jnp.inf, size)).astype(jnp.int32)
        return (sums.at[turn % 3].add(grams[best]), taken.at[best].set(True)), best

    _, chosen = lax.scan(choose, (start, jnp.zeros(p, bool)), jnp.arange(3 * num_anchors))
    return chosen.reshape(num_anchors, 3).T


@partial(jax.jit, static_argnames=("rank", "method", "matching", "start", "num_restarts", "accelerate"))
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
      tensors: one for each partition, all of one shape; padded rows are zero.
      is_anchor: which rows of each mode are the anchors', the same in all partitions.
      rank: number of components.
      method: as for `nonnegative_cp`.
      matching: how the columns of the stacked anchors of two partitions are matched; see `match_columns`. Where the
        result is not a permutation, it is flagged and the best assignment is taken.
      start: `"pilot"` factors the first partition from `num_restarts` random starts and starts all others from its
        anchors, their own rows by regression on these; `"random"` factors every partition from `num_restarts` random
        starts of its own, as in the paper.
      num_restarts: random starts.
      accelerate: as for `nonnegative_cp`.
      tol: as for `nonnegative_cp`; ten times that for partitions that start from the pilot.
      max_iters: as for `nonnegative_cp`.

    Returns:
      `PartitionedFactors`, in the order of the partition that is explained best.

    """
    options: dict[str, Any] = {"accelerate": accelerate, "tol": tol, "max_iters": max_iters}
    if start == "random":
        keys = jax.random.split(key, tensors.shape[0])
        run = partial(nonnegative_cp, rank=rank, method=method, num_restarts=num_restarts, **options)
        return line_up(jax.vmap(run)(keys, tensors), is_anchor, matching)
    pilot = nonnegative_cp(key, tensors[0], rank, method, num_restarts=num_restarts, **options)
    if tensors.shape[0] == 1:
        return line_up(jax.tree.map(lambda leaf: leaf[None], pilot), is_anchor, matching)
    guides = _share_weights(pilot)

    # Near the end momentum has little to do, and all lanes wait for the slowest.
    nearer = options | {"tol": _SOONER * tol}
    if method == "pqp" and accelerate:
        nearer["num_updates"] = 1

    def factor(tensor: Array) -> CPFactors:
        seeds = regress_modes(tensor, guides, is_anchor)
        return nonnegative_cp(key, tensor, rank, method, start=seeds, **nearer)

    return line_up(jax.vmap(factor)(tensors), is_anchor, matching)


def _share_weights(found: CPFactors) -> Factors:
    root = jnp.cbrt(found.weights)[None, :]
    a, b, c = (factor * root for factor in found.factors)
    return a, b, c


def stack_anchors(factors: Factors, is_anchor: tuple[Array, Array, Array]) -> Float[Array, "rows k"]:
    """Return the anchors' rows of all three modes on top of each other; other rows are zero, which no angle sees."""
    return jnp.concatenate([jnp.where(m[:, None], f, 0) for f, m in zip(factors, is_anchor, strict=True)])


def line_up(
    found: CPFactors,
    is_anchor: tuple[Bool[Array, " r1"], Bool[Array, " r2"], Bool[Array, " r3"]],
    matching: Literal["procrustes", "angle", "assignment"],
) -> PartitionedFactors:
    """Put the columns of all partitions in the order of the one that is explained best.

    Args:
      found: factors of all partitions, as `vmap` stacks them.
      is_anchor: which rows of each mode are the anchors', the same in all partitions.
      matching: how the columns of the stacked anchors are matched; see `match_columns`. Where the result is not a
        permutation, it is flagged in `matched` and the best assignment is taken.

    Returns:
      `PartitionedFactors`.

    """
    stacks = jax.vmap(lambda *factors: stack_anchors(factors, is_anchor))(*found.factors)
    # A partition without a full rank, or with a NaN, is none to go by, however well it is explained.
    best = jnp.lexsort((found.unexplained, found.status >= Status.RANK_DEFICIENT))[0]
    reference = stacks[best]

    def order(stack: Array) -> tuple[Array, Array]:
        match = match_columns(reference, stack, matching)
        sure = match_columns(reference, stack, "assignment") if matching != "assignment" else match
        return jnp.where(match.is_permutation, match.permutation, sure.permutation), match.is_permutation

    orders, matched = jax.vmap(order)(stacks)

    def arrange(array: Array) -> Array:
        index = orders if array.ndim == 2 else orders[:, None, :]
        return jnp.take_along_axis(array, index, axis=-1)

    a, b, c = (arrange(factor) for factor in found.factors)
    return PartitionedFactors(
        arrange(found.weights), (a, b, c), matched, found.unexplained, found.num_iters, found.status
    )
