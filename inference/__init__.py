"""How sure an estimate is: the top layer, functions over models, which they know by their verbs only.

| function | answers |
| --- | --- |
| `bootstrap` | how much an estimate would differ on other data: standard errors by resampling |
| `percentile_intervals` | where a parameter is, with a given probability, by the bootstrap |
| `standard_errors`, `covariance` | the same to first order, by the derivative of the estimate: the delta method |
| `confidence_intervals` | where a parameter is, with a given probability, if the estimate is normal |
| `influence` | by how much every row moves the estimate |

`model` is a module of `latensor.models`, and `fit` what its `fit` or `refine` returned.
"""

from latensor.inference._bootstrap import Bootstrap, bootstrap, percentile_intervals
from latensor.inference._delta import confidence_intervals, covariance, influence, standard_errors
from latensor.inference._intervals import Intervals

__all__ = [
    "Bootstrap",
    "Intervals",
    "bootstrap",
    "confidence_intervals",
    "covariance",
    "influence",
    "percentile_intervals",
    "standard_errors",
]
