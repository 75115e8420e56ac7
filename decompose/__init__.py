"""Decompositions of moment tensors: the second layer, which knows tensors and nothing of data.

Every decomposition carries a `status` (see `Status`), a `residual` and `num_iters`.
"""

from latensor.decompose._diagonalize import Diagonalization, diagonalize_slices, simultaneous_diagonalization
from latensor.decompose._match import Matching, column_angles, match_columns, matched_rmse
from latensor.decompose._noise import noise_variance, noise_variance_operator
from latensor.decompose._power import Eigenpairs, power_method
from latensor.decompose._simplex import project_columns_to_simplex
from latensor.decompose._status import Status, status_if, worst
from latensor.decompose._whiten import Whitening, whiten, whiten_operator

__all__ = [
    "Diagonalization",
    "Eigenpairs",
    "Matching",
    "Status",
    "Whitening",
    "column_angles",
    "diagonalize_slices",
    "match_columns",
    "matched_rmse",
    "noise_variance",
    "noise_variance_operator",
    "power_method",
    "project_columns_to_simplex",
    "simultaneous_diagonalization",
    "status_if",
    "whiten",
    "whiten_operator",
    "worst",
]
