"""The mixture of spherical Gaussians, also from tables with holes.

    h ~ Multinomial(π),              π (k,)
    x | h ~ Normal(a_h, σ² I),       A = (a_1 … a_k) (d, k)

`S = Σ_h π_h a_h a_hᵀ` and `T = Σ_h π_h a_h⊗a_h⊗a_h` follow from the cumulants of the data; `fit` recovers `π`, `A` and
`σ²` from them: globally, in a few passes over the data, without a starting point, and from rows that are not complete.
`refine` is EM from there, on the exact likelihood of what was observed.

Identifiable when the columns of `A` are linearly independent (so `k ≤ d`). Entries must be missing for reasons that do
not depend on their values; see `fit` for dimensions that are missing together.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.decompose import (
    Status,
    noise_variance,
    noise_variance_operator,
    project_columns_to_simplex,
    status_if,
    worst,
)
from latensor.models._checks import check_integer, check_key, check_probabilities, check_reals
from latensor.models._em import em_limits, expectation_maximization
from latensor.models._gaussian import GaussianMixture, joint, log_joint, overall_mean
from latensor.models._partial import (
    Dimensions,
    check_rates,
    check_table,
    fit_cumulants,
    fit_table,
    variance_dimensions,
)
from latensor.models._sampling import inverse_cdf
from latensor.models._spectral import Source, find_components
from latensor.moments import (
    ContractedCumulants,
    Cumulants,
    centre,
    correct_gaussian,
    residuals,
    sum_over_rows,
)

# Where all points are the same: small, and its inverse still a number in float32.
_SMALLEST_VARIANCE = 1e-30


class Sample(NamedTuple):
    """Points in rows, and the component of each."""

    x: Float[Array, "n d"]
    hidden: Int[Array, " n"]


class Fit(NamedTuple):
    """An estimate and how good it is. Components are in decreasing order of weight after `fit`."""

    params: GaussianMixture
    status: Int[Array, ""]
    """How the estimation ended: see `latensor.decompose.Status`."""
    num_iters: Int[Array, ""]
    """Steps taken: of the tensor decomposition after `fit`, of EM after `refine`."""
    residual: Float[Array, ""]
    """After `fit`, the part of the whitened third moment that the components leave unexplained (relative norm). After
    `refine`, the relative gain in log-likelihood of the last step."""
    dimensions: Dimensions
    """For each dimension its rate, the weight that was used, and whether it is complete."""
    eigenvalues: Float[Array, " k"]
    """After `fit`, the k largest eigenvalues of the weighted second moment; zeros after `refine`."""
    noise: Float[Array, ""]
    """After `fit`, magnitude of the most negative eigenvalue of the weighted second moment that was seen."""
    unobserved_pairs: Int[Array, ""]
    """Pairs of dimensions (of `d²`) that no row observes together; −1 where they were not counted."""
    unobserved_triples: Int[Array, ""]
    """Triples (of `d³`) likewise; counted with `third="available"`. Their moments are set to zero."""


@partial(jax.jit, static_argnames="num_samples")
def _sample(key: Array, params: GaussianMixture, num_samples: int) -> Sample:
    key_hidden, key_noise = jax.random.split(key)
    dtype = params.means.dtype
    hidden = inverse_cdf(jax.random.uniform(key_hidden, (num_samples,), dtype), params.weights[:, None])
    noise = jax.random.normal(key_noise, (num_samples, params.means.shape[0]), dtype)
    return Sample(params.means.T[hidden] + jnp.sqrt(params.variance) * noise, hidden)


def sample(key: Array, params: GaussianMixture, num_samples: int) -> Sample:
    """Draw points. For a table with holes draw a mask too: `jax.random.bernoulli(key, rates, x.shape)`."""
    return _sample(check_key(key), _check_params(params), check_integer("num_samples", num_samples, 1))


@jax.jit
def population_moments(params: GaussianMixture) -> Cumulants:
    """Return the exact mean, covariance and third central moment, which a sample's estimate."""
    weights, means, variance = params
    mean = jnp.matmul(means, weights, precision="highest")
    centred = means - mean[:, None]
    weighted = centred * weights[None, :]
    spherical = jnp.matmul(weighted, centred.T, precision="highest")
    return Cumulants(
        mean=mean,
        second=spherical + variance * jnp.eye(means.shape[0], dtype=means.dtype),
        third=jnp.einsum("ih,jh,lh->ijl", weighted, centred, centred, precision="highest"),
        num_unobserved=jnp.int32(0),
    )


