"""Hidden Markov models by moments, by moments and then EM, and by EM from random starts: error and time against n.

Models with k = 4 states and d = 12 symbols, half of each transition staying where it is, the other half and the
emissions Dirichlet(0.5); one sequence of n tokens of each. EM is Baum–Welch with the same extrapolation and tolerance
in either case; from random starts it runs five times, and the likeliest result counts (its time is that of all five).

Claims: the error of the moments falls with n; EM from the moments ends within one nat of EM's best of five random
starts, or above, in at least nine of ten sequences of the largest n, and takes less time.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report, measure
from latensor.decompose import matched_rmse
from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.models.results import Refined

_STATES, _SYMBOLS, _STARTS = 4, 12, 5
_METHODS = ("moments, no polish", "moments", "moments + EM", "EM, 5 random starts")
_LOOKS = ("grey", "blue", "green", "orange")


def _draw(rng: np.random.Generator, shape: tuple[int, ...], stay: float) -> HiddenMarkov:
    transition = stay * np.eye(_STATES) + (1 - stay) * rng.dirichlet(np.full(_STATES, 0.5), (*shape, _STATES))
    emission = np.swapaxes(rng.dirichlet(np.full(_SYMBOLS, 0.5), (*shape, _STATES)), -1, -2)
    parts = (np.full((*shape, _STATES), 1 / _STATES), transition, emission)
    return HiddenMarkov(*(jnp.asarray(part, jnp.float32) for part in parts))


@partial(jax.jit, static_argnames="polish")
def _fit(keys: jax.Array, x: jax.Array, polish: bool) -> HiddenMarkov:
    def one(key: jax.Array, row: jax.Array) -> HiddenMarkov:
        return hidden_markov.fit(key, row, _STATES, polish=polish, num_symbols=_SYMBOLS).params

    return jax.vmap(one)(keys, x)


@jax.jit
def _refine(params: HiddenMarkov, x: jax.Array) -> Refined:
    return jax.vmap(hidden_markov.refine)(params, x)


@jax.jit
def _from_random(starts: HiddenMarkov, x: jax.Array) -> Refined:
    """Return, for each sequence, the likeliest of what EM makes of its starts."""
    refined = jax.vmap(jax.vmap(hidden_markov.refine, in_axes=(0, None)))(starts, x)
    best = jnp.argmax(refined.log_likelihood, axis=1)
    return jax.tree.map(lambda part: jax.vmap(lambda row, i: row[i])(part, best), refined)


def run(options: Options) -> Report:
    """Run all methods on the same sequences, all trials at once."""
    trials = options.trials or (3 if options.quick else 10)
    sizes = (500, 2_000) if options.quick else (1_000, 3_000, 10_000, 30_000)
    rng = np.random.default_rng(11)
    truth = _draw(rng, (trials,), 0.5)
    starts = _draw(rng, (trials, _STARTS), 0.0)
    keys = jax.random.split(jax.random.key(1), trials)
    x = jax.vmap(lambda key, params: hidden_markov.sample(key, params, 1, length=sizes[-1]).x[0])(keys, truth)
    error = jax.jit(jax.vmap(matched_rmse))
    rows, errors, seconds = [], np.zeros((len(sizes), len(_METHODS), trials)), np.zeros((len(sizes), len(_METHODS)))
    gains = np.zeros((len(sizes), trials))
    for i, n in enumerate(tqdm(sizes, desc="lengths")):
        part = x[:, :n]
        plain_time, plain = measure(partial(_fit, keys, part, False), 1)
        fit_time, fit = measure(partial(_fit, keys, part, True), 1)
        refine_time, refined = measure(partial(_refine, fit, part), 1)
        random_time, random = measure(partial(_from_random, starts, part), 1)
        times = (plain_time.warm, fit_time.warm, fit_time.warm + refine_time.warm, random_time.warm)
        gains[i] = np.asarray(refined.log_likelihood - random.log_likelihood)
        for m, params in enumerate((plain, fit, refined.params, random.params)):
            errors[i, m], seconds[i, m] = np.asarray(error(truth.emission, params.emission)), times[m] / trials
            middle = float(np.median(errors[i, m]))
            rows.append([f"{n:,}", _METHODS[m], float(errors[i, m].mean()), middle, 1e3 * seconds[i, m]])
    mean = errors.mean(axis=-1)
    good = float(np.mean(gains[-1] >= -1))
    ratios = seconds[-1, 3] / seconds[-1, 1:3]
    claims = [
        Claim(
            "the error of the moments falls with n",
            " → ".join(f"{value:.4f}" for value in mean[:, 1]),
            bool(np.all(np.diff(mean[:, 1]) < 0)),
        ),
        Claim(
            f"n = {sizes[-1]:,}: EM from the moments ends within a nat of EM's best of {_STARTS} starts, or above",
            f"in {good:.0%} of the sequences; it is above by a nat in {np.mean(gains[-1] > 1):.0%}",
            good >= 0.9,
        ),
        Claim(
            "and takes less time",
            f"{ratios[1]:.1f} times less; the moments alone {ratios[0]:.0f} times",
            bool(seconds[-1, 2] < seconds[-1, 3]),
        ),
    ]
    data = {"errors": errors, "seconds": seconds, "sizes": sizes, "gains": gains}
    columns = ["n", "", "mean emission RMSE", "median", "ms a sequence"]
    return Report(columns, rows, claims, data, _picture(sizes, mean, seconds))


def _picture(sizes: tuple[int, ...], mean: np.ndarray, seconds: np.ndarray) -> Any:
    made, (left, right) = figure(2, (8.0, 3.0))
    for m, (name, colour) in enumerate(zip(_METHODS, _LOOKS, strict=True)):
        left.loglog(sizes, mean[:, m], color=COLOURS[colour], marker="o", markersize=3, label=name)
        right.loglog(sizes, seconds[:, m], color=COLOURS[colour], marker="o", markersize=3)
    left.set(xlabel="tokens n", ylabel="emission RMSE")
    right.set(xlabel="tokens n", ylabel="seconds a sequence")
    left.legend(frameon=False, fontsize=8)
    return made
