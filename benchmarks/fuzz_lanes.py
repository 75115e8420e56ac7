"""Fuzzing under a trace: many cases as the lanes of one `vmap`; nothing can be raised, and the status must tell."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.fuzz_data import NUM_DIMENSIONS, NUM_SYMBOLS, Case, make_case
from latensor.base import small_jit
from latensor.decompose import Status
from latensor.models import gamma_poisson, gaussian_mixture, hidden_markov, mixed_membership, naive_bayes
from latensor.moments import Documents, Sequences, Table, categorical_variables

PROPERTIES = (
    "silent NaN",
    "CONVERGED though invalid",
    "CONVERGED though degenerate",
    "likelihood fell",
    "other lane disturbed",
)
_STEPS = 8
_CODES = categorical_variables(2 * NUM_DIMENSIONS, NUM_SYMBOLS)


class Entry(NamedTuple):
    """A model and a kind of data."""

    model: Any
    kind: str
    data: Callable[[Array, Array, Array], Any]
    """Makes the data type of `x`, `mask` and `row_weights`."""
    options: dict[str, Any]
    masked: bool = True
    lanes: int = 250


ENTRIES = {
    "gaussian_mixture": Entry(gaussian_mixture, "real", Table, {}),
    "gaussian_mixture, complete": Entry(gaussian_mixture, "real", lambda x, m, w: Table(x, None, w), {}, False),
    "gamma_poisson": Entry(gamma_poisson, "counts", Table, {}),
    "naive_bayes": Entry(naive_bayes, "counts", lambda x, m, w: Documents(x, None, w), {}, False),
    "naive_bayes, word ids": Entry(naive_bayes, "ids", lambda x, m, w: Documents(x, NUM_SYMBOLS, w), {}, False),
    "hidden_markov": Entry(hidden_markov, "symbols", lambda x, m, w: Sequences(x, None, m, w, NUM_SYMBOLS), {}),
    "hidden_markov, vectors": Entry(hidden_markov, "vectors", lambda x, m, w: Sequences(x, None, m, w), {}),
    "mixed_membership": Entry(
        mixed_membership,
        "codes",
        lambda x, m, w: Table(x, m, w, _CODES),
        {"concentration": 0.7, "anchors": ((0, 1), (2, 3), (4, 5))},
    ),
}


class Outcome(NamedTuple):
    """What the lanes of a batch returned."""

    statuses: Array
    """Of `fit` and of `refine`, `(lanes, 2)`."""
    finite: Array
    """Whether all numbers are finite, of the same two."""
    is_nan: Array
    """Whether the log-likelihood, or the posterior, of some row is NaN under the fitted parameters."""
    is_finite: Array
    """Whether all of these are finite."""
    rise: Array
    """How much EM raised the likelihood, relative to its size."""
    estimate: Array
    """All parameters of the fit."""


def _all_finite(tree: Any) -> Array:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def run_lane(entry: Entry, key: Array, x: Array, mask: Array, row_weights: Array) -> Outcome:
    """Fit, refine and apply a model to one case."""
    data, model = entry.data(x, mask, row_weights), entry.model
    fit = model.fit(key, data, 2, **entry.options)
    start = model.refine(fit.params, data, tol=0.0, max_iters=0)
    end = model.refine(fit.params, data, tol=0.0, max_iters=_STEPS)
    seen = data if isinstance(data, Sequences) else data._replace(row_weights=None)
    keyed = {"key": key, "num_samples": 8} if model in (gamma_poisson, mixed_membership) else {}
    rows = (model.log_likelihood(fit.params, seen, **keyed), model.posterior(fit.params, seen))
    size = jnp.maximum(jnp.abs(start.log_likelihood), 1)
    return Outcome(
        jnp.stack([fit.status, end.status]),
        # The diagnostics too: a number that says how good the rest is must be one.
        jnp.stack([_all_finite(fit), _all_finite(end)]),
        jnp.stack([jnp.any(jnp.isnan(part)) for part in rows]).any(),
        _all_finite(rows),
        (end.log_likelihood - start.log_likelihood) / size,
        jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(fit.params)]),
    )


def fuzz_lanes(name: str, num_cases: int, seed: int) -> Iterator[tuple[Case, list[str]]]:
    """Yield every case with the properties that it violates. The first lane of every batch is the same good one."""
    entry = ENTRIES[name]
    batched: Any = small_jit(optimize=False)(jax.vmap(lambda *arrays: run_lane(entry, *arrays)))
    reference = next(case for case in (make_case(s, entry.kind, entry.masked) for s in range(1000)) if _is_good(case))
    expected = None
    for first in range(0, num_cases, entry.lanes - 1):
        cases = [reference, *(make_case(seed + first + i, entry.kind, entry.masked) for i in range(entry.lanes - 1))]
        keys = jax.vmap(jax.random.key)(jnp.asarray([case.seed for case in cases], jnp.uint32))
        arrays = (np.stack([getattr(case, field) for case in cases]) for field in ("x", "mask", "row_weights"))
        outcome = jax.tree.map(np.asarray, batched(keys, *arrays))
        expected = outcome.estimate[0] if expected is None else expected
        disturbed = not np.allclose(outcome.estimate[0], expected, rtol=1e-4, atol=1e-5)
        for lane, case in enumerate(cases[1 : 1 + num_cases - first], 1):
            one = jax.tree.map(lambda leaf, lane=lane: leaf[lane], outcome)
            yield case, violations(case, one) + (["other lane disturbed"] if disturbed and lane == 1 else [])


def _is_good(case: Case) -> bool:
    return case.recipe in ("good, all, equal", "good, most, equal")


def violations(case: Case, outcome: Outcome) -> list[str]:
    """Return the properties that a lane violates."""
    found = []
    silent = ~outcome.finite & (outcome.statuses != Status.NON_FINITE)
    valid = not case.invalid and outcome.statuses[0] != Status.NON_FINITE
    if silent.any() or (valid and (outcome.is_nan or (not case.extreme and not outcome.is_finite))):
        found.append("silent NaN")
    if case.invalid and (outcome.statuses == Status.CONVERGED).any():
        found.append("CONVERGED though invalid")
    if case.degenerate and outcome.statuses[0] == Status.CONVERGED:
        found.append("CONVERGED though degenerate")
    # Sums over rows in float32.
    if outcome.finite.all() and outcome.rise < -1e-5:
        found.append("likelihood fell")
    return found
