"""How the size of the noise goes along with the place: third moments, traced over the directions of pure noise.

In a mixture of spherical Gaussians with variances `σ_h²` of their own, let `P` project onto the `q` directions in which
no mean varies, and `r = (x−μ)ᵀP(x−μ)/q`, the size of the noise of a row. Then `E[r] = Σ_h π_h σ_h²`, and

    m = E[(x − μ) r] = Σ_h π_h σ_h² (a_h − μ)

is what unequal variances add to the third cumulant, `K₃ = Σ_h π_h (a_h−μ)⊗³ + sym(m⊗I)` (after Hsu and Kakade 2013).
`m_i = Σ_jl P_jl K₃_ijl / q`, so missing entries are treated as in `K₃` itself; with `z` and `p` as there,

    q m_i = E[z_i (zᵀPz − Σ_j (1−p_j) P_jj z_j²)] − 2(1−p_i) E[z_i² (Pz)_i] + (1−p_i)(2−p_i) P_ii E[z_i³].
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from latensor.base import divide, matmul
from latensor.moments._observed import Centred, residuals
from latensor.moments._rows import sum_over_rows
from latensor.moments.data import Table


class NoiseDirections(NamedTuple):
    """The directions of pure noise: those of the included dimensions that are orthogonal to the signal."""

    included: Bool[Array, " d"]
    signal: Float[Array, "d s"]
    """Orthonormal columns, or zero; zero in dimensions that are not included."""
    number: Float[Array, ""]
    """`q`, the number of directions."""

    def project(self, rows: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Return `P z` for rows `z`."""
        kept = jnp.where(self.included[None, :], rows, 0)
        return kept - matmul(matmul(kept, self.signal), self.signal.T)

    def diagonal(self) -> Float[Array, " d"]:
        """Return `P_jj`."""
        return self.included.astype(self.signal.dtype) - jnp.sum(self.signal**2, axis=1)

    def dense(self) -> Float[Array, "d d"]:
        """Return `P`."""
        return self.project(jnp.eye(self.signal.shape[0], dtype=self.signal.dtype))


def contract_noise(data: Centred, directions: Float[Array, "d r"], noise: NoiseDirections) -> Float[Array, " r"]:
    """Return `Wᵀm`, by inverse propensities where entries are missing. One pass over the data, `O(n d r)`."""
    d = data.mean.shape[0]
    if data.table.mask is None:

        def block_sum(rows: Table, weights: Array) -> Array:
            z = residuals(rows, data.mean)
            size = jnp.sum(noise.project(z) ** 2, axis=1)
            return matmul(weights * size, matmul(z, directions))

        return sum_over_rows(block_sum, data.table, data.weights, floats_per_row=3 * d) / noise.number

    hidden, diagonal = 1 - data.rates, noise.diagonal()

    def masked_sum(rows: Table, weights: Array) -> tuple[Array, Array, Array]:
        z = residuals(rows, data.mean) * divide(1, data.rates)[None, :]
        projected, squares = noise.project(z), z * z
        size = jnp.sum(projected * z, axis=1) - matmul(squares, hidden * diagonal)
        return (
            matmul(weights * size, matmul(z, directions)),
            matmul(weights, squares * projected),
            matmul(weights, squares * z),
        )

    along, crossed, cubes = sum_over_rows(masked_sum, data.table, data.weights, floats_per_row=5 * d)
    repair = hidden * ((2 - data.rates) * diagonal * cubes - 2 * crossed)
    return (along + matmul(repair, directions)) / noise.number


def trace_noise(
    third: Float[Array, "b d d"], directions: Float[Array, "b r"], noise: NoiseDirections
) -> Float[Array, " r"]:
    """Return `Wᵀm` from a dense third cumulant, or the share of some of its first indices."""
    traced = matmul(third.reshape(third.shape[0], -1), noise.dense().reshape(-1)) / noise.number
    return matmul(traced, directions)
