"""Lists of sequences or documents of different lengths, as one padded array."""

from typing import Any

import numpy as np

from latensor.base import is_concrete


def _is_ragged(x: Any) -> bool:
    """Return whether this is a list of sequences that do not all have the same length."""
    if not isinstance(x, list | tuple) and not (isinstance(x, np.ndarray) and x.dtype == object and x.ndim == 1):
        return False
    sized = all(isinstance(part, list | tuple) or (hasattr(part, "__len__") and np.ndim(part)) for part in x)
    return sized and len({len(part) for part in x}) > 1


def _pad(name: str, parts: Any, lengths: np.ndarray, beyond: int = 0) -> np.ndarray:
    """Return sequences in the rows of one array, with `beyond` after their ends."""
    arrays = []
    for place, part in enumerate(parts):
        if isinstance(part, np.ma.MaskedArray):
            raise ValueError(
                f"{name}: expected plain arrays in a list, and mask=; got a masked array in {name}[{place}]"
            )
        try:
            array = np.asarray(part)
            kind = f"values of type {array.dtype}"
        except ValueError:
            array, kind = np.empty(1, object), "a ragged list"
        # An empty list has no type of its own.
        arrays.append(array if array.size or array.ndim > 1 else np.zeros(0, bool))
        if arrays[-1].dtype.kind not in "biuf":
            raise ValueError(f"{name}: expected sequences of symbols or of real vectors; got {kind} in {name}[{place}]")
    shapes = {array.shape[1:] for array in arrays if array.size}
    if len(shapes) > 1:
        raise ValueError(f"{name}: expected sequences (time,), or all of them (time, d); got both, or several d")
    if shapes == {()} and any(array.dtype.kind == "f" for array in arrays):
        raise ValueError(
            f"{name}: expected symbols or real vectors (time, d); got series of numbers: pass part[:, None]"
        )
    shape = (len(arrays), int(lengths.max()), *next(iter(shapes), ()))
    # Signed where `beyond` is, so that −1 stays −1.
    padded = np.full(shape, beyond, np.result_type(*arrays, np.int8 if beyond < 0 else bool))
    for row, array in zip(padded, arrays, strict=True):
        if array.size:
            row[: len(array)] = array
    return padded


def pad_sequences(x: Any, lengths: Any, mask: Any) -> tuple[Any, Any, Any]:
    """Return `x`, `lengths` and `mask` as they are; for a list of sequences of different lengths, padded, with lengths.

    Row `i` is sequence `i`: `(sequences, longest)`, or `(sequences, longest, d)`.
    """
    if not _is_ragged(x):
        return x, lengths, mask
    if lengths is not None:
        raise ValueError("lengths: expected None where x is a list of sequences of different lengths; got both")
    if not is_concrete(x):
        raise ValueError("x: expected an array, and lengths=, under jit or vmap; got a list of different lengths")
    sizes = np.asarray([len(part) for part in x])
    if mask is not None and _is_ragged(mask):
        if [len(part) for part in mask] != sizes.tolist():
            raise ValueError("mask: expected a list with the lengths of the sequences of x; got others")
        mask = _pad("mask", mask, sizes)
    return _pad("x", x, sizes), sizes, mask


def pad_documents(x: Any) -> Any:
    """Return word ids as they are; a list of documents of different lengths padded with −1."""
    if not _is_ragged(x) or not is_concrete(x):
        return x
    return _pad("x", x, np.asarray([len(part) for part in x]), beyond=-1)
