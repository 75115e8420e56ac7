"""A reader for text files with one label per row: `item worker label`."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from latensor.base import check_integer, check_option
from latensor.moments import Labels

_SHOWN = 3


class LabelFile(NamedTuple):
    """Labels of a file, and what their numbers stand for."""

    labels: Labels
    items: tuple[str, ...]
    """The id of each item, in the order in which they first occur."""
    workers: tuple[str, ...]
    """The id of each worker, likewise."""
    classes: tuple[str, ...]
    """The name of each class: in numerical order if all are whole numbers, else in alphabetical order."""


def read_labels(
    path: str | os.PathLike[str],
    *,
    classes: Sequence[str] | None = None,
    workers: Sequence[str] | None = None,
    duplicates: Literal["error", "last"] = "error",
    skip_rows: int = 0,
) -> LabelFile:
    """Read rows `item worker label`, separated by tabs, commas or spaces; ids may be anything.

    Args:
      path: the file, in UTF-8. A separator is a tab if the first row has one, else a comma if it has one, else spaces.
        Empty rows are passed over. Quotes are part of the ids.
      classes: names of all classes in order, where some do not occur or the order matters. A label that is none of them
        is an error.
      workers: ids of all workers in order, as in `LabelFile.workers` of an earlier file: parameters that were learned
        from that one apply to the labels of this one. A worker who is none of them is an error.
      duplicates: what a second label by the same worker for the same item is: an `"error"`, or a correction of the
        first, of which the `"last"` is kept.
      skip_rows: number of lines at the beginning that are not labels, such as a header; empty ones count.

    Returns:
      `LabelFile(labels, items, workers, classes)`. Rows that are not three fields raise a `ValueError` with their line
      numbers.

    """
    check_option("duplicates", duplicates, ("error", "last"))
    skip_rows = check_integer("skip_rows", skip_rows, 0)
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"path: expected the name of a file; got {type(path).__name__}")
    if classes is not None and len({str(name) for name in classes}) < len(classes):
        raise ValueError(f"classes: expected different names; got {list(classes)}")
    try:
        with Path(path).open(encoding="utf-8-sig", newline=None) as file:
            lines = [(number, line.strip()) for number, line in enumerate(file, 1)]
    except UnicodeDecodeError as error:
        raise ValueError(f"path: expected a text file in UTF-8; {Path(path).name} is not ({error.reason})") from None
    rows = [(number, line) for number, line in lines[skip_rows:] if line]
    if not rows:
        raise ValueError(f"path: expected rows of item, worker and label; {Path(path).name} has none")
    separator = "\t" if "\t" in rows[0][1] else "," if "," in rows[0][1] else None
    fields = [(number, [part.strip() for part in line.split(separator)]) for number, line in rows]
    bad = [(number, parts) for number, parts in fields if len(parts) != 3 or not all(parts)]
    if bad:
        shown = "; ".join(f"line {number}: {len(parts)} fields, {parts}" for number, parts in bad[:_SHOWN])
        raise ValueError(
            f"path: expected three fields in every row, item, worker and label; got {len(bad)} other rows in "
            f"{Path(path).name}: {shown}"
        )
    items, item = _number([parts[0] for _, parts in fields])
    if classes is None and workers is None:
        _refuse_header(fields, Path(path).name)
    known, worker = _number([parts[1] for _, parts in fields], workers)
    for (number, parts), place in zip(fields, worker, strict=True):
        if workers is not None and place >= len(workers):
            raise ValueError(
                f"path: expected workers among those given; got {parts[1]!r} in line {number} of {Path(path).name}"
            )
    names = _class_names([parts[2] for _, parts in fields]) if classes is None else tuple(str(name) for name in classes)
    places = {name: place for place, name in enumerate(names)}
    for number, parts in fields:
        if parts[2] not in places:
            raise ValueError(
                f"path: expected labels among classes = {list(names)[:10]}; got {parts[2]!r} in line {number} of "
                f"{Path(path).name}"
            )
    triples = np.stack([item, worker, [places[parts[2]] for _, parts in fields]], axis=1).astype(np.int32)
    if duplicates == "error":
        _refuse_duplicates(triples, fields, Path(path).name)
    return LabelFile(Labels(triples, len(items), len(known), duplicates=duplicates), items, known, names)


def _refuse_header(fields: list[tuple[int, list[str]]], name: str) -> None:
    """Raise where the item, the worker and the label of the first row all occur nowhere else."""
    (number, first), others = fields[0], fields[1:]
    if others and all(all(parts[i] != first[i] for _, parts in others) for i in range(3)):
        raise ValueError(
            f"path: expected rows of item, worker and label; line {number} of {name}, {first}, looks like a header, "
            "since all of it occurs nowhere else: pass skip_rows=1, or classes= if it is a label"
        )


def _number(names: list[str], known: Sequence[str] | None = None) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the distinct names in the order of their first occurrence, after known ones, and the number of each."""
    places: dict[str, int] = {str(name): place for place, name in enumerate(known or ())}
    numbers = [places.setdefault(name, len(places)) for name in names]
    return tuple(places), np.asarray(numbers)


def _class_names(labels: list[str]) -> tuple[str, ...]:
    names = set(labels)
    if all(re.fullmatch(r"[+-]?\d+", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def _refuse_duplicates(triples: np.ndarray, fields: list[tuple[int, list[str]]], name: str) -> None:
    first: dict[tuple[int, int], int] = {}
    for (number, parts), (item, worker, _) in zip(fields, triples.tolist(), strict=True):
        before = first.setdefault((item, worker), number)
        if before != number:
            raise ValueError(
                f"path: expected at most one label by each worker for each item; worker {parts[1]!r} labels item "
                f"{parts[0]!r} in lines {before} and {number} of {name}: pass duplicates='last' to keep the last"
            )
