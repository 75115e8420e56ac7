"""Data for fuzzing: tables, documents and sequences that are good, degenerate, extreme or invalid, each by its recipe.

Every case is a seed: the recipes of its values, its mask and its row weights are drawn from that seed alone.
"""

from typing import Any, NamedTuple

import numpy as np

# Small enough for thousands of cases; a table of two components in five dimensions still converges.
NUM_ROWS, NUM_DIMENSIONS, NUM_SYMBOLS, LENGTH = 24, 5, 3, 6

VALUES = (
    *["good"] * 8,
    "constant",
    "identical rows",
    "two distinct rows",
    "constant column",
    "outlier",
    "huge",
    "tiny",
    "nan",
    "inf",
    "invalid",
    "far",
    "zeros",
)
MASKS = (*["all"] * 6, *["most"] * 6, "column never", "one each", "one row", "nothing", "first row never")
WEIGHTS = (*["equal"] * 6, *["random"] * 4, "one row", "zero", "huge", "tiny", "negative", "nan", "inf")


class Case(NamedTuple):
    """One case: arrays of the same shapes for all of them, and what is known about it."""

    seed: int
    recipe: str
    x: np.ndarray
    mask: np.ndarray
    row_weights: np.ndarray
    invalid: bool
    """Whether a value that counts is not what the model takes: `fit` and `refine` must not say CONVERGED."""
    degenerate: bool
    """Whether two components cannot be told from such data: `fit` must not say CONVERGED."""
    extreme: bool
    """Whether squares of the values leave the range of float32: likelihoods may be infinite."""


def _good(rng: np.random.Generator, kind: str) -> np.ndarray:
    """Return data of a model with two components that are well apart."""
    if kind == "real":
        centres = 4 * rng.normal(size=(2, NUM_DIMENSIONS))
        return centres[rng.integers(0, 2, NUM_ROWS)] + rng.normal(size=(NUM_ROWS, NUM_DIMENSIONS))
    if kind == "counts":
        topics = rng.dirichlet(np.full(NUM_DIMENSIONS, 0.3), 2)
        return rng.poisson(20 * topics[rng.integers(0, 2, NUM_ROWS)]).astype(float)
    if kind == "vectors":
        states = np.cumsum(rng.random((NUM_ROWS, LENGTH)) < 0.3, axis=1) % 2
        return 3.0 * states[..., None] * np.array([1.0, -1.0]) + rng.normal(size=(NUM_ROWS, LENGTH, 2))
    if kind == "symbols":
        states = np.cumsum(rng.random((NUM_ROWS, LENGTH)) < 0.3, axis=1) % 2
        return np.where(rng.random(states.shape) < 0.8, states, rng.integers(0, NUM_SYMBOLS, states.shape))
    probs = rng.dirichlet(np.ones(NUM_SYMBOLS), (2, 2 * NUM_DIMENSIONS))
    share = rng.beta(0.5, 0.5, NUM_ROWS)
    chosen = (rng.random((NUM_ROWS, 2 * NUM_DIMENSIONS)) < share[:, None]).astype(int)
    cumulative = np.cumsum(probs, axis=2)[chosen, np.arange(2 * NUM_DIMENSIONS)[None, :]]
    return np.sum(rng.random(chosen.shape)[..., None] > cumulative[..., :-1], axis=2)


def _change(rng: np.random.Generator, x: np.ndarray, recipe: str, kind: str) -> np.ndarray:
    """Return values as a recipe says."""
    whole = kind in ("symbols", "codes", "ids")
    place = tuple(rng.integers(0, size) for size in x.shape)
    x = x.copy()
    if recipe == "constant":
        x[...] = x.flat[0]
    elif recipe == "identical rows":
        x[...] = x[0]
    elif recipe == "two distinct rows":
        x[...] = x[rng.integers(0, 2, len(x))]
    elif recipe == "constant column":
        x[..., 0] = x.flat[0]
    elif recipe == "zeros":
        x[...] = 0
    elif recipe == "outlier" and not whole:
        x[place] = 10.0 ** rng.integers(3, 16)
    elif recipe in ("huge", "tiny", "far") and not whole:
        scale = 10.0 ** rng.integers(10, 31)
        counts = kind == "counts"
        x = x * scale if recipe == "huge" else x + scale if recipe == "far" else x if counts else x / scale
    elif recipe in ("nan", "inf") and not whole:
        x[place] = np.nan if recipe == "nan" else np.inf * rng.choice([-1, 1])
    elif recipe == "invalid":
        bad: Any = {
            "counts": [-1.0, 0.5],
            "symbols": [],
            "codes": [-1, NUM_SYMBOLS, 10**6],
            "ids": [NUM_SYMBOLS, 10**6],
        }.get(kind, [np.nan])
        if bad:
            x[place] = rng.choice(bad)
    return x


