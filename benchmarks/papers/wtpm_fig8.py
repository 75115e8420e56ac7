"""Figure 8 of the paper on partial data: as Figure 4 right, with random topics in every trial.

Topics (d = 10, k = 4) are drawn from Dir(1); shapes one, mean length 100. Six dimensions are complete, four are
observed at the rates of a pattern. Claim: the weighted method does as well as the better of the two others everywhere,
and better than both where the rates are spread widely.
"""

from jaxtyping import Array

from benchmarks.partial_data import draw_counts, random_topics, run_sweep
from benchmarks.runner import Options, Report
from latensor.models import gamma_poisson


def _draw(key: Array, trials: int, num_samples: int) -> tuple[Array, Array]:
    topics = random_topics(key, trials)
    return draw_counts(8, topics, num_samples), topics


def run(options: Options) -> Report:
    """Run all patterns and sizes."""
    return run_sweep(options, gamma_poisson, _draw, 8, "Gamma-Poisson model, random topics")
