"""The demo: five topics from 5,000 synthetic documents, by moments and by EM.

One corpus (d = 100 words, k = 5 topics, documents of 20 to 60 words). `fit` needs no starting point; EM gets 100
random ones. Left: the words of each topic, true and estimated. Right: the log-likelihood at which each run of EM
stopped, and that of `refine(fit)`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm import tqdm

from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Options, Report, measure
from latensor.decompose import match_columns, matched_rmse
from latensor.models import naive_bayes
from latensor.models.naive_bayes import NaiveBayes

_WORDS, _TOPICS, _SHOWN = 100, 5, 40


def run(options: Options) -> Report:
    """Fit one corpus in three ways."""
    documents = 1_000 if options.quick else 5_000
    starts = options.trials or (10 if options.quick else 100)
    key_probs, key_sample, key_fit, key_starts = jax.random.split(jax.random.key(0), 4)
    word_probs = jax.random.dirichlet(key_probs, jnp.full(_WORDS, 0.1), (_TOPICS,)).T
    truth = NaiveBayes(jnp.array([0.35, 0.25, 0.2, 0.12, 0.08]), word_probs)
    x = naive_bayes.sample(key_sample, truth, documents).x

    def em(key: Array) -> NaiveBayes:
        start = NaiveBayes(jnp.full(_TOPICS, 1 / _TOPICS), jax.random.dirichlet(key, jnp.ones(_WORDS), (_TOPICS,)).T)
        return naive_bayes.refine(start, x).params

    def value(params: NaiveBayes) -> float:
        return float(jnp.mean(naive_bayes.log_likelihood(params, x)))

    with tqdm(total=3, desc="fitting") as progress:
        moments_time, moments = measure(lambda: naive_bayes.fit(key_fit, x, _TOPICS))
        progress.update()
        refine_time, refined = measure(lambda: naive_bayes.refine(moments.params, x))
        progress.update()
        jitted = jax.jit(em)
        em_time, _ = measure(lambda: jitted(key_starts))
        runs = jax.jit(jax.vmap(em))(jax.random.split(key_starts, starts))
        progress.update()
    values = np.array([value(jax.tree.map(lambda leaf, i=i: leaf[i], runs)) for i in range(starts)])
    errors = np.asarray(jax.vmap(lambda p: matched_rmse(truth.word_probs, p))(runs.word_probs))
    best = value(refined.params)
    reached = float(np.mean(values > best - 1e-4 * abs(best)))

    def error(params: NaiveBayes) -> float:
        return float(matched_rmse(truth.word_probs, params.word_probs))

    rows = [
        ["truth", value(truth), 0.0, ""],
        ["fit (moments)", value(moments.params), error(moments.params), 1e3 * moments_time.warm],
        ["refine(fit)", best, error(refined.params), 1e3 * (moments_time.warm + refine_time.warm)],
        ["EM, median start", float(np.median(values)), float(np.median(errors)), 1e3 * em_time.warm],
        ["EM, worst start", float(np.min(values)), float(np.max(errors)), ""],
    ]
    order = np.asarray(match_columns(truth.word_probs, moments.params.word_probs).permutation)
    picture = _draw(truth, np.asarray(moments.params.word_probs)[:, order], values, best, reached)
    data = {"em_log_likelihoods": values, "share_of_em_starts_at_the_optimum": reached}
    print(f"{reached:.0%} of {starts} random starts of EM reach the optimum that refine(fit) finds")
    return Report(["", "log-likelihood", "word RMSE", "ms"], rows, [], data, picture)


def _draw(truth: NaiveBayes, estimate: np.ndarray, values: np.ndarray, best: float, reached: float) -> Any:
    made, (left, right) = figure(2, (8.4, 3.1))
    true_probs = np.asarray(truth.word_probs)
    shown = np.argsort(-true_probs.max(axis=1))[:_SHOWN]
    shown = shown[np.argsort(true_probs[shown].argmax(axis=1), kind="stable")]
    stacked = np.empty((2 * _TOPICS, _SHOWN))
    stacked[0::2], stacked[1::2] = true_probs[shown].T, estimate[shown].T
    left.imshow(np.sqrt(stacked), cmap="Blues", aspect="auto", interpolation="nearest")
    left.set_yticks(
        range(2 * _TOPICS), [f"topic {i // 2 + 1}, true" if i % 2 == 0 else "fit" for i in range(2 * _TOPICS)]
    )
    left.set(xlabel=f"the {_SHOWN} most distinctive words", title="Word probabilities (square root)")
    left.set_xticks([])
    for boundary in range(1, _TOPICS):
        left.axhline(2 * boundary - 0.5, color="white", lw=2)
    right.hist(values, bins=30, color=COLOURS["orange"], label=f"EM, {len(values)} random starts")
    right.axvline(best, color=COLOURS["blue"], lw=2, label="refine(fit)")
    right.set(
        xlabel="log-likelihood a document", ylabel="runs", title=f"{reached:.0%} of EM's starts reach the optimum"
    )
    right.set_xlim(None, best + 0.05 * (best - values.min()))
    right.legend(frameon=False, fontsize=8, loc="upper left")
    return made
