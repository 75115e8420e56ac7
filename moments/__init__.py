"""Moments of data: the first layer, which knows samples and nothing of factors.

Every function takes its data as one argument: an array (complete rows of equal weight), or a data type (`Table`,
`Documents`, `Sequences`, `Labels`), which also holds a mask of what was observed and one weight per row. Weights make a
bootstrap a re-weighting of the same rows. Every moment is a sum over rows. Dense forms return `(d, d)` and `(d, d, d)`
arrays; `contract_…` forms never do.
"""

from latensor.moments._cross import CrossMoments, contract_cross_moments, cross_moments
from latensor.moments._cumulants import Cumulants, contract_third_cumulant, cumulants
from latensor.moments._dirichlet import dirichlet_cross_moments
from latensor.moments._documents import contract_document_moments, document_moments
from latensor.moments._gamma_poisson import contract_gamma_poisson_moments, gamma_poisson_moments
from latensor.moments._gaussian import contract_gaussian_moments, gaussian_moments
from latensor.moments._labels import Labels
from latensor.moments._moments import Moments
from latensor.moments._observed import joint_observation_rates, observation_rates
from latensor.moments._rows import map_over_rows, sum_over_rows
from latensor.moments._sequences import contract_sequence_moments, sequence_moments
from latensor.moments._variables import Variables, categorical_variables
from latensor.moments.data import Documents, Sequences, Table

__all__ = [
    "CrossMoments",
    "Cumulants",
    "Documents",
    "Labels",
    "Moments",
    "Sequences",
    "Table",
    "Variables",
    "categorical_variables",
    "contract_cross_moments",
    "contract_document_moments",
    "contract_gamma_poisson_moments",
    "contract_gaussian_moments",
    "contract_sequence_moments",
    "contract_third_cumulant",
    "cross_moments",
    "cumulants",
    "dirichlet_cross_moments",
    "document_moments",
    "gamma_poisson_moments",
    "gaussian_moments",
    "joint_observation_rates",
    "map_over_rows",
    "observation_rates",
    "sequence_moments",
    "sum_over_rows",
]