def _estimate(
    key: Array, source: Source, dimensions: Dimensions, num_components: int, method: str, num_restarts: int
) -> Fit:
    """Estimate the variance, decompose, and read weights and means off the components."""
    key_variance, key_components = jax.random.split(key)
    mean, start = source.mean, None
    included = variance_dimensions(dimensions, num_components)
    if source.covariance is not None:
        variance = noise_variance(source.covariance, num_components, included)
    else:
        variance, top = noise_variance_operator(
            key_variance, source.product, source.variances, num_components, included
        )
        # Centred means span one direction less than the means themselves: the overall mean completes them.
        start = jnp.concatenate([mean[:, None], top], axis=1) * dimensions.weights[:, None]
    # Sampling noise can leave no variance; the floor keeps what follows finite, and the status tells.
    floor = jnp.maximum(float(jnp.finfo(mean.dtype).eps) * jnp.mean(jnp.abs(source.variances)), _SMALLEST_VARIANCE)
    positive = variance > floor
    variance = jnp.where(positive, variance, floor)

    def adjust(vectors: Array) -> Array:
        return mean[:, None] * jnp.matmul(mean, vectors, precision="highest")[None, :] - variance * vectors

    def correct(seen: ContractedCumulants, directions: Array) -> Array:
        return correct_gaussian(seen, directions, variance)

    found = find_components(
        key_components,
        source,
        dimensions.weights,
        num_components,
        adjust,
        correct,
        method,
        num_restarts,
        start,
    )
    # `π_h = λ_h⁻²` in theory; the squared coordinates of the mean are the same in theory and less noisy.
    weights, _ = project_columns_to_simplex((found.coordinates**2)[:, None])
    order = jnp.argsort(-weights[:, 0])
    params = GaussianMixture(weights[order, 0], (found.values[None, :] * found.scaled)[:, order], variance)
    finite = jnp.all(jnp.isfinite(params.means))
    return Fit(
        params,
        worst(
            found.status,
            status_if(~(positive & jnp.all(dimensions.rates > 0)), Status.DEGENERATE),
            status_if(~finite, Status.NON_FINITE),
        ),
        found.num_iters,
        found.residual,
        dimensions,
        found.eigenvalues,
        found.noise,
        found.unobserved_pairs,
        found.unobserved_triples,
    )


def fit_moments(
    key: Array,
    moments: Cumulants,
    num_components: int,
    weights: ArrayLike | None = None,
    method: Literal["power", "diagonalization"] = "power",
    *,
    num_restarts: int = 20,
) -> Fit:
    """Recover the model from dense cumulants; exact where they are. `fit` is this on data, without `(d, d, d)`."""
    return fit_cumulants(_estimate, key, moments, num_components, weights, method, num_restarts)


