"""Figure 4 right of the paper on partial data: Gamma-Poisson, one topic matrix; full, partial, weighted against n.

One topic matrix (d = 10, k = 4) for all trials; shapes one, mean length 100. Six dimensions are complete, four are
observed at the rates of a pattern. Claim: the weighted method does as well as the better of the two others everywhere,
and better than both where the rates are spread widely.
"""

from jaxtyping import Array

from benchmarks.partial_data import draw_fixed, run_sweep
from benchmarks.runner import Options, Report
from latensor.models import gamma_poisson


def _draw(_: Array, trials: int, num_samples: int) -> tuple[Array, Array]:
    return draw_fixed(4, trials, num_samples)


def run(options: Options) -> Report:
    """Run all patterns and sizes."""
    return run_sweep(options, gamma_poisson, _draw, 4, "Gamma-Poisson model, one topic matrix")
