"""Likelihoods by importance sampling: what the models that need it share."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class LogLikelihood(NamedTuple):
    """An estimate of each row's log-probability, and its standard error."""

    value: Float[Array, " n"]
    standard_error: Float[Array, " n"]


def average_ratios(log_ratios: Float[Array, "samples n"]) -> LogLikelihood:
    """Return the logarithm of the mean of each row's importance ratios, and its standard error."""
    num_samples = log_ratios.shape[0]
    value = jax.nn.logsumexp(log_ratios, axis=0) - math.log(num_samples)
    relative = jnp.exp(log_ratios - value[None, :])
    # The error of the logarithm is the relative error of the mean.
    error = jnp.sqrt(jnp.sum((relative - 1) ** 2, axis=0) / (num_samples * max(num_samples - 1, 1)))
    return LogLikelihood(value, error)
