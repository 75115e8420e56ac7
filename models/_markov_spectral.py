"""The method of moments for hidden Markov models: conditionals, then marginals, then the likelihood of windows.

The middle of three neighbours has three views, independent given its state `h₂`: the observation before it, its own,
and the one after. `O = E[x₂ | h₂]` follows from their moments (`conditionals_from_views`). Pairs `x₁, x₂` are then
exclusive views of `h₁, h₂` with the same `O`, and give `Z = P(h₁, h₂)`: row-normalized, the transitions.

Where the triple table is small it is formed; else every view is projected to the k directions that carry the pair
moments, as the data go by. Real vectors are standardized and joined by their squares and a constant: states with
one mean and two variances differ too, and `d` dimensions can tell `2d + 1` states apart.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.decompose import (
    Conditionals,
    composite_likelihood_em,
    composite_likelihood_em_samples,
    conditionals_from_views,
    project_columns_to_simplex,
    pseudoinverse,
    pseudoinverse_marginals,
    whiten_operator,
)
from latensor.models._markov import HiddenMarkov, divide_rows, likelihoods
from latensor.moments import (
    CrossMoments,
    contract_sequence_moments,
    pair_product,
    spread_view,
    view_features,
)

METHODS = ("tpm", "ojd0", "ojd1", "nojd0", "nojd1")
MARGINALS = ("likelihood", "pseudoinverse")
# So many roundings of the largest entry are nothing to speak of.
_EXACT = 1e3
# Bounds of a state's variance as parts of the overall one; beyond them the regression has found noise.
_LEAST_SHARE, _MOST_SHARE = 0.01, 4.0


class Options(NamedTuple):
    """What `fit` was asked for; static."""

    num_components: int
    marginals: str
    polish: bool
    method: str
    num_restarts: int
    num_starts: int


class Spectral(NamedTuple):
    """What the moments say: conditionals of the middle view in the units of the data, and the pairs' marginals."""

    params: HiddenMarkov
    weights: Float[Array, " k"]
    gap: Float[Array, ""]
    found: Conditionals
    noise: Float[Array, ""]


def neighbour_conditionals(key: Array, moments: CrossMoments, options: Options, categorical: bool) -> Conditionals:
    """Return the conditionals of three neighbours given the middle one's state.

    The first two views are carried over to the third, which takes the pseudoinverse of `M₁₂`. In any other order it
    would be that of `M₁₃`, two transitions apart, whose last singular values drown in the noise first.
    """
    return conditionals_from_views(
        key,
        moments.first,
        moments.second,
        moments.third,
        options.num_components,
        options.method,
        categorical=(categorical,) * 3,
        num_restarts=options.num_restarts,
    )


