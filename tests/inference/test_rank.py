"""`select_rank` on data whose number of components is known, its parts against sums by hand, and what it refuses.

The statistical tests draw their data from seeds that were fixed beforehand. Components are so far apart that each
difference between too few of them and enough is above twenty standard errors; too many are chosen where noise makes
them better by more than one, in about one of a hundred data sets (docs/inference.md).
"""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.inference import Candidate, RankSelection, aic, bic, scree, select_rank
from latensor.inference._rank import _estimate, _Plan
from latensor.inference._splits import Mean, draw_folds, mean_per_observation
from latensor.models import crowd, gaussian_mixture, graphical, hidden_markov
from latensor.models.results import Fit, Refined
from latensor.moments import Sequences, Table

KEY = jax.random.key(0)
D, K, N = 6, 3, 600


def mixture_rows(seed=0, n=N):
    means = 4 * np.random.default_rng(seed).normal(size=(D, K))
    truth = gaussian_mixture.GaussianMixture(np.array([0.5, 0.3, 0.2]), means, np.array(1.0))
    return np.asarray(gaussian_mixture.sample(jax.random.key(seed), truth, n).x)


@pytest.fixture(scope="module")
def selection():
    return select_rank(KEY, gaussian_mixture, mixture_rows(), [4, 1, 3])


# The choice.
def test_components_of_a_mixture(selection):
    assert selection.num_components == K
    assert [each.num_components for each in selection.candidates] == [1, 3, 4]
    levels = [each.held_out.value for each in selection.candidates]
    assert selection.candidates[0].shortfall.value > 20 * selection.candidates[0].shortfall.error
    assert selection.chosen.status == Status.CONVERGED
    assert selection.best.held_out.value == max(levels)
    assert selection.by_spectrum == K
    # The first has no direction beside the mean.
    assert (selection.candidates[0].value, selection.candidates[0].score) == (None, None)
    assert selection.candidates[1].score > 10 > selection.candidates[2].score


def test_criteria_are_those_of_an_estimate_from_all_rows(selection):
    x = mixture_rows()
    for each in selection.candidates:
        assert each.aic == pytest.approx(aic(gaussian_mixture, each.params, x))
        assert each.bic == pytest.approx(bic(gaussian_mixture, each.params, x))
        assert each.num_parameters == gaussian_mixture.num_parameters(each.params)
    fit = gaussian_mixture.fit(KEY, x, K)
    best = gaussian_mixture.refine(fit.params, x)
    assert selection.chosen.aic == pytest.approx(aic(gaussian_mixture, best.params, x), rel=1e-5)


def test_one_split_against_the_same_by_hand():
    x = mixture_rows()
    result = select_rank(KEY, gaussian_mixture, x, [1], holdout=0.3, num_splits=1)
    (test,) = draw_folds(jax.random.split(KEY)[0], Table(x), 0.3, 1, 2).held_out
    train = np.setdiff1d(np.arange(N), test)
    assert len(test) == 180
    # A single component is the mean and the mean variance of the training rows.
    mean, variance = x[train].mean(axis=0), x[train].var(axis=0).mean()
    values = -((x[test] - mean) ** 2).sum(axis=1) / (2 * variance) - D / 2 * np.log(2 * np.pi * variance)
    held_out = result.candidates[0].held_out
    assert held_out.value == pytest.approx(values.mean(), rel=1e-5)
    assert held_out.error == pytest.approx(values.std() / np.sqrt(180), rel=1e-4)
    # It is all that there is to choose.
    assert result.num_components == 1


def test_rows_are_held_out_once_and_means_have_their_errors():
    folds = draw_folds(KEY, Table(np.ones((103, 2))), 0.2, 5, 3)
    rows = folds.held_out.ravel()
    assert folds.held_out.shape == (5, 20)
    assert len(set(rows)) == 100
    assert np.flatnonzero(folds.training_weights(2) == 0).tolist() == folds.held_out[2].tolist()
    rng = np.random.default_rng(0)
    values, weights, sizes = rng.normal(size=500), rng.uniform(size=500), rng.integers(1, 9, 500)
    mean = mean_per_observation(values * sizes, weights, sizes)
    assert mean.value == pytest.approx(np.sum(weights * values * sizes) / np.sum(weights * sizes))
    draws = rng.integers(0, 500, (2000, 500))
    again = [np.sum((weights * values * sizes)[draw]) / np.sum((weights * sizes)[draw]) for draw in draws]
    # 2,000 replicates know a standard deviation to 1.6 %; four times that.
    assert mean.error == pytest.approx(np.std(again), rel=0.065)


