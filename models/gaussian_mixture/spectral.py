"""The mixture of Gaussians from moments.

Centred data with a constant coordinate appended have the means `a'_h = (a_h − μ, c)`, which are linearly independent
where the `a_h` are affinely independent. Their second moment is `diag(Γ, c²)` in blocks, `Γ = C − σ²I`; in the whitened
space the last coordinate of component `v_h` is `√π_h`, and the others give `√π_h (a_h − μ)`. So the estimate follows
every translation of the data, and its overall mean is that of the data.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import check_key, divide, machine_epsilon, matmul, positive_or_one, small_jit
from latensor.decompose import Status
from latensor.decompose.internal import noise_space, noise_space_operator, status_if, worst
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
from latensor.models.evidence import Evidence, add_evidence
from latensor.models.gaussian_mixture.covariance import check_family, smallest_variance
from latensor.models.gaussian_mixture.evidence import weigh_evidence
from latensor.models.gaussian_mixture.likelihood import as_data
from latensor.models.gaussian_mixture.params import GaussianMixture
from latensor.models.gaussian_mixture.start import no_directions, standardize, start_in_family
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
from latensor.moments.internal import Centred, ContractedCumulants, NoiseDirections, correct_lifted

# A component whose `√π_h` is not above the first has vanished. A variance that comes out below the second, as a share
# of the mean variance, or negative, is moved there.
_SMALLEST_ROOT, _SMALLEST_SHARE = 1e-3, 1e-3


class Diagnostics(NamedTuple):
    """How the stages of `fit` went."""

    spectrum: Spectrum
    """Of the weighted covariance of the means: `k − 1` values, since centred means span no more directions."""
    whitening_status: Int[Array, ""]
    decomposition_status: Int[Array, ""]
    evidence: Evidence | None
    """What the rows say, in units of one standard deviation unless spherical; `None` for moments alone."""
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
    covariance: Literal["spherical", "diagonal", "full"] = "spherical",
    shared: bool = False,
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
      complete_rate: the rate from which on a dimension counts as complete. Variances come from the complete dimensions
        (from the `2k` best observed ones where no more than `k` are complete).
      covariance: `"spherical"`, all of it by moments. `"diagonal"` and `"full"` begin with spherical components of the
        standardized columns, whose scale is undone, and take a few steps of EM from there: a start for `refine`.
      shared: whether all components have the same covariance.

    Returns:
      `Fit` with `Diagnostics`. The status is `BOUNDARY` where no positive variance was left for the noise or for a
      component (it then gets a thousandth of the mean variance). Under `jit` or `vmap` traced values are not checked
      and nothing is warned of; `status` tells what went wrong.

    Cost: `O(n d k)` and a few passes over the data, or `O(n d²)` where dense.

    """
    table = as_data(x, mask=mask, row_weights=row_weights)
    family = check_family(covariance, shared)
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
    given, scales = table, None
    if family.covariance != "spherical":
        table, scales = standardize(table)
    data, moments = second_moments(table, options.dense)
    if options.dense:
        prepared = _prepare(key, None, moments, trust, options)
    else:
        prepared = _prepare_implicit(key, data, moments, trust, options)
    noise = None if shared else prepared.noise
    seen = contract_table(data, moments.covariance, prepared.space.directions, options.third, noise)
    found = read_off(key, moments, prepared, seen, options)
    evidence = weigh_evidence(key, data, moments, prepared.correction, prepared.dimensions.weights, found.params)
    if scales is not None:
        found, evidence = start_in_family(found, evidence, given, scales, family)
    return add_evidence(found, evidence, prepared.space.whitening)


def fit_moments(
    key: Array,
    moments: Cumulants,
    num_components: int,
    *,
    method: Literal["power", "diagonalization"] = "power",
    num_restarts: int = 20,
    weights: ArrayLike | None = None,
    shared: bool = False,
) -> Fit:
    """Recover a spherical mixture from dense cumulants; exact where they are.

    `fit` is this on data, without `(d, d, d)`.
    """
    moments = check_cumulants(moments)
    shared = check_family("spherical", shared).shared
    options, trust = check_options(num_components, moments.mean.shape[0], method, num_restarts, weights)
    return _fit_moments(check_key(key), moments, trust, options._replace(third="available"), shared)


@small_jit(static_argnames=("options", "shared"))
def _fit_moments(key: Array, moments: Cumulants, trust: Trust, options: Options, shared: bool) -> Fit:
    second = second_moments_of(moments)
    prepared = _prepare(key, None, second, trust, options)
    seen = contract_dense(moments, prepared.space.directions, None if shared else prepared.noise)
    found = read_off(key, second, prepared, seen, options)
    return found._replace(status=worst(found.status, prepared.space.whitening.status))


class Correction(NamedTuple):
    """From cumulants to the moments of the lifted means."""

    variance: Float[Array, ""]
    """The mean variance of the components."""

    def adjust(self, vectors: Float[Array, "d r"]) -> Float[Array, "d r"]:
        """Return `(Γ − C) V`."""
        return -self.variance * vectors

    def correct(self, seen: ContractedCumulants, directions: Float[Array, "d r"]) -> Float[Array, "r r r"]:
        """Return `T'(W', W', W')`."""
        return correct_lifted(seen, directions, self.variance)


