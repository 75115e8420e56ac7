"""The parts of `latensor.decompose` that latensor's own models, benchmarks and tests need and users do not."""

from latensor.decompose._anchors import anchor_capacity, check_anchors
from latensor.decompose._efficiency import (
    MarginalVariances,
    marginal_variances,
    reduced_conditionals,
    reduced_pseudoinverse,
)
from latensor.decompose._eigenspace import dominant_space
from latensor.decompose._em import EMResult, Evaluation, expectation_maximization
from latensor.decompose._linalg import inverse_root, least_squares
from latensor.decompose._noise import NoiseSpace, noise_space, noise_space_operator
from latensor.decompose._partitioned import line_up
from latensor.decompose._pqp import linear_rate_phi, pqp_update, smallest_gamma
from latensor.decompose._schur import real_eigenvectors
from latensor.decompose._simplex import to_simplex
from latensor.decompose._singular import pseudoinverse
from latensor.decompose._status import finite_status, status_if, worst
from latensor.decompose._views import VIEW_METHODS, ViewMethod
from latensor.decompose._whiten import last_direction

__all__ = [
    "VIEW_METHODS",
    "EMResult",
    "Evaluation",
    "MarginalVariances",
    "NoiseSpace",
    "ViewMethod",
    "anchor_capacity",
    "check_anchors",
    "dominant_space",
    "expectation_maximization",
    "finite_status",
    "inverse_root",
    "last_direction",
    "least_squares",
    "line_up",
    "linear_rate_phi",
    "marginal_variances",
    "noise_space",
    "noise_space_operator",
    "pqp_update",
    "pseudoinverse",
    "real_eigenvectors",
    "reduced_conditionals",
    "reduced_pseudoinverse",
    "smallest_gamma",
    "status_if",
    "to_simplex",
    "worst",
]
