"""Quick compilation of small stages."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from latensor.base._checks import as_numbers
from latensor.base._input import refuse_sparse

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Most of a first call goes into optimizing loops over a few hundred numbers. Level 1 without fusion emitters compiles
# in a third of the time, to code that is as fast for small arrays, and often faster; level 0 in a fifth, to code that
# is several times slower.
_CHEAP_OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}


@functools.cache
def _cheap_options(optimize: bool) -> dict[str, Any] | None:
    """Return the options, or `None` where this release of JAX does not know them."""
    try:
        jax.jit(lambda x: x, compiler_options=_CHEAP_OPTIONS).lower(0.0).compile()
    except Exception:
        return None
    return _CHEAP_OPTIONS if optimize else {**_CHEAP_OPTIONS, "xla_backend_optimization_level": 0}


@jax.jit
def _constant() -> Array:
    return jnp.zeros(())


def _is_traced(*arguments: Any) -> bool:
    """Return whether a trace is under way.

    In a `jit`, new constants are tracers too. Under `vmap` or `grad` alone only arguments are; without one among
    them, the call is evaluated at once.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)):
        return True
    return isinstance(_constant(), jax.core.Tracer)


def name_bad_arguments(static_argnames: str | Sequence[str] = ()) -> Callable[[Any], Any]:
    """Decorate a jitted function: of arguments that JAX itself cannot take, arrays are converted, others are named.

    Only where a call fails, so that others cost nothing.
    """
    static = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except (TypeError, ValueError, OverflowError):
                taken = _takeable_arguments(function, static, args, kwargs)
                if taken is None:
                    raise
            return function(**taken)

        return call

    return decorate


# Arguments that are one number each, in all functions.
_NUMBERS = ("tol", "max_iters", "max_sweeps", "restart_iters", "num_updates")


def _takeable_arguments(function: Any, static: set[str], args: Any, kwargs: Any) -> dict[str, Any] | None:
    """Return the arguments, arrays converted; `None` where nothing had to be. Raise where one is not what JAX takes."""
    signature = inspect.signature(function)
    try:
        given = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:
        return None
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
    taken = {name: value if name in static else _take(name, value) for name, value in given.items()}
    for name in static & given.keys():
        try:
            hash(given[name])
        except TypeError:
            kind = type(given[name]).__name__
            raise ValueError(f"{name}: expected a value that is known before tracing; got {kind}") from None
    old, new = jax.tree.leaves(given), jax.tree.leaves(taken)
    return None if all(one is two for one, two in zip(old, new, strict=True)) else taken


def _take(name: str, value: Any) -> Any:
    """Return an argument whose arrays JAX can take, or raise."""
    refuse_sparse(name, value, "numbers")
    if name in _NUMBERS and np.ndim(value):
        raise ValueError(f"{name}: expected one number; got shape {np.shape(value)}")

    def take(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) or (type(leaf) is np.ndarray and leaf.dtype.isnative and leaf.dtype != object):
            known = isinstance(leaf, jax.Array) or leaf.dtype.kind in "biu" or leaf.dtype in (np.float32, np.float64)
            if known:
                return leaf
        if isinstance(leaf, float) or (isinstance(leaf, int) and abs(leaf) < _largest_integer()):
            return leaf
        return as_numbers(name, leaf, "numbers", allow_bool=True)

    return jax.tree.map(take, value)


def _largest_integer() -> int:
    return 2**63 if jnp.result_type(int).itemsize == 8 else 2**31


@overload
def small_jit(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]: ...
@overload
def small_jit(
    *, static_argnames: str | Sequence[str] = ..., optimize: bool = ...
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]: ...
def small_jit(function: Any = None, *, static_argnames: str | Sequence[str] = (), optimize: bool = True) -> Any:
    """Jit a function whose arrays are small: `(k, k, k)`, `(d, k)`, nothing that grows with the number of rows.

    At the top level on a CPU it compiles in about a third of the time of `jax.jit`. JAX refuses compiler options inside
    another `jit`, so under a trace this is plain `jax.jit`. The result is a plain function without `lower`.

    `optimize=False` is for a stage that does next to nothing once compiled: a fifth of the time of `jax.jit`.
    """
    if function is None:
        return functools.partial(small_jit, static_argnames=static_argnames, optimize=optimize)
    plain = jax.jit(function, static_argnames=static_argnames)

    @functools.cache
    def cheap() -> Any:
        return jax.jit(function, static_argnames=static_argnames, compiler_options=_cheap_options(optimize))

    @name_bad_arguments(static_argnames)
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if jax.default_backend() != "cpu" or _is_traced(args, kwargs) or _cheap_options(optimize) is None:
            return plain(*args, **kwargs)
        return cheap()(*args, **kwargs)

    return call
