"""How sure are we: what data say about a model beyond its estimate. The top layer, over the verbs of all models.

| question | functions |
| --- | --- |
| how many components | `select_rank`, `scree` |
| what a likelihood is worth, given the number of parameters | `aic`, `bic` |

Every function takes a model, a package of `latensor.models`, and data as its `fit` does.
"""

from latensor.inference._criteria import aic, bic
from latensor.inference._rank import select_rank
from latensor.inference._splits import Mean
from latensor.inference._table import Candidate, RankSelection, scree

__all__ = ["Candidate", "Mean", "RankSelection", "aic", "bic", "scree", "select_rank"]
