"""Derivatives of decompositions against central differences: also where eigenvalues coincide, and nearly coincide.

Whiteners and orders of components are arbitrary, so functions are compared that do not depend on them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import (
    composite_likelihood_em,
    composite_likelihood_em_samples,
    conditionals_from_views,
    diagonalize_slices,
    joint_diagonalization,
    power_method,
    pseudoinverse_marginals,
    simultaneous_diagonalization,
    whiten,
    whiten_operator,
)
from latensor.decompose.internal import (
    Evaluation,
    dominant_space,
    expectation_maximization,
    noise_space,
    pseudoinverse,
)

D, K = 6, 3
# The largest first; then equal ones, and ones that differ by less than a central difference can see.
SPECTRA = {
    "random": (5.0, 3.0, 2.0),
    "tied": (3.0, 3.0, 2.0),
    "all tied": (3.0, 3.0, 3.0),
    "close": (3.0, 3 + 1e-9, 2.0),
}
TOLERANCE = 1e-5


def compare(function, inputs, step=1e-5):
    """Compare the derivative along a random direction, by both modes, with a central difference."""
    rng = np.random.default_rng(7)

    def like(tree):
        return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=np.shape(leaf))), tree)

    def shifted(by):
        return jax.tree.map(lambda leaf, move: leaf + by * move, inputs, direction)

    direction = like(inputs)
    value = jax.jit(function)
    expected = jax.tree.map(lambda a, b: (a - b) / (2 * step), value(shifted(step)), value(shifted(-step)))
    _, forward = jax.jit(lambda at, along: jax.jvp(function, (at,), (along,)))(inputs, direction)
    weights = like(expected)
    (backward,) = jax.jit(lambda at, weights: jax.vjp(function, at)[1](weights))(inputs, weights)
    for one, other in zip(jax.tree.leaves(forward), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * np.max(np.abs(other)))
    by_forward = sum(jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (forward, weights)), strict=True))
    by_backward = sum(jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (backward, direction)), strict=True))
    np.testing.assert_allclose(by_backward, by_forward, rtol=1e-9)


def symmetric(seed, spectrum, size=D):
    """Return a matrix with these largest eigenvalues; the others coincide."""
    vectors, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    values = np.concatenate([spectrum, np.full(size - len(spectrum), 0.4)])
    return jnp.asarray(vectors * values @ vectors.T)


def projections(whitening):
    return whitening.whitener @ whitening.whitener.T, whitening.unwhitener @ whitening.unwhitener.T


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA)
def test_whiten(spectrum, float64):
    compare(lambda second: projections(whiten(second, K)), symmetric(0, spectrum))


@pytest.mark.parametrize("spectrum", [SPECTRA["tied"]], ids=["tied"])
def test_whiten_by_products(spectrum, float64):
    def project(second):
        operator = lambda vectors: (second + second.T) @ vectors / 2  # noqa: E731
        key = jax.random.key(0)
        return projections(whiten_operator(key, operator, D, K, tol=1e-14, max_iters=500, oversample=0))

    compare(project, symmetric(0, spectrum))


def test_the_second_derivative_of_a_whitener(float64):
    # What whitens nearby has another basis: the first derivative has to be right there, too.
    def along(second):
        return jax.jvp(lambda second: projections(whiten(second, K)), (second,), (symmetric(1, (1.0, -1.0, 2.0)),))[1]

    compare(along, symmetric(0, SPECTRA["tied"]))


def test_a_space_without_a_gap_has_a_finite_derivative(float64):
    second = jnp.eye(D)
    _, change = jax.jvp(lambda second: projections(whiten(second, K)), (second,), (symmetric(0, (1.0,)),))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(change))


@pytest.mark.parametrize("spectrum", [SPECTRA["random"], SPECTRA["all tied"]], ids=["random", "all tied"])
def test_spaces(spectrum, float64):
    included = jnp.arange(D) < 5

    def spaces(second):
        split = noise_space(second, 2, included)
        basis = dominant_space(second, K)
        return split.variance, split.signal @ split.signal.T, basis @ basis.T

    matrix = symmetric(0, spectrum) + jnp.diag(jnp.arange(D) / 5)
    compare(spaces, matrix)


def orthogonal(seed, values, noise):
    rng = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(rng.normal(size=(K, K)))
    tensor = np.einsum("h,ih,jh,lh->ijl", values, vectors, vectors, vectors)
    return jnp.asarray(tensor + noise * rng.normal(size=tensor.shape))


@pytest.mark.parametrize("orthonormal", [False, True])
@pytest.mark.parametrize("method", [power_method, diagonalize_slices], ids=["power", "slices"])
def test_eigenpairs(method, orthonormal, float64):
    def sums(tensor):
        rank = (K,) if method is power_method else ()
        pairs = method(jax.random.key(0), tensor, *rank, orthogonal=orthonormal)
        return jnp.sum(pairs.values[None, :] * pairs.vectors**3, axis=1), pairs.vectors**2 @ pairs.values

    cases = [orthogonal(0, SPECTRA["random"], 0.05)]
    if method is power_method:
        cases += [orthogonal(1, SPECTRA[name], 0.0) for name in ("all tied", "close")]
    for tensor in cases:
        # The power method stops at changes of 1e-8: a larger step.
        compare(sums, tensor, 1e-4)


@pytest.mark.parametrize(("weights", "definite"), [((2, 1, 1.5), True), ((1, 1, 1), True), ((1, -1, 1), False)])
def test_simultaneous_diagonalization(weights, definite, float64):
    columns = np.random.default_rng(0).normal(size=(D, K))
    second = jnp.asarray(columns * np.array(weights) @ columns.T)
    slice_ = jnp.asarray(columns * np.array([3.0, 1.0, -2.0]) @ columns.T)

    def sums(matrices):
        found = simultaneous_diagonalization(*matrices, K, definite=definite)
        return found.factors**2 @ found.second_weights, found.factors**4 @ found.slice_weights

    compare(sums, (second, slice_))


@pytest.mark.parametrize("method", ["ojd1", "nojd1"])
def test_joint_diagonalization(method, float64):
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(K, K)) + 2 * np.eye(K)
    columns = np.linalg.qr(columns)[0] if method == "ojd1" else columns
    matrices = np.einsum("ih,lh,jh->lij", columns, rng.normal(size=(4, K)), columns)
    matrices = jnp.asarray(matrices + 0.01 * rng.normal(size=matrices.shape))

    # Both, since JAX 0.5.3 cannot transpose a solve whose solution is not asked for.
    def parts(matrices):
        found = joint_diagonalization(matrices, method)
        return found.factors, found.diagonals

    compare(parts, matrices)


def views(seed=0):
    rng = np.random.default_rng(seed)
    conditionals = [rng.dirichlet(np.ones(d), K).T for d in (4, 5, 6)]
    weights = np.array([0.5, 0.3, 0.2])
    first = [matrix @ weights for matrix in conditionals]
    second = [conditionals[a] * weights @ conditionals[b].T for a, b in ((0, 1), (0, 2), (1, 2))]
    third = np.einsum("h,ih,jh,lh->ijl", weights, *conditionals)
    return jax.tree.map(jnp.asarray, (tuple(first), tuple(second), third)), tuple(map(jnp.asarray, conditionals))


def test_conditionals_from_views(float64):
    moments, _ = views()

    def conditionals(moments):
        found = conditionals_from_views(jax.random.key(0), *moments, K)
        return found.conditionals, found.weights

    compare(conditionals, moments, 1e-7)


@pytest.mark.parametrize("spectrum", [SPECTRA["random"], SPECTRA["tied"]], ids=["random", "tied"])
def test_pseudoinverse(spectrum, float64):
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(size, size)))[0] for size in (D, K))
    compare(pseudoinverse, jnp.asarray(left[:, :K] * np.array(spectrum) @ right.T))


def test_marginals(float64):
    _, conditionals = views()
    both, table = conditionals[:2], np.random.default_rng(1).dirichlet(np.full(K * K, 5.0)).reshape(K, K)
    pair = both[0] @ table @ both[1].T
    compare(lambda inputs: pseudoinverse_marginals(*inputs), (pair, both))
    compare(lambda inputs: composite_likelihood_em(*inputs, tol=1e-14).table, (pair, both), 1e-6)


def test_marginals_of_samples(float64):
    rng = np.random.default_rng(0)
    likelihoods = tuple(jnp.asarray(rng.dirichlet(np.full(k, 0.3), 60)) for k in (3, 2))

    def table(inputs):
        return composite_likelihood_em_samples(*inputs, tol=1e-13, newton=True).table

    # An entry of the table that is zero stays there, and has no derivative.
    compare(table, (likelihoods, jnp.asarray(rng.uniform(0.5, 1, 60))), 1e-7)


def test_where_em_comes_to_rest(float64):
    rng = np.random.default_rng(0)
    chances = jnp.asarray(rng.dirichlet(np.ones(3), 60))

    def rest(weights):
        def step(share):
            joint = chances * share[None, :]
            totals = jnp.sum(joint, axis=1)
            updated = weights @ (joint / totals[:, None]) / jnp.sum(weights)
            return Evaluation(updated, jnp.sum(weights * jnp.log(totals)) / jnp.sum(weights))

        result = expectation_maximization(step, jnp.full(3, 1 / 3), tol=0.0, max_iters=5000)
        return result.params, result.objective

    # A weight of zero has a derivative too.
    compare(rest, jnp.asarray(rng.uniform(0.5, 1, 60)).at[3].set(0.0), 1e-4)
