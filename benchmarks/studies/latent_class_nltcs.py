"""Disability of the elderly (NLTCS) in latent classes: moments, EM, random starts, and mixed membership.

16,181 people answered 16 yes-or-no questions; 3,236 others are held out. k = 1 to 6 classes: the log-likelihood per
person of `fit`, of `refine` from there, and of EM from ten random starts (probabilities of yes between 0.2 and 0.8), of
which the likeliest for the training people is taken; all by maximum likelihood in double precision, at most 500 steps.
BIC is that of `refine`, with 17 k − 1 parameters. Beside them stands the held-out likelihood of mixed membership with
as many components, that of `mixed_membership_nltcs`. The picture shows the classes for k = 4; the files do not name the
items, whose order we take to be the reverse of the usual one.

Claims (ours):

- for each k, `refine` from `fit` gives the training people the likelihood of the best of ten random starts, or at most
  1e-4 nats per person less;
- `fit` alone, with a status of CONVERGED, gives held-out people a higher likelihood than one class, for each k ≥ 2.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks import nltcs
from benchmarks.nltcs import Answers
from benchmarks.plotting import figure
from benchmarks.runner import Claim, Options, Report, double_precision
from latensor.decompose import Status
from latensor.models import latent_class
from latensor.models.latent_class import LatentClass

_MAX_ITERS, _SHOWN = 500, 4


class _Outcome(NamedTuple):
    """One number of classes; log-likelihoods are per person."""

    k: int
    params: LatentClass
    """By `fit` and `refine`."""
    train: tuple[float, ...]
    """Of `fit`, `refine`, and the best of ten random starts."""
    test: tuple[float, ...]
    ends: int
    """How many of the random starts end within 1e-3 nats of the best."""
    steps: int
    status: str
    seconds: tuple[float, float]
    """Of `fit` and `refine`, and of the random starts, compilation included."""


def _score(params: LatentClass, x: np.ndarray) -> float:
    return float(jnp.mean(latent_class.log_likelihood(params, x, variables=nltcs.NLTCS_VARIABLES)))


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = jax.block_until_ready(function())
    return result, time.perf_counter() - start


def _classes(answers: Answers, k: int) -> _Outcome:
    key_fit, key_random = jax.random.split(jax.random.fold_in(jax.random.key(16), k))
    given: dict[str, Any] = {"variables": nltcs.NLTCS_VARIABLES}

    def ours() -> tuple[Any, Any]:
        fit = latent_class.fit(key_fit, answers.train, k, **given)
        return fit, latent_class.refine(fit.params, answers.train, max_iters=_MAX_ITERS, **given)

    (fit, refined), seconds = _timed(ours)
    best, more_seconds = _timed(lambda: nltcs.random_latent_class(key_random, answers, k, pseudo_count=0.0))
    models = (fit.params, refined.params, best.params)
    scores = [tuple(_score(params, part) for params in models) for part in (answers.train, answers.test)]
    ends = int(np.sum(best.values >= best.train - 1e-3))
    status, steps = Status(int(fit.status)).name, int(refined.num_iters)
    return _Outcome(k, refined.params, scores[0], scores[1], ends, steps, status, (seconds, more_seconds))


def run(options: Options) -> Report:
    """Fit latent classes for every k."""
    answers = nltcs.read_nltcs(options)
    components = (1, 2) if options.quick else (1, 2, 3, 4, 5, 6)
    with double_precision():
        outcomes = [_classes(answers, k) for k in tqdm(components, desc="classes")]
    membership = {1: float("nan")}
    for k in tqdm(() if options.quick else components[1:], desc="mixed membership"):
        # The keys of `mixed_membership_nltcs`.
        key_fit, key_score, _ = jax.random.split(jax.random.fold_in(jax.random.key(8), k), 3)
        membership[k] = nltcs.fit_membership(key_fit, key_score, answers, k).value
    rows = [_row(outcome, len(answers.train), membership.get(outcome.k, float("nan"))) for outcome in outcomes]
    columns = ["k", "train: fit", "refine", "random", "test: fit", "refine", "random", "mixed membership", "BIC"]
    columns += ["random near best", "steps", "status of fit", "s", "s random"]
    shown = outcomes[min(_SHOWN, len(outcomes)) - 1]
    named = [f"{name}{'' if columns.index(name) == i else ' held out'}" for i, name in enumerate(columns)]
    return Report(named, rows, _claims(outcomes), {"people": len(answers.train)}, _picture(shown))


def _row(outcome: _Outcome, people: int, membership: float) -> list[Any]:
    parameters = latent_class.num_parameters(outcome.params, variables=nltcs.NLTCS_VARIABLES)
    bic = -2 * people * outcome.train[1] + parameters * float(np.log(people))
    values = [f"{value:.4f}" for value in (*outcome.train, *outcome.test, membership)]
    ending = [f"{outcome.ends} of 10", outcome.steps, outcome.status, *outcome.seconds]
    return [outcome.k, *values, f"{bic:,.0f}", *ending]


def _claims(outcomes: list[_Outcome]) -> list[Claim]:
    gaps = {outcome.k: outcome.train[1] - outcome.train[2] for outcome in outcomes}
    alone = {outcome.k: outcome.test[0] - outcomes[0].test[0] for outcome in outcomes[1:]}
    ends = {outcome.status for outcome in outcomes[1:]}
    return [
        Claim(
            "refine from fit is at most 1e-4 nats per person below the best of ten random starts, for each k",
            ", ".join(f"k = {k}: {gap:+.5f}" for k, gap in gaps.items()),
            all(gap >= -1e-4 for gap in gaps.values()),
        ),
        Claim(
            "fit alone is CONVERGED, and likelier than one class for held-out people, for each k",
            ", ".join(f"k = {k}: {gain:+.3f}" for k, gain in alone.items()) + f"; {', '.join(sorted(ends))}",
            ends == {"CONVERGED"} and all(gain > 0 for gain in alone.values()),
        ),
    ]


def _picture(outcome: _Outcome) -> Any:
    """Show the probability of needing help with each item, in each class."""
    made, (axis,) = figure(1, (3.6, 4.4))
    order = np.argsort(-np.asarray(outcome.params.weights))
    yes = np.asarray(outcome.params.tables)[1::2][:, order]
    image = axis.imshow(yes, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axis.set(yticks=range(nltcs.NUM_ITEMS), yticklabels=nltcs.ITEMS, title="P(yes | class), NLTCS")
    names = [f"{100 * weight:.0f} %" for weight in np.asarray(outcome.params.weights)[order]]
    axis.set(xticks=range(outcome.k), xticklabels=names, xlabel="share of the people")
    for (row, column), value in np.ndenumerate(yes):
        colour = "white" if value > 0.6 else "black"
        axis.text(column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
    made.colorbar(image, ax=axis, shrink=0.6)
    return made
