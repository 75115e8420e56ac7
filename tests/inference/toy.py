"""A model whose bootstrap is known exactly: two numbers per row, whose means are its two components."""

from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from latensor.decompose import Status
from latensor.models import Fit, Refined
from latensor.moments import Table
from latensor.moments.internal import as_table, average_weights


class Means(NamedTuple):
    means: jax.Array


class Evidence(NamedTuple):
    status_before: jax.Array


class Diagnostics(NamedTuple):
    evidence: Evidence


def as_data(x, *, mask=None, row_weights=None) -> Table:
    return as_table(x, mask=mask, row_weights=row_weights)


def component_columns(params):
    if not isinstance(params, Means):
        raise ValueError(f"params: expected Means; got {type(params).__name__}")
    return params.means[None, :]


def permute(params, order):
    return Means(params.means[order])


def fit(key, x, num_components, *, fail_below=0.0, shuffled=True, offset=0.0) -> Fit:
    """Return the weighted means, in random order; it fails where the first row has less than some weight."""
    table = as_data(x)
    share = average_weights(table.row_weights, table.num_rows, table.dtype)
    means = jnp.sum(share[:, None] * table.x, axis=0) + offset
    means = jax.random.permutation(key, means) if shuffled else means
    weight = jnp.ones(()) if table.row_weights is None else table.row_weights[0]
    status = jnp.where(weight < fail_below, jnp.int32(Status.DEGENERATE), jnp.int32(Status.CONVERGED))
    return Fit(Means(means), status, jnp.int32(1), jnp.zeros(()), Diagnostics(Evidence(status)))


def refine(params, x, *, step=0.5) -> Refined:
    """Return parameters on the way to the weighted means, in the order of those given."""
    table = as_data(x)
    share = average_weights(table.row_weights, table.num_rows, table.dtype)
    means = params.means + step * (jnp.sum(share[:, None] * table.x, axis=0) - params.means)
    return Refined(Means(means), jnp.int32(0), jnp.int32(1), jnp.zeros(()), jnp.zeros(()))


toy = ModuleType("toy")
for verb in (as_data, component_columns, permute, fit, refine):
    setattr(toy, verb.__name__, verb)
