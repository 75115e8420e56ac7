"""Latent classes against StepMix: likelihood and time of `fit` and `refine` beside its best of ten random starts.

20 random models, each with k = 4 classes (weights from Dirichlet(5)) and 20 columns of 4 categories (Dirichlet(1)), and
5,000 samples of each; the same again with 20 % of the entries missing at random, where StepMix measures by
"categorical_nan". `StepMix(n_init=10)`, everything else by default. Ours is `fit` and `refine` with one key and their
defaults, in double precision, as StepMix computes. StepMix gets one BLAS thread: with more, its small products wait for
each other, up to 20 times longer on a busy machine. Seconds are also measured as processor time, all threads together,
which does not depend on what else the machine does; a claim about speed needs both.

Claims (ours), with and without holes:

- the mean log-likelihood is at least StepMix's, within 1e-5 relative, for at least 19 of 20 models;
- `fit` and `refine`, checks of the input included, take at most a fiftieth of the time of those ten starts: over all
  models together, warm, in one process, by the clock and in processor time.
"""

import contextlib
import io
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.runner import BenchmarkError, Claim, Options, Report, Timing, double_precision, measure
from latensor.decompose import Status
from latensor.models import latent_class
from latensor.moments import categorical_variables

_CATEGORIES, _COLUMNS, _CLASSES, _STARTS = 4, 20, 4, 10
_REPEATS = 5
_VARIABLES = categorical_variables(_COLUMNS, _CATEGORIES)


class _Data(NamedTuple):
    codes: np.ndarray
    mask: np.ndarray | None


class _Outcome(NamedTuple):
    """One model: what both sides reach, and their time in seconds."""

    ours: float
    theirs: float
    fit: Timing
    refine: Timing
    peer_seconds: float
    processor: tuple[float, float]
    """Processor time of ours and theirs, in seconds."""
    steps: int
    peer_steps: int
    """Of the best of its starts."""
    status: str

    @property
    def gain(self) -> float:
        return (self.ours - self.theirs) / abs(self.theirs)

    @property
    def seconds(self) -> float:
        return self.fit.warm + self.refine.warm


def _draw(seed: int, n: int, holes: float) -> _Data:
    rng = np.random.default_rng([14, seed])
    weights = rng.dirichlet(np.full(_CLASSES, 5.0))
    tables = rng.dirichlet(np.ones(_CATEGORIES), (_COLUMNS, _CLASSES))
    hidden = rng.choice(_CLASSES, n, p=weights)
    ladder = np.cumsum(tables, axis=2)[np.arange(_COLUMNS)[None, :], hidden[:, None]]
    codes = np.sum(rng.random((n, _COLUMNS, 1)) > ladder[:, :, :-1], axis=2)
    return _Data(codes, rng.random((n, _COLUMNS)) >= holes if holes else None)


def _peer(peer_type: Callable[..., Any], data: _Data, seed: int) -> tuple[float, float, float, int]:
    """Return seconds by the clock and the processor, the mean log-likelihood, and the steps of the best start."""
    from threadpoolctl import threadpool_limits

    x = data.codes if data.mask is None else np.where(data.mask, data.codes, np.nan)
    measurement = "categorical" if data.mask is None else "categorical_nan"
    peer = peer_type(n_components=_CLASSES, measurement=measurement, n_init=_STARTS, random_state=seed, progress_bar=0)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), threadpool_limits(1):
        warnings.simplefilter("ignore")
        start, processor = time.perf_counter(), time.process_time()
        peer.fit(x)
        seconds, busy = time.perf_counter() - start, time.process_time() - processor
        return seconds, busy, float(peer.score(x)), int(peer.n_iter_)


