"""Information criteria: what a likelihood is worth that some parameters were chosen to make high.

With `L` the likelihood of all rows, `p` free parameters and `n` rows,

    AIC = −2 log L + 2p            estimates the log-likelihood of other rows (Akaike 1974)
    BIC = −2 log L + p log n       estimates the probability of the model (Schwarz 1978)

and the smaller the better. Both suppose that `params` are at the maximum of the likelihood, as after `refine`, and both
are approximations for regular models. A mixture with more components than there are is none: its likelihood gains less
than a regular model's would, or more where a component can close in on a few rows.
"""

import inspect
import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from latensor.inference._checks import check_data, check_model, model_name
from latensor.inference._data import has_exact_likelihood, row_sizes, row_weights_of


class Information(NamedTuple):
    """What criteria are made of."""

    log_likelihood: float
    """Of all rows together. Weighted rows count as the effective number of equal ones, `(Σw)² / Σw²`."""
    num_parameters: int
    num_observations: float
    """Rows, or observations of sequences; effective ones where rows are weighted."""

    @property
    def aic(self) -> float:
        """`−2 log L + 2p`."""
        return -2 * self.log_likelihood + 2 * self.num_parameters

    @property
    def bic(self) -> float:
        """`−2 log L + p log n`."""
        return -2 * self.log_likelihood + self.num_parameters * math.log(max(self.num_observations, 1.0))


def aic(model: ModuleType, params: Any, x: Any, *, key: Array | None = None, **data: Any) -> float:
    """Return Akaike's criterion, `−2 log L + 2p`; the smaller the better.

    Args:
      model: a package of `latensor.models`.
      params: its parameters, at the maximum of the likelihood: `refine(...).params`.
      x: data as for `fit`.
      key: a random key, where the likelihood has to be estimated (`gamma_poisson`, `mixed_membership`); ignored
        elsewhere.
      **data: keywords of the data, as for `fit`: `mask`, `row_weights`, `lengths`, …

    Rows that are weighted count as the effective number of equal ones, `(Σw)² / Σw²`. Cost: one `log_likelihood`.

    """
    return weigh_information(model, params, x, key, data).aic


def bic(model: ModuleType, params: Any, x: Any, *, key: Array | None = None, **data: Any) -> float:
    """Return Schwarz's criterion, `−2 log L + p log n`; the smaller the better.

    `n` is the number of rows, or of the observations of all sequences. Arguments as for `aic`.
    """
    return weigh_information(model, params, x, key, data).bic


def weigh_information(model: Any, params: Any, x: Any, key: Array | None, given: dict[str, Any]) -> Information:
    """Return what criteria are made of; sums are in double precision, whatever the type of the rows."""
    model = check_model(model, ("log_likelihood", "num_parameters"))
    if key is None and not has_exact_likelihood(model):
        raise ValueError(f"key: expected a random key, since {model_name(model)} estimates its likelihood; got None")
    data = check_data(model, x, given, "aic")
    taken = inspect.signature(model.log_likelihood).parameters
    passed = {name: value for name, value in given.items() if name in taken}
    values = np.asarray(model.log_likelihood(params, x, key=key, **passed), np.float64)
    return summarize(model, params, data, values)


def summarize(model: ModuleType, params: Any, data: Any, values: np.ndarray) -> Information:
    """Return what criteria are made of, for the log-likelihoods of all rows."""
    weights, sizes = row_weights_of(data, len(values)), row_sizes(data, len(values))
    # Rows of weight zero do not count, whatever they are.
    total = np.sum(np.where(weights > 0, weights * values, 0))
    scale = np.sum(weights) / np.sum(weights**2)
    observed = np.sum(weights * sizes) ** 2 / max(np.sum(weights**2 * sizes), np.finfo(float).tiny)
    described = (
        {"variables": data.variables} if "variables" in inspect.signature(model.num_parameters).parameters else {}
    )
    return Information(float(scale * total), model.num_parameters(params, **described), float(observed))
