"""How sure an estimate is: the top layer, functions over models, which they know by their verbs only.

| function | answers |
| --- | --- |
| `bootstrap` | how much an estimate would differ on other data: standard errors by resampling |
| `percentile_intervals` | where a parameter is, with a given probability, by the bootstrap |

`model` is a module of `latensor.models`, and `fit` what its `fit` or `refine` returned.
"""

from latensor.inference._bootstrap import Bootstrap, Intervals, bootstrap, percentile_intervals

__all__ = [
    "Bootstrap",
    "Intervals",
    "bootstrap",
    "percentile_intervals",
]
