"""The contracted third cumulant against one `x @ W`, and against the dense tensor.

Claims, n = 20,000, d = 2,000, k = 10: `contract_third_cumulant` takes at most 3 times one `x @ W` with `W (2000, 10)`,
and at most 8 times under a mask; `gaussian_mixture.fit` with a mask at n = 20,000, d = 5,000, k = 10 runs in under 4 GB
in all. Beside it, at n = 20,000, d = 100: the implicit form against the dense tensor, both masked.
"""

import jax
import jax.numpy as jnp
from tqdm import tqdm

from benchmarks.runner import Claim, Options, Report, measure, peak_gigabytes
from latensor.decompose import Status, matched_rmse
from latensor.models import gaussian_mixture
from latensor.models.gaussian_mixture import GaussianMixture
from latensor.moments import Table, contract_third_cumulant, cumulants
from latensor.moments.internal import contract_third

_RATE = 0.6


def _large_fit(n: int, d: int, k: int) -> tuple[float, float, str, float]:
    """Fit a masked table; return compile and warm seconds, the status and the error of the means."""
    key_means, key_x, key_mask, key_fit = jax.random.split(jax.random.key(1), 4)
    truth = GaussianMixture(jnp.full(k, 1 / k), jax.random.normal(key_means, (d, k)), jnp.array(1.0))
    x = gaussian_mixture.sample(key_x, truth, n).x
    # In pieces of columns: the random numbers of the whole mask would be as large as the table.
    pieces = 10
    keys = jax.random.split(key_mask, pieces)
    mask = jnp.concatenate([jax.random.bernoulli(key, _RATE, (n, d // pieces)) for key in keys], axis=1)
    timing, result = measure(lambda: gaussian_mixture.fit(key_fit, x, k, mask=mask), 1)
    error = float(matched_rmse(truth.means, result.params.means))
    return timing.first - timing.warm, timing.warm, Status(int(result.status)).name, error


def run(options: Options) -> Report:
    """Time the contractions, then fit the large table."""
    n, d, small, large, k = (2_000, 400, 30, 600, 5) if options.quick else (20_000, 2_000, 100, 5_000, 10)
    key_x, key_w, key_mask = jax.random.split(jax.random.key(0), 3)
    with tqdm(total=4, desc="measuring") as progress:
        # The large fit first: the peak of memory is that of the whole process.
        compile_time, warm, status, error = _large_fit(n, large, k)
        peak = peak_gigabytes()
        progress.update()
        x = jax.random.normal(key_x, (n, d))
        directions = jax.random.normal(key_w, (d, k)) / d**0.5
        mask = jax.random.bernoulli(key_mask, _RATE, x.shape)
        table = Table(x, mask)
        one_pass = jax.jit(jnp.matmul)
        before, _ = measure(lambda: one_pass(x, directions), 25)
        complete, _ = measure(lambda: contract_third_cumulant(x, directions), 25)
        progress.update()
        masked, _ = measure(lambda: contract_third_cumulant(table, directions), 25)
        after, _ = measure(lambda: one_pass(x, directions), 25)
        unit = (before.warm + after.warm) / 2
        progress.update()
        few, few_directions = Table(x[:, :small], mask[:, :small]), directions[:small]
        implicit, _ = measure(lambda: contract_third_cumulant(few, few_directions), 9)
        dense, _ = measure(lambda: contract_third(cumulants(few).third, few_directions), 3)
        progress.update()
    rows = [
        [f"x @ W, d = {d}", 1e3 * unit, 1.0],
        ["contract_third_cumulant", 1e3 * complete.warm, complete.warm / unit],
        ["contract_third_cumulant, masked", 1e3 * masked.warm, masked.warm / unit],
        [f"implicit, masked, d = {small}", 1e3 * implicit.warm, ""],
        [
            f"dense available-case, masked, d = {small}",
            1e3 * dense.warm,
            f"{dense.warm / implicit.warm:.0f} x implicit",
        ],
        [f"gaussian_mixture.fit, masked, d = {large}", 1e3 * warm, f"{status}, RMSE {error:.3f}"],
    ]
    claims = [
        Claim("complete: at most 3 times one x @ W", f"{complete.warm / unit:.2f}", complete.warm <= 3 * unit),
        Claim("masked: at most 8 times one x @ W", f"{masked.warm / unit:.2f}", masked.warm <= 8 * unit),
        Claim(
            f"masked fit at n = {n:,}, d = {large:,}, k = {k}: under 4 GB in all (data, Python, JAX, compilation)",
            f"peak {peak:.2f} GB; {warm:.1f} s warm, {compile_time:.1f} s to compile",
            peak < 4,
        ),
    ]
    return Report(["", "ms", "times x @ W"], rows, claims)
