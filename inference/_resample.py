"""Resampling as re-weighting: how often each row counts in a replicate, and blocks of time as rows of a sequence."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latensor.base import check_integer, is_concrete
from latensor.moments import Sequences
from latensor.moments.internal import WINDOW

# Sequences from which on whole ones are resampled, and no blocks of them.
ENOUGH_SEQUENCES = 30
# Blocks have at least ten windows of three, where that leaves enough blocks.
_SHORTEST_BLOCK, _FEWEST_BLOCKS = 10 * WINDOW, 20

Draw = Callable[[Array, int, Any], Float[Array, " n"]]


def multinomial_weights(key: Array, num_rows: int, dtype: Any) -> Float[Array, " n"]:
    """Return how often each row is drawn in `num_rows` draws with replacement."""
    # The remainder prefers no row by more than `num_rows / 2³²`, and takes half of the bits of `randint`.
    drawn = jax.random.bits(key, (num_rows,), jnp.uint32) % jnp.uint32(num_rows)
    return jnp.zeros(num_rows, jnp.int32).at[drawn.astype(jnp.int32)].add(1).astype(dtype)


def bayesian_weights(key: Array, num_rows: int, dtype: Any) -> Float[Array, " n"]:
    """Return weights of mean one from the uniform Dirichlet distribution (Rubin 1981)."""
    weights = jax.random.exponential(key, (num_rows,), dtype)
    return weights / jnp.mean(weights)


DRAWS: dict[str, Draw] = {"multinomial": multinomial_weights, "bayesian": bayesian_weights}


def num_units(data: Any) -> int:
    """Return the number of row weights of data: rows, items, or sequences."""
    return data.num_sequences if isinstance(data, Sequences) else data.num_rows


def reweight(data: Any, multipliers: Float[Array, " n"]) -> Any:
    """Return data whose row weights are multiplied. They keep their sum in expectation, which priors may depend on."""
    weights = multipliers if data.row_weights is None else data.row_weights.astype(multipliers.dtype) * multipliers
    return data._replace(row_weights=weights)


def as_resampled_rows(data: Any, block_length: Any) -> Any:
    """Return data whose rows are resampled: as they are, or few sequences cut into blocks."""
    if not isinstance(data, Sequences):
        if block_length is not None:
            raise ValueError(f"block_length: expected None for a {type(data).__name__}; got {block_length!r}")
        return data
    if block_length is None and data.num_sequences >= ENOUGH_SEQUENCES:
        return data
    return cut_into_blocks(data, block_length)


def cut_into_blocks(sequences: Sequences, block_length: int | None) -> Sequences:
    """Return sequences as many short ones, whose windows of three are those of the long ones, each of them once.

    A block of `block_length` windows, or a little fewer so that all are alike, has two observations more, which it
    shares with the next one. Sequences without a window stay as they are.
    """
    if not is_concrete(sequences.lengths):
        raise ValueError("lengths: expected known ones, by which sequences are cut into blocks; got traced ones")
    time = sequences.x.shape[1] if sequences.is_batched else sequences.x.shape[0]
    sizes = np.full(sequences.num_sequences, time) if sequences.lengths is None else np.asarray(sequences.lengths)
    begins = time * np.arange(sizes.size) if sequences.is_batched else np.cumsum(sizes) - sizes
    length = _check_block_length(block_length, int(sizes.sum()))
    starts, lengths, owners = [], [], []
    for owner, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        windows = max(int(size) - WINDOW + 1, 0)
        edges = np.linspace(0, windows, max(-(-windows // length), 1) + 1).astype(int)
        starts.append(begin + edges[:-1])
        lengths.append(np.minimum(np.diff(edges) + WINDOW - 1, size))
        owners.append(np.full(edges.size - 1, owner))
    sizes = np.concatenate(lengths)
    places = np.concatenate(starts)[:, None] + np.arange(sizes.max())[None, :]
    axes = 2 if sequences.is_batched else 1

    def cut(array: Array) -> Array:
        flat = array.reshape(-1, *array.shape[axes:])
        return flat[np.minimum(places, flat.shape[0] - 1)]

    weights = sequences.row_weights
    return sequences._replace(
        x=cut(sequences.x),
        lengths=jnp.asarray(sizes, jnp.int32),
        mask=None if sequences.mask is None else cut(sequences.mask),
        row_weights=None if weights is None else weights[np.concatenate(owners)],
        is_batched=True,
    )


def _check_block_length(block_length: Any, num_steps: int) -> int:
    """Return the number of windows in a block."""
    longest = num_steps // _FEWEST_BLOCKS
    if longest < WINDOW:
        raise ValueError(
            f"x: expected at least {WINDOW * _FEWEST_BLOCKS} observations to be cut into {_FEWEST_BLOCKS} blocks of "
            f"time; got {num_steps}"
        )
    if block_length is None:
        return min(max(math.ceil(num_steps ** (1 / 3)), _SHORTEST_BLOCK), longest)
    return check_integer("block_length", block_length, WINDOW, longest, f", for {_FEWEST_BLOCKS} blocks")
