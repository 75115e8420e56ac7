import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import crowd
from latensor.moments import Labels
from tests.models.crowd_cases import METHODS, WORKERS, K, draw, error, random_model


# Population moments.
@pytest.mark.parametrize("method", METHODS)
def test_population_moments_give_the_model_back(method, float64):
    for seed in range(3):
        truth = random_model(seed, workers=30)
        result = crowd.fit_moments(jax.random.key(seed), crowd.population_moments(truth), K, method=method)
        assert result.status == Status.CONVERGED
        np.testing.assert_allclose(result.params.prior, truth.prior, atol=1e-8)
        np.testing.assert_allclose(result.params.confusion, truth.confusion, atol=1e-8)


def test_population_moments_of_adversaries_and_spammers(float64):
    # A third of the workers are wrong on purpose, or say anything: classes are still named by the average worker.
    truth = random_model(0, workers=30, strength=4.0)
    confusion = np.array(truth.confusion)
    confusion[:5] = np.roll(np.eye(K), 1, axis=0) * 0.8 + 0.2 / K
    confusion[5:10] = 1 / K
    truth = truth._replace(confusion=jnp.asarray(confusion))
    result = crowd.fit_moments(jax.random.key(0), crowd.population_moments(truth), K)
    np.testing.assert_allclose(result.params.confusion, confusion, atol=1e-8)


# Likelihoods against brute force.
def test_likelihood_and_posterior_against_enumeration(precision):
    params = random_model(1)
    x, _ = draw(1, params, items=20)
    prior, confusion = (np.asarray(leaf) for leaf in params)
    joint = np.tile(prior, (20, 1))
    for item, worker, label in x:
        joint[item] *= confusion[worker, label]
    tolerance = 1e-10 if precision == "float64" else 1e-4
    np.testing.assert_allclose(crowd.log_likelihood(params, x), np.log(joint.sum(axis=1)), rtol=tolerance)
    np.testing.assert_allclose(crowd.posterior(params, x), joint / joint.sum(axis=1, keepdims=True), rtol=tolerance)


def test_an_item_without_labels_has_the_prior(float64):
    params = random_model(1)
    x, _ = draw(1, params, items=20)
    with pytest.raises(ValueError, match="item 7 has no label"):
        crowd.posterior(params, x[x[:, 0] != 7])
    rows = crowd.posterior(params, x[x[:, 0] != 7], num_items=22)
    np.testing.assert_allclose(rows[jnp.array([7, 20, 21])], np.tile(params.prior, (3, 1)), rtol=1e-12)


def test_votes():
    x = np.array([[0, 0, 1], [0, 1, 1], [0, 2, 0], [1, 0, 2], [1, 1, 0]])
    votes = crowd.majority_vote(x, 3, num_items=3)
    np.testing.assert_allclose(votes, [[1 / 3, 2 / 3, 0], [0.5, 0, 0.5], [1 / 3] * 3], rtol=1e-6)


def test_worker_accuracy_is_the_share_of_right_labels(float64):
    params = random_model(2)
    x, _ = draw(2, params, items=30)
    result = crowd.worker_accuracy(params, Labels(x, num_workers=WORKERS))
    counts = np.bincount(x[:, 1], minlength=WORKERS)
    np.testing.assert_array_equal(result.num_labels, counts)
    rows, right = np.asarray(crowd.posterior(params, x)), np.zeros(WORKERS)
    for item, worker, label in x:
        right[worker] += rows[item, label]
    np.testing.assert_allclose(result.accuracy, right / counts, rtol=1e-12)
    # Without labels, what the model expects.
    none = crowd.worker_accuracy(params, x[x[:, 1] != 0], num_items=30)
    assert none.num_labels[0] == 0
    np.testing.assert_allclose(none.accuracy[0], np.diag(params.confusion[0]) @ params.prior, rtol=1e-12)


# Estimates.
def test_fit_and_refine_come_close_to_the_truth(float64):
    truth = random_model(6)
    x, hidden = draw(6, truth, items=3_000)
    labels = Labels(x)
    estimate = crowd.fit(jax.random.key(0), labels, K)
    assert estimate.status == Status.CONVERGED
    refined = crowd.refine(estimate.params, labels, class_prior="estimated")
    # Standard errors of the entries are about 0.01; the largest of 108 is within 0.06.
    np.testing.assert_allclose(refined.params.confusion, truth.confusion, atol=0.06)
    np.testing.assert_allclose(refined.params.prior, truth.prior, atol=0.04)
    # At most half a point worse than the truth itself.
    assert error(refined.params, labels, hidden) < error(truth, labels, hidden) + 0.005
    votes = np.asarray(crowd.majority_vote(labels, K)).argmax(axis=1)
    assert error(refined.params, labels, hidden) < np.mean(votes != hidden)


