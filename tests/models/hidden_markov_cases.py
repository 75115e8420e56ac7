"""Hidden Markov models, data and comparisons for tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from tests.helpers import best_order, largest

KEY = jax.random.key(0)


# Nearly all tests share these shapes, so that a fit compiles once.
N, TIME, K, D = 100, 100, 3, 12


EVERY = np.full(N, TIME)


def as_model(*parts, dtype=float):
    return HiddenMarkov(*(jnp.asarray(part, dtype) for part in parts))


def _columns(rng, d, k, concentration=0.5):
    return rng.dirichlet(np.full(d, concentration), k).T


def clear_model(seed, d=D, k=K):
    """Return a model whose states stay for a while, which the noise of 10,000 symbols leaves in sight."""
    rng = np.random.default_rng(seed)
    transition = 0.6 * np.eye(k) + 0.4 * rng.dirichlet(np.ones(k), k)
    return as_model(rng.dirichlet(np.ones(k)), transition, _columns(rng, d, k))


def draw(params, seed, n=N, time=TIME):
    """Draw sequences by NumPy."""
    rng = np.random.default_rng(seed)
    initial, transition, emission = (np.asarray(part, float) for part in params[:3])
    (d, k), states = emission.shape, np.zeros((n, time), int)
    states[:, 0] = (rng.uniform(size=(n, 1)) > initial.cumsum()).sum(axis=1).clip(max=k - 1)
    for t in range(1, time):
        ends = transition.cumsum(axis=1)[states[:, t - 1]]
        states[:, t] = (rng.uniform(size=(n, 1)) > ends).sum(axis=1).clip(max=k - 1)
    if params.variance is not None:
        scale = np.sqrt(np.asarray(params.variance, float)).T[states]
        return emission.T[states] + scale * rng.normal(size=(n, time, d))
    return (rng.uniform(size=(n, time, 1)) > emission.cumsum(axis=0).T[states]).sum(axis=2).clip(max=d - 1)


def fit(x, lengths=EVERY, row_weights=None, **options):
    options = ({} if x.ndim == 3 else {"num_symbols": D}) | options
    row_weights = np.ones(len(lengths)) if row_weights is None else row_weights
    return hidden_markov.fit(KEY, x, K, lengths=lengths, row_weights=row_weights, **options)


def in_order(truth, estimate):
    """Return an estimate with its states in the order of the truth."""
    truth, estimate = (jax.tree.map(np.asarray, each) for each in (truth, estimate))
    columns = [np.concatenate([m.emission, *([] if m.variance is None else [m.variance])]) for m in (truth, estimate)]
    order = best_order(*columns)
    variance = None if estimate.variance is None else estimate.variance[:, order]
    parts = estimate.initial[order], estimate.transition[order][:, order], estimate.emission[:, order], variance
    return HiddenMarkov(*parts)


def errors(truth, estimate):
    """Return the largest errors of the initial distribution, the transitions, the emissions and the variances."""
    estimate = in_order(truth, estimate)
    return [largest(a - b) for a, b in zip(truth, estimate, strict=True) if a is not None]


def assert_same(one, two, tol):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tol, atol=tol), one, two)


# Population moments: recovery without noise.
EXACT = [
    *((5, 20, marginals, polish) for marginals in ("likelihood", "pseudoinverse") for polish in (True, False)),
    *((k, d, *how) for k, d in ((6, 6), (2, 50)) for how in (("likelihood", True), ("pseudoinverse", False))),
]


# Symbols.
@functools.cache
def trials():
    """Return for 8 models: the truth, symbols, and fits to few of them, to all, and to all without polishing."""
    few, many = (np.arange(N) < 5).astype(float), np.ones(N)
    results = []
    for seed in range(8):
        truth = clear_model(seed)
        x = draw(truth, seed)
        fits = [fit(x, row_weights=w, polish=polish) for w, polish in ((few, True), (many, True), (many, False))]
        results.append((truth, x, fits))
    return results


def occurrence(params):
    return np.linalg.matrix_power(np.asarray(params.transition), 1000)[0]


def assert_finite(tree):
    for leaf in jax.tree.leaves(tree):
        assert np.all(np.isfinite(leaf))
