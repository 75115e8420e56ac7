import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status, cp_als, nonnegative_cp, reconstruct
from tests.helpers import lowers

# One shape, one rank and always a given start: each method compiles once.
SHAPE, RANK = (9, 8, 10), 3
METHODS = ("pqp", "hals", "wnmf", "multiplicative")
VARIANTS = {**{method: {"method": method} for method in METHODS}, "plain": {"method": "pqp", "accelerate": False}}


def exact_tensor(seed, noise=0.0):
    """Return a nonnegative tensor of rank three, weights in decreasing order and factors whose columns sum to one."""
    rng = np.random.default_rng(seed)
    factors = [rng.dirichlet(np.full(d, 0.5), RANK).T for d in SHAPE]
    weights = np.array([5.0, 3.0, 1.5])
    tensor = np.einsum("h,ih,jh,lh->ijl", weights, *factors)
    return tensor + noise * np.std(tensor) * rng.normal(size=SHAPE), weights, factors


def random_start(seed):
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.uniform(0.1, 1, (d, RANK))) for d in SHAPE)


def run(variant, tensor, start, *, num_updates=None, tol=1e-6, max_iters=1000):
    """Run a method such that all calls share one compilation."""
    if variant == "als":
        return cp_als(jax.random.key(0), jnp.asarray(tensor), RANK, start=start, tol=tol, max_iters=max_iters)
    updates = {"pqp": 5, "hals": 3}.get(variant, 1) if num_updates is None else num_updates
    return nonnegative_cp(
        jax.random.key(0),
        jnp.asarray(tensor),
        RANK,
        **VARIANTS[variant],
        start=start,
        num_updates=updates,
        tol=tol,
        max_iters=max_iters,
    )


def assert_recovered(result, weights, factors, tolerance):
    """Compare with the truth; weights that differ fix the order."""
    np.testing.assert_allclose(result.weights, weights, rtol=tolerance)
    for estimate, truth in zip(result.factors, factors, strict=True):
        np.testing.assert_allclose(estimate, truth, atol=tolerance)


@pytest.mark.parametrize("variant", ["pqp", "hals"])
@pytest.mark.parametrize("seed", range(5))
def test_recovers_an_exact_tensor(variant, seed, float64):
    tensor, weights, factors = exact_tensor(seed)
    result = run(variant, tensor, random_start(seed), tol=1e-14, max_iters=3000)
    assert_recovered(result, weights, factors, 1e-8)
    assert result.unexplained < 1e-12
    assert result.status == Status.CONVERGED


@pytest.mark.parametrize("variant", ["wnmf", "multiplicative", "plain"])
def test_slower_methods_come_near_an_exact_tensor(variant, float64):
    """Plain updates need thousands of sweeps; all of these went below one in a thousand in 3000."""
    tensor, weights, factors = exact_tensor(0)
    result = run(variant, tensor, random_start(0), tol=1e-14, max_iters=3000)
    assert_recovered(result, weights, factors, 5e-3)
    assert result.unexplained < 1e-3
    assert result.status == Status.MAX_ITERS
    assert result.num_iters == 3000


@pytest.mark.parametrize("seed", range(5))
def test_least_squares_recovers_factors_of_either_sign(seed, float64):
    rng = np.random.default_rng(seed)
    factors = [rng.normal(size=(d, RANK)) for d in SHAPE]
    factors = [factor / np.linalg.norm(factor, axis=0) for factor in factors]
    tensor = np.einsum("h,ih,jh,lh->ijl", [5.0, 3.0, 1.5], *factors)
    starts = [tuple(jnp.asarray(rng.normal(size=(d, RANK))) for d in SHAPE) for _ in range(3)]
    result = min((run("als", tensor, start, tol=1e-14) for start in starts), key=lambda trial: trial.unexplained)
    np.testing.assert_allclose(result.weights, [5.0, 3.0, 1.5], rtol=1e-8)
    # Two of the three columns of a component may change sign together.
    overlaps = [np.sum(truth * estimate, axis=0) for truth, estimate in zip(factors, result.factors, strict=True)]
    np.testing.assert_allclose(np.abs(overlaps), 1, atol=1e-12)
    np.testing.assert_array_equal(np.prod(np.sign(overlaps), axis=0), 1)
    np.testing.assert_allclose(reconstruct(result.weights, result.factors), tensor, atol=1e-10)
    assert result.status == Status.CONVERGED


@pytest.mark.parametrize("variant", [*VARIANTS, "als"])
@pytest.mark.parametrize("noise", [0.1, 1.0, 5.0])
def test_objective_never_rises(variant, noise, float64):
    """Sweep by sweep, also where nearly half of the entries are negative. A negative tolerance never stops."""
    tensor, _, _ = exact_tensor(7, noise)
    assert 0.1 < np.mean(tensor < 0) < 0.55
    runs = [run(variant, tensor, random_start(1), tol=-1.0, max_iters=limit) for limit in range(13)]
    assert [int(result.num_iters) for result in runs] == list(range(13))
    steps = np.diff([float(result.unexplained) for result in runs])
    assert np.max(steps) < 1e-14
    assert np.sum(steps) < -0.01


