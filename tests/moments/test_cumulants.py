import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latensor.moments import (
    Documents,
    Table,
    contract_gamma_poisson_moments,
    contract_gaussian_moments,
    contract_third_cumulant,
    cumulants,
    gamma_poisson_moments,
    gaussian_moments,
    joint_observation_rates,
    observation_rates,
)
from latensor.moments.internal import (
    centre,
    contract_cumulants,
    contract_third,
    second_cumulant,
    second_cumulant_diagonal,
    second_cumulant_operator,
)
from tests.helpers import lowers
from tests.moments.tables import D, N, draw, explicit_third, relative


@pytest.mark.parametrize(("low", "high"), [(0.05, 1.0), (0.05, 0.3), (0.9, 1.0)])
@pytest.mark.parametrize("weighted", [False, True])
def test_implicit_contraction_equals_that_of_the_explicit_tensor(low, high, weighted, float64):
    for seed in range(3):
        x, mask, directions, _ = draw(seed, low, high)
        weights = jnp.asarray(np.random.default_rng(seed).uniform(size=N)) if weighted else None
        expected = np.einsum("ijl,ia,jb,lc->abc", explicit_third(x, mask, weights), *[directions] * 3)
        assert relative(contract_third_cumulant(Table(x, mask, weights), directions), expected) < 1e-10


def test_float32_contraction(float64):
    x, mask, directions, _ = draw(1)
    expected = contract_third_cumulant(Table(x, mask), directions)
    contracted = contract_third_cumulant(Table(x.astype(jnp.float32), mask), directions.astype(jnp.float32))
    assert contracted.dtype == jnp.float32
    assert relative(contracted, np.asarray(expected)) < 1e-4


@pytest.mark.parametrize("method", ["implicit", "available"])
def test_a_full_mask_changes_nothing(method, float64):
    _, _, directions, x = draw()
    x, full = jnp.asarray(x), jnp.ones((N, D), bool)
    masked = contract_cumulants(centre(Table(x, full)), directions, method)
    plain = contract_cumulants(centre(Table(x)), directions, method)
    for a, b in zip(masked[:3], plain[:3], strict=True):
        assert relative(a, np.asarray(b)) < 1e-12
    assert relative(plain.third, np.asarray(contract_third(cumulants(x).third, directions))) < 1e-12


@pytest.mark.parametrize("block", [1, 4, 6, None])
def test_blocked_and_dense_available_case_agree(block, float64):
    x, mask, directions, _ = draw()
    dense = contract_third(cumulants(Table(x, mask)).third, directions)
    blocked = contract_third_cumulant(Table(x, mask), directions, method="available", block=block)
    assert relative(blocked, np.asarray(dense)) < 1e-12


def test_available_case_against_loops_and_unobserved_entries(float64):
    x, mask, _, _ = draw(2)
    # Dimensions 0 and 1 are never observed together, nor are 0, 2 and 3.
    mask = mask.at[:, 1].set(mask[:, 1] & ~mask[:, 0]).at[:, 3].set(mask[:, 3] & ~(mask[:, 0] & mask[:, 2]))
    table = Table(x, mask)
    result = cumulants(table)
    rest = np.where(mask, np.asarray(x) - np.asarray(result.mean), 0)
    unobserved = 0
    for i, j, m in itertools.product(range(D), repeat=3):
        rows = np.asarray(mask[:, i] & mask[:, j] & mask[:, m])
        unobserved += not rows.any()
        expected = np.mean(rest[rows, i] * rest[rows, j] * rest[rows, m]) if rows.any() else 0.0
        np.testing.assert_allclose(result.third[i, j, m], expected, rtol=1e-10, atol=1e-12)
    assert result.num_unobserved == unobserved > 0
    assert all(np.all(np.isfinite(leaf)) for leaf in result)
    second, pairs = second_cumulant(centre(table))
    assert pairs.sum() == 2
    assert pairs[0, 1]
    assert second[0, 1] == 0
    assert contract_cumulants(centre(table), jnp.eye(D), "available", 4).num_unobserved == unobserved


def test_implicit_second_cumulant(float64):
    x, mask, directions, _ = draw()
    data = centre(Table(x, mask))
    rest = np.where(mask, np.asarray(x) - np.asarray(data.mean), 0) / np.asarray(data.rates)
    expected = rest.T @ rest / N
    np.fill_diagonal(expected, np.diag(expected) * np.asarray(data.rates))
    np.testing.assert_allclose(second_cumulant_diagonal(data), np.diag(expected), rtol=1e-12)
    product = second_cumulant_operator(data, second_cumulant_diagonal(data))(directions)
    assert relative(product, expected @ directions) < 1e-12
    assert relative(contract_cumulants(data, directions).second, expected @ directions) < 1e-12


@pytest.mark.parametrize("method", ["implicit", "available"])
def test_row_weights_are_repetitions(method, float64):
    x, mask, directions, _ = draw()
    counts = np.random.default_rng(0).integers(0, 4, N)
    counts[0] = 2
    repeated = np.repeat(np.arange(N), counts)
    weighted = contract_cumulants(centre(Table(x, mask, jnp.asarray(counts, float))), directions, method)
    expected = contract_cumulants(centre(Table(x[repeated], mask[repeated])), directions, method)
    for a, b in zip(weighted[:3], expected[:3], strict=True):
        assert relative(a, np.asarray(b)) < 1e-10


