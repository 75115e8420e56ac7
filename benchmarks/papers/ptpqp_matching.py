"""Matching the components of partitions: how often three ways of it succeed as noise grows.

The anchors of two factorizations, 6 variables of 4 categories, k = 8, tables Dir(0.5), columns in a random order and
each entry perturbed by noise. A matching succeeds if it is the true permutation. Claims: Procrustes matching succeeds
at least as often as the smallest angle at every noise level, and no result that is not a permutation goes unflagged.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm import tqdm

from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report
from latensor.decompose import match_columns

_METHODS = ("procrustes", "angle", "assignment")
_VARIABLES, _CATEGORIES, _COMPONENTS = 6, 4, 8


@partial(jax.jit, static_argnames=("method", "trials"))
def _succeed(key: Array, noise: Array, method: Any, trials: int) -> tuple[Array, Array, Array]:
    """Return how often the order was found, was flagged, and was no permutation without a flag."""

    def one(key: Array) -> tuple[Array, Array, Array]:
        key_tables, key_order, key_noise = jax.random.split(key, 3)
        shape = (_COMPONENTS, _VARIABLES)
        # A Gamma(½) variable is half a squared normal one.
        draws = jax.random.normal(key_tables, (*shape, _CATEGORIES)) ** 2
        tables = (draws / jnp.sum(draws, axis=-1, keepdims=True)).reshape(_COMPONENTS, -1).T
        order = jax.random.permutation(key_order, _COMPONENTS)
        errors = noise * jax.random.normal(key_noise, (2, *tables.shape))
        seen = jnp.maximum(tables[None] + errors, 0)
        match = match_columns(seen[0], seen[1][:, order], method)
        right = jnp.all(order[match.permutation] == jnp.arange(_COMPONENTS))
        valid = jnp.all(jnp.sort(match.permutation) == jnp.arange(_COMPONENTS))
        return right, ~match.is_permutation, ~valid & match.is_permutation

    counts = jax.vmap(one)(jax.random.split(key, trials))
    return jnp.mean(counts[0]), jnp.mean(counts[1]), jnp.sum(counts[2])


def run(options: Options) -> Report:
    """Sweep the noise; all methods see the same draws."""
    trials = options.trials or (200 if options.quick else 5_000)
    levels = np.linspace(0, 0.4, 5 if options.quick else 17)
    success, flagged, hidden = (np.zeros((len(levels), len(_METHODS))) for _ in range(3))
    for i, level in enumerate(tqdm(levels, desc="noise levels")):
        for m, method in enumerate(_METHODS):
            shares = _succeed(jax.random.fold_in(jax.random.key(7), i), jnp.float32(level), method, trials)
            success[i, m], flagged[i, m], hidden[i, m] = (float(part) for part in shares)
    gap = success[:, 0] - success[:, 1]
    rows = [[float(level), *map(float, success[i]), *map(float, flagged[i, :2])] for i, level in enumerate(levels)]
    claims = [
        Claim(
            "Procrustes succeeds at least as often as the smallest angle at every noise level",
            f"smallest difference {gap.min():+.4f}, largest {gap.max():+.4f}",
            bool(gap.min() >= 0),
        ),
        Claim("no result that is not a permutation goes unflagged", f"{int(hidden.sum())}", bool(hidden.sum() == 0)),
    ]
    made, (axis,) = figure(1, (4.2, 3.2))
    for m, (method, colour) in enumerate(zip(_METHODS, ("blue", "grey", "orange"), strict=True)):
        axis.plot(levels, success[:, m], color=COLOURS[colour], marker="o", markersize=3, label=method)
    axis.set(xlabel="noise of an entry", ylabel="share of correct matchings", ylim=(0, 1.02))
    axis.legend(frameon=False)
    columns = ["noise", *_METHODS, "procrustes flagged", "angle flagged"]
    return Report(columns, rows, claims, {"success": success, "flagged": flagged}, made)
