"""Standard errors by the delta method.

An estimate is a function of the weights of the rows. By how much it changes with the weight of row i is the *influence*
`ψ_i` of that row: what the row adds to the estimate, to first order, if it counts twice. The error of the estimate is
the sum of independent influences, so its covariance is `Σ_i ψ_i ψ_iᵀ`. For a moment estimator this is
`J Cov[φ] Jᵀ / n`, `J` being the derivative of the inverse moment map; for a maximum of the likelihood it is the
sandwich `H⁻¹ (Σ s sᵀ) H⁻¹`. Nothing in it assumes that the model is true.

The influences are rows of one Jacobian, of the estimate by the weights of the rows: `latensor.inference._linear`.
"""

from functools import partial
from statistics import NormalDist
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import check_bool, check_key, is_concrete
from latensor.inference._align import align_components
from latensor.inference._checks import (
    check_data,
    check_estimate,
    check_level,
    check_model,
    check_options,
    model_name,
    split_options,
)
from latensor.inference._data import has_exact_likelihood
from latensor.inference._intervals import Intervals
from latensor.inference._linear import Backward, Forward, RowDerivative
from latensor.inference._resample import as_resampled_rows, num_units, reweight
from latensor.models import Fit, Refined
from latensor.moments.internal import Rows

# An estimate that differs from the given one by this share of its largest parameter is another one.
_SAME = 0.05


class _Plan(NamedTuple):
    """What is static."""

    model: ModuleType
    verb: str
    options: tuple[tuple[str, Any], ...]
    quantity: str
    """What of a `RowDerivative` is asked for."""


_QUANTITIES = {
    "influence": "influence",
    "covariance": "covariance",
    "standard_errors": "variances",
    "confidence_intervals": "variances",
}


def influence(
    model: ModuleType,
    fit: Fit | Refined,
    x: Rows | ArrayLike,
    *,
    key: Array | None = None,
    block_length: int | None = None,
    options: dict[str, Any] | None = None,
    allow_unconverged: bool = False,
    **data: Any,
) -> Any:
    """Return by how much every row moves the estimate: parameters with a leading axis of rows.

    Args:
      model: the module of the model, such as `latensor.models.gaussian_mixture`.
      fit: the estimate: what `model.fit` or `model.refine` returned.
      x: the data of the estimate.
      key: for the starts of `model.fit`, which is run once more: best that of the estimate, whose random choices (how
        `latent_class` groups columns) are then held fixed.
      block_length: for sequences, as for `bootstrap`: fewer than 30 are cut into blocks of time, which are the rows.
      options: keywords of `model.fit`, or of `model.refine`: those that the estimate was made with.
      allow_unconverged: go on although the status of `fit` is not `CONVERGED`.
      **data: `mask`, `row_weights`, `lengths` and so on: the keywords about the data that `model.fit` takes.

    Returns:
      Parameters of the type of `fit.params`, each with a leading axis of rows. They sum to zero, up to rounding.

    Cost: for `fit` of a complete table by `gaussian_mixture` or `gamma_poisson` (dense second moments, that is up to
    256 dimensions, and no weights of dimensions) one product of `(n, d k + k³/6)` matrices. Otherwise about that of
    `fit` per parameter, in batches; for a `Refined`, that of some ten steps of EM per parameter.

    """
    options_given = {"block_length": block_length, "options": options, "allow_unconverged": allow_unconverged}
    rows = _differentiate("influence", model, fit, x, key, options_given | data)
    _, unravel = ravel_pytree(fit.params)
    return jax.vmap(unravel)(rows)


def _differentiate(function: str, model: Any, fit: Any, x: Any, key: Any, keywords: dict[str, Any]) -> Array:
    """Return what `function`, which the user has called, makes of the influences of the rows: flat arrays."""
    block_length, options = keywords.pop("block_length", None), keywords.pop("options", None)
    allow_unconverged = keywords.pop("allow_unconverged", False)
    model = check_model(model)
    fit = check_estimate(model, fit, check_bool("allow_unconverged", allow_unconverged))
    verb = "refine" if isinstance(fit, Refined) else "fit"
    if verb == "refine" and not has_exact_likelihood(model):
        # The posteriors of the rows are found by loops of their own within a step, which the derivative does not see.
        raise ValueError(
            f"model: expected one whose refine climbs the likelihood itself; {model_name(model)} climbs a bound of it, "
            "by variational inference: use bootstrap"
        )
    static, traced = split_options(check_options(model, verb, options))
    rows = as_resampled_rows(check_data(model, x, keywords, function), block_length)
    key = jax.random.key(0) if key is None else check_key(key)
    try:
        again, result = _derivative(key, fit.params, rows, traced, _Plan(model, verb, static, _QUANTITIES[function]))
    except ValueError as error:
        if "Reverse-mode differentiation" not in str(error):
            raise
        raise ValueError(
            f"model: expected one whose {verb} has a derivative, with these options; {model_name(model)} has none "
            "(nonnegative factors): use bootstrap"
        ) from None
    _check_same(model, fit.params, again)
    return result