def fit(
    key: Array,
    x: ArrayLike,
    num_components: int,
    mask: ArrayLike | None = None,
    missing: Literal["weighted", "full", "partial"] = "weighted",
    weights: ArrayLike | None = None,
    third: Literal["implicit", "available"] = "implicit",
    *,
    complete_rate: float = 1.0,
    row_weights: ArrayLike | None = None,
    method: Literal["power", "diagonalization"] = "power",
    second: Literal["auto", "dense", "implicit"] = "auto",
    num_restarts: int = 20,
) -> Fit:
    """Estimate the mixture by the method of moments, from complete or partial data.

    Args:
      key: a random key, for the restarts.
      x: points `(n, d)` in rows. Under a masked entry there may be anything, NaN included.
      num_components: number of components `k ≤ d`.
      mask: `(n, d)` bool, True where observed; `None` means everywhere.
      missing: how to use dimensions that are not always observed. `"weighted"` gives each its observation rate as
        weight, `"full"` all the same, `"partial"` none to those that are not complete. All three estimate the means of
        all dimensions.
      weights: a weight for each dimension, in place of `missing`.
      third: third moments under a mask. `"implicit"` is `O(n d k)` and assumes that dimensions are missing
        independently of each other: where they go missing together, triples are seen more often than their rates tell
        and the moments are wrong, however many rows there are. `fit` warns where pairs betray this. `"available"`
        averages each entry over the rows that have it: right for such patterns too, but `O(n d³)`, and second moments
        then are dense.
      complete_rate: from which rate on a dimension counts as complete. `σ²` comes from the complete dimensions
        (from the `2k` best observed ones where no more than `k` are complete).
      row_weights: a weight for each row (default: equal).
      method: `"power"`, the robust power method on the whole tensor; or `"diagonalization"`, of one random slice of it.
      second: `"dense"` forms the `(d, d)` covariance, available-case; `"implicit"` iterates with products in its place,
        by inverse propensities; `"auto"` is dense up to 256 dimensions.
      num_restarts: random starts for each component, or random slices.

    Returns:
      `Fit`. Under `jit` or `vmap` values are not checked and nothing is warned of; `status` tells what went wrong.

    Cost: `O(n d k)` and a few passes over the data, or `O(n d²)` where dense.

    """
    return fit_table(
        _estimate,
        key,
        x,
        num_components,
        mask,
        counts=False,
        missing=missing,
        weights=weights,
        third=third,
        complete_rate=complete_rate,
        row_weights=row_weights,
        method=method,
        second=second,
        num_restarts=num_restarts,
    )


def _check_params(params: GaussianMixture) -> GaussianMixture:
    if not isinstance(params, GaussianMixture):
        hint = " (pass its .params)" if isinstance(params, Fit) else ""
        raise ValueError(f"params: expected a GaussianMixture; got {type(params).__name__}{hint}")
    weights = check_probabilities("params.weights", params.weights, 1)
    means = check_reals("params.means", params.means, 2)
    variance = check_reals("params.variance", params.variance, 0, positive=True)
    if means.shape[1] != weights.shape[0]:
        raise ValueError(
            f"params: expected weights (k,) and means (d, k); got shapes {weights.shape} and {means.shape}"
        )
    return GaussianMixture(weights.astype(means.dtype), means, variance.astype(means.dtype))


def _check_pair(
    params: GaussianMixture, x: ArrayLike, mask: ArrayLike | None
) -> tuple[GaussianMixture, Array, Array | None]:
    params = _check_params(params)
    x, mask = check_table(x, mask)
    if x.shape[1] != params.means.shape[0]:
        raise ValueError(f"x: expected {params.means.shape[0]} dimensions, as in params.means; got {x.shape[1]}")
    return params, x, mask


def log_likelihood(params: GaussianMixture, x: ArrayLike, mask: ArrayLike | None = None) -> Float[Array, " n"]:
    """Return each row's log-density: of its observed entries, where there is a mask. A row without any gives zero."""
    return jax.nn.logsumexp(log_joint(*_check_pair(params, x, mask)), axis=1)


def posterior(params: GaussianMixture, x: ArrayLike, mask: ArrayLike | None = None) -> Float[Array, "n k"]:
    """Return the probability of each component given each row's observed entries."""
    return jax.nn.softmax(log_joint(*_check_pair(params, x, mask)), axis=1)


class _Sums(NamedTuple):
    """What the M-step needs: sums over rows."""

    value: Float[Array, ""]
    counts: Float[Array, " k"]
    first: Float[Array, "k d"]
    seen: Float[Array, "k d"]
    distance: Float[Array, ""]


