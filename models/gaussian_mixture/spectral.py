"""The mixture of spherical Gaussians from moments."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import check_key, machine_epsilon, matmul, small_jit
from latensor.decompose import noise_variance, project_columns_to_simplex
from latensor.decompose.internal import noise_variance_operator
from latensor.models.components import (
    SecondMoments,
    Whitened,
    contract_dense,
    contract_table,
    covariance_product,
    decompose_whitened,
    second_moments,
    second_moments_of,
    whiten_weighted,
)
from latensor.models.gaussian_mixture.params import GaussianMixture
from latensor.models.partial import (
    Dimensions,
    Options,
    Trust,
    check_cumulants,
    check_fit,
    check_options,
    describe_dimensions,
    table_status,
)
from latensor.models.results import Fit, Spectrum
from latensor.moments import Cumulants, Table
from latensor.moments.internal import Centred, ContractedCumulants, as_table, correct_gaussian

# Where all points are the same: small, and its inverse still a number in float32.
SMALLEST_VARIANCE = 1e-30


class Diagnostics(NamedTuple):
    """How the stages of `fit` went."""

    spectrum: Spectrum
    """Of the weighted second moment."""
    whitening_status: Int[Array, ""]
    decomposition_status: Int[Array, ""]
    dimensions: Dimensions
    unobserved_pairs: Int[Array, ""] | None
    """Pairs of dimensions (of `d²`) that no row observes together; `None` where they were not counted."""
    unobserved_triples: Int[Array, ""] | None
    """Triples (of `d³`) likewise; counted with `third="available"`. Their moments are set to zero."""


def fit(
    key: Array,
    x: Table | ArrayLike,
    num_components: int,
    *,
    mask: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    method: Literal["power", "diagonalization"] = "power",
    num_restarts: int = 20,
    missing: Literal["weighted", "full", "partial"] = "weighted",
    weights: ArrayLike | None = None,
    third: Literal["implicit", "available"] = "implicit",
    second: Literal["auto", "dense", "implicit"] = "auto",
    complete_rate: float | Array = 1.0,
) -> Fit:
    """Estimate the mixture by the method of moments, from complete or partial data.

    Args:
      key: a random key, for the restarts.
      x: a `Table`, or points `(n, d)` in rows. Masked values are ignored; they may be NaN.
      num_components: number of components `k ≤ d`.
      mask: `(n, d)` bool, True where observed; `None` means everywhere.
      row_weights: one weight per row (default: equal).
      method: `"power"`, the robust power method on the whole tensor; or `"diagonalization"` of one random slice of it,
        polished by power steps.
      num_restarts: random starts per component, or random slices.
      missing: how to use dimensions that are not always observed. `"weighted"` gives each its observation rate as
        weight, `"full"` all the same, `"partial"` none to those that are not complete. All three estimate the means of
        all dimensions.
      weights: one weight per dimension, in place of `missing`.
      third: third moments under a mask. `"implicit"` is `O(n d k)` and assumes that dimensions are missing
        independently of each other: where they go missing together, triples are observed more often than their rates
        suggest, and the moments are wrong however many rows there are. `fit` warns where pairs show this.
        `"available"` averages each entry over the rows that have it: right for such patterns too, but `O(n d³)`, and
        second moments then are dense.
      second: `"dense"` forms the `(d, d)` covariance, available-case; `"implicit"` iterates with products instead, by
        inverse propensities; `"auto"` is dense up to 256 dimensions.
      complete_rate: the rate from which on a dimension counts as complete. `σ²` comes from the complete dimensions
        (from the `2k` best observed ones where no more than `k` are complete).

    Returns:
      `Fit` with `Diagnostics`. The status is `BOUNDARY` where no positive variance was left for the noise. Under `jit`
      or `vmap` traced values are not checked and nothing is warned of; `status` tells what went wrong.

    Cost: `O(n d k)` and a few passes over the data, or `O(n d²)` where dense.

    """
    table = as_table(x, mask=mask, row_weights=row_weights)
    options, trust = check_fit(
        table,
        num_components,
        method=method,
        num_restarts=num_restarts,
        missing=missing,
        weights=weights,
        third=third,
        second=second,
        complete_rate=complete_rate,
        counts=False,
    )
    key = check_key(key)
    data, moments = second_moments(table, options.dense)
    if options.dense:
        prepared = _prepare(key, None, moments, trust, options)
    else:
        prepared = _prepare_implicit(key, data, moments, trust, options)
    seen = contract_table(data, moments.covariance, prepared.space.directions, options.third)
    return _read_off(key, moments, prepared, seen, options)


def fit_moments(
    key: Array,
    moments: Cumulants,
    num_components: int,
    *,
    method: Literal["power", "diagonalization"] = "power",
    num_restarts: int = 20,
    weights: ArrayLike | None = None,
) -> Fit:
    """Recover the model from dense cumulants; exact where they are. `fit` is this on data, without `(d, d, d)`."""
    moments = check_cumulants(moments)
    options, trust = check_options(num_components, moments.mean.shape[0], method, num_restarts, weights)
    return _fit_moments(check_key(key), moments, trust, options._replace(third="available"))


@small_jit(static_argnames="options")
def _fit_moments(key: Array, moments: Cumulants, trust: Trust, options: Options) -> Fit:
    second = second_moments_of(moments)
    prepared = _prepare(key, None, second, trust, options)
    return _read_off(key, second, prepared, contract_dense(moments, prepared.space.directions), options)


class Correction(NamedTuple):
    """From cumulants to the moments of the means: without the noise, and about the origin."""

    mean: Float[Array, " d"]
    variance: Float[Array, ""]

    def adjust(self, vectors: Float[Array, "d r"]) -> Float[Array, "d r"]:
        """Return `(S − C) V`, `S = C − σ²I + μμᵀ`."""
        return self.mean[:, None] * matmul(self.mean, vectors)[None, :] - self.variance * vectors

    def correct(self, seen: ContractedCumulants, directions: Float[Array, "d r"]) -> Float[Array, "r r r"]:
        """Return `T(W, W, W)`."""
        return correct_gaussian(seen, directions, self.variance)


class Prepared(NamedTuple):
    """What the second moments tell."""

    dimensions: Dimensions
    correction: Correction
    is_positive: Bool[Array, ""]
    """Whether the estimated variance was above zero."""
    space: Whitened


def _variance_dimensions(dimensions: Dimensions, num_components: int) -> Bool[Array, " d"]:
    """Return the dimensions that `σ²` is estimated from: the complete ones, if there are more than components.

    Otherwise the `2k` that were observed most.
    """
    d = dimensions.rates.shape[0]
    threshold = jnp.sort(dimensions.rates)[::-1][min(d, 2 * num_components) - 1]
    enough = jnp.sum(dimensions.complete, dtype=jnp.int32) > num_components
    return jnp.where(enough, dimensions.complete, dimensions.rates >= threshold)


def _estimate_space(
    key: Array, data: Centred | None, moments: SecondMoments, trust: Trust, options: Options
) -> Prepared:
    """Estimate the variance of the noise, and whiten by what is left of the covariance without it."""
    key_variance, key_components = jax.random.split(key)
    k = options.num_components
    dimensions = describe_dimensions(moments.rates, options.missing, trust)
    included = _variance_dimensions(dimensions, k)
    start = None
    if moments.covariance is not None:
        variance = noise_variance(moments.covariance, k, included)
    else:
        product = covariance_product(data, moments)
        variance, top = noise_variance_operator(key_variance, product, moments.variances, k, included)
        # Centred means span one direction less than the means themselves: the overall mean completes them.
        start = jnp.concatenate([moments.mean[:, None], top], axis=1) * dimensions.weights[:, None]
    # Sampling noise can leave no variance; the floor keeps what follows finite, and the status tells.
    scale = jnp.mean(jnp.abs(moments.variances))
    floor = jnp.maximum(machine_epsilon(scale.dtype) * scale, SMALLEST_VARIANCE)
    is_positive = variance > floor
    correction = Correction(moments.mean, jnp.where(is_positive, variance, floor))
    key_whiten, _ = jax.random.split(key_components)
    space = whiten_weighted(key_whiten, data, moments, correction, dimensions.weights, k, start)
    return Prepared(dimensions, correction, is_positive, space)


_prepare = small_jit(static_argnames="options")(_estimate_space)
_prepare_implicit = jax.jit(_estimate_space, static_argnames="options")


@small_jit(static_argnames="options")
def _read_off(
    key: Array, moments: SecondMoments, prepared: Prepared, seen: ContractedCumulants, options: Options
) -> Fit:
    """Decompose the third moment, and read weights and means off the components."""
    _, key_components = jax.random.split(key)
    _, key_decompose = jax.random.split(key_components)
    dimensions, correction, is_positive, space = prepared
    components = decompose_whitened(
        key_decompose, seen, space.directions, correction, options.method, options.num_restarts
    )
    pairs, whitening = components.pairs, space.whitening
    # `π_h = λ_h⁻²` in theory; the squared coordinates of the mean are the same in theory and less noisy.
    weights, _ = project_columns_to_simplex((components.coordinates**2)[:, None])
    order = jnp.argsort(-weights[:, 0])
    means = (pairs.values[None, :] * components.scaled)[:, order]
    params = GaussianMixture(weights[order, 0], means, correction.variance)
    return Fit(
        params,
        table_status(params, ~is_positive, dimensions, whitening, pairs),
        pairs.num_iters,
        pairs.unexplained,
        Diagnostics(
            Spectrum(whitening.eigenvalues, whitening.noise),
            whitening.status,
            pairs.status,
            dimensions,
            moments.unobserved_pairs,
            seen.num_unobserved if options.third == "available" else None,
        ),
    )
