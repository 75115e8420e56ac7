"""Checks of what functions over models are given: a model, an estimate of it, its data and options."""

import inspect
from collections.abc import Hashable
from types import ModuleType
from typing import Any

import jax
import numpy as np

from latensor.base import is_concrete
from latensor.decompose import Status
from latensor.models import Fit, Refined
from latensor.moments.internal import Rows, as_table

# The verbs of a model of one hidden variable that functions over models call.
_VERBS = ("as_data", "component_columns", "fit", "permute", "refine")


def check_model(model: Any, verbs: tuple[str, ...] = _VERBS) -> ModuleType:
    """Return `model` if it is a module with the verbs that are needed."""
    expected = "model: expected a module of latensor.models, such as latensor.models.gaussian_mixture"
    if not isinstance(model, ModuleType):
        raise ValueError(f"{expected}; got {type(model).__name__}")
    missing = [verb for verb in verbs if not callable(getattr(model, verb, None))]
    if missing:
        raise ValueError(f"{expected}, of one hidden variable; got {model.__name__}, which has no {missing[0]}")
    return model


def model_name(model: ModuleType) -> str:
    """Return the last part of a model's name."""
    return model.__name__.rpartition(".")[2]


def check_estimate(model: ModuleType, fit: Any, allow_unconverged: bool) -> Fit | Refined:
    """Return `fit` if it is one estimate by this model, and, unless allowed otherwise, one that converged."""
    name = model_name(model)
    if not isinstance(fit, Fit | Refined):
        hint = " (pass the whole result, not its .params)" if hasattr(fit, "_fields") else ""
        raise ValueError(f"fit: expected what {name}.fit or {name}.refine returns; got {type(fit).__name__}{hint}")
    try:
        model.component_columns(fit.params)
    except ValueError as error:
        raise ValueError(f"fit: expected an estimate by {name}; got {error}") from None
    if np.ndim(fit.status):
        raise ValueError(f"fit: expected one estimate; got a batch of shape {np.shape(fit.status)}: use jax.vmap")
    if allow_unconverged or not is_concrete(fit.status) or fit.status == Status.CONVERGED:
        return fit
    status = Status(int(fit.status))
    raise ValueError(
        f"fit: expected an estimate that converged; its status is {status.name}: {status.message}. "
        "Pass allow_unconverged=True to go on with it all the same"
    )


def check_data(model: ModuleType, x: Any, keywords: dict[str, Any], function: str) -> Rows:
    """Return the data of a model, from an array and keywords such as `mask`, or from a data type."""
    # A graph takes a table of its own columns.
    read = getattr(model, "as_data", as_table)
    known = [name for name in inspect.signature(read).parameters if name != "x"]
    for name in keywords:
        if name not in known:
            raise TypeError(
                f"{function}() got an unexpected keyword argument {name!r}; the data of {model_name(model)} have "
                f"{', '.join(known)}; options of its fit or refine are passed as options={{...}}"
            )
    return read(x, **keywords)


def check_options(model: ModuleType, verb: str, options: Any, name: str = "options") -> dict[str, Any]:
    """Return options of a verb: keywords that are not about the data."""
    if options is None:
        return {}
    expected = f"{name}: expected a dict of keywords of {model_name(model)}.{verb}"
    if not isinstance(options, dict):
        raise ValueError(f"{expected}; got {type(options).__name__}")
    data = inspect.signature(model.as_data).parameters
    parameters = inspect.signature(getattr(model, verb)).parameters.values()
    known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.name not in data]
    for option in options:
        if option not in known:
            raise ValueError(f"{expected}, {', '.join(known)}; got {option!r}")
    return options


def split_options(options: dict[str, Any]) -> tuple[tuple[tuple[str, Hashable], ...], dict[str, Any]]:
    """Return options that are known before tracing, in a form that can be hashed, and those that are arrays."""

    def fixed(value: Any) -> Any:
        return tuple(fixed(part) for part in value) if isinstance(value, list | tuple) else value

    traced = {name: value for name, value in options.items() if isinstance(value, jax.Array | np.ndarray)}
    return tuple((name, fixed(value)) for name, value in sorted(options.items()) if name not in traced), traced


def check_level(level: Any) -> float:
    """Return the probability of an interval."""
    expected = "level: expected a number above 0 and below 1"
    try:
        share = float(level)
    except (TypeError, ValueError):
        raise ValueError(f"{expected}; got {level!r}") from None
    if not 0 < share < 1:
        raise ValueError(f"{expected}; got {level!r}")
    return share
