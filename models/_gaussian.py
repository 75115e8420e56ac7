"""The likelihood of a mixture of spherical Gaussians under a mask: what its `posterior` and `refine` share."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.moments import map_over_rows, residuals


class GaussianMixture(NamedTuple):
    """Parameters: mixture weights, means (columns) and the variance that all components and dimensions share."""

    weights: Float[Array, " k"]
    means: Float[Array, "d k"]
    variance: Float[Array, ""]


class Joint(NamedTuple):
    """Rows of a block as EM needs them, all relative to the mixture's overall mean."""

    values: Float[Array, "n k"]
    """`log P(h, x)`, up to what does not depend on `h` or the parameters other than through `distance`."""
    distance: Float[Array, "n k"]
    """Squared distance of the observed part to each mean."""
    rows: Float[Array, "n d"]
    """Observed entries less the overall mean, zero where masked."""


def overall_mean(params: GaussianMixture) -> Float[Array, " d"]:
    """Return the mean of the mixture."""
    return jnp.matmul(params.means, params.weights, precision="highest")


def joint(params: GaussianMixture, overall: Float[Array, " d"], x: Array, mask: Array | None) -> Joint:
    """Return `log P(h, observed x)` and what it is made of.

    `|x − a|²` over observed entries is `Σ m x² − 2 (m x)ᵀa + mᵀa²`: matrix products. Around the overall mean, so that a
    large offset costs no digits.
    """
    rows = residuals(x, mask, overall).astype(params.means.dtype)
    means = params.means - overall[:, None]
    squares = jnp.sum(rows * rows, axis=1)[:, None]
    if mask is None:
        own = jnp.sum(means * means, axis=0)[None, :]
        count = jnp.full((x.shape[0], 1), x.shape[1], rows.dtype)
    else:
        seen = mask.astype(rows.dtype)
        own = jnp.matmul(seen, means * means, precision="highest")
        count = jnp.sum(seen, axis=1)[:, None]
    distance = squares - 2 * jnp.matmul(rows, means, precision="highest") + own
    # The products cancel where a mean is far from the overall one and near to the row: the nearest is computed anew.
    nearest = jnp.argmin(distance, axis=1)
    gone = residuals(x, mask, overall) - (means.T[nearest] if mask is None else jnp.where(mask, means.T[nearest], 0))
    exact = jnp.sum(gone * gone, axis=1).astype(rows.dtype)
    is_nearest = jnp.arange(means.shape[1])[None, :] == nearest[:, None]
    distance = jnp.where(is_nearest, exact[:, None], jnp.maximum(distance, exact[:, None]))
    normalizer = count * (jnp.log(params.variance) + math.log(2 * math.pi))
    tiny = float(jnp.finfo(rows.dtype).tiny)
    prior = jnp.log(jnp.maximum(params.weights, tiny))[None, :]
    return Joint(prior - (distance / params.variance + normalizer) / 2, distance, rows)


@jax.jit
def log_joint(params: GaussianMixture, x: Array, mask: Array | None) -> Float[Array, "n k"]:
    """Return `log P(h, observed x)` for every row and component."""
    overall = overall_mean(params)

    def block(x: Array, mask: Array | None) -> Array:
        return joint(params, overall, x, mask).values

    return map_over_rows(block, (x, mask), floats_per_row=3 * x.shape[1])