def test_majority_counts_the_votes(float64):
    truth = random_model(6)
    x, _ = draw(6, truth, items=50)
    result = crowd.fit(jax.random.key(0), x, K, method="majority")
    votes = np.asarray(crowd.majority_vote(x, K))
    counts = np.full((WORKERS, K, K), 1 / K)
    for item, worker, label in x:
        counts[worker, label] += votes[item]
    np.testing.assert_allclose(result.params.confusion, counts / counts.sum(axis=1, keepdims=True), atol=1e-12)
    np.testing.assert_allclose(result.params.prior, votes.mean(axis=0), atol=1e-12)
    assert result.diagnostics.spectrum is None


def test_spammers_and_workers_of_few_labels(float64):
    # Six of twelve workers say anything, and one more gives three labels: the others are still found.
    truth = random_model(7, strength=4.0)
    confusion = np.array(truth.confusion)
    confusion[:6] = 1 / K
    truth = truth._replace(confusion=jnp.asarray(confusion))
    x, hidden = draw(7, truth, items=1_000)
    extra = np.array([[item, WORKERS, hidden[item]] for item in range(3)])
    labels = Labels(np.concatenate([x, extra]))
    refined = crowd.refine(crowd.fit(jax.random.key(0), labels, K).params, labels)
    accuracy = crowd.worker_accuracy(refined.params, labels)
    assert np.max(accuracy.accuracy[:6]) < 0.5 < np.min(accuracy.accuracy[6:WORKERS])
    assert accuracy.num_labels[WORKERS] == 3
    # Three right labels and a pseudo-count of one: neither perfect nor hopeless.
    assert 1 / K < np.trace(refined.params.confusion[WORKERS]) / K < 0.7
    # The true model errs on 6.9 % of the items, votes on 22.6 %.
    assert error(refined.params, labels, hidden) < 0.12


def test_a_class_that_nobody_uses(precision):
    truth = random_model(8)
    x, hidden = draw(8, truth)
    # Nobody but for a few slips.
    slips = np.random.default_rng(8).uniform(size=len(x)) < 0.01
    for given in (x, np.where(slips[:, None] & [False, False, True], K, x)):
        estimate = crowd.fit(jax.random.key(0), given, K + 1)
        assert estimate.status == Status.DEGENERATE
        assert estimate.params.prior[K] == 0
        for class_prior in ("balanced", "estimated"):
            refined = crowd.refine(estimate.params, given, class_prior=class_prior)
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((estimate.params, refined.params)))
            assert refined.params.prior[K] < 0.05
            # The truth errs on 3.5 % of the items.
            assert error(refined.params, given, hidden) < 0.08


def test_worker_without_labels_is_unobserved(float64):
    x, _ = draw(9, random_model(9))
    result = crowd.fit(jax.random.key(0), x, K, num_workers=WORKERS + 1)
    assert result.status == Status.UNOBSERVED
    assert np.all(np.isfinite(result.params.confusion))


def test_no_more_than_chance(float64):
    rng = np.random.default_rng(10)
    x = np.array([(i, w, rng.integers(3)) for i, w in itertools.product(range(200), range(6))])
    assert crowd.fit(jax.random.key(0), x, 3).status >= Status.POOR_FIT


def test_trials_with_different_numbers_of_labels_are_one_vmap(float64):
    params = random_model(11)
    sets = [draw(seed, params, items=100, per_item=4 + seed)[0] for seed in range(2)]
    size = max(map(len, sets))
    padded = np.stack([np.concatenate([x, np.full((size - len(x), 3), -1)]) for x in sets])

    def trial(key, x):
        labels = Labels(x, 100, WORKERS)
        return crowd.refine(crowd.fit(key, labels, K, method="power").params, labels, tol=0.0, max_iters=5)

    keys = jax.random.split(jax.random.key(0), 2)
    batch = jax.jit(jax.vmap(trial))(keys, jnp.asarray(padded))
    for i, x in enumerate(sets):
        np.testing.assert_allclose(batch.log_likelihood[i], trial(keys[i], x).log_likelihood, rtol=1e-9)
