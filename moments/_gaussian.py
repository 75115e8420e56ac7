"""Moments of a mixture of spherical Gaussians, from cumulants.

With `Γ = C − σ²I`: `S = Γ + μμᵀ = Σ_h π_h a_h a_hᵀ` and `T = K₃ + sym(Γ⊗μ) + μ⊗μ⊗μ = Σ_h π_h a_h⊗a_h⊗a_h`. This equals
the raw-moment form (Hsu and Kakade 2013; Gottesman et al., eq. 7–8) and is far less noisy under inverse propensities,
which multiply centred values, not large means.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import matmul
from latensor.moments._cumulants import ContractedCumulants, contract_cumulants, cumulants
from latensor.moments._moments import Moments, check_directions, symmetrize_last
from latensor.moments._observed import centre
from latensor.moments.data import Table, as_table


def correct_gaussian(
    seen: ContractedCumulants, directions: Float[Array, "d r"], variance: Float[Array, ""]
) -> Float[Array, "r r r"]:
    """Return `T(W, W, W)` from contracted cumulants."""
    pairs = matmul(directions.T, seen.second - variance * directions)
    pairs = (pairs + pairs.T) / 2
    squares = seen.mean[:, None] * seen.mean[None, :]
    return (
        seen.third
        + symmetrize_last(pairs[:, :, None] * seen.mean[None, None, :])
        + squares[:, :, None] * seen.mean[None, None, :]
    )


@partial(jax.jit, static_argnames=("method", "block"))
def _contract(table: Table, directions: Array, variance: Array, method: str, block: int | None) -> Array:
    seen = contract_cumulants(centre(table), directions, method, block)
    return correct_gaussian(seen, directions, jnp.asarray(variance, directions.dtype))


def contract_gaussian_moments(
    data: Table | ArrayLike,
    directions: Float[Array, "d r"],
    variance: float | Float[Array, ""],
    *,
    method: Literal["implicit", "available"] = "implicit",
    block: int | None = None,
) -> Float[Array, "r r r"]:
    """Return `T(W, W, W)` of a spherical Gaussian mixture; `method` and `block` as in `contract_third_cumulant`."""
    table = as_table(data)
    directions = check_directions(directions, table.num_dimensions)
    return _contract(table, directions, jnp.asarray(variance), method, block)


@jax.jit
def _moments(table: Table, variance: Array) -> Moments:
    mean, second, third, _ = cumulants(table)
    identity = jnp.eye(table.num_dimensions, dtype=second.dtype)
    variance = jnp.asarray(variance, second.dtype)
    seen = ContractedCumulants(mean, second, third, jnp.int32(0))
    return Moments(
        first=mean,
        second=second - variance * identity + mean[:, None] * mean[None, :],
        third=correct_gaussian(seen, identity, variance),
    )


def gaussian_moments(data: Table | ArrayLike, variance: float | Float[Array, ""]) -> Moments:
    """Return `μ`, `S` and `T` of a spherical Gaussian mixture, dense, available-case where masked: `O(n d³)`.

    `variance` is `σ²`, common to all components and dimensions (`latensor.decompose.noise_variance` estimates it).
    """
    return _moments(as_table(data), jnp.asarray(variance))