class Prepared(NamedTuple):
    """What the second moments tell."""

    dimensions: Dimensions
    correction: Correction
    is_positive: Bool[Array, ""]
    """Whether the estimated variance was above zero."""
    noise: NoiseDirections
    space: Whitened
    """Of rank `k − 1`, with a last direction of zeros: the place of the constant."""


def _variance_dimensions(dimensions: Dimensions, num_components: int) -> Bool[Array, " d"]:
    """Return where `σ²` is estimated: the complete dimensions, if more than components; else the `2k` observed most."""
    d = dimensions.rates.shape[0]
    if num_components == 1:  # its variance is that of all the data
        return jnp.ones(d, bool)
    threshold = jnp.sort(dimensions.rates)[::-1][min(d, 2 * num_components) - 1]
    enough = jnp.sum(dimensions.complete, dtype=jnp.int32) > num_components
    return jnp.where(enough, dimensions.complete, dimensions.rates >= threshold)


def estimate_space(
    key: Array, data: Centred | None, moments: SecondMoments, trust: Trust, options: Options
) -> Prepared:
    """Estimate the variance of the noise, and whiten by what is left of the covariance without it."""
    key_variance, key_components = jax.random.split(key)
    rank = options.num_components - 1  # of k centred means
    dimensions = describe_dimensions(moments.rates, options.missing, trust)
    included = _variance_dimensions(dimensions, options.num_components)
    start = None
    if moments.covariance is not None or rank == 0:
        known = jnp.diag(moments.variances) if moments.covariance is None else moments.covariance
        noise = noise_space(known, rank, included)
    else:
        noise = noise_space_operator(key_variance, covariance_product(data, moments), moments.variances, rank, included)
        start = noise.signal * dimensions.weights[:, None]
    # Sampling noise can leave no variance; the floor keeps what follows finite, and the status tells.
    scale = jnp.mean(jnp.abs(moments.variances))
    rounding = moments.mean.shape[0] * machine_epsilon(scale.dtype) * scale
    floor = jnp.maximum(rounding, smallest_variance(scale))
    is_positive = noise.variance > floor
    correction = Correction(jnp.where(is_positive, noise.variance, floor))
    key_whiten, _ = jax.random.split(key_components)
    if rank == 0:
        space = no_directions(dimensions.weights)
    else:
        space = whiten_weighted(key_whiten, data, moments, correction, dimensions.weights, rank, start)
    directions = jnp.concatenate([space.directions, jnp.zeros_like(moments.mean)[:, None]], axis=1)
    noisy = NoiseDirections(included, noise.signal, noise.number)
    return Prepared(dimensions, correction, is_positive, noisy, space._replace(directions=directions))


_prepare = small_jit(static_argnames="options")(estimate_space)
_prepare_implicit = jax.jit(estimate_space, static_argnames="options")


@small_jit(static_argnames="options")
def read_off(
    key: Array, moments: SecondMoments, prepared: Prepared, seen: ContractedCumulants, options: Options
) -> Fit:
    """Decompose the third moment, and read weights, means and variances off the components."""
    _, key_components = jax.random.split(key)
    _, key_decompose = jax.random.split(key_components)
    dimensions, correction, is_positive, _, space = prepared
    components = decompose_whitened(
        key_decompose, seen, space.directions, correction, options.method, options.num_restarts
    )
    pairs, whitening = components.pairs, space.whitening
    order = jnp.argsort(-jnp.abs(pairs.vectors[-1]))
    vectors, roots = pairs.vectors[:, order], pairs.vectors[-1, order]
    # The last coordinate is `√π_h`, as is `1/λ_h` in theory; dividing by it makes the overall mean that of the data.
    has_vanished = ~(roots > _SMALLEST_ROOT)
    safe = jnp.where(has_vanished, divide(1, pairs.values[order], 1), roots)
    means = moments.mean[:, None] + components.scaled[:, order] / safe[None, :]
    variance, is_inside = correction.variance, is_positive
    if seen.noise is not None:
        # `(Wᵀm, σ²) = Σ_h √π_h σ_h² v_h` with orthonormal `v_h`.
        variances = matmul(seen.noise.at[-1].set(correction.variance), vectors) / safe
        floor = jnp.maximum(_SMALLEST_SHARE * correction.variance, smallest_variance(jnp.zeros_like(roots[0])))
        is_inside = is_positive & jnp.all(variances >= floor)
        variance = jnp.maximum(variances, floor)
    params = GaussianMixture(roots**2 / positive_or_one(jnp.sum(roots**2)), means, variance)
    return Fit(
        params,
        worst(
            table_status(params, ~is_inside, dimensions, None, pairs),
            status_if(jnp.any(has_vanished), Status.DEGENERATE),
        ),
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
        ),
    )
