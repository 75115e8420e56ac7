"""Tables with missing entries: how far each dimension is to be trusted, and checks of what is missing."""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from latensor.base import (
    as_float,
    as_numbers,
    check_integer,
    check_number,
    check_option,
    divide,
    is_concrete,
)
from latensor.decompose import Eigenpairs, Status, Whitening
from latensor.decompose.internal import finite_status, status_if, worst
from latensor.models.checks import check_moments
from latensor.models.components import DENSE_UP_TO, METHODS, SECONDS, pairs_that_matter
from latensor.models.evidence import coincide
from latensor.moments import Cumulants, Table, joint_observation_rates, observation_rates
from latensor.moments.internal import THIRD_METHODS

MISSING = ("weighted", "full", "partial")

# Pairs are looked at for this many dimensions at most.
_PAIRS_UP_TO = 256
# Dependence is worth a warning where it is both certain (in standard errors) and large (as a share of the rate).
_SURE, _LARGE, _FEWEST_EXPECTED = 6.0, 0.2, 5.0


class DependentMissingnessWarning(UserWarning):
    """Dimensions are missing together, while implicit moments assume that they are missing independently."""


class Dimensions(NamedTuple):
    """For every dimension, how often it was observed and how it was used."""

    rates: Float[Array, " d"]
    """Share of the rows that observe it."""
    weights: Float[Array, " d"]
    """Its weight in the decomposition."""
    complete: Bool[Array, " d"]
    """Whether its rate reaches `complete_rate`."""


def table_status(
    params: Any,
    boundary: Bool[Array, ""],
    dimensions: Dimensions,
    whitening: Whitening | None,
    pairs: Eigenpairs,
    columns: Float[Array, "d k"] | None = None,
) -> Int[Array, ""]:
    """Return the status of a fit to a table, as far as the estimate itself shows it.

    Args:
      params: the estimate.
      boundary: whether a parameter came out beyond its range and was moved.
      dimensions: how often each was observed.
      whitening: how it went; `None` where `latensor.models.evidence.evidence_status` will say it, by the data.
      pairs: the decomposition.
      columns: the components, as returned; no two should be the same.

    """
    same = jnp.asarray(False) if columns is None else coincide(columns)
    return worst(
        Status.CONVERGED if whitening is None else whitening.status,
        pairs.status,
        status_if(boundary, Status.BOUNDARY),
        status_if(same, Status.DEGENERATE),
        status_if(~jnp.all(dimensions.rates > 0), Status.UNOBSERVED),
        finite_status(params),
    )


class Options(NamedTuple):
    """The options of `fit` that decide what is computed; static."""

    num_components: int
    method: str = "power"
    num_restarts: int = 20
    missing: str = "weighted"
    third: str = "implicit"
    dense: bool = True


class Trust(NamedTuple):
    """The options of `fit` that decide how far dimensions are trusted; traced."""

    weights: Float[Array, " d"] | None
    complete_rate: Float[Array, ""] | np.ndarray


def describe_dimensions(rates: Float[Array, " d"], missing: str, trust: Trust) -> Dimensions:
    """Turn the choice of a method into one weight per dimension.

    `"weighted"` is `w = p`, `"full"` is `w = 1`, `"partial"` is one for the complete dimensions and zero for the others
    (Gottesman et al., §3–4).
    """
    complete = rates >= trust.complete_rate
    if trust.weights is not None:
        return Dimensions(rates, trust.weights.astype(rates.dtype), complete)
    weights = {"weighted": rates, "full": jnp.ones_like(rates), "partial": complete.astype(rates.dtype)}[missing]
    return Dimensions(rates, weights, complete)


