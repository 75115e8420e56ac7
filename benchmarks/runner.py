"""What all benchmarks share: options, reports, timing, and how a result is written down."""

import importlib
import json
import pkgutil
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

import benchmarks
from benchmarks import data_files
from benchmarks.report_origin import commit, origin

# Where benchmarks are; other modules beside `demo` are what they share.
FOLDERS = ("papers", "speed", "studies")


class BenchmarkError(Exception):
    """A benchmark cannot run here, and why."""


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    quick: bool
    trials: int | None
    device: str
    out: Path
    data: Path | None = None

    def data_file(self, name: str) -> Path:
        """Return the path of a data file, or say what to do where it is absent."""
        path = data_files.find(name, self.data)
        if path is None:
            where = "the folder of --data" if self.data else "any folder that is looked at"
            raise BenchmarkError(
                f"needs the data file {name}, which is not in {where}: docs/data.md says where it comes from; "
                "pass --data DIR or set LATENSOR_DATA"
            )
        return path


class Claim(NamedTuple):
    """What should hold, what was measured, and whether it held."""

    statement: str
    measured: str
    held: bool
    any_size: bool = False
    """Whether it is about quick runs too. Other claims are about the full sizes, and quick runs do not judge them."""

    def judge(self, quick: bool) -> bool | None:
        """Return whether it held, or `None` where a run of these sizes cannot say."""
        return None if quick and not self.any_size else bool(self.held)


@dataclass
class Report:
    """What a benchmark found."""

    columns: list[str]
    rows: list[list[Any]]
    claims: list[Claim] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    figure: Any = None


class Timing(NamedTuple):
    """Seconds of the first call, which compiles, and the median of the warm ones."""

    first: float
    warm: float


def modules() -> dict[str, str]:
    """Return the module of every benchmark by its name."""
    here = Path(benchmarks.__file__).parent
    paths = {
        module.name: f"benchmarks.{folder}.{module.name}"
        for folder in FOLDERS
        for module in pkgutil.iter_modules([str(here / folder)])
        if not module.name.startswith("_")
    }
    return {"demo": "benchmarks.demo", **dict(sorted(paths.items()))}


def names() -> list[str]:
    """Return the names of all benchmarks."""
    return list(modules())


def load(name: str) -> ModuleType:
    """Import a benchmark."""
    return importlib.import_module(modules()[name])


def summary(name: str) -> str:
    """Return the first line of a benchmark's docstring."""
    return (load(name).__doc__ or "").strip().splitlines()[0]


@contextmanager
def double_precision() -> Iterator[None]:
    """Switch JAX to float64 for a while."""
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def measure(function: Callable[[], Any], repeats: int = 5) -> tuple[Timing, Any]:
    """Time a call, compile time apart, and return its result too. Every call waits for its arrays."""

    def once() -> tuple[float, Any]:
        start = time.perf_counter()
        result = jax.block_until_ready(function())
        return time.perf_counter() - start, result

    first, result = once()
    warm = [once()[0] for _ in range(repeats)]
    return Timing(first, float(np.median(warm))), result


def peak_gigabytes() -> float:
    """Return the largest memory that this process has had, in GB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def format_table(columns: list[str], rows: Iterable[list[Any]]) -> str:
    """Return a table in plain text."""
    cells = [columns, *([f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    padded = (
        [c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))] for line in cells
    )
    lines = ["  ".join(line) for line in padded]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _select(device: str) -> None:
    try:
        jax.config.update("jax_default_device", jax.devices(device)[0])
    except RuntimeError as error:
        raise BenchmarkError(f"no {device} that JAX can use ({str(error).splitlines()[0]})") from None


_VERDICTS = {True: "held", False: "DID NOT HOLD", None: "not judged"}


def run(name: str, options: Options) -> bool:
    """Run a benchmark, print and write what it found, and return whether all claims held that it can judge."""
    _select(options.device)
    print(f"\n== {name}{' (quick)' if options.quick else ''}: {summary(name)}")
    code, start = commit(), time.perf_counter()
    report: Report = load(name).run(options)
    seconds = time.perf_counter() - start
    print(format_table(report.columns, report.rows))
    verdicts = [claim.judge(options.quick) for claim in report.claims]
    for claim, verdict in zip(report.claims, verdicts, strict=True):
        print(f"[{_VERDICTS[verdict]}] {claim.statement}: {claim.measured}")
    if None in verdicts:
        print("(a quick run uses small sizes; claims about the full ones are not judged)")

    options.out.mkdir(parents=True, exist_ok=True)
    record = {
        "benchmark": name,
        "quick": options.quick,
        "trials": options.trials,
        "device": options.device,
        "seconds": round(seconds, 2),
        **origin(options.device, code),
        "claims": [
            {"statement": claim.statement, "measured": claim.measured, "held": verdict}
            for claim, verdict in zip(report.claims, verdicts, strict=True)
        ],
        "columns": report.columns,
        "rows": report.rows,
        "data": report.data,
    }
    (options.out / "data.json").write_text(json.dumps(record, indent=1, default=_plain) + "\n")
    written = ["data.json"]
    if report.figure is not None:
        report.figure.savefig(options.out / "figure.png", dpi=110)
        written.append("figure.png")
    print(f"{seconds:.1f} s; wrote {' and '.join(str(options.out / file) for file in written)}")
    return False not in verdicts


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()
