"""The record of full runs: one small file per benchmark, from which docs/results.md is made.

A full run writes `results/NAME/data.json`, which is not committed. `python -m benchmarks report` takes what is worth
keeping from there into `benchmarks/records/NAME.json`, which is, and makes the page from these records alone.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.report_origin import ROOT
from benchmarks.report_page import page
from benchmarks.runner import BenchmarkError, names

RECORDS = ROOT / "benchmarks" / "records"
PAGE = ROOT / "docs" / "results.md"
# Longer tables are data: they stay in data.json, and in the figure.
_MAX_ROWS = 40
_FIELDS = ("benchmark", "date", "seconds", "device", "hardware", "trials", "settings", "versions", "claims")
_OPTIONAL = ("commit", "columns", "rows")


def make_record(run: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a run: claims, a table of at most 40 rows, when, where and with what.

    Args:
      run: what a benchmark wrote into `data.json`.

    Raises:
      BenchmarkError: for quick runs, whose sizes the claims are not about, and for runs of earlier releases, which have
        no date.

    """
    if run.get("quick", True):
        raise BenchmarkError("a quick run, which says nothing about the claims")
    missing = [name for name in (*_FIELDS, "columns", "rows") if name not in run]
    if missing:
        raise BenchmarkError(f"written by an earlier release, without {', '.join(missing)}: run it again")
    record = {name: run[name] for name in (*_FIELDS[:-1], "commit") if name in run}
    record["claims"] = run["claims"]
    if 0 < len(run["rows"]) <= _MAX_ROWS:
        record["columns"] = run["columns"]
        record["rows"] = [[_short(cell) for cell in row] for row in run["rows"]]
    return record


def _short(cell: Any) -> Any:
    """Return a cell of a table as it is shown: four digits of a number, text for what is not finite."""
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return cell if isinstance(cell, int | str) else str(cell)


def is_usual(record: dict[str, Any]) -> bool:
    """Return whether a run had the benchmark's own number of trials and no setting of the environment."""
    return record["trials"] is None and not record["settings"]


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records of a folder by the names of their benchmarks; refuse what no full run can have left."""
    records = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        if path.stem not in names():
            raise BenchmarkError(f"{path.name}: there is no benchmark of this name; remove the record")
        if record.get("quick") or any(claim["held"] is None for claim in record.get("claims", [])):
            raise BenchmarkError(f"{path.name}: of a quick run, which says nothing about the claims; remove it")
        if not set(_FIELDS) <= set(record) <= {*_FIELDS, *_OPTIONAL} or record["benchmark"] != path.stem:
            raise BenchmarkError(f"{path.name}: not a record that `python -m benchmarks report` has made; remove it")
        records[path.stem] = record
    return records


def collect(results: Path, folder: Path) -> list[str]:
    """Take newer full runs into the folder of records, and return a line for each run that was found.

    A run with another number of trials, or with settings of its own, does not replace one without.
    """
    records, lines = read_records(folder), []
    for name in names():
        path = results / name / "data.json"
        if not path.is_file():
            continue
        try:
            record = make_record(json.loads(path.read_text()))
        except (BenchmarkError, ValueError) as error:
            lines.append(f"{name}: refused: {error}")
            continue
        before = records.get(name)
        if before and record["date"] <= before["date"]:
            lines.append(f"{name}: the record is as new")
        elif before and is_usual(before) and not is_usual(record):
            lines.append(f"{name}: kept the record of the usual options; remove it to take this run in its place")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.json").write_text(_dump(record))
            lines.append(f"{name}: taken, of {record['date']}")
    return lines


def _dump(record: dict[str, Any]) -> str:
    """Return a record as JSON with a claim, or a row of the table, on each line: small, and readable in a diff."""
    parts = []
    for key, value in record.items():
        if key in ("claims", "rows") and value:
            lines = ",\n".join("  " + json.dumps(each, ensure_ascii=False) for each in value)
            parts.append(f" {json.dumps(key)}: [\n{lines}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def report(results: Path) -> None:
    """Take newer runs into the records, and make docs/results.md from them."""
    for line in collect(results, RECORDS):
        print(line)
    records = read_records(RECORDS)
    PAGE.write_text(page(records))
    print(f"wrote {PAGE.relative_to(ROOT)}: {len(records)} of {len(names())} benchmarks have a record")
