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
from latensor.models.crowd.likelihood import expect, is_labelled, wins
from latensor.models.crowd.params import DawidSkene, stack, unstack
from latensor.models.em import em_limits, history_length
from latensor.models.results import Refined
from latensor.moments import Labels, categorical_variables
from latensor.moments.internal import average_weights

CLASS_PRIORS = ("balanced", "uniform", "estimated")
# A learned class below this share of an even part says that classes are uneven.
_UNEVEN = 0.5
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
    history: bool = False,
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
        classes grow at the cost of others. `"uniform"` takes all classes for equally likely, as Zhang et al. do,
        whatever the start says; then a class that hardly occurs takes items from others. `"balanced"` learns them
        first; unless one is below half of an even share, by the model and by vote, it starts anew with half of the
        prior even and half learned (a Dirichlet prior that counts as much as all items). The benchmark `crowd_table1`
        compares them.
      pooling: labels of each class that every worker is given beforehand, divided as all workers together divide theirs
        at the start. By default none where workers gave many labels (five per cell of their matrix, in the mean over
        labels), and up to `2k` where they gave few: a confusion matrix cannot be learned from ten labels, and EM would
        err on more items than a vote.
      history: also return the log-likelihood at the start and after each step; one compilation per `max_iters`.

    Returns:
      `Refined`; its `log_likelihood` is that of the labels alone, without the prior. Classes keep their names. Cost:
      `O(labels · k)` per step.

    """
    params, labels = check_pair(params, x, num_items, row_weights)
    dtype = params.confusion.dtype
    check_option("class_prior", class_prior, CLASS_PRIORS)
    pseudo = jnp.asarray(check_number("pseudo_count", pseudo_count, 0.0), dtype)
    pooled = None if pooling is None else jnp.asarray(check_number("pooling", pooling, 0.0), dtype)
    length = history_length(history, max_iters)
    return _refine(params, labels, *em_limits(tol, max_iters, dtype), pseudo, class_prior, pooled, length)


@partial(jax.jit, static_argnames=("class_prior", "history"))
def _refine(
    params: DawidSkene,
    labels: Labels,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
    pseudo_count: Float[Array, ""],
    class_prior: str,
    pooling: Float[Array, ""] | None,
    history: int | None,
) -> Refined:
    workers, k, _ = params.confusion.shape
    variables = categorical_variables(workers, k)
    labelled = is_labelled(labels, k)
    number = positive_or_one(jnp.sum(labelled.astype(params.prior.dtype)))
    pseudo = (pseudo_count + _pooled_labels(params, labels, pooling)) / number
    weights = average_weights(labels.row_weights, labels.num_items, params.prior.dtype, labelled)

    even = jnp.full_like(params.prior, 1 / k)

    def run(class_prior: str) -> Refined:
        def prior_of(sizes: Float[Array, " k"]) -> Float[Array, " k"]:
            """Return the likeliest class prior for classes of these sizes."""
            if class_prior == "estimated":
                return sizes
            return even if class_prior == "uniform" else (sizes + even) / 2

        def update(params: DawidSkene, sums: ClassSums) -> DawidSkene:
            confusion = unstack(update_tables(sums, stack(params.confusion), pseudo, variables))
            return DawidSkene(prior_of(divide(sums.sizes, jnp.sum(sums.sizes), params.prior)), confusion)

        def penalty(params: DawidSkene) -> Float[Array, ""]:
            cells = log_prior(stack(params.confusion), pseudo, variables)
            return cells + (jnp.sum(even * safe_log(params.prior)) if class_prior == "balanced" else 0)

        start = params._replace(prior=even) if class_prior == "uniform" else params
        return penalized_em(
            lambda params: expect(params, labels, weights),
            update,
            penalty,
            start,
            tol=tol,
            max_iters=max_iters,
            history=history,
        )

    if class_prior != "balanced":
        return run(class_prior)
    learned, balanced = run("estimated"), run("balanced")
    # By the model and by vote: of few labels, the model may learn anything.
    uneven = jnp.any(jnp.maximum(learned.params.prior, wins(labels, k)) < _UNEVEN / k)
    return jax.tree.map(lambda one, other: jnp.where(uneven, one, other), learned, balanced)


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
