"""The demo: a table with holes, three methods, one picture.

A mixture of four Gaussians in ten dimensions, 20,000 rows. Six dimensions are always observed, four at rates from 0.1
to 0.9. The full method treats all moments alike, the partial one drops the incomplete dimensions, the weighted one
weighs each dimension by its rate. Left: some rows of the table. Middle: errors over many such tables, on the complete
dimensions.
Right: the means that the weighted fit of the first table finds, and those after EM.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.partial_data import (
    COMPLETE,
    COMPONENTS,
    DIMENSIONS,
    LOOKS,
    METHODS,
    SPREAD_PATTERN,
    batch_errors,
    draw_gaussian,
    independent_masks,
    interest_mask,
)
from benchmarks.plotting import COLOURS, MUTED, figure
from benchmarks.runner import Options, Report, measure
from latensor.decompose import Status, column_angles, match_columns
from latensor.models import gaussian_mixture

_SHOWN = 60


def run(options: Options) -> Report:
    """Fit one table in all ways, and many for the errors."""
    n = 2_000 if options.quick else 20_000
    tables = options.trials or (5 if options.quick else 50)
    rates = jnp.concatenate([jnp.ones(COMPLETE), jnp.array(SPREAD_PATTERN)])
    key_data, key_mask, key_fit = jax.random.split(jax.random.key(1), 3)
    with tqdm(total=3, desc="drawing and fitting") as progress:
        x, truth = draw_gaussian(key_data, tables, n, variance=25.0)
        mask = independent_masks(key_mask, rates, tables, n)
        progress.update()
        keys = jax.random.split(key_fit, tables)
        errors = batch_errors(gaussian_mixture, keys, x, mask, truth, interest_mask())
        progress.update()
        table, seen, means = jnp.where(mask[0], x[0], jnp.nan), mask[0], truth[0]
        fits, rows = {}, []
        for name in METHODS:
            timing, result = measure(partial(gaussian_mixture.fit, keys[0], table, COMPONENTS, mask=seen, missing=name))
            fits[name] = result
            rows.append(
                [name, *_errors(means, result.params.means), 1e3 * timing.warm, Status(int(result.status)).name]
            )
        timing, refined = measure(lambda: gaussian_mixture.refine(fits["weighted"].params, table, mask=seen))
        rows.append(
            [
                "refine(weighted)",
                *_errors(means, refined.params.means),
                1e3 * timing.warm,
                Status(int(refined.status)).name,
            ]
        )
        progress.update()
    for row, error in zip(rows, [*errors.mean(axis=0), None], strict=True):
        row.append("" if error is None else float(error))
    dimensions = fits["weighted"].diagnostics.dimensions
    print("rates of the dimensions, as fit reports them:", np.asarray(dimensions.rates).round(3).tolist())
    columns = ["", "error, complete", "error, all", "ms", "status", f"mean of {tables} tables"]
    picture = _draw(table, errors, means, fits["weighted"].params.means, refined.params.means)
    return Report(columns, rows, [], {"errors": errors, "rates": dimensions.rates}, picture)


def _errors(truth: jax.Array, estimate: jax.Array) -> list[float]:
    """Return the sum of the angles on the complete dimensions and on all."""
    return [float(jnp.sum(column_angles(truth[:rows], estimate[:rows]))) for rows in (COMPLETE, DIMENSIONS)]


def _draw(table: Any, errors: np.ndarray, truth: Any, estimate: Any, refined: Any) -> Any:
    made, (left, middle, right) = figure(3, (9.6, 3.1))
    shown = np.ma.masked_invalid(np.asarray(table[:_SHOWN]))
    left.set_facecolor("#dddddd")
    left.imshow(shown, aspect="auto", cmap="RdBu_r", vmin=-40, vmax=40, interpolation="nearest")
    left.set(xlabel="dimension", ylabel="row", title="A table with holes (grey)")
    left.set_xticks(range(DIMENSIONS), [str(i + 1) for i in range(DIMENSIONS)])
    boxes = middle.boxplot([errors[:, METHODS.index(name)] for name in METHODS], patch_artist=True, widths=0.55)
    for box, name in zip(boxes["boxes"], METHODS, strict=True):
        box.set_facecolor(LOOKS[name][0])
    for line in boxes["medians"]:
        line.set_color("white")
    middle.set_xticks([1, 2, 3], METHODS)
    middle.set(
        yscale="log", ylabel=r"error $\varepsilon_c$ (radians)", title=f"{len(errors)} tables, complete dimensions"
    )
    low, high = float(jnp.min(truth)), float(jnp.max(truth))
    right.plot([low, high], [low, high], color=MUTED, lw=0.8)
    for values, name, size in ((estimate, "fit", 22), (refined, "refine(fit)", 7)):
        order = np.asarray(match_columns(truth, values).permutation)
        lined_up = np.asarray(values)[:, order]
        for part, colour, label in (
            (slice(0, COMPLETE), COLOURS["blue"], "complete"),
            (slice(COMPLETE, None), COLOURS["orange"], "incomplete"),
        ):
            face = "none" if name == "fit" else colour
            right.scatter(
                np.asarray(truth)[part],
                lined_up[part],
                s=size,
                facecolors=face,
                edgecolors=colour,
                label=f"{name}, {label}",
            )
    right.set(xlabel="true means", ylabel="estimates", title="One table, weighted")
    right.legend(frameon=False, fontsize=7)
    return made
