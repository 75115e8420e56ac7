"""Figure 4 right of the paper on partial data: Gamma-Poisson, one topic matrix; full, partial, weighted against n.

One topic matrix (d = 10, k = 4) for all trials; shapes one, mean length 100. Six dimensions are complete, four are
observed at the rates of a pattern. Claim: the weighted method does as well as the better of the two others everywhere,
and better than both where the rates are spread widely.
"""

import jax
from jaxtyping import Array
from tqdm import tqdm

from benchmarks.partial_data import (
    PATTERNS,
    SIZES,
    SWEEP_COLUMNS,
    draw_fixed,
    sweep,
    sweep_claims,
    sweep_figure,
    sweep_rows,
)
from benchmarks.runner import Options, Report
from latensor.models import gamma_poisson


def _draw(_: Array, trials: int, num_samples: int) -> tuple[Array, Array]:
    return draw_fixed(4, trials, num_samples)


def run(options: Options) -> Report:
    """Run all patterns and sizes."""
    sizes = (1_000, 3_000) if options.quick else SIZES
    trials = options.trials or (5 if options.quick else 100)
    with tqdm(total=len(sizes) * len(PATTERNS), desc="patterns and sizes") as progress:
        found = sweep(gamma_poisson, _draw, sizes, trials, jax.random.key(4), progress)
    return Report(
        SWEEP_COLUMNS,
        sweep_rows(sizes, found),
        sweep_claims(sizes, found, 30_000),
        {"sizes": sizes, "patterns": PATTERNS, "trials": trials, "errors": found},
        sweep_figure(
            sizes, found, f"Gamma-Poisson model, one topic matrix: error on the complete dimensions, {trials} trials"
        ),
    )