@jax.jit
def _refine(
    params: GaussianMixture,
    x: Num[Array, "n d"],
    mask: Bool[Array, "n d"] | None,
    row_weights: Float[Array, " n"] | None,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
) -> Fit:
    dtype = params.means.dtype
    data = centre(x, mask, row_weights)
    rows_weights = data.row_weights.astype(dtype)
    d = x.shape[1]
    rates = data.rates.astype(dtype)
    # A component that closes in on a single point has a likelihood without bound; this is where that ends.
    spread = sum_over_rows(
        lambda x, m, w: jnp.matmul(w, jnp.sum(residuals(x, m, data.mean) ** 2, axis=1), precision="highest"),
        (x, mask, data.row_weights),
        floats_per_row=d,
    ).astype(dtype)
    num_seen = jnp.sum(rates)
    floor = jnp.maximum(10 * float(jnp.finfo(dtype).eps) * spread / num_seen, _SMALLEST_VARIANCE)

    def step(params: GaussianMixture) -> tuple[GaussianMixture, Array]:
        overall = overall_mean(params)

        def block(x: Array, mask: Array | None, weights: Array) -> _Sums:
            rows = joint(params, overall, x, mask)
            value = jax.nn.logsumexp(rows.values, axis=1)
            parts = jnp.exp(rows.values - value[:, None]) * weights[:, None]
            first = jnp.matmul(parts.T, rows.rows, precision="highest")
            seen = first[:, :0] if mask is None else jnp.matmul(parts.T, mask.astype(dtype), precision="highest")
            return _Sums(
                value=jnp.sum(weights * value),
                counts=jnp.sum(parts, axis=0),
                first=first,
                seen=seen,
                distance=jnp.sum(parts * rows.distance),
            )

        sums = sum_over_rows(block, (x, mask, rows_weights), floats_per_row=3 * d)
        seen = jnp.broadcast_to(sums.counts[:, None], (sums.counts.shape[0], d)) if mask is None else sums.seen
        # A mean that no row speaks for stays where it is.
        known = seen > 0
        old = (params.means - overall[:, None]).T
        new = jnp.where(known, sums.first / jnp.where(known, seen, 1), old)
        # The distances are to the old means; the sum of squares about the new ones is less by what they moved.
        within = sums.distance - jnp.sum(seen * (new - old) ** 2)
        variance = jnp.maximum(within / num_seen, floor)
        weights = sums.counts / jnp.sum(sums.counts)
        return GaussianMixture(weights, new.T + overall[:, None], variance), sums.value

    def value(params: GaussianMixture) -> Array:
        return jnp.sum(rows_weights * jax.nn.logsumexp(log_joint(params, x, mask), axis=1))

    start = params._replace(variance=jnp.maximum(params.variance, floor))
    result = expectation_maximization(step, start, value(start), tol, max_iters)
    dimensions = Dimensions(rates, jnp.ones_like(rates), rates >= 1)
    zeros, zero, unknown = jnp.zeros_like(params.weights), jnp.zeros((), dtype), jnp.int32(-1)
    return Fit(result.params, result.status, result.num_iters, result.gain, dimensions, zeros, zero, unknown, unknown)


def refine(
    params: GaussianMixture,
    x: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    row_weights: ArrayLike | None = None,
    tol: float | None = None,
    max_iters: int = 200,
) -> Fit:
    """Improve `params` by EM on the likelihood of what was observed, which never falls.

    Given the component, dimensions are independent: hidden entries drop out of the likelihood, and no imputation is
    needed. Exact for entries that are missing for reasons that do not depend on their values, together or not.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: points as for `fit`.
      mask: `(n, d)` bool, True where observed.
      row_weights: a weight for each row (default: equal).
      tol: stop when a step gains less than this share of the log-likelihood; default: 10 machine epsilons in float32
        and 1e-8 in float64.
      max_iters: limit on the steps.

    Returns:
      `Fit`, of the same type as that of `fit`.

    Cost: one pass over the data a step.

    """
    params, x, mask = _check_pair(params, x, mask)
    row_weights, _ = check_rates(mask, row_weights, x.shape)
    return _refine(params, x, mask, row_weights, *em_limits(tol, max_iters, params.means.dtype))
