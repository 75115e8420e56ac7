"""The bootstrap on a model whose standard errors are known exactly, and what it refuses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.inference import Bootstrap, bootstrap, percentile_intervals
from latensor.models import graphical, naive_bayes
from tests.inference.toy import Means, fit, refine, toy

N, REPLICATES = 50, 2000
# Four standard errors of a standard deviation over this many draws.
MARGIN = 4 / np.sqrt(2 * REPLICATES)


def rows(dtype=np.float64):
    return (np.random.default_rng(0).normal(size=(N, 2)) + np.array([0.0, 5.0])).astype(dtype)


def estimate(x, **keywords):
    return fit(jax.random.key(0), toy.as_data(x, **keywords), 2, shuffled=False)


def exact_error(x, row_weights, weights):
    """Return the standard deviation of a weighted mean, to first order; without weights of the rows it is exact."""
    share = np.ones(N) / N if row_weights is None else row_weights / row_weights.sum()
    mean = share @ x
    number = N if weights == "multinomial" else N + 1
    return np.sqrt(np.sum((share[:, None] * (x - mean)) ** 2, axis=0) * N / number)


@pytest.mark.parametrize("weights", ["multinomial", "bayesian"])
@pytest.mark.parametrize("weighted", [False, True])
def test_standard_errors_of_means(weights, weighted, precision):
    x = rows(precision)
    row_weights = np.random.default_rng(1).uniform(0.5, 1, N).astype(precision) if weighted else None
    original = estimate(x, row_weights=row_weights)
    result = bootstrap(jax.random.key(1), toy, original, x, REPLICATES, weights=weights, row_weights=row_weights)
    assert type(result) is Bootstrap
    assert result.replicates.means.shape == (REPLICATES, 2)
    assert result.replicates.means.dtype == result.standard_errors.means.dtype == precision
    assert result.num_failed == 0
    # Fits come out in random order: aligned, those of the two components are five apart.
    np.testing.assert_allclose(result.replicates.means.mean(axis=0), original.params.means, atol=0.1)
    np.testing.assert_allclose(result.standard_errors.means, exact_error(x, row_weights, weights), rtol=MARGIN)


def test_components_keep_the_order_of_the_estimate(float64):
    x, original = rows(), estimate(rows())
    swapped = original._replace(params=toy.permute(original.params, np.array([1, 0])))
    one, two = (bootstrap(jax.random.key(1), toy, each, x, 20) for each in (original, swapped))
    np.testing.assert_array_equal(one.replicates.means, two.replicates.means[:, ::-1])
    np.testing.assert_array_equal(one.standard_errors.means, two.standard_errors.means[::-1])


def test_batches_change_nothing(float64):
    x, original = rows(), estimate(rows())
    results = [bootstrap(jax.random.key(1), toy, original, x, 24, batch_size=size) for size in (1, 4, 24, 100)]
    for other in results[1:]:
        np.testing.assert_allclose(other.replicates.means, results[0].replicates.means, rtol=1e-12)
    # The last batch is cut where replicates are no multiple of it.
    assert bootstrap(jax.random.key(1), toy, original, x, 23, batch_size=5).failed.shape == (23,)


def test_failed_replicates_are_counted_and_left_out(float64):
    x, original = rows(), estimate(rows())
    x[0] = 1e6  # A replicate that has this row would show.
    result = bootstrap(jax.random.key(1), toy, original, x, 400, options={"fail_below": 1.0})
    # The first row is not drawn in (1 - 1/N)^N = 0.364 of the replicates; four standard errors are 0.096.
    assert abs(result.num_failed / 400 - (1 - 1 / N) ** N) < 0.096
    np.testing.assert_array_equal(result.failed, result.statuses == Status.DEGENERATE)
    kept = np.asarray(result.replicates.means)[~np.asarray(result.failed)]
    np.testing.assert_allclose(result.standard_errors.means, kept.std(axis=0, ddof=1), rtol=1e-10)
    lower, upper = percentile_intervals(result, 0.9)
    np.testing.assert_allclose(lower.means, np.quantile(kept, 0.05, axis=0), rtol=1e-10)
    np.testing.assert_allclose(upper.means, np.quantile(kept, 0.95, axis=0), rtol=1e-10)


def test_numbers_that_are_not_finite_are_failures(float64):
    x, original = rows(), estimate(rows())
    result = bootstrap(jax.random.key(1), toy, original, x, 10, options={"offset": np.array([np.nan, 0.0])})
    assert result.num_failed == 10
    assert np.all(np.isnan(result.standard_errors.means))
    assert np.all(np.isnan(percentile_intervals(result, 0.5).lower.means))


def test_refined_estimates_are_refined_from_the_original(float64):
    x = rows()
    original = refine(Means(jnp.array([0.0, 5.0])), x, step=1.0)
    half = bootstrap(jax.random.key(1), toy, original, x, REPLICATES)
    np.testing.assert_allclose(half.standard_errors.means, exact_error(x, None, "multinomial") / 2, rtol=MARGIN)
    start = estimate(x)
    whole = bootstrap(jax.random.key(1), toy, start, x, REPLICATES, refine=True, options={"step": 1.0})
    np.testing.assert_allclose(whole.standard_errors.means, exact_error(x, None, "multinomial"), rtol=MARGIN)


def test_runs_under_jit_and_vmap(float64):
    def errors(key, x):
        return bootstrap(key, toy, estimate(x), x, 20).standard_errors.means

    x = np.stack([rows(), 3 * rows()])
    keys = jax.random.split(jax.random.key(1), 2)
    batch = jax.jit(jax.vmap(errors))(keys, jnp.asarray(x))
    for i in range(2):
        np.testing.assert_allclose(batch[i], errors(keys[i], x[i]), rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": 0}, "key: expected a random key"),
        ({"model": "toy"}, "model: expected a module of latensor.models"),
        (
            {"model": graphical},
            r"model: .* of one hidden variable; got latensor.models.graphical, which has no as_data",
        ),
        ({"fit": Means(jnp.zeros(2))}, r"fit: expected what toy.fit or toy.refine returns; got Means \(pass the whole"),
        ({"fit": None}, "fit: expected what toy.fit or toy.refine returns; got NoneType"),
        (
            {"model": naive_bayes},
            "fit: expected an estimate by naive_bayes; got params: expected a NaiveBayes; got Means",
        ),
        ({"num_replicates": 9}, "num_replicates: expected an integer of at least 10; got 9"),
        ({"num_replicates": 20.0}, "num_replicates: expected an integer"),
        ({"weights": "poisson"}, "weights: expected one of 'multinomial', 'bayesian'; got 'poisson'"),
        ({"block_length": 5}, "block_length: expected None for a Table; got 5"),
        ({"batch_size": 0}, "batch_size: expected an integer of at least 1"),
        ({"refine": "yes"}, "refine: expected True or False"),
        ({"options": ["offset"]}, "options: expected a dict of keywords of toy.fit; got list"),
        ({"options": {"mask": None}}, "options: expected a dict of keywords of toy.fit, fail_below, .*; got 'mask'"),
        ({"options": {"offset": 1.0}, "refine": True}, "options: .* toy.refine, step; got 'offset'"),
        ({"row_weights": np.ones(3)}, "row_weights: expected one weight per row"),
        ({"x": "rows"}, "x: expected"),
    ],
)
def test_bad_input(changes, message, no_type_checks):
    x = rows(np.float32)
    arguments = {"key": jax.random.key(0), "model": toy, "fit": estimate(x), "x": x, "num_replicates": 20} | changes
    with pytest.raises(ValueError, match=f"^{message}"):
        bootstrap(**arguments)


def test_unknown_keywords_of_the_data(no_type_checks):
    x = rows(np.float32)
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'lengths'; the data of toy have mask, row_weights"
    ):
        bootstrap(jax.random.key(0), toy, estimate(x), x, lengths=[3])


def test_an_estimate_that_did_not_converge_is_refused_unless_allowed():
    x = rows(np.float32)
    bad = estimate(x)._replace(status=jnp.int32(Status.RANK_DEFICIENT))
    run = partial(bootstrap, jax.random.key(0), toy, bad, x, 10)
    with pytest.raises(ValueError, match=r"^fit: expected an estimate that converged; its status is RANK_DEFICIENT: "):
        run()
    assert run(allow_unconverged=True).num_failed == 0
    with pytest.raises(ValueError, match=r"^fit: expected one estimate; got a batch"):
        bootstrap(jax.random.key(0), toy, bad._replace(status=jnp.zeros(2, jnp.int32)), x)


def test_bad_levels(no_type_checks):
    x = rows(np.float32)
    result = bootstrap(jax.random.key(0), toy, estimate(x), x, 40)
    for level in (0, 1, -0.5, 1.5, np.nan, "most", None):
        with pytest.raises(ValueError, match=r"^level: expected a number above 0 and below 1; got"):
            percentile_intervals(result, level)
    percentile_intervals(result, 0.95)
    with pytest.raises(ValueError, match=r"^level: expected at most 0.95 with 40 replicates; got 0.99"):
        percentile_intervals(result, 0.99)
    with pytest.raises(ValueError, match=r"^bootstrap: expected what bootstrap"):
        percentile_intervals(result.replicates, 0.9)
