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
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.moments._cross import CrossMoments, cross_sums
from latensor.moments._rows import as_float, average_weights, sum_over_rows
from latensor.moments._variables import SHARE, Variables


def row_features(
    x: Num[Array, "n p"], mask: Bool[Array, "n p"] | None, rows: Int[Array, " r"], variables: Variables
) -> tuple[Float[Array, "n r"], Bool[Array, "n r"] | None]:
    """Return the value of each stacked row for each sample, and whether it is observed.

    For a category it is one where the sample has that category: a comparison with a gathered column of codes, so that
    no more than the rows asked for are ever in memory. Rows below zero are padding: zero, and never observed.
    """
    there = rows >= 0
    place = jnp.where(there, rows, 0)
    columns, categories = jnp.asarray(variables.row_variables)[place], jnp.asarray(variables.row_categories)[place]
    values = jnp.where(there[None, :], entry_features(x[:, columns], columns, categories, variables), 0)
    if mask is None:
        return values, None
    seen = mask[:, columns] & there[None, :]
    return jnp.where(seen, values, 0), seen


def entry_features(
    entries: Num[Array, "n r"], columns: Int[Array, " r"], categories: Int[Array, " r"], variables: Variables
) -> Float[Array, "n r"]:
    """Return the values of stacked rows from the entries of their columns: indicators, numbers, parts of shares."""
    dtype = as_float(entries).dtype
    values = (entries == categories[None, :].astype(entries.dtype)).astype(dtype)
    if len(variables.categorical) == variables.num_variables:
        return values
    numbers = entries.astype(dtype)
    kinds = jnp.asarray([_KIND_CODES.get(kind, 0) for kind in variables.kinds])[columns][None, :]
    complement = jnp.where(categories[None, :] == 0, 1 - numbers, numbers)
    return jnp.where(kinds == 1, numbers, jnp.where(kinds == 2, complement, values))


_KIND_CODES = {"real": 1, SHARE: 2}


def raw_cross_moments(
    x: Num[Array, "n p"],
    mask: Bool[Array, "n p"] | None,
    row_weights: Float[Array, " n"] | None,
    rows: tuple[Int[Array, " r1"], Int[Array, " r2"], Int[Array, " r3"]],
    variables: Variables,
) -> CrossMoments:
    """Return `E[b_j]`, `E[b_j⊗b_s]` and `E[b_j⊗b_s⊗b_t]` over the stacked rows of three modes, not corrected.

    Under a mask each entry averages over the samples that observe all of its variables.
    """
    floats = as_float(x).dtype
    weights = average_weights(row_weights, jnp.ones(x.shape[0], bool), floats)

    def block(x: Array, mask: Array | None, weights: Array) -> Any:
        features = [row_features(x, mask, r, variables) for r in rows]
        values = cross_sums(weights, *(value for value, _ in features))
        if mask is None:
            return values, None
        return values, cross_sums(weights, *(seen.astype(floats) for _, seen in features if seen is not None))

    width = rows[1].shape[0] * rows[2].shape[0]
    values, counts = sum_over_rows(block, (x, mask, weights), floats_per_row=width if mask is None else 2 * width)
    if counts is None:
        first, second, third = values
        return CrossMoments(first, second, third, jnp.int32(0))
    first, second, third = jax.tree.map(
        lambda value, count: jnp.where(count > 0, value / jnp.where(count > 0, count, 1), 0), values, counts
    )
    real = [(r >= 0).astype(jnp.int32) for r in rows]
    padded = real[0][:, None, None] * real[1][None, :, None] * real[2][None, None, :] == 0
    return CrossMoments(first, second, third, jnp.sum((counts[2] <= 0) & ~padded, dtype=jnp.int32))


def correct_dirichlet(raw: CrossMoments, concentration: float | Float[Array, ""]) -> CrossMoments:
    """Turn raw moments into `M_js` and `M_jst`, for a total concentration `α₀`; the first moments stay as they are."""
    a, b, c = raw.first
    ab, ac, bc = raw.second
    total = jnp.asarray(concentration, a.dtype)
    pair, single = total / (total + 1), total / (total + 2)
    outer = jnp.einsum("i,j,l->ijl", a, b, c)
    mixed = ab[:, :, None] * c[None, None, :] + ac[:, None, :] * b[None, :, None] + bc[None, :, :] * a[:, None, None]
    third = raw.third - single * mixed + 2 * pair * single * outer
    second = (
        ab - pair * a[:, None] * b[None, :],
        ac - pair * a[:, None] * c[None, :],
        bc - pair * b[:, None] * c[None, :],
    )
    return raw._replace(second=second, third=third)


@partial(jax.jit, static_argnames=("variables", "modes"))
def dirichlet_cross_moments(
    x: Num[Array, "n p"],
    variables: Variables,
    modes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    concentration: float | Float[Array, ""],
    mask: Bool[Array, "n p"] | None = None,
    row_weights: Float[Array, " n"] | None = None,
) -> CrossMoments:
    """Return the corrected moments of three groups of variables.

    Args:
      x: `(n, p)`, category codes and real values.
      variables: what its columns are.
      modes: three tuples of column numbers, of which no two share a variable. In each mode the rows of its variables
        are stacked: one for each category, one for a real variable.
      concentration: `α₀`, the sum of the Dirichlet's parameters.
      mask: `(n, p)` bool, True where observed. Entries average over the samples that observe all of their variables.
      row_weights: a weight for each sample (default: equal).

    Returns:
      `CrossMoments`: first moments, the pairs of modes 12, 13, 23, and the triple.

    Cost: `O(n r₁ r₂ r₃)` for modes of `r` rows, in blocks of samples; nothing of size `(n, Σ rows)` is formed.

    """
    named = [j for mode in modes for j in mode]
    if len(modes) != 3 or not all(modes):
        raise ValueError(f"modes: expected three tuples of columns, none of them empty; got {modes!r}")
    if len(set(named)) != len(named):
        raise ValueError(f"modes: expected no variable twice; got {sorted({j for j in named if named.count(j) > 1})}")
    if min(named) < 0 or max(named) >= variables.num_variables:
        raise ValueError(f"modes: expected columns from 0 to {variables.num_variables - 1}; got {sorted(set(named))}")
    if x.ndim != 2 or x.shape[1] != variables.num_variables:
        raise ValueError(f"x: expected {variables.num_variables} columns, as in variables; got shape {x.shape}")
    a, b, c = (jnp.asarray(variables.rows_of(mode)) for mode in modes)
    return correct_dirichlet(raw_cross_moments(x, mask, row_weights, (a, b, c), variables), concentration)
