"""Variational inference, importance sampling and EM of Gaussians: how near they are to what the arithmetic takes.

Each time is divided by that of the arithmetic that cannot be avoided, written plainly, on the same arrays in the same
process; float32, warm. Claims:

- `mixed_membership.posterior` (5,000 rows, 60 variables of 4 categories, k = 5): every row is finished within 100
  steps, 99.9 % of the rows are within 1e-4 of the optimum in float64 (in units of the row's sum), and all of it takes
  no longer than 200 plain updates of all rows;
- `gamma_poisson.refine` (20,000 × 50, k = 5) ends at a bound no lower than that of float64 with a tolerance of 1e-9, by
  more than 1e-4 of it; a step takes no longer than 12 times two products and a division of the table;
- `gamma_poisson.log_likelihood` (the same, 200 draws) takes no longer than 4 times one product and one logarithm of the
  table per draw; and its standard error is that of repetition: over 30 runs the spread is 0.8 to 1.25 times what is
  claimed, in the median of the rows;
- a step of `gaussian_mixture.refine` (n = 100,000, d = 50, k = 10, spherical) takes no longer than twice its two
  products and one exponential, with a log-likelihood within 1e-6, relative, of that in float64.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.runner import Claim, Options, Report, double_precision, measure
from latensor.models import gamma_poisson, gaussian_mixture, mixed_membership
from latensor.models.gamma_poisson import GammaPoisson
from latensor.models.gaussian_mixture import GaussianMixture
from latensor.models.gaussian_mixture.em import em_step, prepare, variance_floor
from latensor.models.mixed_membership import MixedMembership
from latensor.moments import Table, categorical_variables

Part = tuple[list[list[Any]], list[Claim]]


def _double(tree: Any) -> Any:
    """Return floating arrays in float64."""
    return jax.tree.map(lambda a: a.astype(jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)


def _repeat(step: Any, times: int) -> Any:
    """Return a compiled loop of a step: the time of one, without that of calling it."""
    return jax.jit(lambda state, *rest: lax.fori_loop(0, times, lambda _, s: step(s, *rest), state))


def _memberships(quick: bool) -> Part:
    n, p, k, size = (500 if quick else 5_000), 60, 5, 4
    rng, variables = np.random.default_rng(1), categorical_variables(p, size)
    tables = np.vstack([rng.dirichlet(np.full(size, 0.5), k).T for _ in range(p)])
    params = MixedMembership(jnp.linspace(0.3, 0.9, k), jnp.asarray(tables, jnp.float32))
    x = mixed_membership.sample(jax.random.key(1), params, n, variables=variables).x
    timing, result = measure(partial(mixed_membership.posterior_memberships, params, x, variables=variables))
    few = mixed_membership.posterior_memberships(params, x, variables=variables, max_iters=100)
    finished = bool(jnp.all(few.concentration == result.concentration))
    with double_precision():
        double = mixed_membership.posterior_memberships(_double(params), x, variables=variables, tol=1e-12)
        exact = np.asarray(double.concentration)
        error = np.abs(np.asarray(result.concentration) - exact).max(axis=1) / exact.sum(axis=1)
    likelihoods = jnp.moveaxis(params.tables[variables.offsets[:-1][None, :] + x], -1, 0)

    def update(weights: jax.Array, likelihoods: jax.Array) -> jax.Array:
        mixed = sum((likelihoods[h] * weights[h][:, None] for h in range(k)), start=jnp.zeros((n, p)))
        return weights * jnp.matmul(likelihoods / mixed[None], jnp.ones(p)) / p

    unit, _ = measure(partial(_repeat(update, 20), jnp.ones((k, n)), likelihoods))
    ratio, high = timing.warm / (unit.warm / 20), float(np.quantile(error, 0.999))
    rows = [["mixed_membership.posterior", 1e3 * timing.warm, 1e3 * unit.warm / 20, ratio, high]]
    return rows, [
        Claim("posterior: every row is finished within 100 steps", str(finished), finished),
        Claim("99.9 % of the rows within 1e-4 of float64", f"{high:.1e}; the worst {error.max():.1e}", high <= 1e-4),
        Claim("in at most 200 plain updates", f"{ratio:.0f}", ratio <= 200),
    ]


def _topics(quick: bool) -> Part:
    n, d, k, draws = (1_000 if quick else 20_000), 50, 5, 200
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(d, 0.2), k).T
    truth = GammaPoisson(jnp.asarray(topics, jnp.float32), jnp.linspace(0.3, 1.5, k), jnp.array(0.05))
    mixed = 0.8 * topics + 0.2 * rng.dirichlet(np.ones(d), k).T
    start = GammaPoisson(jnp.asarray(mixed, jnp.float32), jnp.ones(k), jnp.array(0.1))
    x = gamma_poisson.sample(jax.random.key(2), truth, n).x
    refining, refined = measure(partial(gamma_poisson.refine, start, x), 3)
    with double_precision():
        best = gamma_poisson.refine(*_double((start, x)), tol=1e-9, max_iters=1_000)
    bound = float(best.log_likelihood)
    short = (bound - float(refined.log_likelihood)) / abs(bound)

    def products(intensity: jax.Array, x: jax.Array, topics: jax.Array) -> jax.Array:
        return jnp.matmul(x / jnp.matmul(intensity, topics.T), topics)

    def logarithm(total: jax.Array, x: jax.Array, topics: jax.Array) -> jax.Array:
        means = jnp.matmul(total[:, None] * 1e-9 + jnp.ones((1, k)), topics.T)
        return jnp.matmul(x * jnp.log(means), jnp.ones(d))

    product, _ = measure(partial(_repeat(products, 20), jnp.ones((n, k)), x, truth.topics))
    log, _ = measure(partial(_repeat(logarithm, 20), jnp.ones(n), x, truth.topics))
    step = refining.warm / (int(refined.num_iters) + 1)
    estimate = partial(gamma_poisson.estimate_log_likelihood, params=truth)
    sampling, _ = measure(partial(estimate, jax.random.key(3), x=x), 3)
    runs = [estimate(key, x=x[:1_000]) for key in jax.random.split(jax.random.key(4), 30)]
    spread = np.std([run.value for run in runs], axis=0, ddof=1)
    honest = float(np.median(spread / np.mean([run.standard_error for run in runs], axis=0)))
    ratios = step / (product.warm / 20), sampling.warm / (draws * log.warm / 20)
    rows = [
        ["gamma_poisson.refine, a step", 1e3 * step, 1e3 * product.warm / 20, ratios[0], short],
        ["gamma_poisson.log_likelihood", 1e3 * sampling.warm, 1e3 * draws * log.warm / 20, ratios[1], honest],
    ]
    return rows, [
        Claim("refine: a bound at most 1e-4 below that of float64", f"{short:+.1e}", short <= 1e-4),
        Claim("a step in at most 12 times two products and a division", f"{ratios[0]:.1f}", ratios[0] <= 12),
        Claim("log_likelihood: at most 4 times a product and a logarithm", f"{ratios[1]:.2f}", ratios[1] <= 4),
        Claim("with a spread of 0.8 to 1.25 standard errors", f"{honest:.2f}", 0.8 <= honest <= 1.25),
    ]


def _gaussians(quick: bool) -> Part:
    n, d, k = (5_000 if quick else 100_000), 50, 10
    key_means, key_x, key_start = jax.random.split(jax.random.key(6), 3)
    means = jax.random.normal(key_means, (d, k))
    x = gaussian_mixture.sample(key_x, GaussianMixture(jnp.full(k, 1 / k), means, jnp.ones(k)), n).x
    start = GaussianMixture(jnp.full(k, 1 / k), means + 0.5 * jax.random.normal(key_start, (d, k)), jnp.ones(k))
    data = prepare(start, Table(x))
    step = jax.jit(lambda params, data: em_step(params, data, variance_floor(params, data.floor)))
    timing, after = measure(partial(step, start, data), 20)
    with double_precision():
        exact = float(jnp.mean(gaussian_mixture.log_likelihood(*_double((start, x)))))

    def plain(x: jax.Array, means: jax.Array) -> jax.Array:
        return jnp.matmul(jnp.exp(jnp.matmul(x, means) * 1e-2).T, x)

    unit, _ = measure(partial(jax.jit(plain), x, means), 20)
    ratio, error = timing.warm / unit.warm, abs(float(after.objective) / exact - 1)
    rows = [["gaussian_mixture.refine, a step", 1e3 * timing.warm, 1e3 * unit.warm, ratio, error]]
    return rows, [
        Claim("Gaussians: a step in at most twice its products and exponential", f"{ratio:.2f}", ratio <= 2),
        Claim("with a log-likelihood within 1e-6 of float64", f"{error:.1e}", error <= 1e-6),
    ]


def run(options: Options) -> Report:
    """Time all of them beside their arithmetic."""
    rows: list[list[Any]] = []
    claims: list[Claim] = []
    for part in (_memberships, _topics, _gaussians):
        more_rows, more_claims = part(options.quick)
        rows, claims = rows + more_rows, claims + more_claims
    return Report(["", "ms", "arithmetic, ms", "ratio", "accuracy (see the claims)"], rows, claims)
