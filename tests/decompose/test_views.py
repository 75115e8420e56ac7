import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status, decompose_views
from tests.helpers import lowers

METHODS = ("power", "ojd0", "ojd1", "nojd0", "nojd1")
# One shape and one rank: each method compiles once.
SHAPE, RANK = (7, 8, 6), 3


def views(seed, concentration=0.5, rank=RANK):
    """Return the exact pair and triple moments of three views, and their factors: distributions over categories."""
    rng = np.random.default_rng(seed)
    u, v, w = (rng.dirichlet(np.full(d, concentration), rank).T for d in SHAPE)
    second, third = rng.dirichlet(np.full(rank, 5.0)), rng.dirichlet(np.full(rank, 5.0)) / 2
    pairs = tuple(jnp.asarray((left * second) @ right.T) for left, right in ((u, v), (u, w), (v, w)))
    return pairs, jnp.asarray(np.einsum("h,ih,jh,lh->ijl", third, u, v, w)), (u, v, w)


def decompose(method, pairs, triple, key=0):
    return decompose_views(jax.random.key(key), pairs, triple, RANK, method, num_restarts=10)


def errors(result, truth):
    """Return the largest error of each mode, in the one order of the columns that the first mode has."""
    estimates = [factor / np.sum(factor, axis=0) for factor in map(np.asarray, result.factors)]
    distances = np.max(np.abs(estimates[0][:, :, None] - truth[0][:, None, :]), axis=0)
    order = np.argmin(distances, axis=1)
    assert sorted(order.tolist()) == list(range(RANK))
    return [np.max(np.abs(estimate - t[:, order])) for estimate, t in zip(estimates, truth, strict=True)]


@pytest.mark.parametrize("method", METHODS)
def test_recovers_three_views_from_exact_moments(method, float64):
    for seed in range(6):
        pairs, triple, truth = views(seed)
        result = decompose(method, pairs, triple, seed)
        assert [factor.shape for factor in result.factors] == [(d, RANK) for d in SHAPE]
        # One order for all three modes.
        assert max(errors(result, truth)) < 1e-11
        assert result.residual < 1e-11
        assert result.status == Status.CONVERGED


@pytest.mark.parametrize("method", METHODS)
def test_error_is_of_the_size_of_the_noise(method, float64):
    """Noise of one in ten thousand of the largest entry: errors stay below a hundred times that."""
    for seed in range(3):
        pairs, triple, truth = views(seed, concentration=0.3)
        rng = np.random.default_rng(seed)
        pairs = tuple(pair + 1e-4 * jnp.max(pair) * rng.normal(size=pair.shape) for pair in pairs)
        triple = triple + 1e-4 * jnp.max(triple) * rng.normal(size=SHAPE)
        result = decompose(method, pairs, triple)
        assert 1e-6 < max(errors(result, truth)) < 1e-2
        assert 1e-6 < result.residual < 1e-2
        assert result.status == Status.CONVERGED


@pytest.mark.parametrize("method", METHODS)
def test_views_without_the_rank_and_with_a_nan_are_statuses(method, float64):
    for seed in range(6):
        pairs, triple, _ = views(seed, rank=RANK - 1)
        result = decompose(method, pairs, triple)
        assert result.status == Status.RANK_DEFICIENT
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(result))
    result = decompose(method, tuple(jnp.zeros_like(pair) for pair in pairs), triple)
    assert result.status == Status.RANK_DEFICIENT
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(result))
    assert decompose(method, pairs, triple.at[1, 2, 3].set(jnp.nan)).status == Status.NON_FINITE
    for number in range(3):
        broken = [pair.at[0, 1].set(jnp.inf) if at == number else pair for at, pair in enumerate(pairs)]
        result = decompose(method, tuple(broken), triple)
        assert result.status == Status.NON_FINITE
        assert not result.residual <= 1


def test_negative_eigenvalues_are_no_nan(float64):
    """Of the second moment of the third view, where all of it is asked for and moments are noise."""
    shapes = ((SHAPE[0], SHAPE[1]), (SHAPE[0], SHAPE[2]), (SHAPE[1], SHAPE[2]))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        pairs = tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)
        triple = jnp.asarray(rng.normal(size=SHAPE))
        result = decompose_views(jax.random.key(0), pairs, triple, min(SHAPE), "nojd0", num_restarts=10)
        assert result.status == Status.RANK_DEFICIENT
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(result))


def test_vmap_equals_loop_and_lanes_stay_apart(float64):
    first, second = views(0)[:2], views(1)[:2]
    broken = (first[0], first[1].at[0, 0, 0].set(jnp.nan))
    pairs, triples = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, broken, second)
    batch = jax.vmap(lambda p, t: decompose("power", p, t))(pairs, triples)
    assert batch.status.tolist() == [Status.CONVERGED, Status.NON_FINITE, Status.CONVERGED]
    for lane, moments in ((0, first), (2, second)):
        single = decompose("power", *moments)
        for many, one in zip(batch.factors, single.factors, strict=True):
            np.testing.assert_allclose(many[lane], one, atol=1e-11)


@pytest.mark.parametrize("method", ["power", "nojd1"])
def test_float32(method):
    pairs, triple, truth = views(4)
    result = decompose(method, tuple(pair.astype(jnp.float32) for pair in pairs), triple.astype(jnp.float32))
    assert {leaf.dtype for leaf in (*result.factors, result.residual)} == {jnp.dtype("float32")}
    assert max(errors(result, truth)) < 1e-4
    assert result.status == Status.CONVERGED


def test_wrong_arguments_are_named(no_type_checks):
    pairs, triple, _ = views(0)
    with pytest.raises(ValueError, match=r"rank: expected an integer from 1 to 6 .*; got 7"):
        decompose_views(jax.random.key(0), pairs, triple, 7)
    with pytest.raises(ValueError, match=r"method: expected one of 'power', .*; got 'als'"):
        decompose_views(jax.random.key(0), pairs, triple, RANK, "als")


@pytest.mark.parametrize("method", ["power", "ojd1", "nojd1"])
def test_lowers_for_accelerators(method):
    pairs, triple, _ = views(0)
    lowers(lambda pairs, triple: decompose(method, pairs, triple), pairs, triple)
