"""Mixed membership from moments."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_key, is_concrete, small_jit
from latensor.decompose import Status
from latensor.decompose.internal import finite_status, worst
from latensor.models.blocks import normalize_blocks
from latensor.models.checks import check_moments
from latensor.models.columns import as_data, check_all_observed, check_variables, float_type
from latensor.models.evidence import Evidence, add_evidence
from latensor.models.mixed_membership.anchors import (
    Groups,
    anchors_of_moments,
    anchors_of_table,
    divide_variables,
    draw_mixing,
    settle_anchors,
)
from latensor.models.mixed_membership.arrange import Diagnostics, Estimate, arrange
from latensor.models.mixed_membership.concentration import Total, estimate_total, warn_at_limit
from latensor.models.mixed_membership.data import find_missing_together
from latensor.models.mixed_membership.evidence import Modes, one_component, weigh_evidence
from latensor.models.mixed_membership.factors import (
    Factored,
    assemble_tables,
    correct_moments,
    factor_partitions,
    find_concentration,
    flat_tables,
    select_moments,
)
from latensor.models.mixed_membership.meld import meld
from latensor.models.mixed_membership.moments import Summary, partition_moments, summarize
from latensor.models.mixed_membership.options import Matching, Options, check_concentration, check_options
from latensor.models.mixed_membership.params import MixedMembership
from latensor.models.mixed_membership.units import share_moments
from latensor.models.results import Fit, Spectrum
from latensor.models.shares import share_table
from latensor.moments import Moments, Table, Variables
from latensor.moments.internal import described

# Sweeps of MELD on its own, twice.
_MELD_SWEEPS = 50


def fit(
    key: Array,
    x: Table | ArrayLike,
    num_components: int,
    *,
    mask: ArrayLike | None = None,
    variables: Variables | None = None,
    row_weights: ArrayLike | None = None,
    method: str = "ptpqp",
    num_restarts: int = 8,
    concentration: float | Array | None = None,
    num_partitions: int | None = None,
    anchors: Sequence[Sequence[int]] | None = None,
    matching: Matching = "procrustes",
    polish: int = 1,
) -> Fit:
    """Estimate the model by the method of moments.

    Means and second moments → anchors and partitions → third moments of the partitions → factors → tables and
    proportions → polishing on all pairs and triples of variables.

    Args:
      key: a random key, for starts and projections.
      x: `Table`; or `(n, p)`: category codes `0, 1, …`, and numbers where a variable is real. Masked values are
        ignored.
      num_components: number of components `k`.
      mask: `(n, p)` bool, True where observed. Entries must be missing for reasons that do not depend on their values.
      variables: what the columns are, `Variables(kinds, sizes)`. May be left out where `x` holds integer codes and is
        not traced; then every variable has as many categories as its largest code tells.
      row_weights: one weight per sample (default: equal).
      method: `"ptpqp"`: nonnegative factors of all partitions by parallel quadratic programming; or, on the same
        partitions, `"hals"`, `"wnmf"`, `"multiplicative"` (see `latensor.decompose.nonnegative_cp`), `"power"`,
        `"ojd0"`, `"ojd1"`, `"nojd0"`, `"nojd1"` (see `latensor.decompose.decompose_views`). `"meld"` has no partitions:
        the generalized method of moments on all pairs and triples of variables.
      num_restarts: random starts of the first partition, from which the others start; or random projections.
      concentration: `α₀ = Σ α_h`, the total concentration of the memberships: small where samples belong to one
        component each, large where all are similar mixtures. `None` tries a grid from 0.05 to 20 and takes what makes
        some of the samples most likely: ten fits.
      num_partitions: tensors that the variables are divided into. More are faster and noisier; default: eight
        variables per mode beside the anchors, so one for up to about fifty variables.
      anchors: three groups of columns that are in every partition, one group per mode, which do not overlap. Default:
        chosen from the data so that components are far apart in them. Under `jit` or `vmap` they must be given where
        variables differ in their number of categories.
      matching: how the components of partitions are matched; see `latensor.decompose.match_columns`.
      polish: sweeps of `"meld"` from the result of the other methods: they use all pairs and triples of variables, not
        only those within a partition. Zero leaves the result as it is.

    Returns:
      `Fit` with `Diagnostics`. `num_iters` counts sweeps of the partition that needed most, `residual` is the mean over
      partitions; for `"meld"` it is the change of an entry in the last sweep. The status is `BOUNDARY` where a
      proportion or a variance was raised to its smallest value or the concentration is at the end of its grid,
      `DEGENERATE` where two components coincide. Under `jit` or `vmap` values are not checked: then it is `UNOBSERVED`
      if a variable never is, and `NON_FINITE` if an entry is not valid.

    Cost: `O(n p r²)` for partitions of `r` rows per mode (about `12 + 4k` with four categories), and `O(n Σ rows k)`
    per sweep of polishing. Nothing larger than the data and the partitions' tensors is formed.

    """
    key, table = check_key(key), as_data(x, mask=mask, variables=variables, row_weights=row_weights)
    check_all_observed(table)
    options = check_options(
        described(table), num_components, method, num_restarts, num_partitions, anchors, matching, polish
    )
    k, dtype = options.num_components, float_type(table)
    if table.num_rows < k:
        raise ValueError(f"x: expected at least num_components = {k} samples; got {table.num_rows}")
    given = _as_type(check_concentration(concentration), dtype)
    if k == 1 and given is None:
        given = _as_type(1, dtype)  # all memberships are one: any concentration is as good

    shares, scaling = share_table(table, k)
    choose = options.anchors is None and method != "meld"
    summary = summarize(shares, draw_mixing(key, options, dtype) if choose else None)
    if choose and options.is_uneven:
        guess = _as_type(1, dtype) if given is None else given
        options = settle_anchors(anchors_of_table(summary, guess, options), options)

    together = find_missing_together(table, options)

    def estimate(total: Total) -> Fit:
        run = _meld_alone if method == "meld" else partial(_from_partitions, together=together)
        return arrange(run(key, shares, summary, total, options), scaling, summary.status, options)

    total = estimate_total(key, table, estimate) if given is None else Total(given, None)
    result = estimate(total)
    warn_at_limit(total)
    one = one_component(summary.mean, scaling, options.variables)
    if k == 1:
        return _overall(result, one)
    modes = _first_modes(result.diagnostics.anchors, options)
    return add_evidence(result, weigh_evidence(key, result.params, table, shares, one, modes))


@small_jit
def _overall(result: Fit, one: MixedMembership) -> Fit:
    """Return the fit of one component: the overall frequencies are the likeliest, and no factors have to be found."""
    params = one._replace(concentration=result.params.concentration)
    # What went wrong with the factors does not matter.
    status = jnp.where(result.status >= Status.UNOBSERVED, result.status, Status.CONVERGED)
    status = worst(status, finite_status(params))
    zero = jnp.zeros_like(result.residual)
    result = result._replace(params=params, status=status, num_iters=jnp.zeros_like(result.num_iters), residual=zero)
    return add_evidence(result, Evidence(None, None, None))


def fit_moments(
    key: Array,
    moments: Moments,
    num_components: int,
    *,
    variables: Variables,
    method: str = "ptpqp",
    num_restarts: int = 8,
    concentration: float | Array,
    num_partitions: int | None = None,
    anchors: Sequence[Sequence[int]] | None = None,
    matching: Matching = "procrustes",
) -> Fit:
    """Recover the model from dense moments, such as `population_moments`; exact where they are.

    Blocks of a variable with itself are never used. The variances of real variables are not in the moments: the
    parameters' `variances` is `None`. Arguments as for `fit`, which never forms these moments.
    """
    key, variables = check_key(key), check_variables(variables)
    total = check_concentration(concentration)
    if total is None:
        raise ValueError("concentration: expected a number above zero, which dense moments do not tell; got None")
    if method == "meld":
        raise ValueError("method: expected one that factors tensors, since 'meld' needs the samples; got 'meld'")
    options = check_options(variables, num_components, method, num_restarts, num_partitions, anchors, matching, 0)
    moments = Moments(*check_moments(moments, Moments, ("first", "second", "third")))
    if moments.second.shape != (variables.num_rows, variables.num_rows):
        raise ValueError(
            f"moments: expected {variables.num_rows} rows, those of all variables; got {moments.second.shape}"
        )
    total = _as_type(total, moments.first.dtype)
    scaled, scaling = share_moments(moments, total, variables, options.num_components)
    chosen = anchors_of_moments(scaled, options) if options.anchors is None else None
    if chosen is not None and options.is_uneven:
        options, chosen = settle_anchors(chosen, options), None
    division = divide_variables(chosen, options)
    corrected = select_moments(key, scaled, division.partitions.rows, options.num_components)
    factors = factor_partitions(corrected, division.partitions.is_anchor, options)
    factored = assemble_tables(factors, division.partitions.rows, options)
    estimate = _combine(
        factored, factored.tables, scaled.first, corrected.spectrum, division.anchors, Total(total, None)
    )
    return arrange(estimate, scaling, jnp.asarray(np.int32(Status.CONVERGED)), options)


def _first_modes(anchors: Groups | None, options: Options) -> Modes | None:
    """Return the rows of two modes of the first partition."""
    if anchors is None:
        return None
    places = divide_variables(None if options.anchors is not None else jnp.stack(anchors), options).partitions.rows
    return jnp.asarray(places[0][0]), jnp.asarray(places[1][0])


def _as_type(total: Any, dtype: Any) -> Any:
    """Return a number of this type; through NumPy where it is concrete, which needs no compilation."""
    if total is None:
        return None
    return jnp.asarray(np.asarray(total, dtype) if is_concrete(total) else total, dtype)


def _from_partitions(
    key: Array, table: Table, summary: Summary, total: Total, options: Options, together: Array | None
) -> Estimate:
    """Factor the third moments of all partitions, and polish the tables on all variables.

    Where variables go missing `together`, polishing, which divides by their rates, would bias the tables.
    """
    chosen = anchors_of_table(summary, total.value, options) if options.anchors is None else None
    division = divide_variables(chosen, options)
    raw = partition_moments(table, division.partitions.rows)
    corrected = correct_moments(key, raw, total.value, options.num_components)
    factors = factor_partitions(corrected, division.partitions.is_anchor, options)
    factored = assemble_tables(factors, division.partitions.rows, options)
    tables = factored.tables
    if options.polish and not (is_concrete(together) and together):
        start = find_concentration(tables, summary.mean, total.value)
        polished = meld(tables, start.values, table, options.polish).tables
        tables = polished if together is None else jnp.where(together, tables, polished)
    return _combine(factored, tables, summary.mean, corrected.spectrum, division.anchors, total)


def _combine(
    factored: Factored,
    tables: Float[Array, "rows k"],
    mean: Float[Array, " rows"],
    spectrum: Spectrum,
    anchors: Groups,
    total: Total,
) -> Estimate:
    """Return the estimate with these tables."""
    concentration, clipped = find_concentration(tables, mean, total.value)
    diagnostics = Diagnostics(
        spectrum, factored.status, factored.matched, anchors, factored.num_flat, None, total.at_limit
    )
    return Estimate(
        tables, concentration, clipped, factored.status, factored.num_iters, factored.unexplained, diagnostics
    )


def _meld_alone(key: Array, table: Table, summary: Summary, total: Total, options: Options) -> Estimate:
    """Minimize MELD's criterion from random tables, first with even proportions and then with those of the result."""
    tables, concentration, num_flat = _random_start(key, summary.mean, total.value, options)
    for _ in range(2):
        result = meld(tables, concentration, table, _MELD_SWEEPS)
        tables = result.tables
        concentration, clipped = find_concentration(tables, summary.mean, total.value)
    return Estimate(
        tables,
        concentration,
        clipped,
        jnp.asarray(np.int32(Status.CONVERGED)),
        jnp.asarray(np.int32(2 * _MELD_SWEEPS)),
        result.change,
        Diagnostics(None, None, None, None, num_flat, None, total.at_limit),
    )


@small_jit(static_argnames="options", optimize=False)
def _random_start(
    key: Array, mean: Float[Array, " rows"], total: Float[Array, ""], options: Options
) -> tuple[Float[Array, "rows k"], Float[Array, " k"], Int[Array, ""]]:
    shares, k = options.shares, options.num_components
    noise = jax.random.exponential(key, (shares.num_rows, k), mean.dtype)
    tables, num_flat = normalize_blocks(noise * mean[:, None], flat_tables(shares, k, mean.dtype), shares)
    return tables, total * jnp.full(k, 1 / k, mean.dtype), num_flat
