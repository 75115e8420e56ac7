"""The likelihood of items' labels, the posterior of their classes, votes, and how good each worker is."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import as_int32, check_integer, divide, einsum, small_jit
from latensor.models.classes import ClassSums, classify, safe_log
from latensor.models.crowd.data import as_data, check_labels, check_pair
from latensor.models.crowd.params import DawidSkene, stack
from latensor.moments import Labels
from latensor.moments.internal import average_weights, sum_by_item, sum_by_label, valid_labels

# Shares of votes that differ by less are equal.
_TIE = 1e-5


class WorkerAccuracy(NamedTuple):
    """How often each worker is right."""

    accuracy: Float[Array, " workers"]
    """The share of the worker's labels that are right, by the posterior of the items; without any, what the model
    expects, `Σ_h P(h) P(says h | h)`."""
    num_labels: Int[Array, " workers"]
    """The labels behind it: an accuracy from three labels says little."""


def log_joint(params: DawidSkene, labels: Labels) -> Float[Array, "n k"]:
    """Return `log P(h, labels)` of every item; NaN where one of its labels is out of range."""
    k = params.prior.shape[0]
    joint = sum_by_item(labels, safe_log(stack(params.confusion)), k) + safe_log(params.prior)[None, :]
    return jnp.where(_has_bad_label(labels, k)[:, None], jnp.nan, joint)


def _has_bad_label(labels: Labels, num_classes: int) -> Bool[Array, " n"]:
    """Return which items have a label out of range, which only traced ones can have."""
    item = labels.x[:, 0]
    bad = (item >= 0) & ~valid_labels(labels, num_classes)
    marked = jnp.zeros(labels.num_items, bool).at[jnp.where(bad, item, labels.num_items)].set(True, mode="drop")
    # The label of an item that does not exist could be any item's.
    return marked | jnp.any(item >= labels.num_items)


def expect(params: DawidSkene, labels: Labels, weights: Float[Array, " n"]) -> ClassSums:
    """Return expected counts; `weights` of the items sum to one."""
    shares, sizes, value = classify(log_joint(params, labels), weights)
    return ClassSums(sum_by_label(labels, shares, params.prior.shape[0]), sizes, value)


def log_likelihood(
    params: DawidSkene, x: Labels | ArrayLike, *, num_items: int | None = None, key: Array | None = None
) -> Float[Array, " n"]:
    """Return the log-probability of the labels of each item, given who labelled it.

    Args:
      params: the model.
      x: labels as for `fit`.
      num_items: number of items, where not all of them have labels.
      key: ignored, since the likelihood is exact.

    """
    del key
    return _log_likelihood(*check_pair(params, x, num_items))


@jax.jit
def _log_likelihood(params: DawidSkene, labels: Labels) -> Float[Array, " n"]:
    return jax.nn.logsumexp(log_joint(params, labels), axis=1)


def posterior(params: DawidSkene, x: Labels | ArrayLike, *, num_items: int | None = None) -> Float[Array, "n k"]:
    """Return the probability of each class of each item, given its labels; of an item without any, the prior.

    Arguments as for `log_likelihood`.
    """
    return _posterior(*check_pair(params, x, num_items))


@jax.jit
def _posterior(params: DawidSkene, labels: Labels) -> Float[Array, "n k"]:
    return jax.nn.softmax(log_joint(params, labels), axis=1)


def majority_vote(x: Labels | ArrayLike, num_components: int, *, num_items: int | None = None) -> Float[Array, "n k"]:
    """Return the share of each label among those of an item; `argmax` over the last axis is the vote.

    Where labels are tied, their shares are equal, and `argmax` takes the first of them. An item without labels has
    equal shares of all.

    Args:
      x: labels as for `fit`.
      num_components: number of classes.
      num_items: number of items, where not all of them have labels.

    """
    k = check_integer("num_components", num_components, 2)
    return vote_shares(check_labels(as_data(x, num_items=num_items), k), k)


@partial(jax.jit, static_argnames="num_classes")
def vote_shares(labels: Labels, num_classes: int) -> Float[Array, "n k"]:
    """Return the share of each label among those of each item."""
    each = jnp.tile(jnp.eye(num_classes, dtype=labels.dtype), (labels.num_workers, 1))
    votes = sum_by_item(labels, each, num_classes)
    return divide(votes, jnp.sum(votes, axis=1, keepdims=True), 1 / num_classes)


@small_jit(static_argnames="num_classes")
def wins(labels: Labels, num_classes: int) -> Float[Array, " k"]:
    """Return the share of the labelled items that each label wins by vote; those of a tie share an item."""
    shares = vote_shares(labels, num_classes)
    top = shares >= jnp.max(shares, axis=1, keepdims=True) - _TIE
    each = divide(top.astype(shares.dtype), jnp.sum(top, axis=1, keepdims=True).astype(shares.dtype))
    weights = average_weights(labels.row_weights, labels.num_items, labels.dtype, is_labelled(labels, num_classes))
    return jnp.sum(weights[:, None] * each, axis=0)


def is_labelled(labels: Labels, num_classes: int) -> Bool[Array, " n"]:
    """Return which items have a label."""
    item = jnp.where(valid_labels(labels, num_classes), labels.x[:, 0], labels.num_items)
    return jnp.zeros(labels.num_items, bool).at[item].set(True, mode="drop")


def worker_accuracy(params: DawidSkene, x: Labels | ArrayLike, *, num_items: int | None = None) -> WorkerAccuracy:
    """Return how many of each worker's labels are right, by the posterior of the items, and how many there are.

    Arguments as for `log_likelihood`.
    """
    return _worker_accuracy(*check_pair(params, x, num_items))


@jax.jit
def _worker_accuracy(params: DawidSkene, labels: Labels) -> WorkerAccuracy:
    k = params.prior.shape[0]
    workers = jnp.where(valid_labels(labels, k), labels.x[:, 1], labels.num_workers)
    counts = jnp.zeros(labels.num_workers, jnp.int32).at[workers].add(1, mode="drop")
    right = sum_by_label(labels, jax.nn.softmax(log_joint(params, labels), axis=1), k).reshape(-1, k, k)
    expected = einsum("whh,h->w", params.confusion, params.prior)
    share = divide(jnp.trace(right, axis1=1, axis2=2), counts.astype(right.dtype), expected)
    return WorkerAccuracy(share, as_int32(counts))
