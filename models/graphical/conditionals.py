"""The conditional distributions of observed variables given one hidden variable, from three views of it.

The views are groups of variables, whose indicators `factor_views` decomposes. The rows of a variable are then a
distribution given each state.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import divide, matmul, small_jit, square_root
from latensor.decompose import project_columns_to_simplex
from latensor.decompose.internal import ViewMethod
from latensor.models.graphical.groups import GroupMoments, PairMoments
from latensor.models.views import Factored, factor_views

# What is no value of a variable is this far below the others, so that no probability falls to it.
_NEVER = -1e3


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
        scale = divide(1, square_root(moments.first))
        scaled = conditional * scale[:, None]
        inverse = jnp.linalg.pinv(jnp.where(jnp.all(jnp.isfinite(scaled)), scaled, 0))
        return matmul(moments.second * scale[None, :], inverse.T) * divide(1, state)[None, :]

    return project_tables(lax.map(one, (moments, conditionals, states)), sizes)
