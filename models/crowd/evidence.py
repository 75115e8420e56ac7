"""What labels say about an estimate: the rank of the pair moment of two groups, and the gain over one class."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import divide, small_jit
from latensor.models.classes import safe_log
from latensor.models.crowd.groups import group_views
from latensor.models.crowd.likelihood import log_joint
from latensor.models.crowd.params import DawidSkene, count_parameters
from latensor.models.evidence import Evidence, after, effective_rows, judge_gain
from latensor.models.pair_rank import pair_rank
from latensor.moments import Labels
from latensor.moments.internal import average_weights, sum_by_item, sum_by_label


@small_jit(static_argnames=("drawn", "rank"))
def weigh_evidence(
    key: Array | None,
    params: DawidSkene,
    labels: Labels,
    group: Int[Array, " workers"] | None,
    drawn: int,
    rank: int,
) -> Evidence:
    """Return what the labels say about an estimate, beside workers whose labels do not depend on the item.

    Both are drawn towards what workers do on average, as if each had given `drawn` more labels; the parameters of a
    worker count as the part of them that is its own. Without groups the rank is not judged.
    """
    workers, k, _ = params.confusion.shape
    weights = average_weights(labels.row_weights, labels.num_items, params.prior.dtype)
    certainty = None
    if key is not None and group is not None:
        certainty = _group_rank(after(key, params.prior), labels, weights, group, k, rank)
    values = jax.nn.logsumexp(log_joint(params, labels), axis=1)
    counts = sum_by_label(labels, labels.num_items * weights[:, None], k).reshape(workers, k)
    overall = divide(jnp.sum(counts, axis=0), jnp.sum(counts), 1 / k)
    own = jnp.sum(counts, axis=1, keepdims=True)
    # One label more, whatever it is, as in the estimate.
    alone = (counts + drawn * overall[None, :] + 1 / k) / (own + drawn + 1)
    gains = values - sum_by_item(labels, safe_log(alone).reshape(-1, 1), k)[:, 0]
    number = jnp.sum(divide(own, own + drawn))
    # Of labels that do not depend on the item, each worker has a single distribution.
    more = count_parameters(k, number) - (k - 1) * number
    return judge_gain(certainty, gains, more, effective_rows(weights), weights)


def _group_rank(
    key: Array, labels: Labels, weights: Float[Array, " n"], group: Int[Array, " workers"], num_classes: int, rank: int
) -> Float[Array, ""]:
    """Return `Evidence.rank` for the pair moment of two groups; items that one of them did not label count as zero."""
    views = group_views(labels, group, num_classes)

    def features(shares: Float[Array, "n 3 k"]) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
        return shares[:, 0], shares[:, 1]

    return pair_rank(key, features, weights, views.shares, rank=rank, floats_per_row=8 * num_classes)
