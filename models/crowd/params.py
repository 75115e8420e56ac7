"""Parameters of a crowd of workers, draws from it, and its exact moments."""

from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import as_numbers, check_integer, check_key, einsum, matmul, small_jit
from latensor.models.checks import check_order, check_probabilities, check_type
from latensor.models.results import Sample
from latensor.models.sampling import check_num_samples, draw_components, inverse_cdf
from latensor.moments import Moments
from latensor.moments.internal import finite_moments

# A number of workers, or a traced one of what they count as.
Count = TypeVar("Count", int, Array)


class DawidSkene(NamedTuple):
    """Parameters: how frequent the classes are, and what each worker says of items of each class."""

    prior: Float[Array, " k"]
    """`P(h)`."""
    confusion: Float[Array, "workers k k"]
    """`confusion[w, l, h] = P(worker w says l | class h)`: columns sum to one."""


def check_params(params: Any) -> DawidSkene:
    """Return parameters whose shapes agree; concrete ones must be distributions."""
    params = check_type(params, DawidSkene)
    prior = check_probabilities("params.prior", params.prior, 1)
    confusion = check_probabilities("params.confusion", _labels_first(params.confusion), 3)
    k = prior.shape[0]
    if confusion.shape[0] != k or confusion.shape[2] != k:
        shape = (confusion.shape[1], confusion.shape[0], confusion.shape[2])
        raise ValueError(f"params.confusion: expected shape (workers, {k}, {k}), as params.prior has; got {shape}")
    dtype = jnp.result_type(prior, confusion)
    return DawidSkene(prior.astype(dtype), jnp.swapaxes(confusion, 0, 1).astype(dtype))


def _labels_first(confusion: Any) -> Any:
    """Return confusion matrices with labels on the first axis, over which they sum to one; others as they are."""
    array = as_numbers("params.confusion", confusion, "probabilities")
    return jnp.swapaxes(array, 0, 1) if array.ndim == 3 else array


def stack(confusion: Float[Array, "workers k k"]) -> Float[Array, "rows k"]:
    """Return confusion matrices as stacked blocks, one per worker."""
    return confusion.reshape(-1, confusion.shape[2])


def unstack(tables: Float[Array, "rows k"]) -> Float[Array, "workers k k"]:
    """Return stacked blocks as confusion matrices."""
    k = tables.shape[1]
    return tables.reshape(-1, k, k)


def num_parameters(params: DawidSkene) -> int:
    """Return the number of free parameters: `k − 1` of the prior, and `k (k − 1)` per worker."""
    workers, k, _ = check_params(params).confusion.shape
    return count_parameters(k, workers)


def count_parameters(num_classes: int, num_workers: Count) -> Count:
    """Return the number of free parameters of some workers, whose number may be traced."""
    return num_classes - 1 + num_classes * (num_classes - 1) * num_workers


def permute(params: DawidSkene, order: ArrayLike) -> DawidSkene:
    """Return the same model with its hidden classes in another order: class `i` is the old `order[i]`.

    The labels that workers give keep their names, so that a class is no longer that of the label with its number.
    """
    params = check_params(params)
    index = check_order(order, params.prior.shape[0])
    return DawidSkene(params.prior[index], params.confusion[:, :, index])


def component_columns(params: DawidSkene) -> Float[Array, "rows k"]:
    """Return one column per class, by which the classes of two estimates are matched: all workers' matrices, stacked.

    Row `worker · k + label`.
    """
    return stack(check_params(params).confusion)


def sample(key: Array, params: DawidSkene, num_samples: int, *, labels_per_item: int = 5) -> Sample:
    """Draw items, and labels of each by different workers.

    Args:
      key: a random key.
      params: the model.
      num_samples: number of items.
      labels_per_item: number of workers that label each item, drawn at random.

    Returns:
      `Sample(x, hidden)`: `x` holds triples `(num_samples · labels_per_item, 3)` of item, worker and label; `hidden`
      holds the class of each item.

    """
    params = check_params(params)
    workers = params.confusion.shape[0]
    number = check_integer("labels_per_item", labels_per_item, 1, workers, " (the number of workers)")
    return _sample(check_key(key), params, check_num_samples(num_samples, 3 * number), number)


@partial(jax.jit, static_argnames=("num_samples", "labels_per_item"))
def _sample(key: Array, params: DawidSkene, num_samples: int, labels_per_item: int) -> Sample:
    key_hidden, key_worker, key_label = jax.random.split(key, 3)
    workers, k, _ = params.confusion.shape
    hidden = draw_components(key_hidden, params.prior, num_samples)

    def draw_workers(key: Array) -> Array:
        # Floyd's algorithm: the j-th draw is below `workers − labels + j + 1`; one that was taken stands for the end.
        def draw(taken: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            place, key = step
            last = workers - labels_per_item + place
            worker = jax.random.randint(key, (), 0, last + 1, jnp.int32)
            worker = jnp.where(jnp.any(taken == worker), last, worker)
            return taken.at[place].set(worker), worker

        places = jnp.arange(labels_per_item, dtype=jnp.int32)
        start = jnp.full(labels_per_item, -1, jnp.int32)
        return jax.lax.scan(draw, start, (places, jax.random.split(key, labels_per_item)))[1]

    worker = jax.vmap(draw_workers)(jax.random.split(key_worker, num_samples))
    # One column per worker and class.
    columns = jnp.moveaxis(params.confusion, 1, 0).reshape(k, workers * k)
    uniforms = jax.random.uniform(key_label, worker.shape, params.confusion.dtype)
    label = inverse_cdf(uniforms, columns, worker * k + hidden[:, None])
    item = jnp.broadcast_to(jnp.arange(num_samples, dtype=jnp.int32)[:, None], worker.shape)
    return Sample(jnp.stack([item, worker, label], axis=2).reshape(-1, 3), hidden)


def population_moments(params: DawidSkene) -> Moments:
    """Return the exact moments of the labels of all workers, stacked, as if every worker labelled every item.

    `Cπ`, `C diag(π) Cᵀ` and `Σ_h π_h c_h⊗c_h⊗c_h`, where `C` holds the confusion matrices one below the other. They are
    those of *distinct* workers: blocks of a worker with itself are what a copy of it would have.
    """
    return finite_moments("params", _population_moments(check_params(params)))


@small_jit
def _population_moments(params: DawidSkene) -> Moments:
    tables = stack(params.confusion)
    weighted = tables * params.prior[None, :]
    return Moments(
        first=jnp.sum(weighted, axis=1),
        second=matmul(weighted, tables.T),
        third=einsum("ih,jh,lh->ijl", weighted, tables, tables),
    )
