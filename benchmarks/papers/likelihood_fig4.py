"""Figure 4 of Chaganty & Liang: pseudoinverse against composite likelihood, from noisy moments to an HMM's parameters.

Hidden Markov models with k = 2 states and d = 3, 5, 6 symbols, probabilities uniform on their simplices, 400 of them
for each d. Gaussian noise of standard deviation ε on every entry of the triple table (the pair table is its margin), or
the table of n independent triples in its place. The emissions come from the tensor decomposition in either case; then
the transitions follow from the pairs, by the pseudoinverse or by the composite likelihood. Error: the Euclidean
distance of all parameters, in the better of the two orders of the states, averaged over models. The pseudoinverse as
the paper has it may leave the simplex; what `fit` returns is the nearest point of it, and is shown too. All in float64.

The paper: the likelihood is the better one (its authors' tables: for d = 3 and 6 only from ε = 5e-4 on).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report, double_precision
from latensor.decompose import pseudoinverse_marginals
from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.moments import CrossMoments
from latensor.moments.internal import table_moments

_STATES, _SYMBOLS = 2, (3, 5, 6)
_METHODS = ("pseudoinverse", "projected", "likelihood")
_NOISE = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
_COUNTS = (10**3, 10**4, 10**5, 10**6)
_LOOKS = {"pseudoinverse": ("grey", "--"), "projected": ("orange", "-"), "likelihood": ("blue", "-")}


def _draw_models(rng: np.random.Generator, trials: int, d: int) -> HiddenMarkov:
    parts = (
        rng.dirichlet(np.ones(_STATES), trials),
        rng.dirichlet(np.ones(_STATES), (trials, _STATES)),
        np.swapaxes(rng.dirichlet(np.ones(d), (trials, _STATES)), 1, 2),
    )
    return HiddenMarkov(*(jnp.asarray(part) for part in parts))


def _distance(truth: HiddenMarkov, estimate: HiddenMarkov) -> jax.Array:
    """Return the distance of all parameters in the better order of two states."""

    def one(order: jax.Array) -> jax.Array:
        return jnp.sqrt(
            jnp.sum((truth.initial - estimate.initial[order]) ** 2)
            + jnp.sum((truth.transition - estimate.transition[order][:, order]) ** 2)
            + jnp.sum((truth.emission - estimate.emission[:, order]) ** 2)
        )

    return jnp.minimum(one(jnp.array([0, 1])), one(jnp.array([1, 0])))


def _raw(estimate: HiddenMarkov, moments: CrossMoments) -> HiddenMarkov:
    """Return the paper's pseudoinverse estimate, which nothing keeps on the simplex."""
    joint = pseudoinverse_marginals(moments.second[0], (estimate.emission, estimate.emission))
    initial = jnp.sum(joint, axis=1)
    return HiddenMarkov(initial, joint / initial[:, None], estimate.emission)


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, 0))
def _errors(key: jax.Array, truth: HiddenMarkov, table: jax.Array) -> jax.Array:
    moments = table_moments(table)
    projected = hidden_markov.fit_moments(key, moments, _STATES, marginals="pseudoinverse", polish=False).params
    likelihood = hidden_markov.fit_moments(key, moments, _STATES, marginals="likelihood", polish=False).params
    estimates = (_raw(projected, moments), projected, likelihood)
    return jnp.stack([_distance(truth, params) for params in estimates])


def _tables(rng: np.random.Generator, models: HiddenMarkov) -> tuple[list[np.ndarray], list[np.ndarray]]:
    exact = np.asarray(jax.vmap(lambda params: hidden_markov.population_moments(params).third)(models))
    noisy = [exact + level * rng.normal(size=exact.shape) for level in _NOISE]
    flat = exact.reshape(len(exact), -1)
    flat = flat / flat.sum(axis=1, keepdims=True)
    counted = [rng.multinomial(n, flat).reshape(exact.shape) / n for n in _COUNTS]
    return noisy, counted


