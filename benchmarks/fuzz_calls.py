"""Fuzzing without a trace: every public function with one or two of its arguments replaced by something else.

A call may return, or raise a `ValueError` whose message begins with the name of an argument. Nothing else.
"""

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

from latensor import decompose, models, moments
from latensor.decompose import Status
from latensor.moments import Variables, categorical_variables

PROPERTIES = ("other exception", "error without a name", "silent NaN")
_KEY = jax.random.key(0)
_RNG = np.random.default_rng(0)
_COLUMNS: Any = _RNG.dirichlet(np.ones(4), 2).T.astype(np.float32)
_REALS = (3 * _RNG.integers(0, 2, (20, 1)) + _RNG.normal(size=(20, 4))).astype(np.float32)
_COUNTS = _RNG.poisson(5 * _COLUMNS.T[_RNG.integers(0, 2, 20)] + 1).astype(np.float32)
_CODES = _RNG.integers(0, 3, (20, 6))
_VARIABLES = categorical_variables(6, 3)
_HALF: Any = np.full(2, 0.5, np.float32)
_TENSOR = np.einsum("ih,jh,lh->ijl", _COLUMNS, _COLUMNS, _COLUMNS)
_PAIR: Any = _COLUMNS @ _COLUMNS.T


def _good_models() -> dict[str, dict[str, Any]]:
    """Return arguments that all verbs of a model take."""
    gm, gp, nb = models.gaussian_mixture, models.gamma_poisson, models.naive_bayes
    mm, hm = models.mixed_membership, models.hidden_markov
    one: Any = np.float32(1.0)
    tables: Any = np.tile(_RNG.dirichlet(np.ones(3), 2).T.astype(np.float32), (6, 1))
    good = {
        "gaussian_mixture": {"params": gm.fit(_KEY, _REALS, 2).params, "x": _REALS},
        "gamma_poisson": {"params": gp.GammaPoisson(_COLUMNS, _HALF * 2, one), "x": _COUNTS},
        "naive_bayes": {"params": nb.NaiveBayes(_HALF, _COLUMNS), "x": _COUNTS},
        "mixed_membership": {
            "params": mm.MixedMembership(_HALF, tables),
            "x": _CODES,
            "variables": _VARIABLES,
            "concentration": 0.7,
            "anchors": ((0, 1), (2, 3), (4, 5)),
            "num_restarts": 2,
        },
        "hidden_markov": {
            "params": hm.HiddenMarkov(_HALF, jnp.tile(_HALF, (2, 1)), _COLUMNS),
            "x": _CODES,
            "num_symbols": 4,
            "length": 5,
        },
    }
    for name, arguments in good.items():
        module = getattr(models, name)
        population = {"variables": _VARIABLES} if name == "mixed_membership" else {}
        arguments |= {
            "key": _KEY,
            "num_components": 2,
            "num_samples": 3,
            "order": np.array([1, 0]),
            "max_iters": 3,
            "mask": np.ones(arguments["x"].shape, bool),
            "row_weights": np.ones(20, np.float32),
            "moments": module.population_moments(arguments["params"], **population),
        }
    return good


