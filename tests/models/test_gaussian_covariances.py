"""Covariances of all families, and variances that differ between components."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status, matched_rmse
from latensor.models import gaussian_mixture
from latensor.models.gaussian_mixture import GaussianMixture
from latensor.models.gaussian_mixture.covariance import FAMILIES, Family, as_diagonal, as_full, from_diagonal
from latensor.moments import Table
from tests.helpers import largest, lowers
from tests.models.gaussian_cases import brute_force, draw, draw_mask, random_mixture, worst_error

SHAPES = [Family(name, shared) for name in FAMILIES for shared in (True, False)]
D, K = 4, 3


def random_member(seed, family, d=D, k=K):
    """Return a mixture whose covariances belong to a family."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(k, d, 2 * d))
    matrices = np.einsum("hij,hlj->hil", factors, factors) / (2 * d)
    variances = rng.uniform(0.3, 2.0, (k, d))
    variance = np.asarray(from_diagonal(jnp.asarray(variances), family))
    if family.covariance == "full":
        variance = np.moveaxis(matrices[:1] if family.shared else matrices, 0, -1)
    start = random_mixture(seed, d, k)
    return GaussianMixture(start.weights, 2 * start.means, jnp.asarray(variance, start.means.dtype))


def small_table(seed, params, masked):
    """One size for all tests, since every one compiles again."""
    x = np.array(draw(seed, params, 60))
    mask = np.array(draw_mask(seed, 0.6, x.shape)) if masked else np.ones(x.shape, bool)
    mask[0] = not masked  # one row without a single observation
    x = np.where(mask, x, np.nan).astype(params.means.dtype)
    return Table(jnp.asarray(x), jnp.asarray(mask) if masked else None), x, mask


@pytest.mark.parametrize("family", SHAPES, ids=str)
def test_likelihood_and_posterior_against_brute_force(family, precision):
    params = random_member(0, family)
    params = params._replace(means=params.means + 100)
    for masked in (True, False):
        table, x, mask = small_table(1, params, masked)
        joint = brute_force(params, np.asarray(x, np.float64), mask)
        tolerance = 1e-10 if precision == "float64" else 2e-3
        value = gaussian_mixture.log_likelihood(params, table)
        np.testing.assert_allclose(value, np.logaddexp.reduce(joint, axis=1), rtol=tolerance, atol=tolerance)
        expected = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
        np.testing.assert_allclose(gaussian_mixture.posterior(params, table), expected, atol=tolerance)
        # Rows that a trace cannot group give the same.
        traced = jax.jit(lambda params, table: gaussian_mixture.log_likelihood(params, table))(params, table)
        np.testing.assert_allclose(traced, value, rtol=tolerance, atol=tolerance)


def em_by_hand(params, x, mask, family):
    """Return parameters after one step of EM, every conditional written out."""
    weights, means = np.asarray(params.weights), np.asarray(params.means)
    covariances = np.asarray(as_full(params.variance, params.means))
    joint = brute_force(params, x, mask)
    parts = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    filled, hidden = np.zeros((*parts.shape, D)), np.zeros((*parts.shape, D, D))
    for n, h in np.ndindex(parts.shape):
        seen, unseen = np.flatnonzero(mask[n]), np.flatnonzero(~mask[n])
        filled[n, h, seen] = x[n, seen]
        if family.covariance != "full":  # given the component, what is missing is independent of what is not
            continue
        inverse = np.linalg.inv(covariances[h][np.ix_(seen, seen)]) if seen.size else np.zeros((0, 0))
        gain = covariances[h][np.ix_(unseen, seen)] @ inverse
        filled[n, h, unseen] = means[unseen, h] + gain @ (x[n, seen] - means[seen, h])
        hidden[n, h][np.ix_(unseen, unseen)] = (
            covariances[h][np.ix_(unseen, unseen)] - gain @ covariances[h][np.ix_(seen, unseen)]
        )
    counted = np.ones(mask.shape) if family.covariance == "full" else mask.astype(float)
    owned = np.einsum("nh,nj->hj", parts, counted)
    new = np.einsum("nh,nj,nhj->hj", parts, counted, filled) / owned
    errors = (filled - new[None]) * counted[:, None, :]
    second = np.einsum("nh,nhi,nhj->hij", parts, errors, errors) + np.einsum("nh,nhij->hij", parts, hidden)
    if family.shared:
        second, owned = second.sum(0, keepdims=True), owned.sum(0, keepdims=True)
    squares = np.einsum("hii->hi", second)
    if family.covariance == "full":
        variance = np.moveaxis(second / owned[:, :1, None], 0, -1)
    elif family.covariance == "diagonal":
        variance = (squares / owned).T
    else:
        variance = squares.sum(1) / owned.sum(1)
    shape = params.variance.shape
    return GaussianMixture(parts.sum(0) / parts.sum(), new.T, variance.reshape(shape)), weights


