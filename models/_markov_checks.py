"""Checks of sequences, and of a hidden Markov model against them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from latensor.models._checks import as_numbers, check_integer, check_probabilities, check_reals, is_concrete
from latensor.models._markov import Fit, HiddenMarkov, is_real
from latensor.moments import WINDOW, as_float


class Data(NamedTuple):
    """Sequences as they came, checked."""

    x: Array
    lengths: Array | None
    batched: bool
    num_symbols: int | None
    """`None` for real vectors."""

    @property
    def num_sequences(self) -> int:
        """The number of sequences."""
        return self.x.shape[0] if self.batched else 1 if self.lengths is None else self.lengths.shape[0]


def _check_lengths(lengths: Any, shape: tuple[int, ...], batched: bool) -> Array | None:
    if lengths is None:
        return None
    found = as_numbers("lengths", lengths, "the length of each sequence")
    if found.ndim != 1 or found.size == 0 or not jnp.issubdtype(found.dtype, jnp.integer):
        raise ValueError(
            f"lengths: expected whole numbers, one for each sequence; got shape {found.shape} and type {found.dtype}"
        )
    if batched and found.shape[0] != shape[0]:
        raise ValueError(f"lengths: expected one for each of the {shape[0]} sequences of x; got {found.shape[0]}")
    if is_concrete(found):
        values = np.asarray(found)
        if values.min() < 0:
            raise ValueError(f"lengths: expected numbers ≥ 0; got {values.min()} at position {values.argmin()}")
        if batched and values.max() > shape[1]:
            raise ValueError(
                f"lengths: expected at most {shape[1]}, the second axis of x; "
                f"got {values.max()} at position {values.argmax()}"
            )
        if not batched and values.sum() != shape[0]:
            raise ValueError(f"lengths: expected a sum of {shape[0]}, the length of x; got {values.sum()}")
    return found.astype(jnp.int32)


def _observed(x: np.ndarray, lengths: np.ndarray | None, batched: bool) -> np.ndarray:
    """Return the observations that are not padding, one after the other."""
    if not batched or lengths is None:
        return x.reshape(-1, *x.shape[2:]) if batched else x
    return x[np.arange(x.shape[1])[None, :] < lengths[:, None]]


def check_sequences(x: Any, lengths: Any = None, num_symbols: Any = None, real: bool | None = None) -> Data:
    """Return sequences: symbols `(time,)` or `(sequences, time)`, or real vectors with an axis more.

    `real` says what the model takes; `None` lets the type of `x` decide.
    """
    x = as_numbers("x", x, "symbols (integers) or real vectors")
    integer = jnp.issubdtype(x.dtype, jnp.integer)
    if real is not None and real == integer:
        wanted = "real vectors (floating)" if real else "symbols (integers)"
        raise ValueError(f"x: expected {wanted}, as params are for; got type {x.dtype}")
    axes = (1, 2) if integer else (2, 3)
    if x.ndim not in axes or x.size == 0:
        shapes = "(time,) or (sequences, time)" if integer else "(time, d) or (sequences, time, d)"
        kind = "symbols" if integer else "real vectors"
        raise ValueError(f"x: expected {kind} {shapes}, not empty; got shape {x.shape}")
    batched = x.ndim == axes[1]
    found = _check_lengths(lengths, x.shape, batched)
    x = x if integer else as_float(x)
    if not is_concrete(x):
        if integer and num_symbols is None:
            raise ValueError("num_symbols: expected the number of symbols where x is traced; got None")
        size = check_integer("num_symbols", num_symbols, 1) if integer else None
        return Data(x, found, batched, size)
    values = np.asarray(x)
    if is_concrete(found):
        values = _observed(values, None if found is None else np.asarray(found), batched)
    if not integer:
        if num_symbols is not None:
            raise ValueError(f"num_symbols: expected None for real vectors; got {num_symbols!r}")
        if not np.all(np.isfinite(values)):
            place = np.argwhere(~np.isfinite(values))[0]
            raise ValueError(f"x: expected finite numbers; got {values[tuple(place)]} at observation {place[0]}")
        return Data(x, found, batched, None)
    if values.size and values.min() < 0:
        raise ValueError(f"x: expected symbols ≥ 0; got {values.min()} at observation {values.argmin()}")
    largest = int(values.max()) if values.size else 0
    size = largest + 1 if num_symbols is None else check_integer("num_symbols", num_symbols, 1)
    if largest >= size:
        raise ValueError(
            f"x: expected symbols below {size}, the number of them; got {largest} at observation {values.argmax()}"
        )
    with jax.ensure_compile_time_eval():
        return Data(x.astype(jnp.int32), found, batched, size)


def check_windows(data: Data, num_components: int) -> None:
    """Raise unless some sequence has three observations in a row; say how many do not."""
    if data.lengths is not None and is_concrete(data.lengths):
        sizes = np.asarray(data.lengths)
    else:
        sizes = np.full(data.num_sequences, data.x.shape[1] if data.batched else data.x.shape[0])
        if data.lengths is not None:  # traced
            return
    short = int(np.sum(sizes < WINDOW))
    if short == sizes.size:
        raise ValueError(
            f"x: expected sequences of at least {WINDOW} observations, which have a triple; got "
            f"{'one' if short == 1 else f'{short}, all of them'} shorter, the longest of {sizes.max()}"
        )
    windows = int(np.sum(np.maximum(sizes - WINDOW + 1, 0)))
    if windows < num_components:
        raise ValueError(f"x: expected at least num_components = {num_components} triples; got {windows}")


def check_params(params: Any) -> HiddenMarkov:
    """Return parameters whose shapes fit each other and whose probabilities are some."""
    if not isinstance(params, HiddenMarkov):
        hint = " (pass its .params)" if isinstance(params, Fit) else ""
        raise ValueError(f"params: expected a HiddenMarkov; got {type(params).__name__}{hint}")
    initial = check_probabilities("params.initial", params.initial, 1)
    transition = check_probabilities("params.transition.T", jnp.asarray(params.transition).T, 2).T
    if is_real(params):
        emission = check_reals("params.emission", params.emission, 2)
        variance = check_reals("params.variance", params.variance, 2, positive=True)
    else:
        emission, variance = check_probabilities("params.emission", params.emission, 2), None
    k = initial.shape[0]
    shapes = [part.shape for part in (initial, transition, emission, variance) if part is not None]
    if shapes != [(k,), (k, k), *[(emission.shape[0], k)] * (len(shapes) - 2)]:
        raise ValueError(
            "params: expected initial (k,), transition (k, k), emission (d, k) and, for real vectors, variance (d, k); "
            f"got shapes {', '.join(map(str, shapes))}"
        )
    return HiddenMarkov(initial, transition, emission, variance)


def check_pair(params: Any, x: Any, lengths: Any) -> tuple[HiddenMarkov, Data]:
    """Return a model, and sequences that it can be asked about."""
    params = check_params(params)
    d = params.emission.shape[0]
    data = check_sequences(x, lengths, None if is_real(params) else d, real=is_real(params))
    if is_real(params) and data.x.shape[-1] != d:
        raise ValueError(f"x: expected vectors of {d} dimensions, as in params.emission; got {data.x.shape[-1]}")
    return params, data
