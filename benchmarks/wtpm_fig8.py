"""Figure 8 of the paper on partial data: as Figure 4 right, with random topics in every trial.

Topics (d = 10, k = 4) are drawn from Dir(1); shapes one, mean length 100. Six dimensions are complete, four are
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
    draw_counts,
    random_topics,
    sweep,
    sweep_claims,
    sweep_figure,
    sweep_rows,
)
from benchmarks.runner import Options, Report
from latensor.models import gamma_poisson


def _draw(key: Array, trials: int, num_samples: int) -> tuple[Array, Array]:
    topics = random_topics(key, trials)
    return draw_counts(8, topics, num_samples), topics


def run(options: Options) -> Report:
    """Run all patterns and sizes."""
    sizes = (1_000, 3_000) if options.quick else SIZES
    trials = options.trials or (5 if options.quick else 100)
    with tqdm(total=len(sizes) * len(PATTERNS), desc="patterns and sizes") as progress:
        found = sweep(gamma_poisson, _draw, sizes, trials, jax.random.key(8), progress)
    return Report(
        SWEEP_COLUMNS,
        sweep_rows(sizes, found),
        sweep_claims(sizes, found, 30_000),
        {"sizes": sizes, "patterns": PATTERNS, "trials": trials, "errors": found},
        sweep_figure(
            sizes, found, f"Gamma-Poisson model, random topics: error on the complete dimensions, {trials} trials"
        ),
    )
