"""The rows of data that functions over models count: their weights and sizes."""

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from latensor.moments import Sequences
from latensor.moments.internal import Rows, flatten_sequences


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
