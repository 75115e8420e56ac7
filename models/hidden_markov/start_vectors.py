"""The spectral start from real vectors.

Vectors are standardized and joined by their squares and a constant: states with one mean and two variances differ too,
and `d` dimensions can tell `2d + 1` states apart.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import matmul, positive_or_one, small_jit, smallest_normal
from latensor.decompose import Conditionals, composite_likelihood_em_samples
from latensor.decompose.internal import pseudoinverse, to_simplex
from latensor.models.hidden_markov.bases import neighbour_bases
from latensor.models.hidden_markov.emissions import Scales, find_scales, likelihoods
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.models.hidden_markov.start import (
    Options,
    Projected,
    Start,
    assemble,
    neighbour_conditionals,
    noise_level,
)
from latensor.moments import CrossMoments, map_over_rows, sum_over_rows
from latensor.moments.internal import WINDOW, Directions, Windows, contract_windows, window_views

# Bounds of a state's variance as shares of the overall one; beyond them the regression has found noise.
_LEAST_SHARE, _MOST_SHARE = 0.01, 4.0
# Number of features up to which they are not projected.
_SMALL = 16


def _features(x: Float[Array, "N d"], weights: Float[Array, " N"], scales: Scales) -> Float[Array, "N f"]:
    """Return standardized vectors, their squares and a constant."""

    def block(x: Array, weights: Array) -> Array:
        rows = jnp.where(weights[:, None] > 0, x - scales.mean[None, :], 0) / scales.scale[None, :]
        return jnp.concatenate([rows, rows * rows - 1, jnp.ones((x.shape[0], 1), x.dtype)], axis=1)

    return map_over_rows(block, x, weights, floats_per_row=0)


def vector_start(key: Array, windows: Windows, weights: Float[Array, " N"], options: Options) -> Start:
    """Recover the model from real vectors; `weights` are those of the observations, zero where one is missing."""
    projected, scales = _project_vectors(key, windows, weights, options)
    conditionals = _vector_conditionals(key, projected.moments, options)
    return _vector_transitions(windows, weights, projected, scales, conditionals, options)


@partial(jax.jit, static_argnames="options")
def _project_vectors(
    key: Array, windows: Windows, weights: Float[Array, " N"], options: Options
) -> tuple[Projected, Scales]:
    key_basis, _ = jax.random.split(jax.random.split(key)[0])
    scales = find_scales(windows.x, weights)
    scales = scales._replace(scale=positive_or_one(scales.scale))
    features = windows._replace(x=_features(windows.x, weights, scales))
    size, k = features.x.shape[1], options.num_components
    units, noise = jnp.ones(size, features.x.dtype), noise_level(size, windows.weights)
    if size <= max(_SMALL, k):
        whole = jnp.eye(size, dtype=features.x.dtype)
        return Projected((whole, whole, whole), contract_windows(features, whole), noise, None), scales
    found = neighbour_bases(key_basis, features, (units, units, units), k)
    return Projected(found.bases, contract_windows(features, found.bases), noise, found.next_value), scales


@small_jit(static_argnames="options")
def _vector_conditionals(key: Array, moments: CrossMoments, options: Options) -> Conditionals:
    _, key_views = jax.random.split(jax.random.split(key)[0])
    return neighbour_conditionals(key_views, moments, options, False)


def _regress(windows: Windows, bases: Directions, conditionals: Conditionals, d: int) -> tuple[Array, Array]:
    """Return `E[x₂ | h₂]` and `E[x₂² | h₂]` from features: regression on the views before and after `x₂`."""

    def block(features: Array, weights: Array) -> Array:
        around = jnp.concatenate([matmul(features[:-2], bases[0]), matmul(features[2:], bases[2])], axis=1)
        rows = features[1:-1, :d]
        targets = jnp.concatenate([rows, rows * rows], axis=1)
        return matmul((weights[: 1 - WINDOW, None] * targets).T, around)

    tiny = smallest_normal(windows.weights.dtype)
    share = windows.weights / jnp.maximum(jnp.sum(windows.weights), tiny)
    padded = jnp.pad(share, (0, WINDOW - 1))
    products = sum_over_rows(block, windows.x, padded, floats_per_row=0, overlap=WINDOW - 1)
    sides = jnp.concatenate([conditionals.conditionals[0], conditionals.conditionals[2]])
    weighted = sides * jnp.maximum(conditionals.weights, tiny)[None, :]
    means = matmul(products, pseudoinverse(weighted).T)
    return means[:d], means[d:]


@partial(jax.jit, static_argnames="options")
def _vector_transitions(
    windows: Windows,
    weights: Float[Array, " N"],
    projected: Projected,
    scales: Scales,
    conditionals: Conditionals,
    options: Options,
) -> Start:
    mean, scale = scales
    features = windows._replace(x=_features(windows.x, weights, scales))
    centre, square = _regress(features, projected.bases, conditionals, mean.shape[0])
    # No observation among N, and so no mean of some, is farther than √N standard deviations from the mean of all.
    farthest = math.sqrt(windows.x.shape[0])
    centre = jnp.clip(centre, -farthest, farthest)
    variance = jnp.clip(square - centre * centre, _LEAST_SHARE, _MOST_SHARE)
    means, variances = mean[:, None] + scale[:, None] * centre, scale[:, None] ** 2 * variance
    gap = None
    if options.marginals == "likelihood":
        weights, k = conditionals.weights, options.num_components
        independent = HiddenMarkov(weights, jnp.broadcast_to(weights[None, :], (k, k)), means, variances)
        first, second, _ = window_views(likelihoods(independent, windows.x)[0])
        best = composite_likelihood_em_samples((first, second), windows.weights, max_iters=200)
        joint, gap = best.table, best.gap
    else:
        inverse = pseudoinverse(matmul(projected.bases[1], conditionals.conditionals[1]))
        joint = to_simplex(contract_windows(features, inverse.T).second[0])
    next_value = conditionals.noise if projected.next_value is None else projected.next_value
    return assemble(conditionals, means, variances, joint, projected.noise, next_value, gap, None)
