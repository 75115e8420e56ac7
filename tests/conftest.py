"""Every annotation of latensor is enforced while the tests run, and arrays of different ranks never broadcast."""

import gc
import importlib.util
import mmap
import os
from pathlib import Path


def _knows(flag):
    """Whether this release of jaxlib has a flag of XLA, which refuses to start on one that it does not have."""
    folder = Path(importlib.util.find_spec("jaxlib").origin).parent
    for library in [*folder.glob("*jax_common*"), *folder.glob("xla_extension*")]:
        if library.is_file() and library.stat().st_size:
            with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(flag.encode()) >= 0:
                    return True
    return False


# Nearly all of the tests' time is compilation: leave out what matters only for the speed of the code that comes out.
# The fusion emitters alone, which came after jaxlib 0.4.38, are half of it; cutting each program into modules that
# compile side by side is a tenth, and the other cores have tests of their own. Flags in the environment come last and
# win.
_FLAGS = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}
_flags = [f"--{flag}={value}" for flag, value in _FLAGS.items() if _knows(flag)]
os.environ["XLA_FLAGS"] = " ".join([*_flags, os.environ.get("XLA_FLAGS", "")])

# What was compiled once is read from the disk in the next run, in subprocesses too. The flags above are part of the
# key. Entries are never evicted: `make clean` removes them.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Every operation is lowered with the lines of Python that it comes from, which nobody reads here.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax
import jaxtyping
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jaxtyping.install_import_hook("latensor", "beartype.beartype")

# After the hook, so that these annotations are enforced too. Small stages ask for level 1 by themselves.
from latensor.base import _compile

_compile._CHEAP_OPTIONS["xla_backend_optimization_level"] = 0

# Tracing makes millions of small objects, hardly any of them in cycles: look for those less often.
gc.set_threshold(200_000, 50, 50)


# Every compiled function takes a dozen memory maps, of which Linux allows a process 65,530; beyond, it crashes.
_MOST_MAPS, _TESTS_PER_LOOK = 50_000, 20
_tests_since_look = 0


def pytest_runtest_teardown():
    """Drop compiled functions before there are too many."""
    global _tests_since_look
    _tests_since_look += 1
    maps = Path("/proc/self/maps")
    if _tests_since_look < _TESTS_PER_LOOK or not maps.exists():
        return
    _tests_since_look = 0
    if maps.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()


def pytest_collection_finish():
    """Leave out of every search for cycles what was imported: it stays anyway."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["float64", "float32"])
def precision(request):
    """Run the test in both precisions, as a user would: with x64 enabled, and without."""
    with _x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def float64():
    with _x64(True):
        yield


@pytest.fixture
def no_type_checks():
    """Switch the annotations off: for tests of what a user sees who passes the wrong thing."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class _x64:
    def __init__(self, on):
        self.on = on

    def __enter__(self):
        self.before = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", self.on)

    def __exit__(self, *_):
        jax.config.update("jax_enable_x64", self.before)
