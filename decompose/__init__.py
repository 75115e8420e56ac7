"""Decompositions of moment tensors: the second layer, which knows tensors and nothing of data.

Every decomposition carries a `status` (see `Status`), a `residual` and `num_iters`.
"""

from latensor.decompose._conditionals import Conditionals, conditionals_from_views
from latensor.decompose._cp import CPFactors, cp_als, nonnegative_cp, reconstruct
from latensor.decompose._diagonalize import Diagonalization, diagonalize_slices, simultaneous_diagonalization
from latensor.decompose._efficiency import (
    MarginalVariances,
    marginal_variances,
    reduced_conditionals,
    reduced_pseudoinverse,
    relative_efficiency,
    uniform_efficiency,
)
from latensor.decompose._joint import JointDiagonalization, joint_diagonalization
from latensor.decompose._marginals import (
    Marginals,
    composite_likelihood_em,
    composite_likelihood_em_samples,
    pseudoinverse,
    pseudoinverse_marginals,
)
from latensor.decompose._match import Matching, column_angles, match_columns, matched_rmse
from latensor.decompose._noise import noise_variance, noise_variance_operator
from latensor.decompose._partition import (
    PartitionedFactors,
    Partitions,
    anchor_capacity,
    check_anchors,
    choose_anchors,
    line_up,
    partition_variables,
    partitioned_nonnegative_cp,
)
from latensor.decompose._power import Eigenpairs, power_method
from latensor.decompose._qp import QPSolution, pqp_update, solve_nonnegative_qp
from latensor.decompose._simplex import project_columns_to_simplex
from latensor.decompose._squarem import Accelerated, Evaluation, accelerated_em
from latensor.decompose._status import Status, status_if, worst
from latensor.decompose._views import ViewFactors, decompose_views
from latensor.decompose._whiten import Whitening, whiten, whiten_operator

__all__ = [
    "Accelerated",
    "CPFactors",
    "Conditionals",
    "Diagonalization",
    "Eigenpairs",
    "Evaluation",
    "JointDiagonalization",
    "MarginalVariances",
    "Marginals",
    "Matching",
    "PartitionedFactors",
    "Partitions",
    "QPSolution",
    "Status",
    "ViewFactors",
    "Whitening",
    "accelerated_em",
    "anchor_capacity",
    "check_anchors",
    "choose_anchors",
    "column_angles",
    "composite_likelihood_em",
    "composite_likelihood_em_samples",
    "conditionals_from_views",
    "cp_als",
    "decompose_views",
    "diagonalize_slices",
    "joint_diagonalization",
    "line_up",
    "marginal_variances",
    "match_columns",
    "matched_rmse",
    "noise_variance",
    "noise_variance_operator",
    "nonnegative_cp",
    "partition_variables",
    "partitioned_nonnegative_cp",
    "power_method",
    "pqp_update",
    "project_columns_to_simplex",
    "pseudoinverse",
    "pseudoinverse_marginals",
    "reconstruct",
    "reduced_conditionals",
    "reduced_pseudoinverse",
    "relative_efficiency",
    "simultaneous_diagonalization",
    "solve_nonnegative_qp",
    "status_if",
    "uniform_efficiency",
    "whiten",
    "whiten_operator",
    "worst",
]
