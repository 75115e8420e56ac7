"""Figure 4 of Chaganty & Liang: pseudoinverse against composite likelihood, from noisy moments to an HMM's parameters.

Hidden Markov models with k = 2 states and d = 3, 5, 6 symbols, probabilities uniform on their simplices, 400 of them
for each d. Gaussian noise of standard deviation ε on every entry of the triple table (the pair table is its margin), or
the table of n independent triples in its place. The emissions come from the tensor decomposition in either case; then
the transitions follow from the pairs, by the pseudoinverse or by the composite likelihood. Error: the Euclidean
distance of all parameters, in the better of the two orders of the states. The pseudoinverse as the paper has it may
leave the simplex; what `fit` returns is the nearest point of it, and is shown too. All in float64.

The paper: the likelihood is the better one (its authors' tables: for d = 3 and 6 only from ε = 5e-4 on). Every claim is
made twice, about means over models and about medians: where a row of the pseudoinverse's table nearly sums to zero its
error has no bound, so that its mean over models says little.

Why: the noise is Gaussian and of the same size in every entry. For that, least squares, which the pseudoinverse is,
are efficient; the likelihood is that of counts, and wins where the simplex matters, and with sampled triples. The
pseudoinverse on the simplex, which the paper does not have, loses little anywhere. Our models are drawn with less
structure than the authors', and all errors are larger than theirs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.plotting import COLOURS, figure, plot_spread
from benchmarks.runner import Claim, Options, Report, double_precision
from latensor.decompose import pseudoinverse_marginals
from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.moments import CrossMoments
from latensor.moments.internal import table_moments

_STATES, _SYMBOLS = 2, (3, 5, 6)
_METHODS = ("pseudoinverse", "projected", "likelihood")
_NOISE = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
_COUNTS = (10**3, 10**4, 10**5, 10**6)
_SUMMARIES: dict[str, Callable[..., np.ndarray]] = {"mean": np.mean, "median": np.median}
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
    symbols = (5,) if options.quick else _SYMBOLS
    noise = np.zeros((len(symbols), len(_NOISE), len(_METHODS), trials))
    counts = np.zeros((len(symbols), len(_COUNTS), len(_METHODS), trials))
    progress = tqdm(total=len(symbols) * (len(_NOISE) + len(_COUNTS)), desc="tables")
    with double_precision():
        for i, d in enumerate(symbols):
            rng = np.random.default_rng([4, d])
            models = _draw_models(rng, trials, d)
            keys = jax.random.split(jax.random.key(d), trials)
            for errors, tables in zip((noise, counts), _tables(rng, models), strict=True):
                for j, table in enumerate(tables):
                    errors[i, j] = np.asarray(_errors(keys, models, jnp.asarray(table))).T
                    progress.update()
    progress.close()
    rows = [
        [
            f"d = {d}",
            f"{label} {level:g}",
            *(float(value) for of in _SUMMARIES.values() for value in of(errors[i, j], -1)),
        ]
        for i, d in enumerate(symbols)
        for label, levels, errors in (("ε =", _NOISE, noise), ("n =", _COUNTS, counts))
        for j, level in enumerate(levels)
    ]
    return Report(
        ["symbols", "moments", *(f"{summary}, {method}" for summary in _SUMMARIES for method in _METHODS)],
        rows,
        [claim for name, of in _SUMMARIES.items() for claim in _claims(name, symbols, of(noise, -1), of(counts, -1))],
        {"noise": _NOISE, "counts": _COUNTS, "noise_errors": noise, "count_errors": counts, "methods": _METHODS},
        _draw(symbols, noise, counts),
    )


def _where(worse: np.ndarray, symbols: tuple[int, ...], levels: tuple[float, ...], ratio: np.ndarray) -> str:
    worse_at = [f"d = {symbols[i]} at {levels[j]:g} ({100 * (ratio[i, j] - 1):+.1f} %)" for i, j in np.argwhere(worse)]
    return "; ".join(worse_at) if worse_at else "nowhere worse"


def _claims(summary: str, symbols: tuple[int, ...], noise: np.ndarray, counts: np.ndarray) -> list[Claim]:
    """Return what the paper says, and what follows for samples, about means or medians `(symbols, levels, methods)`."""
    claims = []
    strong = np.array(_NOISE) >= 1e-3
    five = np.array(symbols) == 5
    for m, name in enumerate(_METHODS[:2]):
        ratio, ratio_counts = noise[..., 2] / noise[..., m], counts[..., 2] / counts[..., m]
        claims += [
            Claim(
                f"{summary}, noise ε ≥ 1e-3: likelihood at most {name}",
                _where((ratio > 1) & strong[None, :], symbols, _NOISE, ratio),
                bool(np.all(ratio[:, strong] <= 1)),
            ),
            Claim(
                f"{summary}, d = 5, every ε: likelihood at most {name}",
                _where((ratio > 1) & five[:, None], symbols, _NOISE, ratio),
                bool(np.all(ratio[five] <= 1)),
            ),
            Claim(
                f"{summary}, n triples in place of noise: likelihood at most {name} within 3 %",
                f"{_where(ratio_counts > 1.03, symbols, _COUNTS, ratio_counts)}; ratios {ratio_counts.min():.3f} to "
                f"{ratio_counts.max():.3f}",
                bool(np.all(ratio_counts <= 1.03)),
            ),
        ]
    return claims


def _draw(symbols: tuple[int, ...], noise: np.ndarray, counts: np.ndarray) -> Any:
    """Draw means with standard errors above, medians with quartiles below."""
    columns = len(symbols) + 1
    made, axes = figure(columns, (3.0 * columns, 5.6), rows=2)
    panels: list[tuple[str, str, Any, np.ndarray]] = [
        (f"k = 2, d = {d}", "noise ε in the moments", _NOISE, noise[i]) for i, d in enumerate(symbols)
    ]
    panels.append(("k = 2, d = 5, from samples", "triples n", _COUNTS, counts[symbols.index(5)]))
    for row, (summary, limit) in enumerate(zip(_SUMMARIES, (0.1, 1e-3), strict=True)):
        for axis, (title, label, levels, errors) in zip(axes[row * columns :], panels, strict=False):
            for m, name in enumerate(_METHODS):
                colour, line = _LOOKS[name]
                look = {"color": COLOURS[colour], "linestyle": line, "label": name}
                plot_spread(axis, levels, errors[:, m], median=summary == "median", **look)
            # Means of the pseudoinverse beyond the scale are those of a few models.
            axis.set(title=title, xlabel=label, xscale="log", yscale="log", ylim=(limit, 20))
        axes[row * columns].set_ylabel(f"error of the parameters, {summary}")
    axes[0].legend(frameon=False, fontsize=8)
    made.suptitle(f"{noise.shape[-1]} models each; means with standard errors, medians with quartiles", fontsize=10)
    return made
