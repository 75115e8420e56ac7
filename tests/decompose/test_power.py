import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latensor.decompose import Status, column_angles, diagonalize_slices, power_method
from tests.helpers import lowers, orthogonal_tensor

METHODS = {
    "power": lambda key, tensor: power_method(key, tensor, tensor.shape[0]),
    "slices": diagonalize_slices,
}


@pytest.fixture(params=METHODS)
def decompose(request):
    return METHODS[request.param]


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_recovers_an_orthogonal_tensor(decompose, size, precision):
    tensor, values, vectors = orthogonal_tensor(size, size)
    pairs = decompose(jax.random.key(0), tensor)
    tolerance = 1e-11 if precision == "float64" else 2e-4
    np.testing.assert_allclose(pairs.values, values, atol=tolerance)
    np.testing.assert_allclose(pairs.vectors, vectors, atol=tolerance)
    assert pairs.status == Status.CONVERGED
    assert pairs.unexplained < tolerance
    assert pairs.vectors.dtype == precision


def test_finds_the_strongest_components_of_a_larger_tensor(float64):
    tensor, values, vectors = orthogonal_tensor(3, 8, rank=4)
    pairs = power_method(jax.random.key(0), tensor, 4)
    np.testing.assert_allclose(pairs.values, values, atol=1e-12)
    np.testing.assert_allclose(pairs.vectors, vectors, atol=1e-12)


def noisy(seed, size, noise):
    """Return an orthogonal tensor plus symmetric noise."""
    tensor, _, _ = orthogonal_tensor(seed, size)
    extra = np.random.default_rng(seed).normal(size=(size, size, size)) * noise
    return tensor + jnp.asarray(sum(extra.transpose(order) for order in itertools.permutations(range(3))))


@pytest.mark.parametrize("seed", range(5))
def test_brute_force_oracle_on_a_grid(seed, float64):
    # In the plane the eigenvectors are the maxima of T(v,v,v) on the circle: look at all angles.
    tensor = noisy(seed, 2, 0.05)
    angles = np.linspace(0, 2 * np.pi, 200_001)[:-1]
    circle = np.stack([np.cos(angles), np.sin(angles)])
    heights = np.einsum("ijl,ir,jr,lr->r", tensor, circle, circle, circle, optimize=True)
    peaks = (heights > np.roll(heights, 1)) & (heights > np.roll(heights, -1)) & (heights > 0)
    best = np.sort(heights[peaks])[::-1][:2]
    pairs = power_method(jax.random.key(0), tensor, 2)
    np.testing.assert_allclose(pairs.values[: len(best)], best, atol=1e-8)
    # Noise can flatten a peak away: then there is no second eigenvector to find, and the status has to say so.
    assert (pairs.status == Status.CONVERGED) == (len(best) == 2)


def test_a_component_that_is_there_only_after_deflation_is_degenerate(float64):
    """`T(v,v,v)` has one peak on the circle: a second vector slides into the first, and is put back."""
    tensor = jnp.zeros((2, 2, 2)).at[0, 0, 0].set(1.0).at[1, 1, 1].set(0.4)
    for place in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        tensor = tensor.at[place].set(0.2)
    pairs = power_method(jax.random.key(0), tensor, 2)
    assert pairs.status == Status.DEGENERATE
    # Not one vector twice: the second is where deflation found it.
    assert abs(float(pairs.vectors[:, 0] @ pairs.vectors[:, 1])) < 0.5


def test_polishing_removes_the_errors_of_deflation(float64):
    """A polished vector is a fixed point of the tensor itself, not of what deflation left of it."""
    tensor = noisy(5, 5, 0.02)
    pairs = power_method(jax.random.key(0), tensor, 5)
    image = jnp.einsum("ijl,jh,lh->ih", tensor, pairs.vectors, pairs.vectors)
    np.testing.assert_allclose(image, pairs.vectors * pairs.values[None, :], atol=1e-11)
    assert pairs.status == Status.CONVERGED
    assert pairs.residual < 1e-12
    assert 0 < pairs.unexplained < 0.5


def test_symmetric_part_is_what_counts(float64):
    tensor, values, _ = orthogonal_tensor(2, 5)
    skew = jnp.zeros((5, 5, 5)).at[0, 1, 2].set(0.5).at[1, 0, 2].set(-0.5)
    np.testing.assert_allclose(power_method(jax.random.key(0), tensor + skew, 5).values, values, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 50.0))
def test_scale_and_rotation_carry_over(seed, scale):
    tensor, values, vectors = orthogonal_tensor(seed, 5)
    rotation, _ = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(5, 5)))
    turned = scale * jnp.einsum("abc,ia,jb,lc->ijl", tensor, rotation, rotation, rotation)
    pairs = power_method(jax.random.key(0), turned, 5)
    np.testing.assert_allclose(pairs.values, scale * values, rtol=1e-4)
    if np.min(np.abs(np.diff(values))) > 0.05:
        np.testing.assert_allclose(pairs.vectors, rotation @ vectors, atol=2e-3)


