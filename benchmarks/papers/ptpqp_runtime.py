"""Run time of partitioned factorization: 1,000 variables against the paper's algorithm in NumPy, one after another.

p = 1,000 variables of 4 categories, n = 1,000 samples, k = 4, 8, 12, 30 to 200 partitions. Ours is `fit`, warm, checks
of the input included; the other side is Algorithm 1 of the paper in plain NumPy on the same partitions, one after the
other, from one random start each to our objective (within 0.1 %, or 2,000 sweeps), matched by Procrustes; its moments
are counted too. One process. Neither side is polished; `fit` with polishing, its default, has rows of its own.

Claims: with 100 partitions `fit` is at least 20 times faster at an RMSE that is no worse. Its time falls with every
step from 30 to 200 partitions (the paper: 3.5, 4 and 5 minutes with 100 on a laptop of 2013, less with more), and its
RMSE, a mean of five draws, rises with every step, since small tensors are noisier. From p = 1,000 to 4,000 at one
partition size its time grows at most 4.5 times, in less than 3 GB.
"""

import time
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.membership_data import (
    ALPHA,
    CATEGORIES,
    draw_samples,
    draw_tables,
    factorize,
    match_procrustes,
    normalize,
    sub_tensor,
)
from benchmarks.plotting import COLOURS, figure, plot_spread
from benchmarks.runner import Claim, Options, Report, measure, peak_gigabytes
from latensor.decompose import matched_rmse, partition_variables, partitioned_nonnegative_cp
from latensor.models import mixed_membership
from latensor.moments import categorical_variables

_MAX_SWEEPS = 2_000
_NUMBERS, _DRAWS = (30, 40, 50, 100, 200), 5
# As near as this to our objective counts as there.
_NEAR = 1.001


def _fit(x: Any, k: int, num_partitions: int, polish: int) -> Any:
    return mixed_membership.fit(
        jax.random.key(0),
        x,
        k,
        concentration=ALPHA * k,
        num_partitions=num_partitions,
        variables=categorical_variables(x.shape[1], CATEGORIES),
        polish=polish,
    )


class _Partition(NamedTuple):
    """The variables of a partition's three modes, and the objective that our factorization of it reaches."""

    modes: list[np.ndarray]
    objective: float


