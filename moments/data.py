"""Data types: the one data argument of every moment and of every verb of a model.

`Table`, `Documents` and `Sequences` hold arrays together with what is known about them: which entries were observed,
and how much each row counts. They are immutable pytrees, so they pass through `jit` and `vmap`. Shapes and types are
checked on construction, and on concrete arrays also row weights and lengths. For a batch, use
`jax.vmap(Table)(xs, masks)`.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.base import (
    as_float,
    check_integer,
    check_mask,
    check_matrix,
    float_type,
    is_concrete,
    merge_missing,
    read_numbers,
)
from latensor.moments._data_type import (
    Rows,
    as_data,
    check_lengths,
    check_row_weights,
    check_symbols,
    register_data_type,
)
from latensor.moments._ragged import pad_documents, pad_sequences
from latensor.moments._variables import Variables, check_variables


@register_data_type
@dataclass(frozen=True, init=False, eq=False, repr=False)
class Table(Rows):
    """Samples in rows, some entries of which may be missing.

    Masked values are ignored; they may be NaN. A NumPy masked array brings its own mask.
    """

    _static: ClassVar[tuple[str, ...]] = ("variables",)

    x: Num[Array, "n d"]
    mask: Bool[Array, "n d"] | None
    """True where observed; `None` means everywhere."""
    row_weights: Float[Array, " n"] | None
    """One weight per row; `None` means equal weights. Only their ratios matter: they are scaled to a maximum of one."""
    variables: Variables | None
    """What the columns are, where they differ in kind; see `Variables`."""

    def __init__(
        self,
        x: ArrayLike,
        mask: ArrayLike | None = None,
        row_weights: ArrayLike | None = None,
        variables: Variables | None = None,
    ) -> None:
        meaning = "numbers (samples, dimensions)"
        array, plain = read_numbers("x", x, meaning)
        array = check_matrix("x", array, meaning)
        variables = None if variables is None else check_variables(variables)
        if variables is not None and variables.num_variables != array.shape[1]:
            raise ValueError(f"x: expected {variables.num_variables} columns, as in variables; got {array.shape[1]}")
        self._set(
            x=array,
            mask=merge_missing("x", check_mask(mask, array.shape), plain, 2),
            row_weights=check_row_weights(row_weights, array.shape[0]),
            variables=variables,
        )

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        return self.x.shape[0]

    @property
    def num_dimensions(self) -> int:
        """Number of columns."""
        return self.x.shape[1]

    @property
    def dtype(self) -> Any:
        """Floating type of the moments."""
        return float_type(self.x.dtype)


@register_data_type
@dataclass(frozen=True, init=False, eq=False, repr=False)
class Documents(Rows):
    """Documents in rows: counts of words, or, with `num_words`, the ids of their words."""

    _static: ClassVar[tuple[str, ...]] = ("num_words",)

    x: Num[Array, "n _"]
    """Counts `(n, d)`, integer or floating; or ids `(n, L)`, below zero for padding (or a list of lists of ids)."""
    num_words: int | None
    """Size of the vocabulary where `x` holds ids; `None` means that it holds counts."""
    row_weights: Float[Array, " n"] | None
    """One weight per document; `None` means equal weights. Only their ratios matter."""

    def __init__(self, x: ArrayLike, num_words: int | None = None, row_weights: ArrayLike | None = None) -> None:
        if num_words is None:
            array = check_matrix("x", x, "counts (documents, words)")
        else:
            num_words = check_integer("num_words", num_words, 1)
            array = check_matrix("x", pad_documents(x), "word ids (documents, words of a document)")
            if not jnp.issubdtype(array.dtype, jnp.integer):
                raise ValueError(f"x: expected integer word ids where num_words is given; got type {array.dtype}")
        row_weights = check_row_weights(row_weights, array.shape[0], "document")
        self._set(x=array, num_words=num_words, row_weights=row_weights)

    @property
    def num_rows(self) -> int:
        """Number of documents."""
        return self.x.shape[0]

    @property
    def vocabulary_size(self) -> int:
        """Number of different words."""
        return self.x.shape[1] if self.num_words is None else self.num_words

    @property
    def dtype(self) -> Any:
        """Floating type of the moments."""
        return float_type(self.x.dtype) if self.num_words is None else jnp.result_type(float)


@register_data_type
@dataclass(frozen=True, init=False, eq=False, repr=False)
class Sequences(Rows):
    """Sequences of symbols or of real vectors, one long sequence or many.

    Symbols are integers `(time,)` or `(sequences, time)`; those below zero are missing, as are those that are masked
    (under a trace, where values are not checked, also a symbol that is too large). Real vectors are floating, with a
    trailing axis of dimensions. Masked values are ignored; they may be NaN. A list of sequences of different lengths is
    padded to `(sequences, longest)`, and its `lengths` are read off.
    """

    _static: ClassVar[tuple[str, ...]] = ("num_symbols", "is_batched")

    x: Num[Array, "..."]
    lengths: Int[Array, " sequences"] | None
    """For `(time,)`, the lengths of sequences that lie end to end; `None` means one sequence. For `(sequences, time)`,
    how much of each row is not padding; `None` means all of it."""
    mask: Bool[Array, "..."] | None
    """True where an observation was made, one per time step; `None` means at all of them."""
    row_weights: Float[Array, " sequences"] | None
    """One weight per sequence; `None` means equal weights. Only their ratios matter."""
    num_symbols: int | None
    """Number of different symbols; `None` for real vectors. Read off `x` where it is left out and `x` is concrete."""
    is_batched: bool
    """Whether the first axis is that of sequences. Remembered from construction: a batch of single sequences, as
    `jax.vmap(Sequences)` makes it, has the shape of many sequences."""

    def __init__(
        self,
        x: ArrayLike,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        row_weights: ArrayLike | None = None,
        num_symbols: int | None = None,
    ) -> None:
        x, lengths, mask = pad_sequences(x, lengths, mask)
        array, plain = read_numbers("x", x, "symbols (integers) or real vectors")
        symbolic = jnp.issubdtype(array.dtype, jnp.integer)
        if array.ndim not in ((1, 2) if symbolic else (2, 3)) or array.size == 0:
            shapes = "(time,) or (sequences, time)" if symbolic else "(time, d) or (sequences, time, d)"
            kind = "symbols" if symbolic else "real vectors"
            hint = ": pass x[:, None] for a series of numbers, x.astype(int) for symbols" if array.ndim == 1 else ""
            raise ValueError(f"x: expected {kind} {shapes}, not empty; got shape {array.shape}{hint}")
        times = array.shape if symbolic else array.shape[:-1]
        observed = check_mask(mask, times, "x" if symbolic else "x without its last axis")
        self._set(is_batched=len(times) == 2)
        self._set(
            x=check_symbols(array) if symbolic else as_float(array),
            lengths=check_lengths(lengths, times),
            mask=merge_missing("x", observed, plain, len(times)),
        )
        self._set(row_weights=check_row_weights(row_weights, self.num_sequences, "sequence"))
        self._set(num_symbols=self._check_num_symbols(num_symbols))

    def _check_num_symbols(self, num_symbols: int | None) -> int | None:
        if not self.is_symbolic:
            if num_symbols is not None:
                raise ValueError(f"num_symbols: expected None for real vectors; got {num_symbols!r}")
            return None
        if num_symbols is not None:
            return check_integer("num_symbols", num_symbols, 1)
        if not is_concrete(self.x, self.lengths, self.mask):
            raise ValueError("num_symbols: expected the number of symbols where x is traced; got None")
        seen = np.asarray(self.x)[self.observed_on_host()]
        return max(int(seen.max()), 0) + 1 if seen.size else 1

    def observed_on_host(self) -> np.ndarray:
        """Return which time steps are observed, neither padding nor masked, as NumPy: for concrete arrays only."""
        shape = self.x.shape if self.is_symbolic else self.x.shape[:-1]
        observed = np.ones(shape, bool) if self.mask is None else np.asarray(self.mask)
        if self.lengths is None or not self.is_batched:
            return observed
        return observed & (np.arange(shape[1])[None, :] < np.asarray(self.lengths)[:, None])

    @property
    def is_symbolic(self) -> bool:
        """Whether observations are symbols."""
        return bool(jnp.issubdtype(self.x.dtype, jnp.integer))

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return self.x.shape[0] if self.is_batched else 1 if self.lengths is None else self.lengths.shape[0]

    @property
    def num_steps(self) -> int:
        """Number of time steps of all sequences, padding included."""
        return math.prod(self.x.shape[: 2 if self.is_batched else 1])

    @property
    def num_features(self) -> int:
        """Number of symbols, or of dimensions."""
        return self.x.shape[-1] if self.num_symbols is None else self.num_symbols

    @property
    def dtype(self) -> Any:
        """Floating type of the moments."""
        return jnp.result_type(float) if self.is_symbolic else self.x.dtype


def _check_single(data: Table | Documents) -> None:
    """Refuse a batch of objects, as `jax.vmap(Table)` makes it, outside of the `vmap` that takes it apart."""
    if data.x.ndim != 2:
        name = type(data).__name__
        raise ValueError(f"x: expected one {name}, x with two axes; got a batch, {data.x.shape}: use jax.vmap")


def as_table(data: Any, **given: Any) -> Table:
    """Return `data` if it is a table, else one of the array `data` and the fields in `given` (`mask`, …)."""
    table = as_data(Table, data, given)
    if table is None:
        return Table(data, **given)
    _check_single(table)
    return table


def as_documents(data: Any, **given: Any) -> Documents:
    """Return `data` if it is documents, else those of the array `data` and the fields in `given` (`num_words`, …)."""
    documents = as_data(Documents, data, given)
    if documents is None:
        return Documents(data, **given)
    _check_single(documents)
    return documents


def as_sequences(data: Any, **given: Any) -> Sequences:
    """Return `data` if it is sequences, else those of the array `data` and the fields in `given` (`lengths`, …)."""
    sequences = as_data(Sequences, data, given)
    if sequences is None:
        return Sequences(data, **given)
    axes = 1 + sequences.is_batched + (not sequences.is_symbolic)
    if sequences.x.ndim != axes:
        raise ValueError(
            f"x: expected one Sequences, x with {axes} axes; got a batch, {sequences.x.shape}: use jax.vmap"
        )
    return sequences
