"""From the moments of partitions to tables: factors, lined up and put together, and the proportions of components.

No shape here depends on the number of samples.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from latensor.base import machine_epsilon, matmul, small_jit, smallest_normal
from latensor.decompose import (
    CPFactors,
    PartitionedFactors,
    decompose_views,
    partitioned_nonnegative_cp,
    solve_nonnegative_qp,
)
from latensor.decompose.internal import line_up
from latensor.models.blocks import normalize_blocks
from latensor.models.mixed_membership.moments import Places, pick_moments
from latensor.models.mixed_membership.options import NONNEGATIVE, Options
from latensor.models.results import Spectrum
from latensor.moments import CrossMoments, Moments, Variables
from latensor.moments.internal import correct_dirichlet

Anchored = tuple[Bool[Array, " r1"], Bool[Array, " r2"], Bool[Array, " r3"]]


class Corrected(NamedTuple):
    """Moments of all partitions, less what the Dirichlet adds."""

    moments: CrossMoments
    spectrum: Spectrum
    """Of the pair moment of the first two modes of the first partition."""
    key: Array
    """For their factorization."""


class Factored(NamedTuple):
    """Tables out of the factors of all partitions, and how the factorization went."""

    tables: Float[Array, "rows k"]
    num_flat: Int[Array, ""]
    matched: Bool[Array, " P"]
    status: Int[Array, " P"]
    num_iters: Int[Array, ""]
    unexplained: Float[Array, ""]


@small_jit(static_argnames="rank")
def correct_moments(key: Array, raw: CrossMoments, total: Float[Array, ""], rank: int) -> Corrected:
    """Correct the moments of a table's partitions for a total concentration."""
    moments = jax.vmap(correct_dirichlet, in_axes=(0, None))(raw, total)
    return Corrected(moments, _spectrum(moments.second[0][0], rank), jax.random.split(key)[1])


@small_jit(static_argnames="rank")
def select_moments(key: Array, dense: Moments, places: Places, rank: int) -> Corrected:
    """Select the moments of all partitions from dense ones, which are corrected already."""
    moments = jax.vmap(pick_moments, in_axes=(None, 0))(dense, places)
    return Corrected(moments, _spectrum(moments.second[0][0], rank), jax.random.split(key)[1])


def _spectrum(pair: Float[Array, "r1 r2"], rank: int) -> Spectrum:
    """Return the leading singular values of a pair moment; the next one is noise."""
    finite = jnp.all(jnp.isfinite(pair))
    values = jnp.linalg.svd(jnp.where(finite, pair, 0), compute_uv=False)  # LAPACK may hang on a NaN
    values = jnp.where(finite, values, jnp.nan)
    return Spectrum(values[:rank], values[rank] if values.shape[0] > rank else jnp.zeros((), values.dtype))


def factor_partitions(corrected: Corrected, is_anchor: Anchored, options: Options) -> PartitionedFactors:
    """Factor the moments of all partitions and line their columns up."""
    if options.method not in NONNEGATIVE:
        return line_up(_factor_views(corrected, options), is_anchor, options.matching)
    return partitioned_nonnegative_cp(
        corrected.key,
        corrected.moments.third,
        is_anchor,
        options.num_components,
        NONNEGATIVE[options.method],
        matching=options.matching,
        num_restarts=options.num_restarts,
    )


@small_jit(static_argnames="options")
def _factor_views(corrected: Corrected, options: Options) -> CPFactors:
    rank = options.num_components

    def factor(key: Array, moments: CrossMoments) -> CPFactors:
        view = decompose_views(
            key, moments.second, moments.third, rank, options.method, num_restarts=options.num_restarts
        )
        a, b, c = (jnp.maximum(mode, 0) for mode in view.factors)
        return CPFactors(jnp.ones(rank, a.dtype), (a, b, c), view.residual, view.residual, view.num_iters, view.status)

    keys = jax.random.split(corrected.key, corrected.moments.third.shape[0])
    return jax.vmap(factor)(keys, corrected.moments)


@small_jit(static_argnames="options", optimize=False)
def assemble_tables(factors: PartitionedFactors, places: Places, options: Options) -> Factored:
    """Put the factors of all partitions together to tables."""
    shares, k = options.shares, options.num_components
    stacked = _gather_rows(factors.factors, places, shares.num_rows)
    tables, num_flat = normalize_blocks(stacked, flat_tables(shares, k, stacked.dtype), shares)
    return Factored(
        tables, num_flat, factors.matched, factors.status, jnp.max(factors.num_iters), jnp.mean(factors.unexplained)
    )


def _gather_rows(parts: tuple[Array, Array, Array], places: Places, num_rows: int) -> Float[Array, "rows k"]:
    """Put the rows of all partitions back to their places in the stack; rows of several partitions are averaged."""
    values = jnp.concatenate([part.reshape(-1, part.shape[2]) for part in parts])
    place = jnp.concatenate([mode.reshape(-1) for mode in places])
    place = jnp.where(place >= 0, place, num_rows)  # one row beyond the end takes the padding
    sums = jnp.zeros((num_rows + 1, values.shape[1]), values.dtype).at[place].add(values)[:num_rows]
    counts = jnp.zeros(num_rows + 1, values.dtype).at[place].add(1)[:num_rows]
    return sums / jnp.maximum(counts, 1)[:, None]


def flat_tables(variables: Variables, num_components: int, dtype: Any) -> Float[Array, "rows k"]:
    """Return tables in which all categories of a variable are equally likely."""
    even = 1 / jnp.asarray(variables.sizes, dtype)[variables.row_variables]
    return jnp.broadcast_to(even[:, None], (variables.num_rows, num_components))


class Concentration(NamedTuple):
    """The concentration of the memberships, `α₀` times the proportions of the components."""

    values: Float[Array, " k"]
    clipped: Bool[Array, ""]
    """Whether a proportion came out as zero and was raised."""


@small_jit(optimize=False)
def find_concentration(
    tables: Float[Array, "rows k"], mean: Float[Array, " rows"], total: Float[Array, ""]
) -> Concentration:
    """Return `α₀ a`, with the proportions `a ≥ 0`, `Σ a = 1`, that explain the first moments best, `Θ a ≈ μ`."""
    quadratic = matmul(tables.T, tables)
    k = quadratic.shape[0]
    # Where two columns coincide their proportions are not determined; a little ridge divides them evenly.
    ridge = math.sqrt(machine_epsilon(tables.dtype)) * jnp.trace(quadratic) / k
    quadratic = quadratic + ridge * jnp.eye(k, dtype=tables.dtype)
    values = solve_nonnegative_qp(quadratic, -matmul(mean, tables) - ridge / k).x
    # A component of proportion zero would be in no sample, and its concentration zero: a thousandth of an even share.
    floor = 1e-3 * jnp.maximum(jnp.sum(values), smallest_normal(values.dtype)) / k
    raised = jnp.maximum(values, floor)
    return Concentration(total * (raised / jnp.sum(raised)), jnp.any(values < floor))
