"""The few numbers through which a complete table enters an estimate, to first order.

To first order, a row `z = x − μ` moves the mean by `z`, the covariance by `zzᵀ − C` and the third cumulant by
`z⊗z⊗z − K₃ − sym(C⊗z)`. But an estimate that whitens by `C`, up to a multiple of the identity or a diagonal that the
mean gives, sees of a change `dC` only `dC U`, with `U (d, r)` a basis of the space of its directions, and the trace
over what is orthogonal to it; and of a change of `K₃` only the contraction with its directions `W`. So `O(d k + k³)`
numbers per row are enough, and what follows them is a small function that no longer depends on the number of rows:
the law of the estimate is `J Cov[φ] Jᵀ / n`, with `φ` these numbers and `J` the derivative of that function.

When the directions turn by `dW`, `K₃(W,W,W)` changes by `sym K₃(dW, W, W)`, for which `K₃(I, W, W)` is computed once.
"""

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latensor.base import divide, matmul
from latensor.models.components import SecondMoments
from latensor.models.results import ReducedFit
from latensor.moments import Table, sum_over_rows
from latensor.moments.internal import Centred, ContractedCumulants, NoiseDirections, residuals, symmetrize_last


class Shift(NamedTuple):
    """A change of the moments: of a row, with a leading axis of rows, or of all of them."""

    mean: Float[Array, "*n d"]
    pairs: Float[Array, "*n d r"]
    """`dC U`."""
    size: Float[Array, "*n"]
    """The trace of `dC` over the directions that are orthogonal to `U`."""
    cubes: Float[Array, "*n t"]
    """The distinct entries of the change of `K₃(W, W, W)` at fixed directions."""
    noise: Float[Array, "*n s"] | None
    """That of `Wᵀm` likewise, see `contract_noise`."""


class Space(NamedTuple):
    """What a model makes of the second moments."""

    prepared: Any
    directions: Float[Array, "d s"]
    """`W`, of which a last column of zeros may be the place of a constant."""
    noise: NoiseDirections | None


def _triples(size: int) -> tuple[np.ndarray, ...]:
    """Return the indices `a ≤ b ≤ c` of the distinct entries of a symmetric tensor."""
    return tuple(np.array(list(combinations_with_replacement(range(size), 3))).T)


def _unpack(entries: Float[Array, " t"], size: int) -> Float[Array, "s s s"]:
    """Return the symmetric tensor of these distinct entries."""
    place = np.zeros((size, size, size), int)
    place[_triples(size)] = np.arange(len(entries))
    return entries[place[tuple(np.sort(np.indices(place.shape), axis=0))]]


class _Curvature(NamedTuple):
    """Third moments with one open mode, for directions that turn."""

    directions: Float[Array, "d s s"]
    """`K₃(I, W, W)`."""
    signal: Float[Array, "d r s"]
    """`K₃(I, U, W)`."""
    trace: Float[Array, " d"]
    """`E[z |Pz|²]`."""


def _curvature(data: Centred, basis: Float[Array, "d r"], directions: Float[Array, "d s"]) -> _Curvature:
    (d, r), s = basis.shape, directions.shape[1]

    def block_sum(rows: Table, weights: Array) -> tuple[Array, Array, Array]:
        z = residuals(rows, data.mean)
        y, u = matmul(z, directions), matmul(z, basis)
        weighted = weights[:, None] * z
        pairs = (y[:, :, None] * y[:, None, :]).reshape(-1, s * s)
        crossed = (u[:, :, None] * y[:, None, :]).reshape(-1, r * s)
        size = jnp.sum(z**2, axis=1) - jnp.sum(u**2, axis=1)
        return matmul(weighted.T, pairs), matmul(weighted.T, crossed), matmul(size, weighted)

    pairs, crossed, trace = sum_over_rows(block_sum, data.table, data.weights, floats_per_row=2 * d + s * (r + s))
    return _Curvature(pairs.reshape(d, s, s), crossed.reshape(d, r, s), trace)