@pytest.mark.parametrize("family", SHAPES, ids=str)
def test_a_step_of_em_against_brute_force(family, float64):
    params = random_member(2, family)
    for masked in (True, False):
        table, x, mask = small_table(3, params, masked)
        expected, _ = em_by_hand(params, x, mask, family)
        result = gaussian_mixture.refine(params, table, max_iters=1, tol=0.0)
        for one, two in zip(result.params, expected, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", SHAPES, ids=str)
def test_em_never_lowers_the_likelihood(family, precision):
    truth = random_member(4, family)
    table, _, _ = small_table(5, truth, masked=True)
    for start in (truth, random_member(6, family)):
        values = [float(jnp.mean(gaussian_mixture.log_likelihood(start, table)))]
        for steps in (1, 2, 30):
            result = gaussian_mixture.refine(start, table, max_iters=steps, tol=0.0)
            values.append(float(jnp.mean(gaussian_mixture.log_likelihood(result.params, table))))
        rounding = 1e-12 if precision == "float64" else 1e-5
        assert np.all(np.diff(values) >= -rounding * abs(values[0])), values


def test_em_of_data_on_which_the_likelihood_has_no_bound(precision):
    """A component may close in on repeated rows, or on a plane: variances end far below the spread of the data."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, D))
    x[:10] = x[0]
    x[10:20, 1] = x[10:20, 0]
    for scale in (1.0, 1e-16, 1e12):
        for family in SHAPES[1::2]:
            start = random_member(0, family)
            variance = start.variance * scale**2
            start = start._replace(means=start.means * scale, variance=variance)
            result = gaussian_mixture.refine(start, jnp.asarray(x * scale), max_iters=50)
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result)), (scale, family)
            before = float(jnp.mean(gaussian_mixture.log_likelihood(start, jnp.asarray(x * scale))))
            assert float(result.log_likelihood) >= before - 1e-5 * abs(before)
            smallest = np.min(as_diagonal(result.params.variance, start.means)) if family.covariance != "full" else 1
            assert smallest > 0


@pytest.mark.parametrize("family", [family for family in SHAPES if not family.shared], ids=str)
def test_a_component_that_has_closed_in_on_repeated_rows_is_a_status(family, float64):
    x = np.random.default_rng(0).normal(size=(60, D))
    x[:10] = x[0]
    start = random_member(0, family)
    start = start._replace(means=start.means.at[:, 0].set(x[0]), variance=start.variance.at[..., 0].multiply(1e-3))
    assert gaussian_mixture.refine(start, jnp.asarray(x), max_iters=50).status == Status.BOUNDARY


def test_rows_beyond_all_components_have_numbers():
    for family in SHAPES[1::2]:
        params = random_member(0, family)
        params = params._replace(variance=params.variance * 1e-30)
        value = gaussian_mixture.log_likelihood(params, np.full((2, D), 1e15))
        assert np.all(np.isfinite(value))
        assert np.all(np.isfinite(gaussian_mixture.posterior(params, np.full((2, D), 1e15))))


def test_variances_follow_the_scale_of_the_data(float64):
    truth = random_mixture(0, d=8, k=2, variance=np.array([0.5, 1.0]))
    x = draw(1, truth, 500)
    plain, small = (
        gaussian_mixture.refine(gaussian_mixture.fit(jax.random.key(0), data, 2).params, data, tol=0.0, max_iters=60)
        for data in (x, x * 1e-16)
    )
    np.testing.assert_allclose(small.params.variance * 1e32, plain.params.variance, rtol=1e-6)


# A variance per component, by moments.
@pytest.mark.parametrize("weights", ["none", "partial"])
def test_population_moments_with_unequal_variances(weights, float64):
    chosen = {"none": None, "partial": (np.arange(20) < 8).astype(float)}[weights]
    for seed, variance in enumerate(([0.1, 0.3, 1.0, 2.0, 5.0], [4.0, 0.01, 1.0, 0.5, 2.0])):
        truth = random_mixture(seed, variance=np.array(variance))
        moments = gaussian_mixture.population_moments(truth)
        result = gaussian_mixture.fit_moments(jax.random.key(seed), moments, 5, weights=chosen)
        assert worst_error(truth, result.params) < 1e-7
        assert result.status == Status.CONVERGED


@pytest.mark.parametrize("routes", [{}, {"third": "available"}, {"second": "implicit"}], ids=str)
def test_unequal_variances_from_data(routes):
    deviations = np.array([0.3, 1.0, 2.0, 3.0])
    truth = random_mixture(1, d=16, k=4, variance=deviations**2, concentration=20.0)
    truth = truth._replace(means=3 * truth.means)
    x = draw(2, truth, 6000)
    overall = jnp.mean(x, axis=0)
    x = x - overall[None, :]
    holes = draw_mask(3, np.where(np.arange(16) < 10, 1.0, 0.7), x.shape)
    for mask in (None, holes):
        result = gaussian_mixture.fit(jax.random.key(0), x, 4, mask=mask, **routes)
        means = truth.means - overall[:, None]
        # Errors are 0.05 complete and 0.07 with holes; with one variance for all 0.3.
        assert matched_rmse(means, result.params.means) < 0.12
        assert largest(np.sort(np.sqrt(result.params.variance)) - deviations) < 0.15
        one = gaussian_mixture.fit(jax.random.key(0), x, 4, mask=mask, shared=True, **routes)
        assert matched_rmse(means, one.params.means) > 2 * matched_rmse(means, result.params.means)


def test_centred_means_need_affine_independence_only(float64):
    truth = random_mixture(3, d=6, k=4)
    centred = truth._replace(means=truth.means - (truth.means @ truth.weights)[:, None])
    moments = gaussian_mixture.population_moments(centred)
    result = gaussian_mixture.fit_moments(jax.random.key(0), moments, 4, shared=True)
    assert worst_error(centred, result.params) < 1e-7
    # Three means in a plane that holds the origin: linearly dependent, affinely not.
    flat = random_mixture(4, d=6, k=3)._replace(means=jnp.zeros((6, 3)).at[:2].set(jnp.array([[0, 1, 0], [0, 0, 1.0]])))
    result = gaussian_mixture.fit_moments(jax.random.key(0), gaussian_mixture.population_moments(flat), 3, shared=True)
    assert worst_error(flat, result.params) < 1e-7


def test_one_component_is_the_mean_and_the_variance(float64):
    x = draw(0, random_mixture(0, d=5, k=2), 200)
    for options in ({}, {"second": "implicit"}, {"shared": True}):
        result = gaussian_mixture.fit(jax.random.key(0), x, 1, **options)
        np.testing.assert_allclose(result.params.means[:, 0], np.mean(x, axis=0), atol=1e-12)
        np.testing.assert_allclose(result.params.variance, np.mean(np.var(x, axis=0)), rtol=1e-12)
        assert result.params.weights == 1
        assert result.status == Status.CONVERGED


def test_fit_of_all_families_follows_the_scale_of_each_column(float64):
    truth = random_member(1, Family("full"))
    x = np.asarray(draw(2, truth._replace(means=2 * truth.means), 2000))
    scales = np.array([1e-3, 1.0, 50.0, 1e4])
    mask = draw_mask(3, 0.9, x.shape)
    for family in SHAPES[2:]:
        options = {"mask": mask, "covariance": family.covariance, "shared": family.shared}
        plain = gaussian_mixture.fit(jax.random.key(0), x, K, **options)
        other = gaussian_mixture.fit(jax.random.key(0), x * scales + 7.0, K, **options)
        assert plain.params.variance.shape == family.shape(D, K)
        np.testing.assert_allclose(other.params.means, plain.params.means * scales[:, None] + 7.0, rtol=1e-6, atol=1e-6)
        units = scales[:, None] if family.covariance == "diagonal" else np.outer(scales, scales)[:, :, None]
        power = 2 if family.covariance == "diagonal" else 1
        np.testing.assert_allclose(other.params.variance, plain.params.variance * units**power, rtol=1e-5, atol=1e-9)
        before = jnp.mean(gaussian_mixture.log_likelihood(plain.params, x, mask=mask))
        refined = gaussian_mixture.refine(plain.params, x, mask=mask, max_iters=20)
        assert refined.log_likelihood >= before
        assert refined.params.variance.shape == family.shape(D, K)


def test_sample_has_the_covariances(float64):
    truth = random_member(1, Family("full"), d=3, k=2)
    drawn = jax.tree.map(np.asarray, gaussian_mixture.sample(jax.random.key(0), truth, 60_000))
    exact = gaussian_mixture.population_moments(truth)
    np.testing.assert_allclose(np.cov(drawn.x.T), exact.second, atol=0.1)
    for h in range(2):
        np.testing.assert_allclose(np.cov(drawn.x[drawn.hidden == h].T), truth.variance[:, :, h], atol=0.06)
    centred = drawn.x - np.mean(drawn.x, axis=0)
    third = np.einsum("ni,nj,nl->ijl", centred, centred, centred) / 60_000
    np.testing.assert_allclose(third, exact.third, atol=0.3)


def test_full_covariances_under_transformations():
    truth = random_member(1, Family("full"))
    x = jnp.stack([draw(seed, truth, 40) for seed in (0, 1)])
    mask = draw_mask(2, 0.8, x.shape)

    def trial(x, mask):
        fit = gaussian_mixture.fit(jax.random.key(0), x, K, mask=mask, covariance="full")
        return gaussian_mixture.refine(fit.params, x, mask=mask, max_iters=3)

    batch = jax.vmap(trial)(x, mask)
    for i in range(2):
        alone = trial(x[i], mask[i])
        np.testing.assert_allclose(batch.log_likelihood[i], alone.log_likelihood, rtol=1e-3)
        np.testing.assert_allclose(batch.params.means[i], alone.params.means, atol=0.02)
    lowers(trial, x[0], mask[0])


@pytest.mark.parametrize(
    ("variance", "message"),
    [
        (np.ones(2), r"params.variance: expected one of the shapes \(\), \(3,\), .* got shape \(2,\)"),
        (np.array([1.0, 0.0, 1.0]), "params.variance: expected numbers above zero; got 0.0"),
        (-np.eye(4)[:, :, None], "params.variance: expected positive definite .* -1"),
        (np.triu(np.ones((4, 4)))[:, :, None], "params.variance: expected symmetric"),
    ],
    ids=["shape", "zero", "indefinite", "asymmetric"],
)
def test_bad_variances(variance, message):
    with pytest.raises(ValueError, match=message):
        gaussian_mixture.log_likelihood(random_mixture(0, D, K)._replace(variance=variance), np.ones((5, D)))
