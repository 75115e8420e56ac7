"""Variances of spherical components from moments, see `latensor.moments` on how noise goes along with place."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from latensor.base import divide, matmul
from latensor.models.gaussian_mixture.covariance import smallest_variance
from latensor.moments.internal import ContractedCumulants

# A variance that comes out smaller than this share of the mean variance, or negative, is moved there.
_SMALLEST_SHARE = 1e-3


def shrink_noise(seen: ContractedCumulants) -> ContractedCumulants:
    """Return contracted cumulants in which `m` is no larger than what is clear of its sampling error.

    `m = Σ_h π_h σ_h² (a_h − μ)` is zero where all variances are the same, and then its estimate, with few directions of
    noise, adds more error to the third moment than it takes away. The share of its square that is noise is left out.
    """
    if seen.noise is None:
        return seen
    square = jnp.sum(seen.noise.value**2)
    share = jnp.clip(1 - divide(seen.noise.error, square, 1), 0, 1)
    return seen._replace(noise=seen.noise._replace(value=share * seen.noise.value))


def component_variances(
    noise: Float[Array, " k"], variance: Float[Array, ""], vectors: Float[Array, "k k"], roots: Float[Array, " k"]
) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
    """Return the variances, and whether none of them had to be moved.

    From the mean `variance` and `noise`, which is `Wᵀm` with a last entry for the constant: `(Wᵀm, σ²) =
    Σ_h √π_h σ_h² v_h` with orthonormal `v_h`.
    """
    variances = matmul(noise.at[-1].set(variance), vectors) / roots
    floor = jnp.maximum(_SMALLEST_SHARE * variance, smallest_variance(jnp.zeros_like(variance)))
    return jnp.maximum(variances, floor), jnp.all(variances >= floor)
