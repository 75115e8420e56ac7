"""Tables with holes: how far each dimension is to be trusted, and checks of tables and masks at the boundary."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from latensor.models._checks import (
    as_numbers,
    check_integer,
    check_key,
    check_mask,
    check_matrix,
    check_number,
    check_option,
    check_row_weights,
    first_entry,
    is_concrete,
)
from latensor.models._spectral import DENSE_UP_TO, METHODS, SECONDS, Source, moment_source, table_source
from latensor.moments import Cumulants, as_float, centre, joint_observation_rates, observation_rates

MISSING = ("weighted", "full", "partial")
THIRDS = ("implicit", "available")

# Pairs are looked at for this many dimensions at most.
_PAIRS_UP_TO = 256
# Dependence is worth a warning where it is both certain and large: so many standard errors, this share of the rate.
_SURE, _LARGE, _FEWEST_EXPECTED = 6.0, 0.2, 5.0
# A pair matters where the product of its weights is at least this share of the largest.
_MATTERS = 0.01


class DependentMissingnessWarning(UserWarning):
    """Dimensions are missing together, which the implicit third moment assumes that they are not."""


class Dimensions(NamedTuple):
    """For every dimension, how often it was observed and how it was used."""

    rates: Float[Array, " d"]
    """Share of the rows that observe it."""
    weights: Float[Array, " d"]
    """Its weight in the decomposition; one after `refine`, which uses all that was observed."""
    complete: Bool[Array, " d"]
    """Whether its rate reaches `complete_rate`."""


def describe_dimensions(
    rates: Float[Array, " d"], missing: str, weights: Float[Array, " d"] | None, complete_rate: Float[Array, ""]
) -> Dimensions:
    """Turn the choice of a method into one weight a dimension.

    `"weighted"` is `w = p`, `"full"` is `w = 1`, `"partial"` is one for the complete dimensions and zero for the others
    (Gottesman et al., §3–4).
    """
    complete = rates >= complete_rate
    if weights is None:
        chosen = {"weighted": rates, "full": jnp.ones_like(rates), "partial": complete.astype(rates.dtype)}
        weights = chosen[missing]
    return Dimensions(rates, weights.astype(rates.dtype), complete)


def variance_dimensions(dimensions: Dimensions, num_components: int) -> Bool[Array, " d"]:
    """Return the dimensions that `σ²` is estimated from: the complete ones, if there are more than components.

    Otherwise the `2k` that were observed most.
    """
    d = dimensions.rates.shape[0]
    threshold = jnp.sort(dimensions.rates)[::-1][min(d, 2 * num_components) - 1]
    enough = jnp.sum(dimensions.complete, dtype=jnp.int32) > num_components
    return jnp.where(enough, dimensions.complete, dimensions.rates >= threshold)


@jax.jit
def _row_summary(x: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    """Return, for each row, zero or NaN, its minimum, and how far it is from whole numbers; observed entries only."""
    x = as_float(x)
    x = x if mask is None else jnp.where(mask, x, 0)
    return jnp.sum(x * 0, axis=1), jnp.min(x, axis=1), jnp.sum(jnp.abs(x - jnp.round(x)), axis=1)


def _check_values(x: Array, mask: Array | None, counts: bool) -> None:
    finite, smallest, fraction = (np.asarray(part) for part in _row_summary(x, mask))

    def first(rows: np.ndarray, bad: Any) -> str:
        row = int(np.flatnonzero(rows)[0])
        seen = np.ones(x.shape[1], bool) if mask is None else np.asarray(mask[row])
        return first_entry(x, row, lambda values: bad(values) & seen)

    kind = "counts" if counts else "numbers"
    if not np.all(np.isfinite(finite)):
        hint = "" if mask is not None else " (pass mask=isfinite(x) if it is missing)"
        entry = first(~np.isfinite(finite), lambda values: ~np.isfinite(values))
        raise ValueError(f"x: expected finite {kind} where observed; got {entry}{hint}")
    if counts and np.any(smallest < 0):
        raise ValueError(f"x: expected counts ≥ 0; got {first(smallest < 0, lambda v: v < 0)}")
    if counts and np.any(fraction > 0):
        raise ValueError(f"x: expected whole counts; got {first(fraction > 0, lambda v: v != np.round(v))}")


def check_table(x: Any, mask: Any, *, counts: bool = False) -> tuple[Num[Array, "n d"], Bool[Array, "n d"] | None]:
    """Return a table and its mask; observed values must be finite, and counts whole and not negative."""
    x = check_matrix("x", x, f"{'counts' if counts else 'numbers'} (samples, dimensions)")
    mask = check_mask(mask, x.shape)
    if is_concrete(x, mask):
        with jax.ensure_compile_time_eval():
            _check_values(x, mask, counts)
    return x, mask


def check_rates(mask: Array | None, row_weights: Any, shape: tuple[int, ...]) -> tuple[Array | None, np.ndarray | None]:
    """Return the row weights, and the rates where they can be looked at; every dimension must have been observed."""
    row_weights = check_row_weights(row_weights, shape[0])
    if mask is None:
        return row_weights, np.ones(shape[1])
    if not is_concrete(mask, row_weights):
        return row_weights, None
    with jax.ensure_compile_time_eval():
        rates = np.asarray(observation_rates(mask, row_weights))
    never = np.flatnonzero(rates == 0)
    if never.size:
        others = "" if never.size == 1 else f" ({never.size} such dimensions in all)"
        raise ValueError(
            f"mask: expected every dimension to be observed; dimension {never[0]} never is{others}; leave it out"
        )
    return row_weights, rates


def check_dimension_weights(weights: Any, num_dimensions: int, num_components: int) -> Array | None:
    """Return weights `(d,)`, finite, not negative, and at least as many of them positive as components."""
    if weights is None:
        return None
    array = as_float(as_numbers("weights", weights, "one weight a dimension"))
    if array.shape != (num_dimensions,):
        raise ValueError(
            f"weights: expected one weight a dimension, shape ({num_dimensions},); got shape {array.shape}"
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


def check_pairs(mask: Array | None, row_weights: Array | None, weights: np.ndarray, third: str) -> None:
    """Raise where two dimensions that matter are never observed together; warn of dependent missingness.

    A pair matters where the product of its weights is not small. Two rarely observed dimensions may miss each other by
    chance: their covariance is set to zero, hardly counts, and is reported. Of tables with many dimensions some are
    looked at: the answer of a warning hardly depends on it, and a pair that is never observed is an error only where
    all pairs are looked at.
    """
    if mask is None or not is_concrete(mask, row_weights):
        return
    chosen = np.flatnonzero(weights > 0)
    num_used = chosen.size
    if chosen.size > max(_PAIRS_UP_TO, DENSE_UP_TO):
        chosen = chosen[np.linspace(0, chosen.size - 1, _PAIRS_UP_TO).astype(int)]
    with jax.ensure_compile_time_eval():
        joint = np.asarray(joint_observation_rates(jnp.asarray(mask)[:, chosen], row_weights), float)
    # Kish: unequal weights count as fewer rows.
    n = mask.shape[0] if row_weights is None else float(jnp.sum(row_weights) ** 2 / jnp.sum(row_weights**2))
    rates = np.clip(np.diag(joint), 0, 1)
    matters = np.outer(weights[chosen], weights[chosen]) >= _MATTERS * np.max(weights) ** 2
    if chosen.size == num_used and np.any(matters & (joint == 0)):
        i, j = (int(chosen[index]) for index in np.argwhere(matters & (joint == 0))[0])
        raise ValueError(
            f"mask: expected every pair of dimensions to be observed together in some row; {i} and {j} never are; "
            "leave one of them out, or give it weight 0 in weights="
        )
    if third != "implicit":
        return
    expected = np.outer(rates, rates)
    spread = np.sqrt(expected * np.outer(1 - rates, 1 - rates) / n)
    off = ~np.eye(len(rates), dtype=bool) & (spread > 0) & (n * expected >= _FEWEST_EXPECTED)
    score = np.where(off, np.abs(joint - expected) / np.where(spread > 0, spread, 1), 0)
    large = (score > _SURE) & (np.abs(joint - expected) > _LARGE * expected)
    if np.any(large):
        a, b = np.unravel_index(np.argmax(np.where(large, score, 0)), score.shape)
        warnings.warn(
            f"dimensions {chosen[a]} and {chosen[b]} are observed together in {joint[a, b]:.1%} of the rows; "
            f"{expected[a, b]:.1%} are to be expected if they were missing independently, which the implicit third "
            'moment assumes. Use third="available".',
            DependentMissingnessWarning,
            stacklevel=5,  # the line that calls the model's `fit`
        )


class FitOptions(NamedTuple):
    """Arguments of `fit` that were checked."""

    key: Array
    num_components: int
    row_weights: Array | None
    weights: Array | None
    dense: bool
    num_restarts: int


def check_fit(
    key: Any,
    num_components: Any,
    shape: tuple[int, ...],
    *,
    mask: Array | None = None,
    missing: Any = "weighted",
    weights: Any = None,
    third: Any = "implicit",
    complete_rate: Any = 1.0,
    row_weights: Any = None,
    method: Any = "power",
    second: Any = "auto",
    num_restarts: Any = 20,
) -> FitOptions:
    """Check the arguments of `fit` for a table of this shape, and the pattern of what is missing."""
    n, d = shape
    key = check_key(key)
    num_components = check_integer("num_components", num_components, 1, d, " (the number of dimensions)")
    if n < num_components:
        raise ValueError(f"x: expected at least num_components = {num_components} rows; got {n}")
    for name, value, options in (
        ("missing", missing, MISSING),
        ("third", third, THIRDS),
        ("method", method, METHODS),
        ("second", second, SECONDS),
    ):
        check_option(name, value, options)
    num_restarts = check_integer("num_restarts", num_restarts, 1)
    complete_rate = check_number("complete_rate", complete_rate, 0.0, 1.0)
    weights = check_dimension_weights(weights, d, num_components)
    row_weights, rates = check_rates(mask, row_weights, shape)
    if rates is not None and is_concrete(weights, complete_rate):
        complete = rates >= float(complete_rate)
        if weights is None and missing == "partial" and complete.sum() < num_components:
            raise ValueError(
                f'missing: expected, for "partial", at least num_components = {num_components} dimensions with a rate '
                f"of at least complete_rate = {float(complete_rate):g}; got {complete.sum()}"
            )
        with jax.ensure_compile_time_eval():
            used = describe_dimensions(jnp.asarray(rates), missing, weights, jnp.asarray(complete_rate)).weights
        check_pairs(mask, row_weights, np.asarray(used, float), third)
    dense = second == "dense" or (second == "auto" and (d <= DENSE_UP_TO or third == "available"))
    return FitOptions(key, num_components, row_weights, weights, dense, num_restarts)


Estimate = Callable[[Array, Source, Dimensions, int, str, int], Any]
"""How a model is read off: `(key, source, dimensions, num_components, method, num_restarts) → Fit`."""


@partial(jax.jit, static_argnames=("estimate", "num_components", "missing", "third", "method", "dense", "num_restarts"))
def _from_table(
    estimate: Estimate,
    key: Array,
    x: Num[Array, "n d"],
    mask: Bool[Array, "n d"] | None,
    row_weights: Float[Array, " n"] | None,
    weights: Float[Array, " d"] | None,
    complete_rate: Float[Array, ""],
    num_components: int,
    missing: str,
    third: str,
    method: str,
    dense: bool,
    num_restarts: int,
) -> Any:
    data = centre(x, mask, row_weights)
    dimensions = describe_dimensions(data.rates, missing, weights, complete_rate)
    return estimate(key, table_source(data, dense, third), dimensions, num_components, method, num_restarts)


def fit_table(
    estimate: Estimate,
    key: Any,
    x: Any,
    num_components: Any,
    mask: Any,
    *,
    counts: bool,
    missing: Any,
    weights: Any,
    third: Any,
    complete_rate: Any,
    row_weights: Any,
    method: Any,
    second: Any,
    num_restarts: Any,
) -> Any:
    """Check the arguments of a model's `fit`, then estimate from the table."""
    x, mask = check_table(x, mask, counts=counts)
    options = check_fit(
        key,
        num_components,
        x.shape,
        mask=mask,
        missing=missing,
        weights=weights,
        third=third,
        complete_rate=complete_rate,
        row_weights=row_weights,
        method=method,
        second=second,
        num_restarts=num_restarts,
    )
    return _from_table(
        estimate,
        options.key,
        x,
        mask,
        options.row_weights,
        options.weights,
        jnp.asarray(complete_rate, as_float(x).dtype),
        options.num_components,
        missing,
        third,
        method,
        options.dense,
        options.num_restarts,
    )


@partial(jax.jit, static_argnames=("estimate", "num_components", "method", "num_restarts"))
def _from_moments(
    estimate: Estimate,
    key: Array,
    moments: Cumulants,
    weights: Float[Array, " d"],
    num_components: int,
    method: str,
    num_restarts: int,
) -> Any:
    ones = jnp.ones_like(weights)
    dimensions = Dimensions(ones, weights, ones > 0)
    return estimate(key, moment_source(moments), dimensions, num_components, method, num_restarts)


def fit_cumulants(
    estimate: Estimate, key: Any, moments: Any, num_components: Any, weights: Any, method: Any, num_restarts: Any
) -> Any:
    """Check the arguments of a model's `fit_moments`, then estimate from the cumulants."""
    if not isinstance(moments, Cumulants):
        raise ValueError(f"moments: expected Cumulants, as population_moments gives them; got {type(moments).__name__}")
    shape = moments.second.shape
    options = check_fit(key, num_components, shape, weights=weights, method=method, num_restarts=num_restarts)
    dtype = moments.mean.dtype
    weights = jnp.ones(shape[0], dtype) if options.weights is None else options.weights.astype(dtype)
    return _from_moments(estimate, options.key, moments, weights, options.num_components, method, options.num_restarts)
