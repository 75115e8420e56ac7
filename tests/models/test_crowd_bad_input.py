import jax
import numpy as np
import pytest

from latensor.models import crowd
from latensor.moments import Labels
from tests.models.crowd_cases import TWO_WORKERS, K, draw, random_model


@pytest.mark.parametrize(
    ("change", "k", "message"),
    [
        (lambda x: x, 2, "x: expected labels from 0 to 1, one for each class; got 2 at row"),
        (lambda x: x + np.array([0, 0, 1]), 3, "x: expected labels from 0 to 2.*labels from 1 to 3: subtract one"),
        (lambda x: TWO_WORKERS, 3, "x: expected labels by at least three workers; got 2"),
        (lambda x: x[x[:, 0] != 5], 3, "x: expected items numbered 0, 1, … without gaps; item 5 has no label"),
        (lambda x: x * [1, 1, 0], 3, "x: expected at least two different labels; got 0 only"),
        (lambda x: x, 1, "num_components: expected an integer from 2"),
        (lambda x: np.concatenate([x, x[:1]]), 3, "x: expected at most one label by each worker for each item"),
    ],
)
def test_bad_input(change, k, message, no_type_checks):
    x, _ = draw(12, random_model(12), items=100)
    with pytest.raises(ValueError, match=message):
        crowd.fit(jax.random.key(0), change(x), k)


def test_bad_options(no_type_checks):
    params = random_model(12)
    x, _ = draw(12, params, items=20)
    with pytest.raises(ValueError, match="class_prior: expected one of"):
        crowd.refine(params, x, class_prior="flat")
    with pytest.raises(ValueError, match="pseudo_count: expected a number of at least 0"):
        crowd.refine(params, x, pseudo_count=-1)
    with pytest.raises(ValueError, match="labels_per_item: expected an integer from 1 to 12"):
        crowd.sample(jax.random.key(0), params, 5, labels_per_item=13)
    with pytest.raises(ValueError, match="x: expected workers below num_workers = 12; got 12"):
        crowd.posterior(params, x + np.array([0, 1, 0]))
    with pytest.raises(ValueError, match="x: expected labels by 12 workers"):
        crowd.posterior(params, Labels(x, num_workers=13))
    with pytest.raises(ValueError, match="method: expected one that decomposes moments"):
        crowd.fit_moments(jax.random.key(0), crowd.population_moments(params), K, method="majority")
    with pytest.raises(ValueError, match="num_components: expected an integer of at least 2"):
        crowd.majority_vote(x, 1)


def test_workers_of_an_item_are_different():
    x = np.asarray(crowd.sample(jax.random.key(0), random_model(13), 200, labels_per_item=8).x).reshape(200, 8, 3)
    assert all(len(set(row)) == 8 for row in x[:, :, 1].tolist())
    # Every worker is as likely: 133 labels each, with a standard deviation of 7.
    assert np.abs(np.bincount(x[:, :, 1].reshape(-1)) - 1600 / 12).max() < 35


def test_two_labels_per_item(no_type_checks):
    x = np.array([[item, (item + turn) % 5, item % 2] for item in range(40) for turn in range(2)])
    with pytest.raises(ValueError, match=r"three workers or more.*at most 2 per item.*majority"):
        crowd.fit(jax.random.key(0), x, 2)
    assert np.all(np.isfinite(crowd.fit(jax.random.key(0), x, 2, method="majority").params.confusion))
