"""Likelihoods by importance sampling, for models whose hidden variables cannot be integrated out.

Draws come in turn from several proposals, which get wider and wider, and are weighed against the mixture of all of
them: a proposal that is too narrow in one place cannot spoil the estimate there.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from latensor.models.results import LogLikelihood
from latensor.moments import map_over_rows

Draw = Callable[[Array, Array], Float[Array, " n"]]
"""`(key, proposal number) ↦ log p(x, z) − log q(z)` for a draw `z` for each row, `q` the mixture of all proposals."""


def mixture_log_density(log_densities: Float[Array, "proposals n"]) -> Float[Array, " n"]:
    """Return the log-density of an even mixture."""
    return jax.nn.logsumexp(log_densities, axis=0) - math.log(log_densities.shape[0])


def average_ratios(log_ratios: Float[Array, "samples n"]) -> LogLikelihood:
    """Return the logarithm of the mean of each row's importance ratios, and its standard error."""
    num_samples = log_ratios.shape[0]
    value = jax.nn.logsumexp(log_ratios, axis=0) - math.log(num_samples)
    relative = jnp.exp(log_ratios - value[None, :])
    # The error of the logarithm is the relative error of the mean.
    error = jnp.sqrt(jnp.sum((relative - 1) ** 2, axis=0) / (num_samples * max(num_samples - 1, 1)))
    return LogLikelihood(value, error)


def importance_sample(
    key: Array,
    prepare: Callable[..., Draw],
    *rows: Any,
    num_proposals: int,
    num_samples: int,
    floats_per_row: int,
) -> LogLikelihood:
    """Estimate each row's log-probability.

    Args:
      key: a random key.
      prepare: maps a block of rows to how draws are made for it.
      *rows: data types and arrays with one leading axis of rows.
      num_proposals: number of proposals that draws come from in turn.
      num_samples: draws per row.
      floats_per_row: size of the temporaries of one draw for one row.

    """
    turns = jnp.arange(num_samples) % num_proposals

    def block(index: Array, *rows: Any) -> LogLikelihood:
        draw = prepare(*rows)
        # A key for each block; blocks are known by their first row.
        keys = jax.random.split(jax.random.fold_in(key, index[0]), num_samples)
        _, log_ratios = lax.scan(lambda _, one: (None, draw(*one)), None, (keys, turns))
        return average_ratios(log_ratios)

    index = jnp.arange(jax.tree.leaves(rows)[0].shape[0], dtype=jnp.int32)
    return map_over_rows(block, index, *rows, floats_per_row=floats_per_row)
