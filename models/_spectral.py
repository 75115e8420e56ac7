"""From moments to components: the steps that the symmetric models share.

Whiten by the weighted second moment, contract the third with the whitener, decompose the small tensor, undo the
whitening. A model differs from another by what turns cumulants into its moments (`adjust`, `correct`), and by how it
reads its parameters off the components.

Weighting is one vector `w (d,)`: `S*_ij = w_i w_j S_ij`, and likewise `T*`, are decomposed in place of `S` and `T`
(Gottesman et al., eq. 4–6). With `W` the whitener of `S*` and `v_h` the eigenvectors of `T*(W,W,W)`, the components of
all dimensions are `√s_h a_h = S (w∘W) v_h`: dimension i by regression on the weighted ones. Where `w_i > 0` this *is*
row i of the unwhitened vector divided by `w_i`, and a dimension of weight zero needs no case of its own.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.decompose import Eigenpairs, diagonalize_slices, power_method, whiten, whiten_operator, worst
from latensor.moments import (
    Centred,
    ContractedCumulants,
    Cumulants,
    contract_cumulants,
    contract_third,
    second_cumulant,
    second_cumulant_diagonal,
    second_cumulant_operator,
)

# A dense second moment of this size and its eigh are cheap; beyond, products with the data. Not tuned.
DENSE_UP_TO = 256
METHODS = ("power", "diagonalization")
SECONDS = ("auto", "dense", "implicit")


def eigenpairs(key: Array, tensor: Float[Array, "k k k"], method: str, num_restarts: int) -> Eigenpairs:
    """Decompose a whitened tensor by the method that the user has chosen."""
    if method == "power":
        return power_method(key, tensor, tensor.shape[0], num_restarts, orthogonal=True)
    return diagonalize_slices(key, tensor, num_restarts, orthogonal=True)


class Source(NamedTuple):
    """Where cumulants come from: a table, or moments that are already there."""

    mean: Float[Array, " d"]
    variances: Float[Array, " d"]
    """The diagonal of the covariance."""
    covariance: Float[Array, "d d"] | None
    """Dense, or `None` where only products with it are to be had."""
    product: Callable[[Float[Array, "d r"]], Float[Array, "d r"]]
    """`V ↦ C V`."""
    contract: Callable[[Float[Array, "d r"]], ContractedCumulants]
    """`W ↦ (Wᵀμ, C W, K₃(W,W,W))`."""
    unobserved_pairs: Int[Array, ""]
    """Entries of the covariance that no row observes whole; −1 where they are not looked at."""


def _product(matrix: Float[Array, "d d"]) -> Callable[[Array], Array]:
    return lambda vectors: jnp.matmul(matrix, vectors, precision="highest")


def table_source(data: Centred, dense: bool, third: str) -> Source:
    """Take cumulants from a table: the covariance dense and available-case or implicit, the third as `third` says."""
    if not dense:
        variances = second_cumulant_diagonal(data)
        product = second_cumulant_operator(data, variances)
        return Source(data.mean, variances, None, product, lambda w: contract_cumulants(data, w, third), jnp.int32(-1))
    covariance, unobserved = second_cumulant(data)

    def contract(directions: Array) -> ContractedCumulants:
        # One covariance for everything; the contraction's own is dropped by the compiler.
        second = jnp.matmul(covariance, directions, precision="highest")
        return contract_cumulants(data, directions, third)._replace(second=second)

    return Source(data.mean, jnp.diag(covariance), covariance, _product(covariance), contract, unobserved)


def moment_source(moments: Cumulants) -> Source:
    """Take cumulants that are already there, dense."""

    def contract(directions: Array) -> ContractedCumulants:
        return ContractedCumulants(
            jnp.matmul(moments.mean, directions, precision="highest"),
            jnp.matmul(moments.second, directions, precision="highest"),
            contract_third(moments.third, directions),
            moments.num_unobserved,
        )

    variances = jnp.diag(moments.second)
    return Source(moments.mean, variances, moments.second, _product(moments.second), contract, jnp.int32(0))


class Components(NamedTuple):
    """What the decomposition found, before a model reads its parameters off."""

    scaled: Float[Array, "d k"]
    """`√s_h a_h`."""
    values: Float[Array, " k"]
    """`λ_h = t_h / s_h^{3/2}`."""
    coordinates: Float[Array, " k"]
    """`v_hᵀ (w∘W)ᵀ μ`: where `μ = Σ m_h a_h`, this is `m_h / √s_h`."""
    status: Int[Array, ""]
    num_iters: Int[Array, ""]
    residual: Float[Array, ""]
    eigenvalues: Float[Array, " k"]
    noise: Float[Array, ""]
    unobserved_pairs: Int[Array, ""]
    unobserved_triples: Int[Array, ""]


def find_components(
    key: Array,
    source: Source,
    weights: Float[Array, " d"],
    num_components: int,
    adjust: Callable[[Float[Array, "d r"]], Float[Array, "d r"]],
    correct: Callable[[ContractedCumulants, Float[Array, "d r"]], Float[Array, "r r r"]],
    method: str,
    num_restarts: int,
    start: Float[Array, "d r"] | None = None,
) -> Components:
    """Decompose the weighted moments of a model.

    Args:
      key: a random key.
      source: where cumulants come from.
      weights: one weight a dimension.
      num_components: k.
      adjust: `V ↦ (S − C) V`, what the model adds to the covariance.
      correct: contracted cumulants to `T(W, W, W)`.
      method: `"power"` or `"diagonalization"`.
      num_restarts: random starts, or slices.
      start: columns that are known to be near the dominant subspace, where the whitening iterates.

    """
    key_whiten, key_decompose = jax.random.split(key)
    weigh = weights[:, None]
    if source.covariance is not None:
        second = source.covariance + adjust(jnp.eye(weights.shape[0], dtype=weights.dtype))
        whitening = whiten(weigh * second * weights[None, :], num_components)
    else:

        def weighted_second(vectors: Array) -> Array:
            return weigh * (source.product(weigh * vectors) + adjust(weigh * vectors))

        d = weights.shape[0]
        whitening = whiten_operator(key_whiten, weighted_second, d, num_components, dtype=weights.dtype, start=start)
    directions = weigh * whitening.whitener
    seen = source.contract(directions)
    pairs = eigenpairs(key_decompose, correct(seen, directions), method, num_restarts)
    return Components(
        scaled=jnp.matmul(seen.second + adjust(directions), pairs.vectors, precision="highest"),
        values=pairs.values,
        coordinates=jnp.matmul(seen.mean, pairs.vectors, precision="highest"),
        status=worst(whitening.status, pairs.status),
        num_iters=pairs.num_iters,
        residual=pairs.unexplained,
        eigenvalues=whitening.eigenvalues,
        noise=whitening.noise,
        unobserved_pairs=source.unobserved_pairs,
        unobserved_triples=seen.num_unobserved,
    )
