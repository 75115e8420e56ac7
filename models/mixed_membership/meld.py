"""Mixed membership by the generalized method of moments (MELD): all pairs and triples of distinct variables at once.

    minimize  Σ_{j<s} |M_js − θ_j diag(η) θ_sᵀ|² + Σ_{j<s<t} |M_jst − Σ_h λ_h θ_jh⊗θ_sh⊗θ_th|²

over tables whose columns are probabilities, `η` and `λ` from a given concentration. It is quadratic in the table of one
variable; variables take turns. None of the `p³` tensors is formed: with `v_jh = Σ_c b_jc θ_jch`, the value that a
sample's variable gives to component `h`, sums over pairs of other variables are differences of powers of sums,
`Σ_{s<t} v_s v_t = ½[(Σ v_s)² − Σ v_s²]`, so it suffices to keep three running sums per sample and component.

Source: Zhao, Engelhardt, Mukherjee, Dunson (2016), Fast moment estimation for generalized latent Dirichlet models, with
identity weights; the corrections are those of `latensor.moments.dirichlet_cross_moments`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.base import as_float, divide, matmul, positive_or_one, small_jit
from latensor.models.blocks import variable_rates
from latensor.moments import Table, Variables, map_over_rows, sum_over_rows
from latensor.moments.internal import average_weights, described, entry_features

# Projected gradient steps with momentum for the table of one variable, at its turn.
_STEPS_PER_TURN = 10


class MeldResult(NamedTuple):
    """Tables, and how far the last sweep moved them."""

    tables: Float[Array, "rows k"]
    objective: Float[Array, ""]
    """Change of the criterion since the start, negative: only differences are known without forming the moments."""
    change: Float[Array, ""]
    """Root mean square of the change of an entry in the last sweep."""


class _Model(NamedTuple):
    """What follows from the concentration: `η`, `λ`, and the factors `α₀/(α₀+1)`, `α₀/(α₀+2)` of the corrections."""

    eta: Float[Array, " k"]
    lam: Float[Array, " k"]
    first: Float[Array, ""]
    single: Float[Array, ""]


class _Columns(NamedTuple):
    """The table by variables: the entries of one lie side by side in memory, since every sweep reads them."""

    entries: Num[Array, "p n"]
    seen: Bool[Array, "p n"] | None
    rates: Float[Array, " p"]
    weights: Float[Array, " n"]
    places: Int[Array, "p c"]
    """Stacked rows of each variable, padded with −1 to the largest number of categories."""


class _Sums(NamedTuple):
    """Over variables, for every sample and component: `Σ v`, `Σ v²`, `Σ v m` with `m = E v`."""

    values: Float[Array, "n k"]
    squares: Float[Array, "n k"]
    by_mean: Float[Array, "n k"]


class _State(NamedTuple):
    tables: Float[Array, "p c k"]
    sums: _Sums
    means: Float[Array, "p k"]
    grams: Float[Array, "k k"]
    """Over variables, `Σ θᵀθ`."""
    squared_grams: Float[Array, "k k"]
    """The same of the entries' squares."""
    objective: Float[Array, ""]


@small_jit(static_argnames="num_sweeps")  # cheap code runs twice as fast here
def meld(
    tables: Float[Array, "rows k"], concentration: Float[Array, " k"], table: Table, num_sweeps: int
) -> MeldResult:
    """Improve `tables` by sweeps over the variables; the criterion never rises.

    Missing entries count as zero, divided by their variable's rate: right where variables are missing independently.
    Real variables must have become shares. Cost: `O(n Σ rows k)` per sweep, `O(n k)` memory beside the data.
    """
    variables, dtype = described(table), tables.dtype
    columns = _by_columns(table, dtype)
    total = jnp.sum(concentration)
    eta = concentration / (total * (total + 1))
    model = _Model(eta, 2 * eta / (total + 2), total / (total + 1), total / (total + 2))
    order = jnp.arange(variables.num_variables)

    def sweep(state: _State, _: None) -> tuple[_State, Array]:
        after, _ = lax.scan(lambda state, j: (_take_turn(state, j, columns, model, variables), None), state, order)
        return after, jnp.sqrt(jnp.sum((after.tables - state.tables) ** 2) / tables.size)

    padded = jnp.where((columns.places >= 0)[:, :, None], tables[jnp.maximum(columns.places, 0)], 0)
    state, changes = lax.scan(sweep, _start(padded, columns, variables), None, length=num_sweeps)
    return MeldResult(state.tables[variables.row_variables, variables.row_categories], state.objective, changes[-1])


