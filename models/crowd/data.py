"""Labels, checked against a number of classes or against a model."""

from typing import Any

import numpy as np
from jax.typing import ArrayLike

from latensor.base import is_concrete
from latensor.models.crowd.files import LabelFile
from latensor.models.crowd.params import DawidSkene, check_params
from latensor.moments import Labels
from latensor.moments.internal import as_labels


def check_labels(labels: Labels, num_classes: int) -> Labels:
    """Return labels that are below `num_classes`; concrete ones are looked at."""
    if is_concrete(labels.x):
        values = np.asarray(labels.x)
        bad = (values[:, 0] >= 0) & (values[:, 2] >= num_classes)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            hint = f" (labels from 1 to {num_classes}: subtract one)" if _starts_at_one(values, num_classes) else ""
            raise ValueError(
                f"x: expected labels from 0 to {num_classes - 1}, one for each class; got {values[row, 2]} at row {row}"
                f"{hint}"
            )
    return labels


def _starts_at_one(values: np.ndarray, num_classes: int) -> bool:
    given = values[values[:, 0] >= 0, 2]
    return bool(given.min() == 1 and given.max() == num_classes)


def as_data(
    x: Labels | LabelFile | ArrayLike,
    *,
    num_items: int | None = None,
    num_workers: int | None = None,
    row_weights: ArrayLike | None = None,
) -> Labels:
    """Return the data of this model: `Labels` of an array or of a file that was read. Arguments as for `fit`."""
    array = x.labels if isinstance(x, LabelFile) else x
    return as_labels(array, num_items=num_items, num_workers=num_workers, row_weights=row_weights)


def check_pair(params: Any, x: Any, num_items: Any = None, row_weights: Any = None) -> tuple[DawidSkene, Labels]:
    """Return a model, and labels by its workers."""
    params = check_params(params)
    workers, k, _ = params.confusion.shape
    given = {"num_items": num_items, "row_weights": row_weights}
    if isinstance(x, Labels | LabelFile):
        labels = as_data(x, **given)
        if labels.num_workers > workers:
            raise ValueError(f"x: expected labels by {workers} workers, those of params; got {labels.num_workers}")
        # Stacked rows are those of all workers of the model.
        labels = labels._replace(num_workers=workers)
    else:
        labels = as_data(x, num_workers=workers, **given)
    return params, check_labels(labels, k)
