"""A mixture with known components, for tests of the EM loop."""

import jax
import jax.numpy as jnp
import numpy as np

from latensor.decompose.internal import Evaluation, expectation_maximization

# Proportions of a mixture whose components are known: densities of each sample for each component.
SAMPLES, STATES = 200, 4


def densities(seed, distance=1.0):
    """Return normal densities with means `distance` apart: the closer they are, the slower EM is."""
    rng = np.random.default_rng(seed)
    means = distance * np.arange(STATES)
    x = rng.normal(means[rng.choice(STATES, SAMPLES, p=[0.6, 0.2, 0.15, 0.05])])
    return np.exp(-((x[:, None] - means) ** 2) / 2)


def by_hand(likelihoods, steps):
    weights = np.full(STATES, 1 / STATES)
    for _ in range(steps):
        posterior = likelihoods * weights
        weights = np.mean(posterior / posterior.sum(axis=1, keepdims=True), axis=0)
    return weights


def objective(weights, likelihoods):
    return np.mean(np.log(likelihoods @ weights))


def gap(weights, likelihoods):
    """Return an upper bound on how much larger the objective can be elsewhere."""
    return np.max(np.mean(likelihoods / (likelihoods @ weights)[:, None], axis=0)) - 1


def step(weights, likelihoods, done):
    fitted = jnp.sum(likelihoods * weights[None, :], axis=1)
    gradient = jnp.mean(likelihoods / fitted[:, None], axis=0)
    return Evaluation(weights * gradient, jnp.mean(jnp.log(fitted)), jnp.max(gradient) - 1 <= done)


def feasible(jump, back):
    jump = jnp.maximum(jump, 0.01 * back)
    return jump / jnp.sum(jump)


def run(likelihoods, max_iters, tol=-jnp.inf, done=-jnp.inf, accelerate=True, start=None, scale=1.0, history=None):
    return expectation_maximization(
        lambda weights: step(weights, likelihoods, done),
        jnp.full(STATES, 1 / STATES, likelihoods.dtype) if start is None else start,
        tol=tol,
        max_iters=max_iters,
        scale=scale,
        feasible=feasible if accelerate else None,
        history=history,
    )


jitted = jax.jit(run, static_argnames=("accelerate", "history"))


batched = jax.jit(
    lambda many, limit, done, accelerate: jax.vmap(lambda one: run(one, limit, done=done, accelerate=accelerate))(many),
    static_argnums=3,
)
