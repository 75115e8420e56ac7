"""The Gamma-Poisson model from moments."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_key, divide, positive_or_one, small_jit
from latensor.decompose.internal import worst
from latensor.models.components import (
    Components,
    SecondMoments,
    Whitened,
    contract_dense,
    contract_table,
    decompose_whitened,
    second_moments,
    second_moments_of,
    whiten_weighted,
)
from latensor.models.evidence import Evidence, add_evidence
from latensor.models.gamma_poisson.evidence import fit_one_topic, weigh_evidence
from latensor.models.gamma_poisson.likelihood import as_data
from latensor.models.gamma_poisson.params import GammaPoisson
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
from latensor.moments.internal import Centred, ContractedCumulants, correct_gamma_poisson

# The least share of the counts that a topic gets whose mean intensity came out as zero or less: EM can start there.
_SMALLEST_SHARE = 1e-3


class Diagnostics(NamedTuple):
    """How the stages of `fit` went."""

    spectrum: Spectrum
    """Of the weighted second moment."""
    whitening_status: Int[Array, ""]
    decomposition_status: Int[Array, ""]
    evidence: Evidence | None
    """What the rows say about the estimate. `None` for moments alone."""
    dimensions: Dimensions
    unobserved_pairs: Int[Array, ""] | None
    """Pairs of dimensions (of `d²`) that no row observes together; `None` where they were not counted."""
    unobserved_triples: Int[Array, ""] | None
    """Triples (of `d³`) likewise; counted with `third="available"`. Their moments are set to zero."""
    negative: Float[Array, " k"]
    """How much of each topic, the entries of which sum to one, was estimated below zero and cut off."""


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
    """Estimate the model by the method of moments, from complete or partial counts.

    Args:
      key: a random key, for the restarts.
      x: a `Table`, or counts `(n, d)` in rows, integer or floating. Masked values are ignored; they may be NaN.
      num_components: number of topics `k ≤ d`.
      mask: `(n, d)` bool, True where observed; `None` means everywhere.
      row_weights: one weight per row (default: equal).
      method: `"power"`, the robust power method on the whole tensor; or `"diagonalization"` of one random slice of it,
        polished by power steps.
      num_restarts: random starts per topic, or random slices.
      missing: how to use dimensions that are not always observed. `"weighted"` gives each its observation rate as
        weight, `"full"` all the same, `"partial"` none to those that are not complete. All three estimate the topics in
        all dimensions.
      weights: one weight per dimension, in place of `missing`.
      third: third moments under a mask. `"implicit"` is `O(n d k)` and assumes that dimensions are missing
        independently of each other: where they go missing together, triples are observed more often than their rates
        suggest, and the moments are wrong however many rows there are. `fit` warns where pairs show this.
        `"available"` averages each entry over the rows that have it: right for such patterns too, but `O(n d³)`, and
        second moments then are dense.
      second: `"dense"` forms the `(d, d)` covariance, available-case; `"implicit"` iterates with products instead, by
        inverse propensities; `"auto"` is dense up to 256 dimensions.
      complete_rate: the rate from which on a dimension counts as complete.

    Returns:
      `Fit` with `Diagnostics`; topics are in decreasing order of their share of the counts. The status is `BOUNDARY`
      where the mean or the variance of a topic's intensity came out as zero or less. Under `jit` or `vmap` values are
      not checked, if traced, and nothing is warned of; `status` tells what went wrong.

    Cost: `O(n d k)` and a few passes over the data, or `O(n d²)` where dense.

    """
    table = as_data(x, mask=mask, row_weights=row_weights)
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
    )
    key = check_key(key)
    data, moments = second_moments(table, options.dense)
    if options.dense:
        prepared = _prepare(key, None, moments, trust, options)
    else:
        prepared = _prepare_implicit(key, data, moments, trust, options)
    seen = contract_table(data, moments.covariance, prepared.space.directions, options.third)
    estimate = read_off(key, moments, prepared, seen, options)
    if options.num_components == 1:
        return fit_one_topic(estimate, data, moments)
    correction = Correction(moments.mean)
    evidence = weigh_evidence(key, data, moments, correction, prepared.dimensions.weights, estimate.params)
    return add_evidence(estimate, evidence, prepared.space.whitening)


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
    estimate = read_off(key, second, prepared, contract_dense(moments, prepared.space.directions), options)
    return estimate._replace(status=worst(estimate.status, prepared.space.whitening.status))


class Correction(NamedTuple):
    """From cumulants to the moments of the intensities: without what Poisson counts add of their own."""

    mean: Float[Array, " d"]

    def adjust(self, vectors: Float[Array, "d r"]) -> Float[Array, "d r"]:
        """Return `(S − C) V`, `S = C − diag(μ)`."""
        return -self.mean[:, None] * vectors

    def correct(self, seen: ContractedCumulants, directions: Float[Array, "d r"]) -> Float[Array, "r r r"]:
        """Return `T(W, W, W)`."""
        return correct_gamma_poisson(seen, directions, self.mean)


class Prepared(NamedTuple):
    """What the second moments tell."""

    dimensions: Dimensions
    space: Whitened


def estimate_space(
    key: Array, data: Centred | None, moments: SecondMoments, trust: Trust, options: Options
) -> Prepared:
    """Weigh the dimensions, and whiten by the covariance of the intensities."""
    key_whiten, _ = jax.random.split(key)
    dimensions = describe_dimensions(moments.rates, options.missing, trust)
    correction = Correction(moments.mean)
    space = whiten_weighted(key_whiten, data, moments, correction, dimensions.weights, options.num_components)
    return Prepared(dimensions, space)


_prepare = small_jit(static_argnames="options")(estimate_space)
_prepare_implicit = jax.jit(estimate_space, static_argnames="options")


class _Estimate(NamedTuple):
    params: GammaPoisson
    negative: Float[Array, " k"]
    boundary: Array
    """Whether a mean or a variance had to be moved to the boundary of its range."""


def _estimate_parameters(components: Components) -> _Estimate:
    """Turn components into topics, shapes and rate."""
    scaled = components.scaled
    # A topic sums to one, so `√s_h a_h` sums to `√s_h`.
    roots = jnp.sum(scaled, axis=0)
    topics = divide(scaled, roots[None, :], 1 / scaled.shape[0])
    # Cutting off what is below zero leaves the proportions of the other entries alone; the nearest point of the simplex
    # would take the noise of rarely observed dimensions out of the well observed ones.
    positive = jnp.maximum(topics, 0)
    total = jnp.sum(positive, axis=0)
    # The mean intensities `c_h / b` come from the mean, their variances `c_h / b²` from the second moments: their ratio
    # is `b`. (So is `2 s_h / t_h`, as the paper has it, but third moments are far noisier.)
    means = components.coordinates * roots
    means = jnp.maximum(means, _SMALLEST_SHARE * positive_or_one(jnp.sum(jnp.maximum(means, 0))))
    rate = divide(jnp.sum(means), jnp.sum(roots**2), 1)
    order = jnp.argsort(-means)
    params = GammaPoisson((positive / total[None, :])[:, order], (means * rate)[order], rate)
    boundary = ~(jnp.all(roots > 0) & jnp.all(components.coordinates > 0))
    return _Estimate(params, (total - 1)[order], boundary)


@small_jit(static_argnames="options")
def read_off(
    key: Array, moments: SecondMoments, prepared: Prepared, seen: ContractedCumulants, options: Options
) -> Fit:
    """Decompose the third moment, and read the parameters off the components."""
    _, key_decompose = jax.random.split(key)
    dimensions, (whitening, directions) = prepared
    components = decompose_whitened(
        key_decompose, seen, directions, Correction(moments.mean), options.method, options.num_restarts
    )
    params, negative, boundary = _estimate_parameters(components)
    pairs = components.pairs
    return Fit(
        params,
        table_status(params, boundary, dimensions, None, pairs, params.topics),
        pairs.num_iters,
        pairs.unexplained,
        Diagnostics(
            Spectrum(whitening.eigenvalues, whitening.noise),
            whitening.status,
            pairs.status,
            None,
            dimensions,
            moments.unobserved_pairs,
            seen.num_unobserved if options.third == "available" else None,
            negative,
        ),
    )