def standard_errors(
    model: ModuleType, fit: Fit | Refined, x: Rows | ArrayLike, *, key: Array | None = None, **keywords: Any
) -> Any:
    """Return the standard error of every parameter, by the delta method, shaped like the parameters.

        errors = standard_errors(gaussian_mixture, fit, x, mask=mask).means

    Arguments as for `influence`. Rows must be independent; the model need not be true. Where entries are at the end of
    their range, such as probabilities of zero, their standard error is zero: these estimates are not normal.
    """
    return _standard_errors("standard_errors", model, fit, x, key, keywords)


def _standard_errors(function: str, model: Any, fit: Any, x: Any, key: Any, keywords: dict[str, Any]) -> Any:
    variances = _differentiate(function, model, fit, x, key, keywords)
    return ravel_pytree(fit.params)[1](jnp.sqrt(variances))


def covariance(
    model: ModuleType, fit: Fit | Refined, x: Rows | ArrayLike, *, key: Array | None = None, **keywords: Any
) -> Float[Array, "p p"]:
    """Return the covariance of all parameters, in the order of `jax.flatten_util.ravel_pytree(fit.params)`.

    Arguments as for `influence`.
    """
    return _differentiate("covariance", model, fit, x, key, keywords)


def confidence_intervals(
    model: ModuleType,
    fit: Fit | Refined,
    x: Rows | ArrayLike,
    level: float = 0.95,
    *,
    key: Array | None = None,
    **keywords: Any,
) -> Intervals:
    """Return intervals that contain the true parameters with the given probability, if the estimate is normal.

    The estimate plus and minus as many standard errors as a normal distribution needs; other arguments as for
    `influence`. They may leave the range of a parameter.
    """
    width = NormalDist().inv_cdf((1 + check_level(level)) / 2)
    errors = _standard_errors("confidence_intervals", model, fit, x, key, keywords)
    return Intervals(
        jax.tree.map(lambda value, error: value - width * error, fit.params, errors),
        jax.tree.map(lambda value, error: value + width * error, fit.params, errors),
    )


@partial(jax.jit, static_argnames="plan")
def _derivative(key: Array, params: Any, rows: Any, traced: dict[str, Any], plan: _Plan) -> tuple[Any, Array]:
    """Return the estimate once more, and what is asked for of its derivative by the weight of every row."""
    options = dict(plan.options) | traced
    num_components = plan.model.component_columns(params).shape[1]

    def align(found: Any) -> Any:
        aligned = align_components(plan.model, params, jax.tree.map(lambda leaf: leaf[None], found))
        return jax.tree.map(lambda leaf: leaf[0], aligned)

    def estimate(multipliers: Float[Array, " n"]) -> Any:
        weighted = reweight(rows, multipliers)
        if plan.verb == "refine":
            # No further step: the derivative is that of where EM has come to rest.
            return plan.model.refine(params, weighted, **options | {"max_iters": 0}).params
        return align(plan.model.fit(key, weighted, num_components, **options).params)

    reduced = None
    if plan.verb == "fit" and hasattr(plan.model, "reduce_fit"):
        reduced = plan.model.reduce_fit(key, rows, num_components, **options)
    derivative: RowDerivative
    if reduced is not None:
        derivative = Forward(reduced, align)
    else:
        size = sum(leaf.size for leaf in jax.tree.leaves(rows))
        derivative = Backward(estimate, jnp.ones(num_units(rows), rows.dtype), size)
    return derivative.estimate, getattr(derivative, plan.quantity)()


def _check_same(model: ModuleType, params: Any, again: Any) -> None:
    """Raise if the estimate that was differentiated is another one than the given."""
    if not is_concrete(params, again):
        return
    given, found = (np.asarray(model.component_columns(each)) for each in (params, again))
    away = np.max(np.abs(found - given)) / np.max(np.abs(given))
    if not away <= _SAME:
        raise ValueError(
            f"fit: expected the estimate that these data and options give; a new one differs by {away:.2g} of its "
            "largest parameter. Pass the data and the options that it was made with"
        )