def _mask(rng: np.random.Generator, shape: tuple[int, ...], recipe: str) -> np.ndarray:
    mask = np.ones(shape, bool)
    if recipe == "most":
        mask = rng.random(shape) < 0.8
    elif recipe == "column never":
        mask[:, rng.integers(0, shape[1])] = False
    elif recipe == "one each":
        mask = np.arange(shape[1])[None, :] == rng.integers(0, shape[1], shape[0])[:, None]
    elif recipe == "one row":
        mask[1:] = False
    elif recipe == "nothing":
        mask[...] = False
    elif recipe == "first row never":
        mask[0] = False
    return mask


def _weights(rng: np.random.Generator, recipe: str) -> np.ndarray:
    weights = rng.uniform(0.5, 1.0, NUM_ROWS) if recipe == "random" else np.ones(NUM_ROWS)
    place = rng.integers(0, NUM_ROWS)
    if recipe == "one row":
        weights = np.eye(NUM_ROWS)[place]
    elif recipe in ("negative", "nan", "inf"):
        weights[place] = {"negative": -1.0, "nan": np.nan, "inf": np.inf}[recipe]
    return weights * {"zero": 0.0, "huge": 3e38, "tiny": 1e-40}.get(recipe, 1.0)


def make_case(seed: int, kind: str, masked: bool) -> Case:
    """Return the case of a seed, for data of a kind: real, counts, symbols, vectors or codes."""
    rng = np.random.default_rng(seed)
    choices: list[Any] = [VALUES, MASKS if masked else ("all",), WEIGHTS]
    recipes = [str(rng.choice(choice)) for choice in choices]
    x = _change(rng, _good(rng, kind), recipes[0], kind)
    with np.errstate(over="ignore"):
        x = x.astype(np.int32 if kind in ("symbols", "codes", "ids") else np.float32)
    mask = _mask(rng, x.shape[:2], recipes[1])
    with np.errstate(over="ignore"):
        weights = _weights(rng, recipes[2]).astype(np.float32)
    counted = weights > 0
    seen = mask & counted[:, None]
    cells = seen if x.ndim == 2 else seen[..., None]
    known = np.where(cells, x, 0)
    is_sequence = kind in ("symbols", "vectors")
    units = _windows(known, seen) if is_sequence else known[counted].reshape(int(counted.sum()), x[0].size)
    distinct = len(np.unique(units, axis=0)) if len(units) else 0
    return Case(
        seed,
        ", ".join(recipes),
        x,
        mask,
        weights,
        invalid=bool(_is_invalid(x, cells, kind) or not _are_weights(weights)),
        degenerate=bool(distinct < 2 or not seen.any() or (not is_sequence and not seen.any(axis=0).all())),
        extreme=bool(np.max(np.abs(np.where(np.isfinite(known), known, 0)), initial=0) > 1e12),
    )


def _are_weights(weights: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(weights) & (weights >= 0)) and weights.max() > 0)


def _windows(x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return all windows of three observations, none of which is missing."""
    whole = seen[:, :-2] & seen[:, 1:-1] & seen[:, 2:]
    windows = np.stack([x[:, :-2], x[:, 1:-1], x[:, 2:]], axis=2)
    return windows.reshape(*whole.shape, -1)[whole]


def _is_invalid(x: np.ndarray, cells: np.ndarray, kind: str) -> Any:
    bad = ~np.isfinite(x)
    if kind == "counts":
        bad = bad | (x < 0) | (x != np.floor(x))
    if kind in ("codes", "ids"):
        bad = (x >= NUM_SYMBOLS) | ((x < 0) & (kind == "codes"))  # a word id below zero is padding
    return np.any(bad & cells)