def test_missing_entries_row_weights_and_options(precision):
    x = mixture_rows()
    mask = np.random.default_rng(2).random(x.shape) < 0.85
    given = {"mask": mask, "row_weights": np.random.default_rng(3).uniform(0.5, 1, N)}
    result = select_rank(
        KEY,
        gaussian_mixture,
        np.where(mask, x, np.nan),
        [1, 2],
        num_splits=2,
        options={"shared": True},
        refine_options={"max_iters": 50},
        **given,
    )
    assert result.num_components == 2
    assert result.chosen.params.variance.shape == ()
    assert result.chosen.params.means.dtype == precision
    assert result.chosen.aic == pytest.approx(aic(gaussian_mixture, result.chosen.params, x, **given))


def test_a_bound_that_loses_is_not_taken():
    """Where `refine` climbs a bound, what is compared is the likelihood of training rows."""
    model = types.ModuleType("stub")
    model.fit = lambda key, data, k: Fit(0.0, jnp.int32(0), jnp.int32(0), jnp.float32(0), None)
    model.refine = lambda params, data, shift: Refined(params + shift, jnp.int32(0), jnp.int32(1), *jnp.zeros(2))
    model.log_likelihood = lambda params, data, key: params + data.x[:, 0]
    data = Table(np.ones((4, 1)))
    for shift in (1.0, -1.0):
        assert _estimate(KEY, _Plan(model, True, {}, {"shift": shift}), data, 2)[1] == shift
    model.estimate_log_likelihood = model.log_likelihood
    for shift in (1.0, -1.0):
        assert _estimate(KEY, _Plan(model, True, {}, {"shift": shift}), data, 2)[1] == max(shift, 0)


# Sequences.
def chain(n_sequences, length, seed=6):
    params = hidden_markov.HiddenMarkov(
        np.array([0.5, 0.5]), np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([[0.7, 0.05], [0.25, 0.25], [0.05, 0.7]])
    )
    return np.asarray(hidden_markov.sample(jax.random.key(seed), params, n_sequences, length=length).x)


def test_one_long_sequence():
    # Per observation: a difference of 0.12 with an error of 0.02 in each half of 1,500.
    result = select_rank(
        KEY, hidden_markov, chain(60, 25).ravel(), [1, 2], num_splits=2, num_symbols=3, options={"num_starts": 1}
    )
    assert result.num_components == 2
    assert -np.log(3) < result.chosen.held_out.value < -0.8
    assert result.by_spectrum is None


def test_sequences_are_held_out_whole_and_one_long_one_in_blocks_of_time():
    x = chain(60, 25)
    for data in (Sequences(x), Sequences(x.ravel(), lengths=np.full(60, 25))):
        folds = draw_folds(KEY, data, 0.2, 5, 2)
        assert folds.data is data
        assert sorted(folds.held_out.ravel()) == list(range(60))
        assert folds.sizes.tolist() == [25] * 60
    folds = draw_folds(KEY, Sequences(x.ravel()), 0.2, 1, 2)
    assert folds.data.num_sequences == 75
    assert folds.sizes.tolist() == [20] * 75
    # A batch of one sequence is one long sequence; missing observations do not count.
    mask = np.arange(1500) % 2 == 0
    whole = draw_folds(KEY, Sequences(x.reshape(1, -1), lengths=np.array([1400]), mask=mask[None]), 0.2, 1, 2)
    assert whole.sizes.tolist() == [10] * 70
    np.testing.assert_array_equal(whole.data.x, x.ravel()[:1400])


# What is shown.
def test_message_marks_the_choice(selection):
    lines = selection.message.splitlines()
    assert [line.startswith("*") for line in lines] == [False, False, True, False, True]
    assert "CONVERGED" in lines[2]
    assert "k = 3" in lines[-1]
    assert "the spectrum k = 3" in lines[-1]


