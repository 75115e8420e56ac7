"""Figure 4 left of the paper on partial data: Gaussian mixtures; full, partial, weighted against n.

Random mixtures: d = 10, k = 4, centres N(0, 100), σ² = 100, weights Dir(1). Six dimensions are complete, four are
observed at the rates of a pattern. Claim: the weighted method does as well as the better of the two others everywhere,
and better than both where the rates are spread widely.
"""

from benchmarks.partial_data import draw_gaussian, run_sweep
from benchmarks.runner import Options, Report
from latensor.models import gaussian_mixture


def run(options: Options) -> Report:
    """Run all patterns and sizes."""
    return run_sweep(options, gaussian_mixture, draw_gaussian, 4, "Gaussian mixtures")