def check_fit(
    table: Table,
    num_components: Any,
    *,
    method: Any,
    num_restarts: Any,
    missing: Any,
    weights: Any,
    third: Any,
    second: Any,
    complete_rate: Any,
) -> tuple[Options, Trust]:
    """Check the arguments of `fit`, and the pattern of what is missing."""
    options, trust = check_options(num_components, table.num_dimensions, method, num_restarts, weights)
    if table.num_rows < options.num_components:
        raise ValueError(f"x: expected at least num_components = {num_components} rows; got {table.num_rows}")
    check_option("missing", missing, MISSING)
    check_option("third", third, THIRD_METHODS)
    check_option("second", second, SECONDS)
    complete_rate = check_number("complete_rate", complete_rate, 0.0, 1.0)
    if second == "implicit" and third == "available":
        raise ValueError('second: expected "auto" or "dense" with third="available"; got "implicit"')
    dense = second == "dense" or (second == "auto" and (table.num_dimensions <= DENSE_UP_TO or third == "available"))
    options = options._replace(missing=missing, third=third, dense=dense)
    dtype = as_float(table.x).dtype
    concrete = is_concrete(complete_rate)
    trust = trust._replace(complete_rate=np.asarray(complete_rate, dtype) if concrete else complete_rate.astype(dtype))
    _check_missingness(table, options, trust)
    return options, trust


def check_options(
    num_components: Any, num_dimensions: int, method: Any, num_restarts: Any, weights: Any
) -> tuple[Options, Trust]:
    """Check the arguments that `fit` and `fit_moments` share."""
    k = check_integer("num_components", num_components, 1, num_dimensions, " (the number of dimensions)")
    check_option("method", method, METHODS)
    options = Options(k, method, check_integer("num_restarts", num_restarts, 1))
    return options, Trust(_check_dimension_weights(weights, num_dimensions, k), np.ones((), np.float32))


def check_cumulants(moments: Any) -> Cumulants:
    """Return `moments` if they are cumulants, finite and of shapes that agree."""
    mean, second, third = check_moments(moments, Cumulants, ("mean", "second", "third"))
    return Cumulants(mean, second, third, as_numbers("moments.num_unobserved", moments.num_unobserved, "a number"))


def check_observed(table: Table) -> np.ndarray | None:
    """Return the observation rates where they can be looked at; every dimension must have been observed."""
    if not is_concrete(table.x, table.mask, table.row_weights):
        return None
    if table.mask is None:
        return np.ones(table.num_dimensions)
    with jax.ensure_compile_time_eval():
        rates = np.asarray(observation_rates(table))
    never = np.flatnonzero(rates == 0)
    if never.size:
        others = f" ({never.size} such dimensions in all)" if never.size > 1 else ""
        raise ValueError(
            f"mask: expected every dimension to be observed; dimension {never[0]} never is{others}; leave it out"
        )
    return rates


def _check_dimension_weights(weights: Any, num_dimensions: int, num_components: int) -> Array | None:
    """Return weights `(d,)`, finite, not negative, and at least as many of them positive as components."""
    if weights is None:
        return None
    array = as_float(as_numbers("weights", weights, "one weight per dimension"))
    if array.shape != (num_dimensions,):
        raise ValueError(
            f"weights: expected one weight per dimension, shape ({num_dimensions},); got shape {array.shape}"
        )
    if is_concrete(array):
        values = np.asarray(array)
        if not np.all(np.isfinite(values)):
            raise ValueError(f"weights: expected finite numbers; got {values[~np.isfinite(values)][0]}")
        if values.min() < 0:
            raise ValueError(f"weights: expected numbers ≥ 0; got {values.min()} for dimension {values.argmin()}")
        if np.sum(values > 0) < num_components:
            raise ValueError(
                f"weights: expected at least num_components = {num_components} positive weights; "
                f"got {np.sum(values > 0)}"
            )
    return array


def _check_missingness(table: Table, options: Options, trust: Trust) -> None:
    """Raise where too little was observed for the method; warn where dimensions are missing together."""
    rates = check_observed(table)
    if rates is None or table.mask is None or not is_concrete(trust):
        return
    complete_rate = float(trust.complete_rate)
    complete = rates >= complete_rate
    if trust.weights is None and options.missing == "partial" and complete.sum() < options.num_components:
        raise ValueError(
            f'missing: expected, for "partial", at least num_components = {options.num_components} dimensions with a '
            f"rate of at least complete_rate = {complete_rate:g}; got {complete.sum()}"
        )
    with jax.ensure_compile_time_eval():
        used = describe_dimensions(jnp.asarray(rates), options.missing, trust).weights
    _check_pairs(table, np.asarray(used, float), independent=options.third == "implicit" or not options.dense)