def _by_columns(table: Table, dtype: jnp.dtype) -> _Columns:
    variables = described(table)
    places = np.full((variables.num_variables, max(variables.sizes)), -1, np.int32)
    places[variables.row_variables, variables.row_categories] = np.arange(variables.num_rows)
    weights = average_weights(table.row_weights, table.num_rows, dtype)
    is_coded = len(variables.categorical) == variables.num_variables
    entries = table.x if is_coded else as_float(table.x)
    return _Columns(
        entries.T,
        None if table.mask is None else table.mask.T,
        variable_rates(table, weights),
        weights,
        jnp.asarray(places),
    )


def _features(columns: _Columns, j: Array, variables: Variables) -> Float[Array, "n c"]:
    """Return `b_j` of every sample: indicators of categories, or both parts of a share, divided by the rate."""
    num_samples, width = columns.weights.shape[0], columns.places.shape[1]
    categories = jnp.arange(width, dtype=jnp.int32)
    there = (columns.places[j] >= 0)[None, :]

    def block(entries: Array, seen: Array | None) -> Array:
        spread = jnp.broadcast_to(entries[:, None], (num_samples, width))
        values = entry_features(spread, jnp.broadcast_to(j, (width,)), categories, variables)
        values = jnp.where(there, values.astype(columns.weights.dtype), 0)
        return values if seen is None else divide(jnp.where(seen[:, None], values, 0), columns.rates[j])

    seen = None if columns.seen is None else columns.seen[j]
    return map_over_rows(block, columns.entries[j], seen, floats_per_row=0)


def _start(tables: Float[Array, "p c k"], columns: _Columns, variables: Variables) -> _State:
    """Add up what all variables give to the running sums."""
    num_samples, k = columns.weights.shape[0], tables.shape[2]

    def add(sums: _Sums, j: Array) -> tuple[_Sums, tuple[Array, Array]]:
        value = matmul(_features(columns, j, variables), tables[j])
        mean = sum_over_rows(matmul, columns.weights, value, floats_per_row=0)
        more = _Sums(value, value**2, value * mean[None, :])
        return jax.tree.map(jnp.add, sums, more), (mean, matmul(tables[j].T, tables[j]))

    zeros = jnp.zeros((num_samples, k), tables.dtype)
    sums, (means, grams) = lax.scan(add, _Sums(zeros, zeros, zeros), jnp.arange(variables.num_variables))
    return _State(tables, sums, means, jnp.sum(grams, axis=0), jnp.sum(grams**2, axis=0), jnp.zeros((), tables.dtype))


