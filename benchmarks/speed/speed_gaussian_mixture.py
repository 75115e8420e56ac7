"""Gaussian mixtures: `fit` and `refine` against scikit-learn's EM with ten starts.

Claims, n = 100,000, d = 50, k = 10, unit variance, centres N(0, 1), equal weights: `fit` is at least 50 times faster
than `GaussianMixture(covariance_type="spherical", n_init=10)` with a mean RMSE at most 1.3 times its; `fit` and
`refine` together are at least 15 times faster with a mean RMSE at most 1.01 times its. One process, warm; every call
includes the checks of its input. (scikit-learn estimates a variance for each component; the data have one.)
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.runner import BenchmarkError, Claim, Options, Report, measure
from latensor.decompose import matched_rmse
from latensor.models import gaussian_mixture
from latensor.models.gaussian_mixture import GaussianMixture


def run(options: Options) -> Report:
    """Fit random mixtures by all three."""
    try:
        from sklearn.mixture import GaussianMixture as Peer
    except ImportError:
        raise BenchmarkError("needs scikit-learn: pip install -e '.[bench,peers]'") from None
    n, d, k = (5_000, 20, 4) if options.quick else (100_000, 50, 10)
    trials = options.trials or (2 if options.quick else 5)
    times, errors, compile_times = np.zeros((trials, 3)), np.zeros((trials, 3)), []
    for trial in tqdm(range(trials), desc="mixtures"):
        key_means, key_x, key_fit = jax.random.split(jax.random.fold_in(jax.random.key(6), trial), 3)
        means = jax.random.normal(key_means, (d, k))
        x = gaussian_mixture.sample(key_x, GaussianMixture(jnp.full(k, 1 / k), means, jnp.array(1.0)), n).x
        moments_time, moments = measure(partial(gaussian_mixture.fit, key_fit, x, k))
        refine_time, refined = measure(partial(gaussian_mixture.refine, moments.params, x))
        data = np.asarray(x)
        start = time.perf_counter()
        peer = Peer(k, covariance_type="spherical", n_init=10, random_state=trial).fit(data)
        peer_time = time.perf_counter() - start
        times[trial] = moments_time.warm, moments_time.warm + refine_time.warm, peer_time
        estimates = (moments.params.means, refined.params.means, jnp.asarray(peer.means_.T, x.dtype))
        errors[trial] = [float(matched_rmse(means, estimate)) for estimate in estimates]
        compile_times.append(moments_time.first - moments_time.warm)
    mean_times, mean_errors = times.mean(axis=0), errors.mean(axis=0)
    speed = mean_times[2] / mean_times
    worse = mean_errors / mean_errors[2]
    names = ("fit", "fit, then refine", "scikit-learn, 10 starts")
    rows = [
        [name, float(1e3 * mean_times[i]), float(speed[i]), float(mean_errors[i]), float(worse[i])]
        for i, name in enumerate(names)
    ]
    claims = [
        Claim("fit: at least 50 times faster", f"{speed[0]:.0f} times", bool(speed[0] >= 50)),
        Claim("fit: mean RMSE at most 1.3 times scikit-learn's", f"{worse[0]:.3f} times", bool(worse[0] <= 1.3)),
        Claim("fit and refine: at least 15 times faster", f"{speed[1]:.0f} times", bool(speed[1] >= 15)),
        Claim("fit and refine: mean RMSE at most 1.01 times", f"{worse[1]:.4f} times", bool(worse[1] <= 1.01)),
    ]
    record = {"seconds": times, "rmse": errors, "compile_seconds": compile_times[0]}
    return Report(["", "ms", "times faster", "mean RMSE", "of scikit-learn's"], rows, claims, record)
