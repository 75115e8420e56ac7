import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latensor import moments
from latensor.moments import (
    centre,
    contract_cumulants,
    contract_gamma_poisson_moments,
    contract_gaussian_moments,
    contract_third,
    contract_third_cumulant,
    cumulants,
    gamma_poisson_cumulants,
    gamma_poisson_moments,
    gaussian_moments,
    joint_observation_rates,
    observation_rates,
    second_cumulant,
    second_cumulant_diagonal,
    second_cumulant_operator,
)
from tests.helpers import lowers

N, D, R = 300, 6, 3


def table(seed=0, low=0.05, high=1.0, n=N, d=D):
    """A skewed table with an offset, dimensions observed at rates from `low` to `high`, NaN where hidden."""
    rng = np.random.default_rng(seed)
    x = rng.gamma(1.0, size=(n, d)) @ rng.normal(size=(d, d)) + 5 * rng.normal(size=d)
    mask = rng.uniform(size=(n, d)) < np.linspace(low, high, d)
    mask[0] = True
    return jnp.asarray(np.where(mask, x, np.nan)), jnp.asarray(mask), jnp.asarray(rng.normal(size=(d, R))), x


def explicit_third(x, mask, weights=None):
    """The inverse-propensity tensor, entry by entry: one factor 1/p for each *different* index."""
    x, mask = np.asarray(x), np.asarray(mask)
    weights = np.full(len(x), 1 / len(x)) if weights is None else np.asarray(weights) / np.asarray(weights).sum()
    rates = weights @ mask
    mean = weights @ np.where(mask, x, 0) / rates
    rest = np.where(mask, x - mean, 0)
    third = np.zeros((x.shape[1],) * 3)
    for index in itertools.product(range(x.shape[1]), repeat=3):
        entry = weights @ (rest[:, index[0]] * rest[:, index[1]] * rest[:, index[2]])
        third[index] = entry / np.prod([rates[i] for i in set(index)])
    return third


def relative(value, reference):
    return float(np.max(np.abs(np.asarray(value) - reference)) / np.max(np.abs(reference)))


# Inverse propensities.
@pytest.mark.parametrize(("low", "high"), [(0.05, 1.0), (0.05, 0.3), (0.9, 1.0)])
@pytest.mark.parametrize("weighted", [False, True])
def test_implicit_contraction_equals_that_of_the_explicit_tensor(low, high, weighted, float64):
    for seed in range(3):
        x, mask, directions, _ = table(seed, low, high)
        weights = jnp.asarray(np.random.default_rng(seed).uniform(size=N)) if weighted else None
        expected = np.einsum("ijl,ia,jb,lc->abc", explicit_third(x, mask, weights), *[directions] * 3)
        assert relative(contract_third_cumulant(x, directions, mask, weights), expected) < 1e-10


def test_float32_contraction(float64):
    x, mask, directions, _ = table(1)
    expected = contract_third_cumulant(x, directions, mask)
    found = contract_third_cumulant(x.astype(jnp.float32), directions.astype(jnp.float32), mask)
    assert found.dtype == jnp.float32
    assert relative(found, np.asarray(expected)) < 1e-4


@pytest.mark.parametrize("method", ["implicit", "available"])
def test_a_full_mask_changes_nothing(method, float64):
    _, _, directions, x = table()
    x, full = jnp.asarray(x), jnp.ones((N, D), bool)
    masked = contract_cumulants(centre(x, full), directions, method)
    plain = contract_cumulants(centre(x), directions, method)
    for a, b in zip(masked[:3], plain[:3], strict=True):
        assert relative(a, np.asarray(b)) < 1e-12
    assert relative(plain.third, np.asarray(contract_third(cumulants(x).third, directions))) < 1e-12


@pytest.mark.parametrize("block", [1, 4, 6, None])
def test_blocked_and_dense_available_case_agree(block, float64):
    x, mask, directions, _ = table()
    dense = contract_third(cumulants(x, mask).third, directions)
    blocked = contract_third_cumulant(x, directions, mask, method="available", block=block)
    assert relative(blocked, np.asarray(dense)) < 1e-12


def test_available_case_against_loops_and_unobserved_entries(float64):
    x, mask, _, _ = table(2)
    # Dimensions 0 and 1 are never observed together, nor are 0, 2 and 3.
    mask = mask.at[:, 1].set(mask[:, 1] & ~mask[:, 0]).at[:, 3].set(mask[:, 3] & ~(mask[:, 0] & mask[:, 2]))
    found = cumulants(x, mask)
    rest = np.where(mask, np.asarray(x) - np.asarray(found.mean), 0)
    unobserved = 0
    for i, j, m in itertools.product(range(D), repeat=3):
        rows = np.asarray(mask[:, i] & mask[:, j] & mask[:, m])
        unobserved += not rows.any()
        expected = np.mean(rest[rows, i] * rest[rows, j] * rest[rows, m]) if rows.any() else 0.0
        np.testing.assert_allclose(found.third[i, j, m], expected, rtol=1e-10, atol=1e-12)
    assert found.num_unobserved == unobserved > 0
    assert all(np.all(np.isfinite(leaf)) for leaf in found)
    second, pairs = second_cumulant(centre(x, mask))
    assert pairs == 2
    assert second[0, 1] == 0
    assert contract_cumulants(centre(x, mask), jnp.eye(D), "available", 4).num_unobserved == unobserved


