"""Data files: where they are, which there should be, and whether they are the ones that were measured.

`data.sha256` beside this module has a line for each file that a benchmark reads, in the format of `sha256sum`. The
files themselves are not part of the project; docs/data.md says where they come from.
"""

import hashlib
import os
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import benchmarks

_HERE = Path(benchmarks.__file__).resolve().parent
_SUMS = _HERE / "data.sha256"
# The exit status of `python -m benchmarks data`.
_AGREE, _DIFFER, _ABSENT = 0, 1, 2


class DataFile(NamedTuple):
    """A file that benchmarks read."""

    name: str
    """Data set and file, as `nltcs/nltcs.train.data`."""
    sha256: str


def expected() -> list[DataFile]:
    """Return the files that benchmarks read, with the checksums that they should have."""
    lines = (line.split(maxsplit=1) for line in _SUMS.read_text().splitlines())
    return [DataFile(name, sha256) for sha256, name in lines]


def places(data: Path | None) -> list[Path]:
    """Return the folders that are looked at: the given one, or one beside the checkout and `$LATENSOR_DATA`."""
    if data:
        return [data]
    named = os.environ.get("LATENSOR_DATA")
    return [_HERE.parents[1] / "shared" / "data", *([Path(named)] if named else [])]


def find(name: str, data: Path | None) -> Path | None:
    """Return the path of a data file, or `None` where no folder has it."""
    return next((place / name for place in places(data) if (place / name).is_file()), None)


def _state(file: DataFile, path: Path | None) -> str:
    if path is None:
        return "absent"
    return "agrees" if hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256 else "DIFFERS"


def check(data: Path | None) -> int:
    """Print which files are there, where, and whether they agree with their checksums; return the exit status.

    It is 0 where all are there and agree, 2 where some are absent, 1 where one differs.
    """
    counts = {"agrees": 0, "absent": 0, "DIFFERS": 0}
    for name, files in groupby(expected(), key=lambda file: file.name.split("/")[0]):
        found = [(file, find(file.name, data)) for file in files]
        folders = sorted({str(path.parent) for _, path in found if path})
        print(f"{name}: {', '.join(folders) or 'no folder'}")
        for file, path in found:
            state = _state(file, path)
            counts[state] += 1
            print(f"  {state:8} {file.name.split('/', 1)[1]}")
    print(f"{counts['agrees']} agree, {counts['absent']} absent, {counts['DIFFERS']} differ")
    if counts["absent"]:
        print("docs/data.md says where absent files come from; pass --data DIR or set LATENSOR_DATA")
    if counts["DIFFERS"]:
        return _DIFFER
    return _ABSENT if counts["absent"] else _AGREE
