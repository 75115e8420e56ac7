"""Workers of the web set: their confusion matrices, and how well accuracies found without the truth are those with it.

15,567 labels of 2,665 pairs of query and web page, five grades of relevance, by 177 workers; `fit` and `refine` by
default. The picture shows workers with at least 30 labels: the two with the highest accuracy by the model, the two in
the middle and the two with the lowest; and the accuracy of all workers against the number of their labels. The measured
accuracy of a worker is the share of labels that agree with the truth, of items with a known class; the model's, from
`worker_accuracy`, never sees the truth.

Claim (ours): for workers with at least 30 labels of items with a known class, the correlation of the two accuracies is
at least 0.8.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.crowd_data import Crowd, error_percent, read_crowd
from benchmarks.plotting import COLOURS, INK, figure
from benchmarks.runner import Claim, Options, Report
from latensor.models import crowd

_ENOUGH = 30


class _Workers(NamedTuple):
    """One row per worker."""

    confusion: np.ndarray
    accuracy: np.ndarray
    """By the model."""
    num_labels: np.ndarray
    measured: np.ndarray
    """Share of the labels that agree with the truth."""
    num_known: np.ndarray
    """Number of labels of items with a known class."""


def _find_workers(data: Crowd) -> tuple[_Workers, float]:
    """Return the workers, and the error of the items' classes in percent."""
    fit = crowd.fit(jax.random.key(0), data.labels, data.num_classes)
    params = crowd.refine(fit.params, data.labels).params
    accuracy, num_labels = (np.asarray(part) for part in crowd.worker_accuracy(params, data.labels))
    truth = np.full(data.labels.num_items, -1)
    truth[data.items] = data.truth
    item, worker, label = np.asarray(data.labels.x).T
    known, right = truth[item] >= 0, truth[item] == label
    num_known = np.bincount(worker[known], minlength=len(accuracy))
    measured = np.bincount(worker[right], minlength=len(accuracy)) / np.maximum(num_known, 1)
    error = error_percent(crowd.posterior(params, data.labels), data)
    return _Workers(np.asarray(params.confusion), accuracy, num_labels, measured, num_known), error


def _choose(workers: _Workers) -> list[int]:
    """Return workers with many labels: the two best, two in the middle, and the two worst."""
    many = np.flatnonzero(workers.num_labels >= _ENOUGH)
    ranked = many[np.argsort(-workers.accuracy[many])]
    middle = len(ranked) // 2
    return [int(place) for place in (*ranked[:2], *ranked[middle - 1 : middle + 1], *ranked[-2:])]


def run(options: Options) -> Report:
    """Fit the set and look at its workers."""
    data = read_crowd(options, "bluebird" if options.quick else "web")
    workers, error = _find_workers(data)
    chosen = _choose(workers)
    enough = workers.num_known >= _ENOUGH
    model, measured = workers.accuracy[enough], workers.measured[enough]
    correlation = float(np.corrcoef(model, measured)[0, 1])
    away = float(np.median(np.abs(model - measured)))
    rows: list[list[Any]] = [
        [
            worker,
            *(float(part[worker]) for part in (workers.accuracy, workers.measured)),
            int(workers.num_labels[worker]),
        ]
        for worker in chosen
    ]
    claim = Claim(
        f"accuracies without and with the truth, {enough.sum()} workers with {_ENOUGH} labels: correlation ≥ 0.8",
        f"{correlation:.2f}; the median difference is {away:.3f}; {error:.2f} % of the items are wrong",
        correlation >= 0.8,
    )
    return Report(["worker", "accuracy", "measured", "labels"], rows, [claim], {}, _picture(workers, chosen))


def _picture(workers: _Workers, chosen: list[int]) -> Any:
    made, axes = figure(4, (9.2, 4.4), rows=2)
    grid = axes[0].get_gridspec()
    k = workers.confusion.shape[1]
    for axis, worker in zip([*axes[0:3], *axes[4:7]], [*chosen[::2], *chosen[1::2]], strict=True):
        matrix = workers.confusion[worker]
        axis.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
        for (label, hidden), value in np.ndenumerate(matrix):
            colour = "white" if value > 0.6 else INK
            axis.text(hidden, label, f"{100 * value:.0f}", ha="center", va="center", fontsize=7, color=colour)
        names = range(1, k + 1)
        axis.set(xticks=range(k), xticklabels=names, yticks=range(k), yticklabels=names)
        axis.set_title(f"{100 * workers.accuracy[worker]:.0f} % right, {workers.num_labels[worker]} labels", fontsize=9)
        axis.spines[:].set_visible(False)
    for axis in (axes[0], axes[4]):
        axis.set_ylabel("label")
    for axis in axes[4:7]:
        axis.set_xlabel("class")
    axes[3].remove()
    axes[7].remove()
    scatter = made.add_subplot(grid[:, 3])
    scatter.spines[["top", "right"]].set_visible(False)
    known = workers.num_known > 0
    measured = scatter.scatter(workers.num_labels[known], 100 * workers.measured[known], s=10, color=COLOURS["grey"])
    model = scatter.scatter(workers.num_labels, 100 * workers.accuracy, s=10, color=COLOURS["blue"])
    scatter.set(xscale="log", xlabel="labels", ylabel="accuracy %", ylim=(0, 103))
    scatter.legend([model, measured], ["by the model", "by the truth"], frameon=False, loc="upper center", fontsize=7)
    return made
