import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import crowd
from latensor.models.crowd import DawidSkene
from latensor.moments import Labels
from tests.models.crowd_cases import WORKERS, K, draw, error, random_model


def plain_step(params, x, pseudo_count, class_prior):
    """One step by loops."""
    prior, confusion = (np.array(leaf) for leaf in params)
    joint = np.tile(np.log(prior), (x[:, 0].max() + 1, 1))
    for item, worker, label in x:
        joint[item] += np.log(confusion[worker, label])
    joint = np.exp(joint - joint.max(axis=1, keepdims=True))
    joint /= joint.sum(axis=1, keepdims=True)
    counts = np.zeros(confusion.shape) + pseudo_count
    for item, worker, label in x:
        counts[worker, label] += joint[item]
    sizes = joint.mean(axis=0)
    prior = {"uniform": prior, "estimated": sizes, "balanced": (sizes + 1 / len(prior)) / 2}[class_prior]
    return DawidSkene(prior, counts / counts.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(("pseudo_count", "class_prior"), [(1.0, "balanced"), (1.0, "uniform"), (0.5, "estimated")])
def test_em_steps_against_loops(pseudo_count, class_prior, float64):
    params = random_model(3)._replace(prior=jnp.array([0.4, 0.35, 0.25]))
    x, _ = draw(3, params, items=60)
    expected = params._replace(prior=jnp.full(K, 1 / K)) if class_prior == "uniform" else params
    for _ in range(3):
        expected = plain_step(expected, x, pseudo_count, class_prior)
    options = {"pseudo_count": pseudo_count, "class_prior": class_prior, "pooling": 0.0}
    result = crowd.refine(params, x, tol=0.0, max_iters=3, **options)
    np.testing.assert_allclose(result.params.prior, expected.prior, atol=1e-12)
    np.testing.assert_allclose(result.params.confusion, expected.confusion, atol=1e-12)
    mean = np.mean(crowd.log_likelihood(result.params, x))
    np.testing.assert_allclose(result.log_likelihood, mean, rtol=1e-12)


def test_posterior_of_em_never_falls(float64):
    params = random_model(4)
    x, _ = draw(4, params, items=60, per_item=3)

    def objective(steps):
        result = crowd.refine(random_model(5), x, tol=0.0, max_iters=steps, class_prior="estimated", pooling=0.0)
        return 60 * float(result.log_likelihood) + np.log(np.asarray(result.params.confusion)).sum()

    values = [objective(steps) for steps in (0, 1, 2, 5, 20)]
    assert np.all(np.diff(values) > 0)


def test_pooled_labels_are_those_of_all_workers(float64):
    params = random_model(3)
    x, _ = draw(3, params, items=60)
    counts = np.bincount(x[:, 1], minlength=WORKERS)
    together = np.einsum("w,wlh->lh", counts, np.asarray(params.confusion)) / len(x)
    options = {"pseudo_count": 0.0, "class_prior": "uniform", "tol": 0.0, "max_iters": 1}
    alone = plain_step(params._replace(prior=jnp.full(K, 1 / K)), x, 4.0 * together[None], "uniform")
    result = crowd.refine(params, x, **options, pooling=4.0)
    np.testing.assert_allclose(result.params.confusion, alone.confusion, atol=1e-12)
    # By default as many as are missing to five labels per cell, in the mean over labels.
    usual = np.sum(counts**2) / len(x)
    given = crowd.refine(params, x, **options, pooling=2 * K * (1 - usual / (5 * K**2)))
    np.testing.assert_allclose(crowd.refine(params, x, **options).params.confusion, given.params.confusion, atol=1e-12)


def test_classes_that_are_far_from_even(float64):
    # One item in twenty: a prior that takes classes for even would take a fifth of the items for the small one.
    confusion = np.tile(0.5 * np.eye(2) + 0.25, (WORKERS, 1, 1))
    truth = DawidSkene(jnp.array([0.95, 0.05]), jnp.asarray(confusion))
    labels, hidden = draw(15, truth, items=1_000)
    estimate = crowd.fit(jax.random.key(0), labels, 2)
    assert error(crowd.refine(estimate.params, labels).params, labels, hidden) < error(truth, labels, hidden) + 0.02
    uneven, learned = (crowd.refine(estimate.params, labels, class_prior=each) for each in ("balanced", "estimated"))
    np.testing.assert_allclose(uneven.params.prior, learned.params.prior, atol=1e-12)


def test_refine_at_its_end_stays_there(float64):
    x, _ = draw(4, random_model(4), items=100, per_item=4)
    for class_prior in ("balanced", "uniform", "estimated"):
        end = crowd.refine(random_model(5), x, tol=0.0, max_iters=2_000, class_prior=class_prior, pooling=0.0)
        again = crowd.refine(end.params, x, max_iters=0, class_prior=class_prior, pooling=0.0)
        np.testing.assert_array_equal(again.params.prior, end.params.prior)
        np.testing.assert_allclose(again.log_likelihood, end.log_likelihood, rtol=1e-12)


def test_padding_and_items_without_labels_change_nothing(float64):
    params = random_model(16)
    x, _ = draw(16, params, items=60)
    padded = Labels(np.concatenate([x, np.full((5, 3), -1)]), 60, WORKERS)
    more = Labels(x, 90, WORKERS)
    for options in ({}, {"class_prior": "estimated"}):
        expected = crowd.refine(params, x, **options)
        for labels in (padded, more):
            result = crowd.refine(params, labels, **options)
            np.testing.assert_allclose(result.params.confusion, expected.params.confusion, atol=1e-10)
            np.testing.assert_allclose(result.log_likelihood, expected.log_likelihood, rtol=1e-10)
    # The last item is not the one before the first.
    for labels in (padded, more):
        votes = crowd.fit(jax.random.key(0), labels, K, method="power").params
        np.testing.assert_allclose(
            votes.prior, crowd.fit(jax.random.key(0), x, K, method="power").params.prior, atol=1e-2
        )


def test_labels_out_of_range_under_a_trace(float64):
    params = random_model(17)
    x, _ = draw(17, params, items=60)
    status = jax.jit(lambda x: crowd.refine(params, Labels(x, 60, WORKERS), max_iters=2).status)
    for column, value in ((0, 60), (1, WORKERS), (2, K)):
        bad = x.copy()
        bad[7, column] = value
        assert status(jnp.asarray(bad)) == Status.NON_FINITE
    assert status(jnp.asarray(x)) != Status.NON_FINITE


def test_a_worker_is_never_regressed_on_itself(float64):
    truth = random_model(18)
    moments = crowd.population_moments(truth)
    own = np.kron(np.eye(WORKERS), np.ones((K, K))) > 0
    spoilt = moments._replace(second=jnp.where(own, 9.0, moments.second))
    result = crowd.fit_moments(jax.random.key(0), spoilt, K)
    np.testing.assert_allclose(result.params.confusion, truth.confusion, atol=1e-8)


def test_the_likeliest_grouping_is_taken(float64):
    x, _ = draw(19, random_model(19))
    result = crowd.fit(jax.random.key(0), x, K, num_groupings=5)
    scores = np.asarray(result.diagnostics.grouping_scores)
    assert len(set(scores)) == 5
    np.testing.assert_allclose(np.mean(crowd.log_likelihood(result.params, x)), scores.max(), rtol=1e-9)


def test_workers_of_ten_labels_each(float64):
    # Nobody is known well enough for a matrix of their own: EM must not err on more items than a vote.
    truth = random_model(14, workers=100)
    x, hidden = draw(14, truth, items=330, per_item=3)
    labels = Labels(x, num_workers=100)
    votes = np.mean(np.asarray(crowd.majority_vote(labels, K)).argmax(axis=1) != hidden)
    start = crowd.fit(jax.random.key(0), labels, K, method="majority").params
    pooled, own = (error(crowd.refine(start, labels, pooling=each).params, labels, hidden) for each in (None, 0.0))
    assert pooled < votes + 0.02
    assert pooled < own
