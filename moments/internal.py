"""Names of this layer that our models need beside the public ones. Not for users: they may change without notice."""

from latensor.moments._choose import choose_rows
from latensor.moments._cross import count_table, feature_moments, spread_view, table_moments, view_features
from latensor.moments._cumulants import (
    THIRD_METHODS,
    ContractedCumulants,
    contract_cumulants,
    second_cumulant,
    second_cumulant_diagonal,
    second_cumulant_operator,
)
from latensor.moments._data_type import Rows
from latensor.moments._dirichlet import correct_dirichlet, described, entry_features, raw_cross_moments, row_features
from latensor.moments._documents import (
    MIN_WORDS,
    contract_documents,
    document_pair_forms,
    document_second_moment,
    document_second_moment_operator,
    project_words,
    spread_words,
)
from latensor.moments._gamma_poisson import correct_gamma_poisson, gamma_poisson_cumulants
from latensor.moments._gaussian import correct_gaussian, correct_lifted
from latensor.moments._labels import as_labels, sum_by_item, sum_by_label, valid_labels
from latensor.moments._moments import contract_third, symmetrize_last
from latensor.moments._noise import NoiseDirections, trace_noise
from latensor.moments._observed import Centred, centre, residuals, spread
from latensor.moments._ragged import pad_sequences
from latensor.moments._rows import average_weights
from latensor.moments._sequences import (
    WINDOW,
    Directions,
    Observations,
    Windows,
    contract_windows,
    count_distinct,
    distinct_triples,
    find_windows,
    flatten_sequences,
    observation_weights,
    pair_product,
    sequence_lengths,
    window_table,
    window_views,
)
from latensor.moments._values import check_values, finite_moments
from latensor.moments._variables import CATEGORICAL, REAL, SHARE, category_rows
from latensor.moments.data import as_documents, as_sequences, as_table

__all__ = [
    "CATEGORICAL",
    "MIN_WORDS",
    "REAL",
    "SHARE",
    "THIRD_METHODS",
    "WINDOW",
    "Centred",
    "ContractedCumulants",
    "Directions",
    "NoiseDirections",
    "Observations",
    "Rows",
    "Windows",
    "as_documents",
    "as_labels",
    "as_sequences",
    "as_table",
    "average_weights",
    "category_rows",
    "centre",
    "check_values",
    "choose_rows",
    "contract_cumulants",
    "contract_documents",
    "contract_third",
    "contract_windows",
    "correct_dirichlet",
    "correct_gamma_poisson",
    "correct_gaussian",
    "correct_lifted",
    "count_distinct",
    "count_table",
    "described",
    "distinct_triples",
    "document_pair_forms",
    "document_second_moment",
    "document_second_moment_operator",
    "entry_features",
    "feature_moments",
    "find_windows",
    "finite_moments",
    "flatten_sequences",
    "gamma_poisson_cumulants",
    "observation_weights",
    "pad_sequences",
    "pair_product",
    "project_words",
    "raw_cross_moments",
    "residuals",
    "row_features",
    "second_cumulant",
    "second_cumulant_diagonal",
    "second_cumulant_operator",
    "sequence_lengths",
    "spread",
    "spread_view",
    "spread_words",
    "sum_by_item",
    "sum_by_label",
    "symmetrize_last",
    "table_moments",
    "trace_noise",
    "valid_labels",
    "view_features",
    "window_table",
    "window_views",
]
