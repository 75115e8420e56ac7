"""The Gamma-Poisson topic model (discrete ICA), also from tables with holes.

    α_h ~ Gamma(c_h, b),             shapes c (k,), rate b
    x_d | α ~ Poisson((A α)_d),      A = (a_1 … a_k) (d, k), columns sum to one

A row is a document or a patient: counts of words, of codes, of reads. Its mean length is `Σ c_h / b`. The cumulants of
counts, less what a Poisson variable adds of its own, are `S = Σ_h s_h a_h a_hᵀ` with `s_h = c_h / b²` and
`T = Σ_h t_h a_h⊗a_h⊗a_h` with `t_h = 2 c_h / b³`; `fit` recovers all parameters from them: globally, in a few passes
over the data, without a starting point, and from rows that are not complete. `refine` is variational EM from there.

Identifiable when the columns of `A` are linearly independent (so `k ≤ d`). Entries must be missing for reasons that do
not depend on their values; see `fit` for dimensions that are missing together.

Source: Podosinnikova, Bach, Lacoste-Julien (2015); with partial data: Gottesman, Pan, Doshi-Velez.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.decompose import Status, status_if, worst
from latensor.models._checks import check_integer, check_key, check_number, check_probabilities, check_reals
from latensor.models._em import em_limits
from latensor.models._gamma import GammaPoisson, Intensities, infer, observed_counts, posterior_rates
from latensor.models._gamma_em import variational_em
from latensor.models._gamma_likelihood import LogLikelihood, importance_sample
from latensor.models._partial import Dimensions, check_rates, check_table, fit_cumulants, fit_table
from latensor.models._spectral import Source, find_components
from latensor.moments import (
    ContractedCumulants,
    Cumulants,
    Moments,
    correct_gamma_poisson,
    gamma_poisson_cumulants,
    map_over_rows,
)


class Sample(NamedTuple):
    """Counts in rows, and the intensities of the topics in each."""

    x: Float[Array, "n d"]
    hidden: Float[Array, "n k"]


class Fit(NamedTuple):
    """An estimate and how good it is. After `fit`, topics are in decreasing order of their share of the counts."""

    params: GammaPoisson
    status: Int[Array, ""]
    """How the estimation ended: see `latensor.decompose.Status`."""
    num_iters: Int[Array, ""]
    """Steps taken: of the tensor decomposition after `fit`, of variational EM after `refine`."""
    residual: Float[Array, ""]
    """After `fit`, the part of the whitened third moment that the topics leave unexplained (relative norm). After
    `refine`, the relative gain in the evidence bound of the last step."""
    dimensions: Dimensions
    """For each dimension its rate, the weight that was used, and whether it is complete."""
    negative: Float[Array, " k"]
    """After `fit`, how much of each estimated topic was below zero and cut off; its entries sum to one. Zeros after
    `refine`."""
    eigenvalues: Float[Array, " k"]
    """After `fit`, the k largest eigenvalues of the weighted second moment; zeros after `refine`."""
    noise: Float[Array, ""]
    """After `fit`, magnitude of the most negative eigenvalue of the weighted second moment that was seen."""
    unobserved_pairs: Int[Array, ""]
    """Pairs of dimensions (of `d²`) that no row observes together; −1 where they were not counted."""
    unobserved_triples: Int[Array, ""]
    """Triples (of `d³`) likewise; counted with `third="available"`. Their moments are set to zero."""


class Posterior(NamedTuple):
    """What is known of the topics' intensities in each row: independent Gamma distributions (variational)."""

    mean: Float[Array, "n k"]
    shapes: Float[Array, "n k"]
    rates: Float[Array, "n k"]


@partial(jax.jit, static_argnames="num_samples")
def _sample(key: Array, params: GammaPoisson, num_samples: int) -> Sample:
    key_hidden, key_counts = jax.random.split(key)
    dtype = params.topics.dtype
    shape = (num_samples, params.shapes.shape[0])
    hidden = jax.random.gamma(key_hidden, jnp.broadcast_to(params.shapes[None, :], shape), dtype=dtype) / params.rate
    means = jnp.matmul(hidden, params.topics.T, precision="highest")
    return Sample(jax.random.poisson(key_counts, means).astype(dtype), hidden)


def sample(key: Array, params: GammaPoisson, num_samples: int) -> Sample:
    """Draw rows of counts. For a table with holes draw a mask too: `jax.random.bernoulli(key, rates, x.shape)`."""
    return _sample(check_key(key), _check_params(params), check_integer("num_samples", num_samples, 1))


@jax.jit
def population_moments(params: GammaPoisson) -> Cumulants:
    """Return the exact mean, covariance and third central moment of the counts, which a sample's estimate."""
    topics, shapes, rate = params
    seconds, thirds = shapes / rate**2, 2 * shapes / rate**3
    return gamma_poisson_cumulants(
        Moments(
            first=jnp.matmul(topics, shapes / rate, precision="highest"),
            second=jnp.matmul(topics * seconds[None, :], topics.T, precision="highest"),
            third=jnp.einsum("ih,jh,lh->ijl", topics * thirds[None, :], topics, topics, precision="highest"),
        )
    )


