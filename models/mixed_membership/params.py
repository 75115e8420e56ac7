"""Parameters of the mixed-membership model, draws from it, and its exact moments."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import check_key, einsum, is_concrete, matmul, small_jit
from latensor.models.checks import check_order, check_reals, check_type
from latensor.models.columns import check_blocks, check_variables
from latensor.models.results import Sample
from latensor.models.sampling import check_num_samples, draw_entries
from latensor.moments import Moments, Variables
from latensor.moments.internal import finite_moments


class MixedMembership(NamedTuple):
    """Parameters: concentration of the memberships, and the distribution of each variable in each component."""

    concentration: Float[Array, " k"]
    """Of the Dirichlet distribution that memberships come from."""
    tables: Float[Array, "rows k"]
    """Blocks of the variables, stacked in order. A categorical variable has one row per category, and each column of
    its block sums to one; a real variable has one row, its means."""
    variances: Float[Array, " r"] | None = None
    """Of the real variables in order; `None` if there are none."""


def check_params(params: Any, variables: Variables, *, with_variances: bool = True) -> MixedMembership:
    """Return parameters that agree with the description of the variables; `fit_moments` finds no variances."""
    params = check_type(params, MixedMembership)
    concentration = check_reals("params.concentration", params.concentration, 1, positive=True)
    tables = check_reals("params.tables", params.tables, 2)
    if tables.shape != (variables.num_rows, concentration.shape[0]):
        raise ValueError(
            f"params.tables: expected shape {(variables.num_rows, concentration.shape[0])}, the rows of all variables "
            f"by components; got {tables.shape} (pass variables= if x does not show all categories)"
        )
    if is_concrete(tables):
        check_blocks(np.asarray(tables), variables)
    variances = params.variances
    if variances is not None and not variables.real.size:
        raise ValueError("params.variances: expected None where no variable is real")
    if variances is not None:
        variances = check_reals("params.variances", variances, 1, positive=True)
        if variances.shape != (variables.real.size,):
            raise ValueError(f"params.variances: expected shape ({variables.real.size},); got {variances.shape}")
    elif variables.real.size and with_variances:
        raise ValueError(f"params.variances: expected {variables.real.size}, one per real variable; got None")
    return _of_one_type(concentration, tables, variances)


def _of_one_type(concentration: Array, tables: Array, variances: Array | None) -> MixedMembership:
    dtype = tables.dtype
    if concentration.dtype != dtype:
        concentration = concentration.astype(dtype)
    if variances is not None and variances.dtype != dtype:
        variances = variances.astype(dtype)
    return MixedMembership(concentration, tables, variances)


def num_parameters(params: MixedMembership, *, variables: Variables) -> int:
    """Return the number of free parameters.

    `k` of the concentration, which one component alone does not have; per component, a probability for every
    category of a variable but one, and a mean of every real variable; and the variances of those, which all components
    share.
    """
    variables = check_variables(variables)
    k = check_params(params, variables).concentration.shape[0]
    columns, real = variables.num_variables, variables.real.size
    return (k if k > 1 else 0) + k * (variables.num_rows - (columns - real)) + real


def permute(params: MixedMembership, order: ArrayLike) -> MixedMembership:
    """Return the same model with its components in another order: component `i` is the old `order[i]`."""
    concentration, tables, variances = _check_shapes(params)
    index = check_order(order, concentration.shape[0])
    return MixedMembership(concentration[index], tables[:, index], variances)


def component_columns(params: MixedMembership) -> Float[Array, "rows k"]:
    """Return one column per component, by which the components of two estimates are matched: the stacked tables."""
    return _check_shapes(params).tables


def _check_shapes(params: Any) -> MixedMembership:
    """Return parameters with as many columns as concentrations; what the rows are is not known here."""
    params = check_type(params, MixedMembership)
    concentration = check_reals("params.concentration", params.concentration, 1, positive=True)
    tables = check_reals("params.tables", params.tables, 2)
    if tables.shape[1] != concentration.shape[0]:
        raise ValueError(
            "params: expected concentration (k,) and tables (rows, k); "
            f"got shapes {concentration.shape} and {tables.shape}"
        )
    return MixedMembership(concentration, tables, params.variances)


def sample(key: Array, params: MixedMembership, num_samples: int, *, variables: Variables) -> Sample:
    """Draw samples and their memberships `(n, k)`.

    Args:
      key: a random key.
      params: the model.
      num_samples: number of samples.
      variables: what the columns are.

    Returns:
      `Sample(x, hidden)`; `x` holds int32 codes if all variables are categorical, else floating numbers.

    """
    variables = check_variables(variables)
    params = check_params(params, variables)
    return _sample(check_key(key), params, variables, check_num_samples(num_samples, variables.num_variables))


@partial(jax.jit, static_argnames=("variables", "num_samples"))
def _sample(key: Array, params: MixedMembership, variables: Variables, num_samples: int) -> Sample:
    dtype, k, real = params.tables.dtype, params.tables.shape[1], variables.real
    key_hidden, key_component, *keys = jax.random.split(key, 4)
    shape = (num_samples, variables.num_variables)
    # Through logarithms: a Gamma variable of a small shape is often below the smallest number.
    concentration = jnp.broadcast_to(params.concentration[None, :].astype(dtype), (num_samples, k))
    hidden = jax.nn.softmax(jax.random.loggamma(key_hidden, concentration, dtype=dtype), axis=1)
    cumulative = jnp.cumsum(hidden, axis=1)
    cumulative = cumulative / cumulative[:, -1:]
    uniforms = jax.random.uniform(key_component, shape, dtype)
    component = jnp.sum(uniforms[:, :, None] >= cumulative[:, None, :-1], axis=2, dtype=jnp.int32)

    if params.variances is None:
        return Sample(draw_entries((keys[0], keys[1]), params.tables, None, component, variables), hidden)
    variances = jnp.broadcast_to(params.variances[:, None], (real.size, k))
    return Sample(draw_entries((keys[0], keys[1]), params.tables, variances, component, variables), hidden)


def population_moments(params: MixedMembership, *, variables: Variables) -> Moments:
    """Return the exact first moments and the corrected second and third ones of all variables' stacked rows.

    `Θa`, `Θ diag(η) Θᵀ` and `Σ_h λ_h θ_h⊗θ_h⊗θ_h`, with `a`, `η` and `λ` from the concentration: what
    `latensor.moments.dirichlet_cross_moments` estimates for distinct variables.
    """
    return finite_moments(
        "params", _population_moments(check_params(params, check_variables(variables), with_variances=False))
    )


@small_jit
def _population_moments(params: MixedMembership) -> Moments:
    tables, total = params.tables, jnp.sum(params.concentration)
    share = params.concentration / total
    second = tables * (share / (total + 1))[None, :]
    third = tables * (2 * share / ((total + 1) * (total + 2)))[None, :]
    return Moments(
        first=matmul(tables, share),
        second=matmul(second, tables.T),
        third=einsum("ih,jh,lh->ijl", third, tables, tables),
    )
