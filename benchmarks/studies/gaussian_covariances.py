"""Covariances of all families on intensive-care records with holes, against imputation and scikit-learn.

PhysioNet 2012: 8,000 stays, 32 columns on robust scales, 23 % missing, k = 6, 20 splits with a fifth held out. Ours:
`fit` and `refine` on the observed entries. The peer: `IterativeImputer`, then `GaussianMixture` of that family. Both
are scored by the log-likelihood of the observed entries of held-out rows. Claims: in each family ours is at least as
good, on average over the splits, in less time. Both stop where a step of EM gains less than 0.001 a row, which is the
peer's default. Times are warm: what compiles does so in a call that is not counted.
"""

import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.papers.wtpm_fig6_icu import robust_table
from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import BenchmarkError, Claim, Options, Report
from latensor.decompose import Status
from latensor.models import gaussian_mixture
from latensor.models.gaussian_mixture import GaussianMixture

_COMPONENTS, _HELD_OUT, _STOP = 6, 0.2, 1e-3
FAMILIES: tuple[Any, ...] = ("spherical", "diagonal", "full")
_PEER_NAMES = {"spherical": "spherical", "diagonal": "diag", "full": "full"}


def _ours(family: Any, x: np.ndarray, seed: int) -> tuple[GaussianMixture, list[str]]:
    table = {"x": x, "mask": ~np.isnan(x)}
    with warnings.catch_warnings():
        # Columns are missing together here: available-case moments are right for that.
        warnings.simplefilter("ignore")
        fit = gaussian_mixture.fit(
            jax.random.key(seed), num_components=_COMPONENTS, third="available", covariance=family, **table
        )
    scale = float(jnp.mean(gaussian_mixture.log_likelihood(fit.params, **table)))
    refined = gaussian_mixture.refine(fit.params, tol=_STOP / abs(scale), **table)
    return jax.block_until_ready(refined.params), [Status(int(each.status)).name for each in (fit, refined)]


def _as_ours(peer: Any) -> GaussianMixture:
    covariances = peer.covariances_
    variance = {"spherical": lambda: covariances, "diag": lambda: covariances.T}.get(
        peer.covariance_type, lambda: np.moveaxis(covariances, 0, -1)
    )()
    return GaussianMixture(*(jnp.asarray(part, jnp.float32) for part in (peer.weights_, peer.means_.T, variance)))


def _score(params: GaussianMixture, x: np.ndarray) -> float:
    return float(jnp.mean(gaussian_mixture.log_likelihood(params, x, mask=~np.isnan(x))))


def run(options: Options) -> Report:
    """Fit all splits by both."""
    try:
        from sklearn.experimental import enable_iterative_imputer  # noqa: F401
        from sklearn.impute import IterativeImputer
        from sklearn.mixture import GaussianMixture as Peer
    except ImportError:
        raise BenchmarkError("needs scikit-learn: pip install -e '.[bench,peers]'") from None
    x = robust_table(options)
    x = x[:600] if options.quick else x
    splits = options.trials or (1 if options.quick else 20)
    rng = np.random.default_rng(12)
    scores, times = np.zeros((splits, 3, 2)), np.zeros((splits, 3, 2))
    one, statuses = np.zeros(splits), []
    for split in tqdm(range(splits), desc="splits"):
        order = rng.permutation(len(x))
        held, train = x[order[: int(_HELD_OUT * len(x))]], x[order[int(_HELD_OUT * len(x)) :]]
        start = time.perf_counter()
        filled = IterativeImputer(random_state=split).fit_transform(train)
        impute_time = time.perf_counter() - start
        simple = gaussian_mixture.fit(
            jax.random.key(0), train, 1, mask=~np.isnan(train), covariance="full", third="available"
        )
        one[split] = _score(simple.params, held)
        for f, family in enumerate(FAMILIES):
            _ours(family, train, split)  # compiles what this split's patterns need
            start = time.perf_counter()
            params, named = _ours(family, train, split)
            times[split, f, 0] = time.perf_counter() - start
            start = time.perf_counter()
            peer = Peer(_COMPONENTS, covariance_type=_PEER_NAMES[family], random_state=split, tol=_STOP).fit(filled)
            times[split, f, 1] = impute_time + time.perf_counter() - start
            scores[split, f] = _score(params, held), _score(_as_ours(peer), held)
            statuses.append([split, family, *named])
    mean, seconds = scores.mean(axis=0), times.mean(axis=0)
    rows = [
        [
            family,
            *(float(value) for value in (*mean[f], *(1e3 * seconds[f]))),
            int(np.sum(scores[:, f, 0] >= scores[:, f, 1])),
        ]
        for f, family in enumerate(FAMILIES)
    ]
    claims = [
        Claim(
            f"{family}: at least as good on held-out rows, in less time",
            f"{mean[f, 0]:.3f} against {mean[f, 1]:.3f} a row, {seconds[f, 0]:.2f} against {seconds[f, 1]:.2f} s",
            bool(mean[f, 0] >= mean[f, 1] and seconds[f, 0] < seconds[f, 1]),
        )
        for f, family in enumerate(FAMILIES)
    ]
    made, (axis,) = figure(1, (4.6, 3.2))
    for side, (name, colour) in enumerate((("latensor", "#c0392b"), ("impute, then EM", COLOURS["blue"]))):
        places = np.arange(3) + 0.35 * side
        boxes = axis.boxplot(scores[:, :, side], positions=places, widths=0.3, patch_artist=True, manage_ticks=False)
        for box in boxes["boxes"]:
            box.set_facecolor(colour)
        axis.plot([], [], "s", color=colour, label=name)
    axis.set_xticks(np.arange(3) + 0.17, FAMILIES)
    axis.set(ylabel="held-out log-likelihood a row", title=f"PhysioNet 2012, 23 % missing, {splits} splits")
    axis.legend(loc="upper left")
    data = {"scores": scores, "seconds": times, "one_full_component": one, "statuses": statuses}
    header = ["covariance", "ours", "impute, then EM", "ours, ms", "theirs, ms", f"better in, of {splits} splits"]
    return Report(header, rows, claims, data, made)
