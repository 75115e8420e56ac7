"""What the benchmarks on partial data share: methods, errors, trials as one batch, tables and pictures.

The error is the paper's `ε_c`: the sum over components of the angle between true and estimated columns, on the complete
dimensions, after the best assignment.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from tqdm import tqdm

from benchmarks.plotting import COLOURS, figure, plot_spread
from benchmarks.runner import Claim, Options, Report
from latensor.decompose import column_angles
from latensor.models import gamma_poisson, gaussian_mixture
from latensor.models.gaussian_mixture import GaussianMixture
from latensor.moments import Table, observation_rates

METHODS: tuple[Any, ...] = ("weighted", "full", "partial")
LOOKS = {"weighted": ("#c0392b", "o"), "full": (COLOURS["blue"], "s"), "partial": (COLOURS["green"], "^")}
DIMENSIONS, COMPONENTS, COMPLETE = 10, 4, 6
PATTERNS = ((0.1, 0.1, 0.1, 0.1), (0.05, 0.1, 0.2, 0.4), (0.1, 0.3, 0.6, 0.9), (0.8, 0.8, 0.9, 0.9))
SPREAD_PATTERN = PATTERNS[2]
SIZES = (3_000, 10_000, 30_000, 100_000)


def method_weights(rates: Float[Array, " d"]) -> Float[Array, "methods d"]:
    """Return the weight vectors of the three methods: they are all that tells one from another."""
    return jnp.stack([rates, jnp.ones_like(rates), (rates >= 1).astype(rates.dtype)])


def factors(model: ModuleType, params: Any) -> Float[Array, "d k"]:
    """Return the columns that the error looks at."""
    return params.topics if model is gamma_poisson else params.means


@partial(jax.jit, static_argnames=("model", "num_components", "third"))
def trial_errors(
    model: ModuleType,
    key: Array,
    x: Float[Array, "n d"],
    mask: Bool[Array, "n d"],
    truth: Float[Array, "d k"],
    interest: Bool[Array, " d"],
    num_components: int,
    third: str,
) -> Float[Array, " methods"]:
    """Return `ε_c` of the three methods on one table."""

    def error(weights: Array) -> Array:
        params = model.fit(key, x, num_components, mask=mask, weights=weights, third=third).params
        keep = interest[:, None]
        return jnp.sum(column_angles(jnp.where(keep, truth, 0), jnp.where(keep, factors(model, params), 0)))

    return jax.vmap(error)(method_weights(observation_rates(Table(x, mask))))


def batch_errors(
    model: ModuleType,
    keys: Array,
    x: Float[Array, "trials n d"],
    mask: Bool[Array, "trials n d"],
    truth: Float[Array, "trials d k"],
    interest: Bool[Array, " d"],
    third: str = "implicit",
) -> np.ndarray:
    """Return the errors `(trials, methods)`: all trials in one `vmap`."""
    one = partial(trial_errors, model, num_components=truth.shape[-1], third=third)
    return np.asarray(jax.vmap(lambda k, a, m, t: one(k, a, m, t, interest))(keys, x, mask, truth))


def draw_gaussian(
    key: Array, trials: int, num_samples: int, variance: float = 100.0
) -> tuple[Float[Array, "t n d"], Float[Array, "t d k"]]:
    """Draw mixtures as in Figure 4 left: centres N(0, 100), σ² = 100, weights Dir(1); and a table from each."""

    def one(key: Array) -> tuple[Array, Array]:
        key_means, key_weights, key_sample = jax.random.split(key, 3)
        means = 10 * jax.random.normal(key_means, (DIMENSIONS, COMPONENTS))
        params = GaussianMixture(jax.random.dirichlet(key_weights, jnp.ones(COMPONENTS)), means, jnp.array(variance))
        return gaussian_mixture.sample(key_sample, params, num_samples).x, means

    return jax.jit(jax.vmap(one))(jax.random.split(key, trials))


def random_topics(key: Array, trials: int) -> Float[Array, "trials d k"]:
    """Draw topics from Dir(1), as in Figure 8."""
    return jnp.swapaxes(jax.random.dirichlet(key, jnp.ones(DIMENSIONS), (trials, COMPONENTS)), 1, 2)


def fixed_topics() -> Float[Array, "d k"]:
    """Return the one topic matrix of Figures 2 to 5: four overlapping bumps along a line of ten places.

    The paper plots its own but does not print it. Every third place and the last are incomplete, and come last. The six
    others tell the topics apart about as well as they do for a typical draw from Dir(1) (condition number 10 against
    a median of 8). What there is to gain from incomplete dimensions depends on this: where the complete ones say all,
    nothing; Figure 8 averages over random topics.
    """
    place = jnp.arange(DIMENSIONS, dtype=float)[:, None]
    peaks = jnp.linspace(0, DIMENSIONS - 1, COMPONENTS)[None, :]
    bumps = jnp.exp(-0.5 * ((place - peaks) / 2) ** 2)
    order = [0, 1, 3, 4, 6, 7, 2, 5, 8, 9]
    return (bumps / jnp.sum(bumps, axis=0)[None, :])[jnp.array(order)]


def draw_counts(seed: int, topics: Float[Array, "trials d k"], num_samples: int) -> Float[Array, "trials n d"]:
    """Draw tables from Gamma-Poisson models with shapes one and a mean length of 100 (the paper does not say its).

    By NumPy: JAX draws about a million Gamma and Poisson variables a second on a CPU core, NumPy twenty.
    """
    rng = np.random.default_rng([seed, num_samples])
    intensity = rng.exponential(100 / topics.shape[2], (topics.shape[0], num_samples, topics.shape[2]))
    means = np.matmul(intensity.astype(np.float32), np.swapaxes(np.asarray(topics), 1, 2))
    return jnp.asarray(np.asarray(rng.poisson(means), np.float32))


def independent_masks(key: Array, rates: Float[Array, " d"], trials: int, num_samples: int) -> Bool[Array, "t n d"]:
    """Draw masks in which every entry is observed for itself."""
    shape = (trials, num_samples, rates.shape[0])
    return jax.random.uniform(key, shape) < rates[None, None, :]


def interest_mask() -> Bool[Array, " d"]:
    """Return the complete dimensions, whose recovery is measured."""
    return jnp.arange(DIMENSIONS) < COMPLETE


def sweep(
    model: ModuleType,
    draw: Callable[[Array, int, int], tuple[Array, Array]],
    sizes: tuple[int, ...],
    trials: int,
    key: Array,
    progress: Any,
) -> dict[str, Any]:
    """Run the four patterns at every size. Tables are drawn once a size and masked by each pattern.

    Returns errors `(patterns, sizes, trials, methods)` for the implicit and the available-case third moment.
    """
    errors_by_third = {
        third: np.zeros((len(PATTERNS), len(sizes), trials, len(METHODS))) for third in ("implicit", "available")
    }
    for j, n in enumerate(sizes):
        key_data, key_fit, key_mask = jax.random.split(jax.random.fold_in(key, n), 3)
        x, truth = draw(key_data, trials, n)
        keys = jax.random.split(key_fit, trials)
        for i, pattern in enumerate(PATTERNS):
            rates = jnp.concatenate([jnp.ones(COMPLETE), jnp.array(pattern)])
            mask = independent_masks(jax.random.fold_in(key_mask, i), rates, trials, n)
            for third, errors in errors_by_third.items():
                errors[i, j] = batch_errors(model, keys, x, mask, truth, interest_mask(), third)
            progress.update()
    return errors_by_third


def sweep_rows(sizes: tuple[int, ...], errors_by_third: dict[str, np.ndarray]) -> list[list[Any]]:
    """Return the table of a sweep: mean errors of the three methods, and the available-case weighted one."""
    rows = []
    for i, pattern in enumerate(PATTERNS):
        for j, n in enumerate(sizes):
            means = errors_by_third["implicit"][i, j].mean(axis=0)
            other = errors_by_third["available"][i, j].mean(axis=0)[0]
            rows.append([str(pattern), n, *(float(v) for v in means), float(other)])
    return rows


def sweep_claims(sizes: tuple[int, ...], errors_by_third: dict[str, np.ndarray], gain_at: int) -> list[Claim]:
    """Return what the paper says of these figures, and what we say of the implicit moments."""
    means = errors_by_third["implicit"].mean(axis=2)
    ratio = means[..., 0] / np.minimum(means[..., 1], means[..., 2])
    worst = np.unravel_index(np.argmax(ratio), ratio.shape)
    claims = [
        Claim(
            "the weighted method's mean error is at most 1.05 times the better of full and partial at every point",
            f"largest ratio {ratio.max():.3f} (rates {PATTERNS[worst[0]]}, n = {sizes[worst[1]]:,})",
            bool(ratio.max() <= 1.05),
        )
    ]
    if gain_at in sizes:
        weighted, full, part = means[PATTERNS.index(SPREAD_PATTERN), sizes.index(gain_at)]
        claims.append(
            Claim(
                f"and at least 20 % below both for rates {SPREAD_PATTERN} at n = {gain_at:,}",
                f"{weighted:.3f} against {full:.3f} (full) and {part:.3f} (partial): "
                f"{1 - weighted / min(full, part):.0%} below",
                bool(weighted <= 0.8 * min(full, part)),
            )
        )
    apart = np.abs(means[..., 0] / errors_by_third["available"].mean(axis=2)[..., 0] - 1)
    claims.append(
        Claim(
            "implicit and available-case errors of the weighted method differ by less than 5 %",
            f"at most {apart.max():.1%}",
            bool(apart.max() < 0.05),
        )
    )
    finite = all(bool(np.all(np.isfinite(errors))) for errors in errors_by_third.values())
    claims.append(Claim("every trial gives a number", "all finite" if finite else "some are not", finite))
    return claims


def plot_methods(axis: Any, sizes: Any, errors: np.ndarray, names: tuple[str, ...] = METHODS) -> None:
    """Draw mean errors against n with standard errors of the mean; `errors (sizes, trials, methods)`."""
    for m, name in enumerate(METHODS):
        if name not in names:
            continue
        colour, marker = LOOKS[name]
        values = errors[..., m]
        plot_spread(axis, sizes, values, color=colour, marker=marker, markersize=4, label=name)
    axis.set(xscale="log", yscale="log")


def sweep_figure(sizes: tuple[int, ...], errors_by_third: dict[str, np.ndarray], title: str) -> Any:
    """Draw one panel a pattern."""
    made, axes = figure(len(PATTERNS), (11.0, 2.9))
    for axis, pattern, errors in zip(axes, PATTERNS, errors_by_third["implicit"], strict=True):
        plot_methods(axis, sizes, errors)
        axis.set(title=f"p = {pattern}", xlabel="samples n")
    axes[0].set_ylabel(r"error $\varepsilon_c$ (radians)")
    axes[0].legend(frameon=False, fontsize=8)
    made.suptitle(title, fontsize=10)
    return made


def run_sweep(
    options: Options,
    model: ModuleType,
    draw: Callable[[Array, int, int], tuple[Array, Array]],
    seed: int,
    title: str,
) -> Report:
    """Run all patterns and sizes of Figure 4 or 8, and report."""
    sizes = (1_000, 3_000) if options.quick else SIZES
    trials = options.trials or (5 if options.quick else 100)
    with tqdm(total=len(sizes) * len(PATTERNS), desc="patterns and sizes") as progress:
        errors_by_third = sweep(model, draw, sizes, trials, jax.random.key(seed), progress)
    return Report(
        ["rates", "n", *METHODS, "weighted, available-case"],
        sweep_rows(sizes, errors_by_third),
        sweep_claims(sizes, errors_by_third, 30_000),
        {"sizes": sizes, "patterns": PATTERNS, "trials": trials, "errors": errors_by_third},
        sweep_figure(
            sizes, errors_by_third, f"{title}: error on the complete dimensions, {trials} trials with standard errors"
        ),
    )


def joint_masks(num_full: int, num_samples: int) -> Bool[Array, "n d"]:
    """Return the mask of Figure 1b: the incomplete dimensions are all there in the first rows, and then never."""
    return interest_mask()[None, :] | (jnp.arange(num_samples) < num_full)[:, None]


def draw_fixed(seed: int, trials: int, num_samples: int) -> tuple[Float[Array, "t n d"], Float[Array, "t d k"]]:
    """Draw tables of counts from the one topic matrix."""
    topics = jnp.broadcast_to(fixed_topics()[None], (trials, DIMENSIONS, COMPONENTS))
    return draw_counts(seed, topics, num_samples), topics


def joint_sweep(
    num_full: int, partials: tuple[int, ...], trials: int, thirds: tuple[str, ...], progress: Any
) -> dict[str, np.ndarray]:
    """Run the pattern of Figure 1b; errors `(partials, trials, methods)` for each kind of third moments."""
    x, truth = draw_fixed(num_full, trials, num_full + max(partials))
    keys = jax.random.split(jax.random.key(num_full), trials)
    errors_by_third = {third: np.zeros((len(partials), trials, len(METHODS))) for third in thirds}
    for i, num_partial in enumerate(partials):
        n = num_full + num_partial
        mask = jnp.broadcast_to(joint_masks(num_full, n)[None], (trials, n, DIMENSIONS))
        for third, errors in errors_by_third.items():
            errors[i] = batch_errors(gamma_poisson, keys, x[:, :n], mask, truth, interest_mask(), third)
        progress.update()
    return errors_by_third
