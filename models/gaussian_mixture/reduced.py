"""The estimate as a function of few moments, for its derivatives: see `latensor.models.reduced`."""

import inspect
from typing import Any

from jaxtyping import Array

from latensor.base import check_key
from latensor.models.components import SecondMoments, contract_table, second_moments
from latensor.models.gaussian_mixture.params import GaussianMixture
from latensor.models.gaussian_mixture.spectral import estimate_space, fit, read_off
from latensor.models.partial import check_fit
from latensor.models.reduced import Space, reduce_table
from latensor.models.results import ReducedFit
from latensor.moments import Table
from latensor.moments.internal import ContractedCumulants


def reduce_fit(key: Array, table: Table, num_components: int, **options: Any) -> ReducedFit | None:
    """Return `fit(key, table, num_components, **options)` as a function of few moments.

    `None` where `fit` needs others: for tables with a mask, weights of dimensions, second moments that are not dense,
    one component, and components that are not spherical.
    """
    given = inspect.signature(fit).bind(key, table, num_components, **options)
    given.apply_defaults()
    covariance, shared = (given.arguments.pop(name) for name in ("covariance", "shared"))
    names = ("method", "num_restarts", "missing", "weights", "third", "second", "complete_rate")
    plan, trust = check_fit(table, num_components, **{name: given.arguments[name] for name in names})
    if table.mask is not None or trust.weights is not None or not plan.dense:
        return None
    if covariance != "spherical" or num_components == 1:
        return None
    key = check_key(key)

    def prepare(moments: SecondMoments) -> Space:
        prepared = estimate_space(key, None, moments, trust, plan)
        return Space(prepared, prepared.space.directions, None if shared else prepared.noise)

    def parameters(moments: SecondMoments, prepared: Any, seen: ContractedCumulants) -> GaussianMixture:
        return read_off(key, moments, prepared, seen, plan).params

    data, moments = second_moments(table, dense=True)
    space = prepare(moments)
    seen = contract_table(data, moments.covariance, space.directions, plan.third, space.noise)
    return reduce_table(data, moments, space.prepared.noise.signal, space, seen, prepare, parameters)
