"""Quick compilation of small stages."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

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
    """Decorate a jitted function: what JAX itself cannot take as an argument raises a `ValueError` that names it."""
    static = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except (TypeError, ValueError, OverflowError) as error:
                # Looked at only where something went wrong, so that nothing is lost where all is well.
                reason = _bad_argument(function, static, args, kwargs)
                if reason is None:
                    raise
                raise ValueError(reason) from error

        return call

    return decorate


def _bad_argument(function: Any, static: set[str], args: Any, kwargs: Any) -> str | None:
    """Return what is wrong with the first argument that is neither static nor made of numbers."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:
        return None
    limit = 2**63 if jax.config.jax_enable_x64 else 2**31
    for name, value in given.items():
        if name in static:
            if isinstance(value, jax.Array | np.ndarray | list):
                return f"{name}: expected a value that is known before tracing; got {type(value).__name__}"
            continue
        for leaf in jax.tree.leaves(value):
            if isinstance(leaf, int) and not -limit <= leaf < limit:
                return f"{name}: expected a number within {limit.bit_length()} bits; got {leaf}"
            numeric = isinstance(leaf, jax.Array) or getattr(getattr(leaf, "dtype", None), "kind", "O") in "biuf"
            if not numeric and not isinstance(leaf, int | float):
                return f"{name}: expected numbers; got {type(leaf).__name__}"
    return None


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
