"""Decompositions of moment tensors: the second layer, which works on tensors and never sees data.

| problem | functions |
| --- | --- |
| from a second moment to a space with orthonormal components | `whiten`, `whiten_operator`, `noise_variance` |
| a symmetric, orthogonal tensor | `power_method`, `diagonalize_slices`, `joint_diagonalization` |
| several symmetric matrices | `simultaneous_diagonalization`, `joint_diagonalization` |
| three views of one hidden variable | `decompose_views`, `conditionals_from_views` |
| any tensor of order three, in factors of either sign or nonnegative ones | `cp_als`, `nonnegative_cp`, `reconstruct` |
| the tensor of many variables, in partitions | `choose_anchors`, `partition_variables`, `partitioned_nonnegative_cp` |
| the joint distribution of hidden variables | `composite_likelihood_em`, `pseudoinverse_marginals` |
| nonnegative quadratic programs, the simplex | `solve_nonnegative_qp`, `project_columns_to_simplex` |
| comparison of columns in any order | `match_columns`, `column_angles`, `matched_rmse` |

Every decomposition returns a NamedTuple with a `residual`, `num_iters` and a `status` (see `Status`).
"""

from latensor.decompose._anchors import choose_anchors
from latensor.decompose._conditionals import Conditionals, conditionals_from_views
from latensor.decompose._cp import cp_als, nonnegative_cp
from latensor.decompose._cp_alternation import CPFactors, reconstruct
from latensor.decompose._diagonalize import Diagonalization, diagonalize_slices, simultaneous_diagonalization
from latensor.decompose._efficiency import relative_efficiency, uniform_efficiency
from latensor.decompose._joint import JointDiagonalization, joint_diagonalization
from latensor.decompose._marginals import (
    Marginals,
    composite_likelihood_em,
    pseudoinverse_marginals,
)
from latensor.decompose._marginals_samples import composite_likelihood_em_samples
from latensor.decompose._match import Matching, column_angles, match_columns, matched_rmse
from latensor.decompose._noise import noise_variance
from latensor.decompose._partition import Partitions, partition_variables
from latensor.decompose._partitioned import PartitionedFactors, partitioned_nonnegative_cp
from latensor.decompose._power import Eigenpairs, power_method
from latensor.decompose._qp import QPSolution, solve_nonnegative_qp
from latensor.decompose._simplex import project_columns_to_simplex
from latensor.decompose._status import Status
from latensor.decompose._views import ViewFactors, decompose_views
from latensor.decompose._whiten import Whitening, whiten, whiten_operator

__all__ = [
    "CPFactors",
    "Conditionals",
    "Diagonalization",
    "Eigenpairs",
    "JointDiagonalization",
    "Marginals",
    "Matching",
    "PartitionedFactors",
    "Partitions",
    "QPSolution",
    "Status",
    "ViewFactors",
    "Whitening",
    "choose_anchors",
    "column_angles",
    "composite_likelihood_em",
    "composite_likelihood_em_samples",
    "conditionals_from_views",
    "cp_als",
    "decompose_views",
    "diagonalize_slices",
    "joint_diagonalization",
    "match_columns",
    "matched_rmse",
    "noise_variance",
    "nonnegative_cp",
    "partition_variables",
    "partitioned_nonnegative_cp",
    "power_method",
    "project_columns_to_simplex",
    "pseudoinverse_marginals",
    "reconstruct",
    "relative_efficiency",
    "simultaneous_diagonalization",
    "solve_nonnegative_qp",
    "uniform_efficiency",
    "whiten",
    "whiten_operator",
]
