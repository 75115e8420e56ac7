"""Which weights: p, √p and other powers of the observation rates, and the bound of Lemma 4.1 of the paper.

The setting of Figure 8 (Gamma-Poisson, d = 10, k = 4, topics Dir(1), four incomplete dimensions), dimensions weighted
by `w = p^a` for several a (a = 0 is the full method), and by one where complete and zero elsewhere (the partial one).
Errors of the topics are compared with the bound that the lemma minimizes (appendix E of the paper), which has

    E|Ŝ* − S*| ≤ E* = √(Σ_ij γ_ij w_i² w_j² / (n p_i p_j)),   L* = Σ_i w_i E x_i,   E*/L*²

where `γ_ij` is the variance of a sample's share in `Ŝ_ij`. With one γ for all, `E* = √(γ/n) Σ w²/p`, and its ratio to
`L*²` is smallest for `w ∝ p` where all `E x_i` are equal. The paper prints `Σ w²/√p` there, and hence `w ∝ √p`: a slip.

Claims: p and √p are indistinguishable (the paper); p is within 5 % of the best power; the moments are within the bound;
a weighting with a smaller bound has a smaller error (rank correlation above 0.5 in each setting).

Why: with the slip mended, the bound itself asks for `w ∝ p`, and √p leaves noisy dimensions too much weight where
rates are low. Where all rates are high the weightings hardly differ, and neither do their errors, so that the order of
both is chance.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from tqdm import tqdm

from benchmarks.partial_data import (
    COMPLETE,
    COMPONENTS,
    PATTERNS,
    draw_counts,
    independent_masks,
    interest_mask,
    random_topics,
)
from benchmarks.plotting import COLOURS, figure, plot_spread
from benchmarks.runner import Claim, Options, Report
from latensor.decompose import column_angles
from latensor.models import gamma_poisson
from latensor.moments import Table, gamma_poisson_moments, observation_rates

_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_NAMES = (*(f"p^{power:g}" for power in _POWERS), "partial")
_ROOT, _RATE = _POWERS.index(0.5), _POWERS.index(1.0)
# The intensity of each topic is exponential with this mean (`draw_counts`).
_INTENSITY = 100 / COMPONENTS


def _weightings(rates: Float[Array, " d"]) -> Float[Array, "weightings d"]:
    return jnp.stack([*(rates**power for power in _POWERS), (rates >= 1).astype(rates.dtype)])


class _Trial(NamedTuple):
    """For each weighting."""

    error: Any
    """`ε_c`, in radians."""
    moment_error: Any
    """`|Ŝ* − S*|`."""
    bound: Any
    """`E*`, with a `γ_ij` for each entry."""
    length: Any
    """`L*`."""


@jax.jit
def _run(key: Array, x: Array, mask: Array, topics: Array, rates: Array) -> _Trial:
    table = Table(x, mask)
    second = gamma_poisson_moments(table).second
    truth = _INTENSITY**2 * topics @ topics.T
    mean = _INTENSITY * jnp.sum(topics, axis=1)
    # The variance of what a row adds to an entry, from the table without holes.
    centred = x - mean[None, :]
    product = centred[:, :, None] * centred[:, None, :] - x[:, :, None] * jnp.eye(x.shape[1])[None]
    gamma = jnp.var(product, axis=0)
    keep = interest_mask()[:, None]

    def one(weights: Array) -> _Trial:
        estimate = gamma_poisson.fit(key, x, COMPONENTS, mask=mask, weights=weights).params.topics
        outer, pairs = weights[:, None] * weights[None, :], rates[:, None] * rates[None, :]
        return _Trial(
            jnp.sum(column_angles(jnp.where(keep, topics, 0), jnp.where(keep, estimate, 0))),
            jnp.linalg.norm(outer * (second - truth)),
            jnp.sqrt(jnp.sum(gamma * outer**2 / pairs) / x.shape[0]),
            jnp.sum(weights * mean),
        )

    return jax.vmap(one)(_weightings(observation_rates(table)))


def _constant_bounds(pattern: tuple[float, ...]) -> np.ndarray:
    """Return `Σ w²/p / (Σ w)²` and, as printed, `Σ w²/√p / (Σ w)²` of each weighting, as multiples of that of p."""
    rates = np.concatenate([np.ones(COMPLETE), pattern])
    weights = np.asarray(_weightings(jnp.asarray(rates)))
    shares = np.stack([np.sum(weights**2 / rates**power, axis=1) for power in (1.0, 0.5)])
    bounds = shares / np.sum(weights, axis=1) ** 2
    return bounds / bounds[:, [_RATE]]


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    size = len(first)
    return float(1 - 6 * np.sum((ranks[0] - ranks[1]) ** 2) / (size * (size**2 - 1)))


def run(options: Options) -> Report:
    """Run all patterns and sizes; all weightings see the same tables."""
    trials = options.trials or (4 if options.quick else 100)
    sizes = (1_000,) if options.quick else (3_000, 30_000)
    settings = [(pattern, n) for n in sizes for pattern in PATTERNS]
    outcomes = []
    key_topics, key_fit, key_mask = jax.random.split(jax.random.key(41), 3)
    topics = random_topics(key_topics, trials)
    keys = jax.random.split(key_fit, trials)
    for i, (pattern, n) in enumerate(tqdm(settings, desc="patterns and sizes")):
        rates = jnp.concatenate([jnp.ones(COMPLETE), jnp.array(pattern)])
        x = draw_counts(41, topics, n)
        mask = independent_masks(jax.random.fold_in(key_mask, i), rates, trials, n)
        # One trial after the other: the products of all entries of a table are ten times its size.
        parts = [_run(keys[t], x[t], mask[t], topics[t], rates) for t in range(trials)]
        outcomes.append(_Trial(*(np.stack(leaves) for leaves in zip(*parts, strict=True))))
    rows = []
    for (pattern, n), outcome in zip(settings, outcomes, strict=True):
        constant, printed = _constant_bounds(pattern)
        own = (outcome.bound / outcome.length**2).mean(axis=0)
        for w, name in enumerate(_NAMES):
            error = outcome.error[:, w]
            ratio = float(outcome.moment_error[:, w].mean() / outcome.bound[:, w].mean())
            deviation = float(error.std(ddof=1) / np.sqrt(trials))
            bounds = [float(own[w] / own[_RATE]), float(constant[w]), float(printed[w])]
            rows.append([str(pattern), n, name, float(error.mean()), deviation, *bounds, ratio])
    data = {
        "settings": settings,
        "weightings": _NAMES,
        **{f: [getattr(o, f) for o in outcomes] for f in _Trial._fields},
    }
    columns = ["rates", "n", "weights", "error", "standard error", "bound / that of p", "one γ", "as printed"]
    columns.append("moments' error / E*")
    return Report(columns, rows, _claims(settings, outcomes), data, _draw(settings, outcomes))


def _claims(settings: list[Any], outcomes: list[_Trial]) -> list[Claim]:
    trials = len(outcomes[0].error)
    names = [f"{pattern}, n = {n:,}" for pattern, n in settings]
    apart = np.stack([outcome.error[:, _ROOT] - outcome.error[:, _RATE] for outcome in outcomes])
    mean, deviation = apart.mean(axis=1), apart.std(axis=1, ddof=1) / np.sqrt(trials)
    differ = np.flatnonzero(np.abs(mean) > 2 * deviation)
    errors = np.stack([outcome.error.mean(axis=0) for outcome in outcomes])
    ratio = errors[:, _RATE] / errors.min(axis=1)
    best = [f"{_NAMES[w]} at {name}" for w, name in zip(errors.argmin(axis=1), names, strict=True)]
    tight = np.stack([(o.moment_error.mean(axis=0) / o.bound.mean(axis=0)) for o in outcomes])
    loosest, tightest = tight.min(), tight.max()
    at = names[int(tight.max(axis=1).argmax())]
    bounds = [(outcome.bound / outcome.length**2).mean(axis=0) for outcome in outcomes]
    ranks = np.array([_rank_correlation(bound, error) for bound, error in zip(bounds, errors, strict=True)])
    different = "; ".join(
        f"{names[i]}: √p {mean[i]:+.4f} ± {deviation[i]:.4f} of {errors[i, _RATE]:.4f}" for i in differ
    )
    return [
        Claim(
            "p and √p are indistinguishable (the paper): differences within two standard errors",
            f"beyond in {len(differ)} of {len(settings)} settings" + (f": {different}" if differ.size else ""),
            not differ.size,
        ),
        Claim(
            "the error with p is at most 1.05 times that of the best power",
            f"ratios {ratio.min():.3f} to {ratio.max():.3f}; best: {'; '.join(best)}",
            bool(ratio.max() <= 1.05),
        ),
        Claim(
            "E|Ŝ* − S*| ≤ E* for every weighting",
            f"ratios {loosest:.3f} to {tightest:.3f}, the largest at {at}",
            bool(tightest <= 1),
        ),
        Claim(
            "a smaller bound E*/L*² goes with a smaller error: rank correlation over weightings above 0.5",
            ", ".join(f"{value:.2f} ({name})" for value, name in zip(ranks, names, strict=True)),
            bool(ranks.min() > 0.5),
        ),
    ]


def _draw(settings: list[Any], outcomes: list[_Trial]) -> Any:
    """Draw errors and bounds against the power; bounds are scaled to the error of p."""
    rows = len(settings) // len(PATTERNS)
    made, axes = figure(len(PATTERNS), (11.0, 2.8 * rows), rows=rows)
    powers = len(_POWERS)
    for axis, (pattern, n), outcome in zip(axes, settings, outcomes, strict=True):
        plot_spread(axis, _POWERS, outcome.error[:, :powers].T, color="#c0392b", label="error")
        axis.axhline(outcome.error[:, -1].mean(), color=COLOURS["green"], lw=1, label="error, partial")
        own = (outcome.bound / outcome.length**2).mean(axis=0)
        scale = outcome.error[:, _RATE].mean()
        bounds = (own / own[_RATE], *_constant_bounds(pattern))
        for bound, line, name in zip(bounds, ("-", "--", ":"), ("bound", "one γ", "as printed"), strict=True):
            axis.plot(_POWERS, scale * bound[:powers], line, color=COLOURS["blue"], lw=1, label=name)
        axis.set(title=f"p = {pattern}\nn = {n:,}", yscale="log")
    for axis in axes[-len(PATTERNS) :]:
        axis.set_xlabel("power a in w = p^a")
    axes[0].set_ylabel(r"error $\varepsilon_c$ (radians)")
    axes[0].legend(frameon=False, fontsize=7)
    made.suptitle(f"Weights and the bound of Lemma 4.1: means of {len(outcomes[0].error)} trials, standard errors")
    return made
