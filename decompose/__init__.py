"""Decompositions of moment tensors: the second layer, which knows tensors and nothing of data.

Every decomposition carries a `status` (see `Status`), a `residual` and `num_iters`.
"""

from latensor.decompose._cp import CPFactors, cp_als, nonnegative_cp, reconstruct
from latensor.decompose._diagonalize import Diagonalization, diagonalize_slices, simultaneous_diagonalization
from latensor.decompose._joint import JointDiagonalization, joint_diagonalization
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
from latensor.decompose._status import Status, status_if, worst
from latensor.decompose._views import ViewFactors, decompose_views
from latensor.decompose._whiten import Whitening, whiten, whiten_operator

__all__ = [
    "CPFactors",
    "Diagonalization",
    "Eigenpairs",
    "JointDiagonalization",
    "Matching",
    "PartitionedFactors",
    "Partitions",
    "QPSolution",
    "Status",
    "ViewFactors",
    "Whitening",
    "anchor_capacity",
    "check_anchors",
    "choose_anchors",
    "column_angles",
    "cp_als",
    "decompose_views",
    "diagonalize_slices",
    "joint_diagonalization",
    "line_up",
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
    "reconstruct",
    "simultaneous_diagonalization",
    "solve_nonnegative_qp",
    "status_if",
    "whiten",
    "whiten_operator",
    "worst",
]
