"""Workers in three groups: a group's view of an item is the mean label of its members, as an indicator.

Given the class, the views of different groups are independent; the mean of a group's view is the average of its
members' confusion matrices. Moments average over the items that all groups concerned have labelled.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.base import divide, small_jit
from latensor.models.views import References, combine_moments, deal
from latensor.moments import CrossMoments, Labels, Moments
from latensor.moments.internal import average_weights, feature_moments, sum_by_item, sum_by_label


class Grouping(NamedTuple):
    """Moments of three groups of workers."""

    group: Int[Array, " workers"]
    """The group of each worker, 0 to 2."""
    views: CrossMoments
    references: References
    """The labels of every worker with the views of the three groups."""


class Views(NamedTuple):
    """What three groups say of each item."""

    shares: Float[Array, "n 3 k"]
    """The mean label of a group's members; zero where none of them labelled the item."""
    present: Bool[Array, "n 3"]


@small_jit(static_argnames="num_classes")
def count_labels(labels: Labels, num_classes: int) -> Float[Array, " workers"]:
    """Return how many labels each worker gave; a label counts as much as its item, one on average."""
    weights = average_weights(labels.row_weights, labels.num_items, labels.dtype) * labels.num_items
    counts = sum_by_label(labels, weights[:, None], num_classes)
    return jnp.sum(counts.reshape(-1, num_classes), axis=1)


def group_views(labels: Labels, group: Int[Array, " workers"], num_classes: int) -> Views:
    """Return the views of three groups."""
    k, dtype = num_classes, labels.dtype
    mine = jax.nn.one_hot(group, 3, dtype=dtype)
    each = mine[:, None, :, None] * jnp.eye(k, dtype=dtype)[None, :, None, :]
    votes = sum_by_item(labels, each.reshape(-1, 3 * k), k).reshape(-1, 3, k)
    total = jnp.sum(votes, axis=2)
    return Views(divide(votes, total[:, :, None]), total > 0)


@small_jit(static_argnames="num_groupings")
def draw_groups(key: Array, sizes: Float[Array, " workers"], num_groupings: int) -> Int[Array, "g workers"]:
    """Deal the workers into three groups, several times."""
    return jax.vmap(lambda key: _draw_group(key, sizes))(jax.random.split(key, num_groupings))


def _draw_group(key: Array, sizes: Float[Array, " workers"]) -> Int[Array, " workers"]:
    """Return the group of each worker; those with many labels are dealt first."""
    workers = sizes.shape[0]
    # Rounded: what is equal but for rounding is dealt in random order, too.
    dealt = deal(key, jnp.round(1024 * sizes), -(-workers // 3))
    number = jnp.broadcast_to(jnp.arange(3, dtype=jnp.int32)[:, None], dealt.shape)
    return jnp.zeros(workers, jnp.int32).at[jnp.where(dealt >= 0, dealt, workers)].set(number, mode="drop")


def _others(group: Int[Array, " workers"], num_classes: int) -> Bool[Array, "workers d"]:
    return jnp.repeat(group[:, None] != jnp.arange(3)[None, :], num_classes, axis=1)


@small_jit(static_argnames="num_classes")
def group_moments(labels: Labels, groups: Int[Array, "g workers"], num_classes: int) -> Grouping:
    """Return the moments of each grouping of the workers, with a leading axis of groupings."""
    k = num_classes
    weights = average_weights(labels.row_weights, labels.num_items, labels.dtype)

    def one(group: Int[Array, " workers"]) -> Grouping:
        shares, present = group_views(labels, group, k)

        def features(shares: Array, present: Array) -> list[tuple[Array, Array]]:
            return [(shares[:, g], present[:, g, None]) for g in range(3)]

        views, _ = feature_moments(features, weights, shares, present, floats_per_row=4 * k**2)
        weighted = weights[:, None]
        products = sum_by_label(labels, weighted * shares.reshape(-1, 3 * k), k)
        together = sum_by_label(labels, weighted * present.astype(weights.dtype), k)
        seen = jnp.repeat(jnp.sum(together.reshape(-1, k, 3), axis=1), k, axis=1)
        return Grouping(group, views, References(products, seen, _others(group, k)))

    return lax.map(one, groups)


@small_jit(static_argnames="num_classes")
def groups_of_moments(key: Array, moments: Moments, num_classes: int) -> Grouping:
    """Do to dense moments what `group_moments` does to labels, once."""
    k = num_classes
    workers = moments.first.shape[0] // k
    group = _draw_group(key, jnp.ones(workers, moments.first.dtype))
    mine = jax.nn.one_hot(group, 3, dtype=moments.first.dtype)
    mean = divide(mine, jnp.sum(mine, axis=0, keepdims=True))
    views = mean.T[:, None, :, None] * jnp.eye(k, dtype=mean.dtype)[None, :, None, :]
    cross, products = combine_moments(moments, views.reshape(3, k, -1))
    others = _others(group, k)
    grouping = Grouping(group, cross, References(products, jnp.ones(others.shape, mean.dtype), others))
    return jax.tree.map(lambda leaf: leaf[None], grouping)
