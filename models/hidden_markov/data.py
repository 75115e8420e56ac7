"""Checks of the values of sequences, for a fit and against a model; shapes are checked by `Sequences` itself."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from latensor.base import as_float, as_numbers, is_concrete, missing_hint, read_numbers
from latensor.models.hidden_markov.params import HiddenMarkov, check_params, is_real
from latensor.moments import CrossMoments, Sequences
from latensor.moments.internal import WINDOW, Rows, as_sequences, pad_sequences


def _mask_missing(sequences: Sequences) -> Sequences:
    """Return sequences whose mask leaves symbols below zero out; under a trace, also those that are too large."""
    if sequences.num_symbols is None:
        return sequences
    if is_concrete(sequences.x, sequences.lengths, sequences.mask):
        present: Any = np.asarray(sequences.x) >= 0
        if np.all(present | ~sequences.observed_on_host()):
            return sequences
    else:
        present = (sequences.x >= 0) & (sequences.x < sequences.num_symbols)
    return sequences._replace(mask=jnp.asarray(present if sequences.mask is None else present & sequences.mask))


def check_values(sequences: Sequences) -> Sequences:
    """Return sequences whose observed values are valid: symbols in range, or finite numbers. Traced ones pass.

    Symbols below zero are missing. A mask that hides nothing is dropped: the result is then exactly that without a
    mask.
    """
    sequences = _mask_missing(sequences)
    if not is_concrete(sequences.x, sequences.lengths, sequences.mask):
        return sequences
    values = np.asarray(sequences.x)

    def check(valid: np.ndarray, expected: str, hint: str = "") -> None:
        # What is not observed matters only where something is wrong, which is rare.
        if np.all(valid):
            return
        observed = sequences.observed_on_host()
        wrong = np.argwhere(~valid & (observed if valid.ndim == observed.ndim else observed[..., None]))
        if wrong.size:
            place = tuple(int(index) for index in wrong[0])
            raise ValueError(f"x: expected {expected}; got {values[place]} at x[{', '.join(map(str, place))}]{hint}")

    if sequences.num_symbols is None:
        finite = np.isfinite(values)
        hint = missing_hint(finite.all(axis=-1), sequences.mask, " (pass a mask if it is missing)")
        check(finite, "finite numbers where observed", hint)
    else:
        check(values < sequences.num_symbols, f"symbols below num_symbols = {sequences.num_symbols}")
    if sequences.mask is not None and np.all(np.asarray(sequences.mask)):
        return sequences._replace(mask=None)
    return sequences


def as_data(
    x: Sequences | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    num_symbols: int | None = None,
    row_weights: ArrayLike | None = None,
) -> Sequences:
    """Return the data of this model: `Sequences`, checked. Arguments as for `fit`."""
    return check_values(as_sequences(x, mask=mask, lengths=lengths, num_symbols=num_symbols, row_weights=row_weights))


def warn_of_codes(sequences: Sequences) -> None:
    """Warn where real vectors look like symbols that were stored as floats."""
    if sequences.is_batched or not is_concrete(sequences.x, sequences.mask):
        return
    values = np.asarray(sequences.x)
    if values.shape[1] > 1 and np.all((values >= 0) & (values == np.floor(values))):
        warnings.warn(
            f"x: whole numbers of type {values.dtype}, taken as one sequence of {values.shape[0]} vectors of "
            f"{values.shape[1]} dimensions; pass x.astype(int) if they are symbols, a sequence in each row",
            stacklevel=3,
        )


def check_any_observed(sequences: Sequences) -> None:
    """Raise unless a sequence of positive weight has an observation. Traced sequences pass."""
    if not is_concrete(sequences):
        return
    sizes, observed = _sizes_on_host(sequences), sequences.observed_on_host()
    if sequences.is_batched:
        counts = observed.sum(axis=1)
    else:
        counts = np.bincount(np.repeat(np.arange(sizes.size), sizes), observed, sizes.size)
    weights = 1 if sequences.row_weights is None else np.asarray(sequences.row_weights)
    if not np.any(counts * weights > 0):
        raise ValueError("x: expected an observation in a sequence of positive weight; got none")


def _sizes_on_host(sequences: Sequences) -> np.ndarray:
    if sequences.lengths is not None:
        return np.asarray(sequences.lengths)
    return np.full(sequences.num_sequences, sequences.x.shape[1 if sequences.is_batched else 0])


def _count_windows(sequences: Sequences, sizes: np.ndarray) -> int:
    """Return the number of windows of three neighbours without a missing observation."""
    if sequences.mask is None:
        return int(np.sum(np.maximum(sizes - WINDOW + 1, 0)))
    observed = sequences.observed_on_host()
    inside = observed[..., :-2] & observed[..., 1:-1] & observed[..., 2:]
    if not sequences.is_batched:
        owner = np.repeat(np.arange(sizes.size), sizes)
        inside = inside & (owner[:-2] == owner[2:])
    return int(np.sum(inside))


def check_windows(sequences: Sequences, num_components: int) -> None:
    """Raise unless there are enough windows of three neighbours. Traced sequences pass."""
    if not is_concrete(sequences.lengths, sequences.mask):
        return
    sizes = _sizes_on_host(sequences)
    short = int(np.sum(sizes < WINDOW))
    if short == sizes.size:
        raise ValueError(
            f"x: expected sequences of at least {WINDOW} observations; got "
            f"{'one' if short == 1 else f'{short}, all of them'} shorter, the longest of {sizes.max()}"
        )
    number = _count_windows(sequences, sizes)
    if number < num_components:
        hint = "" if sequences.mask is None else " without a missing observation"
        raise ValueError(f"x: expected at least num_components = {num_components} triples{hint}; got {number}")


def check_moments(moments: Any) -> CrossMoments:
    """Return the tables of three neighbours; concrete ones must be finite."""
    if not isinstance(moments, CrossMoments):
        raise ValueError(f"moments: expected CrossMoments, the tables of three symbols; got {type(moments).__name__}")
    if not isinstance(moments.first, tuple | list) or not isinstance(moments.second, tuple | list):
        raise ValueError("moments: expected three means and three pair moments; got something else")
    parts = [as_numbers("moments", part, "numbers") for part in (*moments.first, *moments.second, moments.third)]
    d = jnp.shape(moments.third)[0] if jnp.ndim(moments.third) else 0
    shapes = [jnp.shape(part) for part in parts]
    if d == 0 or shapes != [(d,)] * 3 + [(d, d)] * 3 + [(d, d, d)]:
        raise ValueError(
            f"moments: expected tables of three modes with the same symbols; got shapes {', '.join(map(str, shapes))}"
        )
    if is_concrete(parts) and not all(np.all(np.isfinite(part)) for part in parts):
        raise ValueError("moments: expected finite numbers; got NaN or infinity")
    first, second, third = jax.tree.map(lambda part: as_float(jnp.asarray(part)), moments[:3])
    return moments._replace(first=first, second=second, third=third)


def check_pair(params: Any, x: Any, **given: Any) -> tuple[HiddenMarkov, Sequences]:
    """Return a model, and sequences that it can be asked about; `given` is `lengths`, `mask` and `row_weights`."""
    params = check_params(params)
    d, real = params.emission.shape[0], is_real(params)
    if isinstance(x, Rows):
        sequences = as_sequences(x, **given)
        symbolic, dtype = sequences.is_symbolic, sequences.x.dtype
    else:
        x, lengths, mask = pad_sequences(x, given.get("lengths"), given.get("mask"))
        given |= {"lengths": lengths, "mask": mask}
        numbers, _ = read_numbers("x", x, "symbols (integers) or real vectors")
        symbolic, dtype = jnp.issubdtype(numbers.dtype, jnp.integer), numbers.dtype
    if real == symbolic:
        kind = "real vectors (floating)" if real else "symbols (integers)"
        raise ValueError(f"x: expected {kind}, as params are for; got type {dtype}")
    if not isinstance(x, Rows):
        sequences = Sequences(x, num_symbols=None if real else d, **given)
    if real and sequences.num_features != d:
        raise ValueError(f"x: expected vectors of {d} dimensions, as in params.emission; got {sequences.num_features}")
    if sequences.num_features > d:
        raise ValueError(f"x: expected at most {d} symbols, as in params.emission; got {sequences.num_features}")
    return params, check_values(sequences)
