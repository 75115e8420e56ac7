"""A model together with a table of its columns."""

from typing import Any

from latensor.models.columns import as_data
from latensor.models.latent_class.params import LatentClass, check_params
from latensor.moments import Table
from latensor.moments.internal import described


def check_pair(params: Any, x: Any, mask: Any, variables: Any, row_weights: Any = None) -> tuple[LatentClass, Table]:
    """Return a model, and a table of its columns."""
    table = as_data(x, mask=mask, variables=variables, row_weights=row_weights)
    return check_params(params, described(table)), table
