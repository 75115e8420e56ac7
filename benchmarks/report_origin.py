"""Where and when a run was made: date, releases, commit, hardware, settings in the environment."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

import benchmarks

ROOT = Path(benchmarks.__file__).resolve().parent.parent
# What a run depends on. Records and pages are made after it.
_CODE = ("base", "moments", "decompose", "models", "benchmarks", ":!benchmarks/records", ":!benchmarks/figures")
_ALWAYS = ("jax", "jaxlib", "numpy")
# The libraries that some benchmarks compare with, by the module that they are imported as.
_PEERS = {
    "crowdkit": "crowd-kit",
    "hmmlearn": "hmmlearn",
    "sklearn": "scikit-learn",
    "stepmix": "stepmix",
    "tensorly": "tensorly",
}


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def commit() -> str | None:
    """Return the short name of the commit, with a `+` where code was changed since; `None` outside a checkout."""
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != ROOT:
        return None
    name = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", *_CODE)
    return f"{name}+" if name and changed else name


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Return the releases of Python, of what latensor stands on, and of the peers that this process has imported."""
    names = ["latensor", *_ALWAYS, *(name for module, name in _PEERS.items() if module in sys.modules)]
    known = {name: _version(name) for name in names}
    return {"python": platform.python_version(), **{name: version for name, version in known.items() if version}}


def hardware(device: str) -> str:
    """Return what the processor is, and how many cores this process may use."""
    kind = jax.devices(device)[0].device_kind
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    own = f"{platform.machine()}, {cores} {'core' if cores == 1 else 'cores'}"
    return own if kind == device else f"{kind} ({own})"


def settings() -> dict[str, str]:
    """Return the variables of the environment that change what a benchmark does; where the data are does not."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name == "JAX_ENABLE_X64" or (name.startswith("LATENSOR_") and name != "LATENSOR_DATA")
    }


def origin(device: str, name: str | None) -> dict[str, Any]:
    """Return all of it, as a run writes it down, with the name of the commit as it was when the run began."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": versions(),
        **({"commit": name} if name else {}),
        "hardware": hardware(device),
        "settings": settings(),
    }
