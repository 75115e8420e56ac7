import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import composite_likelihood_em, relative_efficiency, uniform_efficiency
from latensor.decompose.internal import marginal_variances, reduced_conditionals, reduced_pseudoinverse
from tests.helpers import largest, lowers

# One shape for most tests, and many problems of it at once: what takes time is compiling.
CATEGORIES, STATES, PROBLEMS = 6, 3, 20
VARIANCES = jax.jit(jax.vmap(marginal_variances))
EFFICIENCY = jax.jit(jax.vmap(relative_efficiency))
UNIFORM = jax.jit(jax.vmap(uniform_efficiency))


def draw(seed, d=CATEGORIES, k=STATES, problems=PROBLEMS):
    rng = np.random.default_rng(seed)
    conditionals = np.swapaxes(rng.dirichlet(np.ones(d), (problems, k)), 1, 2)
    return conditionals, rng.dirichlet(np.full(k, 3.0), problems)


def uniform_views(seed, d=CATEGORIES, k=STATES, problems=PROBLEMS):
    """Return conditionals, and marginals that mix them to a uniform distribution, by Sinkhorn's scaling."""
    rng = np.random.default_rng(seed)
    marginals = rng.dirichlet(np.full(k, 3.0), problems)
    joint = rng.uniform(0.01, 1, (problems, d, k)) ** 2
    for _ in range(2_000):
        joint /= d * joint.sum(axis=2, keepdims=True)
        joint *= (marginals / joint.sum(axis=1))[:, None, :]
    return joint / marginals[:, None, :], marginals


def as_arrays(*parts):
    return tuple(jnp.asarray(part, float) for part in parts)


def information(conditionals, marginals):
    """Return Fisher's information on the first marginals, from all categories and not from the reduced ones."""
    observed = conditionals @ marginals
    scores = (conditionals[:, :-1] - conditionals[:, -1:]) / observed[:, None]
    return (scores.T * observed) @ scores


def test_reduction_is_what_the_free_entries_see(float64):
    conditionals, marginals = draw(0)
    for number in range(3):
        reduced = np.asarray(reduced_conditionals(jnp.asarray(conditionals[number])))
        observed = conditionals[number] @ marginals[number]
        np.testing.assert_allclose(
            reduced @ marginals[number][:-1] + conditionals[number][:-1, -1], observed[:-1], atol=1e-14
        )


def test_composite_variance_is_the_inverse_of_the_information(float64):
    conditionals, marginals = draw(1)
    result = VARIANCES(*as_arrays(conditionals, marginals))
    for number in range(PROBLEMS):
        expected = np.linalg.inv(information(conditionals[number], marginals[number]))
        np.testing.assert_allclose(result.composite_likelihood[number], expected, rtol=1e-8, atol=1e-8)


def test_information_is_the_curvature_of_the_likelihood():
    """Second differences of the expected log-likelihood."""
    conditionals, marginals = (part[0] for part in draw(2))
    observed = conditionals @ marginals

    def value(free):
        return observed @ np.log(conditionals @ np.append(free, 1 - free.sum()))

    size, free = 1e-4, marginals[:-1]
    shifts = size * np.eye(STATES - 1)
    curvature = np.array(
        [
            [value(free + a + b) - value(free + a - b) - value(free - a + b) + value(free - a - b) for a in shifts]
            for b in shifts
        ]
    )
    np.testing.assert_allclose(-curvature / (4 * size**2), information(conditionals, marginals), rtol=1e-5)


def test_pseudoinverse_variance_is_that_of_a_linear_map(float64):
    """Differences of the estimator, which is affine, and the covariance of one draw."""
    conditionals, marginals = draw(3)
    result = VARIANCES(*as_arrays(conditionals, marginals))
    estimate = jax.jit(jax.vmap(reduced_pseudoinverse, in_axes=(0, None)))
    for number in range(4):
        matrix, observed = conditionals[number], conditionals[number] @ marginals[number]
        ends = np.concatenate([np.zeros((1, CATEGORIES)), np.eye(CATEGORIES)])
        values = np.asarray(estimate(*as_arrays(ends, matrix)))
        slope = (values[1:] - values[0]).T[:-1]
        covariance = np.diag(observed) - np.outer(observed, observed)
        expected = slope @ covariance @ slope.T
        np.testing.assert_allclose(result.pseudoinverse[number], expected, rtol=1e-8, atol=1e-8)


