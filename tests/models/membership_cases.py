"""Mixed-membership models with exact likelihoods, for tests."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from latensor.models.mixed_membership import MixedMembership, inference
from latensor.models.mixed_membership.likelihood import likelihoods_around
from latensor.moments import Table, Variables

# Most tests share these variables and shapes, and with them what was compiled.
MIXED = Variables(("categorical", "real", "categorical", "real", "categorical"), (3, 1, 2, 1, 4))


P, K, N = 5, 3, 60


def random_model(seed, variables=MIXED, k=K, scale=1.0, concentration=0.5):
    """Components have categories from Dirichlet(`concentration`), means of deviation three, variances near one."""
    rng = np.random.default_rng(seed)
    blocks = [
        rng.normal(0, 3, (1, k)) if kind == "real" else rng.dirichlet(np.full(size, concentration), k).T
        for kind, size in zip(variables.kinds, variables.sizes, strict=True)
    ]
    real = variables.real.size
    variances = jnp.asarray(rng.uniform(0.5, 2, real)) if real else None
    return MixedMembership(jnp.asarray(scale * np.linspace(0.7, 1.3, k)), jnp.asarray(np.vstack(blocks)), variances)


def draw(seed, params, num_samples, variables=MIXED):
    """Rows by NumPy: jax.random.loggamma takes seconds to compile for every shape."""
    rng = np.random.default_rng(seed)
    alpha, tables = (np.asarray(leaf, np.float64) for leaf in params[:2])
    hidden = rng.dirichlet(alpha, num_samples)
    columns, num_real = [], 0
    for kind, low, size in zip(variables.kinds, variables.offsets[:-1], variables.sizes, strict=True):
        component = (rng.uniform(size=(num_samples, 1)) > np.cumsum(hidden, axis=1)[:, :-1]).sum(axis=1)
        if kind == "real":
            columns.append(rng.normal(tables[low, component], math.sqrt(params.variances[num_real])))
            num_real += 1
        else:
            cumulative = np.cumsum(tables[low : low + size, component], axis=0)[:-1]
            columns.append((rng.uniform(size=num_samples)[None] > cumulative).sum(axis=0))
    x = np.stack(columns, axis=1)
    return jnp.asarray(x, params.tables.dtype if variables.real.size else jnp.int32)


def holes(seed, x):
    """A mask, and the table with what must not matter under it."""
    mask = np.random.default_rng(seed).uniform(size=x.shape) < 0.7
    mask[0] = False
    junk = np.where(np.arange(x.shape[1]) % 2 == 0, 99, np.nan)[None]
    return jnp.asarray(mask), jnp.asarray(np.where(mask, x, junk), x.dtype)


def infer(params, x, mask, variables=MIXED, tol=1e-9, max_iters=20_000):
    dtype = params.tables.dtype
    return inference.infer_memberships(
        params, Table(x, mask, variables=variables), jnp.asarray(tol, dtype), jnp.int32(max_iters)
    )


@jax.jit
def _entries(params, x, mask):
    return inference.entry_likelihoods(params, Table(x, mask, variables=MIXED))


@jax.jit
def _bound(params, x, mask, gamma):
    return inference.evidence_bound(params, _entries(params, x, mask), gamma.T)


@partial(jax.jit, static_argnames="variables")
def likelihood(key, params, x, mask, gamma, variables=MIXED):
    return likelihoods_around(key, params, Table(x, mask, variables=variables), gamma, 400)


def assert_close(a, b, tolerance):
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)
