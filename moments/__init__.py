"""Moments of data: the first layer, which knows samples and nothing of factors.

Every moment is a weighted sum over rows; its `row_weights` argument turns a bootstrap, a stream or a shard into a
re-weighting. Dense forms return `(d, d)` and `(d, d, d)` arrays; `contract_…` and `…_operator` forms never do.
"""

from latensor.moments._documents import (
    contract_document_moments,
    document_first_moment,
    document_moments,
    document_second_moment,
    document_second_moment_operator,
    project_words,
    spread_words,
)
from latensor.moments._moments import Moments, contract_third
from latensor.moments._rows import as_float, average_weights

__all__ = [
    "Moments",
    "as_float",
    "average_weights",
    "contract_document_moments",
    "contract_third",
    "document_first_moment",
    "document_moments",
    "document_second_moment",
    "document_second_moment_operator",
    "project_words",
    "spread_words",
]
