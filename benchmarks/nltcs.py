"""The disability survey (NLTCS), and the models of it that benchmarks compare others with."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.runner import Options
from latensor.models import latent_class, mixed_membership
from latensor.models.latent_class import LatentClass
from latensor.models.mixed_membership import MixedMembership
from latensor.models.results import Refined
from latensor.moments import categorical_variables

# What the items ask: the files do not say. Their order seems to be the reverse of the usual one.
# fmt: off
ITEMS = (
    "telephoning", "medicine", "money", "travelling", "outside", "groceries", "cooking", "laundry", "light housework",
    "heavy housework", "toilet", "bathing", "dressing", "inside", "bed", "eating",
)
# fmt: on
NUM_ITEMS = len(ITEMS)
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


class LatentClasses(NamedTuple):
    """The likeliest of several latent-class models."""

    params: LatentClass
    train: float
    """Mean log-likelihood of the people it was learned from."""
    values: np.ndarray
    """That of each start, in the order of the starts."""


def random_latent_class(key: Array, answers: Answers, k: int, pseudo_count: float = 0.1) -> LatentClasses:
    """Return the likeliest of ten latent-class models, each by EM from random probabilities of yes."""

    def start(key: Array) -> LatentClass:
        yes = jax.random.uniform(key, (NUM_ITEMS, 1, k), minval=0.2, maxval=0.8)
        return LatentClass(jnp.full(k, 1 / k), jnp.concatenate([1 - yes, yes], axis=1).reshape(-1, k))

    ends = _climb(jax.vmap(start)(jax.random.split(key, _STARTS)), jnp.asarray(answers.train), pseudo_count)
    values = np.asarray(ends.log_likelihood)
    params = jax.tree.map(lambda leaf: leaf[int(np.argmax(values))], ends.params)
    return LatentClasses(params, float(values.max()), values)


@jax.jit
def _climb(starts: LatentClass, x: Array, pseudo_count: float) -> Refined:
    def one(start: LatentClass) -> Refined:
        return latent_class.refine(
            start, x, variables=NLTCS_VARIABLES, smoothing=0.0, pseudo_count=pseudo_count, max_iters=_STEPS
        )

    return jax.vmap(one)(starts)


def latent_class_score(key: Array, answers: Answers, k: int) -> float:
    """Return the mean log-likelihood of held-out people under a latent-class model.

    It puts every person into one of k classes; EM, the best of ten random starts by training likelihood.
    """
    params = random_latent_class(key, answers, k).params
    return float(jnp.mean(latent_class.log_likelihood(params, answers.test, variables=NLTCS_VARIABLES)))


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
