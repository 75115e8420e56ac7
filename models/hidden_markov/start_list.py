"""The spectral start from symbols whose triple table would be too large: their moments in a basis of k directions."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import divide, matmul, positive_or_one, small_jit
from latensor.decompose import Conditionals, composite_likelihood_em_samples, project_columns_to_simplex
from latensor.decompose.internal import pseudoinverse
from latensor.models.hidden_markov.start import (
    Options,
    Projected,
    Start,
    assemble,
    neighbour_conditionals,
    noise_level,
    pair_basis,
    to_simplex,
)
from latensor.moments import sum_over_rows
from latensor.moments.internal import Windows, contract_windows, spread_view, view_features, window_views


def list_start(key: Array, windows: Windows, num_symbols: int, options: Options) -> Start:
    """Recover the model from symbols without forming their tables."""
    projected = _project_symbols(key, windows, num_symbols, options)
    conditionals, emission, distance = _symbol_conditionals(key, projected, options)
    return _list_transitions(windows, projected, conditionals, emission, distance, options)


@partial(jax.jit, static_argnames=("num_symbols", "options"))
def _project_symbols(key: Array, windows: Windows, num_symbols: int, options: Options) -> Projected:
    key_basis, _ = jax.random.split(jax.random.split(key)[0])

    def count(x: Array, weights: Array) -> Array:
        return spread_view(x, weights[:, None], num_symbols)[:, 0]

    weights = windows.weights
    usual = divide(sum_over_rows(count, windows.x[1:-1], weights, floats_per_row=0), jnp.sum(weights))
    units = jnp.sqrt(usual)
    scale = divide(1, units)
    basis = pair_basis(key_basis, windows, scale, options.num_components)
    moments = contract_windows(windows, scale[:, None] * basis)
    return Projected(basis, units, moments, noise_level(jnp.sum(usual > 0), weights))


@small_jit(static_argnames="options")
def _symbol_conditionals(key: Array, projected: Projected, options: Options) -> tuple[Conditionals, Array, Array]:
    _, key_views = jax.random.split(jax.random.split(key)[0])
    conditionals = neighbour_conditionals(key_views, projected.moments, options, False)
    raw = projected.units[:, None] * matmul(projected.basis, conditionals.conditionals[1])
    emission, distance = project_columns_to_simplex(raw / positive_or_one(jnp.sum(raw, axis=0))[None, :])
    return conditionals, emission, jnp.max(distance)


@partial(jax.jit, static_argnames="options")
def _list_transitions(
    windows: Windows,
    projected: Projected,
    conditionals: Conditionals,
    emission: Float[Array, "d k"],
    distance: Float[Array, ""],
    options: Options,
) -> Start:
    gap = None
    if options.marginals == "likelihood":
        first, second, _ = window_views(windows.x)
        rows = (view_features(first, emission), view_features(second, emission))
        # Polishing walks over these rows again: whatever is not settled here is settled there.
        best = composite_likelihood_em_samples(rows, windows.weights, max_iters=30 if options.polish else 300)
        joint, gap = best.table, best.gap
    else:
        scale = divide(1, projected.units)
        inverse = pseudoinverse(emission * scale[:, None]) * scale[None, :]
        joint = to_simplex(contract_windows(windows, inverse.T).second[0])
    return assemble(conditionals, emission, None, joint, projected.noise, gap, distance)