def missed(tensor, result, counts=1.0):
    """Return `|M − M̃| / |M|` over the entries that count."""
    left = tensor - np.einsum("h,ih,jh,lh->ijl", result.weights, *result.factors)
    return np.linalg.norm(counts * left) / np.linalg.norm(counts * tensor)


@pytest.mark.parametrize("variant", VARIANTS)
def test_negative_entries_leave_factors_nonnegative(variant, float64):
    tensor, _, _ = exact_tensor(3, 2.0)
    assert np.mean(tensor < 0) > 0.4
    result = run(variant, tensor, random_start(3), max_iters=300)
    for factor in result.factors:
        assert np.min(factor) >= 0
        np.testing.assert_allclose(np.sum(factor, axis=0), 1, rtol=1e-12)
    assert np.all(np.diff(result.weights) <= 0)
    assert bool(jnp.all(jnp.isfinite(result.weights)))
    # What is left unexplained is that of the objective which the method has.
    if variant == "wnmf":
        truth = missed(tensor, result, tensor >= 0)
    else:
        truth = missed(np.maximum(tensor, 0) if variant == "multiplicative" else tensor, result)
    np.testing.assert_allclose(result.unexplained, truth, rtol=1e-10)


def balanced_start(seed, tensor):
    """Return a start that is scaled as well as it can be, so that it is used as it is."""
    factors = [np.asarray(factor) for factor in random_start(seed)]
    norms = np.stack([np.linalg.norm(factor, axis=0) for factor in factors])
    factors = [factor * np.cbrt(np.prod(norms, axis=0)) / norm for factor, norm in zip(factors, norms, strict=True)]
    made = np.einsum("ih,jh,lh->ijl", *factors)
    return [factor * np.cbrt(np.sum(made * tensor) / np.sum(made**2)) for factor in factors]


def textbook_sweep(tensor, factors, weights):
    """Return factors after one multiplicative update of each, as it is written for matrices and weighted entries.

    `A ← A ∘ ((W∘M) H) / ((W∘(A Hᵀ)) H)`, with `M` unfolded and `H` the Khatri-Rao product of the other two: eq. (15),
    and (13) where all weights are one.
    """
    factors = list(factors)
    for mode in range(3):
        first, second = (factors[other] for other in range(3) if other != mode)
        product = (first[:, None, :] * second[None, :, :]).reshape(-1, RANK)
        unfolded, counts = (np.moveaxis(a, mode, 0).reshape(SHAPE[mode], -1) for a in (tensor, weights))
        a = factors[mode]
        factors[mode] = a * ((counts * unfolded) @ product) / ((counts * (a @ product.T)) @ product)
    return factors


@pytest.mark.parametrize("variant", ["wnmf", "multiplicative"])
def test_special_cases_are_the_textbook_updates(variant, float64):
    """Theorem 2: Lee and Seung's updates and weighted NMF are PQP with particular arguments."""
    tensor, _, _ = exact_tensor(4, 1.0)
    tensor /= np.max(np.abs(tensor))
    positive = np.maximum(tensor, 0)
    start = balanced_start(4, tensor if variant == "wnmf" else positive)
    counts = (tensor >= 0).astype(float) if variant == "wnmf" else np.ones(SHAPE)
    expected = textbook_sweep(positive, start, counts)
    result = run(variant, tensor, tuple(jnp.asarray(factor) for factor in start), max_iters=1)
    made = reconstruct(result.weights, result.factors)
    np.testing.assert_allclose(made, np.einsum("ih,jh,lh->ijl", *expected), rtol=1e-11)
    # Sorted by weight, the columns are those of the textbook.
    sums = np.prod([np.sum(factor, axis=0) for factor in expected], axis=0)
    for factor, truth in zip(result.factors, expected, strict=True):
        np.testing.assert_allclose(factor, (truth / np.sum(truth, axis=0))[:, np.argsort(-sums)], rtol=1e-11)
    other = textbook_sweep(positive, start, np.ones(SHAPE) if variant == "wnmf" else (tensor >= 0).astype(float))
    assert np.max(np.abs(made - np.einsum("ih,jh,lh->ijl", *other))) > 1e-3


def test_more_updates_of_a_mode_explain_more(float64):
    tensor, _, _ = exact_tensor(5, 0.5)
    once, often = (run("hals", tensor, random_start(5), num_updates=count, max_iters=1) for count in (1, 10))
    assert often.unexplained < once.unexplained


