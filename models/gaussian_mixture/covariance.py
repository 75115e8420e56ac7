"""Families of covariances. The shape of `GaussianMixture.variance` says which one it is; components come last.

| family | shared by the components | one per component |
| --- | --- | --- |
| spherical, `σ² I` | `()` | `(k,)` |
| diagonal | `(d, 1)` | `(d, k)` |
| full | `(d, d, 1)` | `(d, d, k)` |
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latensor.base import check_option, is_concrete, machine_epsilon, smallest_normal
from latensor.models.checks import check_reals

FAMILIES = ("spherical", "diagonal", "full")


class Family(NamedTuple):
    """A family of covariances; static."""

    covariance: str = "spherical"
    shared: bool = False

    def shape(self, num_dimensions: int, num_components: int) -> tuple[int, ...]:
        """Return the shape of `variance`."""
        if self.covariance == "spherical":
            return () if self.shared else (num_components,)
        dimensions = (num_dimensions,) * (1 if self.covariance == "diagonal" else 2)
        return (*dimensions, 1 if self.shared else num_components)


def check_family(covariance: Any, shared: Any) -> Family:
    """Return the family that a user asks for."""
    check_option("covariance", covariance, FAMILIES)
    if not isinstance(shared, bool | np.bool_):
        raise ValueError(f"shared: expected True or False; got {shared!r}")
    return Family(covariance, bool(shared))


def family_of(variance: Float[Array, "..."], num_components: int) -> Family:
    """Return the family of a checked `variance`."""
    covariance = FAMILIES[max(variance.ndim - 1, 0)]
    # Of one component alone it does not matter.
    return Family(covariance, variance.ndim == 0 or variance.shape[-1] < num_components)


def check_variance(value: Any, num_dimensions: int, num_components: int) -> Float[Array, "..."]:
    """Return variances or covariances of one of the shapes above; concrete ones must be positive (definite)."""
    shape = jnp.shape(value) if hasattr(value, "shape") else np.shape(value)
    allowed = [
        Family(name, shared).shape(num_dimensions, num_components) for name in FAMILIES for shared in (True, False)
    ]
    if shape not in allowed:
        listed = ", ".join(str(each) for each in allowed)
        raise ValueError(f"params.variance: expected one of the shapes {listed}; got shape {shape}")
    full = len(shape) == 3
    array = check_reals("params.variance", value, len(shape), positive=not full)
    if full and is_concrete(array):
        matrices = np.moveaxis(np.asarray(array, np.float64), -1, 0)
        scale = np.sqrt(np.abs(np.einsum("hii,hjj->hij", matrices, matrices)))
        if np.any(np.abs(matrices - matrices.swapaxes(1, 2)) > 100 * machine_epsilon(array.dtype) * scale):
            raise ValueError("params.variance: expected symmetric covariances")
        smallest = np.linalg.eigvalsh(matrices).min()
        if smallest <= 0:
            raise ValueError(
                f"params.variance: expected positive definite covariances; the smallest eigenvalue is {smallest:.3g}"
            )
    return array


def as_diagonal(variance: Float[Array, "..."], means: Float[Array, "d k"]) -> Float[Array, "k d"]:
    """Return spherical or diagonal variances, one row per component."""
    return jnp.broadcast_to(variance, means.shape).T


def as_full(variance: Float[Array, "..."], means: Float[Array, "d k"]) -> Float[Array, "k d d"]:
    """Return covariances of any family, one matrix per component."""
    d, k = means.shape
    if variance.ndim == 3:
        return jnp.broadcast_to(jnp.moveaxis(variance, -1, 0), (k, d, d))
    return as_diagonal(variance, means)[:, :, None] * jnp.eye(d, dtype=variance.dtype)[None]


def from_diagonal(variances: Float[Array, "k d"], family: Family) -> Float[Array, "..."]:
    """Return variances of components and dimensions in the shape of a family that holds them."""
    chosen = jnp.mean(variances, axis=0, keepdims=True) if family.shared else variances
    if family.covariance == "spherical":
        means = jnp.mean(chosen, axis=1)
        return means[0] if family.shared else means
    if family.covariance == "diagonal":
        return chosen.T
    d = variances.shape[1]
    return chosen.T[:, None, :] * jnp.eye(d, dtype=variances.dtype)[:, :, None]


def smallest_variance(spread: Float[Array, "..."], mean: Float[Array, "..."] | None = None) -> Float[Array, "..."]:
    """Return where variances end, for data of this variance and mean: where differences are no more than rounding.

    The likelihood of a component that closes in on a single point has no bound.
    """
    eps = machine_epsilon(spread.dtype)
    floor = (10 * eps) * (10 * eps * spread)
    if mean is not None:
        floor = floor + (2 * eps * mean) ** 2
    # Of data without any spread: small, and its inverse still a number.
    return jnp.maximum(floor, 100 * smallest_normal(spread.dtype))
