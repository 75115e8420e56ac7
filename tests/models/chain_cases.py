"""Small chains whose paths can be enumerated."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.models.hidden_markov.emissions import chain_of
from latensor.moments import Sequences
from latensor.moments.internal import flatten_sequences

K, TIME = 3, 6


LENGTHS = np.array([6, 1, 4, 0, 2])


KINDS = ("symbols", "reals")


VERBS = (hidden_markov.log_likelihood, hidden_markov.posterior, hidden_markov.viterbi)


def model(kind, seed=0, dtype=float):
    rng = np.random.default_rng(seed)
    initial, transition = rng.dirichlet(np.ones(K)), rng.dirichlet(np.ones(K), K)
    if kind == "symbols":
        parts = initial, transition, rng.dirichlet(np.ones(4), K).T
    else:
        parts = initial, transition, rng.normal(size=(2, K)), rng.uniform(0.2, 2.0, (2, K))
    return HiddenMarkov(*(jnp.asarray(part, dtype) for part in parts))


def observations(kind, shape, seed=1):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 4, shape) if kind == "symbols" else rng.normal(size=(*shape, 2))


def ragged(kind):
    return observations(kind, (len(LENGTHS), TIME))


def emissions(params, x):
    """Return `log P(x_t | h)`, `(time, k)`, by the formula."""
    o = np.asarray(params.emission, float)
    if params.variance is None:
        return np.log(o[x])
    v = np.asarray(params.variance, float)
    return np.sum(-((x[:, :, None] - o) ** 2) / (2 * v) - np.log(2 * math.pi * v) / 2, axis=1)


def path_log_probability(params, x, path):
    logs = emissions(params, x)
    start, steps = (np.log(np.asarray(part, float)) for part in (params.initial, params.transition))
    return start[path[0]] + steps[path[:-1], path[1:]].sum() + logs[np.arange(len(path)), path].sum()


def enumerate_paths(params, x):
    """Return the log-likelihood, posterior, expected pairs, likeliest path and its log-probability of one sequence."""
    time = len(x)
    if time == 0:
        return 0.0, np.zeros((0, K)), np.zeros((K, K)), np.zeros(0, int), 0.0
    paths = np.array(list(itertools.product(range(K), repeat=time)))
    values = np.array([path_log_probability(params, x, path) for path in paths])
    chances = np.exp(values - values.max())
    total = chances.sum()
    posterior, pairs = np.zeros((time, K)), np.zeros((K, K))
    for path, chance in zip(paths, chances / total, strict=True):
        posterior[np.arange(time), path] += chance
        np.add.at(pairs, (path[:-1], path[1:]), chance)
    return values.max() + np.log(total), posterior, pairs, paths[values.argmax()], values.max()


def end_to_end(x, lengths):
    return np.concatenate([row[:length] for row, length in zip(x, lengths, strict=True)])


def answers(params, x, lengths=None, mask=None):
    """Return the log-likelihood, posterior and path as NumPy arrays, every slice of which JAX would compile."""
    return [jax.tree.map(np.asarray, verb(params, x, lengths=lengths, mask=mask)) for verb in VERBS]


# In blocks.
LONG = np.array([37, 1, 0, 2, 16, 44])


@jax.jit
def chain(params, x, lengths):
    return chain_of(params, flatten_sequences(Sequences(x, lengths, num_symbols=4 if x.ndim == 1 else None)))[0]