def run(options: Options) -> Report:
    """Estimate from all tables of a kind at once."""
    trials = options.trials or (40 if options.quick else 400)
    noise = np.zeros((len(_SYMBOLS), len(_NOISE), len(_METHODS), trials))
    counts = np.zeros((len(_SYMBOLS), len(_COUNTS), len(_METHODS), trials))
    progress = tqdm(total=len(_SYMBOLS) * (len(_NOISE) + len(_COUNTS)), desc="tables")
    with double_precision():
        for i, d in enumerate(_SYMBOLS):
            rng = np.random.default_rng([4, d])
            models = _draw_models(rng, trials, d)
            keys = jax.random.split(jax.random.key(d), trials)
            for errors, tables in zip((noise, counts), _tables(rng, models), strict=True):
                for j, table in enumerate(tables):
                    errors[i, j] = np.asarray(_errors(keys, models, jnp.asarray(table))).T
                    progress.update()
    progress.close()
    mean_noise, mean_counts = noise.mean(axis=-1), counts.mean(axis=-1)
    rows = [
        [f"d = {d}", f"{label} {level:g}", *map(float, mean[i, j]), float(mean[i, j, 2] / mean[i, j, 1])]
        for i, d in enumerate(_SYMBOLS)
        for label, levels, mean in (("ε =", _NOISE, mean_noise), ("n =", _COUNTS, mean_counts))
        for j, level in enumerate(levels)
    ]
    return Report(
        ["symbols", "moments", *_METHODS, "likelihood / projected"],
        rows,
        _claims(mean_noise, mean_counts),
        {"noise": _NOISE, "counts": _COUNTS, "noise_errors": noise, "count_errors": counts, "methods": _METHODS},
        _draw(mean_noise, mean_counts),
    )


def _where(worse: np.ndarray, levels: tuple[float, ...], ratio: np.ndarray) -> str:
    worse_at = [f"d = {_SYMBOLS[i]} at {levels[j]:g} ({100 * (ratio[i, j] - 1):+.1f} %)" for i, j in np.argwhere(worse)]
    return "; ".join(worse_at) if worse_at else "nowhere worse"


def _claims(noise: np.ndarray, counts: np.ndarray) -> list[Claim]:
    claims = []
    strong = np.array(_NOISE) >= 1e-3
    five = np.array(_SYMBOLS) == 5
    for m, name in enumerate(_METHODS[:2]):
        ratio, ratio_counts = noise[..., 2] / noise[..., m], counts[..., 2] / counts[..., m]
        claims += [
            Claim(
                f"noise ε ≥ 1e-3: likelihood at most {name}",
                _where((ratio > 1) & strong[None, :], _NOISE, ratio),
                bool(np.all(ratio[:, strong] <= 1)),
            ),
            Claim(
                f"d = 5, every ε: likelihood at most {name}",
                _where((ratio > 1) & five[:, None], _NOISE, ratio),
                bool(np.all(ratio[five] <= 1)),
            ),
            Claim(
                f"n triples in place of noise: likelihood at most {name} within 3 %",
                f"{_where(ratio_counts > 1.03, _COUNTS, ratio_counts)}; ratios {ratio_counts.min():.3f} to "
                f"{ratio_counts.max():.3f}",
                bool(np.all(ratio_counts <= 1.03)),
            ),
        ]
    return claims


def _draw(noise: np.ndarray, counts: np.ndarray) -> Any:
    made, axes = figure(len(_SYMBOLS) + 1, (3.0 * (len(_SYMBOLS) + 1), 3.0))
    for i, d in enumerate(_SYMBOLS):
        for m, name in enumerate(_METHODS):
            colour, line = _LOOKS[name]
            axes[i].loglog(_NOISE, noise[i, :, m], line, color=COLOURS[colour], marker="o", markersize=3, label=name)
        # A row of the pseudoinverse's table that nearly sums to zero makes any error; means beyond the scale are such.
        axes[i].set(title=f"k = 2, d = {d}", xlabel="noise ε in the moments", ylim=(0.1, 20))
    for m, name in enumerate(_METHODS):
        colour, line = _LOOKS[name]
        axes[-1].loglog(_COUNTS, counts[1, :, m], line, color=COLOURS[colour], marker="o", markersize=3)
    axes[-1].set(title=f"d = {_SYMBOLS[1]}, from samples", xlabel="triples n", ylim=(0.1, 20))
    axes[0].set_ylabel("error of the parameters")
    axes[0].legend(frameon=False, fontsize=8)
    return made
