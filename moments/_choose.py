"""Some rows of data, for what need not look at all of them."""

import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Data = TypeVar("Data", bound=Any)
_GOLDEN = (math.sqrt(5) - 1) / 2


def choose_rows(data: Data, number: int) -> Data:
    """Return at most `number` rows of a data type, at even distances in the sum of their weights; without weights."""
    n = data.num_rows
    number = min(n, number)
    # Anywhere within each stride (multiples of the golden ratio, modulo one, repeat nothing): rows may have a period.
    place = np.arange(number)
    index = ((place + place * _GOLDEN % 1) * n / number).astype(int)
    if data.row_weights is None:
        return jax.tree.map(lambda leaf: leaf[index], data)
    # Rows of equal weight are drawn as if they had none; rows of weight zero are never drawn.
    reached = jnp.cumsum(data.row_weights)
    # The middle of each row's share: its ends would be a matter of rounding.
    drawn = jnp.searchsorted(reached, jnp.asarray((index + 0.5) / n, reached.dtype) * reached[-1], side="right")
    return jax.tree.map(lambda leaf: leaf[jnp.minimum(drawn, n - 1)], data._replace(row_weights=None))
