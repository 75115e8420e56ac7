"""How sure are we: what data say about a model beyond its estimate. The top layer, over the verbs of all models.

| question | functions |
| --- | --- |
| how far an estimate is off, by its derivative (the delta method) | `standard_errors`, `covariance` |
| the same by resampling | `bootstrap` |
| where a parameter is, with a given probability | `confidence_intervals`, `percentile_intervals` |
| by how much every row moves the estimate | `influence` |
| how many components | `select_rank`, `scree` |
| what a likelihood is worth, given the number of parameters | `aic`, `bic` |

`model` is a module of `latensor.models`, `fit` what its `fit` or `refine` returned, and data come as for `fit`.
"""

from latensor.inference._bootstrap import Bootstrap, bootstrap, percentile_intervals
from latensor.inference._criteria import aic, bic
from latensor.inference._delta import confidence_intervals, covariance, influence, standard_errors
from latensor.inference._intervals import Intervals
from latensor.inference._rank import select_rank
from latensor.inference._splits import Mean
from latensor.inference._table import Candidate, RankSelection, scree

__all__ = [
    "Bootstrap",
    "Candidate",
    "Intervals",
    "Mean",
    "RankSelection",
    "aic",
    "bic",
    "bootstrap",
    "confidence_intervals",
    "covariance",
    "influence",
    "percentile_intervals",
    "scree",
    "select_rank",
    "standard_errors",
]
