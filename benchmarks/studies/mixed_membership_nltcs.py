"""Disability of the elderly (NLTCS): held-out likelihood of mixed membership against a latent-class model.

16,181 people answered 16 yes-or-no questions; 3,236 others are held out. k = 2 to 6 components. The latent-class model
puts every person into one class (EM, the best of ten random starts by training likelihood). Mixed membership: `fit`
with an estimated concentration, and `refine` from there; the better of the two on the 2,157 people kept for validation
is reported. Claim: mixed membership gives held-out people a higher likelihood than a latent-class model with as many
classes, for each k.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from tqdm import tqdm

from benchmarks.plotting import COLOURS, figure
from benchmarks.runner import Claim, Options, Report
from latensor.models import mixed_membership
from latensor.moments import categorical_variables

_ITEMS = 16
_STARTS, _STEPS = 10, 500


def _read(options: Options, part: str) -> np.ndarray:
    return np.loadtxt(options.data_file(f"nltcs/nltcs.{part}.data"), delimiter=",", dtype=np.int32)


def _log_joint(weights: Array, yes: Array, x: Array) -> Array:
    """Return `log P(class, answers)` for every person and class."""
    yes = jnp.clip(yes, 1e-6, 1 - 1e-6)
    return x @ jnp.log(yes) + (1 - x) @ jnp.log(1 - yes) + jnp.log(weights)[None, :]


@partial(jax.jit, static_argnames="k")
def _latent_class(key: Array, x: Array, k: int) -> tuple[Array, Array]:
    """Return weights and probabilities of yes, by EM from the best of several random starts."""

    def step(_: Any, params: tuple[Array, Array]) -> tuple[Array, Array]:
        classes = jax.nn.softmax(_log_joint(params[0], params[1], x), axis=1)
        total = jnp.sum(classes, axis=0)
        return total / x.shape[0], (x.T @ classes + 0.1) / (total + 0.2)[None, :]

    def run(key: Array) -> tuple[Any, Array]:
        start = (jnp.full(k, 1 / k), jax.random.uniform(key, (_ITEMS, k), minval=0.2, maxval=0.8))
        params = lax.fori_loop(0, _STEPS, step, start)
        return params, jnp.mean(jax.nn.logsumexp(_log_joint(params[0], params[1], x), axis=1))

    params, values = jax.vmap(run)(jax.random.split(key, _STARTS))
    return jax.tree.map(lambda leaf: leaf[jnp.argmax(values)], params)


def run(options: Options) -> Report:
    """Fit both models for every k."""
    train, valid, test = (_read(options, part) for part in ("train", "valid", "test"))
    if options.quick:
        train, valid, test = train[:2_000], valid[:300], test[:300]
    components = (2, 3) if options.quick else (2, 3, 4, 5, 6)
    variables = categorical_variables(_ITEMS, 2)
    rows: list[list[Any]] = []
    ours, theirs = [], []
    for k in tqdm(components, desc="components"):
        key_fit, key_score, key_class = jax.random.split(jax.random.fold_in(jax.random.key(8), k), 3)

        def score(params: Any, x: np.ndarray, key: Array = key_score) -> tuple[float, float]:
            estimate = mixed_membership.estimate_log_likelihood(key, params, x, variables=variables)
            error = jnp.sqrt(jnp.sum(estimate.standard_error**2)) / len(x)
            return float(jnp.mean(estimate.value)), float(error)

        fit = mixed_membership.fit(key_fit, train, k, variables=variables)
        refined = mixed_membership.refine(fit.params, train, variables=variables)
        choices = {"fit": fit.params, "refine": refined.params}
        best = max(choices, key=lambda name: score(choices[name], valid)[0])
        value, error = score(choices[best], test)
        weights, yes = _latent_class(key_class, jnp.asarray(train, jnp.float32), k)
        classes = jax.nn.logsumexp(_log_joint(weights, yes, jnp.asarray(test, jnp.float32)), axis=1)
        ours.append(value)
        theirs.append(float(jnp.mean(classes)))
        total = float(jnp.sum(choices[best].concentration))
        rows.append([k, theirs[-1], value, error, best, score(fit.params, test)[0], total])
    gains = np.array(ours) - np.array(theirs)
    claims = [
        Claim(
            "mixed membership has the higher held-out log-likelihood for each k",
            ", ".join(f"k = {k}: {gain:+.3f}" for k, gain in zip(components, gains, strict=True)),
            bool(np.all(gains > 0)),
        )
    ]
    made, (axis,) = figure(1, (4.2, 3.2))
    axis.plot(components, theirs, color=COLOURS["grey"], marker="o", label="latent class")
    axis.plot(components, ours, color=COLOURS["blue"], marker="o", label="mixed membership")
    axis.set(xlabel="components", ylabel="held-out log-likelihood per person", xticks=components, title="NLTCS")
    axis.legend(frameon=False)
    columns = ["k", "latent class", "mixed membership", "its error", "by", "fit alone", "concentration"]
    return Report(columns, rows, claims, {"people": len(train), "held_out": len(test)}, made)
