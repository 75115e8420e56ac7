"""The shape of the package: what is installed, what importing it does, and which layer may know which."""

import ast
import importlib
import importlib.resources
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("moments", "decompose", "models")


@pytest.mark.parametrize("layer", LAYERS)
def test_public_names_exist_and_types_are_shipped(layer):
    module = importlib.import_module(f"latensor.{layer}")
    # Constants first, then the rest, each in order: as the linter has it.
    assert sorted(module.__all__, key=lambda name: (not name.isupper(), name)) == list(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
    assert importlib.resources.files(module).joinpath("py.typed").is_file()


def test_importing_configures_nothing():
    code = (
        "import jax; before = dict(jax.config.values); import latensor.models; import sys; "
        "assert dict(jax.config.values) == before; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("layer", "forbidden"), [("moments", ("decompose", "models")), ("decompose", ("moments", "models"))]
)
def test_lower_layers_do_not_know_the_others(layer, forbidden):
    for path in (ROOT / layer).glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                assert not module.startswith(tuple(f"latensor.{name}" for name in forbidden)), f"{path}: {module}"


def test_every_module_is_one_that_setuptools_installs():
    # Folders below the three layers would have to be named in pyproject.toml.
    for layer in LAYERS:
        assert not [path for path in (ROOT / layer).iterdir() if path.is_dir() and path.name != "__pycache__"]