def _good_functions() -> dict[str, dict[str, dict[str, Any]]]:
    """Return arguments for the public functions of the two lower layers."""
    views = {"x1": _CODES[:, 0], "x2": _CODES[:, 1], "x3": _CODES[:, 2]}
    table = {"data": _REALS, "directions": _COLUMNS}
    modes = {"modes": ((0, 1), (2, 3), (4, 5)), "concentration": 0.7}
    anchor = tuple(np.array([True, True, False, False]) for _ in range(3))
    triple = (_COLUMNS, _COLUMNS, _COLUMNS)
    return {
        "moments": {
            "categorical_variables": {"num_variables": 3, "size": 3},
            "contract_cross_moments": {**views, "directions": tuple(np.eye(3, dtype=np.float32) for _ in range(3))},
            "contract_document_moments": {"data": _COUNTS, "directions": _COLUMNS},
            "contract_gamma_poisson_moments": table,
            "contract_gaussian_moments": {**table, "variance": 1.0},
            "contract_sequence_moments": {"data": _REALS, "directions": _COLUMNS},
            "contract_third_cumulant": table,
            "cross_moments": {**views, "num_categories": 3, "row_weights": np.ones(20)},
            "cumulants": {"data": _REALS},
            "dirichlet_cross_moments": {"data": moments.Table(_CODES, variables=_VARIABLES), **modes},
            "document_moments": {"data": _COUNTS},
            "gamma_poisson_moments": {"data": _COUNTS},
            "gaussian_moments": {"data": _REALS, "variance": 1.0},
            "joint_observation_rates": {"data": _REALS},
            "observation_rates": {"data": _REALS},
            "sequence_moments": {"data": _CODES},
        },
        "decompose": {
            "choose_anchors": {"loadings": np.tile(_COLUMNS, (3, 1)), "sizes": (4, 4, 4), "num_anchors": 1},
            "column_angles": {"reference": _COLUMNS, "estimate": _COLUMNS},
            "composite_likelihood_em": {"counts": _PAIR, "conditionals": (_COLUMNS, _COLUMNS)},
            "composite_likelihood_em_samples": {"likelihoods": (_COUNTS[:, :2], _COUNTS[:, 2:])},
            "conditionals_from_views": {
                "key": _KEY,
                "first": (_COLUMNS @ _HALF,) * 3,
                "second": (_PAIR,) * 3,
                "third": _TENSOR,
                "rank": 2,
            },
            "cp_als": {"key": _KEY, "tensor": _TENSOR, "rank": 2},
            "decompose_views": {"key": _KEY, "pairs": (_PAIR,) * 3, "triple": _TENSOR, "rank": 2},
            "diagonalize_slices": {"key": _KEY, "tensor": _TENSOR, "num_slices": 4},
            "joint_diagonalization": {"matrices": _TENSOR, "method": "ojd0"},
            "match_columns": {"reference": _COLUMNS, "estimate": _COLUMNS, "method": "angle"},
            "matched_rmse": {"reference": _COLUMNS, "estimate": _COLUMNS},
            "noise_variance": {"covariance": _PAIR, "rank": 2},
            "nonnegative_cp": {"key": _KEY, "tensor": _TENSOR, "rank": 2, "max_iters": 20},
            "partition_variables": {"sizes": (3,) * 6, "num_partitions": 1, "anchors": ((0,), (1,), (2,))},
            "partitioned_nonnegative_cp": {"key": _KEY, "tensors": _TENSOR[None], "is_anchor": anchor, "rank": 2},
            "power_method": {"key": _KEY, "tensor": _TENSOR, "rank": 2},
            "project_columns_to_simplex": {"columns": _COLUMNS},
            "pseudoinverse_marginals": {"counts": _PAIR, "conditionals": (_COLUMNS, _COLUMNS)},
            "reconstruct": {"weights": _HALF, "factors": triple},
            "relative_efficiency": {"conditionals": _COLUMNS, "marginals": _HALF},
            "simultaneous_diagonalization": {"second": _PAIR, "slice": _PAIR, "rank": 2},
            "solve_nonnegative_qp": {"quadratic": np.eye(4, dtype=np.float32), "linear": -np.ones(4, np.float32)},
            "uniform_efficiency": {"conditionals": _COLUMNS},
            "whiten": {"second": _PAIR, "rank": 2},
        },
    }


class Call(NamedTuple):
    """A public function and arguments that it takes."""

    group: str
    name: str
    function: Callable[..., Any]
    good: dict[str, Any]


def all_calls() -> list[Call]:
    """Return every public function, each with good arguments."""
    calls = []
    for group, arguments in _good_models().items():
        module = getattr(models, group)
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function):
                taken = {
                    key: value for key, value in arguments.items() if key in inspect.signature(function).parameters
                }
                calls.append(Call(group, name, function, taken))
    for group, functions in _good_functions().items():
        module = {"moments": moments, "decompose": decompose}[group]
        calls += [Call(group, name, getattr(module, name), arguments) for name, arguments in functions.items()]
    return calls


