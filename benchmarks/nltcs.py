"""The disability survey (NLTCS), and the models of it that benchmarks compare others with."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from benchmarks.runner import Options
from latensor.models import mixed_membership
from latensor.models.mixed_membership import MixedMembership
from latensor.moments import categorical_variables

NUM_ITEMS = 16
NLTCS_VARIABLES = categorical_variables(NUM_ITEMS, 2)
_STARTS, _STEPS = 10, 500


class Answers(NamedTuple):
    """Answers to yes-or-no questions, one row per person; 1 is yes."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


def read_nltcs(options: Options) -> Answers:
    """Return the answers of 16,181 people, of 2,157 for validation, and of 3,236 held out; of fewer in a quick run."""
    files = (options.data_file(f"nltcs/nltcs.{part}.data") for part in ("train", "valid", "test"))
    train, valid, test = (np.loadtxt(file, delimiter=",", dtype=np.int32) for file in files)
    return Answers(train[:2_000], valid[:300], test[:300]) if options.quick else Answers(train, valid, test)


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
        start = (jnp.full(k, 1 / k), jax.random.uniform(key, (NUM_ITEMS, k), minval=0.2, maxval=0.8))
        params = lax.fori_loop(0, _STEPS, step, start)
        return params, jnp.mean(jax.nn.logsumexp(_log_joint(params[0], params[1], x), axis=1))

    params, values = jax.vmap(run)(jax.random.split(key, _STARTS))
    return jax.tree.map(lambda leaf: leaf[jnp.argmax(values)], params)


def latent_class_score(key: Array, answers: Answers, k: int) -> float:
    """Return the mean log-likelihood of held-out people under a latent-class model.

    It puts every person into one of k classes; EM, the best of ten random starts by training likelihood.
    """
    weights, yes = _latent_class(key, jnp.asarray(answers.train, jnp.float32), k)
    values = jax.nn.logsumexp(_log_joint(weights, yes, jnp.asarray(answers.test, jnp.float32)), axis=1)
    return float(jnp.mean(values))


class Membership(NamedTuple):
    """Mixed membership: the estimate that is better on the people kept for validation, and how good it is."""

    params: MixedMembership
    chosen: str
    """ "fit", or "refine" from there."""
    value: float
    """Mean log-likelihood of held-out people."""
    error: float
    """Its standard error, from importance sampling."""
    fit_value: float
    """That of `fit` alone."""


def fit_membership(key_fit: Array, key_score: Array, answers: Answers, k: int) -> Membership:
    """Return a mixed-membership model with an estimated concentration: `fit`, or `refine` from there."""

    def score(params: MixedMembership, x: np.ndarray) -> tuple[float, float]:
        estimate = mixed_membership.estimate_log_likelihood(key_score, params, x, variables=NLTCS_VARIABLES)
        return float(jnp.mean(estimate.value)), float(jnp.sqrt(jnp.sum(estimate.standard_error**2)) / len(x))

    fit = mixed_membership.fit(key_fit, answers.train, k, variables=NLTCS_VARIABLES)
    refined = mixed_membership.refine(fit.params, answers.train, variables=NLTCS_VARIABLES)
    choices = {"fit": fit.params, "refine": refined.params}
    chosen = max(choices, key=lambda name: score(choices[name], answers.valid)[0])
    value, error = score(choices[chosen], answers.test)
    return Membership(choices[chosen], chosen, value, error, score(fit.params, answers.test)[0])
