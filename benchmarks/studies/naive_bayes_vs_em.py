"""Naive Bayes mixture: moments and EM, alone and together, against the number of documents.

The notes' motive: EM is only sure to reach a local optimum, the method of moments has none. d = 100 words, k = 5
topics with word distributions Dir(0.1) and weights Dir(1), documents of 20 to 60 words, 50 random models a point; all
trials of a point are one `vmap`. Compared: moments; moments + EM; EM from one random start, and from the best of ten;
EM from the truth, which nobody can have.

Claim: at n = 5,000, moments + EM reaches the log-likelihood of EM from the truth to within 1e-4 (relative) in at least
95 % of the trials.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm import tqdm

from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report, measure
from latensor.decompose import matched_rmse
from latensor.models import naive_bayes
from latensor.models.naive_bayes import NaiveBayes

_WORDS, _TOPICS = 100, 5
_STARTS = 10
_CLOSE = 1e-4
_STYLE = {
    "moments": ("blue", "--"),
    "moments + EM": ("blue", "-"),
    "EM, random start": ("orange", "-"),
    f"EM, best of {_STARTS} starts": ("orange", "--"),
    "EM from the truth": ("grey", ":"),
}


def _draw(key: Array, num_documents: int) -> tuple[NaiveBayes, Array]:
    key_weights, key_probs, key_sample = jax.random.split(key, 3)
    word_probs = jax.random.dirichlet(key_probs, jnp.full(_WORDS, 0.1), (_TOPICS,)).T
    truth = NaiveBayes(jax.random.dirichlet(key_weights, jnp.ones(_TOPICS)), word_probs)
    return truth, naive_bayes.sample(key_sample, truth, num_documents, length=(20, 60)).x


def _mean_log_likelihood(params: NaiveBayes, x: Array) -> Array:
    return jnp.mean(naive_bayes.log_likelihood(params, x))


def _random_start(key: Array) -> NaiveBayes:
    word_probs = jax.random.dirichlet(key, jnp.ones(_WORDS), (_TOPICS,)).T
    return NaiveBayes(jnp.full(_TOPICS, 1 / _TOPICS), word_probs)


def _moments(key: Array, truth: NaiveBayes, x: Array) -> NaiveBayes:
    return naive_bayes.fit(key, x, _TOPICS).params


def _both(key: Array, truth: NaiveBayes, x: Array) -> NaiveBayes:
    return naive_bayes.refine(_moments(key, truth, x), x).params


def _random_em(key: Array, truth: NaiveBayes, x: Array, starts: int) -> NaiveBayes:
    tries = jax.vmap(lambda k: naive_bayes.refine(_random_start(k), x).params)(jax.random.split(key, starts))
    best = jnp.argmax(jax.vmap(_mean_log_likelihood, in_axes=(0, None))(tries, x))
    return jax.tree.map(lambda leaf: leaf[best], tries)


def _oracle(key: Array, truth: NaiveBayes, x: Array) -> NaiveBayes:
    return naive_bayes.refine(truth, x).params


_METHODS: dict[str, Callable[..., NaiveBayes]] = dict(
    zip(
        _STYLE,
        [_moments, _both, partial(_random_em, starts=1), partial(_random_em, starts=_STARTS), _oracle],
        strict=True,
    )
)


def run(options: Options) -> Report:
    """Run every method on the same documents, for growing numbers of them."""
    sizes = [300, 1_000] if options.quick else [500, 1_000, 2_000, 5_000, 10_000]
    trials = options.trials or (8 if options.quick else 50)
    draw = jax.jit(jax.vmap(_draw, in_axes=(0, None)), static_argnums=1)
    score = jax.jit(
        jax.vmap(lambda truth, p, x: (matched_rmse(truth.word_probs, p.word_probs), _mean_log_likelihood(p, x)))
    )
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in _METHODS}
    with tqdm(total=len(sizes) * len(_METHODS), desc="sizes × methods") as progress:
        for n in sizes:
            key_draw, key_fit = jax.random.split(jax.random.key(n))
            truth, x = draw(jax.random.split(key_draw, trials), n)
            keys = jax.random.split(key_fit, trials)
            for name, method in _METHODS.items():
                batched = jax.jit(jax.vmap(method))
                timing, params = measure(partial(batched, keys, truth, x), 1)
                errors, values = score(truth, params, x)
                results[name].append(
                    {
                        "n": n,
                        "errors": np.asarray(errors),
                        "values": np.asarray(values),
                        "ms": 1e3 * timing.warm / trials,
                    }
                )
                progress.update()

    rows = []
    stuck: dict[str, list[float]] = {}
    for name, points in results.items():
        stuck[name] = []
        for point, best in zip(points, results["EM from the truth"], strict=True):
            gap = (best["values"] - point["values"]) / np.abs(best["values"])
            stuck[name].append(float(np.mean(gap > _CLOSE)))
            spread = float(np.std(point["errors"]) / np.sqrt(trials))
            rows.append([name, point["n"], float(np.mean(point["errors"])), spread, stuck[name][-1], point["ms"]])
    at = sizes.index(5_000) if 5_000 in sizes else -1
    share = 1 - stuck["moments + EM"][at]
    claims = [
        Claim(
            "moments + EM is within 1e-4 of EM from the truth in at least 95 % of the trials at n = 5,000",
            f"{share:.0%} of {trials} trials at n = {sizes[at]:,} "
            f"(EM from a random start: {1 - stuck['EM, random start'][at]:.0%})",
            share >= 0.95,
        )
    ]
    columns = ["method", "n", "word RMSE", "± s.e.", "below the optimum", "ms a trial"]
    return Report(columns, rows, claims, {"trials": trials}, _draw_figure(results, stuck, trials))


def _draw_figure(results: dict[str, list[dict[str, Any]]], stuck: dict[str, list[float]], trials: int) -> Any:
    made, (left, right) = figure(2, (9.2, 3.1))
    for name, points in results.items():
        colour, line = _STYLE[name]
        sizes = [point["n"] for point in points]
        means = [np.mean(point["errors"]) for point in points]
        errors = [np.std(point["errors"]) / np.sqrt(trials) for point in points]
        left.errorbar(sizes, means, errors, color=COLOURS[colour], linestyle=line, label=name, capsize=2, lw=1.5)
        if name not in ("moments", "EM from the truth"):
            right.plot(sizes, stuck[name], color=COLOURS[colour], linestyle=line, marker="o", ms=3, lw=1.5)
    left.set(xscale="log", yscale="log", xlabel="documents", ylabel="RMSE of word probabilities")
    right.set(xscale="log", xlabel="documents", ylabel="share of trials", title="Caught in a local optimum")
    right.set_ylim(-0.03, 1)
    made.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    return made
