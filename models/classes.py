"""Mixtures whose columns are independent given a class: what latent classes and crowds of workers have in common.

The columns' distributions stand in stacked blocks, as in `latensor.models.blocks`. EM may have a Dirichlet prior on
every column of a block, as if each category had been seen some more times; then it is the posterior that never falls.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from latensor.base import divide, small_jit, smallest_normal
from latensor.decompose.internal import Evaluation, expectation_maximization
from latensor.models.blocks import normalize_blocks
from latensor.models.em import as_refined
from latensor.models.results import Refined
from latensor.moments import Variables

Params = TypeVar("Params")

# A class has at least this share of an even part of the samples.
_LEAST_SHARE = 1e-3


@small_jit(optimize=False)
def split_key(key: Array) -> tuple[Array, Array, Array]:
    """Return the keys of the three stages of `fit`: groups, decomposition, evidence."""
    one, two, three = jax.random.split(key, 3)
    return one, two, three


class ReadOff(NamedTuple):
    """Weights of the classes, and the columns' distributions."""

    weights: Float[Array, " k"]
    tables: Float[Array, "rows k"]
    raised: Bool[Array, ""]
    """Whether a weight came out too small and was raised."""


def read_off(
    products: Float[Array, "rows k"],
    seen: Float[Array, " p"],
    overall: Float[Array, " rows"],
    variables: Variables,
) -> ReadOff:
    """Return `π` and `Θ` from estimates of `Θ diag(π)`.

    Every block of these sums to `π`; the blocks' estimates are averaged. Negative entries are cut off.

    Args:
      products: `Θ diag(π)`, the blocks of all columns stacked.
      seen: how much each column counts: the weight of the samples that observe it.
      overall: frequencies that a block gets where nothing is known of it.
      variables: what the columns are.

    """
    k = products.shape[1]
    totals = jax.ops.segment_sum(products, variables.row_variables, variables.num_variables)
    weights = divide(jnp.sum(seen[:, None] * totals, axis=0), jnp.sum(seen), 1 / k)
    floor = _LEAST_SHARE / k
    raised = jnp.maximum(weights, floor)
    tables, _ = normalize_blocks(
        jnp.maximum(products, 0), jnp.broadcast_to(overall[:, None], products.shape), variables
    )
    return ReadOff(raised / jnp.sum(raised), tables, jnp.any(weights < floor))


class ClassSums(NamedTuple):
    """What an EM step needs: weighted sums over the samples."""

    counts: Float[Array, "rows k"]
    """Of the stacked rows in each class."""
    sizes: Float[Array, " k"]
    """Of the samples in each class."""
    log_likelihood: Float[Array, ""]
    """Of the samples; a mean, since weights sum to one."""


def classify(
    joint: Float[Array, "n k"], weights: Float[Array, " n"]
) -> tuple[Float[Array, "n k"], Float[Array, " k"], Float[Array, ""]]:
    """Return each sample's weight in each class, from `log P(h, x)`; their sums; and the mean log-likelihood."""
    rows = jax.nn.logsumexp(joint, axis=1)
    shares = weights[:, None] * counted(jnp.exp(joint - rows[:, None]), weights[:, None])
    return shares, jnp.sum(shares, axis=0), jnp.sum(weights * counted(rows, weights))


def counted(values: Float[Array, "..."], weights: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return values to be weighted: samples of weight zero do not count, even if they are not finite.

    Finite ones stay as they are, for derivatives by a weight that is zero.
    """
    return jnp.where((weights > 0) | jnp.isfinite(values), values, 0)


def safe_log(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return logarithms of probabilities, of which zeros count as the smallest number."""
    return jnp.log(jnp.maximum(values, smallest_normal(values.dtype)))


def update_tables(
    sums: ClassSums, tables: Float[Array, "rows k"], pseudo_count: Float[Array, "..."], variables: Variables
) -> Float[Array, "rows k"]:
    """Return the likeliest blocks for expected counts, with pseudo-counts in every cell; those without any stay."""
    return normalize_blocks(sums.counts + pseudo_count, tables, variables)[0]


def log_prior(
    tables: Float[Array, "rows k"], pseudo_count: Float[Array, "..."], variables: Variables
) -> Float[Array, ""]:
    """Return the logarithm of the Dirichlet prior that pseudo-counts stand for, up to a constant."""
    codes = np.isin(variables.row_variables, variables.categorical)
    return jnp.sum(pseudo_count * jnp.where(codes[:, None], safe_log(tables), 0))


def penalized_em(
    expect: Callable[[Params], Any],
    update: Callable[[Params, Any], Params],
    penalty: Callable[[Params], Float[Array, ""]],
    start: Params,
    *,
    tol: Array,
    max_iters: Array,
    feasible: Callable[[Params, Params], Params] | None = None,
    history: int | None = None,
) -> Refined:
    """Maximize the mean log-likelihood plus `penalty` by EM; the result's `log_likelihood` is without it.

    Args:
      expect: the E-step, from parameters to sums that have a `log_likelihood`.
      update: the M-step, from the current parameters and those sums to new parameters.
      penalty: the logarithm of a prior, divided by the number of samples.
      start: the first parameters.
      tol: see `expectation_maximization`.
      max_iters: limit on the steps.
      feasible: see `expectation_maximization`; `None` for plain EM.
      history: see `expectation_maximization`; of the log-likelihood without `penalty`.

    """

    def step(params: Params) -> Evaluation:
        sums = expect(params)
        objective = sums.log_likelihood + penalty(params)
        return Evaluation(update(params, sums), objective, recorded=sums.log_likelihood)

    result = expectation_maximization(step, start, tol=tol, max_iters=max_iters, feasible=feasible, history=history)
    # Not the objective less the penalty: a large one would leave no digits.
    return as_refined(result._replace(objective=expect(result.params).log_likelihood), result.params)
