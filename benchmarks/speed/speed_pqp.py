"""Accelerated against plain PQP: time to the objective that 5,000 plain sweeps reach.

50 noisy tensors 32×32×32, k = 10, noise so that 10 to 50 % of the entries are negative; both from the same random
start. Claim: the accelerated method comes within 1e-4 of the plain objective in at most a tenth of the time that the
plain method itself needs for that, in the median; a tensor on which it never does (another local optimum) counts as
infinite. One process, warm, after `block_until_ready`.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.runner import Claim, Options, Report, measure
from latensor.decompose import nonnegative_cp

_SIZE, _RANK, _CATEGORIES = 32, 10, 4


def _tensor(rng: np.random.Generator, negative: float) -> np.ndarray:
    """Return a tensor of probability tables with noise that makes a share of its entries negative."""
    shape = (_SIZE // _CATEGORIES, _RANK)
    factors = [
        rng.dirichlet([0.5] * _CATEGORIES, size=shape).transpose(0, 2, 1).reshape(_SIZE, _RANK) for _ in range(3)
    ]
    clean = np.einsum("h,ih,jh,lh->ijl", rng.dirichlet([1.0] * _RANK), *factors)
    noise = rng.normal(size=clean.shape)
    low, high = 0.0, 1e3 * clean.max()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(clean + middle * noise < 0) < negative else (low, middle)
    return (clean + high * noise).astype(np.float32)


def _run(tensor: Any, accelerate: bool, max_iters: int) -> Any:
    return nonnegative_cp(
        jax.random.key(0), tensor, _RANK, accelerate=accelerate, tol=-1.0, max_iters=jnp.int32(max_iters)
    )


def _needed(tensor: Any, accelerate: bool, target: float, first: int, most: int) -> int | None:
    """Return the fewest sweeps, of a list that grows by a quarter, that reach the target."""
    sweeps = first
    while float(_run(tensor, accelerate, sweeps).unexplained) ** 2 > target:
        if sweeps >= most:
            return None
        sweeps = min(most, 5 * math.ceil(1.25 * sweeps / 5))
    return sweeps


def run(options: Options) -> Report:
    """Measure both on every tensor."""
    count = options.trials or (4 if options.quick else 50)
    longest = 500 if options.quick else 5_000
    rng = np.random.default_rng(4)
    shares = np.linspace(0.1, 0.45, count)
    ratios, rows = [], []
    for share in tqdm(shares, desc="tensors"):
        tensor = jnp.asarray(_tensor(rng, share))
        target = float(_run(tensor, False, longest).unexplained) ** 2 * (1 + 1e-4)
        plain, fast = (
            _needed(tensor, False, target, longest // 10, longest),
            _needed(tensor, True, target, 5, longest // 5),
        )
        plain_time = measure(partial(_run, tensor, False, plain or longest), repeats=1)[0].warm
        fast_time = measure(partial(_run, tensor, True, fast), repeats=3)[0].warm if fast else np.inf
        ratios.append(fast_time / plain_time)
        rows.append([f"{share:.0%}", plain, fast, 1e3 * plain_time, 1e3 * fast_time, float(ratios[-1])])
    median, reached = float(np.median(ratios)), int(np.isfinite(ratios).sum())
    claim = Claim(
        "accelerated PQP needs at most a tenth of the time, in the median",
        f"{median:.4f} of the time ({1 / median:.0f} times faster); reached on {reached} of {count} tensors",
        bool(median <= 0.1),
    )
    columns = ["negative", "plain sweeps", "accelerated sweeps", "plain ms", "accelerated ms", "ratio"]
    return Report(columns, rows, [claim], {"ratios": ratios})
