"""EM for a crowd of workers (Dawid, Skene 1979)."""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_number, check_option, divide, positive_or_one
from latensor.models.classes import ClassSums, log_prior, penalized_em, safe_log, update_tables
from latensor.models.crowd.data import check_pair
from latensor.models.crowd.groups import count_labels
from latensor.models.crowd.likelihood import expect, wins
from latensor.models.crowd.params import DawidSkene, stack, unstack
from latensor.models.em import em_limits
from latensor.models.results import Refined
from latensor.moments import Labels, categorical_variables
from latensor.moments.internal import average_weights

CLASS_PRIORS = ("balanced", "uniform", "estimated")
# A class that wins fewer than this share of an even part of the votes is less likely than others.
_FEW_WINS = 0.5
# Labels per cell of a confusion matrix from which on workers are not pooled, and how many labels of each class per
# class they are given at the most.
_MANY_LABELS, _MOST_POOLED = 5, 2


def refine(
    params: DawidSkene,
    x: Labels | ArrayLike,
    *,
    num_items: int | None = None,
    row_weights: ArrayLike | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 200,
    pseudo_count: float | Array = 1.0,
    class_prior: Literal["balanced", "uniform", "estimated"] = "balanced",
    pooling: float | Array | None = None,
) -> Refined:
    """Improve `params` by EM. The likelihood times the prior of the parameters never falls.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: labels as for `fit`.
      num_items: number of items, where not all of them have labels.
      row_weights: one weight per item (default: equal).
      tol: stop when a step gains no more than this share of the objective; default: 10 machine epsilons in float32 and
        1e-8 in float64.
      max_iters: limit on the steps.
      pseudo_count: labels that are added to every cell of every confusion matrix, a Dirichlet prior: a worker of few
        labels is neither perfect nor hopeless. Zero is maximum likelihood.
      class_prior: `"estimated"` learns how frequent classes are. Where the model is not quite right, that lets large
        classes grow at the cost of others. `"uniform"` takes all classes for equally likely, as Zhang et al. do; then a
        class that hardly occurs takes items from others. `"balanced"` is halfway: a Dirichlet prior that counts as much
        as all items, even but for classes that win less than half of an even share of the items by vote, which are
        less likely in proportion. The benchmark `crowd_table1` compares them.
      pooling: labels of each class that every worker is given beforehand, divided as all workers together divide theirs
        at the start. By default none where workers gave many labels (five per cell of their matrix, in the mean over
        labels), and up to `2k` where they gave few: a confusion matrix cannot be learned from ten labels, and EM would
        err on more items than a vote.

    Returns:
      `Refined`; its `log_likelihood` is that of the labels alone, without the prior. Classes keep their names. Cost:
      `O(labels · k)` per step.

    """
    params, labels = check_pair(params, x, num_items, row_weights)
    dtype = params.confusion.dtype
    check_option("class_prior", class_prior, CLASS_PRIORS)
    pseudo = jnp.asarray(check_number("pseudo_count", pseudo_count, 0.0), dtype)
    pooled = None if pooling is None else jnp.asarray(check_number("pooling", pooling, 0.0), dtype)
    return _refine(params, labels, *em_limits(tol, max_iters, dtype), pseudo, class_prior, pooled)


@partial(jax.jit, static_argnames=("class_prior",))
def _refine(
    params: DawidSkene,
    labels: Labels,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
    pseudo_count: Float[Array, ""],
    class_prior: str,
    pooling: Float[Array, ""] | None,
) -> Refined:
    workers, k, _ = params.confusion.shape
    variables = categorical_variables(workers, k)
    pseudo = (pseudo_count + _pooled_labels(params, labels, pooling)) / labels.num_items
    weights = average_weights(labels.row_weights, labels.num_items, params.prior.dtype)
    base = None if class_prior == "estimated" else _base(labels, k, class_prior).astype(params.prior.dtype)

    def prior_of(sizes: Float[Array, " k"]) -> Float[Array, " k"]:
        """Return the likeliest class prior for classes of these sizes."""
        if base is None:
            return sizes
        return base if class_prior == "uniform" else (sizes + base) / 2

    def update(params: DawidSkene, sums: ClassSums) -> DawidSkene:
        confusion = unstack(update_tables(sums, stack(params.confusion), pseudo, variables))
        return DawidSkene(prior_of(divide(sums.sizes, jnp.sum(sums.sizes), params.prior)), confusion)

    def penalty(params: DawidSkene) -> Float[Array, ""]:
        cells = log_prior(stack(params.confusion), pseudo, variables)
        if base is None or class_prior == "uniform":
            return cells
        return cells + jnp.sum(base * safe_log(params.prior))

    start = params._replace(prior=prior_of(params.prior))
    return penalized_em(
        lambda params: expect(params, labels, weights), update, penalty, start, tol=tol, max_iters=max_iters
    )


def _pooled_labels(params: DawidSkene, labels: Labels, pooling: Float[Array, ""] | None) -> Float[Array, "rows k"]:
    """Return the labels that every worker is given beforehand, for the cells of all confusion matrices."""
    workers, k, _ = params.confusion.shape
    counts = count_labels(labels, k).astype(params.prior.dtype)
    total = positive_or_one(jnp.sum(counts))
    together = jnp.sum(counts[:, None, None] * params.confusion, axis=0) / total
    if pooling is None:
        # Of the worker of a label, not of a worker: what counts is who gave most labels.
        usual = jnp.sum(counts**2) / total
        pooling = _MOST_POOLED * k * jnp.maximum(1 - usual / (_MANY_LABELS * k**2), 0)
    return jnp.tile(pooling * together, (workers, 1))


def _base(labels: Labels, num_classes: int, class_prior: str) -> Float[Array, " k"]:
    """Return how likely classes are, before any item is looked at."""
    if class_prior == "uniform":
        return jnp.full(num_classes, 1 / num_classes, labels.dtype)
    share = jnp.minimum(wins(labels, num_classes) * (num_classes / _FEW_WINS), 1)
    return divide(share, jnp.sum(share), 1 / num_classes)