def _partitions(x: np.ndarray, k: int, num_partitions: int, anchors: Any) -> list[_Partition]:
    """Return what the other side is to match, partition by partition; not timed."""
    made = partition_variables((CATEGORIES,) * x.shape[1], num_partitions, anchors)
    rows = [np.asarray(r) for r in made.rows]
    tensors = np.zeros((num_partitions, *(r.shape[1] for r in rows)), np.float32)
    modes = [[r[part][r[part] >= 0][::CATEGORIES] // CATEGORIES for r in rows] for part in range(num_partitions)]
    for part, mode in enumerate(modes):
        tensor = sub_tensor(x, mode, ALPHA * k)
        tensors[part, : tensor.shape[0], : tensor.shape[1], : tensor.shape[2]] = tensor
    cp = partitioned_nonnegative_cp(jax.random.key(0), jnp.asarray(tensors), made.is_anchor, k)
    return [_Partition(mode, float(value)) for mode, value in zip(modes, cp.unexplained, strict=True)]


def _serial(x: np.ndarray, k: int, partitions: list[_Partition], num_anchors: list[int]) -> tuple[float, Any, float]:
    """Return seconds, tables and mean sweeps of the paper's algorithm, partition after partition."""
    rng = np.random.default_rng(0)
    num_rows = x.shape[1] * CATEGORIES
    tables, counts, sweeps = np.zeros((num_rows, k)), np.zeros((num_rows, 1)), []
    reference = None
    start = time.perf_counter()
    for modes, objective in tqdm(partitions, desc=f"k = {k}, NumPy", leave=False):
        tensor = sub_tensor(x, modes, ALPHA * k)
        factors, taken = factorize(rng, tensor, k, _NEAR * objective, _MAX_SWEEPS)
        sweeps.append(taken)
        factors = [normalize(factor) for factor in factors]
        stacked = np.concatenate([f[: CATEGORIES * q] for f, q in zip(factors, num_anchors, strict=True)])
        reference = stacked if reference is None else reference
        order = match_procrustes(reference, stacked)
        for factor, mode in zip(factors, modes, strict=True):
            place = (mode[:, None] * CATEGORIES + np.arange(CATEGORIES)).reshape(-1)
            tables[place] += factor[:, order]
            counts[place] += 1
    return time.perf_counter() - start, tables / counts, float(np.mean(sweeps))


def _row(name: str, tables: np.ndarray, parts: int, timing: Any, fit: Any) -> list[Any]:
    error = float(matched_rmse(jnp.asarray(tables), fit.params.tables))
    p, k = tables.shape[0] // CATEGORIES, tables.shape[1]
    return [name, p, k, parts, timing.warm, timing.first - timing.warm, int(fit.num_iters), error]


def _against_numpy(p: int, n: int, k: int, parts: int) -> tuple[list[list[Any]], Claim]:
    """Compare `fit` and the paper's algorithm on one table."""
    rng = np.random.default_rng([2, k])
    tables = draw_tables(rng, p, k)
    x = draw_samples(rng, tables, n)
    plain, polished = (
        _row(name, tables, parts, *measure(partial(_fit, jnp.asarray(x), k, parts, polish), repeats=3))
        for name, polish in (("fit, not polished", 0), ("fit", 1))
    )
    anchors = [np.asarray(group) for group in _fit(jnp.asarray(x), k, parts, 0).diagnostics.anchors]
    partitions = _partitions(x, k, parts, anchors)
    seconds, theirs, sweeps = _serial(x, k, partitions, [len(group) for group in anchors])
    their_error = float(matched_rmse(jnp.asarray(tables), jnp.asarray(theirs, jnp.float32)))
    ratio = seconds / plain[4]
    claim = Claim(
        f"k = {k}, {parts} partitions, neither polished: fit at least 20 times faster, RMSE no worse",
        f"{ratio:.0f} times, RMSE {plain[7]:.4f} against {their_error:.4f}; polished {polished[7]:.4f}, "
        f"{seconds / polished[4]:.0f} times",
        bool(ratio >= 20 and plain[7] <= their_error),
    )
    return [plain, polished, ["NumPy, Algorithm 1", p, k, parts, seconds, 0.0, round(sweeps), their_error]], claim


def _over_partitions(p: int, n: int, numbers: tuple[int, ...]) -> tuple[list[list[Any]], np.ndarray, np.ndarray]:
    """Return rows, seconds `(numbers,)` and errors `(numbers, draws)` of `fit` without polishing, k = 8."""
    draws = []
    for draw in range(_DRAWS):
        rng = np.random.default_rng([3, 8, draw])
        tables = draw_tables(rng, p, 8)
        draws.append((tables, jnp.asarray(draw_samples(rng, tables, n))))
    rows, seconds, errors = [], np.zeros(len(numbers)), np.zeros((len(numbers), _DRAWS))
    for i, parts in enumerate(tqdm(numbers, desc="numbers of partitions")):
        timing, fit = measure(partial(_fit, draws[0][1], 8, parts, 0), repeats=5)
        seconds[i] = timing.warm
        for j, (tables, x) in enumerate(draws):
            errors[i, j] = matched_rmse(jnp.asarray(tables), _fit(x, 8, parts, 0).params.tables)
        row = _row(f"fit, not polished, mean RMSE of {_DRAWS} draws", draws[0][0], parts, timing, fit)
        rows.append([*row[:-1], float(errors[i].mean())])
    return rows, seconds, errors


def _partition_claims(numbers: tuple[int, ...], seconds: np.ndarray, errors: np.ndarray) -> list[Claim]:
    steps = np.diff(errors, axis=0)
    deviation = steps.std(axis=1, ddof=1) / np.sqrt(_DRAWS)
    names = [f"{a} → {b}" for a, b in pairwise(numbers)]
    return [
        Claim(
            f"p = 1,000, k = 8: time falls with every step from {numbers[0]} to {numbers[-1]} partitions (the paper)",
            " → ".join(f"{value:.2f}" for value in seconds) + " s",
            bool(np.all(np.diff(seconds) < 0)),
        ),
        Claim(
            "and the mean RMSE rises",
            "; ".join(f"{a}: {b:+.5f} ± {c:.5f}" for a, b, c in zip(names, steps.mean(axis=1), deviation, strict=True))
            + f"; from {errors[0].mean():.4f} to {errors[-1].mean():.4f}",
            bool(np.all(steps.mean(axis=1) > 0)),
        ),
    ]


def _growth(p: int, n: int, parts: int) -> tuple[list[list[Any]], float]:
    """Return rows of p, 2p and 4p variables, and how many times longer the last one takes."""
    rng = np.random.default_rng([3, 8])
    tables = draw_tables(rng, 4 * p, 8)
    x = jnp.asarray(draw_samples(rng, tables, n))
    rows = []
    for times in (1, 2, 4):
        timing, fit = measure(partial(_fit, x[:, : times * p], 8, times * parts, 1), repeats=3)
        rows.append(_row("fit", tables[: times * p * CATEGORIES], times * parts, timing, fit))
    return rows, rows[-1][4] / rows[0][4]


def run(options: Options) -> Report:
    """Compare for several k, then for several numbers of partitions, then let p grow."""
    p, n, parts = (60, 200, 4) if options.quick else (1_000, 1_000, 100)
    rows: list[list[Any]] = []
    claims: list[Claim] = []
    for k in (4,) if options.quick else (4, 8, 12):
        compared, claim = _against_numpy(p, n, k, parts)
        rows += compared
        claims.append(claim)
    columns = ["", "p", "k", "partitions", "s", "s to compile", "sweeps", "RMSE"]
    if options.quick:
        return Report(columns, rows, claims)
    swept, seconds, errors = _over_partitions(p, n, _NUMBERS)
    grown, times = _growth(p, n, parts)
    peak = peak_gigabytes()
    claims += _partition_claims(_NUMBERS, seconds, errors)
    claims.append(Claim("p = 1,000 to 4,000: at most 4.5 times slower", f"{times:.2f} times", bool(times <= 4.5)))
    claims.append(Claim("peak memory of the whole process below 3 GB", f"{peak:.2f} GB", bool(peak < 3)))
    data = {"numbers": _NUMBERS, "seconds": seconds, "errors": errors, "growth": times, "peak_gigabytes": peak}
    return Report(columns, [*rows, *swept, *grown], claims, data, _draw(seconds, errors))


def _draw(seconds: np.ndarray, errors: np.ndarray) -> Any:
    made, (left, right) = figure(2, (7.6, 3.0))
    left.plot(_NUMBERS, seconds, color=COLOURS["blue"], marker="o", markersize=3)
    left.set(xlabel="partitions", ylabel="seconds, warm", ylim=(0, None), title="time of fit, not polished")
    plot_spread(right, _NUMBERS, errors, color=COLOURS["blue"])
    right.set(xlabel="partitions", ylabel="RMSE", title=f"error, mean of {_DRAWS} draws with standard errors")
    made.suptitle("p = 1,000 variables, n = 1,000 samples, k = 8", fontsize=10)
    return made
