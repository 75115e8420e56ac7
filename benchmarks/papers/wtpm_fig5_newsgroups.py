"""Figure 5c of the paper on partial data: semi-synthetic counts from 20 Newsgroups, 116 of 175 words incomplete.

A Gamma-Poisson model (k = 4) is fitted to the posts of four groups; tables are drawn from it, in which 116 words are
observed at rates drawn from U(0, 0.9). Claim: the weighted method does as well as the better of full and partial.
(Which four groups the paper took is not known; ours give its d = 175.)

Figure 5b is the same with health records of children with autism, d = 128, k = 5, 64 incomplete dimensions. These data
are private, so it is not reproduced.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from tqdm import tqdm

from benchmarks.partial_data import METHODS, batch_errors, plot_methods
from benchmarks.plotting import figure
from benchmarks.runner import Claim, Options, Report
from latensor.decompose import Status
from latensor.models import gamma_poisson
from latensor.models.gamma_poisson import GammaPoisson

_COMPONENTS, _INCOMPLETE = 4, 116


def _draw(params: GammaPoisson, trials: int, num_samples: int) -> Float[Array, "trials n d"]:
    """Draw tables by NumPy, which is faster at it on a CPU."""
    rng = np.random.default_rng([5, num_samples])
    topics, shapes, rate = (np.asarray(leaf, np.float64) for leaf in params)
    intensity = rng.gamma(shapes, 1 / rate, (trials, num_samples, len(shapes)))
    return jnp.asarray(rng.poisson(intensity @ topics.T).astype(np.float32))


def run(options: Options) -> Report:
    """Fit the posts, then draw and fit tables of growing size."""
    counts = np.load(options.data_file("newsgroups20/counts_4cat_d175.npz"), allow_pickle=False)["counts"]
    counts = counts[counts.sum(axis=1) >= 3].astype(np.float32)
    d = counts.shape[1]
    trials = options.trials or (2 if options.quick else 20)
    sizes = (1_000, 2_000) if options.quick else (1_000, 3_000, 10_000, 30_000)
    key_fit, key_choice, key_rates, key_mask, key_trials = jax.random.split(jax.random.key(5), 5)
    source = gamma_poisson.fit(key_fit, counts, _COMPONENTS)
    incomplete = jax.random.permutation(key_choice, d)[:_INCOMPLETE]
    interest = jnp.ones(d, bool).at[incomplete].set(False)

    errors = np.zeros((len(sizes), trials, len(METHODS)))
    for i, n in enumerate(tqdm(sizes, desc="sizes")):
        drawn = jax.random.uniform(jax.random.fold_in(key_rates, n), (trials, d), maxval=0.9)
        rates = jnp.where(interest[None, :], 1.0, drawn)
        x = _draw(source.params, trials, n)
        mask = jax.random.uniform(jax.random.fold_in(key_mask, n), x.shape) < rates[:, None, :]
        truth = jnp.broadcast_to(source.params.topics[None], (trials, d, _COMPONENTS))
        errors[i] = batch_errors(gamma_poisson, jax.random.split(key_trials, trials), x, mask, truth, interest)
    means = errors.mean(axis=1)
    ratio = means[:, 0] / np.minimum(means[:, 1], means[:, 2])
    claims = [
        Claim(
            "the weighted method's mean error is at most 1.05 times the better of full and partial",
            f"largest ratio {ratio.max():.3f}, at n = {sizes[int(ratio.argmax())]:,}",
            bool(ratio.max() <= 1.05),
        )
    ]
    made, (axis,) = figure(1, (4.6, 3.2))
    plot_methods(axis, sizes, errors)
    axis.set(xlabel="samples n", ylabel=r"error $\varepsilon_c$ (radians)")
    axis.set_title(f"20 Newsgroups, d = {d}, k = 4, {trials} trials, standard errors")
    axis.legend(frameon=False, fontsize=8)
    data = {
        "sizes": sizes,
        "errors": errors,
        "posts": len(counts),
        "shapes": source.params.shapes,
        "rate": source.params.rate,
        "status": Status(int(source.status)).name,
    }
    rows = [[n, *(float(v) for v in means[i])] for i, n in enumerate(sizes)]
    return Report(["n", *METHODS], rows, claims, data, made)
