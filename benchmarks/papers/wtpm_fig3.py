"""Figure 3 of the paper on partial data: full and partial dimensionality cross over as partial rows come in.

Gamma-Poisson, d = 10, k = 4, one topic matrix, `N_f` = 10,000 complete rows and `N_p` rows that have 6 dimensions only.
Claim: with few partial rows the full method is better, with many the partial one.
"""

from tqdm import tqdm

from benchmarks.partial_data import METHODS, joint_sweep, plot_methods
from benchmarks.plotting import figure
from benchmarks.runner import Claim, Options, Report


def run(options: Options) -> Report:
    """Run all numbers of partial rows."""
    trials = options.trials or (3 if options.quick else 20)
    num_full = 1_000 if options.quick else 10_000
    partials = (100, 3_000) if options.quick else (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
    with tqdm(total=len(partials), desc="numbers of partial rows") as progress:
        errors = joint_sweep(num_full, partials, trials, ("available",), progress)["available"]
    means = errors.mean(axis=1)
    full, part = means[:, METHODS.index("full")], means[:, METHODS.index("partial")]
    claims = [
        Claim(
            "full is better with the fewest partial rows",
            f"{full[0]:.3f} against {part[0]:.3f}",
            bool(full[0] < part[0]),
        ),
        Claim("partial is better with the most", f"{part[-1]:.3f} against {full[-1]:.3f}", bool(part[-1] < full[-1])),
    ]
    rows = [[n, float(f), float(p)] for n, f, p in zip(partials, full, part, strict=True)]
    made, (axis,) = figure(1, (4.6, 3.2))
    plot_methods(axis, partials, errors, ("full", "partial"))
    axis.set(xlabel=f"partial rows, beside {num_full:,} full ones", ylabel=r"error $\varepsilon_c$ (radians)")
    axis.set_title(f"Gamma-Poisson model, {trials} trials, standard errors")
    axis.legend(frameon=False, fontsize=8)
    return Report(["partial rows", "full", "partial"], rows, claims, {"partials": partials, "errors": errors}, made)
