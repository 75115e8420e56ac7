"""Naive Bayes `fit` against one pass `x @ W` over the data, and its memory.

Claim: at n = 100,000 documents, d = 1,000 words, k = 10 topics `fit`, checks of the input included, takes at most 25
times one `x @ W` with `W (1000, 10)`, both warm, in one process; its peak memory is below the data plus 1 GB.

One pass is the limit of any method that looks at the data. `fit` makes about a dozen: one for the checks, one for the
lengths and the diagonal, two for each product with the second moment (four or so), two for the third moment.
"""

from functools import partial

import jax
import jax.numpy as jnp
from tqdm import tqdm

from benchmarks.runner import Claim, Options, Report, measure, peak_gigabytes
from latensor.decompose import Status, matched_rmse
from latensor.models import naive_bayes


def run(options: Options) -> Report:
    """Time `fit` by both methods."""
    n, d, k = (5_000, 400, 5) if options.quick else (100_000, 1_000, 10)
    key_weights, key_probs, key_sample, key_pass, key_fit = jax.random.split(jax.random.key(0), 5)
    truth = naive_bayes.NaiveBayes(
        jax.random.dirichlet(key_weights, jnp.full(k, 5.0)), jax.random.dirichlet(key_probs, jnp.full(d, 0.1), (k,)).T
    )
    # In pieces: the sampler's own temporaries must not hide what fit needs.
    pieces = 10
    keys = jax.random.split(key_sample, pieces)
    x = jnp.zeros((n, d), truth.word_probs.dtype)
    place = jax.jit(lambda x, part, start: jax.lax.dynamic_update_slice_in_dim(x, part, start, 0), donate_argnums=0)
    for i in tqdm(range(pieces), desc="drawing documents"):
        x = place(x, naive_bayes.sample(keys[i], truth, n // pieces).x, i * (n // pieces))
    directions = jax.random.normal(key_pass, (d, k))
    one_pass = jax.jit(jnp.matmul)

    before = peak_gigabytes()
    unit, _ = measure(lambda: one_pass(x, directions), 15)
    rows = [["one pass x @ W", 1e3 * unit.warm, 1.0, unit.first - unit.warm, "", ""]]
    ratios = []
    for method in ("power", "diagonalization"):
        timing, result = measure(partial(naive_bayes.fit, key_fit, x, k, method=method), 7)
        ratios.append(timing.warm / unit.warm)
        error = float(matched_rmse(truth.word_probs, result.params.word_probs))
        status = Status(int(result.status)).name
        rows.append([f"fit, {method}", 1e3 * timing.warm, ratios[-1], timing.first - timing.warm, error, status])
    again, _ = measure(lambda: one_pass(x, directions), 15)
    extra = peak_gigabytes() - x.nbytes / 1e9
    return Report(
        ["", "ms", "passes", "compile s", "word RMSE", "status"],
        rows,
        [
            Claim(
                "fit takes at most 25 passes",
                f"{ratios[0]:.1f} (power), {ratios[1]:.1f} (diagonalization) at n = {n:,}, d = {d:,}, k = {k}",
                max(ratios) <= 25,
            ),
            Claim(
                "peak memory below the data plus 1 GB",
                f"the data ({x.nbytes / 1e9:.2f} GB) plus {extra:.2f} GB, Python, JAX and compilation included",
                extra < 1.0,
            ),
        ],
        {"one_pass_again_ms": 1e3 * again.warm, "peak_before_fit_gb": before},
    )