def test_zero_and_nan_tensors_are_statuses(decompose, precision):
    zero = decompose(jax.random.key(0), jnp.zeros((5, 5, 5)))
    assert zero.status == Status.DEGENERATE
    assert all(np.all(np.isfinite(leaf)) for leaf in zero)
    broken = decompose(jax.random.key(0), jnp.full((5, 5, 5), jnp.nan, float))
    assert broken.status == Status.NON_FINITE


def test_iteration_limit_is_a_status(float64):
    tensor = noisy(0, 5, 0.01)
    assert power_method(jax.random.key(0), tensor, 5).status == Status.CONVERGED
    pairs = power_method(jax.random.key(0), tensor, 5, max_iters=1, restart_iters=5)
    assert pairs.status == Status.MAX_ITERS
    assert pairs.num_iters <= 5 * (5 + 1) + 1
    none = power_method(jax.random.key(0), tensor, 5, max_iters=0, restart_iters=5)
    assert np.isfinite(none.residual)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
def test_scales_at_the_ends_of_float32(scale):
    tensor, values, vectors = orthogonal_tensor(0, 5)
    pairs = power_method(jax.random.key(0), jnp.asarray(tensor, jnp.float32) * scale, 5)
    np.testing.assert_allclose(pairs.values / scale, values, rtol=1e-4)
    np.testing.assert_allclose(pairs.vectors, vectors, atol=1e-4)
    assert pairs.status == Status.CONVERGED


def test_rank_out_of_range_is_named():
    with pytest.raises(ValueError, match=r"rank: expected an integer from 1 to 3 .*; got 4"):
        power_method(jax.random.key(0), jnp.ones((3, 3, 3)), 4)


def test_more_components_than_the_tensor_has(float64):
    tensor, _, _ = orthogonal_tensor(0, 5, rank=3)
    pairs = power_method(jax.random.key(0), tensor, 5)
    assert pairs.status == Status.DEGENERATE
    assert all(np.all(np.isfinite(leaf)) for leaf in pairs)


def test_vmap_equals_loop_and_lanes_stay_apart(decompose, float64):
    tensors = jnp.stack([orthogonal_tensor(0, 5)[0], jnp.full((5, 5, 5), jnp.nan), orthogonal_tensor(1, 5)[0]])
    keys = jax.random.split(jax.random.key(0), 3)
    batch = jax.vmap(decompose)(keys, tensors)
    assert batch.status.tolist() == [Status.CONVERGED, Status.NON_FINITE, Status.CONVERGED]
    for lane in (0, 2):
        single = decompose(keys[lane], tensors[lane])
        np.testing.assert_allclose(batch.vectors[lane], single.vectors, atol=1e-11)


@pytest.mark.parametrize(
    "decompose",
    [
        lambda key, tensor: power_method(key, tensor, 2, 2, max_iters=3, restart_iters=2, orthogonal=True),
        lambda key, tensor: diagonalize_slices(key, tensor, 2),
    ],
)
def test_jit_equals_eager(decompose, float64):
    tensor, _, _ = orthogonal_tensor(0, 3)
    jitted = decompose(jax.random.key(0), tensor)
    with jax.disable_jit():
        eager = decompose(jax.random.key(0), tensor)
    np.testing.assert_allclose(jitted.vectors, eager.vectors, atol=1e-12)


def test_lowers_for_accelerators(decompose):
    lowers(decompose, jax.random.key(0), jnp.ones((4, 4, 4)))


# Orthonormal components, all together.
def test_orthogonal_components_of_an_exact_tensor_are_the_same(precision):
    tensor, values, vectors = orthogonal_tensor(0, 5)
    pairs = power_method(jax.random.key(0), tensor, 5, orthogonal=True)
    tolerance = 1e-10 if precision == "float64" else 1e-4
    np.testing.assert_allclose(pairs.values, values, rtol=tolerance)
    np.testing.assert_allclose(jnp.abs(pairs.vectors.T @ vectors), np.eye(5), atol=tolerance)
    assert pairs.status == Status.CONVERGED
    assert pairs.vectors.dtype == precision


def test_orthogonal_components_are_orthonormal_and_explain_more_of_a_noisy_tensor(float64):
    better = 0
    for seed in range(10):
        tensor, _, vectors = orthogonal_tensor(seed, 5)
        noise = np.random.default_rng(seed).normal(size=(5, 5, 5))
        noise = sum(noise.transpose(order) for order in itertools.permutations(range(3))) / 6
        noisy = tensor + 0.5 * jnp.asarray(noise)
        each = power_method(jax.random.key(seed), noisy, 5)
        together = power_method(jax.random.key(seed), noisy, 5, orthogonal=True)
        np.testing.assert_allclose(together.vectors.T @ together.vectors, np.eye(5), atol=1e-10)
        assert float(jnp.min(together.values)) > 0
        better += float(jnp.sum(column_angles(vectors, together.vectors))) < float(
            jnp.sum(column_angles(vectors, each.vectors))
        )
    assert better >= 8


def test_orthogonal_components_of_nothing_and_of_nan_are_no_trap():
    for tensor in (jnp.zeros((5, 5, 5)), jnp.full((5, 5, 5), jnp.nan, float)):
        pairs = power_method(jax.random.key(0), tensor, 5, orthogonal=True)
        assert pairs.status != Status.CONVERGED
