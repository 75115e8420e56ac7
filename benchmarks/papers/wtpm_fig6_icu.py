"""Figure 6 of the paper on partial data: held-out likelihood of a Gaussian mixture on intensive-care records.

PhysioNet 2012 in place of the paper's MIMIC-III: 8,000 stays, 32 columns, 23 % missing and not independently. Columns
that are there in 95 % of the rows count as complete; k = 6; 20 splits with a fifth held out, all in one `vmap` (a split
is a choice of row weights). Measured: the log-likelihood of held-out rows on the complete columns, and the status of
every fit; beside the three methods one component (k = 1), and EM from the weighted method (`refine`, on all columns).

Claims of the paper: the weighted method is better than the partial one and as good as the full one. Claims of ours:
six components are better than one; no fit that is worse than one component is called CONVERGED. Methods are compared by
their differences on the same splits, with standard errors of the mean; splits share rows, so these are a little small.

Why: every component has a variance of its own here, and the few nearly complete columns that the likelihood is
measured on already tell the components apart: there is nothing left to gain from the others.
"""

import csv
import gzip
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm import tqdm

from benchmarks.partial_data import LOOKS, METHODS
from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report
from latensor.decompose import Status
from latensor.models import gaussian_mixture
from latensor.models.gaussian_mixture import GaussianMixture
from latensor.moments import Table, observation_rates

_ROWS = (*METHODS, "weighted + refine", "one component")
_COMPONENTS, _COMPLETE_RATE, _HELD_OUT = 6, 0.95, 0.2
# fmt: off
_COLUMNS = [
    "BUN_first", "Creatinine_first", "HCT_first", "GCS_median", "HR_median",
    "Platelets_first", "Temp_median", "HCO3_first", "Na_first", "K_first",
    "WBC_first", "Mg_first", "Glucose_median", "NISysABP_median", "NIDiasABP_median",
    "NIMAP_median", "pH_first", "PaCO2_first", "PaO2_first", "MAP_median",
    "DiasABP_median", "SysABP_first", "FiO2_first", "Weight_first", "Lactate_first",
    "SaO2_median", "AST_first", "ALT_first", "Bilirubin_first", "ALP_first",
    "Albumin_first", "RespRate_median",
]
# fmt: on
# Right-skewed: their logarithms are nearer to a normal distribution.
_SKEWED = ("AST", "ALT", "ALP", "Bilirubin", "Creatinine", "BUN", "WBC", "Lactate", "Glucose")
_LARGEST = 4.0


def _read(path: Path) -> np.ndarray:
    with gzip.open(path, "rt", newline="") as file:
        return np.array(
            [[float(row[name]) if row[name] else np.nan for name in _COLUMNS] for row in csv.DictReader(file)]
        )


def robust_table(options: Options) -> np.ndarray:
    """Return the table, columns on one robust scale (median 0, quartiles as a standard normal's), outliers drawn in."""
    names = [f"physionet2012/PhysionetChallenge2012-set-{part}.csv.gz" for part in "ab"]
    x = np.concatenate([_read(options.data_file(name)) for name in names])
    x = x[~np.all(np.isnan(x), axis=1)]
    for i, name in enumerate(_COLUMNS):
        if name.startswith(_SKEWED):
            x[:, i] = np.log(np.maximum(x[:, i], 0.1))
    low, middle, high = np.nanpercentile(x, [25, 50, 75], axis=0)
    width = np.where(high > low, (high - low) / 1.349, np.nanstd(x, axis=0))
    return np.clip((x - middle) / width, -_LARGEST, _LARGEST).astype(np.float32)


class _Outcome(NamedTuple):
    """The mean log-likelihood of held-out rows, and the status of what it was computed with."""

    score: Any
    status: Any


def _score(params: GaussianMixture, x: Array, seen: Array, train: Array) -> Array:
    values = gaussian_mixture.log_likelihood(params, x, mask=seen)
    return jnp.sum((1 - train) * values) / jnp.sum(1 - train)


@partial(jax.jit, static_argnames="third")
def _fit(
    key: Array, x: Array, mask: Array, train: Array, complete: Array, third: Any
) -> tuple[GaussianMixture, _Outcome]:
    """Fit one split by the three methods."""
    table = Table(x, mask, train)
    rates = observation_rates(table)
    weights = jnp.stack([rates, jnp.ones_like(rates), complete.astype(rates.dtype)])

    def one(weights: Array) -> tuple[GaussianMixture, _Outcome]:
        fit = gaussian_mixture.fit(key, table, _COMPONENTS, weights=weights, third=third, complete_rate=_COMPLETE_RATE)
        return fit.params, _Outcome(_score(fit.params, x, mask & complete[None, :], train), fit.status)

    return jax.vmap(one)(weights)


@partial(jax.jit, static_argnames="third")
def _fit_one(key: Array, x: Array, mask: Array, train: Array, complete: Array, third: Any) -> _Outcome:
    """Fit one component, which is the same by all three methods."""
    fit = gaussian_mixture.fit(key, Table(x, mask, train), 1, third=third, complete_rate=_COMPLETE_RATE)
    return _Outcome(_score(fit.params, x, mask & complete[None, :], train), fit.status)


