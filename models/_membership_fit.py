"""Mixed membership from moments, step by step: anchors, partitions, factors, tables, proportions."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.decompose import (
    CPFactors,
    PartitionedFactors,
    Status,
    anchor_capacity,
    check_anchors,
    choose_anchors,
    decompose_views,
    line_up,
    partition_variables,
    partitioned_nonnegative_cp,
    status_if,
    worst,
)
from latensor.models._checks import check_integer, check_option
from latensor.models._em import em_limits
from latensor.models._membership import MixedMembership, memberships, normalize_blocks
from latensor.models._membership_checks import as_anchor_groups
from latensor.models._membership_likelihood import importance_sample
from latensor.models._membership_meld import meld
from latensor.models._membership_moments import (
    Scaling,
    as_shares,
    dense_partition_moments,
    find_loadings,
    first_moments,
    flat_tables,
    gather_rows,
    partition_moments,
    proportions,
    scale_dense,
    scale_reals,
    unscale_tables,
)
from latensor.moments import CrossMoments, Moments, Variables, as_float, correct_dirichlet

NONNEGATIVE = {"ptpqp": "pqp", "hals": "hals", "wnmf": "wnmf", "multiplicative": "multiplicative"}
VIEWS = ("tpm", "ojd0", "ojd1", "nojd0", "nojd1")
METHODS = (*NONNEGATIVE, *VIEWS, "meld")
MATCHINGS = ("procrustes", "angle", "assignment")
Matching = Literal["procrustes", "angle", "assignment"]

# Variables that each partition has beside the anchors in a mode, where their number is left to us.
_OTHERS_PER_MODE = 8
# Anchors reach this many times the rank, where there are enough variables: rank alone says nothing of noise.
_ANCHOR_ROOM = 1.5
# Sweeps of MELD on its own, twice; an entry that still moves by so much has not settled.
_MELD_SWEEPS, _MELD_TOLERANCE = 50, 1e-3
# The estimate of the total concentration: smallest and largest, how many between, on how many rows, with how many
# draws.
_TOTALS = (0.05, 20.0, 9)
_ROWS_FOR_TOTAL, _DRAWS_FOR_TOTAL = 256, 100
# A real variable's variance within components is at least this share of its variance.
_SMALLEST_VARIANCE = 1e-3


class Fit(NamedTuple):
    """An estimate and how good it is. After `fit`, components are in decreasing order of their concentration."""

    params: MixedMembership
    status: Int[Array, ""]
    """How the estimation ended: see `latensor.decompose.Status`."""
    num_iters: Int[Array, ""]
    """Steps taken: after `fit`, sweeps of the partition that needed most; after `refine`, of variational EM."""
    residual: Float[Array, ""]
    """After `fit`, the part of the partitions' third moments that is left unexplained (relative norm, on average): of
    noisy moments, most. After `refine`, the relative gain in the evidence bound of the last step."""
    matched: Bool[Array, " P"]
    """For each partition, whether the matching gave a permutation; if not, the best assignment was taken."""
    anchors: tuple[Int[Array, " q1"], Int[Array, " q2"], Int[Array, " q3"]]
    """Variables that every partition has in each of its modes."""
    flat: Int[Array, ""]
    """Columns of variables' blocks that came out as zero and were made flat."""


class TableSource(NamedTuple):
    """Moments of samples; real variables are shares by now."""

    x: Num[Array, "n p"]
    mask: Bool[Array, "n p"] | None
    row_weights: Float[Array, " n"] | None

    def first_moments(self, variables: Variables) -> Float[Array, " rows"]:
        """Return the mean of every stacked row."""
        return first_moments(self.x, self.mask, self.row_weights, variables)

    def loadings(self, key: Array, total: Array, variables: Variables, rank: int) -> Float[Array, "rows k"]:
        """Return a basis of the space that the tables' columns span."""
        return find_loadings(key, self.x, self.mask, self.row_weights, total, variables, rank)

    def cross_moments(self, rows: Any, variables: Variables, total: Array) -> CrossMoments:
        """Return the corrected moments of all partitions."""
        raw = partition_moments(self.x, self.mask, self.row_weights, rows, variables)
        return jax.vmap(lambda part: correct_dirichlet(part, total))(raw)


