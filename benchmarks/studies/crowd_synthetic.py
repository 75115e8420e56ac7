"""Recovery of crowds of workers against labels per item and share of spammers: moments, votes, and the truth.

60 workers and 2,000 items of k = 3 equally frequent classes: with 3 labels per item, each worker has labelled about 100
items, as in common crowdsourcing jobs, where neither an item alone nor a worker alone says much. Workers are right in
50 to 90 % of the items of a class (uniform, for each class apart) and divide their mistakes at random. Spammers answer
at random, each with frequencies of its own from Dirichlet(1), whatever the item. 100 trials per setting, vmapped.

EM is `refine` with one label added to each cell, its default, and equally likely classes, which is true here, run until
a step gains less than 1e-10 of the objective, in double precision, from three starts: `fit` with its defaults, the
majority vote, and the true parameters. A start reaches the truth's if its objective, the log-likelihood plus the
logarithm of the prior, is at most 1e-4 nats per item below.

Claim (ours): with 30 % of spammers and 3 labels per item, EM from `fit` reaches the objective of EM from the truth in
at least 95 % of the trials.
"""

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm import tqdm

from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report, double_precision
from latensor.decompose import Status
from latensor.models import crowd
from latensor.models.crowd import DawidSkene
from latensor.moments import Labels

_WORKERS, _CLASSES, _PSEUDO_COUNT = 60, 3, 1.0
_SPAMMERS, _LABELS = (0.0, 0.15, 0.3, 0.5), (3, 5, 10)
_STARTS = ("fit", "majority vote", "the truth")
_CLAIMED = (0.3, 3)
_LOOKS = {
    "majority vote": ("grey", "-"),
    "fit": ("blue", ":"),
    "EM from the vote": ("orange", "-"),
    "EM from fit": ("blue", "-"),
    "EM from the truth": ("green", "--"),
}


class _Outcome(NamedTuple):
    """One trial, or several with a leading axis."""

    objectives: Array
    """From each start, in nats per item."""
    num_iters: Array
    errors: Array
    """Share of wrong items, in the order of `_LOOKS`."""
    status: Array


def _draw_workers(key: Array, num_spammers: Array) -> DawidSkene:
    """Return workers, the first of whom are spammers."""
    key_right, key_wrong, key_spam = jax.random.split(key, 3)
    k, shape = _CLASSES, (_WORKERS, _CLASSES)
    right = jax.random.uniform(key_right, shape, minval=0.5, maxval=0.9)
    # Shares of the other labels among the mistakes, in a circle from the right one.
    wrong = jax.random.dirichlet(key_wrong, jnp.ones(k - 1), shape)
    circle = jnp.concatenate([right[:, :, None], (1 - right)[:, :, None] * wrong], axis=2)
    turn = (jnp.arange(k)[:, None] - jnp.arange(k)[None, :]) % k
    confusion = jnp.take_along_axis(jnp.swapaxes(circle, 1, 2), jnp.broadcast_to(turn, (_WORKERS, k, k)), axis=1)
    spam = jnp.broadcast_to(jax.random.dirichlet(key_spam, jnp.ones(k), (_WORKERS,))[:, :, None], confusion.shape)
    is_spammer = jnp.arange(_WORKERS) < num_spammers
    return DawidSkene(jnp.full(k, 1 / k), jnp.where(is_spammer[:, None, None], spam, confusion))


def _wrong(shares: Array, hidden: Array) -> Array:
    """Return the share of wrong items; a tie counts as its share of right ones."""
    tied = shares >= jnp.max(shares, axis=1, keepdims=True) - 1e-9
    right = jnp.take_along_axis(tied, hidden[:, None], axis=1)[:, 0] / jnp.sum(tied, axis=1)
    return 1 - jnp.mean(right)


