"""How often confidence intervals contain the truth, and whether delta method and bootstrap agree.

Models with d = 10 and k = 3: naive Bayes (documents of 10 words), Gaussian mixtures (complete, and with 30 % of all
entries missing), Gamma-Poisson counts, hidden Markov models (sequences of 50 symbols; n counts symbols). A trial draws
a sample, fits it by moments, and asks for intervals of all parameters at the nominal level of 95 %, which are compared
with the truth. In some of the trials 200 bootstrap replicates give standard errors, too.

Claims, at the largest n: averaged over parameters and trials, 93 to 97 % of the intervals contain the true value, for
each model; standard errors by the bootstrap and by the delta method agree within 10 % (median over parameters of their
mean ratio), for each model.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tqdm import tqdm

from benchmarks.plotting import COLOURS, MUTED, figure
from benchmarks.runner import Claim, Options, Report
from latensor.inference import bootstrap, standard_errors
from latensor.models import Fit, gamma_poisson, gaussian_mixture, hidden_markov, naive_bayes

_LEVEL, _WIDTH = 0.95, 1.959964
_LENGTH = 50


class _Case(NamedTuple):
    """A model, and how a sample of it becomes an estimate."""

    model: ModuleType
    truth: Any
    draw: Callable[[Any, int], tuple[Any, dict[str, Any]]]
    """Maps a key and n to `x` and keywords of the data."""
    options: dict[str, Any]


def _columns(seed: int) -> np.ndarray:
    """Return three probability columns over ten symbols, each with symbols that it prefers."""
    columns = np.random.default_rng(seed).dirichlet(np.ones(10), 3).T
    columns[:9] += np.kron(np.eye(3), np.full((3, 1), 0.5))
    return columns / columns.sum(axis=0)


def _cases() -> dict[str, _Case]:
    weights, columns = jnp.array([0.45, 0.33, 0.22]), jnp.asarray(_columns(0), jnp.float32)
    words = naive_bayes.NaiveBayes(weights, columns)
    means = jnp.asarray(1.5 * np.random.default_rng(1).normal(size=(10, 3)), jnp.float32)
    gaussians = gaussian_mixture.GaussianMixture(weights, means, jnp.array([1.0, 0.8, 1.2]))
    counts = gamma_poisson.GammaPoisson(columns, jnp.array([1.5, 1.0, 0.7]), jnp.array(0.1))
    transition = 0.7 * np.eye(3) + 0.3 * np.random.default_rng(2).dirichlet(np.ones(3), 3)
    stay = np.linalg.matrix_power(transition, 200)[0]
    chain = hidden_markov.HiddenMarkov(*(jnp.asarray(part, jnp.float32) for part in (stay, transition, columns)))

    def with_holes(key: Any, n: int) -> tuple[Any, dict[str, Any]]:
        key_x, key_mask = jax.random.split(key)
        x = gaussian_mixture.sample(key_x, gaussians, n).x
        return x, {"mask": jax.random.bernoulli(key_mask, 0.7, x.shape)}

    def sequences(key: Any, n: int) -> tuple[Any, dict[str, Any]]:
        return hidden_markov.sample(key, chain, n // _LENGTH, length=_LENGTH).x, {"num_symbols": 10}

    return {
        "naive_bayes": _Case(
            naive_bayes, words, lambda key, n: (naive_bayes.sample(key, words, n, length=10).x, {}), {}
        ),
        "gaussian_mixture": _Case(
            gaussian_mixture, gaussians, lambda key, n: (gaussian_mixture.sample(key, gaussians, n).x, {}), {}
        ),
        "gaussian_mixture, 30 % missing": _Case(gaussian_mixture, gaussians, with_holes, {}),
        "gamma_poisson": _Case(gamma_poisson, counts, lambda key, n: (gamma_poisson.sample(key, counts, n).x, {}), {}),
        # The start does not matter where the spectrum is clear, and under `vmap` all of them would be run.
        "hidden_markov": _Case(hidden_markov, chain, sequences, {"num_starts": 1}),
    }


def _estimate(case: _Case, key: Any, n: int) -> tuple[Any, dict[str, Any], Fit]:
    """Return data and the estimate, its components in the order of the truth."""
    key_x, key_fit = jax.random.split(key)
    x, keywords = case.draw(key_x, n)
    fit = case.model.fit(key_fit, x, 3, **keywords, **case.options)
    columns, target = (case.model.component_columns(each) for each in (fit.params, case.truth))
    # Components are far apart: the nearest one is the same.
    order = jnp.argmin(jnp.sum((columns[:, None, :] - target[:, :, None]) ** 2, axis=0), axis=1)
    return x, keywords, fit._replace(params=case.model.permute(fit.params, order))


def _trial(case: _Case, n: int, key: Any) -> tuple[Any, Any]:
    """Return by how many standard errors each parameter is off, and the standard errors."""
    x, keywords, fit = _estimate(case, key, n)
    errors = standard_errors(
        case.model, fit, x, key=key, options=case.options, block_length=None, allow_unconverged=True, **keywords
    )
    away = jax.tree.map(lambda value, truth, error: (value - truth) / error, fit.params, case.truth, errors)
    return _flat(away), _flat(errors)


def _flat(params: Any) -> Any:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])


def _ratios(case: _Case, n: int, keys: Any, errors: np.ndarray) -> np.ndarray:
    """Return standard errors by the bootstrap, divided by those of the delta method on the same samples."""
    found = []
    for key in keys:
        x, keywords, fit = _estimate(case, key, n)
        result = bootstrap(key, case.model, fit, x, options=case.options, allow_unconverged=True, **keywords)
        found.append(np.asarray(_flat(result.standard_errors)))
    return np.mean(np.stack(found) / errors[: len(found)], axis=0)


def run(options: Options) -> Report:
    """Run all trials of a model and a size in one compiled loop."""
    sizes = (500,) if options.quick else (1_000, 5_000, 50_000)
    trials = options.trials or (4 if options.quick else 1_000)
    few = 1 if options.quick else 10
    # Each model compiles for half a minute.
    cases = dict(list(_cases().items())[: 2 if options.quick else None])
    rows: list[list[Any]] = []
    claims: list[Claim] = []
    coverage: dict[str, list[float]] = {}
    for name, case in tqdm(cases.items(), desc="models"):
        coverage[name] = []
        for n in sizes:
            keys = jax.random.split(jax.random.key(n), trials)
            away, errors = jax.jit(partial(lax.map, partial(_trial, case, n)))(keys)
            away, errors = np.asarray(away), np.asarray(errors)
            inside = np.abs(away) <= _WIDTH
            each = inside.mean(axis=0)
            coverage[name].append(float(inside.mean()))
            ratio = float(np.median(_ratios(case, n, keys[:few], errors))) if n == sizes[-1] else float("nan")
            rows.append([name, f"{n:,}", coverage[name][-1], float(each.min()), float(each.max()), ratio])
        claims += [
            Claim(
                f"{name}: 93 to 97 % of the intervals contain the truth",
                f"{coverage[name][-1]:.1%} (single parameters {each.min():.1%} to {each.max():.1%})",
                0.93 <= coverage[name][-1] <= 0.97,
            ),
            Claim(f"{name}: bootstrap and delta method agree within 10 %", f"{ratio:.3f}", abs(ratio - 1) <= 0.1),
        ]
    columns = ["model", "n", "coverage", "lowest parameter", "highest", "bootstrap / delta"]
    data = {"sizes": sizes, "trials": trials, "coverage": coverage}
    return Report(columns, rows, claims, data, _picture(sizes, coverage, trials))


def _picture(sizes: tuple[int, ...], coverage: dict[str, list[float]], trials: int) -> Any:
    made, (axis,) = figure(1, (5.5, 3.6))
    colours = [*COLOURS.values(), MUTED]
    for (name, values), colour in zip(coverage.items(), colours, strict=False):
        axis.plot(sizes, values, marker="o", markersize=3, linewidth=1.2, color=colour, label=name)
    axis.axhspan(0.93, 0.97, color=MUTED, alpha=0.15, linewidth=0)
    axis.axhline(_LEVEL, color=MUTED, linewidth=0.8)
    axis.set(
        xscale="log", xlabel="n", ylabel="intervals with the truth", title=f"95 % intervals, {trials:,} trials each"
    )
    axis.legend(frameon=False, fontsize=8)
    return made
