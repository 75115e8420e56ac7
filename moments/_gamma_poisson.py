"""Moments of the Gamma-Poisson model (discrete ICA), from cumulants.

A Poisson count adds its mean to its own second and third cumulants. With that removed, and with `s_h` the variance and
`t_h` the third cumulant of the intensity `α_h`,

    S = C − diag(μ) = Σ_h s_h a_h a_hᵀ,
    T_ijl = K₃_ijl + 2 δ_ijl μ_i − δ_jl C_ij − δ_il C_ij − δ_ij C_il = Σ_h t_h (a_h⊗a_h⊗a_h)_ijl.

Source: Podosinnikova, Bach, Lacoste-Julien (2015), Rethinking LDA; Gottesman et al., eq. 11–12.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.moments._cumulants import ContractedCumulants, Cumulants, contract_cumulants, cumulants
from latensor.moments._moments import Moments, check_directions, symmetric_outer, symmetrize_last
from latensor.moments._observed import centre
from latensor.moments._values import as_finite_table, finite_moments
from latensor.moments.data import Table


def _repair(mean: Float[Array, " d"], second: Float[Array, "d r"], directions: Array) -> Float[Array, "d r"]:
    """Return rows `q_i` such that Poisson counts add `sym Σ w_i⊗w_i⊗q_i` to the third cumulant."""
    # `w_i⊗w_i⊗w_i` counts three times under `sym`.
    return second - (2 / 3) * mean[:, None] * directions


def _dense_repair(mean: Float[Array, " d"], second: Float[Array, "d d"]) -> Float[Array, "d d d"]:
    """Return what Poisson counts add to the third cumulant, dense."""
    identity = jnp.eye(mean.shape[0], dtype=mean.dtype)
    return symmetrize_last(identity[:, :, None] * _repair(mean, second, identity)[:, None, :])


def correct_gamma_poisson(
    seen: ContractedCumulants, directions: Float[Array, "d r"], mean: Float[Array, " d"]
) -> Float[Array, "r r r"]:
    """Return `T(W, W, W) = K₃(W,W,W) + 2 Σ_i μ_i w_i⊗w_i⊗w_i − sym Σ_i w_i⊗w_i⊗(CW)_i` from contracted cumulants."""
    return seen.third - symmetric_outer(directions, _repair(mean, seen.second, directions))


@partial(jax.jit, static_argnames=("method", "block"))
def _contract(table: Table, directions: Array, method: str, block: int | None) -> Array:
    data = centre(table)
    return correct_gamma_poisson(contract_cumulants(data, directions, method, block), directions, data.mean)


def contract_gamma_poisson_moments(
    data: Table | ArrayLike,
    directions: Float[Array, "d r"],
    *,
    method: Literal["implicit", "available"] = "implicit",
    block: int | None = None,
) -> Float[Array, "r r r"]:
    """Return `T(W, W, W)` of a Gamma-Poisson model; `method` and `block` as in `contract_third_cumulant`."""
    table = as_finite_table(data)
    return finite_moments("data", _contract(table, check_directions(directions, table.num_dimensions), method, block))


@jax.jit
def _moments(table: Table) -> Moments:
    mean, second, third, _ = cumulants(table)
    return Moments(first=mean, second=second - jnp.diag(mean), third=third - _dense_repair(mean, second))


def gamma_poisson_moments(data: Table | ArrayLike) -> Moments:
    """Return `μ`, `S` and `T` of a Gamma-Poisson model from counts, dense, available-case where masked: `O(n d³)`."""
    return finite_moments("data", _moments(as_finite_table(data)))


@jax.jit
def gamma_poisson_cumulants(moments: Moments) -> Cumulants:
    """Return the cumulants of the counts from `μ`, `S` and `T`: `gamma_poisson_moments` the other way round."""
    mean, second, third = moments
    second = second + jnp.diag(mean)
    return Cumulants(mean, second, third + _dense_repair(mean, second), jnp.int32(0))
