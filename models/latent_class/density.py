"""The joint log-probability of a sample and its class, and sums over samples."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from latensor.base import einsum, matmul
from latensor.models.blocks import observed_values, sum_by_row
from latensor.models.classes import ClassSums, classify, safe_log
from latensor.models.latent_class.params import LatentClass
from latensor.moments import Table, Variables, map_over_rows, sum_over_rows
from latensor.moments.internal import category_rows, described, row_features

# Up to so many categories per column on average, products with indicators are faster than gathers and scatters.
_ONE_HOT_UP_TO = 32


class RealSums(NamedTuple):
    """Sums over the observed entries of real columns in each class, of differences from the class's mean."""

    counts: Float[Array, "r k"]
    first: Float[Array, "r k"]
    second: Float[Array, "r k"]


class Sums(NamedTuple):
    """What an EM step needs."""

    classes: ClassSums
    real: RealSums | None

    @property
    def log_likelihood(self) -> Float[Array, ""]:
        """The mean log-likelihood of a sample."""
        return self.classes.log_likelihood


def floats_per_row(params: LatentClass, table: Table) -> int:
    """Return the size of the temporaries of one row."""
    variables, k = described(table), params.weights.shape[0]
    per_entry = variables.num_rows if _uses_indicators(variables) else 2 * k * variables.categorical.size
    return per_entry + 4 * k * variables.real.size + 4 * k


def _uses_indicators(variables: Variables) -> bool:
    return variables.num_rows <= _ONE_HOT_UP_TO * variables.num_variables


def _invalid(rows: Table, variables: Variables) -> Bool[Array, " n"]:
    """Return which rows have an observed entry that is no category of its column."""
    columns = variables.categorical
    codes = rows.x[:, columns]
    valid = (codes >= 0) & (codes < jnp.asarray(np.asarray(variables.sizes)[columns], codes.dtype)[None, :])
    if jnp.issubdtype(codes.dtype, jnp.floating):
        valid = valid & (codes == jnp.floor(codes))
    return jnp.any(~valid if rows.mask is None else ~valid & rows.mask[:, columns], axis=1)


class _Entries(NamedTuple):
    """The entries of some rows, in the form in which they are multiplied with blocks."""

    indicators: Float[Array, "n c"] | None
    """Of the stacked rows of categorical columns; `None` where gathers are faster."""
    errors: Float[Array, "n r k"] | None
    """Real entries less their mean in each class; zero where not observed."""
    observed: Bool[Array, "n r"] | None


def _stacked(variables: Variables) -> np.ndarray:
    """Return the stacked rows of categorical columns."""
    return np.flatnonzero(np.isin(variables.row_variables, variables.categorical)).astype(np.int32)


def _read_entries(params: LatentClass, rows: Table) -> _Entries:
    variables, dtype = described(rows), params.tables.dtype
    indicators = errors = observed = None
    if variables.categorical.size and _uses_indicators(variables):
        indicators = row_features(rows, jnp.asarray(_stacked(variables)))[0].astype(dtype)
    if params.variances is not None:
        real = variables.real
        means = params.tables[variables.offsets[:-1][real]]
        errors = observed_values(rows)[:, real].astype(dtype)[:, :, None] - means[None, :, :]
        observed = None if rows.mask is None else rows.mask[:, real]
        if observed is not None:
            errors = jnp.where(observed[:, :, None], errors, 0)
    return _Entries(indicators, errors, observed)


def _log_joint(params: LatentClass, rows: Table, entries: _Entries) -> Float[Array, "n k"]:
    variables = described(rows)
    joint = jnp.broadcast_to(safe_log(params.weights)[None, :], (rows.num_rows, params.weights.shape[0]))
    if variables.categorical.size:
        logs = safe_log(jnp.where(np.isin(variables.row_variables, variables.categorical)[:, None], params.tables, 1))
        if entries.indicators is not None:
            joint = joint + matmul(entries.indicators, logs[_stacked(variables)])
        else:
            joint = joint + _sum_gathered(logs, rows, variables)
        joint = jnp.where(_invalid(rows, variables)[:, None], jnp.nan, joint)
    if entries.errors is not None and params.variances is not None:
        constant = jnp.log(2 * math.pi * params.variances)
        each = -(entries.errors**2 / params.variances[None] + constant[None]) / 2
        joint = joint + jnp.sum(each if entries.observed is None else each * entries.observed[:, :, None], axis=1)
    return joint


def _sum_gathered(logs: Float[Array, "rows k"], rows: Table, variables: Variables) -> Float[Array, "n k"]:
    place = category_rows(observed_values(rows), variables)
    picked = logs.at[place].get(mode="fill", fill_value=0)
    if rows.mask is not None:
        picked = jnp.where(rows.mask[:, variables.categorical][:, :, None], picked, 0)
    return jnp.sum(picked, axis=1)


def log_joint(params: LatentClass, table: Table) -> Float[Array, "n k"]:
    """Return `log P(h, x)` for every row, of its observed entries. A code that is no category gives NaN."""

    def block(rows: Table) -> Array:
        return _log_joint(params, rows, _read_entries(params, rows))

    return map_over_rows(block, table, floats_per_row=floats_per_row(params, table))


def expect(params: LatentClass, table: Table, weights: Float[Array, " n"]) -> Sums:
    """Return expected counts, in one walk over the rows; `weights` sum to one."""
    variables = described(table)

    def block(rows: Table, weights: Array) -> Sums:
        entries = _read_entries(params, rows)
        shares, sizes, value = classify(_log_joint(params, rows, entries), weights)
        return Sums(ClassSums(_counts(shares, rows, entries, variables), sizes, value), _real_sums(shares, entries))

    return sum_over_rows(block, table, weights, floats_per_row=floats_per_row(params, table))


def _counts(
    shares: Float[Array, "n k"], rows: Table, entries: _Entries, variables: Variables
) -> Float[Array, "rows k"]:
    """Return the weight of each category in each class; zero in the rows of real columns."""
    counts = jnp.zeros((variables.num_rows, shares.shape[1]), shares.dtype)
    if entries.indicators is not None:
        return counts.at[_stacked(variables)].set(matmul(entries.indicators.T, shares))
    if not variables.categorical.size:
        return counts
    spread = jnp.broadcast_to(shares[:, None, :], (shares.shape[0], variables.num_variables, shares.shape[1]))
    if rows.mask is not None:
        spread = jnp.where(rows.mask[:, :, None], spread, 0)
    rows_of_real = variables.offsets[:-1][variables.real]
    return sum_by_row(spread, observed_values(rows), variables).at[rows_of_real].set(0)


def _real_sums(shares: Float[Array, "n k"], entries: _Entries) -> RealSums | None:
    errors = entries.errors
    if errors is None:
        return None
    if entries.observed is None:
        counts = jnp.broadcast_to(jnp.sum(shares, axis=0)[None, :], errors.shape[1:])
    else:
        counts = matmul(entries.observed.astype(shares.dtype).T, shares)
    return RealSums(counts, einsum("nk,nrk->rk", shares, errors), einsum("nk,nrk->rk", shares, errors**2))
