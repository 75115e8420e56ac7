"""Gaussian mixtures by moments where it used to fail: centred columns, and clusters of different spread.

k = 4, n = 20,000, 20 random models each, `fit` alone, with even weights and with weights from Dir(2). *Centred*:
d = 10, means N(0, 1), variance 1/2 for all, columns less their mean. *Unequal*: d = 30, means N(0, 9), standard
deviations 0.3, 1, 2 and 3; *with holes*: 30 % of ten of the dimensions missing. Claims, for even weights: a median RMSE
of at most 0.02, 0.035 and 0.06. Beside it, `shared=True`, one variance for all.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm import tqdm

from benchmarks.runner import Claim, Options, Report
from latensor.decompose import matched_rmse
from latensor.models import gaussian_mixture
from latensor.models.gaussian_mixture import GaussianMixture

_COMPONENTS = 4
# Name: dimensions, scale of the means, variances, share of holes in the last ten dimensions, limit of the claim.
_SETTINGS = {
    "centred": (10, 1.0, (0.5, 0.5, 0.5, 0.5), 0.0, 0.02),
    "unequal": (30, 3.0, (0.09, 1.0, 4.0, 9.0), 0.0, 0.035),
    "unequal, with holes": (30, 3.0, (0.09, 1.0, 4.0, 9.0), 0.3, 0.06),
}


@partial(jax.jit, static_argnames=("setting", "num_samples", "even"))
def _errors(key: Array, setting: str, num_samples: int, even: bool) -> tuple[Array, Array, Array]:
    """Return the errors of the means, with own variances and with one for all, and of the standard deviations."""
    d, scale, variances, holes, _ = _SETTINGS[setting]
    key_weights, key_means, key_x, key_mask, key_fit = jax.random.split(key, 5)
    drawn = jax.random.dirichlet(key_weights, jnp.full(_COMPONENTS, 2.0))
    weights = jnp.full(_COMPONENTS, 1 / _COMPONENTS) if even else drawn
    means = scale * jax.random.normal(key_means, (d, _COMPONENTS))
    x = gaussian_mixture.sample(key_x, GaussianMixture(weights, means, jnp.asarray(variances)), num_samples).x
    overall = jnp.mean(x, axis=0)
    rates = jnp.where(jnp.arange(d) < d - 10, 1.0, 1 - holes)
    mask = jax.random.bernoulli(key_mask, rates, x.shape) if holes else None
    own, shared = (
        gaussian_mixture.fit(key_fit, x - overall, _COMPONENTS, mask=mask, shared=shared).params
        for shared in (False, True)
    )
    truth = means - overall[:, None]
    deviations = jnp.sort(jnp.sqrt(own.variance)) - jnp.sort(jnp.sqrt(jnp.asarray(variances)))
    return matched_rmse(truth, own.means), matched_rmse(truth, shared.means), jnp.max(jnp.abs(deviations))


def run(options: Options) -> Report:
    """Fit all models."""
    trials = options.trials or (3 if options.quick else 20)
    n = 2_000 if options.quick else 20_000
    rows, claims, record = [], [], {}
    for setting in tqdm(_SETTINGS, desc="settings"):
        for even in (True, False):
            keys = jax.random.split(jax.random.key(12), trials)
            errors = np.asarray([_errors(key, setting, n, even) for key in keys])
            own, shared, deviations = np.median(errors, axis=0)
            rows.append([setting, "even" if even else "Dir(2)", float(own), float(shared), float(deviations)])
            record[f"{setting}, {'even' if even else 'Dir(2)'}"] = errors
            if even:
                limit = _SETTINGS[setting][-1]
                claims.append(
                    Claim(
                        f"{setting}: median RMSE at most {limit}",
                        f"{own:.4f} ({shared:.4f} with one variance)",
                        bool(own <= limit),
                    )
                )
    return Report(["setting", "weights", "RMSE", "one variance for all", "standard deviations"], rows, claims, record)
