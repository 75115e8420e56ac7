"""The directions that three neighbours share: a basis of k directions for each of them, without a `(d, d, d)` tensor.

With the scaled pair moments `M₁₂`, `M₁₃` and `M₂₃`, the first two observations are projected to the singular vectors of
`M₁₂`, and the third to what either of them shares with it. Each has a basis of its own: where what comes before a word
differs from what comes after it, k directions cannot carry both. These are the bases that `conditionals_from_views`
finds in a dense table.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import divide, freeze, matmul, positive_or_one
from latensor.decompose import whiten_operator
from latensor.moments.internal import Directions, Windows, count_table, pair_product, window_views

# Up to this many symbols, or dimensions, the pair moment is dense; then products with it cost next to nothing.
_DENSE_SYMBOLS, _DENSE_DIMENSIONS = 2048, 256
# Limits on the products with the pair moment: dense, and by passes over the data.
_DENSE_PRODUCTS, _PASSES = 100, 8
_TOL = 1e-2


_Product = Callable[[Float[Array, "d r"]], Float[Array, "d r"]]


class Bases(NamedTuple):
    """An orthonormal basis for each of three neighbours."""

    bases: Directions
    next_value: Float[Array, ""]
    """The singular value of `M₁₂` after the k-th: noise, unless there are more states."""


def _pair_products(windows: Windows, scales: tuple[Array, Array, Array]) -> tuple[_Product, _Product, int]:
    """Return the maps `V ↦ M₁₂ V` and `U ↦ M₁₂ᵀ U`, and how often to apply them at most."""
    first, second = scales[0], scales[1]
    d, symbols = first.shape[0], windows.x.ndim == 1

    def by_passes(vectors: Array, row: int, column: int) -> Array:
        return scales[row][:, None] * pair_product(windows, scales[column][:, None] * vectors, row, column)

    if d > (_DENSE_SYMBOLS if symbols else _DENSE_DIMENSIONS):
        return (lambda v: by_passes(v, 0, 1)), (lambda u: by_passes(u, 1, 0)), _PASSES
    if symbols:
        pairs = count_table(window_views(windows.x)[:2], (d, d), windows.weights)
        pairs = first[:, None] * pairs * second[None, :]
    else:
        pairs = by_passes(jnp.eye(d, dtype=first.dtype), 0, 1)
    return (lambda v: matmul(pairs, v)), (lambda u: matmul(pairs.T, u)), _DENSE_PRODUCTS


def neighbour_bases(key: Array, windows: Windows, scales: tuple[Array, Array, Array], rank: int) -> Bases:
    """Return the bases of `rank` directions that carry most of the pair moments, in the units `1/scale`."""
    # Constants to derivatives: what the bases leave out is noise, and polishing forgets them.
    windows, scales = freeze((windows._replace(weights=divide(windows.weights, jnp.sum(windows.weights))), scales))
    forward, backward, limit = _pair_products(windows, scales)
    d, dtype = scales[0].shape[0], scales[0].dtype
    found = min(rank + 1, d)
    whitening = whiten_operator(
        key, lambda u: forward(backward(u)), d, found, oversample=rank + 7, tol=_TOL, max_iters=limit, dtype=dtype
    )

    def unit(columns: Array) -> Array:
        return columns / positive_or_one(jnp.linalg.norm(columns, axis=0))[None, :]

    one = unit(whitening.unwhitener[:, :rank])
    two = unit(backward(one))
    seen = jnp.concatenate(
        [
            scales[2][:, None] * pair_product(windows, scales[view][:, None] * basis, 2, view)
            for view, basis in ((0, one), (1, two))
        ],
        axis=1,
    )
    three = jnp.linalg.svd(seen, full_matrices=False)[0][:, :rank]
    next_value = jnp.sqrt(jnp.maximum(whitening.eigenvalues[-1], 0)) if found > rank else jnp.zeros((), dtype)
    return Bases((one, two, three), next_value)
