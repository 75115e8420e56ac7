"""Five sets of labels by crowds (Zhang, Chen, Zhou, Jordan 2014), and the error of classes against the truth."""

from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

from benchmarks.runner import Options
from latensor.models import crowd
from latensor.moments import Labels

SETS = ("bluebird", "rte", "trec", "dog", "web")
# Probabilities that differ by less are tied.
_TIE = 1e-6


class Crowd(NamedTuple):
    """Labels, and the true classes of some of the items."""

    labels: Labels
    num_classes: int
    items: np.ndarray
    """The items whose class is known."""
    truth: np.ndarray
    """Their classes."""


def read_crowd(options: Options, name: str) -> Crowd:
    """Return one of the sets. Its file of the truth may name an item more than once."""
    truth_file = options.data_file(f"crowdsourcing/{name}_truth.txt")
    file = crowd.read_labels(options.data_file(f"crowdsourcing/{name}_crowd.txt"))
    rows = np.unique(np.loadtxt(truth_file, dtype=int), axis=0)
    places = {item: place for place, item in enumerate(file.items)}
    known = np.array([(places[str(item)], file.classes.index(str(label))) for item, label in rows])
    return Crowd(file.labels, len(file.classes), known[:, 0], known[:, 1])


def error_percent(shares: ArrayLike, data: Crowd) -> float:
    """Return how many of the items with a known class are wrong, in percent; a tie counts as its share of right ones.

    Args:
      shares: `(items, classes)`, probabilities or votes.
      data: the set.

    """
    known = np.asarray(shares)[data.items]
    tied = known >= known.max(axis=1, keepdims=True) - _TIE
    right = tied[np.arange(len(known)), data.truth] / tied.sum(axis=1)
    return 100 * float(1 - right.mean())
