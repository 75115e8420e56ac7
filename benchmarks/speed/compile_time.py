"""First calls: how long the default `fit` of each model takes in a fresh process, nearly all of it compilation.

Claims: the first call of `mixed_membership` and `hidden_markov` takes at most half, that of the others at most 0.8
of what it took when `fit` was one big jitted function; and a second `fit` at another number of rows takes at most a
third of the first, because stages whose shapes do not depend on n are compiled once. The first `fit` of latent classes,
of a crowd, and of a directed 2 × 2 grid of hidden variables takes at most 10 s, and another graph of the same shapes a
third of it.

Every model runs in a process of its own, without a compilation cache. Run it on a quiet machine.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np

from benchmarks.runner import BenchmarkError, Claim, Options, Report
from latensor.models import (
    crowd,
    gamma_poisson,
    gaussian_mixture,
    graphical,
    hidden_markov,
    latent_class,
    mixed_membership,
    naive_bayes,
)
from latensor.moments import categorical_variables

# Seconds of the first call before `fit` was split into stages, on two cores; the limit as a share of that.
_BEFORE = {
    "mixed_membership": (16.2, 0.5),
    "hidden_markov": (9.6, 0.5),
    "gaussian_mixture": (3.6, 0.8),
    "gamma_poisson": (3.0, 0.8),
    "naive_bayes": (2.1, 0.8),
}
# Limits of the first call of models that were never one function, in seconds. The graph is the directed 2 × 2 grid of
# Chaganty and Liang (2014), figure 1.
_LIMITS = {"graphical": 10.0, "latent_class": 10.0, "crowd": 10.0}
_THIRD = 1 / 3


def _documents(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    words = rng.dirichlet(np.full(d, 0.3), k)
    return np.stack([rng.multinomial(40, words[h]) for h in rng.integers(k, size=n)]).astype(np.float32)


def _counts(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    topics = rng.dirichlet(np.full(d, 0.3), k)
    return rng.poisson(rng.gamma(0.5, 40.0, (n, k)) @ topics).astype(np.float32)


def _points(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    means = 2 * rng.normal(size=(k, d))
    return (means[rng.integers(k, size=n)] + rng.normal(size=(n, d))).astype(np.float32)


def _codes(rng: np.random.Generator, n: int, p: int, k: int) -> np.ndarray:
    tables = np.cumsum(rng.dirichlet(np.full(4, 0.5), (p, k)), axis=2)
    membership = rng.dirichlet(np.full(k, 0.2), n)
    component = (rng.random((n, p, 1)) > np.cumsum(membership, axis=1)[:, None, :-1]).sum(axis=2)
    return (rng.random((n, p, 1)) > tables[np.arange(p)[None, :], component][:, :, :-1]).sum(axis=2).astype(np.int32)


def _symbols(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    emission = np.cumsum(rng.dirichlet(np.full(d, 0.3), k), axis=1)
    transition = np.cumsum(0.5 * np.eye(k) + 0.5 * rng.dirichlet(np.ones(k), k), axis=1)
    states = np.zeros(n, int)
    for t, uniform in enumerate(rng.random(n - 1), 1):
        states[t] = min(np.searchsorted(transition[states[t - 1]], uniform), k - 1)
    return (rng.random((n, 1)) > emission[states][:, :-1]).sum(axis=1).astype(np.int32)


def _labels(rng: np.random.Generator, n: int, workers: int, k: int) -> np.ndarray:
    truth, worker = rng.integers(k, size=n), rng.random((n, workers)).argsort(axis=1)[:, :5]
    label = np.where(rng.random(worker.shape) < 0.7, truth[:, None], rng.integers(k, size=worker.shape))
    item = np.broadcast_to(np.arange(n)[:, None], worker.shape)
    return np.stack([item, worker, label], axis=2).reshape(-1, 3).astype(np.int32)


def _workload(name: str, quick: bool) -> tuple[np.ndarray, Any]:
    """Return data, and the call to time."""
    rng, key = np.random.default_rng(0), jax.random.key(0)
    shrink = 10 if quick else 1
    if name == "mixed_membership":
        variables = categorical_variables(60, 4)
        return _codes(rng, 5_000 // shrink, 60, 5), lambda x: mixed_membership.fit(
            key, x, 5, variables=variables, concentration=1.0
        )
    if name == "hidden_markov":
        x = _symbols(rng, 200_000 // shrink, 20, 5)
        return x, lambda x: hidden_markov.fit(key, x, 5, num_symbols=20)
    if name == "gaussian_mixture":
        return _points(rng, 100_000 // shrink, 50, 10), lambda x: gaussian_mixture.fit(key, x, 10)
    if name == "gamma_poisson":
        return _counts(rng, 20_000 // shrink, 50, 5), lambda x: gamma_poisson.fit(key, x, 5)
    if name == "latent_class":
        variables = categorical_variables(20, 4)
        return _codes(rng, 5_000 // shrink, 20, 4), lambda x: latent_class.fit(key, x, 4, variables=variables)
    if name == "crowd":
        return _labels(rng, 2_000 // shrink, 30, 3), lambda x: crowd.fit(key, x, 3, num_items=2_000, num_workers=30)
    if name == "graphical":
        return _codes(rng, 100_000 // shrink, 8, 2), lambda x: graphical.fit(key, x, _grid("h"))
    return _documents(rng, 20_000 // shrink, 100, 5), lambda x: naive_bayes.fit(key, x, 5)


def _grid(letter: str) -> graphical.Graph:
    """Return the directed grid of figure 1 of Chaganty and Liang (2014), its hidden variables named by a letter."""
    parents = {f"{letter}1": [], f"{letter}2": [f"{letter}1"], f"{letter}3": [f"{letter}1"]}
    parents[f"{letter}4"] = [f"{letter}3", f"{letter}2"]
    hidden = list(parents)
    parents |= {f"{name}.{leaf}": [name] for name in hidden for leaf in "ab"}
    return graphical.directed(parents, {name: 2 if name in hidden else 4 for name in parents}, hidden)


def time_here(name: str, quick: bool) -> dict[str, float]:
    """Time the first call, a second one at another n, and a warm one, in this process."""
    x, fit = _workload(name, quick)
    seconds = {}
    for label, part in (("first", x), ("other_n", x[: -(len(x) // 10)]), ("warm", x)):
        start = time.perf_counter()
        jax.block_until_ready(fit(part))
        seconds[label] = time.perf_counter() - start
    if name == "graphical":
        start = time.perf_counter()
        jax.block_until_ready(graphical.fit(jax.random.key(0), x, _grid("g")))
        seconds["other_graph"] = time.perf_counter() - start
    return seconds


def _time_apart(name: str, quick: bool) -> dict[str, float]:
    code = f"import json; from {__name__} import time_here; print(json.dumps(time_here({name!r}, {quick})))"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    if result.returncode:
        raise BenchmarkError(f"the process of {name} failed: {result.stderr.strip().splitlines()[-1]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def run(options: Options) -> Report:
    """Time every model in a process of its own; the smallest of three."""
    rows: list[list[Any]] = []
    claims, data = [], {}
    for name in (*_BEFORE, *_LIMITS):
        runs = [_time_apart(name, options.quick) for _ in range(1 if options.quick else options.trials or 3)]
        seconds = {label: min(run[label] for run in runs) for label in runs[0]}
        before, limit = _BEFORE[name] if name in _BEFORE else (_LIMITS[name], 1.0)
        share, second = seconds["first"] / before, seconds["other_n"] / seconds["first"]
        rows.append([name, before, seconds["first"], share, seconds["other_n"], second, seconds["warm"]])
        claims.append(
            Claim(f"{name}: the first call takes at most {limit:g} of {before:g} s", f"{share:.2f}", share <= limit)
        )
        claims.append(Claim(f"{name}: another n takes at most a third", f"{second:.2f}", second <= _THIRD))
        if "other_graph" in seconds:
            other = seconds["other_graph"] / seconds["first"]
            claims.append(Claim(f"{name}: another graph takes at most a third", f"{other:.2f}", other <= _THIRD))
        data[name] = runs
    columns = ["model", "before (s)", "first (s)", "share", "another n (s)", "share of first", "warm (s)"]
    return Report(columns, rows, claims, {"runs": data})