def _take_turn(state: _State, j: Array, columns: _Columns, model: _Model, variables: Variables) -> _State:
    """Improve the table of variable `j`, given all others."""
    table, mean = state.tables[j], state.means[j]
    features = _features(columns, j, variables)
    value = matmul(features, table)
    gram = matmul(table.T, table)
    others = _Sums(state.sums.values - value, state.sums.squares - value**2, state.sums.by_mean - value * mean[None, :])
    linear = _linear_part(features, others, state.means.at[j].set(0), columns, model)
    left, left_squared = state.grams - gram, state.squared_grams - gram**2
    pairs = model.eta[:, None] * model.eta[None, :]
    triples = model.lam[:, None] * model.lam[None, :]
    quadratic = pairs * left + triples * (left**2 - left_squared) / 2
    updated, gain = _minimize(table, quadratic, linear, columns.places[j] >= 0)

    new, new_gram = matmul(features, updated), matmul(updated.T, updated)
    new_mean = sum_over_rows(matmul, columns.weights, new, floats_per_row=0)
    return _State(
        state.tables.at[j].set(updated),
        _Sums(others.values + new, others.squares + new**2, others.by_mean + new * new_mean[None, :]),
        state.means.at[j].set(new_mean),
        left + new_gram,
        left_squared + new_gram**2,
        state.objective - gain,
    )


def _linear_part(
    features: Float[Array, "n c"], others: _Sums, means: Float[Array, "p k"], columns: _Columns, model: _Model
) -> Float[Array, "c k"]:
    """Return `Z` of the quadratic `½ tr θQθᵀ + ⟨Z, θ⟩`: corrected moments with all others, and with pairs of them.

    `means` are those of the other variables, with zeros for this one.
    """
    k = means.shape[1]
    rest = jnp.sum(means, axis=0)
    rest_pairs = (rest**2 - jnp.sum(means**2, axis=0)) / 2

    def collect(features: Array, others: _Sums, weights: Array) -> tuple[Array, Array]:
        two = (others.values**2 - others.squares) / 2
        crossed = others.values * rest[None, :] - others.by_mean
        weighted = jnp.concatenate([others.values, two, crossed, jnp.ones_like(two[:, :1])], axis=1) * weights[:, None]
        return matmul(features.T, weighted), matmul(weights, two)

    products, mean_two = sum_over_rows(collect, features, others, columns.weights, floats_per_row=0)
    seconds, thirds, mixed, own = jnp.split(products, [k, 2 * k, 3 * k], axis=1)
    seconds = seconds - model.first * own * rest[None, :]
    thirds = thirds - model.single * (own * mean_two[None, :] + mixed)
    thirds = thirds + 2 * model.first * model.single * own * rest_pairs[None, :]
    return -(seconds * model.eta[None, :] + thirds * model.lam[None, :])


def _minimize(
    table: Float[Array, "c k"], quadratic: Float[Array, "k k"], linear: Float[Array, "c k"], there: Bool[Array, " c"]
) -> tuple[Float[Array, "c k"], Float[Array, ""]]:
    """Return a better table for `½ tr θQθᵀ + ⟨Z, θ⟩`, and what it gains; columns stay probabilities."""

    def value(table: Array) -> Array:
        return jnp.sum(table * (matmul(table, quadratic) / 2 + linear))

    # The largest absolute row sum bounds the largest eigenvalue.
    bound = positive_or_one(jnp.max(jnp.sum(jnp.abs(quadratic), axis=1)))

    def step(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        ahead, before, speed = state
        moved = _project(ahead - (matmul(ahead, quadratic) + linear) / bound, there)
        faster = (1 + jnp.sqrt(1 + 4 * speed**2)) / 2
        return moved + (speed - 1) / faster * (moved - before), moved, faster

    _, last, _ = lax.fori_loop(0, _STEPS_PER_TURN, step, (table, table, jnp.ones((), table.dtype)))
    gain = value(table) - value(last)
    return jnp.where(gain > 0, last, table), jnp.maximum(gain, 0)


def _project(columns: Float[Array, "c k"], there: Bool[Array, " c"]) -> Float[Array, "c k"]:
    """Project columns to the simplex of the categories that the variable has."""
    # Padding gets nothing if it is far below all others.
    lowered = jnp.where(there[:, None], columns, jnp.min(columns) - 2)
    projected = jax.vmap(optax.projections.projection_simplex, in_axes=1, out_axes=1)(lowered)
    return jnp.where(there[:, None], projected, 0).astype(columns.dtype)