def test_the_spectrum_stops_at_the_first_direction_that_is_not_clear():
    none = Mean(0.0, 0.0)
    scores = (None, 9.0, 1.0, 8.0)
    table = tuple(
        Candidate(k + 1, Status.CONVERGED, None, None, score, none, none, 1, 0.0, 0.0, None)
        for k, score in enumerate(scores)
    )
    assert RankSelection(1, table).by_spectrum == 2
    assert RankSelection(1, table[2:]).by_spectrum is None


@pytest.mark.usefixtures("no_type_checks")
def test_scree_has_a_bar_for_every_value(selection):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    left, right = scree(selection)
    values = left.containers[0].lines[0].get_xydata()
    np.testing.assert_allclose(values, [(each.num_components, each.value) for each in selection.candidates[1:]])
    below = right.containers[0].lines[0].get_xydata()[:, 1]
    np.testing.assert_allclose(below, [-each.shortfall.value for each in selection.candidates])
    given = pyplot.subplots(1, 2)[1]
    assert scree(selection, given)[0] is given[0]
    pyplot.close("all")
    with pytest.raises(ValueError, match="selection: expected the result of select_rank"):
        scree(3)


# Bad input.
@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([], "at least one number of components; got none"),
        ([2, 3, 2], "different numbers of components; got 2 more than once"),
        ([0, 1], "an integer of at least 1; got 0"),
        ([1, 2.5], "an integer of at least 1; got 2.5"),
        ([True], "an integer of at least 1; got True"),
        ([1, D + 1], f"an integer from 1 to {D}"),
        (3, "numbers of components, such as range"),
        ("12", "numbers of components, such as range"),
    ],
)
def test_candidates_out_of_range(candidates, message):
    with pytest.raises(ValueError, match=f"candidates: expected {message}"):
        select_rank(KEY, gaussian_mixture, mixture_rows(), candidates)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"holdout": 0.0}, "holdout: expected a number between 0 and 1"),
        ({"holdout": 1.0, "num_splits": 1}, "holdout: expected a number between 0 and 1"),
        ({"holdout": 0.3}, r"holdout: .*at most 1 / num_splits = 0\.2"),
        ({"holdout": "half"}, "holdout: expected a number"),
        ({"num_splits": 0}, "num_splits: expected an integer of at least 1"),
        ({"refine": "yes"}, "refine: expected"),
        ({"options": 3}, "options: expected a dict of keywords of gaussian_mixture"),
        ({"refine": False, "refine_options": {"tol": 1e-3}}, "refine_options: expected None where refine is False"),
        ({"row_weights": np.append(1.0, np.zeros(N - 1))}, "row_weights: expected weights of which every division"),
    ],
)
def test_options_out_of_range(given, message):
    with pytest.raises(ValueError, match=message):
        select_rank(KEY, gaussian_mixture, mixture_rows(), [1, 2], **given)


@pytest.mark.usefixtures("no_type_checks")
def test_models_and_data_that_it_cannot_take():
    x = mixture_rows()
    with pytest.raises(ValueError, match="model: expected a module"):
        select_rank(KEY, gaussian_mixture.fit, x, [1, 2])
    for model in (crowd, graphical):
        with pytest.raises(ValueError, match="model: expected one whose number of components is free"):
            select_rank(KEY, model, x, [1, 2])
    with pytest.raises(TypeError, match="unexpected keyword argument 'lengths'; the data of gaussian_mixture have"):
        select_rank(KEY, gaussian_mixture, x, [1, 2], lengths=[3])
    with pytest.raises(ValueError, match="x: expected enough rows"):
        select_rank(KEY, gaussian_mixture, x[:5], [1, 2])
    with pytest.raises(ValueError, match="x: expected concrete arrays"):
        jax.jit(lambda x: jnp.asarray(select_rank(KEY, gaussian_mixture, x, [1, 2]).num_components))(x)
    with pytest.raises(ValueError, match="x"):
        select_rank(KEY, gaussian_mixture, np.where(np.arange(N)[:, None] == 3, np.nan, x), [1, 2])
    with pytest.raises(ValueError, match="key"):
        select_rank(3, gaussian_mixture, x, [1, 2])
