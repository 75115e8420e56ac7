"""Parameters of latent classes, draws from them, and their exact moments."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import check_key, einsum, is_concrete, matmul, small_jit
from latensor.models.checks import check_order, check_probabilities, check_reals, check_type
from latensor.models.columns import check_blocks, check_variables
from latensor.models.results import Sample
from latensor.models.sampling import check_num_samples, draw_components, draw_entries
from latensor.moments import Moments, Variables
from latensor.moments.internal import finite_moments


class LatentClass(NamedTuple):
    """Parameters: how large the classes are, and the distribution of each column in each class."""

    weights: Float[Array, " k"]
    """`P(h)`."""
    tables: Float[Array, "rows k"]
    """Blocks of the columns, stacked in order. A categorical column has one row per category, and each column of its
    block sums to one; a real column has one row, its means."""
    variances: Float[Array, "r k"] | None = None
    """Of the real columns in order, in each class; `None` if there are none."""


def check_params(params: Any, variables: Variables) -> LatentClass:
    """Return parameters that agree with the description of the columns."""
    params = check_type(params, LatentClass)
    weights, tables, variances = _check_shapes(params)
    if tables.shape[0] != variables.num_rows:
        raise ValueError(
            f"params.tables: expected {variables.num_rows} rows, those of all columns of the table; got "
            f"{tables.shape[0]} (pass variables= if x does not show all categories)"
        )
    if is_concrete(tables):
        check_blocks(np.asarray(tables), variables)
    number = variables.real.size
    if variances is None and number:
        raise ValueError(f"params.variances: expected {number} rows, one per real column; got None")
    if variances is not None and variances.shape[0] != number:
        given = "None" if not number else f"shape ({number}, {weights.shape[0]})"
        raise ValueError(f"params.variances: expected {given}; got shape {variances.shape}")
    return LatentClass(weights, tables, variances)


def _check_shapes(params: LatentClass) -> LatentClass:
    weights = check_probabilities("params.weights", params.weights, 1)
    tables = check_reals("params.tables", params.tables, 2)
    k = weights.shape[0]
    if tables.shape[1] != k:
        raise ValueError(f"params.tables: expected {k} columns, one per class; got shape {tables.shape}")
    variances = params.variances
    if variances is not None:
        variances = check_reals("params.variances", variances, 2, positive=True).astype(tables.dtype)
        if variances.shape[1] != k:
            raise ValueError(f"params.variances: expected {k} columns, one per class; got shape {variances.shape}")
    return LatentClass(weights.astype(tables.dtype), tables, variances)


def num_parameters(params: LatentClass, *, variables: Variables) -> int:
    """Return the number of free parameters.

    `k − 1` weights; per class, a probability for every category of a column but one, and a mean and a variance for
    every real column.
    """
    variables = check_variables(variables)
    k = check_params(params, variables).weights.shape[0]
    columns, real = variables.num_variables, variables.real.size
    return k - 1 + k * (variables.num_rows - (columns - real) + real)


def permute(params: LatentClass, order: ArrayLike) -> LatentClass:
    """Return the same model with its classes in another order: class `i` is the old `order[i]`."""
    weights, tables, variances = _check_shapes(check_type(params, LatentClass))
    index = check_order(order, weights.shape[0])
    return LatentClass(weights[index], tables[:, index], None if variances is None else variances[:, index])


def component_columns(params: LatentClass) -> Float[Array, "rows k"]:
    """Return one column per class, by which the classes of two estimates are matched: the stacked tables."""
    return _check_shapes(check_type(params, LatentClass)).tables


def sample(key: Array, params: LatentClass, num_samples: int, *, variables: Variables) -> Sample:
    """Draw samples and their classes `(n,)`.

    Args:
      key: a random key.
      params: the model.
      num_samples: number of samples.
      variables: what the columns are.

    Returns:
      `Sample(x, hidden)`; `x` holds int32 codes if all columns are categorical, else floating numbers.

    """
    variables = check_variables(variables)
    params = check_params(params, variables)
    return _sample(check_key(key), params, variables, check_num_samples(num_samples, variables.num_variables))


@partial(jax.jit, static_argnames=("variables", "num_samples"))
def _sample(key: Array, params: LatentClass, variables: Variables, num_samples: int) -> Sample:
    key_hidden, key_category, key_noise = jax.random.split(key, 3)
    hidden = draw_components(key_hidden, params.weights, num_samples)
    component = jnp.broadcast_to(hidden[:, None], (num_samples, variables.num_variables))
    return Sample(
        draw_entries((key_category, key_noise), params.tables, params.variances, component, variables), hidden
    )


def population_moments(params: LatentClass, *, variables: Variables) -> Moments:
    """Return the exact moments of the stacked rows of all columns, followed by the squares of the real columns.

    `Θπ`, `Θ diag(π) Θᵀ` and `Σ_h π_h θ_h⊗θ_h⊗θ_h`, where `Θ` are conditional means. They are those of *distinct*
    columns: blocks of a column with itself are what two independent copies of it would have.
    """
    return finite_moments("params", _population_moments(check_params(params, check_variables(variables)), variables))


@small_jit(static_argnames="variables")
def _population_moments(params: LatentClass, variables: Variables) -> Moments:
    features = params.tables
    if params.variances is not None:
        means = params.tables[variables.offsets[:-1][variables.real]]
        features = jnp.concatenate([features, means**2 + params.variances])
    weighted = features * params.weights[None, :]
    return Moments(
        first=jnp.sum(weighted, axis=1),
        second=matmul(weighted, features.T),
        third=einsum("ih,jh,lh->ijl", weighted, features, features),
    )