def test_expectation_over_masks_is_the_complete_moment(float64):
    """Unbiased: averaged over many independent masks, the implicit contraction is the complete one."""
    _, _, directions, x = draw(n=400)
    x = jnp.asarray(x - x.mean(axis=0))
    complete = contract_third_cumulant(x, directions)
    rates = jnp.linspace(0.3, 1, D)

    @jax.jit
    @jax.vmap
    def masked(key):
        mask = jax.random.bernoulli(key, rates[None, :], x.shape)
        return contract_third_cumulant(Table(x, mask), directions)

    values = masked(jax.random.split(jax.random.key(0), 2000))
    error = jnp.std(values, axis=0) / np.sqrt(2000)
    # 27 entries (10 distinct), five standard errors; centring by the observed mean biases by O(1/n), well below one.
    assert bool(jnp.all(jnp.abs(jnp.mean(values, axis=0) - complete) < 5 * error))


@settings(max_examples=20, deadline=None)
@given(shift=st.floats(-50, 50), scale=st.floats(0.1, 10))
def test_cumulants_ignore_shifts_and_scale_by_powers(shift, scale):
    with jax.experimental.enable_x64() if hasattr(jax.experimental, "enable_x64") else jax.enable_x64(True):
        x, mask, directions, _ = draw(5)
        before = contract_cumulants(centre(Table(x, mask)), directions)
        after = contract_cumulants(centre(Table(scale * x + shift, mask)), directions)
        assert relative(after.third, scale**3 * np.asarray(before.third)) < 1e-8
        assert relative(after.second, scale**2 * np.asarray(before.second)) < 1e-8


def test_wrong_arguments_are_named(no_type_checks):
    x, mask, directions, _ = draw()
    table = Table(x, mask)
    with pytest.raises(ValueError, match="method: expected one of 'implicit', 'available'; got 'dense'"):
        contract_third_cumulant(table, directions, method="dense")
    with pytest.raises(ValueError, match="block: expected an integer of at least 1; got 0"):
        contract_third_cumulant(table, directions, method="available", block=0)
    with pytest.raises(ValueError, match=r"x: expected an array or a latensor.moments.Table; got Documents"):
        cumulants(Documents(jnp.ones((4, 3))))
    for contract in (
        contract_third_cumulant,
        lambda table, w: contract_gaussian_moments(table, w, 1.0),
        contract_gamma_poisson_moments,
    ):
        with pytest.raises(ValueError, match=r"directions: expected 6 rows, one per dimension; got shape \(5, 3\)"):
            contract(table, directions[:5])
        with pytest.raises(ValueError, match=r"directions: expected a matrix \(6, r\), two axes; got 1"):
            contract(table, directions[:, 0])


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_types_of_the_results(dtype, precision):
    """Types in are types out, also in float32 under x64; integers and 16-bit floats become the default float."""
    _, mask, directions, x = draw(n=20)
    x = jnp.asarray(x).astype(dtype)
    expected = "float32" if dtype == "float32" else precision
    directions = directions.astype(expected)
    for seen in (None, mask):
        table = Table(x, seen, jnp.arange(1, 21))
        results = (
            cumulants(table)[:3],
            observation_rates(table),
            joint_observation_rates(table),
            gaussian_moments(table, 0.5),
            gamma_poisson_moments(table),
            contract_third_cumulant(table, directions),
            contract_third_cumulant(table, directions, method="available"),
            contract_gaussian_moments(table, directions, 0.5),
            contract_gamma_poisson_moments(table, directions),
            second_cumulant_operator(centre(table), second_cumulant_diagonal(centre(table)))(directions),
        )
        assert {leaf.dtype.name for leaf in jax.tree.leaves(results)} == {expected}


def test_vmap_equals_loop_and_gradients_are_finite(float64):
    x, mask, directions, _ = draw()
    tables = jax.vmap(Table)(jnp.stack([x, 2 * x]), jnp.stack([mask, mask]))
    for method in ("implicit", "available"):
        both = jax.vmap(lambda table, f=method: contract_third_cumulant(table, directions, method=f))(tables)
        for i in range(2):
            one = contract_third_cumulant(jax.tree.map(lambda leaf, at=i: leaf[at], tables), directions, method=method)
            np.testing.assert_allclose(both[i], one, rtol=1e-10, atol=1e-12)
    # NaN under the mask does not enter derivatives either.
    gradient = jax.grad(lambda w: jnp.sum(contract_third_cumulant(Table(x, mask), w)))(directions)
    assert np.all(np.isfinite(gradient))


def test_lowers_for_accelerators():
    x, mask, directions, _ = draw()
    table, directions = Table(x.astype(jnp.float32), mask), directions.astype(jnp.float32)
    lowers(observation_rates, table)
    lowers(joint_observation_rates, table)
    lowers(cumulants, table)
    for method in ("implicit", "available"):
        lowers(lambda t, w, f=method: contract_third_cumulant(t, w, method=f), table, directions)
    lowers(lambda t, w: contract_gaussian_moments(t, w, 1.0), table, directions)
    lowers(contract_gamma_poisson_moments, table, directions)
    lowers(lambda t: (gaussian_moments(t, 1.0), gamma_poisson_moments(t)), table)
    lowers(lambda t, w: second_cumulant_operator(centre(t), second_cumulant_diagonal(centre(t)))(w), table, directions)