@pytest.mark.parametrize("variant", ["pqp", "multiplicative"])
def test_a_component_that_died(variant, float64):
    """Multiplicative updates never leave zero, and say so; exact passes bring the component back."""
    tensor, weights, factors = exact_tensor(0)
    a, b, c = random_start(0)
    result = run(variant, tensor, (a.at[:, 1].set(0), b, c), tol=1e-14, max_iters=500)
    if variant == "pqp":
        assert result.status == Status.CONVERGED
        assert_recovered(result, weights, factors, 1e-8)
        return
    assert result.status == Status.DEGENERATE
    assert result.weights[-1] == 0
    assert result.weights[1] > 0
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(result))
    np.testing.assert_allclose(result.factors[0][:, -1], 1 / SHAPE[0])


@pytest.mark.parametrize("variant", [*VARIANTS, "als"])
def test_zero_and_nan_tensors_are_statuses(variant, float64):
    nothing = run(variant, np.zeros(SHAPE), random_start(0))
    assert nothing.status == Status.DEGENERATE
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(nothing))
    assert np.max(nothing.weights) < 1e-100
    tensor = exact_tensor(0)[0]
    tensor[1, 2, 3] = np.nan
    for broken in (tensor, np.where(np.isnan(tensor), np.inf, tensor)):
        result = run(variant, broken, random_start(0))
        assert result.status == Status.NON_FINITE
        # Nor does it look as if all had been explained.
        assert bool(jnp.isnan(result.unexplained))


def test_best_of_several_starts(float64):
    """The given start and random ones: never worse than the given one alone, here better for some."""
    better = 0
    for seed in range(8):
        tensor = jnp.asarray(exact_tensor(seed, 1.0)[0])
        single = run("hals", tensor, random_start(seed), max_iters=200)
        several = nonnegative_cp(
            jax.random.key(seed),
            tensor,
            RANK,
            "hals",
            num_restarts=4,
            start=random_start(seed),
            num_updates=3,
            tol=1e-6,
            max_iters=200,
        )
        assert several.unexplained <= single.unexplained + 1e-13
        assert several.weights.shape == (RANK,)
        better += several.unexplained < single.unexplained - 1e-6
    assert better >= 2


def test_vmap_equals_loop_and_lanes_stay_apart(float64):
    tensors = np.stack([exact_tensor(0)[0], np.full(SHAPE, np.nan), exact_tensor(1, 1.0)[0], np.zeros(SHAPE)])
    start = random_start(2)
    batch = jax.vmap(lambda tensor: run("hals", tensor, start))(jnp.asarray(tensors))
    assert batch.status.tolist() == [Status.CONVERGED, Status.NON_FINITE, Status.CONVERGED, Status.DEGENERATE]
    for lane in (0, 2, 3):
        single = run("hals", tensors[lane], start)
        assert batch.num_iters[lane] == single.num_iters
        np.testing.assert_allclose(batch.weights[lane], single.weights, rtol=1e-9)
        for many, one in zip(batch.factors, single.factors, strict=True):
            np.testing.assert_allclose(many[lane], one, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_float32_at_any_scale(scale):
    tensor, weights, factors = exact_tensor(0)
    result = nonnegative_cp(jax.random.key(0), jnp.asarray(tensor * scale, jnp.float32), RANK)
    assert {leaf.dtype for leaf in (result.weights, *result.factors, result.unexplained)} == {jnp.dtype("float32")}
    assert result.status == Status.CONVERGED
    np.testing.assert_allclose(result.weights / scale, weights, rtol=5e-3)
    for estimate, truth in zip(result.factors, factors, strict=True):
        np.testing.assert_allclose(estimate, truth, atol=2e-3)


def test_wrong_arguments_are_named(no_type_checks):
    key, tensor, start = jax.random.key(0), jnp.ones(SHAPE), random_start(0)
    with pytest.raises(ValueError, match=r"rank: expected an integer of at least 1; got 0"):
        nonnegative_cp(key, tensor, 0)
    with pytest.raises(ValueError, match=r"num_restarts: expected an integer of at least 1; got 0"):
        cp_als(key, tensor, 2, num_restarts=0)
    with pytest.raises(ValueError, match=r"tensor: expected numbers \(d1, d2, d3\), .*; got shape \(9, 8\)"):
        nonnegative_cp(key, tensor[:, :, 0], 2)
    with pytest.raises(ValueError, match=r"start: expected three factors with 2 columns; got shapes \[\(9, 3\), "):
        nonnegative_cp(key, tensor, 2, start=start)
    with pytest.raises(ValueError, match=r"method: expected one of 'pqp', 'hals', .*; got 'newton'"):
        nonnegative_cp(key, tensor, 2, "newton")


@pytest.mark.parametrize("variant", ["pqp", "plain", "wnmf", "als"])
def test_lowers_for_accelerators(variant):
    function, options = (cp_als, {}) if variant == "als" else (nonnegative_cp, VARIANTS[variant])
    key, tensor = jax.random.key(0), jnp.ones((3, 4, 5))
    lowers(lambda key, tensor: function(key, tensor, 2, num_restarts=2, **options), key, tensor)
