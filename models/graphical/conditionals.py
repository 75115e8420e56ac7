"""The conditional distributions of observed variables given one hidden variable, from three views of it.

The views are groups of variables, so their indicators are decomposed as real vectors, in units of `√p` in which all
entries have sampling noise of similar size. The rows of a variable are then a distribution given each state.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import divide, matmul, small_jit
from latensor.decompose import Status, conditionals_from_views, project_columns_to_simplex
from latensor.decompose.internal import ViewMethod, finite_status, status_if, worst
from latensor.models.graphical.groups import GroupMoments, PairMoments
from latensor.models.results import Spectrum

# What is no value of a variable is this far below the others, so that no probability falls to it.
_NEVER = -1e3


class Factored(NamedTuple):
    """The conditionals of three groups given a hidden variable, whose states are in the same order in all of them."""

    rows: Float[Array, "d k"]
    """`P(x = value | h)` for all values of all variables of the three groups; not projected."""
    weights: Float[Array, " k"]
    """`P(h)`."""
    spectrum: Spectrum
    """Of the pair of views that is least clear of its noise, in units of `√p`."""
    residual: Float[Array, ""]
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def _spectrum(pairs: list[Float[Array, "_ _"]], sizes: list[Array], variance: Array, rank: int) -> Spectrum:
    """Return the spectrum of the pair whose k-th singular value is least above that of noise."""
    values = jnp.stack([jnp.linalg.svd(pair, compute_uv=False)[:rank] for pair in pairs])
    # Singular values of a (d1, d2) matrix of noise of variance 1/n end at about (√d1 + √d2)/√n.
    noise = jnp.stack([jnp.sqrt(sizes[a]) + jnp.sqrt(sizes[b]) for a, b in ((0, 1), (0, 2), (1, 2))])
    noise = noise * jnp.sqrt(variance)
    worst = jnp.argmin(divide(values[:, -1], noise, values[:, -1]))
    return Spectrum(values[worst], noise[worst])


def factor_views(
    key: Array, moments: GroupMoments, variance: Float[Array, ""], rank: int, method: ViewMethod, num_restarts: int
) -> Factored:
    """Decompose the moments of three views, whose noise has a `variance` of one divided by the number of samples."""
    # LAPACK may hang on a NaN, which the status shows all the same.
    finite = finite_status(moments) == Status.CONVERGED
    moments = jax.tree.map(lambda part: jnp.where(finite, part, 0), moments)
    units = [jnp.sqrt(jnp.maximum(mean, 0)) for mean in moments.first]
    inverse = [divide(1, unit) for unit in units]
    one, two, three = inverse
    pairs = [
        pair * inverse[a][:, None] * inverse[b][None, :]
        for pair, (a, b) in zip(moments.second, ((0, 1), (0, 2), (1, 2)), strict=True)
    ]
    found = conditionals_from_views(
        key,
        (one * moments.first[0], two * moments.first[1], three * moments.first[2]),
        (pairs[0], pairs[1], pairs[2]),
        moments.third * one[:, None, None] * two[None, :, None] * three[None, None, :],
        rank,
        method,
        categorical=(False, False, False),
        num_restarts=num_restarts,
    )
    rows = [unit[:, None] * part for unit, part in zip(units, found.conditionals, strict=True)]
    sizes = [jnp.sum(unit > 0).astype(unit.dtype) for unit in units]
    return Factored(
        jnp.concatenate(rows),
        found.weights,
        _spectrum(pairs, sizes, variance, rank),
        found.residual,
        found.num_iters,
        worst(found.status, status_if(~finite, Status.NON_FINITE)),
    )


@small_jit(static_argnames=("rank", "method", "num_restarts"))
def factor_all(
    key: Array, moments: GroupMoments, variance: Float[Array, ""], rank: int, method: ViewMethod, num_restarts: int
) -> Factored:
    """Decompose the moments of many triples of groups, with a leading axis, in one batch."""
    keys = jax.random.split(key, moments.third.shape[0])

    def one(key: Array, moments: GroupMoments) -> Factored:
        return factor_views(key, moments, variance, rank, method, num_restarts)

    return jax.vmap(one)(keys, moments)


@small_jit
def choose_triples(found: Factored, first: Int[Array, " h"], count: Int[Array, " h"]) -> Int[Array, " h"]:
    """Return for each hidden variable the one of its candidates whose k-th singular value is clearest of noise.

    Its candidates are those from `first` on, `count` of them.
    """
    score = found.spectrum.values[:, -1] / jnp.where(found.spectrum.noise > 0, found.spectrum.noise, 1)
    place = jnp.arange(score.shape[0])
    mine = (place[None, :] >= first[:, None]) & (place[None, :] < (first + count)[:, None])
    return jnp.argmax(jnp.where(mine, score[None, :], -jnp.inf), axis=1).astype(first.dtype)


@small_jit(static_argnames="size")
def read_tables(
    rows: Float[Array, "t d k"],
    chosen: Int[Array, " h"],
    owner: Int[Array, " pairs"],
    first: Int[Array, " pairs"],
    start: Int[Array, "pairs candidates"],
    sizes: Int[Array, " pairs"],
    size: int,
) -> Float[Array, "pairs size k"]:
    """Return `P(x | h)` for pairs of an observed and a hidden variable, columns on the simplex; zeros as padding.

    Args:
      rows: those of `Factored`.
      chosen: the triple of groups that was chosen for each hidden variable.
      owner: the hidden variable of each pair.
      first: the first candidate of that one.
      start: the first row of the pair in each candidate.
      sizes: the number of values of the observed variable.
      size: room for the values.

    """
    triple = chosen[owner]
    begin = jnp.take_along_axis(start, (triple - first)[:, None], axis=1)
    place = begin + jnp.arange(size)[None, :]
    return project_tables(rows[triple[:, None], jnp.minimum(place, rows.shape[1] - 1)], sizes)


def project_tables(tables: Float[Array, "pairs size k"], sizes: Int[Array, " pairs"]) -> Float[Array, "pairs size k"]:
    """Return tables whose columns are distributions over the first `sizes` values."""
    exists = jnp.arange(tables.shape[1])[None, :] < sizes[:, None]
    total = jnp.sum(jnp.where(exists[:, :, None], tables, 0), axis=1, keepdims=True)
    scaled = jnp.where(total > 0, divide(tables, total, tables), tables)
    scaled = jnp.where(exists[:, :, None], scaled, _NEVER)
    projected = jax.vmap(lambda table: project_columns_to_simplex(table)[0])(scaled)
    return jnp.where(exists[:, :, None], projected, 0)


@small_jit
def regress_tables(
    moments: PairMoments,
    conditionals: Float[Array, "pairs d k"],
    states: Float[Array, "pairs k"],
    sizes: Int[Array, " pairs"],
) -> Float[Array, "pairs size k"]:
    """Return `P(x_v | h)` of variables that are in no view: `O_v = M_vr (O_rᵀ)⁺ diag(π)⁻¹` from a view `r` that is.

    Args:
      moments: of each variable, and of a view that is independent of it given the hidden one.
      conditionals: those of that view, in the labelling that is asked for.
      states: `P(h)`.
      sizes: the number of values of each variable.

    """

    def one(pair: tuple[PairMoments, Array, Array]) -> Array:
        moments, conditional, state = pair
        scale = divide(1, jnp.sqrt(jnp.maximum(moments.first, 0)))
        scaled = conditional * scale[:, None]
        inverse = jnp.linalg.pinv(jnp.where(jnp.all(jnp.isfinite(scaled)), scaled, 0))
        return matmul(moments.second * scale[None, :], inverse.T) * divide(1, state)[None, :]

    return project_tables(lax.map(one, (moments, conditionals, states)), sizes)
