"""Latent classes from moments."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import (
    check_integer,
    check_key,
    check_option,
    divide,
    machine_epsilon,
    matmul,
    small_jit,
    square_root,
)
from latensor.decompose import Status
from latensor.decompose.internal import VIEW_METHODS, finite_status, status_if, worst
from latensor.models.checks import check_moments
from latensor.models.classes import read_off, split_key
from latensor.models.columns import as_data, check_all_observed, check_variables, float_type
from latensor.models.evidence import Evidence, add_evidence, coincide
from latensor.models.latent_class.density import log_joint
from latensor.models.latent_class.evidence import one_class, overall_frequencies, weigh_evidence
from latensor.models.latent_class.groups import (
    Grouping,
    draw_groups,
    group_moments,
    groups_of_moments,
    largest_rank,
    stacked_owner,
)
from latensor.models.latent_class.params import LatentClass
from latensor.models.results import Fit, Spectrum
from latensor.models.shares import Scaling, as_shares, share_table, unscale_tables
from latensor.models.views import NONNEGATIVE, factor_views, regress_columns
from latensor.moments import Moments, Table, Variables
from latensor.moments.internal import choose_rows, described

METHODS = (*VIEW_METHODS, *NONNEGATIVE)
Method = Literal["power", "ojd0", "ojd1", "nojd0", "nojd1", "ptpqp", "hals"]
# Rows whose likelihood decides between groupings.
_NUM_ROWS = 4096
# A variance within a class that is below this share of the average one is noise, unless there are many samples.
_NOISY_VARIANCE = 0.1
# The average variance within classes is at least this share of the overall one.
_SMALLEST_VARIANCE = 1e-2


class Diagnostics(NamedTuple):
    """How the stages of `fit` went."""

    spectrum: Spectrum
    """Singular values of the pair of groups that is least clear of its noise, in units of `√p`."""
    decomposition_status: Int[Array, " g"]
    """How the decomposition of each grouping ended."""
    grouping_scores: Float[Array, " g"] | None
    """Mean log-likelihood of a sample by each grouping; `None` where there are only moments."""
    groups: tuple[Int[Array, " q"], Int[Array, " q"], Int[Array, " q"]]
    """The columns of the three groups whose estimate was taken; −1 is padding."""
    evidence: Evidence | None
    """What the samples say about the estimate; `None` for moments alone."""


class Options(NamedTuple):
    """What is static."""

    variables: Variables
    num_components: int
    method: Any
    num_restarts: int


class Estimates(NamedTuple):
    """Estimates from several groupings, with a leading axis."""

    params: LatentClass
    spectrum: Spectrum
    num_iters: Int[Array, " g"]
    residual: Float[Array, " g"]
    decomposition_status: Int[Array, " g"]
    raised: Bool[Array, " g"]
    coincide: Bool[Array, " g"]
    columns: Int[Array, "g 3 q"]


def fit(
    key: Array,
    x: Table | ArrayLike,
    num_components: int,
    *,
    mask: ArrayLike | None = None,
    variables: Variables | None = None,
    row_weights: ArrayLike | None = None,
    method: Method = "power",
    num_restarts: int = 20,
    num_groupings: int = 4,
) -> Fit:
    """Estimate latent classes by the method of moments.

    The columns are dealt into three groups at random; given the class, these are three independent views. Their pair
    and triple moments give the distributions of the groups' columns in each class, and a regression on the views those
    of every column, with means and variances of real ones. Of several groupings the likeliest estimate is kept.

    Args:
      key: a random key, for the groups and the starts.
      x: `Table`; or `(n, p)`: category codes `0, 1, …`, and numbers where a column is real. Masked values are ignored.
      num_components: number of classes `k`.
      mask: `(n, p)` bool, True where observed. Entries may be missing together, for reasons that do not depend on their
        values.
      variables: what the columns are, `Variables(kinds, sizes)`. May be left out where `x` holds integer codes and is
        not traced; then every column has as many categories as its largest code tells.
      row_weights: one weight per sample (default: equal).
      method: the decomposition of three views: `"power"`, `"ojd0"`, `"ojd1"`, `"nojd0"`, `"nojd1"` (see
        `latensor.decompose.conditionals_from_views`); or `"ptpqp"`, `"hals"`, nonnegative factors of the triple moment
        alone (see `latensor.decompose.nonnegative_cp`).
      num_restarts: random starts of the decomposition, or random projections.
      num_groupings: how often the columns are dealt.

    Returns:
      `Fit` with `Diagnostics`, classes in decreasing order of weight. The status is `BOUNDARY` where a weight came out
      too small and was raised, `RANK_DEFICIENT` where half of the samples do not find the k-th direction of the
      other half, `POOR_FIT` where independent columns would explain the samples as well. A variance that came out too
      small is replaced by the average over classes. Under `jit` or `vmap` values are not checked: then the status is
      `UNOBSERVED` if a column never is, and `NON_FINITE` if an entry is not valid.

    Cost: `O(n r³)` per grouping for groups of `r` stacked rows, at most 48 unless the rank needs more, and `O(n r Σ
    rows)` for the regression.

    """
    key, table = check_key(key), as_data(x, mask=mask, variables=variables, row_weights=row_weights)
    check_all_observed(table)
    options = _check_options(described(table), num_components, method, num_restarts)
    num_groupings = check_integer("num_groupings", num_groupings, 1)
    k = options.num_components
    if table.num_rows < k:
        raise ValueError(f"x: expected at least num_components = {k} samples; got {table.num_rows}")
    key_groups, key_factors, key_evidence = split_key(key)
    shares, scaling = share_table(table, k)
    overall = overall_frequencies(shares)
    columns = draw_groups(key_groups, as_shares(options.variables), k, num_groupings)
    groupings = group_moments(shares, columns, k)
    noise = jnp.asarray(np.asarray(1 / table.num_rows, float_type(table)))
    estimates = _estimate(key_factors, groupings, overall.mean, scaling, noise, options, False)
    result = _arrange(estimates, _scores(estimates.params, table), overall.status, options)
    if k == 1:
        return _only_class(result, one_class(overall.mean, scaling, options.variables))
    return add_evidence(result, weigh_evidence(key_evidence, result, table, shares, overall.mean, scaling))


def fit_moments(
    key: Array,
    moments: Moments,
    num_components: int,
    *,
    variables: Variables,
    method: Method = "power",
    num_restarts: int = 20,
) -> Fit:
    """Recover the model from dense moments, such as `population_moments`; exact where they are.

    Arguments as for `fit`, which never forms these moments. Blocks of a column with itself are never used.
    """
    key, variables = check_key(key), check_variables(variables)
    options = _check_options(variables, num_components, method, num_restarts)
    moments = Moments(*check_moments(moments, Moments, ("first", "second", "third")))
    expected = variables.num_rows + variables.real.size
    if moments.first.shape != (expected,):
        raise ValueError(
            f"moments: expected {expected} rows, those of all columns and the squares of real ones; "
            f"got {moments.first.shape[0]}"
        )
    key_groups, key_factors, _ = split_key(key)
    columns = draw_groups(key_groups, as_shares(variables), options.num_components, 1)
    groupings, mean, scaling = groups_of_moments(moments, columns, variables, options.num_components)
    estimates = _estimate(key_factors, groupings, mean, scaling, jnp.zeros_like(mean[0]), options, True)
    return _arrange(estimates, None, jnp.asarray(np.int32(Status.CONVERGED)), options)


def _check_options(variables: Variables, num_components: Any, method: Any, num_restarts: Any) -> Options:
    if variables.num_variables < 3:
        raise ValueError(f"x: expected at least three columns; got {variables.num_variables}")
    k = check_integer("num_components", num_components, 1)
    most = largest_rank(as_shares(variables))
    if k > most:
        raise ValueError(
            f"num_components: expected at most {most}, the number of classes that {variables.num_variables} columns in "
            f"three groups tell apart; got {k}"
        )
    check_option("method", method, METHODS)
    return Options(variables, k, method, check_integer("num_restarts", num_restarts, 1))


@small_jit(static_argnames=("options", "exact"))
def _estimate(
    key: Array,
    groupings: Grouping,
    overall: Float[Array, " rows"],
    scaling: Scaling | None,
    noise: Float[Array, ""],
    options: Options,
    exact: bool,
) -> Estimates:
    """Decompose the views of each grouping and read the parameters off; `noise` is one divided by the samples."""
    shares, k = as_shares(options.variables), options.num_components

    def one(key: Array, grouping: Grouping) -> Estimates:
        factored = factor_views(key, grouping.views, noise, k, options.method, options.num_restarts, exact=exact)
        unit = square_root(jnp.concatenate(grouping.views.first))
        products = regress_columns(grouping.references, factored.rows, unit, stacked_owner(shares))
        seen = jnp.max(grouping.references.seen, axis=1)
        weights, tables, raised = read_off(products[: shares.num_rows], seen, overall, shares)
        # As if one more sample of each class had been seen, with the overall frequencies: no category is ruled out.
        extra = divide(noise, noise + weights)[None, :]
        tables = (1 - extra) * tables + extra * overall[:, None]
        params = _in_units(weights, tables, products[shares.num_rows :], scaling, noise, options.variables)
        return Estimates(
            params,
            factored.spectrum,
            factored.num_iters,
            factored.residual,
            factored.status,
            raised,
            coincide(tables),
            grouping.columns,
        )

    return jax.vmap(one)(jax.random.split(key, groupings.columns.shape[0]), groupings)


def _in_units(
    weights: Float[Array, " k"],
    tables: Float[Array, "rows k"],
    squares: Float[Array, "r k"],
    scaling: Scaling | None,
    noise: Float[Array, ""],
    variables: Variables,
) -> LatentClass:
    """Return parameters in the units of the table; `squares` are `E[y²|h] π_h` of the shares `y`."""
    tables = unscale_tables(tables, scaling, variables)
    if scaling is None or scaling.variance is None:
        return LatentClass(weights, tables)
    means = tables[variables.offsets[:-1][variables.real]]
    share = (means - scaling.low[:, None]) / scaling.width[:, None]
    overall = scaling.variance / scaling.width**2
    between = matmul((share - matmul(share, weights)[:, None]) ** 2, weights)
    floor = jnp.maximum(_SMALLEST_VARIANCE * overall, machine_epsilon(share.dtype) ** 2)
    pooled = jnp.maximum(overall - between, floor)[:, None]
    variance = divide(squares, jnp.broadcast_to(weights[None, :], squares.shape)) - share**2
    # Exact moments have no noise.
    least = jnp.minimum(_NOISY_VARIANCE, 10 * jnp.sqrt(noise)) * pooled
    return LatentClass(weights, tables, jnp.where(variance > least, variance, pooled) * scaling.width[:, None] ** 2)


@small_jit
def _scores(params: LatentClass, table: Table) -> Float[Array, " g"]:
    """Return the mean log-likelihood of some rows by each estimate."""
    rows = choose_rows(table, _NUM_ROWS)
    return jax.lax.map(lambda one: jnp.mean(jax.nn.logsumexp(log_joint(one, rows), axis=1)), params)


@small_jit(static_argnames="options")
def _arrange(
    estimates: Estimates, scores: Float[Array, " g"] | None, input_status: Int[Array, ""], options: Options
) -> Fit:
    """Return the estimate with the best score, its classes in decreasing order of weight."""
    best = 0 if scores is None else jnp.argmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))
    chosen = jax.tree.map(lambda leaf: leaf[best], estimates)
    order = jnp.argsort(-chosen.params.weights)
    params = jax.tree.map(lambda leaf: leaf[..., order], chosen.params)
    status = worst(
        input_status,
        jnp.where(chosen.decomposition_status == Status.RANK_DEFICIENT, Status.CONVERGED, chosen.decomposition_status)
        if scores is not None
        else chosen.decomposition_status,
        status_if(chosen.raised, Status.BOUNDARY),
        status_if(chosen.coincide, Status.DEGENERATE),
        finite_status(params),
    )
    one, two, three = chosen.columns
    return Fit(
        params,
        status,
        chosen.num_iters,
        chosen.residual,
        Diagnostics(chosen.spectrum, estimates.decomposition_status, scores, (one, two, three), None),
    )


@small_jit
def _only_class(result: Fit, one: LatentClass) -> Fit:
    """Return the fit of one class: the overall frequencies are the likeliest, whatever the moments say."""
    status = jnp.where(result.status >= Status.UNOBSERVED, result.status, Status.CONVERGED)
    result = result._replace(params=one, status=worst(status, finite_status(one)))
    return add_evidence(result, Evidence(None, None, None))