def _compare(peer_type: Callable[..., Any], seed: int, n: int, holes: float) -> _Outcome:
    data = _draw(seed, n, holes)
    given: dict[str, Any] = {"variables": _VARIABLES, "mask": data.mask}
    key = jax.random.key(seed)

    def both() -> Any:
        return latent_class.refine(latent_class.fit(key, data.codes, _CLASSES, **given).params, data.codes, **given)

    timing, fit = measure(lambda: latent_class.fit(key, data.codes, _CLASSES, **given), _REPEATS)
    after, refined = measure(lambda: latent_class.refine(fit.params, data.codes, **given), _REPEATS)
    start = time.process_time()
    for _ in range(_REPEATS):
        jax.block_until_ready(both())
    busy = (time.process_time() - start) / _REPEATS
    ours = float(jnp.mean(latent_class.log_likelihood(refined.params, data.codes, **given)))
    seconds, peer_busy, theirs, peer_steps = _peer(peer_type, data, seed)
    status = Status(int(fit.status)).name
    return _Outcome(ours, theirs, timing, after, seconds, (busy, peer_busy), int(refined.num_iters), peer_steps, status)


def _claims(outcomes: list[_Outcome], label: str) -> list[Claim]:
    reached = sum(outcome.gain >= -1e-5 for outcome in outcomes)
    needed = -(-19 * len(outcomes) // 20)
    gains = [outcome.gain for outcome in outcomes]
    ours, theirs = sum(outcome.seconds for outcome in outcomes), sum(outcome.peer_seconds for outcome in outcomes)
    ratios = [outcome.peer_seconds / outcome.seconds for outcome in outcomes]
    busy, peer_busy = np.sum([outcome.processor for outcome in outcomes], axis=0)
    return [
        Claim(
            f"{label}: StepMix's log-likelihood, within 1e-5, for at least {needed} of {len(outcomes)} models",
            f"for {reached}; relative difference {min(gains):+.1e} to {max(gains):+.1e}",
            reached >= needed,
        ),
        Claim(
            f"{label}: at least 50 times faster than its ten starts",
            f"{theirs / ours:.0f} times ({min(ratios):.0f} to {max(ratios):.0f}), {peer_busy / busy:.0f} in processor "
            f"time; {ours / len(outcomes):.3f} against {theirs / len(outcomes):.2f} s per model",
            bool(theirs >= 50 * ours and peer_busy >= 50 * busy),
        ),
    ]


def run(options: Options) -> Report:
    """Fit the same tables by both."""
    try:
        from stepmix.stepmix import StepMix
    except ImportError:
        raise BenchmarkError("needs stepmix: pip install -e '.[bench,peers]'") from None
    trials = options.trials or (1 if options.quick else 20)
    n = 500 if options.quick else 5_000
    rows: list[list[Any]] = []
    claims: list[Claim] = []
    compile_seconds = {}
    with double_precision():
        for holes in (0.0, 0.2):
            label = f"{holes:.0%} holes" if holes else "no holes"
            outcomes = [_compare(StepMix, seed, n, holes) for seed in tqdm(range(trials), desc=label)]
            first = outcomes[0]
            compile_seconds[label] = first.fit.first - first.fit.warm + first.refine.first - first.refine.warm
            rows += [_row(f"{label}, model {seed}", outcome) for seed, outcome in enumerate(outcomes)]
            claims += _claims(outcomes, label)
    columns = ["", "fit ms", "refine ms", "StepMix ms", "times faster", "log-likelihood", "StepMix's", "gain"]
    data = {"compile_seconds": compile_seconds, "samples": n}
    return Report([*columns, "EM steps", "its steps", "status of fit"], rows, claims, data)


def _row(label: str, outcome: _Outcome) -> list[Any]:
    return [
        label,
        *(1e3 * seconds for seconds in (outcome.fit.warm, outcome.refine.warm, outcome.peer_seconds)),
        outcome.peer_seconds / outcome.seconds,
        *(f"{value:.6f}" for value in (outcome.ours, outcome.theirs)),
        f"{outcome.gain:+.1e}",
        outcome.steps,
        outcome.peer_steps,
        outcome.status,
    ]
