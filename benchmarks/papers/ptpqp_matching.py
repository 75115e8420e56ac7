"""Matching the components of partitions: how often four rules succeed as noise grows, and Theorem 1 of the paper.

The anchors of two factorizations, 6 variables of 4 categories, k = 8, tables Dir(0.5), columns in a random order and
each entry perturbed by noise. A matching succeeds if it is the true permutation. The rules: the largest entry in each
row of the orthogonal factor `UVᵀ` (eq. 10 of the paper); ours, in which directions with small singular values count
less (`"procrustes"`); the smallest angle (eq. 7); the best assignment. Claims: eq. 10, and ours, succeed at least as
often as the smallest angle at every noise level (the paper: Procrustes matching is the more robust).

Theorem 1 of the paper says that a result of eq. 10 that is a permutation is the best of all permutations. It is tested
on small problems (2 variables, k = 4), where all 24 permutations can be tried; `data.json` has a counterexample.

Why: eq. 10 gives the permutation nearest to the orthogonal matrix `UVᵀ`. The best one maximizes `tr(Pᵀ XᵀY)`, in which
singular values count too; where they differ, so can the two.
"""

from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report, double_precision
from latensor.decompose import match_columns

_METHODS = ("eq. 10", "procrustes", "angle", "assignment")
_LOOKS = (("blue", "--"), ("blue", "-"), ("grey", "-"), ("orange", "-"))
_VARIABLES, _CATEGORIES, _COMPONENTS = 6, 4, 8
_FEW_VARIABLES, _FEW_COMPONENTS = 2, 4
# An objective is above the best one if it is by more than rounding, in float64.
_ABOVE = 1e-9


def _draw_tables(key: Array, variables: int, components: int) -> Float[Array, "d k"]:
    # A Gamma(½) variable is half a squared normal one.
    draws = jax.random.normal(key, (components, variables, _CATEGORIES)) ** 2
    return (draws / jnp.sum(draws, axis=-1, keepdims=True)).reshape(components, -1).T


def _draw_pair(key: Array, noise: Array, variables: int, components: int) -> tuple[Array, Array, Array]:
    """Return two noisy versions of the same tables, and the order of the second one's columns."""
    key_tables, key_order, key_noise = jax.random.split(key, 3)
    tables = _draw_tables(key_tables, variables, components)
    order = jax.random.permutation(key_order, components)
    seen = jnp.maximum(tables[None] + noise * jax.random.normal(key_noise, (2, *tables.shape)), 0)
    return seen[0], seen[1][:, order], order


def _overlap(reference: Float[Array, "d k"], estimate: Float[Array, "d k"]) -> Float[Array, "k k"]:
    """Return the cosines of all pairs of columns."""
    norms = [jnp.maximum(jnp.linalg.norm(part, axis=0), 1e-30) for part in (reference, estimate)]
    return (reference / norms[0][None, :]).T @ (estimate / norms[1][None, :])


def _equation_10(overlap: Float[Array, "k k"]) -> Int[Array, " k"]:
    left, _, right = jnp.linalg.svd(overlap)
    return jnp.argmax(left @ right, axis=1)


def _is_permutation(order: Int[Array, " k"]) -> Array:
    return jnp.all(jnp.sort(order) == jnp.arange(order.shape[0]))


@partial(jax.jit, static_argnames=("method", "trials"))
def _succeed(key: Array, noise: Array, method: Any, trials: int) -> tuple[Array, Array]:
    """Return, for each trial, whether the order was found and whether the result was a permutation."""

    def one(key: Array) -> tuple[Array, Array]:
        reference, estimate, order = _draw_pair(key, noise, _VARIABLES, _COMPONENTS)
        if method == "eq. 10":
            matched = _equation_10(_overlap(reference, estimate))
        else:
            matched = match_columns(reference, estimate, method).permutation
        return jnp.all(order[matched] == jnp.arange(_COMPONENTS)), _is_permutation(matched)

    return jax.vmap(one)(jax.random.split(key, trials))


class _Search(NamedTuple):
    """Small problems: whether eq. 10 gave a permutation, and by how much its objective is above the best one."""

    valid: Any
    above: Any
    reference: Any
    estimate: Any


@partial(jax.jit, static_argnames="trials")
def _search(key: Array, noise: Array, trials: int) -> _Search:
    """Try all permutations. The objective of eq. 8 is `2k` less twice the sum of the matched columns' cosines."""
    every = jnp.asarray(list(permutations(range(_FEW_COMPONENTS))))

    def one(key: Array) -> _Search:
        reference, estimate, _ = _draw_pair(key, noise, _FEW_VARIABLES, _FEW_COMPONENTS)
        overlap = _overlap(reference, estimate)
        matched = _equation_10(overlap)
        rows = jnp.arange(_FEW_COMPONENTS)
        best = jnp.max(jnp.sum(overlap[rows[None, :], every], axis=1))
        return _Search(_is_permutation(matched), 2 * (best - jnp.sum(overlap[rows, matched])), reference, estimate)

    return jax.vmap(one)(jax.random.split(key, trials))


