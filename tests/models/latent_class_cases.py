"""Latent classes, for tests."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from latensor.models import latent_class
from latensor.models.latent_class import LatentClass
from latensor.moments import Variables

# Columns of 2 to 7 categories and real ones.
MIXED = Variables(
    ("categorical", "real", "categorical", "categorical", "real", "categorical", "categorical", "real", "categorical"),
    (2, 1, 7, 3, 1, 4, 5, 1, 2),
)
CODES = Variables(("categorical",) * 9, (3,) * 9)
K = 3
METHODS = ("power", "nojd0", "ojd1", "ptpqp", "hals")


def random_model(seed, variables=CODES, k=K, concentration=0.5):
    """Classes have categories from Dirichlet(`concentration`), means of deviation three, variances near one."""
    rng = np.random.default_rng(seed)
    blocks = [
        rng.normal(5, 3, (1, k)) if kind == "real" else rng.dirichlet(np.full(size, concentration), k).T
        for kind, size in zip(variables.kinds, variables.sizes, strict=True)
    ]
    real = variables.real.size
    weights = np.sort(rng.dirichlet(np.full(k, 8.0)))[::-1]
    variances = jnp.asarray(rng.uniform(0.5, 2, (real, k))) if real else None
    return LatentClass(jnp.asarray(weights), jnp.asarray(np.vstack(blocks)), variances)


def draw(seed, params, num_samples, variables=CODES):
    # Small samples are cut from one size, because every size would compile again.
    drawn = max(num_samples, 5_000)
    return np.array(latent_class.sample(jax.random.key(seed), params, drawn, variables=variables).x[:num_samples])


def holes(seed, x, rate=0.2):
    return np.random.default_rng(seed).uniform(size=x.shape) > rate


def worst_error(truth, params):
    """The largest error after the best order of classes, relative to the size of each field."""
    errors = []
    for order in itertools.permutations(range(len(truth.weights))):
        parts = zip(truth, latent_class.permute(params, np.array(order)), strict=True)
        errors.append(max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(a))) for a, b in parts if a is not None))
    return min(errors)
