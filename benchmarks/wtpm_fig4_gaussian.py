"""Figure 4 left of the paper on partial data: Gaussian mixtures; full, partial, weighted against n.

Random mixtures: d = 10, k = 4, centres N(0, 100), σ² = 100, weights Dir(1). Six dimensions are complete, four are
observed at the rates of a pattern. Claim: the weighted method does as well as the better of the two others everywhere,
and better than both where the rates are spread widely.
"""

import jax
from tqdm import tqdm

from benchmarks.partial_data import (
    PATTERNS,
    SIZES,
    SWEEP_COLUMNS,
    draw_gaussian,
    sweep,
    sweep_claims,
    sweep_figure,
    sweep_rows,
)
from benchmarks.runner import Options, Report
from latensor.models import gaussian_mixture


def run(options: Options) -> Report:
    """Run all patterns and sizes."""
    sizes = (1_000, 3_000) if options.quick else SIZES
    trials = options.trials or (5 if options.quick else 100)
    with tqdm(total=len(sizes) * len(PATTERNS), desc="patterns and sizes") as progress:
        found = sweep(gaussian_mixture, draw_gaussian, sizes, trials, jax.random.key(4), progress)
    return Report(
        SWEEP_COLUMNS,
        sweep_rows(sizes, found),
        sweep_claims(sizes, found, 30_000),
        {"sizes": sizes, "patterns": PATTERNS, "trials": trials, "errors": found},
        sweep_figure(sizes, found, f"Gaussian mixtures: error on the complete dimensions, {trials} trials"),
    )
