"""Log-densities of rows under each component, and what the M-step needs of them.

With `u = x − c` and `b_h = a_h − c`, about a centre `c`, squared distances are `|u|² − 2uᵀb_h + |b_h|²`: products, in a
fraction of the time that the differences `x − a_h` take one by one. Where a mean is many standard deviations away from
the centre they cancel. So products are used for a block of rows in which none of them loses more than four bits, and
differences for others.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from latensor.base import matmul, smallest_normal
from latensor.decompose.internal import inverse_root
from latensor.models.gaussian_mixture.covariance import as_diagonal, as_full
from latensor.models.gaussian_mixture.params import GaussianMixture
from latensor.models.gaussian_mixture.tiles import Tiles
from latensor.moments import Table
from latensor.moments.internal import residuals

_LOG_TWO_PI = math.log(2 * math.pi)


def _log_weights(params: GaussianMixture) -> Float[Array, " k"]:
    return jnp.log(jnp.maximum(params.weights, smallest_normal(params.weights.dtype)))


def _finite(distance: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return distances that leave room for sums: a row far beyond all components has a density, and a posterior."""
    return jnp.minimum(distance, float(jnp.finfo(distance.dtype).max) / 8)


# Products may be this many times as large as a distance, or as its expectation under its own component.
_LARGEST_LOSS = 16.0


class Terms(NamedTuple):
    """Rows under spherical or diagonal components."""

    values: Float[Array, "k n"]
    """`log P(h, observed x)`."""
    distance: Float[Array, "k n"]
    """Squared distance of the observed part to the mean, in units of the variances."""


class Products(NamedTuple):
    """Rows about a common centre."""

    terms: Terms
    is_accurate: Bool[Array, ""]
    """Whether `_LARGEST_LOSS` is kept by all rows and components."""
    centred: Float[Array, "n d"]
    """`u = x − c`, zero where masked."""
    means: Float[Array, "k d"]
    """`b = a − c`."""


def _terms(params: GaussianMixture, rows: Table, distance: Float[Array, "k n"]) -> Terms:
    """Return the terms. Given the component, dimensions are independent: missing ones drop out."""
    variances = as_diagonal(params.variance, params.means)
    logs = jnp.log(variances) + _LOG_TWO_PI
    if rows.mask is None:
        normalizer = jnp.sum(logs, axis=1)[:, None]
    else:
        normalizer = matmul(logs, rows.mask.T.astype(variances.dtype))
    distance = _finite(distance)
    return Terms(_log_weights(params)[:, None] - (distance + normalizer) / 2, distance)


def product_terms(params: GaussianMixture, rows: Table) -> Products:
    """Return the terms of a block of rows by products, and whether they can be relied on."""
    inverse = 1 / as_diagonal(params.variance, params.means)
    centre = matmul(params.means, params.weights)
    centred, means = residuals(rows, centre).astype(inverse.dtype), (params.means - centre[:, None]).T
    squares = centred * centred
    if params.variance.ndim < 2:
        own = inverse[:, :1] * matmul(squares, jnp.ones_like(centre))[None, :]
    else:
        own = matmul(inverse, squares.T)
    weighted = means * inverse
    if rows.mask is None:
        constant = jnp.sum(means * weighted, axis=1)[:, None]
    else:
        constant = matmul(means * weighted, rows.mask.T.astype(inverse.dtype))
    distance = jnp.maximum(own - 2 * matmul(weighted, centred.T) + constant, 0)
    # Where a row's own square is large and its distance is not, the two were a small difference.
    is_accurate = jnp.all(own <= _LARGEST_LOSS * jnp.maximum(distance, centre.shape[0]))
    return Products(_terms(params, rows, distance), is_accurate, centred, means)


def differences(params: GaussianMixture, rows: Table) -> Float[Array, "k n d"]:
    """Return `x − a_h`, zero where masked."""
    return jax.vmap(lambda mean: residuals(rows, mean))(params.means.T).astype(params.means.dtype)


def difference_terms(params: GaussianMixture, rows: Table, differences: Float[Array, "k n d"]) -> Terms:
    """Return the terms of a block of rows, from `differences`."""
    inverse = 1 / as_diagonal(params.variance, params.means)
    return _terms(params, rows, matmul(differences * differences, inverse[:, :, None])[:, :, 0])


def diagonal_values(params: GaussianMixture, rows: Table) -> Float[Array, "k n"]:
    """Return `log P(h, observed x)` for a block of rows."""
    products = product_terms(params, rows)
    return lax.cond(
        products.is_accurate,
        lambda: products.terms.values,
        lambda: difference_terms(params, rows, differences(params, rows)).values,
    )


class FullTerms(NamedTuple):
    """Rows, in tiles, under components with full covariances."""

    values: Float[Array, "k t r"]
    """`log P(h, observed x)`."""
    differences: Float[Array, "k t r d"]
    """`x − a_h`; where masked, its expectation given the observed entries."""
    hidden: Float[Array, "k t d d"] | None
    """Covariance of the masked entries given the observed ones; `None` where nothing is missing."""


def full_terms(params: GaussianMixture, tiles: Tiles) -> FullTerms:
    """Return the terms of a block of tiles.

    With `Σ` and the observed part `o` of a pattern, `R = L⁻¹` for `Σ_oo = LLᵀ`, `y = R(x − a)_o` and `B = RΣ_o·`: the
    density needs `|y|²` and `log|R|`, the conditional mean is `Bᵀy` and the conditional covariance `Σ − BᵀB`. No shape
    depends on the pattern: rows and columns of what is missing are those of the identity.
    """
    covariances = as_full(params.variance, params.means)[:, None]  # (k, 1, d, d)
    differences = tiles.x[None] - params.means.T[:, None, None, :]
    if tiles.mask is None:
        count = jnp.asarray(params.means.shape[0], differences.dtype)
        inverse = inverse_root(covariances)
    else:
        seen = tiles.mask.astype(differences.dtype)
        count = jnp.sum(seen, axis=1)[None, :, None]
        differences = differences * seen[None, :, None, :]
        both = seen[:, :, None] * seen[:, None, :]
        outside = (1 - seen)[:, :, None] * jnp.eye(seen.shape[1], dtype=seen.dtype)[None]
        inverse = inverse_root(covariances * both[None] + outside[None])
    whitened = matmul(differences, jnp.swapaxes(inverse, 2, 3))
    log_determinant = -2 * jnp.sum(jnp.log(jnp.diagonal(inverse, axis1=2, axis2=3)), axis=2)[:, :, None]
    distance = _finite(jnp.sum(whitened * whitened, axis=3))
    values = _log_weights(params)[:, None, None] - (distance + log_determinant + count * _LOG_TWO_PI) / 2
    if tiles.mask is None:
        return FullTerms(values, differences, None)
    explained = matmul(inverse, covariances * seen[None, :, :, None])
    expected = jnp.where(tiles.mask[None, :, None, :], differences, matmul(whitened, explained))
    unseen = (1 - seen)[:, :, None] * (1 - seen)[:, None, :]
    hidden = (covariances - matmul(jnp.swapaxes(explained, 2, 3), explained)) * unseen[None]
    return FullTerms(values, expected, hidden)
