"""How much longer than an estimate its errors take: the delta method, and the bootstrap.

Claims, in times of one `fit`, one process, warm. Covariance of all 2,020 parameters of a Gaussian mixture (d = 200,
k = 10, n = 20,000): at most 20, in less than 2 GB of memory. 200 bootstrap replicates (d = 50, k = 5, n = 20,000) of
Gaussian mixtures, complete and with 30 % of all entries missing, and of naive Bayes: at most 100 each. The product
`ΦᵀΦ` of the moments of the rows, which the covariance cannot do without, is timed beside.
"""

import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from tqdm import tqdm

from benchmarks.runner import Claim, Options, Report, Timing, measure
from latensor.base import matmul
from latensor.inference import bootstrap, covariance, standard_errors
from latensor.models import gaussian_mixture, naive_bayes
from latensor.models.gaussian_mixture import GaussianMixture


def _mixture(n: int, d: int, k: int) -> Any:
    means = 1.5 * jax.random.normal(jax.random.key(0), (d, k))
    truth = GaussianMixture(jnp.full(k, 1 / k), means, jnp.array(1.0))
    return gaussian_mixture.sample(jax.random.key(1), truth, n).x


def _documents(n: int, d: int, k: int) -> Any:
    words = jax.random.dirichlet(jax.random.key(0), jnp.full(d, 0.3), (k,)).T
    truth = naive_bayes.NaiveBayes(jnp.full(k, 1 / k), words)
    return naive_bayes.sample(jax.random.key(1), truth, n, length=20).x


def _alternate(one: Callable[[], Any], other: Callable[[], Any]) -> tuple[Timing, Timing]:
    """Time two functions, the second between two measurements of the first, of which the faster counts."""
    before, _ = measure(one)
    timed, _ = measure(other, repeats=3)
    after, _ = measure(one)
    return Timing(before.first, min(before.warm, after.warm)), timed


def run(options: Options) -> Report:
    """Time estimates and their errors."""
    n, d, k = (2_000, 20, 3) if options.quick else (20_000, 200, 10)
    replicates = 20 if options.quick else 200
    key, rows, ratios = jax.random.key(3), [], {}
    x = _mixture(n, d, k)
    estimate = gaussian_mixture.fit(key, x, k)
    fit = partial(gaussian_mixture.fit, key, x, k)
    for verb in (covariance, standard_errors):
        one, timed = _alternate(fit, partial(verb, gaussian_mixture, estimate, x, key=key, allow_unconverged=True))
        ratios[verb.__name__] = timed.warm / one.warm
        rows.append([f"{verb.__name__}, d = {d}, k = {k}", one.warm, timed.warm, timed.warm / one.warm, timed.first])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    size = d + d * (k - 1) + 1 + k * (k + 1) * (k + 2) // 6 + k
    moments = jax.random.normal(key, (n, size))
    product, _ = measure(partial(jax.jit(lambda rows: matmul(rows.T, rows)), moments))
    rows.append([f"ΦᵀΦ alone, {size:,} moments", one.warm, product.warm, product.warm / one.warm, product.first])
    d, k = (10, 3) if options.quick else (50, 5)
    x = _mixture(n, d, k)
    mask = jax.random.bernoulli(jax.random.key(2), 0.7, x.shape)
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "gaussian_mixture": (gaussian_mixture, x, {}),
        "gaussian_mixture, 30 % missing": (gaussian_mixture, x, {"mask": mask}),
        "naive_bayes": (naive_bayes, _documents(n, d, k), {}),
    }
    for name, (model, data, keywords) in tqdm(cases.items(), desc="bootstrap"):
        estimate = model.fit(key, data, k, **keywords)
        one, timed = _alternate(
            partial(model.fit, key, data, k, **keywords),
            partial(bootstrap, key, model, estimate, data, replicates, allow_unconverged=True, **keywords),
        )
        ratios[name] = timed.warm / one.warm
        rows.append([f"bootstrap, {name}, d = {d}", one.warm, timed.warm, timed.warm / one.warm, timed.first])
    claims = [
        Claim("covariance: at most 20 fits", f"{ratios['covariance']:.1f}", ratios["covariance"] <= 20),
        Claim("its process takes less than 2 GB in all", f"{memory:.2f} GB", memory < 2),
        *(
            Claim(f"{replicates} replicates, {name}: at most 100 fits", f"{ratios[name]:.0f}", ratios[name] <= 100)
            for name in cases
        ),
    ]
    return Report(["", "fit (s)", "errors (s)", "times", "first call (s)"], rows, claims, {"ratios": ratios})
