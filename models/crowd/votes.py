"""A majority vote as an estimate, and what every estimate of a crowd says beside its parameters."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import divide, small_jit
from latensor.decompose import Status
from latensor.decompose.internal import finite_status, status_if, worst
from latensor.models.crowd.evidence import weigh_evidence
from latensor.models.crowd.groups import count_labels
from latensor.models.crowd.likelihood import log_joint, vote_shares
from latensor.models.crowd.params import DawidSkene, unstack
from latensor.models.evidence import Evidence
from latensor.models.results import Fit, Spectrum
from latensor.moments import Labels
from latensor.moments.internal import average_weights, sum_by_label


class Diagnostics(NamedTuple):
    """How the stages of `fit` went. A majority vote has no groups, so the first four are `None` then."""

    spectrum: Spectrum | None
    """Singular values of the pair of groups that is least clear of its noise, in units of `√p`."""
    decomposition_status: Int[Array, " g"] | None
    """How the decomposition of each grouping ended."""
    grouping_scores: Float[Array, " g"] | None
    """Mean log-likelihood of an item by each grouping; `None` also where there are only moments."""
    groups: Int[Array, " workers"] | None
    """The group, 0 to 2, of each worker in the grouping whose estimate was taken."""
    evidence: Evidence | None
    """What the labels say about the estimate; `None` for moments alone."""


@small_jit(static_argnames="num_classes")
def label_status(labels: Labels, num_classes: int) -> Int[Array, ""]:
    """Return `UNOBSERVED` where a worker has no labels, `NON_FINITE` where a label or a weight is not valid."""
    unseen = jnp.any(count_labels(labels, num_classes) == 0)
    even = jnp.full(num_classes, 1 / num_classes, labels.dtype)
    flat = jnp.broadcast_to(even[None, :, None], (labels.num_workers, num_classes, num_classes))
    joint = log_joint(DawidSkene(even, flat), labels)
    weights = average_weights(labels.row_weights, labels.num_items, labels.dtype)
    return worst(status_if(unseen, Status.UNOBSERVED), finite_status(joint, weights))


@small_jit(static_argnames="num_classes")
def fit_by_vote(labels: Labels, num_classes: int) -> tuple[Fit, Evidence]:
    """Return the confusion matrices that votes give, and how much likelier they make the labels than one class does."""
    k = num_classes
    shares = vote_shares(labels, k)
    weights = average_weights(labels.row_weights, labels.num_items, labels.dtype)
    counts = unstack(sum_by_label(labels, labels.num_items * weights[:, None] * shares, k)) + 1 / k
    prior = jnp.sum(weights[:, None] * shares, axis=0)
    params = DawidSkene(divide(prior, jnp.sum(prior)), counts / jnp.sum(counts, axis=1, keepdims=True))
    differing = 1 - jnp.sum(weights * jnp.max(shares, axis=1))
    status = worst(label_status(labels, k), finite_status(params))
    result = Fit(params, status, jnp.int32(0), differing, Diagnostics(None, None, None, None, None))
    return result, weigh_evidence(None, params, labels, None, 0, k)
