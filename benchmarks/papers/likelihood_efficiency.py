"""Lemmas 3 to 5 of Chaganty & Liang: the efficiency of the pseudoinverse, closed form against simulation.

A hidden variable with k values is seen through one with d values, `μ = O z`. From n = 10,000 draws of `μ` its marginals
are estimated by the pseudoinverse and by the composite likelihood, 10,000 times; the covariances of both give the
efficiency `tr(Σ^cl (Σ^pi)⁻¹)/(k − 1)`. Settings: random conditionals; `d = k` (Lemma 4: one); uniform `μ` (Lemma 5), at
random and with `|1_U|² = k − 1`, which the paper takes for the worst case (it is not: see `uniform_efficiency`). All in
float64. The pseudoinverse is that of the reduced problem, as in the lemmas.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.runner import Claim, Options, Report, double_precision
from latensor.decompose import composite_likelihood_em, relative_efficiency, uniform_efficiency
from latensor.decompose.internal import marginal_variances, reduced_pseudoinverse


class _Setting(NamedTuple):
    name: str
    conditionals: np.ndarray
    marginals: np.ndarray
    expected: float
    """The lemma's value, or NaN where only Lemma 3 applies."""


def _uniform(rng: np.random.Generator, d: int, k: int) -> np.ndarray:
    """Return random conditionals whose equal mixture is uniform: scaled until rows and columns have equal sums."""
    table = rng.gamma(0.7, size=(d, k))
    for _ in range(2000):
        table = table / table.sum(axis=0, keepdims=True)
        table = table / table.sum(axis=1, keepdims=True) * k / d
    return table


def _worst(d: int, k: int) -> np.ndarray:
    """Return conditionals with a uniform mixture and `|1_U|² = k − 1`: `Õ` spans the first `k − 1` coordinates.

    Every column but the last has more than its share of a symbol of its own, which the last column has less of; the
    last symbol evens that out.
    """
    table = np.full((d, k), 1 / d)
    for h in range(k - 1):
        table[[h, d - 1], h] += np.array([0.7, -0.7]) / d
        table[[h, d - 1], k - 1] += np.array([-0.7, 0.7]) / d
    return table


def _settings() -> list[_Setting]:
    rng = np.random.default_rng(45)
    settings = []
    for k, d in ((2, 5), (3, 10), (4, 12)):
        marginals = rng.dirichlet(np.full(k, 20.0))
        settings.append(_Setting(f"random, k = {k}, d = {d}", rng.dirichlet(np.ones(d), k).T, marginals, np.nan))
    for k in (2, 4):
        marginals = rng.dirichlet(np.full(k, 20.0))
        settings.append(_Setting(f"Lemma 4, k = d = {k}", rng.dirichlet(np.full(k, 0.5), k).T, marginals, 1.0))
    for k, d in ((2, 8), (3, 12)):
        table = _uniform(rng, d, k)
        settings.append(
            _Setting(
                f"Lemma 5, k = {k}, d = {d}", table, np.full(k, 1 / k), float(uniform_efficiency(jnp.array(table)))
            )
        )
    for k, d in ((2, 8), (2, 40), (3, 12)):
        expected = 1 - (1 - 1 / (1 + d - k)) / k
        settings.append(_Setting(f"worst, k = {k}, d = {d}", _worst(d, k), np.full(k, 1 / k), expected))
    return settings


@jax.jit
@jax.vmap
def _likelihood(frequencies: jax.Array, conditionals: jax.Array) -> jax.Array:
    return composite_likelihood_em(frequencies, (conditionals,), tol=1e-10).table


def run(options: Options) -> Report:
    """Simulate every setting."""
    trials = options.trials or (1_000 if options.quick else 10_000)
    n = 10_000
    rows, ratios, lemma = [], [], []
    with double_precision():
        for index, setting in enumerate(tqdm(_settings(), desc="settings")):
            rng = np.random.default_rng([5, index])
            table, z = jnp.asarray(setting.conditionals), jnp.asarray(setting.marginals)
            frequencies = jnp.asarray(rng.multinomial(n, np.asarray(table @ z), trials) / n)
            linear = jax.vmap(lambda mu, table=table: reduced_pseudoinverse(mu, table))(frequencies)
            likely = _likelihood(frequencies, jnp.broadcast_to(table, (trials, *table.shape)))
            covariances = [np.atleast_2d(n * np.cov(np.asarray(estimates)[:, :-1].T)) for estimates in (linear, likely)]
            simulated = np.trace(np.linalg.solve(*covariances)) / (table.shape[1] - 1)
            closed = float(relative_efficiency(table, z))
            exact = marginal_variances(table, z)
            scales = [
                np.trace(covariance) / np.trace(np.asarray(form))
                for covariance, form in zip(covariances, exact, strict=True)
            ]
            ratios.append(simulated / closed)
            if np.isfinite(setting.expected):
                lemma.append(abs(closed - setting.expected))
            rows.append([setting.name, closed, float(setting.expected), simulated, *map(float, scales)])
    worst = max(abs(ratio - 1) for ratio in ratios)
    claims = [
        Claim(
            "simulated efficiencies equal the closed form within 5 %", f"largest deviation {worst:.1%}", worst <= 0.05
        ),
        Claim("Lemmas 4 and 5 are Lemma 3's special cases", f"largest difference {max(lemma):.1e}", max(lemma) < 1e-6),
    ]
    columns = ["setting", "closed form", "lemma 4, 5", "simulated", "Σ^pi sim/closed", "Σ^cl sim/closed"]
    return Report(columns, rows, claims, {"ratios": ratios, "draws": n, "trials": trials})
