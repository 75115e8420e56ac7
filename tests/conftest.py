"""Every annotation of latensor is enforced while the tests run, and arrays of different ranks never broadcast."""

import os

# Most of a test's time is compilation, of which LLVM's later passes are half; what they do matters for speed alone.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=1"

import jax
import jaxtyping
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jaxtyping.install_import_hook("latensor", "beartype.beartype")


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