@partial(jax.jit, static_argnames=("num_items", "labels_per_item"))
def _trial(key: Array, num_spammers: Array, num_items: int, labels_per_item: int) -> _Outcome:
    key_workers, key_sample, key_fit = jax.random.split(key, 3)
    truth = _draw_workers(key_workers, num_spammers)
    x, hidden = crowd.sample(key_sample, truth, num_items, labels_per_item=labels_per_item)
    labels = Labels(x, num_items, _WORKERS)
    fit = crowd.fit(key_fit, labels, _CLASSES)
    vote = crowd.fit(key_fit, labels, _CLASSES, method="majority")
    starts = jax.tree.map(lambda *leaves: jnp.stack(leaves), fit.params, vote.params, truth)

    def climb(start: DawidSkene) -> tuple[Array, Array, Array]:
        given: dict[str, Any] = {"pseudo_count": _PSEUDO_COUNT, "class_prior": "uniform", "pooling": 0.0}
        end = crowd.refine(start, labels, tol=1e-10, max_iters=2_000, **given)
        prior = _PSEUDO_COUNT / num_items * jnp.sum(jnp.log(end.params.confusion))
        return end.log_likelihood + prior, end.num_iters, _wrong(crowd.posterior(end.params, labels), hidden)

    objectives, num_iters, errors = jax.vmap(climb)(starts)
    before = [crowd.majority_vote(labels, _CLASSES), crowd.posterior(fit.params, labels)]
    alone = [_wrong(shares, hidden) for shares in before]
    return _Outcome(objectives, num_iters, jnp.stack([*alone, errors[1], errors[0], errors[2]]), fit.status)


def run(options: Options) -> Report:
    """Run all settings."""
    trials = options.trials or (3 if options.quick else 100)
    num_items = 500 if options.quick else 2_000
    per_item, spammers = (_LABELS[:1], (0.0, 0.3)) if options.quick else (_LABELS, _SPAMMERS)
    outcomes: dict[tuple[float, int], _Outcome] = {}
    with double_precision():
        keys = jax.random.split(jax.random.key(14), trials)
        for labels_per_item in per_item:
            run_all = jax.vmap(partial(_trial, num_items=num_items, labels_per_item=labels_per_item), (0, None))
            for share in tqdm(spammers, desc=f"{labels_per_item} labels per item"):
                number = jnp.asarray(round(share * _WORKERS))
                outcomes[share, labels_per_item] = jax.tree.map(np.asarray, run_all(keys, number))
    rows = [_row(setting, outcome) for setting, outcome in outcomes.items()]
    columns = ["spammers", "labels", *(f"{name} %" for name in _LOOKS), "fit reaches truth", "vote reaches truth"]
    columns += ["fit above by 1e-4", "EM steps", "status of fit"]
    claims = [_claim(outcomes[_CLAIMED], trials)]
    return Report(columns, rows, claims, {"items": num_items, "trials": trials}, _picture(outcomes, per_item))


def _gaps(outcome: _Outcome) -> np.ndarray:
    """Return how far above the truth's the objectives of the other two starts are."""
    return np.asarray(outcome.objectives[:, :2] - outcome.objectives[:, 2:])


def _row(setting: tuple[float, int], outcome: _Outcome) -> list[Any]:
    share, labels_per_item = setting
    gaps = _gaps(outcome)
    ends = Counter(Status(int(value)).name for value in outcome.status)
    return [
        f"{share:.0%}",
        labels_per_item,
        *(f"{100 * error:.2f}" for error in outcome.errors.mean(axis=0)),
        *(f"{value:.0%}" for value in np.mean(gaps >= -1e-4, axis=0)),
        f"{np.mean(gaps[:, 0] > 1e-4):.0%}",
        " ".join(str(int(value)) for value in np.median(outcome.num_iters, axis=0)),
        ", ".join(f"{number} {end}" for end, number in ends.items()),
    ]


def _claim(outcome: _Outcome, trials: int) -> Claim:
    gaps = _gaps(outcome)
    share = np.mean(gaps >= -1e-4, axis=0)
    return Claim(
        "30 % spammers, 3 labels per item: EM from fit reaches EM from the truth in at least 95 % of the trials",
        f"{share[0]:.0%} of {trials} (lowest {gaps[:, 0].min():+.1e} nats per item); EM from the vote {share[1]:.0%}",
        bool(share[0] >= 0.95),
    )


def _picture(outcomes: dict[tuple[float, int], _Outcome], per_item: tuple[int, ...]) -> Any:
    made, axes = figure(len(per_item), (2.8 * len(per_item) + 0.4, 3.2))
    shares = sorted({share for share, _ in outcomes})
    for axis, number in zip(axes, per_item, strict=True):
        means = np.array([100 * outcomes[share, number].errors.mean(axis=0) for share in shares])
        for (name, (colour, line)), values in zip(_LOOKS.items(), means.T, strict=True):
            axis.plot(
                [100 * share for share in shares], values, line, color=COLOURS[colour], marker="o", ms=3, label=name
            )
        axis.set(title=f"{number} labels per item", xlabel="spammers %", xticks=[100 * share for share in shares])
        axis.set_ylim(0, None)
    axes[0].set_ylabel("wrong items %")
    axes[0].legend(frameon=False, fontsize=7)
    return made
