"""The variance of spherical noise, from the small eigenvalues of a covariance."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from latensor.base import small_jit
from latensor.decompose._whiten import whiten_operator

# The error of eigenvalues is the square of that of their vectors: 1e-4 here, far below sampling noise.
_EIGENVALUE_TOLERANCE = 1e-2


def _num_noise(num_included: Array, rank: int) -> Array:
    # k centred means span k − 1 directions: even with only k dimensions one eigenvalue is pure noise.
    return jnp.maximum(num_included - rank, 1)


@small_jit(static_argnames="rank")
def noise_variance(
    covariance: Float[Array, "d d"], rank: int, included: Bool[Array, " d"] | None = None
) -> Float[Array, ""]:
    """Return the mean of the `c − rank` smallest eigenvalues of a covariance (of one, if `c = rank`).

    For a mixture of `rank` spherical Gaussians this is the variance of its components (Gottesman et al., appendix B).

    Args:
      covariance: `(d, d)`; its symmetric part is used.
      rank: number of components.
      included: the `c` dimensions that are used; default: all. May be traced: no shape depends on it.

    Cost: one `eigh`, `O(d³)`.

    """
    d = covariance.shape[0]
    included = jnp.ones(d, bool) if included is None else included
    count = jnp.sum(included, dtype=jnp.int32)
    kept = jnp.where(included[:, None] & included[None, :], covariance, 0)
    # Excluded dimensions get eigenvalues below all others, and so come first.
    below = -2 * jnp.linalg.norm(kept)
    values = jnp.linalg.eigvalsh((kept + kept.T) / 2 + jnp.diag(jnp.where(included, 0, below)))
    place, number = jnp.arange(d), _num_noise(count, rank)
    noise = (place >= d - count) & (place < d - count + number)
    return jnp.sum(jnp.where(noise, values, 0)) / number


def noise_variance_operator(
    key: Array,
    operator: Callable[[Float[Array, "d r"]], Float[Array, "d r"]],
    diagonal: Float[Array, " d"],
    rank: int,
    included: Bool[Array, " d"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, "d k"]]:
    """Return the noise variance from products with the covariance and its diagonal, without forming it.

    The trace minus the `rank` largest eigenvalues, divided by the number of the others. Also returns the eigenvectors
    of the largest ones, a start for the decomposition that follows.
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
    signal = jnp.where(jnp.arange(rank) < count - number, top.eigenvalues, 0)
    return (jnp.sum(chosen * diagonal) - jnp.sum(signal)) / number, top.whitener
