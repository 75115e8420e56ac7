"""A crowd of workers from the moments of their labels."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import check_integer, check_key, check_option, is_concrete, small_jit, square_root
from latensor.decompose import Status, match_columns
from latensor.decompose.internal import VIEW_METHODS, finite_status, status_if, worst
from latensor.models.blocks import normalize_blocks
from latensor.models.checks import check_moments
from latensor.models.classes import read_off, split_key
from latensor.models.crowd.data import as_data, check_labels
from latensor.models.crowd.evidence import weigh_evidence
from latensor.models.crowd.groups import Grouping, count_labels, draw_groups, group_moments, groups_of_moments
from latensor.models.crowd.likelihood import log_joint, wins
from latensor.models.crowd.params import DawidSkene, stack
from latensor.models.crowd.votes import Diagnostics, fit_by_vote, label_status
from latensor.models.evidence import add_evidence, coincide
from latensor.models.results import Fit, Spectrum
from latensor.models.views import NONNEGATIVE, factor_views, regress_columns
from latensor.moments import Labels, Moments, categorical_variables
from latensor.moments.internal import average_weights

METHODS = (*NONNEGATIVE, *VIEW_METHODS, "majority")
Method = Literal["ptpqp", "hals", "power", "ojd0", "ojd1", "nojd0", "nojd1", "majority"]
# A worker's own confusion matrix counts as much as that of the group where it is from so many labels per class: what
# regression finds from fewer is mostly noise.
_LABELS_PER_CLASS = 50
# A class that wins fewer than this share of an even part of the votes cannot be found by moments.
_FEWEST_WINS = 0.1


class Estimates(NamedTuple):
    """Estimates from several groupings, with a leading axis."""

    params: DawidSkene
    spectrum: Spectrum
    num_iters: Int[Array, " g"]
    residual: Float[Array, " g"]
    decomposition_status: Int[Array, " g"]
    raised: Bool[Array, " g"]
    group: Int[Array, "g workers"]


class _Options(NamedTuple):
    num_components: int
    method: Any
    num_restarts: int
    alive: tuple[int, ...]
    """Classes that are looked for: those that win votes."""


def fit(
    key: Array,
    x: Labels | ArrayLike,
    num_components: int,
    *,
    num_items: int | None = None,
    num_workers: int | None = None,
    row_weights: ArrayLike | None = None,
    method: Method = "ptpqp",
    num_restarts: int = 8,
    num_groupings: int = 4,
) -> Fit:
    """Estimate how reliable workers are, and how frequent classes, by the method of moments.

    Workers are dealt into three groups at random. The mean label of a group is a view of the item's class, independent
    of those of the others given the class. Their pair and triple moments give the groups' confusion matrices, and a
    regression on the views each worker's own, which is drawn towards its group's where its labels are few. Of several
    groupings the likeliest estimate is kept. A hidden class has the name of the label that is given to it most: on
    average, workers are right more often than they make any one mistake.

    Args:
      key: a random key, for the groups and the starts.
      x: `Labels`; or integers `(m, 3)`, one row per label: item, worker, label, each numbered from zero.
      num_components: number of classes `k ≥ 2`, the labels `0` to `k − 1`.
      num_items: number of items, where not all of them have labels.
      num_workers: number of workers, likewise.
      row_weights: one weight per item (default: equal).
      method: how the views' moments are decomposed: `"ptpqp"` or `"hals"`, nonnegative factors of the triple moment;
        `"power"`, `"ojd0"`, `"ojd1"`, `"nojd0"`, `"nojd1"` (see `latensor.decompose.conditionals_from_views`). Or
        `"majority"`: no moments, confusion matrices from the votes.
      num_restarts: random starts of the decomposition, or random projections.
      num_groupings: how often the workers are dealt.

    Returns:
      `Fit` with `Diagnostics`; its `residual` is the part of the groups' triple moment that is not explained, for
      `"majority"` the share of labels that differ from the vote. Classes have the names of labels, so they are not
      sorted. The status is `RANK_DEFICIENT` where half of the items do not find the k-th direction of the other half:
      workers do not tell all classes apart. It is `DEGENERATE` where a class wins hardly any votes: then it gets
      probability zero (under `jit` or `vmap`, where that cannot be known in advance, it is looked for all the same).
      It is `UNOBSERVED` where a worker has no labels; under `jit` or `vmap`, `NON_FINITE` where a label is out of
      range.

    Cost: `O(labels · k)` and `O(items · k³)` per grouping; nothing of size items × workers is formed.

    """
    key, options = check_key(key), _check_options(num_components, method, num_restarts)
    num_groupings, k = check_integer("num_groupings", num_groupings, 1), options.num_components
    labels = as_data(x, num_items=num_items, num_workers=num_workers, row_weights=row_weights)
    labels = _check_crowd(check_labels(labels, k), method)
    options = options._replace(alive=_find_alive(labels, k))
    key_groups, key_factors, key_evidence = split_key(key)
    if method == "majority":
        return add_evidence(*fit_by_vote(labels, k))
    counts = count_labels(labels, k)
    groupings = group_moments(labels, draw_groups(key_groups, counts, num_groupings), k)
    noise = jnp.asarray(np.asarray(1 / labels.num_items, labels.dtype))
    estimates = _estimate(key_factors, groupings, counts, noise, options)
    result = _arrange(estimates, _scores(estimates.params, labels), label_status(labels, k), options)
    drawn = _LABELS_PER_CLASS * k
    evidence = weigh_evidence(key_evidence, result.params, labels, result.diagnostics.groups, drawn, len(options.alive))
    return add_evidence(result, evidence)


def fit_moments(
    key: Array, moments: Moments, num_components: int, *, method: Method = "ptpqp", num_restarts: int = 8
) -> Fit:
    """Recover the model from dense moments, such as `population_moments`; exact where they are.

    Arguments as for `fit`, which never forms these moments. Blocks of a worker with itself are never used.
    """
    key, options = check_key(key), _check_options(num_components, method, num_restarts)
    if method == "majority":
        raise ValueError("method: expected one that decomposes moments; got 'majority', which needs the labels")
    moments = Moments(*check_moments(moments, Moments, ("first", "second", "third")))
    rows, k = moments.first.shape[0], options.num_components
    if rows % k or rows < 3 * k:
        raise ValueError(f"moments: expected {k} rows for each of at least three workers; got {rows} rows")
    key_groups, key_factors, _ = split_key(key)
    groupings = groups_of_moments(key_groups, moments, k)
    estimates = _estimate(key_factors, groupings, None, jnp.zeros_like(moments.first[0]), options)
    return _arrange(estimates, None, jnp.asarray(np.int32(Status.CONVERGED)), options)


def _check_options(num_components: Any, method: Any, num_restarts: Any) -> _Options:
    k = check_integer("num_components", num_components, 2, 1000)
    check_option("method", method, METHODS)
    return _Options(k, method, check_integer("num_restarts", num_restarts, 1), tuple(range(k)))


def _check_crowd(labels: Labels, method: str) -> Labels:
    """Return labels of which something can be learned."""
    if labels.num_workers < 3:
        raise ValueError(f"x: expected labels by at least three workers; got {labels.num_workers}")
    if is_concrete(labels.x):
        values = np.asarray(labels.x)
        used = np.unique(values[values[:, 0] >= 0, 2])
        if len(used) < 2:
            raise ValueError(
                f"x: expected at least two different labels; got {used[0]} only, of which nothing can be learned"
            )
        most = int(np.bincount(values[values[:, 0] >= 0, 0]).max())
        if most < 3 and method != "majority":
            raise ValueError(
                f"x: expected some items with labels by three workers or more, in whose agreement classes show; got at "
                f"most {most} per item: use method='majority'"
            )
    return labels


def _find_alive(labels: Labels, num_classes: int) -> tuple[int, ...]:
    """Return the classes that win enough votes to be looked for; under a trace, all."""
    every = tuple(range(num_classes))
    if not is_concrete(labels.x, labels.row_weights):
        return every
    with jax.ensure_compile_time_eval():
        share = np.asarray(wins(labels, num_classes))
    alive = tuple(int(each) for each in np.flatnonzero(share * num_classes >= _FEWEST_WINS))
    return alive if len(alive) > 1 else every


@small_jit(static_argnames="options")
def _estimate(
    key: Array,
    groupings: Grouping,
    counts: Float[Array, " workers"] | None,
    noise: Float[Array, ""],
    options: _Options,
) -> Estimates:
    """Decompose the views of each grouping and read the parameters off.

    `counts` are the labels of each worker, and `noise` is one divided by the items; `None` and zero for exact moments.
    """
    k, rank, alive = options.num_components, len(options.alive), np.asarray(options.alive)
    workers = groupings.group.shape[1]
    variables = categorical_variables(workers, k)
    dtype = groupings.views.third.dtype

    def one(key: Array, grouping: Grouping) -> Estimates:
        factored = factor_views(
            key, grouping.views, noise, rank, options.method, options.num_restarts, exact=counts is None
        )
        unit = square_root(jnp.concatenate(grouping.views.first))
        products = regress_columns(grouping.references, factored.rows, unit, variables.row_variables)
        seen = jnp.max(grouping.references.seen, axis=1)
        even = jnp.full(workers * k, 1 / k, dtype)
        prior, tables, raised = read_off(products, seen, even, variables)
        confusion = tables.reshape(workers, k, rank)
        if counts is not None:
            groups, _ = normalize_blocks(
                jnp.maximum(factored.rows, 0), jnp.full_like(factored.rows, 1 / k), categorical_variables(3, k)
            )
            own, drawn = counts[:, None, None], _LABELS_PER_CLASS * k
            # One label more, whatever it is: nothing is ruled out.
            total = own * confusion + drawn * groups.reshape(3, k, rank)[grouping.group] + 1 / k
            confusion = total / (own + drawn + 1)
        order = _names(confusion[:, alive], counts)
        return Estimates(
            _with_all_classes(DawidSkene(prior[order], confusion[:, :, order]), alive),
            factored.spectrum,
            factored.num_iters,
            factored.residual,
            factored.status,
            raised,
            grouping.group,
        )

    return jax.vmap(one)(jax.random.split(key, groupings.group.shape[0]), groupings)


def _with_all_classes(params: DawidSkene, alive: np.ndarray) -> DawidSkene:
    """Return parameters with classes that were not looked for: no item has one, and workers know them like others."""
    _, k, rank = params.confusion.shape
    if rank == k:
        return params
    right = jnp.mean(params.confusion[:, alive, np.arange(rank)], axis=1)[:, None, None]
    same = jnp.eye(k, dtype=right.dtype)[None]
    usual = right * same + (1 - right) / (k - 1) * (1 - same)
    prior = jnp.zeros(k, right.dtype).at[alive].set(params.prior)
    return DawidSkene(prior, usual.at[:, :, alive].set(params.confusion))


def _names(confusion: Float[Array, "workers k k"], counts: Float[Array, " workers"] | None) -> Int[Array, " k"]:
    """Return the hidden class of each label: the assignment with the largest average diagonal."""
    share = jnp.ones(confusion.shape[0], confusion.dtype) if counts is None else counts
    average = jnp.sum(share[:, None, None] * confusion, axis=0)
    return match_columns(jnp.eye(average.shape[0], dtype=average.dtype), average, "assignment").permutation


@small_jit
def _scores(params: DawidSkene, labels: Labels) -> Float[Array, " g"]:
    """Return the mean log-likelihood of an item by each estimate."""
    weights = average_weights(labels.row_weights, labels.num_items, params.prior.dtype)

    def score(params: DawidSkene) -> Float[Array, ""]:
        return jnp.sum(weights * jax.nn.logsumexp(log_joint(params, labels), axis=1))

    return jax.lax.map(score, params)


@small_jit(static_argnames="options")
def _arrange(
    estimates: Estimates, scores: Float[Array, " g"] | None, input_status: Int[Array, ""], options: _Options
) -> Fit:
    """Return the estimate with the best score."""
    best = 0 if scores is None else jnp.argmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))
    chosen = jax.tree.map(lambda leaf: leaf[best], estimates)
    decomposition = chosen.decomposition_status
    if scores is not None:
        # The labels themselves say whether the rank is there.
        decomposition = jnp.where(decomposition == Status.RANK_DEFICIENT, Status.CONVERGED, decomposition)
    status = worst(
        input_status,
        decomposition,
        status_if(chosen.raised, Status.BOUNDARY),
        status_if(jnp.asarray(len(options.alive) < options.num_components), Status.DEGENERATE),
        status_if(coincide(stack(chosen.params.confusion)), Status.DEGENERATE),
        finite_status(chosen.params),
    )
    return Fit(
        chosen.params,
        status,
        chosen.num_iters,
        chosen.residual,
        Diagnostics(chosen.spectrum, estimates.decomposition_status, scores, chosen.group, None),
    )
