"""Rows in tiles: each tile holds rows that observe the same dimensions.

With full covariances, every pattern of missing entries needs a factorization of its own. Rows of one pattern share it.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from latensor.base import as_float, is_concrete
from latensor.moments import Table

# Tiles of complete rows are this many times as high as wide: the factorization then costs little beside the products.
_HEIGHT = 8
_HEIGHTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Tiles(NamedTuple):
    """A table whose rows are grouped; the leading axis counts tiles, as that of a table counts rows."""

    x: Float[Array, "t r d"]
    """Finite also where nothing is observed."""
    mask: Bool[Array, "t d"] | None
    """What all rows of a tile observe; `None` where that is everything."""
    weights: Float[Array, "t r"]
    """Of the rows; zero for places that are left empty."""


def group_rows(table: Table, weights: Float[Array, " n"]) -> tuple[Tiles, Int[Array, " n"]]:
    """Return the rows in tiles, and where each row went.

    Rows are grouped where the mask is known; under a trace each row is a tile of its own.
    """
    index, place = _grouping(table)
    x = as_float(table.x)
    x = x if table.mask is None else jnp.where(table.mask, x, 0)
    empty = index < 0
    kept = np.where(empty, 0, index)
    mask = None if table.mask is None else jnp.asarray(table.mask)[kept[:, 0]]
    return Tiles(x[kept], mask, jnp.where(empty, 0, weights[kept])), jnp.asarray(place)


def _grouping(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of each tile `(t, r)`, −1 for none, and the place of each row among the places of all tiles."""
    n, d = table.x.shape
    if table.mask is None:
        height = min(n, _HEIGHT * d)
        pattern = np.zeros(n, int)
    elif not is_concrete(table.mask):
        return np.arange(n)[:, None], np.arange(n)
    else:
        packed = np.packbits(np.asarray(table.mask), axis=1)
        pattern = np.unique(packed.view([("", packed.dtype)] * packed.shape[1]).ravel(), return_inverse=True)[1]
        sizes = np.bincount(pattern)
        # A tile costs about `d` rows for its factorization, and a row for each place, empty or not.
        height = min(_HEIGHTS, key=lambda height: np.sum(-(-sizes // height)) * (d + height))
    sizes = np.bincount(pattern)
    tiles = -(-sizes // height)
    order = np.argsort(pattern, kind="stable")
    rank = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = np.empty(n, int)
    place[order] = np.repeat((np.cumsum(tiles) - tiles) * height, sizes) + rank
    index = np.full(_round_up(int(tiles.sum())) * height, -1)
    index[place] = np.arange(n)
    return index.reshape(-1, height), place


def _round_up(number: int) -> int:
    """Return a number that is at most an eighth larger, one of few: similar tables then share a compiled program."""
    unit = 1 << max(number.bit_length() - 4, 0)
    return -(-number // unit) * unit