@jax.jit
def _refine(params: GaussianMixture, x: Array, mask: Array, train: Array, complete: Array) -> _Outcome:
    refined = gaussian_mixture.refine(params, x, mask=mask, row_weights=train)
    return _Outcome(_score(refined.params, x, mask & complete[None, :], train), refined.status)


def _all_outcomes(keys: Array, x: Array, mask: Array, train: Array, complete: Array, third: Any) -> _Outcome:
    """Return scores and statuses `(splits, rows of the table)`."""
    over_splits = partial(jax.vmap, in_axes=(0, None, None, 0, None))
    params, methods = over_splits(partial(_fit, third=third))(keys, x, mask, train, complete)
    weighted = jax.tree.map(lambda leaf: leaf[:, 0], params)
    refined = over_splits(_refine)(weighted, x, mask, train, complete)
    single = over_splits(partial(_fit_one, third=third))(keys, x, mask, train, complete)
    parts = zip(methods, refined, single, strict=True)
    return _Outcome(*(np.concatenate([a, b[:, None], c[:, None]], axis=1) for a, b, c in parts))


def _count(statuses: np.ndarray) -> str:
    counts = Counter(Status(int(value)).name for value in statuses)
    return ", ".join(f"{number} {name}" for name, number in counts.most_common())


class _Difference(NamedTuple):
    """How much better one row is than another, on average over the same splits."""

    mean: float
    error: float
    text: str


def _compare(values: np.ndarray, first: str, second: str) -> _Difference:
    apart = values[:, _ROWS.index(first)] - values[:, _ROWS.index(second)]
    mean, error = float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(len(apart)))
    wins = int(np.sum(apart > 0))
    return _Difference(mean, error, f"{mean:+.4f} ± {error:.4f} a row; better in {wins} of {len(apart)} splits")


def _claims(values: np.ndarray, statuses: np.ndarray) -> list[Claim]:
    part, full = _compare(values, "weighted", "partial"), _compare(values, "weighted", "full")
    one, refined = _compare(values, "weighted", "one component"), _compare(values, "weighted + refine", "one component")
    single = values[:, _ROWS.index("one component")]
    worse = values[:, :3] < single[:, None]
    false = worse & (statuses[:, :3] == Status.CONVERGED)
    return [
        Claim("weighted is above partial by two standard errors (the paper)", part.text, part.mean > 2 * part.error),
        Claim("weighted is not below full by two standard errors", full.text, full.mean > -2 * full.error),
        Claim(
            f"k = {_COMPONENTS} by moments is above k = 1 by two standard errors", one.text, one.mean > 2 * one.error
        ),
        Claim(f"and k = {_COMPONENTS} with refine", refined.text, refined.mean > 2 * refined.error),
        Claim(
            "no fit that is worse than one component is called CONVERGED",
            f"{int(false.sum())}; {int(worse.sum())} of {worse.size} fits are worse",
            not false.any(),
        ),
    ]


def run(options: Options) -> Report:
    """Run all splits, by available-case and by implicit moments."""
    x = jnp.asarray(robust_table(options))
    if options.quick:
        x = x[:1_000]
    mask = ~jnp.isnan(x)
    splits = options.trials or (3 if options.quick else 20)
    complete = observation_rates(Table(x, mask)) >= _COMPLETE_RATE
    key_split, key_fit = jax.random.split(jax.random.key(6))
    n = x.shape[0]
    order = jax.vmap(lambda key: jax.random.permutation(key, n))(jax.random.split(key_split, splits))
    train = (order >= int(_HELD_OUT * n)).astype(x.dtype)
    keys = jax.random.split(key_fit, splits)
    outcomes = {
        third: _all_outcomes(keys, x, mask, train, complete, third)
        for third in tqdm(("available",) if options.quick else ("available", "implicit"), desc="kinds of moments")
    }
    rows = [
        [third, name, float(values[:, m].mean()), float(values[:, m].std(ddof=1)), _count(statuses[:, m])]
        for third, (values, statuses) in outcomes.items()
        for m, name in enumerate(_ROWS)
    ]
    data = {
        "methods": _ROWS,
        "log_likelihoods": {third: values for third, (values, _) in outcomes.items()},
        "statuses": {third: statuses for third, (_, statuses) in outcomes.items()},
        "rows": n,
        "complete": int(complete.sum()),
    }
    columns = ["third moments", "method", "held-out log-likelihood", "deviation over splits", "status"]
    title = f"PhysioNet 2012, {data['complete']} complete columns of {x.shape[1]}, {splits} splits"
    picture = _draw(np.asarray(outcomes["available"].score), title)
    return Report(columns, rows, _claims(*outcomes["available"]), data, picture)


def _draw(values: np.ndarray, title: str) -> Any:
    made, (axis,) = figure(1, (5.2, 3.3))
    shown = ("one component", "full", "partial", "weighted", "weighted + refine")
    boxes = axis.boxplot([values[:, _ROWS.index(name)] for name in shown], patch_artist=True, widths=0.5)
    for box, name in zip(boxes["boxes"], shown, strict=True):
        box.set_facecolor(LOOKS[name][0] if name in LOOKS else COLOURS["grey"])
    axis.set_xticks(range(1, len(shown) + 1), ["k = 1", *shown[1:-1], "refine"])
    axis.set(ylabel="held-out log-likelihood a row", title=title)
    return made