def to_simplex(table: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """Return the joint distribution that is nearest to a table."""
    return project_columns_to_simplex(table.reshape(-1, 1))[0].reshape(table.shape)


def from_joint(joint: Float[Array, "k k"], otherwise: Float[Array, " k"]) -> tuple[Array, Array]:
    """Return `P(h₁)` and `P(h₂ | h₁)` from `P(h₁, h₂)`; a state that never comes first is followed as any other."""
    k = joint.shape[0]
    return jnp.sum(joint, axis=1), divide_rows(joint, jnp.broadcast_to(otherwise[None, :], (k, k)))


def noise_level(d: int | Array, weights: Array) -> Array:
    """Return the size of the singular values of sampling noise, in units in which all entries have variance 1/n."""
    total, squares = jnp.sum(weights), jnp.sum(weights**2)
    number = total**2 / jnp.where(squares > 0, squares, 1)
    return 2 * jnp.sqrt(d / jnp.maximum(number, 1))


def table_spectral(key: Array, moments: CrossMoments, noise: Array, options: Options) -> Spectral:
    """Recover the model from the tables of symbols."""
    found = neighbour_conditionals(key, moments, options, True)
    emission = found.conditionals[1]
    pairs, gap = moments.second[0], jnp.zeros((), emission.dtype)
    linear = pseudoinverse_marginals(pairs, (emission, emission))
    joint = to_simplex(linear)
    if options.marginals == "likelihood":
        # Where the pseudoinverse explains the table to the last digits it is the maximum, and the likelihood's flatness
        # is no matter. Else the way there begins in the middle, and ends where the gap says: what is flat stays even.
        fitted = jnp.matmul(jnp.matmul(emission, joint, precision="highest"), emission.T, precision="highest")
        exact = jnp.max(jnp.abs(fitted - pairs)) <= _EXACT * float(jnp.finfo(pairs.dtype).eps) * jnp.max(jnp.abs(pairs))
        tiny = float(jnp.finfo(pairs.dtype).tiny)
        start = jnp.where(exact, jnp.maximum(joint, tiny), 1 / joint.size)
        best = composite_likelihood_em(pairs, (emission, emission), start=start)
        joint, gap = best.table, best.gap
    initial, transition = from_joint(joint, found.weights)
    return Spectral(HiddenMarkov(initial, transition, emission), found.weights, gap, found, noise)


def _pair_basis(key: Array, x: Array, weights: Array, scale: Array, rank: int) -> Float[Array, "d k"]:
    """Return the k directions that carry most of the pair moments of neighbours, in the units `scale`.

    Those of `M M ᵀ + MᵀM` for `M = M₁₂` scaled; both have the columns of `O`. Two products and their adjoints at a
    time.
    """
    share = weights / jnp.sum(weights)

    def product(vectors: Array, shift: int) -> Array:
        return scale[:, None] * pair_product(x, share, scale[:, None] * vectors, shift)

    def operator(vectors: Array) -> Array:
        return product(product(vectors, -1), 1) + product(product(vectors, 1), -1)

    return whiten_operator(key, operator, scale.shape[0], rank, tol=1e-2, max_iters=8, dtype=scale.dtype).unwhitener


def _orthonormal(columns: Float[Array, "d k"]) -> Float[Array, "d k"]:
    lengths = jnp.linalg.norm(columns, axis=0)
    return columns / jnp.where(lengths > 0, lengths, 1)[None, :]


def list_spectral(key: Array, x: Array, weights: Array, num_symbols: int, options: Options) -> Spectral:
    """Recover the model from symbols, none of whose tables is formed."""
    key_basis, key_views = jax.random.split(key)
    usual = spread_view(x[1:-1], weights[:, None], num_symbols)[:, 0] / jnp.sum(weights)
    units = jnp.sqrt(usual)
    scale = jnp.where(units > 0, 1 / jnp.where(units > 0, units, 1), 0)
    basis = _orthonormal(_pair_basis(key_basis, x, weights, scale, options.num_components))
    moments = contract_sequence_moments(x, weights, scale[:, None] * basis)
    found = neighbour_conditionals(key_views, moments, options, False)
    raw = units[:, None] * jnp.matmul(basis, found.conditionals[1], precision="highest")
    total = jnp.sum(raw, axis=0)
    emission, distance = project_columns_to_simplex(raw / jnp.where(total > 0, total, 1)[None, :])
    found = found._replace(simplex_distance=jnp.broadcast_to(distance[None, :], (3, options.num_components)))
    gap = jnp.zeros((), emission.dtype)
    if options.marginals == "likelihood":
        # Rows that the polishing goes through again: what is far from settled here is settled there.
        limit = 30 if options.polish else 300
        rows = (view_features(x[:-2], emission), view_features(x[1:-1], emission))
        best = composite_likelihood_em_samples(rows, weights, max_iters=limit)
        joint, gap = best.table, best.gap
    else:
        inverse = pseudoinverse(emission * scale[:, None]) * scale[None, :]
        joint = to_simplex(contract_sequence_moments(x, weights, inverse.T).second[0])
    initial, transition = from_joint(joint, found.weights)
    noise = noise_level(jnp.sum(usual > 0), weights)
    return Spectral(HiddenMarkov(initial, transition, emission), found.weights, gap, found, noise)


def real_features(x: Float[Array, "N d"], weights: Float[Array, " N"]) -> tuple[Array, Array, Array]:
    """Return standardized observations, their squares and a constant; and the means and scales."""
    total = jnp.sum(weights)
    weight = weights / jnp.where(total > 0, total, 1)
    mean = jnp.sum(weight[:, None] * x, axis=0)
    rows = jnp.where(weight[:, None] > 0, x - mean[None, :], 0)
    scale = jnp.sqrt(jnp.sum(weight[:, None] * rows * rows, axis=0))
    scale = jnp.where(scale > 0, scale, 1)
    rows = rows / scale[None, :]
    constant = jnp.ones((x.shape[0], 1), x.dtype)
    return jnp.concatenate([rows, rows * rows - 1, constant], axis=1), mean, scale


def real_spectral(key: Array, x: Array, token_weights: Array, weights: Array, options: Options) -> Spectral:
    """Recover the model from real vectors."""
    d, k = x.shape[1], options.num_components
    features, mean, scale = real_features(x, token_weights)
    key_basis, key_views = jax.random.split(key)
    size = features.shape[1]
    basis = jnp.eye(size, dtype=x.dtype)
    if size > max(16, k):
        basis = _orthonormal(_pair_basis(key_basis, features, weights, jnp.ones(size, x.dtype), k))
    moments = contract_sequence_moments(features, weights, basis)
    found = neighbour_conditionals(key_views, moments, options, False)

    # E[f(x₂) | h₂] for any f: regression on the views before and after, whose conditionals are known.
    sides = jnp.concatenate([found.conditionals[0], found.conditionals[2]])
    small = jnp.matmul(features, basis, precision="highest")
    around = jnp.concatenate([small[:-2], small[2:]], axis=1)
    rows = features[1:-1, :d]
    targets = jnp.concatenate([rows, rows * rows], axis=1)
    share = weights / jnp.maximum(jnp.sum(weights), float(jnp.finfo(x.dtype).tiny))
    products = jnp.matmul((share[:, None] * targets).T, around, precision="highest")
    weighted = sides * jnp.maximum(found.weights, float(jnp.finfo(x.dtype).tiny))[None, :]
    means = jnp.matmul(products, pseudoinverse(weighted).T, precision="highest")
    centre, square = means[:d], means[d:]
    variance = jnp.clip(square - centre * centre, _LEAST_SHARE, _MOST_SHARE)
    params = HiddenMarkov(
        found.weights,
        jnp.broadcast_to(found.weights[None, :], (k, k)),
        mean[:, None] + scale[:, None] * centre,
        scale[:, None] ** 2 * variance,
    )
    gap = jnp.zeros((), x.dtype)
    if options.marginals == "likelihood":
        values, _ = likelihoods(params, x)
        best = composite_likelihood_em_samples((values[:-2], values[1:-1]), weights, max_iters=200)
        joint, gap = best.table, best.gap
    else:
        inverse = pseudoinverse(found.conditionals[1])
        pairs = jnp.matmul(jnp.matmul(inverse, moments.second[0], precision="highest"), inverse.T, precision="highest")
        joint = to_simplex(pairs)
    initial, transition = from_joint(joint, found.weights)
    params = params._replace(initial=initial, transition=transition)
    return Spectral(params, found.weights, gap, found, noise_level(size, weights))