def _estimate(
    key: Array, source: Source, dimensions: Dimensions, num_components: int, method: str, num_restarts: int
) -> Fit:
    """Decompose, and read topics, shapes and rate off the components."""

    def adjust(vectors: Array) -> Array:
        return -source.mean[:, None] * vectors

    def correct(seen: ContractedCumulants, directions: Array) -> Array:
        return correct_gamma_poisson(seen, directions, source.mean)

    found = find_components(key, source, dimensions.weights, num_components, adjust, correct, method, num_restarts)
    # A topic sums to one, so `√s_h a_h` sums to `√s_h`.
    roots = jnp.sum(found.scaled, axis=0)
    there = roots > 0
    topics = jnp.where(there[None, :], found.scaled / jnp.where(there, roots, 1)[None, :], 1 / found.scaled.shape[0])
    # Cutting off what is below zero leaves the proportions of the other entries alone; the nearest point of the simplex
    # would take the noise of rarely observed dimensions out of the well observed ones.
    positive = jnp.maximum(topics, 0)
    total = jnp.sum(positive, axis=0)
    # The mean intensities `c_h / b` come from the mean, their variances `c_h / b²` from the second moments: their ratio
    # is `b`. (So is `2 s_h / t_h`, as the paper has it, but third moments are far noisier.)
    means = found.coordinates * roots
    # A topic whose mean intensity came out as nothing gets a thousandth of all: `refine` can start from there.
    total_mean = jnp.sum(jnp.maximum(means, 0))
    total_mean = jnp.where(total_mean > 0, total_mean, 1)
    means = jnp.maximum(means, 1e-3 * total_mean)
    variances = jnp.sum(roots**2)
    rate = jnp.where(variances > 0, jnp.sum(means) / jnp.where(variances > 0, variances, 1), 1)
    order = jnp.argsort(-means)
    params = GammaPoisson((positive / total[None, :])[:, order], (means * rate)[order], rate)
    finite = jnp.all(jnp.isfinite(params.topics)) & jnp.all(jnp.isfinite(params.shapes)) & jnp.isfinite(rate)
    sound = jnp.all(there) & jnp.all(found.coordinates > 0) & jnp.all(dimensions.rates > 0)
    return Fit(
        params,
        worst(found.status, status_if(~sound, Status.DEGENERATE), status_if(~finite, Status.NON_FINITE)),
        found.num_iters,
        found.residual,
        dimensions,
        (total - 1)[order],
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
    """Estimate the model by the method of moments, from complete or partial counts.

    Args:
      key: a random key, for the restarts.
      x: counts `(n, d)`, integer or floating. Under a masked entry there may be anything, NaN included.
      num_components: number of topics `k ≤ d`.
      mask: `(n, d)` bool, True where observed; `None` means everywhere.
      missing: how to use dimensions that are not always observed. `"weighted"` gives each its observation rate as
        weight, `"full"` all the same, `"partial"` none to those that are not complete. All three estimate the topics in
        all dimensions.
      weights: a weight for each dimension, in place of `missing`.
      third: third moments under a mask. `"implicit"` is `O(n d k)` and assumes that dimensions are missing
        independently of each other: where they go missing together, triples are seen more often than their rates tell
        and the moments are wrong, however many rows there are. `fit` warns where pairs betray this. `"available"`
        averages each entry over the rows that have it: right for such patterns too, but `O(n d³)`, and second moments
        then are dense.
      complete_rate: from which rate on a dimension counts as complete.
      row_weights: a weight for each row (default: equal).
      method: `"power"`, the robust power method on the whole tensor; or `"diagonalization"`, of one random slice of it.
      second: `"dense"` forms the `(d, d)` covariance, available-case; `"implicit"` iterates with products in its place,
        by inverse propensities; `"auto"` is dense up to 256 dimensions.
      num_restarts: random starts for each topic, or random slices.

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
        counts=True,
        missing=missing,
        weights=weights,
        third=third,
        complete_rate=complete_rate,
        row_weights=row_weights,
        method=method,
        second=second,
        num_restarts=num_restarts,
    )


def _check_params(params: GammaPoisson) -> GammaPoisson:
    if not isinstance(params, GammaPoisson):
        hint = " (pass its .params)" if isinstance(params, Fit) else ""
        raise ValueError(f"params: expected a GammaPoisson; got {type(params).__name__}{hint}")
    topics = check_probabilities("params.topics", params.topics, 2)
    shapes = check_reals("params.shapes", params.shapes, 1, positive=True)
    rate = check_reals("params.rate", params.rate, 0, positive=True)
    if topics.shape[1] != shapes.shape[0]:
        raise ValueError(f"params: expected topics (d, k) and shapes (k,); got {topics.shape} and {shapes.shape}")
    return GammaPoisson(topics, shapes.astype(topics.dtype), rate.astype(topics.dtype))


def _check_pair(params: GammaPoisson, x: ArrayLike, mask: ArrayLike | None) -> tuple[GammaPoisson, Array, Array | None]:
    params = _check_params(params)
    x, mask = check_table(x, mask, counts=True)
    if x.shape[1] != params.topics.shape[0]:
        raise ValueError(f"x: expected {params.topics.shape[0]} dimensions, as in params.topics; got {x.shape[1]}")
    return params, x, mask


@jax.jit
def _posterior(params: GammaPoisson, x: Array, mask: Array | None, tol: Array, max_iters: Array) -> Intensities:
    def block(x: Array, mask: Array | None) -> Intensities:
        counts = observed_counts(x, mask, params.topics.dtype)
        return infer(params, counts, posterior_rates(params, x, mask), tol, max_iters)

    return map_over_rows(block, (x, mask), floats_per_row=4 * x.shape[1])


def posterior(
    params: GammaPoisson,
    x: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    tol: float | None = None,
    max_iters: int = 500,
) -> Posterior:
    """Return what each row's observed counts say of the topics' intensities.

    Independent Gamma distributions, the nearest to the true posterior (variational, closed-form updates).

    Args:
      params: the model.
      x: counts in rows.
      mask: `(n, d)` bool, True where observed.
      tol: a row has converged when an update moves no shape by more than this share of their sum; default: 10 machine
        epsilons in float32 and 1e-8 in float64.
      max_iters: limit on the updates.

    """
    params, x, mask = _check_pair(params, x, mask)
    q = _posterior(params, x, mask, *em_limits(tol, max_iters, params.topics.dtype))
    return Posterior(q.shapes / q.rates, q.shapes, q.rates)


def log_likelihood(
    key: Array, params: GammaPoisson, x: ArrayLike, mask: ArrayLike | None = None, *, num_samples: int = 200
) -> LogLikelihood:
    """Return an importance-sampled estimate of each row's log-probability, and its standard error.

    Intensities are drawn from widened copies of the variational posterior, weighed against their mixture. The estimate
    of the probability is unbiased, its logarithm low by about half the squared standard error. Where topics look alike
    the posterior is a thin ridge that few draws meet: then the value is lower still and the standard error too small.
    Double `num_samples`; if the value rises by more than the standard errors tell, trust neither.

    Args:
      key: a random key.
      params: the model.
      x: counts in rows.
      mask: `(n, d)` bool, True where observed: the probability is that of the observed counts.
      num_samples: draws for each row.

    Cost: `O(n d k)` a draw.

    """
    key = check_key(key)
    params, x, mask = _check_pair(params, x, mask)
    num_samples = check_integer("num_samples", num_samples, 2)
    q = _posterior(params, x, mask, *em_limits(1e-3, 100, params.topics.dtype))
    return importance_sample(key, params, x, mask, q, num_samples)


def refine(
    params: GammaPoisson,
    x: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    row_weights: ArrayLike | None = None,
    tol: float | None = None,
    max_iters: int = 200,
    smoothing: float = 1e-2,
) -> Fit:
    """Improve `params` by variational EM on what was observed. The evidence lower bound never falls.

    The bound is not the likelihood. Where topics overlap it is loose, and its optimum can be worse than the `fit` that
    it started from: compare `log_likelihood` before and after. It is tight where topics have words of their own.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: counts as for `fit`.
      mask: `(n, d)` bool, True where observed.
      row_weights: a weight for each row (default: equal).
      tol: stop when a step gains less than this share of the bound; default: 10 machine epsilons in float32 and 1e-8 in
        float64.
      max_iters: limit on the steps.
      smoothing: share of the overall frequencies that is mixed into the topics of the start, where that raises its
      bound.

    Returns:
      `Fit`, of the same type as that of `fit`.

    Cost: five passes over the data a step, and an `(n, k)` array of the rows' intensities.

    """
    params, x, mask = _check_pair(params, x, mask)
    row_weights, _ = check_rates(mask, row_weights, x.shape)
    dtype = params.topics.dtype
    share = jnp.asarray(check_number("smoothing", smoothing, 0.0, 1.0), dtype)
    result, rates = variational_em(params, x, mask, row_weights, *em_limits(tol, max_iters, dtype), share)
    dimensions = Dimensions(rates, jnp.ones_like(rates), rates >= 1)
    zeros, zero, unknown = jnp.zeros_like(params.shapes), jnp.zeros((), dtype), jnp.int32(-1)
    return Fit(
        result.params,
        result.status,
        result.num_iters,
        result.gain,
        dimensions,
        zeros,
        zeros,
        zero,
        unknown,
        unknown,
    )