def reduce_table(
    data: Centred,
    moments: SecondMoments,
    basis: Float[Array, "d r"],
    space: Space,
    seen: ContractedCumulants,
    prepare: Callable[[SecondMoments], Space],
    read_off: Callable[[SecondMoments, Any, ContractedCumulants], Any],
) -> ReducedFit:
    """Return the estimate from a complete table as a function of changes of its moments.

    Args:
      data: the table.
      moments: its second moments, dense.
      basis: orthonormal `U`, which spans what the second moments are multiplied with.
      space: what the model made of them.
      seen: the cumulants in its directions.
      prepare: maps second moments to such a space.
      read_off: maps second moments, what was made of them and contracted cumulants to parameters.

    """
    if moments.covariance is None:
        raise ValueError("moments: expected a dense covariance; got none")
    covariance, size = moments.covariance, space.directions.shape[1]
    d = basis.shape[0]
    curvature = _curvature(data, basis, space.directions)
    orthogonal = jnp.eye(d, dtype=basis.dtype) - matmul(basis, basis.T)
    number = jnp.trace(orthogonal)
    variance = jnp.sum(orthogonal * covariance)
    inner = matmul(space.directions.T, covariance, space.directions)
    triples = _triples(size)

    def expand(shift: Shift) -> Float[Array, "d d"]:
        """Return a change of the covariance with the given product and trace."""
        half = matmul(shift.pairs - matmul(basis, matmul(basis.T, shift.pairs)) / 2, basis.T)
        return half + half.T + divide(shift.size, number) * orthogonal

    def estimate(shift: Shift) -> Any:
        mean, second = moments.mean + shift.mean, covariance + expand(shift)
        changed = moments._replace(mean=mean, covariance=second, variances=jnp.diagonal(second))
        turned = prepare(changed)
        turn = turned.directions - space.directions
        third = jnp.moveaxis(jnp.tensordot(turn, curvature.directions, (0, 0)), 0, 2)
        noise = seen.noise
        if noise is not None and turned.noise is not None and space.noise is not None and shift.noise is not None:
            along = turned.noise.signal - space.noise.signal
            change = matmul(curvature.trace, turn) - 2 * jnp.tensordot(along, curvature.signal, 2)
            noise = noise + shift.noise + change / space.noise.number
        contracted = ContractedCumulants(
            matmul(mean, turned.directions),
            matmul(second, turned.directions),
            seen.third + _unpack(shift.cubes, size) + symmetrize_last(third),
            seen.num_unobserved,
            noise,
        )
        return read_off(changed, turned.prepared, contracted)

    def describe(rows: Table) -> Shift:
        z = residuals(rows, data.mean)
        u, y = matmul(z, basis), matmul(z, space.directions)
        length = jnp.sum(z**2, axis=1) - jnp.sum(u**2, axis=1) - variance
        a, b, c = triples
        first, second, third = y[:, a], y[:, b], y[:, c]
        # The mean moves, too, by which every row is centred.
        centring = inner[a, b][None, :] * third + inner[a, c][None, :] * second + inner[b, c][None, :] * first
        noise = None
        if seen.noise is not None and space.noise is not None:
            noise = length[:, None] * y / space.noise.number - seen.noise[None, :]
        return Shift(
            mean=z,
            pairs=z[:, :, None] * u[:, None, :] - matmul(covariance, basis)[None],
            size=length,
            cubes=first * second * third - centring - seen.third[triples][None, :],
            noise=noise,
        )

    unchanged = Shift(
        jnp.zeros_like(moments.mean),
        jnp.zeros_like(basis),
        jnp.zeros((), basis.dtype),
        jnp.zeros(len(triples[0]), basis.dtype),
        None if seen.noise is None else jnp.zeros_like(seen.noise),
    )
    return ReducedFit(estimate, unchanged, describe, data)