def _replacements(value: Any) -> list[Any]:
    """Return what an argument is replaced by: things of any kind, and changes of the good value itself."""
    others: list[Any] = [None, "text", 0, -1, 3, 2.5, np.nan, True, [], [[1, 2], [3]], {}, object(), 10**15]
    others += [np.zeros(0), np.zeros((0, 3)), np.ones((2, 2, 2, 2)), np.array(["a"]), Variables((), ()), _HALF]
    others += [jax.random.PRNGKey(0, impl="rbg"), jax.random.split(_KEY, 2), sparse.BCOO.fromdense(_PAIR), jnp.int32(2)]
    if isinstance(value, np.ndarray | jax.Array) and getattr(value.dtype, "kind", "O") in "biuf":
        array = np.asarray(value)
        first = np.arange(array.size).reshape(array.shape) == 1
        with np.errstate(all="ignore"):
            others += [
                array * 1e30,
                array * 1e-30,
                array * np.nan,
                array + np.inf,
                np.where(array > 0, -1.0 * array - 1.0, 0),
            ]
        # Few shapes and types that are taken, since each of them compiles.
        others += [array.astype(kind) for kind in (">f8", np.longdouble, object, complex, int)]
        others += [array.tolist(), array[:-1], array[None], array[..., 0], np.zeros_like(array), np.ones_like(array)]
        others += [np.ma.masked_array(array, first), np.where(first, np.nan, array), np.where(first, 1e15, array)]
    elif hasattr(value, "_asdict"):
        for field, part in value._asdict().items():
            others += [value._replace(**{field: changed}) for changed in (None, "text", np.nan)]
            if isinstance(part, np.ndarray | jax.Array) and part.ndim:
                others += [value._replace(**{field: changed}) for changed in (part * 1e30, -part, part[None], part * 0)]
    elif isinstance(value, tuple):
        others += [value[:2], list(value), (*value, *value), (None,) * len(value), tuple(value[0] for _ in value)]
    return others


def _has_non_finite(tree: Any) -> bool:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return any(leaf.dtype.kind == "f" and not np.all(np.isfinite(leaf)) for leaf in leaves)


def _is_silent(result: Any, arguments: dict[str, Any]) -> bool:
    """Return whether a result has a number that is not finite and no status that says so.

    Small functions without a status may return NaN for NaN.
    """
    if not _has_non_finite(result):
        return False
    if not hasattr(result, "status"):
        return not _has_non_finite({name: value for name, value in arguments.items() if name != "key"})
    return not np.any(np.asarray(result.status) == Status.NON_FINITE)


def fuzz_calls(calls: list[Call], num_cases: int, seed: int) -> Iterator[tuple[Call, str, list[str]]]:
    """Yield calls, what was replaced in them, and the properties that they violate."""
    rng = np.random.default_rng(seed)
    for _ in range(num_cases):
        call = calls[rng.integers(len(calls))]
        arguments, changes = dict(call.good), []
        for name in rng.permutation(list(arguments))[: rng.integers(1, 3)]:
            choices = _replacements(arguments[name])
            place = int(rng.integers(len(choices)))
            arguments[name] = choices[place]
            changes.append(f"{name}={_describe(choices[place])}")
        yield call, ", ".join(changes), _violations(call, arguments)


def _describe(value: Any) -> str:
    text = f"{value.dtype}{value.shape}" if hasattr(value, "shape") and hasattr(value, "dtype") else repr(value)
    return re.sub(r"\s+", " ", text)[:60]


def _violations(call: Call, arguments: dict[str, Any]) -> list[str]:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = jax.block_until_ready(call.function(**arguments))
    except ValueError as error:
        names = [*inspect.signature(call.function).parameters, "x", "mask", "row_weights", "lengths"]
        named = any(re.match(rf"{name}(\.\w+)?( \(its rows\))?[:,]", str(error)) for name in names)
        return [] if named else [f"error without a name: {str(error)[:80]}"]
    except Exception as error:
        return [f"other exception: {type(error).__name__}: {str(error)[:80]}"]
    return ["silent NaN"] if _is_silent(result, arguments) and call.name not in _MAY_BE_NAN else []


# Whose results have no status, and are documented as NaN where there is no such number.
_MAY_BE_NAN = ("relative_efficiency", "uniform_efficiency")