def _check_pairs(table: Table, weights: np.ndarray, *, independent: bool) -> None:
    """Raise where two dimensions that matter are never observed together; warn where `independent` is assumed falsely.

    Of tables with many dimensions some are
    looked at: the answer whether to warn hardly depends on it, and a pair that is never observed is an error only where
    all pairs are looked at.
    """
    chosen = np.flatnonzero(weights > 0)
    num_used = chosen.size
    chosen = chosen[spread_columns(chosen.size)]
    with jax.ensure_compile_time_eval():
        some = (
            table
            if chosen.size == table.num_dimensions
            else Table(table.x[:, chosen], np.asarray(table.mask)[:, chosen], table.row_weights)
        )
        joint = np.asarray(joint_observation_rates(some), float)
    with jax.ensure_compile_time_eval():
        matters = np.asarray(pairs_that_matter(jnp.asarray(weights[chosen])))
    if chosen.size == num_used and np.any(matters & (joint == 0)):
        i, j = (int(chosen[index]) for index in np.argwhere(matters & (joint == 0))[0])
        raise ValueError(
            f"mask: expected every pair of dimensions to be observed together in some row; {i} and {j} never are; "
            "leave one of them out, or give it weight 0 in weights="
        )
    if not independent:
        return
    with jax.ensure_compile_time_eval():
        score = np.asarray(dependence(joint, table.row_weights, table.num_rows))
    if np.any(score > 0):
        warnings.warn(
            f"{describe_dependence(score, joint, chosen, 'dimensions')}, which implicit moments assume. Use "
            'third="available"; or refine the estimate, which is right also where missingness depends on other, '
            "observed dimensions.",
            DependentMissingnessWarning,
            stacklevel=5,  # the line that calls the model's `fit`
        )


def dependence(
    joint: Float[Array, "d d"] | np.ndarray, row_weights: Float[Array, " n"] | None, num_rows: int
) -> Float[Array, "d d"]:
    """Return by how many standard errors each pair is observed together more, or less, than if independently.

    `joint` are the shares of rows that observe both of two dimensions. Zero where the dependence is not both certain
    and large.
    """
    joint = jnp.asarray(joint)
    # Kish: unequal weights count as fewer rows.
    n = num_rows if row_weights is None else divide(jnp.sum(row_weights) ** 2, jnp.sum(row_weights**2))
    rates = jnp.clip(jnp.diagonal(joint), 0, 1)
    expected = rates[:, None] * rates[None, :]
    spread = jnp.sqrt(expected * (1 - rates)[:, None] * (1 - rates)[None, :] / n)
    excess = jnp.abs(joint - expected)
    score = jnp.where(jnp.eye(len(rates), dtype=bool), 0, divide(excess, spread))
    worth = (n * expected >= _FEWEST_EXPECTED) & (score > _SURE) & (excess > _LARGE * expected)
    return jnp.where(worth, score, 0)


def describe_dependence(score: np.ndarray, joint: np.ndarray, columns: np.ndarray, name: str) -> str:
    """Return a sentence about the pair that is most surely missing together."""
    a, b = np.unravel_index(np.argmax(score), score.shape)
    return (
        f"{name} {columns[a]} and {columns[b]} are observed together in {joint[a, b]:.1%} of the rows; "
        f"{joint[a, a] * joint[b, b]:.1%} are to be expected if they were missing independently"
    )


def spread_columns(num_columns: int) -> np.ndarray:
    """Return the columns whose pairs are looked at: all, or some of many."""
    number = min(num_columns, max(_PAIRS_UP_TO, DENSE_UP_TO))
    return np.linspace(0, num_columns - 1, number).astype(int)
