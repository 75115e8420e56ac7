"""One look for all figures."""

from typing import Any

import numpy as np

INK, MUTED = "#222222", "#8a8a8a"
COLOURS = {"blue": "#3b6fb6", "orange": "#d9822b", "green": "#4c9a5f", "grey": "#9a9a9a"}


def figure(columns: int, size: tuple[float, float], rows: int = 1) -> tuple[Any, Any]:
    """Return a figure with a row of axes, or with several, one after the other; drawn without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.titlesize": 10})
    made, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
    return made, axes.ravel()


def plot_spread(axis: Any, places: Any, values: Any, *, median: bool = False, **look: Any) -> None:
    """Draw means with their standard errors, or medians with quartiles, of `values (places, trials)`."""
    values = np.asarray(values)
    if median:
        low, middle, high = np.percentile(values, [25, 50, 75], axis=1)
        spread = np.stack([middle - low, high - middle])
    else:
        middle, spread = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
    style = {"marker": "o", "markersize": 3, "linewidth": 1.2, "capsize": 2, "elinewidth": 0.8, **look}
    axis.errorbar(places, middle, spread, **style)
