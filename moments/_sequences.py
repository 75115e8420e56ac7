"""Sequences, and the moments of their consecutive triples.

One long sequence and many short ones are the same thing here: all observations one after the other, `(N,)` codes or
`(N, d)` real vectors, with a mark where a sequence begins. Windows of three neighbours are slices of that one array,
cut block by block; those that reach over the end of a sequence weigh nothing.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.moments._cross import (
    CrossMoments,
    average_sums,
    count_table,
    cross_sums,
    present_rows,
    spread_view,
    table_moments,
    view_features,
)
from latensor.moments._rows import sum_over_rows

WINDOW = 3


class Sequences(NamedTuple):
    """Observations of all sequences, one after the other."""

    x: Num[Array, "N ..."]
    first: Bool[Array, " N"]
    """Whether a sequence begins here."""
    valid: Bool[Array, " N"]
    """Whether this is an observation and not padding."""
    owner: Int[Array, " N"]
    """The number of the sequence."""


def _hide(x: Array, valid: Array) -> Array:
    """Return observations with nothing at padding: no code, or zeros, whatever was there."""
    seen = valid.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(seen, x, -1 if jnp.issubdtype(x.dtype, jnp.integer) else 0).astype(x.dtype)


def flatten_sequences(x: Num[Array, "..."], lengths: Int[Array, " S"] | None, batched: bool) -> Sequences:
    """Lay sequences end to end.

    Args:
      x: where `batched`, `(sequences, time, …)`, padded at the end; else `(time, …)`.
      lengths: of each sequence; `None`: no padding, or one sequence.
      batched: see `x`.

    """
    if batched:
        num_sequences, time = x.shape[:2]
        place = jnp.arange(num_sequences * time)
        owner, position = place // time, place % time
        x = x.reshape(num_sequences * time, *x.shape[2:])
        if lengths is None:
            return Sequences(x, position == 0, jnp.ones(place.shape, bool), owner)
        valid = position < lengths[owner]
        return Sequences(_hide(x, valid), (position == 0) & valid, valid, owner)
    size = x.shape[0]
    if lengths is None:
        return Sequences(x, jnp.arange(size) == 0, jnp.ones(size, bool), jnp.zeros(size, jnp.int32))
    ends = jnp.cumsum(lengths)
    marks = jnp.zeros(size, jnp.int32).at[ends - lengths].add(1, mode="drop")
    valid = jnp.arange(size) < ends[-1]
    return Sequences(_hide(x, valid), (marks > 0) & valid, valid, jnp.cumsum(marks) - 1)


def sequence_lengths(x: Num[Array, "..."], lengths: Int[Array, " S"] | None, batched: bool) -> Int[Array, " S"]:
    """Return the length of each sequence; arguments as for `flatten_sequences`."""
    num_sequences, time = x.shape[:2] if batched else (1, x.shape[0])
    return jnp.full(num_sequences, time, jnp.int32) if lengths is None else lengths


def window_weights(
    sequences: Sequences, row_weights: Float[Array, " S"] | None, dtype: jnp.dtype, num_categories: int | None = None
) -> Float[Array, " windows"]:
    """Return the weight of each window of three: that of its sequence, or zero where it is not within one."""
    ends = slice(WINDOW - 1, None)
    inside = sequences.valid[ends] & (sequences.owner[ends] == sequences.owner[: 1 - WINDOW])
    if num_categories is not None:
        known = present_rows((sequences.x,), (num_categories,))
        inside = inside & known[:-2] & known[1:-1] & known[2:]
    weights = inside.astype(dtype)
    return weights if row_weights is None else weights * row_weights.astype(dtype)[sequences.owner[: 1 - WINDOW]]


def _check_size(x: Array) -> None:
    if x.shape[0] < WINDOW:
        raise ValueError(f"x: expected at least {WINDOW} observations; got {x.shape[0]}")


def _views(x: Array) -> tuple[Array, Array, Array]:
    return x[:-2], x[1:-1], x[2:]


@partial(jax.jit, static_argnames="num_categories")
def sequence_moments(
    x: Int[Array, " N"], weights: Float[Array, " windows"], num_categories: int
) -> tuple[CrossMoments, Float[Array, ""]]:
    """Return the tables of consecutive singles, pairs and triples of codes, and the sum of the windows' weights."""
    table = count_table(_views(x), (num_categories,) * 3, weights)
    return table_moments(table), jnp.sum(weights)


@jax.jit
def contract_sequence_moments(
    x: Num[Array, "N ..."], weights: Float[Array, " windows"], directions: Float[Array, "d r"]
) -> CrossMoments:
    """Return the moments of `Wᵀx_t`, `Wᵀx_{t+1}`, `Wᵀx_{t+2}` over all windows, `O(n r³)` after gathers or products.

    Every observation is read once: a block of windows shares its features among the three views.
    """
    _check_size(x)

    def block(rows: Array, weights: Array) -> object:
        return cross_sums(weights[: 1 - WINDOW], *_views(view_features(rows, directions)))

    padded = jnp.pad(weights, (0, WINDOW - 1))
    width = directions.shape[1] ** 2
    return average_sums(sum_over_rows(block, (x, padded), floats_per_row=width, overlap=WINDOW - 1), jnp.sum(weights))


def pair_product(
    x: Num[Array, "N ..."], weights: Float[Array, " windows"], vectors: Float[Array, "d r"], shift: int
) -> Float[Array, "d r"]:
    """Return `(Σ_t w_t x_t⊗x_{t+shift}) V`; a negative shift is the transposed matrix. `O(n r)`, never `(d, d)`."""
    views = _views(x)
    row, column = (0, shift) if shift > 0 else (-shift, 0)
    return spread_view(views[row], weights[:, None] * view_features(views[column], vectors), vectors.shape[0])


def _sorted_triples(x: Array, weights: Array) -> tuple[tuple[Array, ...], Array, Array]:
    """Return the windows' codes in order, their weights, and whether each differs from the one before it."""
    _check_size(x)
    codes = tuple(jnp.where(weights > 0, part, -1) for part in _views(x))
    one, two, three, weights = lax.sort((*codes, weights), num_keys=3)
    codes = (one, two, three)
    differs = jnp.zeros(weights.shape[0] - 1, bool)
    for part in codes:
        differs = differs | (part[1:] != part[:-1])
    return codes, weights, jnp.concatenate([jnp.zeros(1, bool), differs])


@jax.jit
def count_distinct(x: Int[Array, " N"], weights: Float[Array, " windows"]) -> Int[Array, ""]:
    """Return the number of places that `distinct_triples` needs: windows without weight share one."""
    return 1 + jnp.sum(_sorted_triples(x, weights)[2], dtype=jnp.int32)


def distinct_triples(
    x: Int[Array, " N"], weights: Float[Array, " windows"], size: int
) -> tuple[tuple[Array, Array, Array], Float[Array, " size"]]:
    """Return the distinct triples with the sums of their weights, in `size` places, as many as there are or more."""
    codes, weights, differs = _sorted_triples(x, weights)
    place = jnp.cumsum(differs.astype(jnp.int32))
    counts = jnp.zeros(size, weights.dtype).at[place].add(weights, mode="drop")
    kept = tuple(jnp.full(size, -1, part.dtype).at[place].set(part, mode="drop") for part in codes)
    return (kept[0], kept[1], kept[2]), counts
