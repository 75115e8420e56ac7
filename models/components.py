"""From moments to components: the steps that the symmetric models share.

Whiten by the weighted second moment, contract the third with the whitener, decompose the small tensor, undo the
whitening. A model differs from another by what turns cumulants into its moments (a `Correction`), and by how it reads
its parameters off the components.

Weighting is one vector `w (d,)`: `S*_ij = w_i w_j S_ij`, and likewise `T*`, are decomposed in place of `S` and `T`
(Gottesman et al., eq. 4–6). With `W` the whitener of `S*` and `v_h` the eigenvectors of `T*(W,W,W)`, the components of
all dimensions are `√s_h a_h = S (w∘W) v_h`: dimension i by regression on the weighted ones. Where `w_i > 0` this *is*
row i of the unwhitened vector divided by `w_i`, and a dimension of weight zero needs no case of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from latensor.base import matmul
from latensor.decompose import Eigenpairs, Status, Whitening, diagonalize_slices, power_method, whiten, whiten_operator
from latensor.decompose.internal import status_if, worst
from latensor.moments import Cumulants, Table, joint_observation_rates
from latensor.moments.internal import (
    Centred,
    ContractedCumulants,
    NoiseDirections,
    centre,
    contract_cumulants,
    contract_third,
    second_cumulant,
    second_cumulant_diagonal,
    second_cumulant_operator,
    trace_noise,
)

# A dense second moment of this size and its eigh are cheap; beyond, products with the data. Not tuned.
DENSE_UP_TO = 256
METHODS = ("power", "diagonalization")
SECONDS = ("auto", "dense", "implicit")
# A pair of dimensions matters where the product of its weights is at least this share of the largest.
_MATTERS = 0.01


def eigenpairs(key: Array, tensor: Float[Array, "k k k"], method: str, num_restarts: int) -> Eigenpairs:
    """Decompose a whitened tensor by the method that the user has chosen."""
    if method == "power":
        return power_method(key, tensor, tensor.shape[0], num_restarts, orthogonal=True)
    return diagonalize_slices(key, tensor, num_restarts, orthogonal=True)


class SecondMoments(NamedTuple):
    """Mean and covariance of a table. Nothing in it grows with the number of rows."""

    mean: Float[Array, " d"]
    rates: Float[Array, " d"]
    """Share of the rows that observe each dimension."""
    variances: Float[Array, " d"]
    """The diagonal of the covariance."""
    covariance: Float[Array, "d d"] | None
    """Dense, or `None` where only products with it are computed."""
    unobserved_pairs: Int[Array, ""] | None
    """Entries of the covariance that no row observes whole; `None` where they are not counted."""
    unobserved: Bool[Array, "d d"] | None = None
    """Which these are; `None` where all are observed, or where they are not counted."""


@partial(jax.jit, static_argnames="dense")
def _second_moments(table: Table, dense: bool) -> tuple[Float[Array, " n"], SecondMoments]:
    data = centre(table)
    if not dense:
        unobserved, count = None, None
        if table.mask is not None and table.num_dimensions <= DENSE_UP_TO:
            unobserved = ~(joint_observation_rates(table) > 0)
            count = jnp.sum(unobserved, dtype=jnp.int32)
        moments = SecondMoments(data.mean, data.rates, second_cumulant_diagonal(data), None, count, unobserved)
    else:
        covariance, unobserved = second_cumulant(data)
        count = jnp.sum(unobserved, dtype=jnp.int32)
        moments = SecondMoments(data.mean, data.rates, jnp.diag(covariance), covariance, count, unobserved)
    return data.weights, moments


def second_moments(table: Table, dense: bool) -> tuple[Centred, SecondMoments]:
    """Centre a table, and return its covariance: dense and available-case, or only its diagonal."""
    weights, moments = _second_moments(table, dense)
    # The table does not pass through `jit`, which would copy it.
    return Centred(table, weights, moments.mean, moments.rates), moments


def second_moments_of(moments: Cumulants) -> SecondMoments:
    """Return the second moments of cumulants that are already there."""
    return SecondMoments(
        moments.mean, jnp.ones_like(moments.mean), jnp.diag(moments.second), moments.second, jnp.int32(0)
    )


@runtime_checkable
class Correction(Protocol):
    """What turns cumulants into the moments `S` and `T` of a model; a pytree, so that it crosses `jit`."""

    def adjust(self, vectors: Float[Array, "d r"]) -> Float[Array, "d r"]:
        """Return `(S − C) V`: what the model adds to the covariance."""
        ...

    def correct(self, seen: ContractedCumulants, directions: Float[Array, "d r"]) -> Float[Array, "r r r"]:
        """Return `T(W, W, W)` from contracted cumulants."""
        ...


class Whitened(NamedTuple):
    """The space in which the third moment is decomposed."""

    whitening: Whitening
    directions: Float[Array, "d k"]
    """`w∘W`: what the data are contracted with."""


def whiten_weighted(
    key: Array,
    data: Centred | None,
    moments: SecondMoments,
    correction: Correction,
    weights: Float[Array, " d"],
    rank: int,
    start: Float[Array, "d r"] | None = None,
) -> Whitened:
    """Whiten by the weighted second moment: by its `eigh` where it is dense, else by products with the data.

    `start` are columns that are known to be near the dominant subspace, where the whitening iterates.
    """
    weigh = weights[:, None]
    if moments.covariance is not None:
        second = moments.covariance + correction.adjust(jnp.eye(weights.shape[0], dtype=weights.dtype))
        whitening = whiten(weigh * second * weights[None, :], rank)
    else:
        product = covariance_product(data, moments)

        def weighted_second(vectors: Array) -> Array:
            return weigh * (product(weigh * vectors) + correction.adjust(weigh * vectors))

        size = weights.shape[0]
        whitening = whiten_operator(key, weighted_second, size, rank, dtype=weights.dtype, start=start)
    if moments.unobserved is not None:
        lost = jnp.any(moments.unobserved & pairs_that_matter(weights))
        whitening = whitening._replace(status=worst(whitening.status, status_if(lost, Status.UNOBSERVED)))
    return Whitened(whitening, weigh * whitening.whitener)


def pairs_that_matter(weights: Float[Array, " d"]) -> Bool[Array, "d d"]:
    """Return the pairs of dimensions whose weights have a product that is not small.

    Two rarely observed dimensions may miss each other by chance: their covariance is set to zero, and hardly counts.
    """
    return weights[:, None] * weights[None, :] >= _MATTERS * jnp.max(weights) ** 2


def covariance_product(data: Centred | None, moments: SecondMoments) -> Callable[[Array], Array]:
    """Return the map `V ↦ C V` by products with the data."""
    if data is None:
        raise ValueError("second: expected dense moments where there are no data")
    return second_cumulant_operator(data, moments.variances)


@partial(jax.jit, static_argnames="third")
def contract_table(
    data: Centred,
    covariance: Float[Array, "d d"] | None,
    directions: Float[Array, "d r"],
    third: str,
    noise: NoiseDirections | None = None,
) -> ContractedCumulants:
    """Return the cumulants of a table as seen through `directions`, with the dense covariance where there is one."""
    seen = contract_cumulants(data, directions, third, noise=noise)
    # The contraction's own is dropped by the compiler.
    return seen if covariance is None else seen._replace(second=matmul(covariance, directions))


def contract_dense(
    moments: Cumulants, directions: Float[Array, "d r"], noise: NoiseDirections | None = None
) -> ContractedCumulants:
    """Return dense cumulants as seen through `directions`."""
    return ContractedCumulants(
        matmul(moments.mean, directions),
        matmul(moments.second, directions),
        contract_third(moments.third, directions),
        moments.num_unobserved,
        None if noise is None else trace_noise(moments.third, directions, noise),
    )


class Components(NamedTuple):
    """The components, before a model reads its parameters off."""

    scaled: Float[Array, "d k"]
    """`√s_h a_h`."""
    coordinates: Float[Array, " k"]
    """`v_hᵀ (w∘W)ᵀ μ`: where `μ = Σ m_h a_h`, this is `m_h / √s_h`."""
    pairs: Eigenpairs
    """Of the whitened tensor; `pairs.values` are `λ_h = t_h / s_h^{3/2}`."""


def decompose_whitened(
    key: Array,
    seen: ContractedCumulants,
    directions: Float[Array, "d k"],
    correction: Correction,
    method: str,
    num_restarts: int,
) -> Components:
    """Decompose the third moment in the whitened space, and undo the whitening."""
    pairs = eigenpairs(key, correction.correct(seen, directions), method, num_restarts)
    return Components(
        scaled=matmul(seen.second + correction.adjust(directions), pairs.vectors),
        coordinates=matmul(seen.mean, pairs.vectors),
        pairs=pairs,
    )