def _test_theorem(levels: np.ndarray, trials: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return the numbers of permutations by eq. 10 and of those not optimal at each level, and the worst of these."""
    valid, worse = np.zeros(len(levels)), np.zeros(len(levels))
    worst: dict[str, Any] = {"above": 0.0}
    with double_precision():
        for i, level in enumerate(levels):
            tried = _search(jax.random.fold_in(jax.random.key(8), i), jnp.asarray(level), trials)
            above = np.where(tried.valid, tried.above, 0)
            valid[i], worse[i] = np.sum(tried.valid), np.sum(above > _ABOVE)
            if above.max() > worst["above"]:
                at = int(above.argmax())
                pair = {"reference": np.asarray(tried.reference[at]), "estimate": np.asarray(tried.estimate[at])}
                worst = {"above": float(above[at]), "noise": float(level), **pair}
    return valid, worse, worst


def _compare(success: np.ndarray, levels: np.ndarray, name: str) -> Claim:
    """Compare a rule with the smallest angle, on the same draws: `success (levels, methods, trials)`."""
    gap = success[:, _METHODS.index(name)].astype(float) - success[:, _METHODS.index("angle")]
    mean, error = gap.mean(axis=1), gap.std(axis=1) / np.sqrt(gap.shape[1])
    loses = [f"{levels[i]:g} ({mean[i]:+.4f} ± {error[i]:.4f})" for i in np.flatnonzero(mean < 0)]
    return Claim(
        f"{name} succeeds at least as often as the smallest angle at every noise level",
        f"largest gain {mean.max():+.4f}; it loses at noise {', '.join(loses)}" if loses else
        f"smallest difference {mean.min():+.4f}, largest {mean.max():+.4f}",
        not loses,
    )  # fmt: skip


def run(options: Options) -> Report:
    """Sweep the noise; all rules see the same draws."""
    trials = options.trials or (200 if options.quick else 20_000)
    levels = np.linspace(0, 0.4, 5 if options.quick else 17)
    success, valid = (np.zeros((len(levels), len(_METHODS), trials), bool) for _ in range(2))
    for i, level in enumerate(tqdm(levels, desc="noise levels")):
        for m, method in enumerate(_METHODS):
            key = jax.random.fold_in(jax.random.key(7), i)
            success[i, m], valid[i, m] = _succeed(key, jnp.float32(level), method, trials)
    num_valid, num_worse, worst = _test_theorem(levels, trials)
    share = success.mean(axis=-1)
    # Not the true permutation although it is one: nothing tells.
    hidden = (valid & ~success).mean(axis=-1)
    rows = [
        [float(level), *map(float, share[i]), *map(float, hidden[i, :2]), float(num_worse[i] / max(num_valid[i], 1))]
        for i, level in enumerate(levels)
    ]
    claims = [
        _compare(success, levels, "eq. 10"),
        _compare(success, levels, "procrustes"),
        Claim(
            "Theorem 1: a permutation by eq. 10 is the best one",
            f"{int(num_worse.sum()):,} of {int(num_valid.sum()):,} are not ({num_worse.sum() / num_valid.sum():.1%}; "
            f"{num_worse[-1] / num_valid[-1]:.1%} at noise {levels[-1]:g})",
            bool(num_worse.sum() == 0),
        ),
    ]
    data = {"noise": levels, "methods": _METHODS, "success": share, "permutations": valid.mean(axis=-1)}
    data |= {"theorem_1": {"permutations": num_valid, "not_optimal": num_worse, "counterexample": worst}}
    columns = ["noise", *_METHODS, "eq. 10 wrong, a permutation", "procrustes likewise", "k = 4: eq. 10 not optimal"]
    return Report(columns, rows, claims, data, _draw(levels, success, num_valid, num_worse))


def _draw(levels: np.ndarray, success: np.ndarray, num_valid: np.ndarray, num_worse: np.ndarray) -> Any:
    made, (left, right) = figure(2, (8.4, 3.2))
    trials = success.shape[-1]
    for m, (method, (colour, line)) in enumerate(zip(_METHODS, _LOOKS, strict=True)):
        share = success[:, m].mean(axis=-1)
        error = np.sqrt(share * (1 - share) / trials)
        look: dict[str, Any] = {
            "color": COLOURS[colour],
            "linestyle": line,
            "marker": "o",
            "markersize": 3,
            "capsize": 2,
        }
        left.errorbar(levels, share, error, label=method, **look)
    left.set(xlabel="noise of an entry", ylabel="share of correct matchings", ylim=(0, 1.02))
    left.set_title(f"k = {_COMPONENTS}, {trials:,} trials each")
    left.legend(frameon=False)
    share = num_worse / np.maximum(num_valid, 1)
    error = np.sqrt(share * (1 - share) / np.maximum(num_valid, 1))
    right.errorbar(levels, share, error, color=COLOURS["blue"], marker="o", markersize=3, capsize=2)
    right.set(xlabel="noise of an entry", ylabel="of permutations by eq. 10, not optimal", ylim=(0, None))
    right.set_title(f"Theorem 1, k = {_FEW_COMPONENTS}, {trials:,} trials each")
    return made
