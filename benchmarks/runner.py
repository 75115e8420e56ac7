"""What all benchmarks share: options, reports, timing, and how a result is written down."""

import importlib
import json
import os
import pkgutil
import platform
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

# Where benchmarks are; other modules beside `demo` are what they share.
_FOLDERS = ("papers", "speed", "studies")


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
        """Return the path of a data file, or say where it was looked for."""
        beside = Path(benchmarks.__file__).resolve().parents[2] / "shared" / "data"
        named = os.environ.get("LATENSOR_DATA")
        places = [self.data] if self.data else [beside, *([Path(named)] if named else [])]
        for place in places:
            if (place / name).is_file():
                return place / name
        looked = ", ".join(str(place) for place in places)
        raise BenchmarkError(
            f"needs the data file {name}, which is not in {looked}; pass --data DIR or set LATENSOR_DATA"
        )


class Claim(NamedTuple):
    """What should hold, what was measured, and whether it held."""

    statement: str
    measured: str
    held: bool


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
        for folder in _FOLDERS
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


def run(name: str, options: Options) -> bool:
    """Run a benchmark, print and write what it found, and return whether all of its claims held."""
    _select(options.device)
    print(f"\n== {name}{' (quick)' if options.quick else ''}: {summary(name)}")
    start = time.perf_counter()
    report: Report = load(name).run(options)
    seconds = time.perf_counter() - start
    print(format_table(report.columns, report.rows))
    for claim in report.claims:
        print(f"[{'held' if claim.held else 'DID NOT HOLD'}] {claim.statement}: {claim.measured}")
    if options.quick and report.claims:
        print("(a quick run uses small sizes; the claims are about the full ones)")

    options.out.mkdir(parents=True, exist_ok=True)
    record = {
        "benchmark": name,
        "quick": options.quick,
        "device": options.device,
        "seconds": round(seconds, 2),
        "versions": {"python": platform.python_version(), "jax": jax.__version__, "numpy": np.__version__},
        "table": [dict(zip(report.columns, row, strict=True)) for row in report.rows],
        "claims": [claim._asdict() for claim in report.claims],
        **report.data,
    }
    (options.out / "data.json").write_text(json.dumps(record, indent=1, default=_plain) + "\n")
    written = ["data.json"]
    if report.figure is not None:
        report.figure.savefig(options.out / "figure.png", dpi=110)
        written.append("figure.png")
    print(f"{seconds:.1f} s; wrote {' and '.join(str(options.out / file) for file in written)}")
    return all(claim.held for claim in report.claims)


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()
