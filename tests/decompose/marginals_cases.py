"""Tables of observations whose hidden marginals are asked for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from latensor.decompose import (
    composite_likelihood_em,
)

# Modes, states and categories of each, and the number of problems: one compilation for all problems of a shape.
SHAPES = {(1, 8, 30): 60, (2, 4, 12): 56, (3, 3, 8): 56, (2, 8, 30): 14, (3, 4, 10): 14}


SMALL = (2, 4, 12)


@functools.cache
def problems(shape):
    """Return counts, conditionals and the truth, `(problems, …)` each; half of the tables are exact.

    Half of the entries of a truth are zero, so that the optima lie on the boundary.
    """
    m, k, d = shape
    rng = np.random.default_rng([m, k, d])
    counts, conditionals, truths = [], [], []
    for number in range(SHAPES[shape]):
        matrices = [rng.dirichlet(np.full(d, rng.uniform(0.3, 1)), k).T for _ in range(m)]
        truth = rng.dirichlet(np.ones(k**m)) * (rng.random(k**m) < 0.5)
        truth[rng.integers(k**m)] += 0.1
        truth = (truth / truth.sum()).reshape([k] * m)
        table = joint(truth, matrices)
        if number % 2:
            table = rng.multinomial(10 ** rng.integers(2, 5), table.reshape(-1)).reshape(table.shape).astype(float)
        counts.append(table)
        conditionals.append(matrices)
        truths.append(truth)
    return np.stack(counts), tuple(np.stack(part) for part in zip(*conditionals, strict=True)), np.stack(truths)


def joint(table, matrices):
    """Return `Z(O₁, …, O_m)`, one mode after the other."""
    for matrix in matrices:
        table = np.tensordot(table, matrix, axes=(0, 1))
    return table


def by_barrier(counts, matrices):
    """Maximize `Σ w log(Oz)` over the simplex by a log barrier and Newton's method; return the maximum and its gap.

    The barrier's optimum, scaled to sum to one, has a gap of at most `K t`; what is returned is computed anew. Products
    of small matrices only: larger ones make BLAS start threads, which wait for each other where cores are few.
    """
    weights = np.maximum(counts, 0) / np.maximum(counts, 0).sum()
    transposed = [matrix.T for matrix in matrices]
    squares = [(matrix[:, :, None] * matrix[:, None, :]).reshape(len(matrix), -1).T for matrix in matrices]
    shape, m = [matrix.shape[1] for matrix in matrices], len(matrices)
    size = int(np.prod(shape))
    z = np.full(shape, 1 / size)

    def value(z):
        return np.sum(weights[weights > 0] * np.log(joint(z, matrices)[weights > 0]))

    def objective(z, t):
        return value(z) - z.sum() + t * np.log(z).sum()

    for t in 10.0 ** -np.arange(1, 10, 1.5) / size:
        for _ in range(50):
            fitted = joint(z, matrices)
            gradient = z * joint(weights / fitted, transposed) - z + t  # of the logarithms of z
            hessian = joint(weights / fitted**2, squares).reshape([k for k in shape for _ in range(2)])
            hessian = hessian.transpose(*range(0, 2 * m, 2), *range(1, 2 * m, 2)).reshape(size, size)
            hessian = z.reshape(-1, 1) * hessian * z.reshape(1, -1) + t * np.eye(size)
            step = np.linalg.solve(hessian, gradient.reshape(-1)).reshape(shape)
            decrement = np.sum(gradient * step)
            if decrement < 1e-3 * t:
                break
            length = min(1, 0.95 / max(-step.min(), 0.95))
            while objective(z * (1 + length * step), t) < objective(z, t) + 0.1 * length * decrement - 1e-15:
                length /= 2
            z = z * (1 + length * step)
    z = z / z.sum()
    return value(z), certificate(z, counts, matrices)


def certificate(table, counts, matrices):
    """Return by how much the likelihood can be larger elsewhere, at most."""
    weights = np.maximum(counts, 0) / np.maximum(counts, 0).sum()
    return np.max(joint(weights / joint(table, matrices), [matrix.T for matrix in matrices])) - 1


def log_likelihood(table, counts, matrices):
    weights = np.maximum(counts, 0) / np.maximum(counts, 0).sum()
    seen = weights > 0
    return np.sum(weights[seen] * np.log(joint(table, matrices)[seen]))


def solve_all(counts, conditionals, **options):
    """Solve a batch of problems with one compilation."""
    result = jax.vmap(lambda c, o: composite_likelihood_em(c, o, **options))(
        jnp.asarray(counts, float), tuple(jnp.asarray(part, float) for part in conditionals)
    )
    return jax.tree.map(np.asarray, result)
