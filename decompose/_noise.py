"""Spherical noise: its variance, from the small eigenvalues of a covariance, and the directions of nothing else."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from latensor.base import attach_tangent, check_axes, check_mask, freeze, small_jit, square_root
from latensor.decompose._eigenspace import Eigenspace, attach_dense
from latensor.decompose._linalg import check_rank
from latensor.decompose._whiten import whiten_operator

# The error of eigenvalues is the square of that of their vectors: 1e-4 here, far below sampling noise.
_EIGENVALUE_TOLERANCE = 1e-2


class NoiseSpace(NamedTuple):
    """The split of a covariance into signal and spherical noise."""

    variance: Float[Array, ""]
    """The mean of the eigenvalues of the noise."""
    signal: Float[Array, "d rank"]
    """Orthonormal eigenvectors of the largest eigenvalues; the noise has what is orthogonal to them. Rows of
    dimensions that are not included are zero, and so are columns for which no eigenvalue was left."""
    number: Float[Array, ""]
    """The number of eigenvalues that are noise."""


def _num_noise(num_included: Array, rank: int) -> Array:
    return jnp.maximum(num_included - rank, 1)


@small_jit(static_argnames="rank")
def noise_space(covariance: Float[Array, "d d"], rank: int, included: Bool[Array, " d"] | None = None) -> NoiseSpace:
    """Split a covariance: arguments as for `noise_variance`, but `rank` is that of the signal itself."""
    d = covariance.shape[0]
    included = jnp.ones(d, bool) if included is None else included
    count = jnp.sum(included, dtype=jnp.int32)
    kept = jnp.where(included[:, None] & included[None, :], covariance, 0)
    frozen = freeze(kept)
    # Excluded dimensions get eigenvalues below all others, and so come first.
    below = -2 * jnp.linalg.norm(frozen)
    values, vectors = jnp.linalg.eigh((frozen + frozen.T) / 2 + jnp.diag(jnp.where(included, 0, below)))
    place, number = jnp.arange(d), _num_noise(count, rank)
    noise = (place >= d - count) & (place < d - count + number)
    is_signal = place[d - rank :] >= d - count + number
    signal = jnp.where(included[:, None] & is_signal[None, :], vectors[:, d - rank :], 0)
    inner = jnp.diag(jnp.where(is_signal, values[d - rank :], 0))
    space = attach_dense(kept, Eigenspace(signal, inner), values, vectors, place < d - count + number)
    total = number.astype(values.dtype)
    variance = jnp.sum(jnp.where(noise, values, 0)) / total
    return NoiseSpace(attach_tangent(_variance_tangent, variance, (kept, space.inner, total)), space.vectors, total)


def _variance_tangent(
    solution: Array, inputs: tuple[Array, Array, Array], changes: tuple[Array, Array, Array]
) -> Array:
    """Return the change of the mean of what is left of the trace."""
    return (jnp.trace(changes[0]) - jnp.trace(changes[1])) / inputs[2]


@small_jit(static_argnames="rank")
def noise_variance(
    covariance: Float[Array, "d d"], rank: int, included: Bool[Array, " d"] | None = None
) -> Float[Array, ""]:
    """Return the mean of the `c − rank` smallest eigenvalues of a covariance (of one, if `c = rank`).

    For a mixture of `rank` spherical Gaussians this is the variance of its components (Gottesman et al., appendix B;
    since k centred means span k − 1 directions, `rank = k − 1` is right as well, and uses one eigenvalue more).

    Args:
      covariance: `(d, d)`; its symmetric part is used.
      rank: number of components.
      included: the `c` dimensions that are used; default: all. May be traced: no shape depends on it.

    Cost: one `eigh`, `O(d³)`.

    """
    covariance = check_axes("covariance", covariance, "d d")
    d = covariance.shape[0]
    check_rank(rank, d)
    included = None if included is None else check_mask(included, (d,), "the diagonal")
    return noise_space(covariance, rank, included).variance


def noise_space_operator(
    key: Array,
    operator: Callable[[Float[Array, "d r"]], Float[Array, "d r"]],
    diagonal: Float[Array, " d"],
    rank: int,
    included: Bool[Array, " d"] | None = None,
) -> NoiseSpace:
    """Split a covariance that is only known by products with it and by its diagonal.

    The variance is the trace minus the `rank` largest eigenvalues, divided by the number of the others.
    """
    d = diagonal.shape[0]
    chosen = jnp.ones(d, diagonal.dtype) if included is None else included.astype(diagonal.dtype)
    top = whiten_operator(
        key,
        lambda vectors: chosen[:, None] * operator(chosen[:, None] * vectors),
        d,
        rank,
        tol=_EIGENVALUE_TOLERANCE,
        dtype=diagonal.dtype,
    )
    count = jnp.sum(chosen)
    number = _num_noise(count, rank)
    is_signal = jnp.arange(rank) < count - number
    variance = (jnp.sum(chosen * diagonal) - jnp.sum(jnp.where(is_signal, top.eigenvalues, 0))) / number
    scale = square_root(top.eigenvalues)
    return NoiseSpace(variance, jnp.where(is_signal[None, :], top.whitener * scale[None, :], 0), number)
