"""What a user sees who passes the wrong documents; test_contract has the arguments that all models share."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import naive_bayes
from latensor.models.naive_bayes import NaiveBayes
from tests.models.naive_bayes_cases import random_model

pytestmark = pytest.mark.usefixtures("no_type_checks")

GOOD = np.array([[2.0, 1.0, 0.0, 1.0], [0.0, 3.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 2.0, 3.0]])


def changed(row, column, value):
    x = GOOD.copy()
    x[row, column] = value
    return x


def fit(x=GOOD, num_components=2, key=None, **options):
    return naive_bayes.fit(jax.random.key(0) if key is None else key, x, num_components, **options)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (GOOD[0], r"x: expected counts \(documents, words\), two axes; got 1, shape \(4,\)"),
        (GOOD[None], r"x: expected counts .* two axes; got 3"),
        (np.zeros((0, 4)), r"x: expected .* at least one row and one column; got shape \(0, 4\)"),
        (np.zeros((4, 0)), r"x: expected .* at least one row and one column; got shape \(4, 0\)"),
        (changed(2, 1, np.nan), r"x: expected finite counts where observed; got nan at row 2, column 1"),
        (changed(1, 3, np.inf), r"x: expected finite counts where observed; got inf at row 1, column 3"),
        (changed(3, 0, -1), r"x: expected counts ≥ 0; got -1.0 at row 3, column 0"),
        (changed(0, 2, 0.5), r"x: expected whole counts; got 0.5 at row 0, column 2"),
        (changed(1, 1, 1.0), r"x: expected at least 3 words in every document; got 2 in row 1 \(1 such row in all\)"),
        (GOOD.astype(complex), r"x: expected counts .*; got values of type complex"),
        ("documents", r"x: expected counts .*; got str"),
        (None, r"x: expected counts .*; got None"),
        (GOOD[:1], r"x: expected at least num_components = 2 documents; got 1"),
        (
            np.full((4, 4), 3e38, np.float32),
            r"x: expected counts whose sum is finite in float32; that of row 0 is not",
        ),
        (np.full((4, 4), 2**32 + 5), r"x: expected counts .* within int32; got values from 4294967301"),
    ],
)
def test_documents(x, message):
    with pytest.raises(ValueError, match=message):
        fit(x)


def test_old_style_keys_and_numpy_integers_are_fine():
    assert fit(key=jax.random.PRNGKey(0), num_components=np.int64(2)).params.weights.shape == (2,)


def test_word_ids():
    ids = np.array([[0, 1, 2], [3, 1, 0]])
    with pytest.raises(ValueError, match=r"x: expected word ids below num_words = 3; got 3"):
        fit(ids, num_words=3)
    with pytest.raises(ValueError, match=r"x: expected integer word ids where num_words is given; got type float"):
        fit(ids.astype(float), num_words=4)
    with pytest.raises(ValueError, match=r"x: expected at least 3 words in every document; got 2 in row 1"):
        fit(np.array([[0, 1, 2], [3, 1, -1]]), num_words=4)
    with pytest.raises(ValueError, match=r"num_words: expected an integer of at least 1; got 0"):
        fit(ids, num_words=0)


def test_second():
    with pytest.raises(ValueError, match="second: expected one of"):
        fit(second="sparse")


@pytest.mark.parametrize("verb", [naive_bayes.log_likelihood, naive_bayes.posterior, naive_bayes.refine])
def test_parameters_and_data_that_do_not_fit(verb):
    good = random_model(0, 4, 2)
    with pytest.raises(ValueError, match=r"x: expected counts of 4 words, as in params.word_probs; got 3"):
        verb(good, GOOD[:, :3])
    with pytest.raises(ValueError, match=r"num_words: expected 4 words, as in params.word_probs; got 5"):
        verb(good, np.array([[0, 1, 2]]), num_words=5)
    with pytest.raises(ValueError, match=r"params.weights: expected probabilities that sum to one"):
        verb(NaiveBayes(good.weights * 2, good.word_probs), GOOD)
    with pytest.raises(ValueError, match=r"params.word_probs: expected probabilities ≥ 0"):
        verb(NaiveBayes(good.weights, good.word_probs - 1), GOOD)
    with pytest.raises(ValueError, match=r"x: expected whole counts"):
        verb(good, GOOD + 0.25)
    with pytest.raises(ValueError, match=r"params: expected a NaiveBayes; got Fit \(pass its .params\)"):
        verb(fit(), GOOD)


def test_numpy_data_closed_over_by_a_traced_function_are_checked():
    params = random_model(0, 4, 2)
    for message, call in (
        ("x: expected counts ≥ 0", lambda key: naive_bayes.fit(key, -GOOD, 2)),
        ("row_weights: expected numbers ≥ 0", lambda key: naive_bayes.fit(key, GOOD, 2, row_weights=-np.ones(4))),
        ("params.weights: expected", lambda key: naive_bayes.sample(key, params._replace(weights=np.full(2, 2.0)), 5)),
    ):
        with pytest.raises(ValueError, match=message):
            jax.jit(call)(jax.random.key(0))


def test_unusual_types_that_are_fine():
    # Sums beyond the integer type, 16-bit floats, short ids, whole-number parameters, huge weights.
    assert naive_bayes.fit(jax.random.key(0), np.full((4, 4), 10**9, np.int32), 1).status == Status.CONVERGED
    assert fit(GOOD.astype(np.float16)).params.weights.dtype == jnp.float32
    ids = np.array([[0, 1, 2], [3, 1, 0]], np.int8)
    assert fit(ids, num_words=128).params.word_probs.shape == (128, 2)
    whole = NaiveBayes(np.array([1, 0]), np.array([[1, 0], [0, 1]]))
    np.testing.assert_array_equal(naive_bayes.posterior(whole, np.array([[2, 0]])), [[1.0, 0.0]])
    # The sum of these weights is beyond float32.
    many, weights = np.tile(GOOD, (4, 1)), np.full(16, 3e37, np.float32)
    heavy = fit(many, row_weights=weights)
    light = fit(many, row_weights=np.ones(16, np.float32))
    np.testing.assert_allclose(heavy.params.weights, light.params.weights, rtol=1e-4)
    assert naive_bayes.refine(heavy.params, many, row_weights=weights).status == Status.CONVERGED


def test_refine_on_empty_documents_keeps_distributions():
    params = NaiveBayes(jnp.full(7, 1 / 7), jnp.full((20, 7), 1 / 20))
    refined = naive_bayes.refine(params, np.zeros((3, 20)))
    np.testing.assert_allclose(refined.params.word_probs.sum(axis=0), 1, rtol=1e-5)


@pytest.mark.parametrize("length", [0, (5, 4), 2.5, (3, 4, 5)])
def test_length(length):
    with pytest.raises(ValueError, match=r"length: expected an integer"):
        naive_bayes.sample(jax.random.key(0), random_model(0, 4, 2), 10, length=length)


@pytest.mark.parametrize("second", ["dense", "implicit"])
@pytest.mark.parametrize("method", ["power", "diagonalization"])
def test_a_rank_deficient_second_moment_is_a_status(method, second):
    # All documents are alike: M₂ has rank one, three components are asked for.
    result = fit(np.tile([[4.0, 4.0, 4.0, 4.0]], (50, 1)), 3, method=method, second=second)
    assert result.status in (Status.DEGENERATE, Status.RANK_DEFICIENT)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result))
    np.testing.assert_allclose(result.params.word_probs.sum(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(result.params.weights.sum(), 1, rtol=1e-5)


def test_one_component_too_many_on_data_is_mostly_flagged():
    """A component that is not there is flagged in most trials, one that is there in none."""

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0, None))
    def statuses(key, word_probs, weights):
        key_sample, key_fit = jax.random.split(key)
        x = naive_bayes.sample(key_sample, NaiveBayes(weights, word_probs), 500).x
        return naive_bayes.fit(key_fit, x, 3).status

    # A topic of weight zero is not there.
    keys = jax.random.split(jax.random.key(1), 100)
    topics = jnp.asarray(np.random.default_rng(1).dirichlet(np.full(20, 0.2), (100, 3)).transpose(0, 2, 1), float)
    assert float(jnp.mean(statuses(keys, topics, jnp.array([0.5, 0.5, 0.0])) == Status.CONVERGED)) < 0.25
    assert float(jnp.mean(statuses(keys, topics, jnp.full(3, 1 / 3)) == Status.CONVERGED)) > 0.9


def test_exact_rank_one_moments_ask_for_fewer_components():
    single = naive_bayes.population_moments(random_model(0, 6, 1))
    result = naive_bayes.fit_moments(jax.random.key(0), single, 2)
    assert result.status == Status.RANK_DEFICIENT
    assert "fewer components" in Status(int(result.status)).message
