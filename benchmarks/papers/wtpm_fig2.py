"""Figure 2 of the paper on partial data: what more dimensions and what partial samples are worth.

Gamma-Poisson, d = 10, k = 4, one topic matrix, 6 dimensions of interest. (a) Complete data, of which 6 to 10 dimensions
are used: more of them should help at any n. (b) `N_f` complete rows and `N_p` rows that have the 6 dimensions only,
full method: more partial rows should help little, since the noisiest moments do not get better.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm import tqdm

from benchmarks.partial_data import (
    COMPLETE,
    COMPONENTS,
    DIMENSIONS,
    draw_fixed,
    fixed_topics,
    interest_mask,
    joint_sweep,
)
from benchmarks.plotting import COLOURS, figure, plot_spread
from benchmarks.runner import Claim, Options, Report
from latensor.decompose import column_angles
from latensor.models import gamma_poisson

_USED = tuple(range(COMPLETE, DIMENSIONS + 1))


@partial(jax.jit, static_argnames="n")
def _errors_by_dimension(keys: Array, x: Array, truth: Array, n: int) -> Array:
    """Return errors `(trials, used)`: a weight of zero takes a dimension out."""
    chosen = jnp.stack([(jnp.arange(DIMENSIONS) < used).astype(x.dtype) for used in _USED])
    keep = interest_mask()[:, None]

    def error(key: Array, x: Array, truth: Array, weights: Array) -> Array:
        topics = gamma_poisson.fit(key, x[:n], COMPONENTS, weights=weights).params.topics
        return jnp.sum(column_angles(jnp.where(keep, truth, 0), jnp.where(keep, topics, 0)))

    over_weights = jax.vmap(error, in_axes=(None, None, None, 0))
    return jax.vmap(over_weights, in_axes=(0, 0, 0, None))(keys, x, truth, chosen)


def run(options: Options) -> Report:
    """Run both panels."""
    trials = options.trials or (3 if options.quick else 20)
    sizes = (1_000, 3_000) if options.quick else (1_000, 3_000, 10_000, 30_000, 100_000)
    fulls = (1_000,) if options.quick else (3_000, 10_000, 30_000)
    partials = (0, 3_000) if options.quick else (0, 3_000, 10_000, 30_000, 100_000)
    with tqdm(total=len(sizes) + len(fulls) * len(partials), desc="settings") as progress:
        x, truth = draw_fixed(2, trials, max(sizes))
        keys = jax.random.split(jax.random.key(2), trials)
        by_dimension = np.zeros((len(sizes), trials, len(_USED)))
        for i, n in enumerate(sizes):
            by_dimension[i] = _errors_by_dimension(keys, x, truth, n)
            progress.update()
        # Dimensions that are missing together: the available-case moments.
        full = {nf: joint_sweep(nf, partials, trials, ("available",), progress)["available"][..., 1] for nf in fulls}

    rows = [
        ["complete", n, used, float(by_dimension[i, :, j].mean())]
        for i, n in enumerate(sizes)
        for j, used in enumerate(_USED)
    ]
    rows += [
        [f"{nf} full", nf + np_, DIMENSIONS, float(full[nf][i].mean())]
        for nf in fulls
        for i, np_ in enumerate(partials)
    ]
    means = by_dimension.mean(axis=1)
    gain = float(np.max(means[:, -1] / means[:, 0]))
    flat = {nf: float(1 - values[-1].mean() / values[0].mean()) for nf, values in full.items()}
    claims = [
        Claim(
            "using all 10 dimensions gives a smaller error on the 6 of interest than using these alone, at every n",
            f"largest ratio of the two errors {gain:.2f}",
            gain < 1,
        ),
        Claim(
            f"{partials[-1]:,} partial rows lower the full method's error by less than a third",
            ", ".join(f"by {value:.0%} beside {nf:,} full rows" for nf, value in flat.items()),
            max(flat.values()) < 1 / 3,
        ),
    ]
    data = {
        "sizes": sizes,
        "used": _USED,
        "errors_by_dimension": by_dimension,
        "partials": partials,
        "errors_full": full,
    }
    return Report(["rows", "n", "dimensions", "error"], rows, claims, data, _draw(sizes, by_dimension, partials, full))


def _draw(sizes: Any, by_dimension: np.ndarray, partials: Any, full: dict[int, np.ndarray]) -> Any:
    made, (left, middle, right) = figure(3, (10.5, 3.2))
    shades = np.linspace(0.85, 0.25, len(_USED))
    for j, used in enumerate(_USED):
        plot_spread(left, sizes, by_dimension[:, :, j], color=str(shades[j]), label=f"{used}")
    left.set(xscale="log", yscale="log", xlabel="samples n", title="(a) dimensions used")
    left.set_ylabel(r"error $\varepsilon_c$ (radians)")
    left.legend(frameon=False, fontsize=8)
    for (nf, values), colour in zip(full.items(), (COLOURS["blue"], COLOURS["orange"], COLOURS["green"]), strict=False):
        plot_spread(middle, np.maximum(partials, 1_000), values, color=colour, marker="s", label=f"{nf:,} full rows")
    middle.set(xscale="log", yscale="log", xlabel="partial rows (none at the left end)", title="(b) full method")
    middle.legend(frameon=False, fontsize=8)
    for h, topic in enumerate(np.asarray(fixed_topics()).T):
        right.plot(range(1, DIMENSIONS + 1), topic, marker="o", ms=3, label=f"topic {h + 1}")
    right.set(xlabel="dimension", title="(c) topics")
    right.legend(frameon=False, fontsize=8)
    made.suptitle(f"Gamma-Poisson model: means of {by_dimension.shape[1]} trials with standard errors", fontsize=10)
    return made
