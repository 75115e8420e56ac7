"""Moments of the Gaussian mixture and of the Gamma-Poisson model."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from latensor.moments import (
    Table,
    contract_gamma_poisson_moments,
    contract_gaussian_moments,
    cumulants,
    gamma_poisson_moments,
    gaussian_moments,
)
from latensor.moments.internal import (
    ContractedCumulants,
    centre,
    contract_third,
    correct_gamma_poisson,
    correct_gaussian,
    correct_lifted,
    gamma_poisson_cumulants,
    second_cumulant_diagonal,
    second_cumulant_operator,
)
from tests.moments.tables import D, draw, explicit_third, relative


# On distributions that are sums over a few points: then moments are exact.
def test_gaussian_moments_are_those_of_the_components(float64):
    rng = np.random.default_rng(0)
    means, weights, variance = rng.normal(size=(2, 3)), np.array([0.5, 0.3, 0.2]), 0.7
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(3)
    points, mass = [], []
    for h, i, j in itertools.product(range(3), repeat=3):
        points.append(means[:, h] + np.sqrt(variance) * np.array([nodes[i], nodes[j]]))
        mass.append(weights[h] * node_weights[i] * node_weights[j])
    x, mass = jnp.asarray(points), jnp.asarray(mass)
    table = Table(x, row_weights=mass)
    moments = gaussian_moments(table, variance)
    np.testing.assert_allclose(moments.first, means @ weights, atol=1e-12)
    np.testing.assert_allclose(moments.second, means * weights @ means.T, atol=1e-12)
    np.testing.assert_allclose(moments.third, np.einsum("h,ih,jh,lh->ijl", weights, means, means, means), atol=1e-12)
    directions = jnp.asarray(rng.normal(size=(2, 2)))
    contracted = contract_gaussian_moments(table, directions, variance)
    np.testing.assert_allclose(contracted, contract_third(moments.third, directions), atol=1e-12)


def test_lifted_moments_are_those_of_centred_means_and_a_constant(float64):
    """With variances that differ between components."""
    rng = np.random.default_rng(1)
    means, weights, variances = rng.normal(size=(4, 3)), np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.7, 2.0])
    centred = means - (means @ weights)[:, None]
    second = (centred * weights) @ centred.T
    values, vectors = np.linalg.eigh(second)
    # Three centred means span two directions; the third is the place of the constant.
    directions = np.pad(vectors[:, -2:] / np.sqrt(values[-2:]), ((0, 0), (0, 1)))
    noise, identity = centred @ (weights * variances), np.eye(4)
    mixed = sum(np.einsum(letters, noise, identity) for letters in ("i,jl->ijl", "j,il->ijl", "l,ij->ijl"))
    third = np.einsum("h,ih,jh,lh->ijl", weights, centred, centred, centred) + mixed
    variance = weights @ variances
    seen = ContractedCumulants(
        jnp.asarray(directions.T @ means @ weights),
        jnp.asarray((second + variance * identity) @ directions),
        contract_third(jnp.asarray(third), jnp.asarray(directions)),
        jnp.int32(0),
        jnp.asarray(directions.T @ noise),
    )
    lifted = directions.T @ centred
    lifted[-1] = 1
    expected = np.einsum("h,ih,jh,lh->ijl", weights, lifted, lifted, lifted)
    result = correct_lifted(seen, jnp.asarray(directions), jnp.asarray(variance))
    np.testing.assert_allclose(result, expected, atol=1e-12)


def test_gamma_poisson_moments_are_those_of_the_intensities(float64):
    # Intensities on three points; Poisson counts up to 40, where nothing is left.
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.ones(2), 2).T
    alpha, weights = np.array([[0.5, 2.0], [3.0, 1.0], [1.0, 4.0]]), np.array([0.5, 0.3, 0.2])
    counts = np.arange(41)
    factorial = np.cumsum(np.log(np.maximum(counts, 1)))
    points, mass = [], []
    for a, w in zip(alpha, weights, strict=True):
        lam = topics @ a
        logs = counts[None, :] * np.log(lam)[:, None] - lam[:, None] - factorial[None, :]
        for i, j in itertools.product(counts, repeat=2):
            points.append([i, j])
            mass.append(w * np.exp(logs[0, i] + logs[1, j]))
    x, mass = jnp.asarray(points, float), jnp.asarray(mass)
    table = Table(x, row_weights=mass)
    moments = gamma_poisson_moments(table)
    centred = topics @ (alpha - weights @ alpha).T  # (d, points): what A α does without the Poisson noise
    np.testing.assert_allclose(moments.second, centred * weights @ centred.T, atol=1e-9)
    third = np.einsum("p,ip,jp,lp->ijl", weights, centred, centred, centred)
    np.testing.assert_allclose(moments.third, third, atol=1e-9)
    directions = jnp.asarray(rng.normal(size=(2, 2)))
    contracted = contract_gamma_poisson_moments(table, directions)
    np.testing.assert_allclose(contracted, contract_third(moments.third, directions), atol=1e-9)
    back = gamma_poisson_cumulants(moments)
    np.testing.assert_allclose(back.third, cumulants(table).third, atol=1e-9)


@pytest.mark.parametrize("method", ["implicit", "available"])
def test_contracted_corrections_equal_dense_ones_under_a_mask(method, float64):
    x, mask, directions, _ = draw()
    table = Table(x, mask)
    if method == "available":
        dense = gaussian_moments(table, 0.5).third, gamma_poisson_moments(table).third
    else:
        third = jnp.asarray(explicit_third(x, mask))
        data = centre(table)
        second = second_cumulant_operator(data, second_cumulant_diagonal(data))(jnp.eye(D))
        seen = ContractedCumulants(data.mean, second, third, jnp.int32(0))
        dense = (
            correct_gaussian(seen, jnp.eye(D), jnp.array(0.5)),
            correct_gamma_poisson(seen, jnp.eye(D), data.mean),
        )
    contracted = (
        contract_gaussian_moments(table, directions, 0.5, method=method),
        contract_gamma_poisson_moments(table, directions, method=method),
    )
    for a, b in zip(contracted, dense, strict=True):
        assert relative(a, np.asarray(contract_third(b, directions))) < 1e-10