class DenseSource(NamedTuple):
    """Moments that are there already, corrected; real variables are shares by now."""

    moments: Moments

    def first_moments(self, _: Variables) -> Float[Array, " rows"]:
        """Return the mean of every stacked row."""
        return self.moments.first

    def loadings(self, _: Array, __: Array, ___: Variables, rank: int) -> Float[Array, "rows k"]:
        """Return a basis of the space that the tables' columns span."""
        return jnp.linalg.eigh(self.moments.second)[1][:, -rank:]

    def cross_moments(self, rows: Any, _: Variables, __: Array) -> CrossMoments:
        """Return the moments of all partitions."""
        return dense_partition_moments(self.moments, rows)


Source = TableSource | DenseSource


class Options(NamedTuple):
    """What is static."""

    variables: Variables
    num_components: int
    method: str
    num_partitions: int
    anchors: tuple[tuple[int, ...], ...] | int
    """The anchors, or how many of them to choose for each mode."""
    matching: Matching
    num_restarts: int
    polish: int

    @property
    def anchors_on_host(self) -> bool:
        """Whether anchors have to be chosen before shapes are known: where variables differ in size."""
        return isinstance(self.anchors, int) and len(set(self.variables.sizes)) > 1 and self.method != "meld"


def _factor(key: Array, moments: CrossMoments, is_anchor: Any, options: Options) -> PartitionedFactors:
    """Factor the moments of all partitions and line their columns up."""
    rank, method, num_restarts = options.num_components, options.method, options.num_restarts
    if method in NONNEGATIVE:
        return partitioned_nonnegative_cp(
            key,
            moments.third,
            is_anchor,
            rank,
            NONNEGATIVE[method],
            matching=options.matching,
            num_restarts=num_restarts,
        )

    def views(key: Array, moments: CrossMoments) -> CPFactors:
        found = decompose_views(key, moments.second, moments.third, rank, method, num_restarts=num_restarts)
        a, b, c = (jnp.maximum(factor, 0) for factor in found.factors)
        ones = jnp.ones(rank, a.dtype)
        return CPFactors(ones, (a, b, c), found.residual, found.residual, found.num_iters, found.status)

    keys = jax.random.split(key, moments.third.shape[0])
    return line_up(jax.vmap(views)(keys, moments), is_anchor, options.matching)


def _estimate(key: Array, source: Source, options: Options, total: Array) -> Fit:
    """Estimate the model of categorical variables and shares, for a given total concentration."""
    variables, k = options.variables, options.num_components
    mean = source.first_moments(variables)
    if options.method == "meld" and isinstance(source, TableSource):
        return _meld_alone(key, source, options, total, mean)
    key_anchors, key_factor = jax.random.split(key)
    anchors: Any = options.anchors
    if isinstance(anchors, int):
        loadings = source.loadings(key_anchors, total, variables, k)
        anchors = choose_anchors(loadings, variables.sizes, anchors)
    partitions = partition_variables(variables.sizes, options.num_partitions, anchors)
    moments = source.cross_moments(partitions.rows, variables, total)
    found = _factor(key_factor, moments, partitions.is_anchor, options)
    stacked = gather_rows(found.factors, partitions.rows, variables.num_rows)
    tables, flat = normalize_blocks(stacked, flat_tables(variables, k, stacked.dtype), variables)
    share = proportions(tables, mean)
    if options.polish and isinstance(source, TableSource):
        polished = meld(tables, total * share, source.x, source.mask, source.row_weights, variables, options.polish)
        tables, share = polished.tables, proportions(polished.tables, mean)
    return _arrange(
        Fit(
            MixedMembership(total * share, tables),
            jnp.max(found.status),
            jnp.max(found.num_iters),
            jnp.mean(found.unexplained),
            found.matched,
            (jnp.asarray(anchors[0]), jnp.asarray(anchors[1]), jnp.asarray(anchors[2])),
            flat,
        )
    )


