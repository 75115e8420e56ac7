"""The spectral start from symbols whose triple table would be too large: their moments in bases of k directions."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import divide, matmul, positive_or_one, small_jit
from latensor.decompose import Conditionals, composite_likelihood_em_samples, project_columns_to_simplex
from latensor.decompose.internal import pseudoinverse, to_simplex
from latensor.models.hidden_markov.bases import neighbour_bases
from latensor.models.hidden_markov.start import (
    Options,
    Projected,
    Start,
    assemble,
    neighbour_conditionals,
    noise_level,
)
from latensor.moments import sum_over_rows
from latensor.moments.internal import Windows, contract_windows, spread_view, view_features, window_views


def list_start(key: Array, windows: Windows, num_symbols: int, options: Options) -> Start:
    """Recover the model from symbols without forming their tables."""
    projected, units = _project_symbols(key, windows, num_symbols, options)
    conditionals, emission, distance = _symbol_conditionals(key, projected, units, options)
    return _list_transitions(windows, projected, units, conditionals, emission, distance, options)


@partial(jax.jit, static_argnames=("num_symbols", "options"))
def _project_symbols(key: Array, windows: Windows, num_symbols: int, options: Options) -> tuple[Projected, Array]:
    """Return the projected moments, and the units `√p` of the middle symbol."""
    key_basis, _ = jax.random.split(jax.random.split(key)[0])
    weights = windows.weights

    def count(views: tuple[Array, Array, Array], weights: Array) -> tuple[Array, Array, Array]:
        one, two, three = (spread_view(view, weights[:, None], num_symbols)[:, 0] for view in views)
        return one, two, three

    counts = sum_over_rows(count, window_views(windows.x), weights, floats_per_row=0)
    one, two, three = (jnp.sqrt(divide(count, jnp.sum(weights))) for count in counts)
    scales = (divide(1, one), divide(1, two), divide(1, three))
    found = neighbour_bases(key_basis, windows, scales, options.num_components)
    down = tuple(scale[:, None] * basis for scale, basis in zip(scales, found.bases, strict=True))
    noise = noise_level(jnp.sum(two > 0), weights)
    return Projected(found.bases, contract_windows(windows, down), noise, found.next_value), two


@small_jit(static_argnames="options")
def _symbol_conditionals(
    key: Array, projected: Projected, units: Float[Array, " d"], options: Options
) -> tuple[Conditionals, Array, Array]:
    _, key_views = jax.random.split(jax.random.split(key)[0])
    conditionals = neighbour_conditionals(key_views, projected.moments, options, False)
    raw = units[:, None] * matmul(projected.bases[1], conditionals.conditionals[1])
    emission, distance = project_columns_to_simplex(raw / positive_or_one(jnp.sum(raw, axis=0))[None, :])
    return conditionals, emission, jnp.max(distance)


@partial(jax.jit, static_argnames="options")
def _list_transitions(
    windows: Windows,
    projected: Projected,
    units: Float[Array, " d"],
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
        scale = divide(1, units)
        inverse = pseudoinverse(emission * scale[:, None]) * scale[None, :]
        joint = to_simplex(contract_windows(windows, inverse.T).second[0])
    assert projected.next_value is not None
    return assemble(conditionals, emission, None, joint, projected.noise, projected.next_value, gap, distance)
