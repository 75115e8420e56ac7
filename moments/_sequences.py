"""The moments of three consecutive observations of sequences.

One long sequence and many short ones are treated alike: all observations one after the other, `(N,)` codes or `(N, d)`
real vectors, with a mark where a sequence begins. Windows of three neighbours are slices of that one array, cut block
by block. A window has weight zero where it extends beyond its sequence, or where one of its observations is missing.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.base import is_concrete
from latensor.moments._cross import (
    CrossMoments,
    average_sums,
    count_table,
    cross_sums,
    present_rows,
    spread_view,
    table_moments,
    view_features,
)
from latensor.moments._moments import check_directions
from latensor.moments._rows import sum_over_rows
from latensor.moments._values import finite_moments
from latensor.moments.data import Sequences, as_sequences

WINDOW = 3
Directions = tuple[Float[Array, "d r"], Float[Array, "d r"], Float[Array, "d r"]]


class Observations(NamedTuple):
    """The observations of all sequences, one after the other."""

    x: Num[Array, "N ..."]
    """Code −1, or zeros, at padding and where the observation is missing."""
    first: Bool[Array, " N"]
    """Whether a sequence begins here."""
    valid: Bool[Array, " N"]
    """Whether this is a step of a sequence and not padding."""
    observed: Bool[Array, " N"]
    """Whether this is a step of a sequence and its observation is not missing."""
    owner: Int[Array, " N"]
    """The number of the sequence."""


class Windows(NamedTuple):
    """All windows of three neighbours."""

    x: Num[Array, "N ..."]
    weights: Float[Array, " windows"]
    """That of the sequence; zero where a window is not within one sequence, or not fully observed."""


def sequence_lengths(sequences: Sequences) -> Int[Array, " S"]:
    """Return the length of each sequence."""
    if sequences.lengths is not None:
        return sequences.lengths
    time = sequences.x.shape[1] if sequences.is_batched else sequences.x.shape[0]
    return jnp.full(sequences.num_sequences, time, jnp.int32)


def _hide(x: Array, observed: Array) -> Array:
    seen = observed.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(seen, x, -1 if jnp.issubdtype(x.dtype, jnp.integer) else 0).astype(x.dtype)


def flatten_sequences(sequences: Sequences) -> Observations:
    """Lay sequences end to end."""
    x, lengths = sequences.x, sequences.lengths
    if sequences.is_batched:
        time = x.shape[1]
        place = jnp.arange(x.shape[0] * time)
        owner, position = place // time, place % time
        x = x.reshape(x.shape[0] * time, *x.shape[2:])
        valid = jnp.ones(place.shape, bool) if lengths is None else position < lengths[owner]
        first = position == 0
    else:
        place = jnp.arange(x.shape[0])
        if lengths is None:
            first, valid, owner = place == 0, jnp.ones(place.shape, bool), jnp.zeros(place.shape, jnp.int32)
        else:
            ends = jnp.cumsum(lengths)
            marks = jnp.zeros(place.shape, jnp.int32).at[ends - lengths].add(1, mode="drop")
            first, valid, owner = marks > 0, place < ends[-1], jnp.cumsum(marks) - 1
    observed = valid if sequences.mask is None else valid & sequences.mask.reshape(-1)
    if lengths is not None or sequences.mask is not None:
        x = _hide(x, observed)
    return Observations(x, first & valid, valid, observed, owner)


def observation_weights(
    observations: Observations, row_weights: Float[Array, " S"] | None, dtype: jnp.dtype
) -> Float[Array, " N"]:
    """Return the weight of each time step: that of its sequence, and zero at padding."""
    weights = observations.valid.astype(dtype)
    return weights if row_weights is None else weights * row_weights.astype(dtype)[observations.owner]


@jax.jit
def find_windows(sequences: Sequences) -> Windows:
    """Return the windows of three neighbours, with their weights."""
    observations = flatten_sequences(sequences)
    if observations.x.shape[0] < WINDOW:
        raise ValueError(f"x: expected at least {WINDOW} observations; got {observations.x.shape[0]}")
    seen, owner = observations.observed, observations.owner
    if sequences.num_symbols is not None:
        seen = seen & present_rows((observations.x,), (sequences.num_symbols,))
    inside = seen[:-2] & seen[1:-1] & seen[2:] & (owner[WINDOW - 1 :] == owner[: 1 - WINDOW])
    weights = inside.astype(sequences.dtype)
    if sequences.row_weights is not None:
        weights = weights * sequences.row_weights.astype(weights.dtype)[owner[: 1 - WINDOW]]
    return Windows(observations.x, weights)


def window_views(x: Num[Array, "N ..."]) -> tuple[Array, Array, Array]:
    """Return the first, second and third observation of every window."""
    return x[:-2], x[1:-1], x[2:]


@partial(jax.jit, static_argnames="num_symbols")
def window_table(windows: Windows, num_symbols: int) -> CrossMoments:
    """Return the tables of consecutive singles, pairs and triples of codes."""
    return table_moments(count_table(window_views(windows.x), (num_symbols,) * 3, windows.weights))


@jax.jit
def contract_windows(windows: Windows, directions: Float[Array, "d r"] | Directions) -> CrossMoments:
    """Return the moments of `Wᵀx_t`, `Wᵀx_{t+1}`, `Wᵀx_{t+2}` over all windows; see `contract_sequence_moments`.

    `directions` are one matrix for all three observations, whose features are then computed once, or one for each.
    """
    matrices = directions if isinstance(directions, tuple) else (directions,)

    def block(x: Array, weights: Array) -> Any:
        weights = weights[: 1 - WINDOW]
        if len(matrices) == 1:
            return cross_sums(weights, *window_views(view_features(x, matrices[0]))), jnp.sum(weights)
        one, two, three = (view_features(view, w) for view, w in zip(window_views(x), matrices, strict=True))
        return cross_sums(weights, one, two, three), jnp.sum(weights)

    padded = jnp.pad(windows.weights.astype(matrices[0].dtype), (0, WINDOW - 1))
    width = matrices[0].shape[1] ** 2
    return average_sums(*sum_over_rows(block, windows.x, padded, floats_per_row=width, overlap=WINDOW - 1))


def sequence_moments(data: Sequences | ArrayLike) -> CrossMoments:
    """Return the moments of three consecutive symbols, dense: relative frequencies of singles, pairs and triples.

    `O(n + d³)` for `d` symbols. Averages over all windows of three observations, none of which is missing; sequences
    with no such window are left out.
    """
    sequences = as_sequences(data)
    if sequences.num_symbols is None:
        raise ValueError("data: expected sequences of symbols; contract_sequence_moments takes real vectors")
    return window_table(find_windows(sequences), sequences.num_symbols)


def contract_sequence_moments(data: Sequences | ArrayLike, directions: Float[Array, "d r"]) -> CrossMoments:
    """Return the moments of `Wᵀx_t`, `Wᵀx_{t+1}`, `Wᵀx_{t+2}` for symbols or real vectors, never forming `(d, d)`.

    Averages over all windows of three observations, none of which is missing. `O(n r³)` after gathers or products.
    Every observation is read once: a block of windows shares its features among the three views.
    """
    sequences = as_sequences(data)
    concrete = is_concrete(sequences.x, sequences.lengths, sequences.mask)
    if not sequences.is_symbolic and concrete and not np.all(np.isfinite(_observed_vectors(sequences))):
        raise ValueError("x: expected finite numbers where observed; got NaN or infinity")
    directions = check_directions(directions, sequences.num_features)
    return finite_moments("data", contract_windows(find_windows(sequences), directions))


def _observed_vectors(sequences: Sequences) -> np.ndarray:
    return np.asarray(sequences.x)[sequences.observed_on_host()]


def pair_product(windows: Windows, vectors: Float[Array, "d r"], row: int, column: int) -> Float[Array, "d r"]:
    """Return `(Σ_t w_t x_{t+row}⊗x_{t+column}) V` over all windows. `O(n r)`, never `(d, d)`."""

    def block(views: tuple[Array, Array, Array], weights: Array) -> Array:
        return spread_view(views[row], weights[:, None] * view_features(views[column], vectors), vectors.shape[0])

    return sum_over_rows(block, window_views(windows.x), windows.weights, floats_per_row=0)


def _sorted_triples(windows: Windows) -> tuple[tuple[Array, ...], Array, Array]:
    """Return the windows' codes in order, their weights, and whether each differs from the one before it."""
    codes = tuple(jnp.where(windows.weights > 0, part, -1) for part in window_views(windows.x))
    one, two, three, weights = lax.sort((*codes, windows.weights), num_keys=3)
    codes = (one, two, three)
    differs = jnp.zeros(weights.shape[0] - 1, bool)
    for part in codes:
        differs = differs | (part[1:] != part[:-1])
    return codes, weights, jnp.concatenate([jnp.zeros(1, bool), differs])


@jax.jit
def count_distinct(windows: Windows) -> Int[Array, ""]:
    """Return the number of places that `distinct_triples` needs: windows without weight share one."""
    return 1 + jnp.sum(_sorted_triples(windows)[2], dtype=jnp.int32)


def distinct_triples(windows: Windows, size: int) -> tuple[tuple[Array, Array, Array], Float[Array, " size"]]:
    """Return the distinct triples with the sums of their weights, in `size` places: at least `count_distinct`."""
    codes, weights, differs = _sorted_triples(windows)
    place = jnp.cumsum(differs.astype(jnp.int32))
    counts = jnp.zeros(size, weights.dtype).at[place].add(weights, mode="drop")
    kept = tuple(jnp.full(size, -1, part.dtype).at[place].set(part, mode="drop") for part in codes)
    return (kept[0], kept[1], kept[2]), counts
