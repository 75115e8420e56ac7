"""Moments of data: the first layer, which knows samples and nothing of factors.

Every moment is a weighted sum over rows; its `row_weights` argument turns a bootstrap, a stream or a shard into a
re-weighting. Dense forms return `(d, d)` and `(d, d, d)` arrays; `contract_…` and `…_operator` forms never do.
"""

from latensor.moments._cross import (
    CrossMoments,
    contract_cross_moments,
    count_table,
    cross_moments,
    spread_view,
    table_moments,
    view_features,
)
from latensor.moments._cumulants import (
    ContractedCumulants,
    Cumulants,
    contract_cumulants,
    contract_third_cumulant,
    cumulants,
    second_cumulant,
    second_cumulant_diagonal,
    second_cumulant_operator,
)
from latensor.moments._dirichlet import (
    correct_dirichlet,
    dirichlet_cross_moments,
    entry_features,
    raw_cross_moments,
    row_features,
)
from latensor.moments._documents import (
    contract_document_moments,
    document_first_moment,
    document_moments,
    document_second_moment,
    document_second_moment_operator,
    project_words,
    spread_words,
)
from latensor.moments._gamma_poisson import (
    contract_gamma_poisson_moments,
    correct_gamma_poisson,
    gamma_poisson_cumulants,
    gamma_poisson_moments,
)
from latensor.moments._gaussian import contract_gaussian_moments, correct_gaussian, gaussian_moments
from latensor.moments._moments import Moments, contract_third
from latensor.moments._observed import Centred, centre, joint_observation_rates, observation_rates, residuals, spread
from latensor.moments._rows import as_float, average_weights, map_over_rows, sum_over_rows
from latensor.moments._sequences import (
    WINDOW,
    Sequences,
    contract_sequence_moments,
    count_distinct,
    distinct_triples,
    flatten_sequences,
    pair_product,
    sequence_lengths,
    sequence_moments,
    window_weights,
)
from latensor.moments._variables import Variables, categorical_variables, category_rows

__all__ = [
    "WINDOW",
    "Centred",
    "ContractedCumulants",
    "CrossMoments",
    "Cumulants",
    "Moments",
    "Sequences",
    "Variables",
    "as_float",
    "average_weights",
    "categorical_variables",
    "category_rows",
    "centre",
    "contract_cross_moments",
    "contract_cumulants",
    "contract_document_moments",
    "contract_gamma_poisson_moments",
    "contract_gaussian_moments",
    "contract_sequence_moments",
    "contract_third",
    "contract_third_cumulant",
    "correct_dirichlet",
    "correct_gamma_poisson",
    "correct_gaussian",
    "count_distinct",
    "count_table",
    "cross_moments",
    "cumulants",
    "dirichlet_cross_moments",
    "distinct_triples",
    "document_first_moment",
    "document_moments",
    "document_second_moment",
    "document_second_moment_operator",
    "entry_features",
    "flatten_sequences",
    "gamma_poisson_cumulants",
    "gamma_poisson_moments",
    "gaussian_moments",
    "joint_observation_rates",
    "map_over_rows",
    "observation_rates",
    "pair_product",
    "project_words",
    "raw_cross_moments",
    "residuals",
    "row_features",
    "second_cumulant",
    "second_cumulant_diagonal",
    "second_cumulant_operator",
    "sequence_lengths",
    "sequence_moments",
    "spread",
    "spread_view",
    "spread_words",
    "sum_over_rows",
    "table_moments",
    "view_features",
    "window_weights",
]