def test_implicit_second_cumulant(float64):
    x, mask, directions, _ = table()
    data = centre(x, mask)
    rest = np.where(mask, np.asarray(x) - np.asarray(data.mean), 0) / np.asarray(data.rates)
    expected = rest.T @ rest / N
    np.fill_diagonal(expected, np.diag(expected) * np.asarray(data.rates))
    np.testing.assert_allclose(second_cumulant_diagonal(data), np.diag(expected), rtol=1e-12)
    product = second_cumulant_operator(data, second_cumulant_diagonal(data))(directions)
    assert relative(product, expected @ directions) < 1e-12
    assert relative(contract_cumulants(data, directions).second, expected @ directions) < 1e-12


@pytest.mark.parametrize("method", ["implicit", "available"])
def test_row_weights_are_repetitions(method, float64):
    x, mask, directions, _ = table()
    counts = np.random.default_rng(0).integers(0, 4, N)
    counts[0] = 2
    repeated = np.repeat(np.arange(N), counts)
    weighted = contract_cumulants(centre(x, mask, jnp.asarray(counts, float)), directions, method)
    expected = contract_cumulants(centre(x[repeated], mask[repeated]), directions, method)
    for a, b in zip(weighted[:3], expected[:3], strict=True):
        assert relative(a, np.asarray(b)) < 1e-10


def test_expectation_over_masks_is_the_complete_moment(float64):
    """Unbiased: averaged over many independent masks, the implicit contraction is the complete one."""
    _, _, directions, x = table(n=400)
    x = jnp.asarray(x - x.mean(axis=0))
    complete = contract_third_cumulant(x, directions)
    rates = jnp.linspace(0.3, 1, D)

    @jax.jit
    @jax.vmap
    def masked(key):
        mask = jax.random.bernoulli(key, rates[None, :], x.shape)
        return contract_third_cumulant(x, directions, mask)

    values = masked(jax.random.split(jax.random.key(0), 2000))
    error = jnp.std(values, axis=0) / np.sqrt(2000)
    # 27 entries (10 distinct), five standard errors; centring by the observed mean biases by O(1/n), well below one.
    assert bool(jnp.all(jnp.abs(jnp.mean(values, axis=0) - complete) < 5 * error))


# Rates.
def test_rates_are_exactly_one_where_nothing_is_missing(precision):
    mask = jnp.ones((1001, 3), bool).at[::7, 1].set(False)
    weights = jnp.linspace(0.1, 1, 1001)
    for row_weights in (None, weights):
        rates = observation_rates(mask, row_weights)
        assert rates[0] == rates[2] == 1.0
        assert rates[1] < 1
    np.testing.assert_allclose(observation_rates(mask)[1], 1 - 143 / 1001, rtol=1e-5)
    np.testing.assert_allclose(joint_observation_rates(mask)[0, 1], 1 - 143 / 1001, rtol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 7, 8, 13])
def test_blocks_of_rows_are_only_a_matter_of_speed(num_rows, float64):
    rows, weights = jnp.arange(3.0 * num_rows).reshape(num_rows, 3), jnp.arange(1.0, num_rows + 1)
    four_rows = (1 << 20) // 4  # so large that a block has four rows

    def sums(rows, weights, nothing):
        assert nothing is None
        return weights @ rows, jnp.sum(weights)

    found = moments.sum_over_rows(sums, (rows, weights, None), floats_per_row=four_rows)
    np.testing.assert_allclose(found[0], weights @ rows)
    np.testing.assert_allclose(found[1], jnp.sum(weights))
    mapped = moments.map_over_rows(lambda a, w: (2 * a, w[:, None] * a), (rows, weights), floats_per_row=four_rows)
    np.testing.assert_array_equal(mapped[0], 2 * rows)
    np.testing.assert_array_equal(mapped[1], weights[:, None] * rows)


