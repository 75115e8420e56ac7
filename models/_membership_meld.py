"""Mixed membership by the generalized method of moments (MELD): all pairs and triples of distinct variables at once.

    minimize  Σ_{j<s} |M_js − θ_j diag(η) θ_sᵀ|² + Σ_{j<s<t} |M_jst − Σ_h λ_h θ_jh⊗θ_sh⊗θ_th|²

over tables whose columns are probabilities, `η` and `λ` from a given concentration. In one variable's table it is a
quadratic; variables take turns. None of the `p³` tensors is formed: with `v_jh = Σ_c b_jc θ_jch`, the value that a
sample's variable gives to component `h`, sums over pairs of other variables are differences of powers of sums,
`Σ_{s<t} v_s v_t = ½[(Σ v_s)² − Σ v_s²]`, and three running sums for every sample and component are all that has to be
kept.

Source: Zhao, Engelhardt, Mukherjee, Dunson (2016), Fast moment estimation for generalized latent Dirichlet models, with
identity weights; the corrections are those of `latensor.moments.dirichlet_cross_moments`.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Num

from latensor.moments import Variables, as_float, average_weights, entry_features

# Projected gradient steps for one variable's table, with momentum, at its turn.
_STEPS_PER_TURN = 10


class MeldResult(NamedTuple):
    """Tables, and how far the last sweep moved them."""

    tables: Float[Array, "rows k"]
    objective: Float[Array, ""]
    """What the criterion fell by from the start, negative: only differences are known without forming the moments."""
    change: Float[Array, ""]
    """Root mean square of the change of an entry in the last sweep."""


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
    squared_grams: Float[Array, "k k"]
    objective: Float[Array, ""]


def _places(variables: Variables) -> np.ndarray:
    """Return the stacked rows of each variable, padded with −1 to the largest."""
    places = np.full((variables.num_variables, max(variables.sizes)), -1, np.int32)
    places[variables.row_variables, variables.row_categories] = np.arange(variables.num_rows)
    return places


def _project(columns: Float[Array, "c k"], there: Bool[Array, " c"]) -> Float[Array, "c k"]:
    """Project columns to the simplex of the categories that are there."""
    # Far below all others, padding gets nothing.
    low = jnp.min(columns) - 2
    lowered = jnp.where(there[:, None], columns, low)
    projected = jax.vmap(optax.projections.projection_simplex, in_axes=1, out_axes=1)(lowered)
    return jnp.where(there[:, None], projected, 0).astype(columns.dtype)


def _minimize(table: Array, quadratic: Array, linear: Array, there: Array) -> tuple[Array, Array]:
    """Return a better table for `½ tr θQθᵀ + ⟨Z, θ⟩`, and what it gains; columns stay probabilities."""

    def value(table: Array) -> Array:
        return jnp.sum(table * (jnp.matmul(table, quadratic, precision="highest") / 2 + linear))

    # The largest absolute row sum bounds the largest eigenvalue.
    bound = jnp.max(jnp.sum(jnp.abs(quadratic), axis=1))
    bound = jnp.where(bound > 0, bound, 1)

    def step(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        ahead, before, speed = state
        gradient = jnp.matmul(ahead, quadratic, precision="highest") + linear
        moved = _project(ahead - gradient / bound, there)
        faster = (1 + jnp.sqrt(1 + 4 * speed**2)) / 2
        return moved + (speed - 1) / faster * (moved - before), moved, faster

    _, found, _ = lax.fori_loop(0, _STEPS_PER_TURN, step, (table, table, jnp.ones((), table.dtype)))
    gain = value(table) - value(found)
    return jnp.where(gain > 0, found, table), jnp.maximum(gain, 0)


@partial(jax.jit, static_argnames=("variables", "num_sweeps"))
def meld(
    tables: Float[Array, "rows k"],
    concentration: Float[Array, " k"],
    x: Num[Array, "n p"],
    mask: Bool[Array, "n p"] | None,
    row_weights: Float[Array, " n"] | None,
    variables: Variables,
    num_sweeps: int,
) -> MeldResult:
    """Improve `tables` by sweeps over the variables; the criterion never rises.

    Missing entries count as zero, divided by their variable's rate: right where variables are missing independently.
    Real variables must have been turned into shares. Cost: `O(n Σ rows k)` a sweep, `O(n k)` memory beside the data.
    """
    dtype = tables.dtype
    weights = average_weights(row_weights, jnp.ones(x.shape[0], bool), dtype)
    x = as_float(x) if len(variables.categorical) < variables.num_variables else x
    places = jnp.asarray(_places(variables))
    total = jnp.sum(concentration)
    eta = concentration / (total * (total + 1))
    lam = 2 * eta / (total + 2)
    first, single = total / (total + 1), total / (total + 2)
    pairs, triples = eta[:, None] * eta[None, :], lam[:, None] * lam[None, :]

    # A variable's entries side by side in memory: they are read once in every sweep.
    entries, seen = x.T, None if mask is None else mask.T
    categories = jnp.arange(places.shape[1], dtype=jnp.int32)

    def features(j: Array) -> Array:
        spread = jnp.broadcast_to(entries[j][:, None], (x.shape[0], places.shape[1]))
        values = entry_features(spread, jnp.broadcast_to(j, categories.shape), categories, variables).astype(dtype)
        values = jnp.where((places[j] >= 0)[None, :], values, 0)
        if seen is None:
            return values
        rate = jnp.sum(weights * seen[j])
        return jnp.where(seen[j][:, None], values, 0) / jnp.where(rate > 0, rate, 1)

    def average(values: Array) -> Array:
        return jnp.matmul(weights, values, precision="highest")

    def turn(state: _State, j: Array) -> tuple[_State, None]:
        b, table, mean = features(j), state.tables[j], state.means[j]
        value = jnp.matmul(b, table, precision="highest")
        gram = jnp.matmul(table.T, table, precision="highest")
        # What all other variables say: sums over s ≠ j, and over pairs s < t of them.
        others = state.sums.values - value
        two = (others**2 - (state.sums.squares - value**2)) / 2
        rest = jnp.sum(state.means, axis=0) - mean
        rest_pairs = (rest**2 - (jnp.sum(state.means**2, axis=0) - mean**2)) / 2
        crossed = others * rest[None, :] - (state.sums.by_mean - value * mean[None, :])
        weighted = jnp.concatenate([others, two, crossed, jnp.ones_like(others[:, :1])], axis=1) * weights[:, None]
        seconds, thirds, mixed, own = jnp.split(
            jnp.matmul(b.T, weighted, precision="highest"), np.cumsum([mean.shape[0]] * 3), axis=1
        )
        seconds = seconds - first * own * rest[None, :]
        thirds = (
            thirds - single * (own * average(two)[None, :] + mixed) + 2 * first * single * own * rest_pairs[None, :]
        )
        linear = -(seconds * eta[None, :] + thirds * lam[None, :])
        left = state.grams - gram
        quadratic = pairs * left + triples * (left**2 - (state.squared_grams - gram**2)) / 2

        found, gain = _minimize(table, quadratic, linear, places[j] >= 0)
        new = jnp.matmul(b, found, precision="highest")
        new_mean, new_gram = average(new), jnp.matmul(found.T, found, precision="highest")
        sums = _Sums(
            others + new,
            state.sums.squares - value**2 + new**2,
            state.sums.by_mean - value * mean[None, :] + new * new_mean[None, :],
        )
        return _State(
            state.tables.at[j].set(found),
            sums,
            state.means.at[j].set(new_mean),
            left + new_gram,
            state.squared_grams - gram**2 + new_gram**2,
            state.objective - gain,
        ), None

    def start(sums: _Sums, j: Array) -> tuple[_Sums, tuple[Array, Array]]:
        table = padded[j]
        value = jnp.matmul(features(j), table, precision="highest")
        mean = average(value)
        more = _Sums(value, value**2, value * mean[None, :])
        return jax.tree.map(jnp.add, sums, more), (mean, jnp.matmul(table.T, table, precision="highest"))

    def sweep(state: _State, _: None) -> tuple[_State, Array]:
        after, _ = lax.scan(turn, state, order)
        return after, jnp.sqrt(jnp.sum((after.tables - state.tables) ** 2) / (variables.num_rows * tables.shape[1]))

    padded = jnp.where((places >= 0)[:, :, None], tables[jnp.maximum(places, 0)], 0)
    order = jnp.arange(variables.num_variables)
    nothing = jnp.zeros((x.shape[0], tables.shape[1]), dtype)
    sums, (means, grams) = lax.scan(start, _Sums(nothing, nothing, nothing), order)
    state = _State(padded, sums, means, jnp.sum(grams, axis=0), jnp.sum(grams**2, axis=0), jnp.zeros((), dtype))
    state, changes = lax.scan(sweep, state, None, length=num_sweeps)
    made = state.tables[variables.row_variables, variables.row_categories]
    return MeldResult(made, state.objective, changes[-1])
