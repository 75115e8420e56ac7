"""Moments of a mixture of spherical Gaussians, from cumulants.

With `Γ = C − σ²I`: `S = Γ + μμᵀ = Σ_h π_h a_h a_hᵀ` and `T = K₃ + sym(Γ⊗μ) + μ⊗μ⊗μ = Σ_h π_h a_h⊗a_h⊗a_h`. This equals
the raw-moment form (Hsu and Kakade 2013; Gottesman et al., eq. 7–8) and is far less noisy under inverse propensities,
which multiply centred values, not large means.

These are moments about the origin: they need linearly independent means, which centred data do not have
(`Σ_h π_h (a_h − μ) = 0`). `correct_lifted` instead appends a constant coordinate to the centred data, so that affine
independence is enough, and translated data give translated means.
"""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import check_number, matmul
from latensor.moments._cumulants import ContractedCumulants, contract_cumulants, cumulants
from latensor.moments._moments import Moments, check_directions, symmetrize_last
from latensor.moments._observed import centre
from latensor.moments._values import as_finite_table, finite_moments
from latensor.moments.data import Table


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


def correct_lifted(
    seen: ContractedCumulants, directions: Float[Array, "d k"], variance: Float[Array, ""]
) -> Float[Array, "k k k"]:
    """Return the third moment of the lifted means `a'_h = (a_h − μ, c)` in a whitened space.

    `directions` are a whitener of `Γ = C − σ²I` and a last column of zeros, the place of the constant: in blocks, the
    second moment of the lifted means is `diag(Γ, c²)`, and its whitener `diag(W, 1/c)`. With `e` the last unit vector,

        T' = K₃(W,W,W) − sym(Wᵀm⊗WᵀW) + sym(WᵀΓW⊗e) + e⊗e⊗e,

    in which `c` has cancelled. `σ²` is the mean variance `Σ_h π_h σ_h²`; the term in `m = Σ_h π_h σ_h² (a_h − μ)` is
    there where `seen.noise` is.
    """
    constant = jnp.zeros(directions.shape[1], directions.dtype).at[-1].set(1)
    pairs = matmul(directions.T, seen.second - variance * directions)
    pairs = (pairs + pairs.T)[:, :, None] / 2 * constant[None, None, :]
    if seen.noise is not None:
        pairs = pairs - matmul(directions.T, directions)[:, :, None] * seen.noise[None, None, :]
    cube = constant[:, None, None] * constant[None, :, None] * constant[None, None, :]
    return seen.third + symmetrize_last(pairs) + cube


def _as_variance(variance: Any) -> Array:
    return jnp.asarray(check_number("variance", variance, 0.0), float)


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
    table = as_finite_table(data)
    directions = check_directions(directions, table.num_dimensions)
    return finite_moments("data", _contract(table, directions, _as_variance(variance), method, block))


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
    return finite_moments("data", _moments(as_finite_table(data), _as_variance(variance)))