def _meld_alone(key: Array, source: TableSource, options: Options, total: Array, mean: Array) -> Fit:
    """Minimize MELD's criterion from random tables, with even proportions first and then with those found."""
    variables, k = options.variables, options.num_components
    noise = jax.random.exponential(key, (variables.num_rows, k), mean.dtype)
    tables, flat = normalize_blocks(noise * mean[:, None], flat_tables(variables, k, mean.dtype), variables)
    share = jnp.full(k, 1 / k, mean.dtype)
    for _ in range(2):
        found = meld(tables, total * share, source.x, source.mask, source.row_weights, variables, _MELD_SWEEPS)
        tables, share = found.tables, proportions(found.tables, mean)
    none = jnp.zeros(0, jnp.int32)
    return _arrange(
        Fit(
            MixedMembership(total * share, tables),
            status_if(~(found.change <= _MELD_TOLERANCE), Status.MAX_ITERS),
            jnp.int32(2 * _MELD_SWEEPS),
            found.change,
            jnp.ones(0, bool),
            (none, none, none),
            flat,
        )
    )


def _arrange(fit: Fit) -> Fit:
    """Sort components by concentration; a NaN shows in the status."""
    concentration, tables, _ = fit.params
    order = jnp.argsort(-concentration)
    finite = jnp.all(jnp.isfinite(tables)) & jnp.all(jnp.isfinite(concentration))
    return fit._replace(
        params=MixedMembership(concentration[order], tables[:, order]),
        status=worst(fit.status, status_if(~finite, Status.NON_FINITE)),
    )


def _in_original_units(fit: Fit, scaling: Scaling, variance: Array, variables: Variables) -> Fit:
    """Give real variables their means back, and what variance these leave unexplained."""
    concentration, tables, _ = fit.params
    tables = unscale_tables(tables, scaling, variables)
    if not variables.real.size:
        return fit._replace(params=MixedMembership(concentration, tables))
    share = concentration / jnp.sum(concentration)
    means = tables[variables.offsets[:-1][variables.real]]
    centred = means - jnp.matmul(means, share, precision="highest")[:, None]
    within = variance - jnp.matmul(centred**2, share, precision="highest")
    floor = _SMALLEST_VARIANCE * jnp.where(variance > 0, variance, 1)
    return fit._replace(params=MixedMembership(concentration, tables, jnp.maximum(within, floor)))


@partial(jax.jit, static_argnames=("variables", "options"))
def fit_to_table(
    key: Array,
    x: Num[Array, "n p"],
    mask: Bool[Array, "n p"] | None,
    row_weights: Float[Array, " n"] | None,
    total: Float[Array, ""] | None,
    variables: Variables,
    options: Options,
) -> Fit:
    scaled, scaling, variance = scale_reals(x, mask, row_weights, variables, options.num_components)
    source = TableSource(scaled, mask, row_weights)

    def estimate(total: Array) -> Fit:
        return _in_original_units(_estimate(key, source, options, total), scaling, variance, variables)

    if total is None:
        total = _most_likely_total(key, estimate, x, mask, variables)
    return estimate(total)


