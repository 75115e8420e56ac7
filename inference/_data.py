"""Which models there are, and the checked data of each."""

import inspect
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from latensor.models import (
    crowd,
    gamma_poisson,
    gaussian_mixture,
    graphical,
    hidden_markov,
    latent_class,
    mixed_membership,
    naive_bayes,
)
from latensor.models.columns import check_table
from latensor.models.crowd.data import take_labels
from latensor.moments import Sequences, Table
from latensor.moments.data import as_documents, as_sequences, as_table
from latensor.moments.internal import Rows, flatten_sequences


def _as_columns(x: Any, *, mask: Any = None, variables: Any = None, row_weights: Any = None) -> Table:
    return check_table(x, mask, variables, row_weights)


_READERS: dict[ModuleType, Any] = {
    crowd: take_labels,
    gamma_poisson: as_table,
    gaussian_mixture: as_table,
    graphical: as_table,
    hidden_markov: as_sequences,
    latent_class: _as_columns,
    mixed_membership: _as_columns,
    naive_bayes: as_documents,
}
_KEYWORDS = ("mask", "lengths", "num_words", "num_symbols", "num_items", "num_workers", "variables", "row_weights")


def check_model(model: Any) -> ModuleType:
    """Return a package of `latensor.models`."""
    if not isinstance(model, ModuleType) or model not in _READERS:
        given = model.__name__ if isinstance(model, ModuleType) else repr(model)
        raise ValueError(
            f"model: expected a package of latensor.models, such as latensor.models.gaussian_mixture; got {given}"
        )
    return model


def short_name(model: ModuleType) -> str:
    """Return the name of a model without that of its package."""
    return model.__name__.rpartition(".")[2]


def as_data(model: ModuleType, x: Any, **given: Any) -> Any:
    """Return the data type that a model takes, from an array and keywords of the data such as `mask`."""
    taken = [name for name in _KEYWORDS if name in inspect.signature(model.fit).parameters]
    unknown = next((name for name in given if name not in taken), None)
    if unknown is not None:
        raise ValueError(
            f"{unknown}: expected a keyword of the data that {short_name(model)} takes: {', '.join(taken)}"
        )
    return _READERS[model](x, **given)


def has_exact_likelihood(model: ModuleType) -> bool:
    """Return whether `log_likelihood` needs no key, and `refine` climbs the likelihood and not a bound of it."""
    return not hasattr(model, "estimate_log_likelihood")


def with_weights(data: Any, weights: np.ndarray) -> Any:
    """Return the same rows with these weights, in the floating type of the moments."""
    return data._replace(row_weights=jnp.asarray(weights, data.dtype))


def row_weights_of(data: Rows, number: int) -> np.ndarray:
    """Return the weights of rows, equal ones where there are none, in double precision."""
    weights = getattr(data, "row_weights", None)
    return np.ones(number) if weights is None else np.asarray(weights, np.float64)


def row_sizes(data: Rows, number: int) -> np.ndarray:
    """Return how many observations each row holds: one, or those of a sequence."""
    if not isinstance(data, Sequences):
        return np.ones(number)
    observations = flatten_sequences(data)
    return np.bincount(np.asarray(observations.owner), np.asarray(observations.observed), number)[:number]
