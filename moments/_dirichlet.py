"""Cross-moments of distinct variables in mixed membership models (GDLM, latent Dirichlet allocation).

Every sample has a membership `g ~ Dirichlet(α)`, `α₀ = Σ α_h`, and each of its variables draws a component from it.
With `b_j` the indicator of variable `j`'s category (or its value, for a real one) and `θ_jh = E[b_j | h]`, for
*distinct* variables `j, s, t`

    M_js  = E[b_j⊗b_s] − α₀/(α₀+1) E b_j⊗E b_s                                     = Σ_h η_h θ_jh⊗θ_sh
    M_jst = E[b_j⊗b_s⊗b_t] − α₀/(α₀+2) sym(E[b_j⊗b_s]⊗E b_t)
            + 2α₀²/((α₀+1)(α₀+2)) E b_j⊗E b_s⊗E b_t                                 = Σ_h λ_h θ_jh⊗θ_sh⊗θ_th

with `η_h = α_h/(α₀(α₀+1))` and `λ_h = 2α_h/(α₀(α₀+1)(α₀+2))`. Blocks of one variable with itself do not obey this, so
each of the three modes has its own variables, whose rows are stacked.

Source: Zhao, Engelhardt, Mukherjee, Dunson (2016), Fast moment estimation for generalized latent Dirichlet models.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.base import as_float, as_int32, check_number, einsum, float_type
from latensor.moments._cross import CrossMoments, feature_moments
from latensor.moments._rows import average_weights
from latensor.moments._values import check_values, finite_moments
from latensor.moments._variables import SHARE, Variables
from latensor.moments.data import Table


def row_features(rows: Table, places: Int[Array, " r"]) -> tuple[Float[Array, "n r"], Bool[Array, "n r"] | None]:
    """Return the values of stacked rows, numbered by `places`, for each sample, and whether they are observed.

    The value of a category is one where the sample has that category: a comparison with a gathered column of codes, so
    that only the requested places are ever in memory. Places below zero are padding: zero, and never observed.
    """
    variables = described(rows)
    real = places >= 0
    place = jnp.where(real, places, 0)
    columns, categories = jnp.asarray(variables.row_variables)[place], jnp.asarray(variables.row_categories)[place]
    values = jnp.where(real[None, :], entry_features(rows.x[:, columns], columns, categories, variables), 0)
    if rows.mask is None:
        return values, None
    seen = rows.mask[:, columns] & real[None, :]
    return jnp.where(seen, values, 0), seen


def described(table: Table) -> Variables:
    """Return the variables of a table that has them."""
    if table.variables is None:
        raise ValueError("variables: expected a Table with variables, which describe its columns; got None")
    return table.variables


def entry_features(
    entries: Num[Array, "n r"], columns: Int[Array, " r"], categories: Int[Array, " r"], variables: Variables
) -> Float[Array, "n r"]:
    """Return the values of stacked rows from the entries of their columns: indicators, numbers, parts of shares."""
    dtype = float_type(entries.dtype)
    # Wide enough for every category: 8-bit codes or 16-bit floats are not.
    codes = as_float(entries) if jnp.issubdtype(entries.dtype, jnp.floating) else as_int32(entries)
    values = (codes == categories[None, :].astype(codes.dtype)).astype(dtype)
    if len(variables.categorical) == variables.num_variables:
        return values
    numbers = entries.astype(dtype)
    kinds = jnp.asarray([_KIND_CODES.get(kind, 0) for kind in variables.kinds])[columns][None, :]
    complement = jnp.where(categories[None, :] == 0, 1 - numbers, numbers)
    return jnp.where(kinds == 1, numbers, jnp.where(kinds == 2, complement, values))


_KIND_CODES = {"real": 1, SHARE: 2}


def raw_cross_moments(
    table: Table, places: tuple[Int[Array, " r1"], Int[Array, " r2"], Int[Array, " r3"]]
) -> CrossMoments:
    """Return `E[b_j]`, `E[b_j⊗b_s]` and `E[b_j⊗b_s⊗b_t]` over the stacked rows of three modes, not corrected.

    Under a mask each entry averages over the samples that observe all of its variables.
    """
    weights = average_weights(table.row_weights, table.num_rows, table.dtype)

    def features(rows: Table) -> Any:
        return [row_features(rows, mode) for mode in places]

    real = [mode >= 0 for mode in places]
    width = places[1].shape[0] * places[2].shape[0] * (1 if table.mask is None else 2)
    moments, counts = feature_moments(features, weights, table, floats_per_row=width)
    if counts is None:
        return moments
    exists = real[0][:, None, None] & real[1][None, :, None] & real[2][None, None, :]
    return moments._replace(num_unobserved=jnp.sum((counts <= 0) & exists, dtype=jnp.int32))


def correct_dirichlet(raw: CrossMoments, concentration: float | Float[Array, ""]) -> CrossMoments:
    """Turn raw moments into `M_js` and `M_jst`, for a total concentration `α₀`; the first moments stay as they are."""
    a, b, c = raw.first
    ab, ac, bc = raw.second
    total = jnp.asarray(concentration, a.dtype)
    pair, single = total / (total + 1), total / (total + 2)
    outer = einsum("i,j,l->ijl", a, b, c)
    mixed = ab[:, :, None] * c[None, None, :] + ac[:, None, :] * b[None, :, None] + bc[None, :, :] * a[:, None, None]
    third = raw.third - single * mixed + 2 * pair * single * outer
    second = (
        ab - pair * a[:, None] * b[None, :],
        ac - pair * a[:, None] * c[None, :],
        bc - pair * b[:, None] * c[None, :],
    )
    return raw._replace(second=second, third=third)


@partial(jax.jit, static_argnames="modes")
def _moments(table: Table, modes: tuple[tuple[int, ...], ...], concentration: Array) -> CrossMoments:
    a, b, c = (jnp.asarray(described(table).rows_of(mode)) for mode in modes)
    return correct_dirichlet(raw_cross_moments(table, (a, b, c)), concentration)


def dirichlet_cross_moments(
    data: Table,
    modes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    concentration: float | Float[Array, ""],
) -> CrossMoments:
    """Return the corrected moments of three groups of variables.

    Args:
      data: a `Table` of category codes and real values, with its `variables`. Under a mask, entries average over the
        samples that observe all of their variables.
      modes: three tuples of column numbers, of which no two share a variable. In each mode the rows of its variables
        are stacked: one per category, one for a real variable.
      concentration: `α₀`, the sum of the Dirichlet's parameters.

    Returns:
      `CrossMoments`: first moments, the pairs of modes 12, 13, 23, and the triple.

    Cost: `O(n r₁ r₂ r₃)` for modes of `r` rows, in blocks of samples; nothing of size `(n, Σ rows)` is formed.

    """
    if not isinstance(data, Table):
        raise ValueError(f"data: expected a latensor.moments.Table with variables; got {type(data).__name__}")
    last = described(data).num_variables - 1
    if (
        not isinstance(modes, tuple | list)
        or len(modes) != 3
        or not all(isinstance(mode, tuple | list) and mode for mode in modes)
    ):
        raise ValueError(f"modes: expected three tuples of columns, none of them empty; got {modes!r}")
    named = [j for mode in modes for j in mode]
    if len(set(named)) != len(named):
        raise ValueError(f"modes: expected no variable twice; got {sorted({j for j in named if named.count(j) > 1})}")
    if not all(isinstance(j, int | np.integer) for j in named) or min(named) < 0 or max(named) > last:
        raise ValueError(f"modes: expected columns from 0 to {last}; got {named}")
    check_values(data.x, data.mask)
    total = jnp.asarray(check_number("concentration", concentration, 0.0), float)
    return finite_moments("data", _moments(data, tuple(tuple(int(j) for j in mode) for mode in modes), total))