def _most_likely_total(
    key: Array, estimate: Callable[[Array], Fit], x: Array, mask: Array | None, variables: Variables
) -> Float[Array, ""]:
    """Return the total concentration whose fit gives some of the rows the highest likelihood.

    Third moments hardly tell it: tables that are too far apart and memberships that are too even look like the truth.
    A grid, then the top of the parabola (in the logarithm) through the best value and its neighbours.
    """
    step = max(1, x.shape[0] // _ROWS_FOR_TOTAL)
    x, mask = x[::step][:_ROWS_FOR_TOTAL], None if mask is None else mask[::step][:_ROWS_FOR_TOTAL]
    dtype = as_float(x).dtype
    grid = jnp.geomspace(*_TOTALS, dtype=dtype)
    limits = em_limits(1e-3, 100, dtype)

    def score(total: Array) -> Array:
        params = estimate(total).params
        gamma = memberships(params, x, mask, variables, *limits)
        return jnp.mean(importance_sample(key, params, x, mask, variables, gamma, _DRAWS_FOR_TOTAL).value)

    scores = lax.map(score, grid)
    best = jnp.argmax(jnp.where(jnp.isfinite(scores), scores, -jnp.inf))
    middle = jnp.clip(best, 1, grid.shape[0] - 2)
    below, here, above = scores[middle - 1], scores[middle], scores[middle + 1]
    bend = below - 2 * here + above
    shift = jnp.where(bend < 0, (below - above) / (2 * jnp.where(bend < 0, bend, -1)), 0)
    ratio = math.log(_TOTALS[1] / _TOTALS[0]) / (_TOTALS[2] - 1)
    # At the end of the grid the parabola may point anywhere: then the end itself.
    inside = (best == middle) & jnp.isfinite(shift)
    return jnp.where(inside, grid[middle] * jnp.exp(ratio * jnp.clip(shift, -1, 1)), grid[best])


@partial(jax.jit, static_argnames=("variables", "options"))
def fit_to_moments(key: Array, moments: Moments, total: Array, variables: Variables, options: Options) -> Fit:
    scaled, scaling = scale_dense(moments, total, variables, options.num_components)
    fit = _estimate(key, DenseSource(scaled), options, total)
    concentration, tables, _ = fit.params
    return fit._replace(params=MixedMembership(concentration, unscale_tables(tables, scaling, variables)))


def check_options(
    variables: Variables,
    num_components: Any,
    method: str,
    num_partitions: Any,
    anchors: Any,
    matching: Matching,
    num_restarts: Any,
    polish: Any,
) -> Options:
    """Check what is static, and settle how many anchors and partitions there are."""
    shares = as_shares(variables)
    p = shares.num_variables
    if p < 3:
        raise ValueError(f"x: expected at least three variables that can be used; got {p}")
    k = check_integer("num_components", num_components, 1)
    check_option("method", method, METHODS)
    check_option("matching", matching, MATCHINGS)
    num_restarts = check_integer("num_restarts", num_restarts, 1)
    polish = check_integer("polish", polish, 0)
    largest = sorted(shares.sizes)[::-1]
    reach = min(anchor_capacity(largest[mode::3]) for mode in range(3))
    if reach < k:
        raise ValueError(
            f"num_components: expected at most {reach}, the rank that {p} variables in three groups reach; got {k}"
        )
    if num_partitions is not None:
        num_partitions = check_integer("num_partitions", num_partitions, 1, p, " (the number of variables)")
    chosen: Any = _num_anchors(shares, k)
    if anchors is not None:
        chosen = check_anchors(shares.sizes, as_anchor_groups(anchors), k)
    options = Options(shares, k, method, num_partitions or 0, chosen, matching, num_restarts, polish)
    return options if options.anchors_on_host else _settle_partitions(options)


def _settle_partitions(options: Options) -> Options:
    """Choose the number of partitions where that was left to us, and check it where not."""
    anchors = options.anchors
    num_anchors = 3 * anchors if isinstance(anchors, int) else sum(len(group) for group in anchors)
    num_others = options.variables.num_variables - num_anchors
    number = options.num_partitions or max(1, num_others // (3 * _OTHERS_PER_MODE))
    check_integer("num_partitions", number, 1, max(1, num_others), f" (the variables beside {num_anchors} anchors)")
    return options._replace(num_partitions=number)


def _num_anchors(shares: Variables, k: int) -> int:
    """Return how many anchors each mode gets: enough for rank `k` with room, as far as there are variables."""
    smallest = min(shares.sizes)
    enough = -(-(k - 1) // (smallest - 1))
    room = -(-math.ceil(_ANCHOR_ROOM * k) // (smallest - 1))
    return max(1, min(max(enough, room), shares.num_variables // 3))


def settle_anchors(key: Array, source: Source, options: Options, total: Array) -> Options:
    """Choose anchors on the host, where shapes depend on which they are: variables of different sizes."""
    sizes, k = options.variables.sizes, options.num_components
    loadings = source.loadings(jax.random.split(key)[0], total, options.variables, k)
    ranked = np.asarray(choose_anchors(loadings, sizes, options.anchors)).tolist()
    wanted = math.ceil(_ANCHOR_ROOM * k) + 1
    groups = []
    for group in ranked:
        enough = [q for q in range(1, len(group) + 1) if anchor_capacity([sizes[j] for j in group[:q]]) >= wanted]
        groups.append(tuple(group[: enough[0]] if enough else group))
    return _settle_partitions(options._replace(anchors=tuple(groups)))