def test_reduced_pseudoinverse_is_exact_on_exact_marginals(float64):
    conditionals, marginals = draw(4)
    observed = np.einsum("bdk,bk->bd", conditionals, marginals)
    result = jax.jit(jax.vmap(reduced_pseudoinverse))(*as_arrays(observed, conditionals))
    assert largest(result - marginals) < 1e-11
    noisy = np.random.default_rng(5).dirichlet(np.ones(CATEGORIES), PROBLEMS)
    result = jax.jit(jax.vmap(reduced_pseudoinverse))(*as_arrays(noisy, conditionals))
    np.testing.assert_allclose(np.sum(result, axis=1), 1, atol=1e-12)


def test_no_estimator_is_better_than_the_likelihood(float64):
    conditionals, marginals = draw(6, problems=200)
    result = VARIANCES(*as_arrays(conditionals, marginals))
    difference = np.asarray(result.pseudoinverse - result.composite_likelihood)
    size = np.linalg.eigvalsh(np.asarray(result.pseudoinverse))[:, -1]
    assert np.all(np.linalg.eigvalsh(difference)[:, 0] > -1e-10 * size)
    efficiency = np.asarray(EFFICIENCY(*as_arrays(conditionals, marginals)))
    assert np.all((efficiency > 0) & (efficiency <= 1 + 1e-12))
    assert np.min(efficiency) < 0.9
    expected = [
        np.trace(cl @ np.linalg.inv(pi)) / (STATES - 1)
        for pi, cl in zip(np.asarray(result.pseudoinverse), np.asarray(result.composite_likelihood), strict=True)
    ]
    np.testing.assert_allclose(efficiency, expected, rtol=1e-8)


def test_nothing_is_lost_where_views_are_invertible(float64):
    """Lemma 4."""
    conditionals, marginals = draw(7, d=4, k=4)
    result = VARIANCES(*as_arrays(conditionals, marginals))
    for pi, cl in zip(*map(np.asarray, result), strict=True):
        np.testing.assert_allclose(pi, cl, atol=1e-7 * np.max(np.abs(pi)))
    np.testing.assert_allclose(EFFICIENCY(*as_arrays(conditionals, marginals)), 1, atol=1e-7)


def test_uniform_observed_marginals(float64):
    """Lemma 5."""
    conditionals, marginals = uniform_views(8)
    np.testing.assert_allclose(np.einsum("bdk,bk->bd", conditionals, marginals), 1 / CATEGORIES, atol=1e-10)
    np.testing.assert_allclose(conditionals.sum(axis=1), 1, atol=1e-10)
    expected = np.asarray(EFFICIENCY(*as_arrays(conditionals, marginals)))
    np.testing.assert_allclose(UNIFORM(*as_arrays(conditionals)), expected, atol=1e-8)
    assert np.min(expected) < 0.95


@pytest.mark.parametrize(("d", "k"), [(6, 3), (12, 2), (9, 5), (4, 4)])
def test_closed_form_of_the_efficiency(d, k, float64):
    """Where `|1_U|² = k − 1`: all states are alike but for the first `k − 1` categories and the last."""
    rng = np.random.default_rng(9)
    permutations = np.stack([np.eye(k)[rng.permutation(k)] for _ in range(3 * k)])
    block = np.tensordot(rng.dirichlet(np.ones(3 * k)), permutations, axes=1) + np.eye(k)  # twice doubly stochastic
    conditionals = np.full((d, k), 1 / d)
    conditionals[[*range(k - 1), d - 1]] = block / 2 * k / d
    marginals = np.full(k, 1 / k)
    np.testing.assert_allclose(conditionals @ marginals, 1 / d)
    expected = 1 - (1 - 1 / (1 + d - k)) / k
    for result in (
        relative_efficiency(*as_arrays(conditionals, marginals)),
        uniform_efficiency(*as_arrays(conditionals)),
    ):
        assert float(result) == pytest.approx(expected, abs=1e-9)


