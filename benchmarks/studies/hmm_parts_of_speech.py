"""Parts of speech without labels: the states of a hidden Markov model of English words against 17 universal tags.

The English Web Treebank: 12,544 sentences to learn from, 2,077 held out. The 1,000 most frequent words are symbols, all
others are one more. Models with as many states as tags: by moments; by moments and then Baum–Welch; by Baum–Welch from
a random start; and, for comparison, with the tags given (counts of the training sentences, add one half).

Measured on the held-out sentences, each word's state the likeliest given its sentence: many-to-one accuracy (every
state stands for the tag that it meets most often), one-to-one accuracy (the best assignment of states to tags), and
perplexity a word. The unigram model's perplexity and the most frequent tag's share are what costs nothing.
"""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment
from tqdm import tqdm

from benchmarks.runner import Claim, Options, Report
from latensor.decompose import Status
from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.models.results import Fit, Refined


class _Part(NamedTuple):
    words: np.ndarray
    tags: np.ndarray
    lengths: np.ndarray


def _read(options: Options, num_words: int, sentences: int | None) -> dict[str, _Part]:
    """Return the parts, words as ranks: 0 for all that are not among the `num_words` most frequent."""
    parts = {}
    with np.load(options.data_file("ud-english-ewt/ewt_pos_ids.npz"), allow_pickle=False) as file:
        # Words are numbered by their frequency, from one; zero is what was rare to begin with.
        for name in ("train", "test"):
            offsets = file[f"{name}_offsets"][: None if sentences is None else sentences + 1]
            words = file[f"{name}_word"][: offsets[-1]].astype(np.int32)
            words = np.where(words > num_words, 0, words)
            parts[name] = _Part(words, file[f"{name}_tag"][: offsets[-1]].astype(int), np.diff(offsets))
    return parts


def _supervised(part: _Part, k: int, d: int) -> HiddenMarkov:
    """Count tags, their pairs and their words, and add one half to each count."""
    begins = np.cumsum(part.lengths) - part.lengths
    initial = np.bincount(part.tags[begins], minlength=k) + 0.5
    inside = np.ones(len(part.tags) - 1, bool)
    inside[begins[1:] - 1] = False
    transition, emission = np.full((k, k), 0.5), np.full((d, k), 0.5)
    np.add.at(transition, (part.tags[:-1][inside], part.tags[1:][inside]), 1)
    np.add.at(emission, (part.words, part.tags), 1)
    parts = (initial / initial.sum(), transition / transition.sum(1, keepdims=True), emission / emission.sum(0))
    return HiddenMarkov(*(jnp.asarray(part, jnp.float32) for part in parts))


def _smooth(params: HiddenMarkov, usual: np.ndarray) -> HiddenMarkov:
    """Mix a little of the overall frequencies in: a held-out word that a state has never emitted is not impossible."""
    overall = jnp.asarray(usual, jnp.float32)[:, None]
    return params._replace(emission=0.999 * params.emission + 0.001 * overall)


def _random(rng: np.random.Generator, k: int, d: int, usual: np.ndarray) -> HiddenMarkov:
    emission = usual[:, None] * rng.gamma(1.0, size=(d, k))
    parts = (np.full(k, 1 / k), rng.dirichlet(np.ones(k), k), emission / emission.sum(axis=0))
    return HiddenMarkov(*(jnp.asarray(part, jnp.float32) for part in parts))


def _judge(params: HiddenMarkov, part: _Part, k: int) -> tuple[float, float, float]:
    """Return many-to-one and one-to-one accuracy, and the perplexity."""
    posterior = hidden_markov.posterior(params, part.words, lengths=part.lengths)
    states = np.asarray(jnp.argmax(posterior, axis=1))
    table = np.zeros((k, k))
    np.add.at(table, (states, part.tags), 1)
    rows, columns = linear_sum_assignment(-table)
    values = hidden_markov.log_likelihood(params, part.words, lengths=part.lengths)
    likelihood = float(np.sum(np.asarray(values, float)))
    number = len(part.words)
    return table.max(axis=1).sum() / number, table[rows, columns].sum() / number, float(np.exp(-likelihood / number))


def run(options: Options) -> Report:
    """Learn by all methods and compare the states with the tags."""
    num_words = 100 if options.quick else 1_000
    parts = _read(options, num_words, 500 if options.quick else None)
    train, test = parts["train"], parts["test"]
    k, d = 17, num_words + 1
    usual = (np.bincount(train.words, minlength=d) + 0.5) / (len(train.words) + 0.5 * d)
    rows, scores = [], {}

    def learn(name: str, function: object) -> HiddenMarkov:
        start = time.perf_counter()
        result = jax.block_until_ready(function())  # type: ignore[operator]
        seconds = time.perf_counter() - start
        params = result.params if isinstance(result, Fit | Refined) else result
        status = Status(int(result.status)).name if isinstance(result, Fit | Refined) else ""
        scores[name] = _judge(_smooth(params, usual), test, k)
        rows.append([name, *scores[name], seconds, status])
        progress.update()
        return params

    progress = tqdm(total=4, desc="methods")
    key = jax.random.key(17)
    fit = learn("moments", lambda: hidden_markov.fit(key, train.words, k, lengths=train.lengths, num_symbols=d))
    learn("moments + EM", lambda: hidden_markov.refine(fit, train.words, lengths=train.lengths))
    start = _random(np.random.default_rng(17), k, d, usual)
    learn("EM, random start", lambda: hidden_markov.refine(start, train.words, lengths=train.lengths))
    learn("tags given", lambda: _supervised(train, k, d))
    progress.close()
    common = np.bincount(train.tags, minlength=k).argmax()
    floor = (float(np.mean(test.tags == common)),) * 2
    unigram = float(np.exp(-np.mean(np.log(usual[test.words]))))
    rows.append(["most frequent tag, unigram", *floor, unigram, 0.0, ""])
    claims = [
        Claim(
            "states by moments + EM tell the tag better than the most frequent tag does, one to one",
            f"{scores['moments + EM'][1]:.1%} against {floor[1]:.1%}",
            scores["moments + EM"][1] > floor[1],
        ),
        Claim(
            "held-out perplexity of moments + EM below the unigram model's",
            f"{scores['moments + EM'][2]:.1f} against {unigram:.1f}",
            scores["moments + EM"][2] < unigram,
        ),
        Claim(
            "and at most that of EM from a random start",
            f"{scores['moments + EM'][2]:.1f} against {scores['EM, random start'][2]:.1f}",
            scores["moments + EM"][2] <= scores["EM, random start"][2],
        ),
    ]
    columns = ["", "many to one", "one to one", "perplexity", "s (with compilation)", "status"]
    return Report(columns, rows, claims, {"words": num_words, "states": k})
