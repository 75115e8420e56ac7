"""Crowds of workers, for tests."""

import jax.numpy as jnp
import numpy as np

from latensor.models import crowd
from latensor.models.crowd import DawidSkene

WORKERS, K, ITEMS, PER_ITEM = 12, 3, 400, 6
TWO_WORKERS = np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])
METHODS = ("ptpqp", "hals", "power", "nojd0", "nojd1")


def random_model(seed, workers=WORKERS, k=K, strength=2.0):
    """Workers that are right more often than not, by different amounts."""
    rng = np.random.default_rng(seed)
    confusion = rng.dirichlet(np.ones(k), (workers, k)).swapaxes(1, 2)
    confusion += strength * rng.uniform(0.2, 1, workers)[:, None, None] * np.eye(k)
    confusion /= confusion.sum(axis=1, keepdims=True)
    return DawidSkene(jnp.asarray(rng.dirichlet(np.full(k, 5.0))), jnp.asarray(confusion))


def draw(seed, params, items=ITEMS, per_item=PER_ITEM):
    """Labels by NumPy, and the class of each item."""
    rng = np.random.default_rng(seed)
    prior, confusion = (np.asarray(leaf, float) for leaf in params)
    hidden = rng.choice(len(prior), items, p=prior / prior.sum())
    triples = []
    for item, truth in enumerate(hidden):
        for worker in rng.choice(len(confusion), per_item, replace=False):
            column = confusion[worker, :, truth]
            triples.append((item, worker, rng.choice(len(prior), p=column / column.sum())))
    return np.array(triples), hidden


def error(params, labels, hidden):
    return np.mean(np.asarray(crowd.posterior(params, labels)).argmax(axis=1) != hidden)
