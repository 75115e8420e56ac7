"""Figure 5a of the paper on partial data: incomplete dimensions that are present or absent together.

The setting of Figure 3. Claim: the weighted method, on available-case moments, does as well as the better of full and
partial although its derivation assumes independence. The implicit moments need that assumption: beside it is shown what
they make of this pattern.
"""

from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.partial_data import joint_sweep, plot_methods
from benchmarks.plotting import COLOURS, figure, plot_spread
from benchmarks.runner import Claim, Options, Report


def run(options: Options) -> Report:
    """Run all numbers of partial rows, by both kinds of third moments."""
    trials = options.trials or (3 if options.quick else 20)
    num_full = 1_000 if options.quick else 10_000
    partials = (100, 3_000) if options.quick else (1_000, 3_000, 10_000, 30_000, 100_000)
    with tqdm(total=len(partials), desc="numbers of partial rows") as progress:
        errors = joint_sweep(num_full, partials, trials, ("available", "implicit"), progress)
    means, implicit = errors["available"].mean(axis=1), errors["implicit"].mean(axis=1)
    ratio = means[:, 0] / np.minimum(means[:, 1], means[:, 2])
    claims = [
        Claim(
            "the available-case weighted method's mean error is at most 1.05 times the better of full and partial",
            f"largest ratio {ratio.max():.3f}, at {partials[int(ratio.argmax())]:,} partial rows",
            bool(ratio.max() <= 1.05),
        )
    ]
    rows = [[n, *(float(v) for v in means[i]), float(implicit[i, 0])] for i, n in enumerate(partials)]
    made, (axis,) = figure(1, (4.8, 3.3))
    plot_methods(axis, partials, errors["available"])
    look: dict[str, Any] = {
        "color": COLOURS["grey"],
        "linestyle": "--",
        "label": "weighted, implicit (not for this case)",
    }
    plot_spread(axis, partials, errors["implicit"][..., 0], **look)
    axis.set(xlabel=f"partial rows, beside {num_full:,} full ones", ylabel=r"error $\varepsilon_c$ (radians)")
    axis.set_title(f"Dimensions missing together, {trials} trials, standard errors")
    axis.legend(frameon=False, fontsize=8)
    columns = ["partial rows", "weighted", "full", "partial", "weighted, implicit"]
    return Report(columns, rows, claims, {"partials": partials, "errors": errors}, made)