def rare_but_telling():
    """Return conditionals in which the likelihood weighs rare categories more than the pseudoinverse does."""
    common = np.array([[0.5, 0.4, 0.3], [0.25, 0.35, 0.3], [0.1, 0.1, 0.25]])
    return np.concatenate([common, np.array([[0.13, 0.01, 0.01], [0.01, 0.13, 0.01], [0.01, 0.01, 0.13]])])


def test_a_simulation_has_the_variances(float64):
    """Both estimators on 2,000 tables of 10,000 draws; covariances agree within five of their standard errors."""
    draws, tables = 10_000, 2_000
    conditionals, marginals = rare_but_telling(), np.array([0.4, 0.3, 0.3])
    frequencies = np.random.default_rng(10).multinomial(draws, conditionals @ marginals, tables) / draws
    variances = marginal_variances(*as_arrays(conditionals, marginals))

    def estimates(frequencies):
        best = composite_likelihood_em(frequencies, (jnp.asarray(conditionals),), tol=1e-10)
        return reduced_pseudoinverse(frequencies, jnp.asarray(conditionals)), best.table

    for estimate, variance in zip(jax.jit(jax.vmap(estimates))(jnp.asarray(frequencies)), variances, strict=True):
        variance, errors = np.asarray(variance), np.sqrt(draws) * (np.asarray(estimate) - marginals)[:, :-1]
        diagonal = np.diagonal(variance)
        uncertainty = np.sqrt((np.outer(diagonal, diagonal) + variance**2) / tables)
        assert np.all(np.abs(errors.T @ errors / tables - variance) < 5 * uncertainty)
        assert np.all(np.abs(errors.mean(axis=0)) < 5 * np.sqrt(diagonal / tables))
    # The simulation can tell the two apart.
    assert np.max(np.abs(variances[0] - variances[1]) / uncertainty) > 10


def test_float32():
    conditionals, marginals = rare_but_telling(), np.array([0.4, 0.3, 0.3])
    result = relative_efficiency(*as_arrays(conditionals, marginals))
    assert result.dtype == jnp.float32
    observed = conditionals @ marginals
    inverse = np.linalg.pinv(conditionals[:-1, :-1] - conditionals[:-1, -1:])
    variance = inverse @ (np.diag(observed) - np.outer(observed, observed))[:-1, :-1] @ inverse.T
    expected = np.trace(np.linalg.inv(variance @ information(conditionals, marginals))) / (STATES - 1)
    assert float(result) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("shape", [(3, 4), (4, 1)])
def test_shapes_that_do_not_fit_are_named(shape, no_type_checks):
    conditionals, marginals = jnp.asarray(np.ones(shape)), jnp.asarray(np.ones(shape[1]))
    message = rf"conditionals: expected \(d, k\) with 2 ≤ k ≤ d; got shape \({shape[0]}, {shape[1]}\)"
    for function, arguments in (
        (reduced_conditionals, (conditionals,)),
        (uniform_efficiency, (conditionals,)),
        (marginal_variances, (conditionals, marginals)),
        (relative_efficiency, (conditionals, marginals)),
        (reduced_pseudoinverse, (jnp.asarray(np.ones(shape[0])), conditionals)),
    ):
        with pytest.raises(ValueError, match=message):
            function(*arguments)


def test_lowers_for_accelerators():
    conditionals, marginals = (jnp.asarray(part[0], jnp.float32) for part in draw(0))
    lowers(relative_efficiency, conditionals, marginals)
    lowers(uniform_efficiency, conditionals)
    lowers(reduced_pseudoinverse, jnp.asarray(np.full(CATEGORIES, 1 / CATEGORIES, np.float32)), conditionals)