# Models' corrections, on distributions that are sums over a few points: then moments are exact.
def test_gaussian_moments_are_those_of_the_components(float64):
    rng = np.random.default_rng(0)
    means, weights, variance = rng.normal(size=(2, 3)), np.array([0.5, 0.3, 0.2]), 0.7
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(3)
    points, mass = [], []
    for h, i, j in itertools.product(range(3), repeat=3):
        points.append(means[:, h] + np.sqrt(variance) * np.array([nodes[i], nodes[j]]))
        mass.append(weights[h] * node_weights[i] * node_weights[j])
    x, mass = jnp.asarray(points), jnp.asarray(mass)
    found = gaussian_moments(x, variance, row_weights=mass)
    np.testing.assert_allclose(found.first, means @ weights, atol=1e-12)
    np.testing.assert_allclose(found.second, means * weights @ means.T, atol=1e-12)
    np.testing.assert_allclose(found.third, np.einsum("h,ih,jh,lh->ijl", weights, means, means, means), atol=1e-12)
    directions = jnp.asarray(rng.normal(size=(2, 2)))
    contracted = contract_gaussian_moments(x, directions, variance, row_weights=mass)
    np.testing.assert_allclose(contracted, contract_third(found.third, directions), atol=1e-12)


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
    found = gamma_poisson_moments(x, row_weights=mass)
    centred = topics @ (alpha - weights @ alpha).T  # (d, points): what A α does without the Poisson noise
    np.testing.assert_allclose(found.second, centred * weights @ centred.T, atol=1e-9)
    third = np.einsum("p,ip,jp,lp->ijl", weights, centred, centred, centred)
    np.testing.assert_allclose(found.third, third, atol=1e-9)
    directions = jnp.asarray(rng.normal(size=(2, 2)))
    contracted = contract_gamma_poisson_moments(x, directions, row_weights=mass)
    np.testing.assert_allclose(contracted, contract_third(found.third, directions), atol=1e-9)
    back = gamma_poisson_cumulants(found)
    np.testing.assert_allclose(back.third, cumulants(x, row_weights=mass).third, atol=1e-9)


@pytest.mark.parametrize("method", ["implicit", "available"])
def test_contracted_corrections_equal_dense_ones_under_a_mask(method, float64):
    x, mask, directions, _ = table()
    if method == "available":
        dense = gaussian_moments(x, 0.5, mask).third, gamma_poisson_moments(x, mask).third
    else:
        third = jnp.asarray(explicit_third(x, mask))
        data = centre(x, mask)
        second = second_cumulant_operator(data, second_cumulant_diagonal(data))(jnp.eye(D))
        seen = moments.ContractedCumulants(data.mean, second, third, jnp.int32(0))
        dense = (
            moments.correct_gaussian(seen, jnp.eye(D), jnp.array(0.5)),
            moments.correct_gamma_poisson(seen, jnp.eye(D), data.mean),
        )
    found = (
        contract_gaussian_moments(x, directions, 0.5, mask, method=method),
        contract_gamma_poisson_moments(x, directions, mask, method=method),
    )
    for a, b in zip(found, dense, strict=True):
        assert relative(a, np.asarray(contract_third(b, directions))) < 1e-10


@settings(max_examples=20, deadline=None)
@given(shift=st.floats(-50, 50), scale=st.floats(0.1, 10))
def test_cumulants_ignore_shifts_and_scale_by_powers(shift, scale):
    with jax.experimental.enable_x64() if hasattr(jax.experimental, "enable_x64") else jax.enable_x64(True):
        x, mask, directions, _ = table(5)
        before = contract_cumulants(centre(x, mask), directions)
        after = contract_cumulants(centre(scale * x + shift, mask), directions)
        assert relative(after.third, scale**3 * np.asarray(before.third)) < 1e-8
        assert relative(after.second, scale**2 * np.asarray(before.second)) < 1e-8


def test_wrong_options_are_named(no_type_checks):
    x, mask, directions, _ = table()
    with pytest.raises(ValueError, match='method: expected "implicit" or "available"; got \'dense\''):
        contract_third_cumulant(x, directions, mask, method="dense")
    with pytest.raises(ValueError, match="block: expected a number of at least 1; got 0"):
        contract_third_cumulant(x, directions, mask, method="available", block=0)


def test_vmap_equals_loop_and_gradients_are_finite(float64):
    x, mask, directions, _ = table()
    stacked = jnp.stack([x, 2 * x])
    for method in ("implicit", "available"):
        both = jax.vmap(lambda a, f=method: contract_third_cumulant(a, directions, mask, method=f))(stacked)
        for i in range(2):
            one = contract_third_cumulant(stacked[i], directions, mask, method=method)
            np.testing.assert_allclose(both[i], one, rtol=1e-10, atol=1e-12)
    # NaN under the mask has no say in derivatives either.
    gradient = jax.grad(lambda w: jnp.sum(contract_third_cumulant(x, w, mask)))(directions)
    assert np.all(np.isfinite(gradient))


def test_lowers_for_accelerators():
    x, mask, directions, _ = table()
    x, directions = x.astype(jnp.float32), directions.astype(jnp.float32)
    lowers(observation_rates, mask)
    lowers(joint_observation_rates, mask)
    lowers(cumulants, x, mask)
    for method in ("implicit", "available"):
        lowers(lambda a, w, m, f=method: contract_third_cumulant(a, w, m, method=f), x, directions, mask)
    lowers(lambda a, w, m: contract_gaussian_moments(a, w, 1.0, m), x, directions, mask)
    lowers(lambda a, w, m: contract_gamma_poisson_moments(a, w, m), x, directions, mask)
    lowers(lambda a, m: (gaussian_moments(a, 1.0, m), gamma_poisson_moments(a, m)), x, mask)
    lowers(
        lambda a, w, m: second_cumulant_operator(centre(a, m), second_cumulant_diagonal(centre(a, m)))(w),
        x,
        directions,
        mask,
    )
