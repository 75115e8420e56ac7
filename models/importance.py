"""Likelihoods by importance sampling, for models whose hidden variables cannot be integrated out.

Draws come in turn from several proposals, which get wider and wider, and are weighed against the mixture of all of
them: a proposal that is too narrow in one place cannot spoil the estimate there.

Hidden variables with Gamma and Beta distributions are drawn on the scale of their logarithms and log-odds, where
exponential functions to the left and to the right of a peak are near enough (`fit_tents`). Such a draw takes one
uniform number and a logarithm; a Gamma variable, by rejection, takes fifty times as long.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from latensor.base import smallest_normal
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


# Over what an exponential function has to be wide, in units of the variance of a Normal distribution; and how far the
# peak is from the mode, towards the slower of the two tails. Found by minimizing the second moment of the weights.
_WIDTH, _OFFSET = 0.72, 0.3


class Tents(NamedTuple):
    """Exponential on both sides: the density grows as `exp(left y)` up to the peak, then falls as `exp(−right y)`."""

    peak: Float[Array, "..."]
    left: Float[Array, "..."]
    right: Float[Array, "..."]


def fit_tents(first: Float[Array, "..."], second: Float[Array, "..."] | float) -> Tents:
    """Return proposals for the log-odds of Beta variables; with `second = inf`, for the logarithms of Gamma variables.

    The density of the log-odds of Beta(a, b) falls as `exp(a y)` to the left and `exp(−b y)` to the right, that of the
    logarithm of Gamma(a, 1) faster than any exponential to the right. The tents have heavier tails on both sides,
    `left ≤ a` and `right ≤ b` for any shape, so that weights are bounded: near the tails' own rates where shapes are
    small and the density is all tails, and by the curvature `1/a + 1/b` where they are large. The second moment of the
    weights is at most 1.1, and 1.01 for shapes below 0.1.
    """
    inverse, other = 1 / first, 1 / jnp.asarray(second, first.dtype)
    left = 1 / jnp.sqrt(inverse**2 + _WIDTH * (inverse + other / (1 + other)))
    right = 1 / jnp.sqrt(other**2 + _WIDTH * (other + inverse / (1 + inverse)))
    # `log (a + ε)/(b + ε)`, without the logarithm of an infinite `b`.
    scale = 0 if second is math.inf else jnp.log(second + _OFFSET)
    return Tents(jnp.log(first + _OFFSET) - scale, left, right)


def draw_tents(key: Array, tents: Tents) -> Float[Array, "..."]:
    """Return one draw from each."""
    dtype = tents.peak.dtype
    uniform = jax.random.uniform(key, tents.peak.shape, dtype, minval=smallest_normal(dtype))
    below = tents.right / (tents.left + tents.right)
    is_left = uniform < below
    # What is left of the uniform number is uniform again, given the side.
    share = jnp.where(is_left, uniform / below, (1 - uniform) / (1 - below))
    return tents.peak + jnp.log(share) / jnp.where(is_left, tents.left, -tents.right)


def tent_log_densities(tents: Tents, value: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the logarithm of each density."""
    distance = value - tents.peak
    slope = jnp.where(distance < 0, tents.left, -tents.right)
    return slope * distance + jnp.log(tents.left * tents.right / (tents.left + tents.right))


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
