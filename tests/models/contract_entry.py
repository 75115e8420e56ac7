"""What an entry of the contract suite consists of, and how data are drawn from it."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, eq=False)
class Symmetry:
    """A change of the data that the estimate has to follow."""

    name: str
    data: Callable[[Any], Any]
    """The changed data."""
    params: Callable[[Any], Any]
    """Parameters that describe the changed data as the given ones describe the data."""
    log_likelihood: Callable[[Any], Any] = lambda data: 0.0
    """What the change adds to each row's log-likelihood."""
    posterior: Callable[[Any], Any] = lambda rows: rows
    """What becomes of the posterior, where components change their places."""
    broken: str = ""
    """Why `fit` does not follow it yet; the other verbs have to."""


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """One entry of the contract suite."""

    name: str
    """Name of the package: `latensor.models.<name>`."""
    params: Any
    """Example parameters: NumPy, or numbers. Three components, in decreasing order of clearly different frequencies.

    They overlap, so that four steps of EM still gain; and they are far enough apart for `fit` to converge on `num_rows`
    rows of which a tenth of the entries is missing.
    """
    data: Callable[[np.random.Generator, Any], Any]
    """Maps the `x` of a sample to a data type with row weights, and with a mask where the model takes one."""
    weights: Callable[[Any], Any]
    """How often each component occurs; `fit` sorts by it."""
    num_rows: int = 300
    """Of a sample. A multiple of three."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keywords for all verbs that have them."""
    symmetries: tuple[Symmetry, ...] = ()
    variant: str = ""
    """For models with more than one kind of data."""
    fit_tolerance: float = 1e-6
    """How closely fits agree in float64 that are the same in theory; at least the tolerance of the decomposition."""
    compiled_tolerance: float = 1e-7
    """How closely `fit` agrees in float64 with itself under `jit` and `vmap`."""
    single_tolerance: float = 2e-3
    """The same in float32."""
    has_exact_likelihood: bool = True
    num_components: Any = 3
    """What `fit` takes in this place; the graph of a graphical model."""
    order: Any = field(default_factory=lambda: np.array([2, 0, 1]))
    """What `permute` takes to put the components into this order."""
    hidden: Callable[[Any], Any] = lambda hidden: hidden
    """Which hidden variables of a sample `posterior` is about."""
    node: str | None = None
    """Where `posterior` is about several hidden variables, by their names, the one that is looked at."""
    other_functions: tuple[str, ...] = ()
    """Functions of the package that are no verbs."""

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights(self.params))
        assert weights.shape == (3,), f"{self}: expected three components; got {weights.shape}"
        assert np.all(np.diff(weights) < 0), f"{self}: expected components in decreasing order; got {weights}"
        assert self.num_rows % 3 == 0, f"{self}: expected a multiple of three rows; got {self.num_rows}"

    @property
    def module(self) -> Any:
        return importlib.import_module(f"latensor.models.{self.name}")

    def __str__(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name

    __repr__ = __str__


def change(data: Any, **functions: Callable[[np.ndarray], Any]) -> Any:
    """Return the data with functions applied to some of its fields, in NumPy: every operation of JAX would compile."""
    fields = {name: getattr(data, name) for name in functions if getattr(data, name, None) is not None}
    changed = {name: functions[name](np.asarray(value)) for name, value in fields.items()}
    return data._replace(**{name: jnp.asarray(value, fields[name].dtype) for name, value in changed.items()})


def draw(model: Model, seed: int, dtype: Any) -> Any:
    """Return data of a model: always of the same shapes."""
    params = cast(model.params, dtype)
    taken = inspect.signature(model.module.sample).parameters
    options = {name: value for name, value in model.options.items() if name in taken}
    sample = model.module.sample(jax.random.key(seed), params, model.num_rows, **options)
    return model.data(np.random.default_rng(seed), sample.x)


def cast(params: Any, dtype: Any) -> Any:
    """Return parameters of a floating type."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params)
