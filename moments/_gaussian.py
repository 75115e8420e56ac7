"""Moments of a mixture of spherical Gaussians, from cumulants.

With `Γ = C − σ²I`: `S = Γ + μμᵀ = Σ_h π_h a_h a_hᵀ` and `T = K₃ + sym(Γ⊗μ) + μ⊗μ⊗μ = Σ_h π_h a_h⊗a_h⊗a_h`. This equals
the raw-moment form (Hsu and Kakade 2013; Gottesman et al., eq. 7–8) and is far less noisy under inverse propensities,
since large means never meet the weights.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from latensor.moments._cumulants import ContractedCumulants, contract_cumulants, cumulants
from latensor.moments._moments import Moments, symmetrize_last
from latensor.moments._observed import centre


def correct_gaussian(
    seen: ContractedCumulants, directions: Float[Array, "d r"], variance: Float[Array, ""]
) -> Float[Array, "r r r"]:
    """Return `T(W, W, W)` from contracted cumulants."""
    spherical = seen.second - variance * directions
    pairs = jnp.matmul(directions.T, spherical, precision="highest")
    pairs = (pairs + pairs.T) / 2
    squares = seen.mean[:, None] * seen.mean[None, :]
    return (
        seen.third
        + symmetrize_last(pairs[:, :, None] * seen.mean[None, None, :])
        + squares[:, :, None] * seen.mean[None, None, :]
    )


@partial(jax.jit, static_argnames=("method", "block"))
def contract_gaussian_moments(
    x: Num[Array, "n d"],
    directions: Float[Array, "d r"],
    variance: float | Float[Array, ""],
    mask: Bool[Array, "n d"] | None = None,
    row_weights: Float[Array, " n"] | None = None,
    *,
    method: Literal["implicit", "available"] = "implicit",
    block: int | None = None,
) -> Float[Array, "r r r"]:
    """Return `T(W, W, W)` of a spherical Gaussian mixture; arguments as in `contract_cumulants`."""
    seen = contract_cumulants(centre(x, mask, row_weights), directions, method, block)
    return correct_gaussian(seen, directions, jnp.asarray(variance, directions.dtype))


@jax.jit
def gaussian_moments(
    x: Num[Array, "n d"],
    variance: float | Float[Array, ""],
    mask: Bool[Array, "n d"] | None = None,
    row_weights: Float[Array, " n"] | None = None,
) -> Moments:
    """Return `μ`, `S` and `T` of a spherical Gaussian mixture, dense, available-case where masked: `O(n d³)`.

    Args:
      x: samples in rows.
      variance: `σ²`, common to all components and dimensions (`latensor.decompose.noise_variance` estimates it).
      mask: True where observed; `None` means everywhere.
      row_weights: a weight for each row (default: equal).

    """
    mean, second, third, _ = cumulants(x, mask, row_weights)
    identity = jnp.eye(x.shape[1], dtype=second.dtype)
    variance = jnp.asarray(variance, second.dtype)
    seen = ContractedCumulants(mean, second, third, jnp.int32(0))
    return Moments(
        first=mean,
        second=second - variance * identity + mean[:, None] * mean[None, :],
        third=correct_gaussian(seen, identity, variance),
    )
