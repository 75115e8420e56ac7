"""The shape of the package: what is installed, what importing it does, who may know whom, and how long files are."""

import ast
import importlib
import importlib.resources
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("base", "moments", "decompose", "models", "inference")
PUBLIC = ("moments", "decompose", "models", "inference")
MODELS = sorted(path.parent.name for path in (ROOT / "models").glob("*/__init__.py"))
ROOMS = ("__init__", "params", "spectral", "likelihood", "em")
# What each layer may import of ours.
BELOW = {
    "base": (),
    "moments": ("base",),
    "decompose": ("base",),
    "models": ("base", "moments", "decompose"),
    "inference": ("base", "moments", "decompose", "models"),
}
MAX_LINES = 300


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).glob("**/*.py"))]


def module_name(path):
    """Return the name that a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("latensor", *parts)).removesuffix(".__init__")


def imports(path):
    """Return `(module, name)` for each of our names that a file imports; the name is empty for whole modules."""
    pairs = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            pairs += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            pairs += [(alias.name, "") for alias in node.names]
    return [(module, name) for module, name in pairs if module.split(".")[0] == "latensor"]


def imported_modules(path):
    """Return the modules of ours that a file imports, as a name or from a package."""
    modules = {module_name(each) for each in sources(*LAYERS)}
    return {f"{module}.{name}" if f"{module}.{name}" in modules else module for module, name in imports(path)}


# Layers.
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_import_only_what_is_below_them(layer):
    for path in sources(layer):
        for module in imported_modules(path):
            assert module.split(".")[1] in (layer, *BELOW[layer]), f"{path}: {module}"


@pytest.mark.parametrize("layer", LAYERS)
def test_other_layers_use_only_public_names_and_internal(layer):
    for path in sources(layer, "benchmarks"):
        for module in imported_modules(path):
            _, other, *rest = module.split(".")
            if other not in (layer, "models"):
                assert not any(part.startswith("_") for part in rest), f"{path}: {module}"


@pytest.mark.parametrize("model", MODELS)
def test_models_have_the_same_rooms_and_know_no_other_model(model):
    assert {f"{room}.py" for room in ROOMS} <= {path.name for path in (ROOT / "models" / model).iterdir()}
    others = tuple(f"latensor.models.{other}" for other in MODELS if other != model)
    for path in sources(f"models/{model}"):
        for module in imported_modules(path):
            assert not module.startswith(others), f"{path}: {module}"


def definitions(path):
    """Return the top-level names of a file, each with the names that its definition mentions."""
    mentioned = {}
    for node in ast.parse(path.read_text()).body:
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            mentioned[node.name] = names
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            mentioned |= {
                each.id: names for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
            }
    return mentioned


def users_of_shared_names():
    """Return, for each name of a shared module of models, the models that use it: directly or through other names."""
    shared = {module_name(path): path for path in (ROOT / "models").glob("*.py") if path.name != "__init__.py"}
    uses = {}
    for module, path in shared.items():
        names = definitions(path)
        origin = {name: (module, name) for name in names} | {name: (source, name) for source, name in imports(path)}
        uses |= {(module, name): {origin[each] for each in names[name] if each in origin} for name in names}
    users = {name: set() for name in uses}
    for model in MODELS:
        reached = [name for path in sources(f"models/{model}") for name in imports(path)]
        while reached:
            name = reached.pop()
            if name in users and model not in users[name]:
                users[name].add(model)
                reached += uses[name]
    return users


def test_what_is_shared_is_used_by_two_models():
    users = {name: models for name, models in users_of_shared_names().items() if not name[1].startswith("_")}
    assert {name: sorted(models) for name, models in users.items() if len(models) < 2} == {}


# Files.
def test_files_are_short():
    long = {str(path): len(path.read_text().splitlines()) for path in sources(*LAYERS, "benchmarks", "tests")}
    assert {path: lines for path, lines in long.items() if lines > MAX_LINES} == {}


def test_products_in_full_precision_are_those_of_base():
    for path in sources("moments", "decompose", "models"):
        assert not re.search(r"""precision\s*=\s*["']|Precision\.""", path.read_text()), path


def test_only_one_file_walks_over_rows():
    # Blocks of rows are cut out and put back by `sum_over_rows` and `map_over_rows`. Blocks of dimensions are another
    # matter, and `decompose` never sees data.
    allowed = {Path("moments/_rows.py"), Path("moments/_cumulants.py")}
    cutting = {path.relative_to(ROOT) for path in sources("moments", "models") if "_slice_in_dim" in path.read_text()}
    assert cutting <= allowed


# Public names.
@pytest.mark.parametrize("package", [*PUBLIC, *(f"models.{model}" for model in MODELS)])
def test_public_names_exist_sorted_and_with_docstrings(package):
    module = importlib.import_module(f"latensor.{package}")
    # Constants first, then classes, then functions, each in order: as the linter has it.
    assert list(module.__all__) == sorted(module.__all__, key=lambda name: (not name.isupper(), name))
    for name in module.__all__:
        value = getattr(module, name)
        if callable(value) or inspect.ismodule(value):
            documentation = inspect.getdoc(value) or ""
            assert len(documentation) > 20, name
            # That of a NamedTuple or a dataclass without one lists its fields.
            assert not documentation.startswith(f"{name}("), name


@pytest.mark.parametrize(("layer", "limit"), [("moments", 30), ("decompose", 40)])
def test_public_names_are_few(layer, limit):
    assert len(importlib.import_module(f"latensor.{layer}").__all__) <= limit


def test_every_model_is_public():
    models = importlib.import_module("latensor.models")
    assert set(MODELS) <= set(models.__all__)
    for layer in LAYERS:
        assert importlib.resources.files(f"latensor.{layer}").joinpath("py.typed").is_file()


def test_importing_configures_nothing():
    code = (
        "import jax; before = dict(jax.config.values); import latensor.inference; import sys; "
        "assert dict(jax.config.values) == before; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The wheel.
def test_wheel_has_every_package_and_imports_from_anywhere(tmp_path):
    """Build from a copy of the sources, so that nothing is left behind in the checkout."""
    checkout, target, empty = (tmp_path / name for name in ("checkout", "target", "empty"))
    for path in [*sources(*LAYERS), *(ROOT / layer / "py.typed" for layer in LAYERS)]:
        copy = checkout / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    empty.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile"]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([*install, "--target", target, checkout], check=True, env=environment)
    installed = {path.relative_to(target / "latensor") for path in (target / "latensor").glob("**/*.py")}
    assert installed == {path.relative_to(ROOT) for path in sources(*LAYERS)}
    assert {path.parent.name for path in (target / "latensor").glob("**/py.typed")} >= set(LAYERS)
    modules = [f"latensor.models.{model}" for model in MODELS]
    # The folder of the wheel comes before the checkout, which an editable install would find.
    code = f"import {', '.join(modules)}; assert latensor.models.__file__.startswith({str(target)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=empty, env={**os.environ, "PYTHONPATH": str(target)})
