"""docs/results.md, made from the records of full runs and the docstrings of benchmarks. Nothing is typed by hand."""

import inspect
import re
from collections.abc import Iterable
from typing import Any

from benchmarks.runner import FOLDERS, load, modules, summary

Record = dict[str, Any]

_HEAD = """\
<!-- Made by `python -m benchmarks report` from benchmarks/records/; a test compares. Edit the benchmarks instead. -->
# How well, and how fast

A benchmark reproduces a figure or a table of a paper (`papers`), compares speed (`speed`), or looks into a question on
real or synthetic data (`studies`). It states claims, a paper's or our own; this page says which of them held in its
last full run. Speeds are ratios within one process, warm, with the compile time apart. A run also writes figures and
all numbers to `results/NAME/`. The data are described in [data.md](data.md), what the methods cannot do in
[limits.md](limits.md).
"""
_TITLES = {"demo": "Demo", "papers": "Papers", "speed": "Speed", "studies": "Studies"}
_LATER = "Benchmarks without a record were last reported, by hand, in [results-0.1.md](results-0.1.md).\n"


def page(records: dict[str, Record]) -> str:
    """Return the page."""
    groups = _groups()
    parts = [_HEAD, _overview(groups, records), _disagreements(groups, records)]
    for group, names in groups.items():
        if any(name in records for name in names):
            parts.append(f"## {_TITLES[group]}\n")
            parts += [_section(records[name]) for name in names if name in records]
    parts.append(_not_run([name for names in groups.values() for name in names if name not in records]))
    return "\n".join(part for part in parts if part)


def _groups() -> dict[str, list[str]]:
    """Return the names of the benchmarks by folder."""
    groups: dict[str, list[str]] = {"demo": [], **{folder: [] for folder in FOLDERS}}
    for name, module in modules().items():
        groups[module.split(".")[1]].append(name)
    return groups


def _claims(names: Iterable[str], records: dict[str, Record]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, claim) for name in names if name in records for claim in records[name]["claims"]]


def _overview(groups: dict[str, list[str]], records: dict[str, Record]) -> str:
    rows = []
    for group, names in groups.items():
        if group == "demo":
            continue
        held = [claim["held"] for _, claim in _claims(names, records)]
        run = sum(name in records for name in names)
        rows.append([f"`{group}`", len(names), run, sum(held), len(held) - sum(held)])
    rows.append(["all", *(sum(row[i] for row in rows) for i in range(1, 5))])
    return markdown_table(["", "benchmarks", "run in full", "claims that held", "did not hold"], rows)


def _disagreements(groups: dict[str, list[str]], records: dict[str, Record]) -> str:
    names = [name for group in groups.values() for name in group]
    lines = [
        f"- [`{name}`](#{name}): {_text(claim['statement'])}: **{_text(claim['measured'])}**"
        for name, claim in _claims(names, records)
        if not claim["held"]
    ]
    none = "None in the benchmarks that have a record." if records else "No full run has been recorded yet."
    rest = [f"\n{_LATER}"] if any(name not in records for name in names) else [""]
    return "\n".join(["## Disagreements: claims that did not hold\n", *(lines or [none]), *rest])


def _section(record: Record) -> str:
    name = record["benchmark"]
    trials = f" --trials {record['trials']}" if record["trials"] else ""
    device = f" --device {record['device']}" if record["device"] != "cpu" else ""
    settings = "".join(f"{key}={value} " for key, value in record["settings"].items())
    parts = [f"### {name}\n\n{_text(summary(name))}\n"]
    parts.append(f"    {settings}python -m benchmarks run {name}{trials}{device}\n")
    if trials or device or settings:
        parts.append("The options differ from the usual ones: " + _differences(record) + ".\n")
    if record["claims"]:
        rows = [["yes" if c["held"] else "**no**", c["statement"], c["measured"]] for c in record["claims"]]
        parts.append(markdown_table(["held", "claim", "measured"], rows))
    if any(not claim["held"] for claim in record["claims"]) and why(name):
        parts.append(why(name) + "\n")
    if "rows" in record:
        table = markdown_table(record["columns"], record["rows"])
        parts.append(f"<details><summary>Table</summary>\n\n{table}\n</details>\n")
    parts.append(_origin(record) + "\n")
    return "\n".join(parts)


def _differences(record: Record) -> str:
    trials = [f"{record['trials']} trials"] if record["trials"] else []
    device = [f"on a {record['device']}"] if record["device"] != "cpu" else []
    return ", ".join([*trials, *device, *(f"`{key}`" for key in record["settings"])])


def _origin(record: Record) -> str:
    """Say when, how long, on what and with what a run was made."""
    versions = dict(record["versions"])
    own = f"latensor {versions.pop('latensor', 'of unknown release')}"
    code = f" ({record['commit']})" if "commit" in record else ""
    python = f"Python {versions.pop('python')}"
    others = ", ".join(f"{name} {version}" for name, version in versions.items())
    seconds = f"{record['seconds']:.3g}" if record["seconds"] < 100 else f"{record['seconds']:,.0f}"
    where = f"{record['date'][:10]}, {seconds} s, {record['device']}: {record['hardware']}"
    return f"{where}; {own}{code}, {python}, {others}."


def _not_run(names: list[str]) -> str:
    if not names:
        return ""
    lines = [f"- `python -m benchmarks run {name}`: {_text(summary(name))}" for name in names]
    return "\n".join(["## Not run in full yet\n", *lines, ""])


def why(name: str) -> str:
    """Return the paragraph of a benchmark's docstring that explains why a claim did not hold, if it has one."""
    paragraphs = inspect.cleandoc(load(name).__doc__ or "").split("\n\n")
    return _text(next((" ".join(each.split()) for each in paragraphs if each.startswith("Why:")), ""))


def markdown_table(columns: list[str], rows: Iterable[list[Any]]) -> str:
    """Return a table in Markdown. Cells are not padded, so that a change of one leaves other lines as they are."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_text(str(cell)) for cell in line) + " |" for line in lines) + "\n"


def _text(text: str) -> str:
    """Return a text that Markdown shows as it is: a bar would end a cell, and angle brackets would be HTML."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", r"\|"))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)
