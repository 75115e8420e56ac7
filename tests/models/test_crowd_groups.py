"""Groups of workers: how they are dealt, their moments, and what `fit` makes of workers of few labels."""

import jax
import jax.numpy as jnp
import numpy as np

from latensor.decompose import Status
from latensor.models import crowd
from latensor.models.crowd.groups import draw_groups, group_moments
from latensor.moments import Labels
from tests.models.crowd_cases import WORKERS, K, draw, random_model

ITEMS, RARE = 300, 4


def test_workers_of_many_labels_are_in_different_groups():
    counts = jnp.asarray([900.0, 800, 700, *[5.0] * 9])
    groups = np.asarray(draw_groups(jax.random.key(0), counts, 20))
    assert all(sorted(group[:3]) == [0, 1, 2] for group in groups)
    assert len({tuple(group) for group in groups}) == 20


def test_moments_of_groups_against_loops(float64):
    """Items count by their weights, and a worker's labels by how many there are."""
    x, _ = draw(1, random_model(1), items=40, per_item=3)
    weights = np.random.default_rng(1).uniform(0.5, 2, 40)
    group = np.arange(WORKERS) % 3
    result = group_moments(Labels(x, row_weights=weights), jnp.asarray(group, jnp.int32)[None], K)
    share, votes = weights / weights.sum(), np.zeros((40, 3, K))
    for item, worker, label in x:
        votes[item, group[worker], label] += 1
    present = votes.sum(axis=2) > 0
    means = votes / np.maximum(votes.sum(axis=2, keepdims=True), 1)
    products, seen = np.zeros((WORKERS * K, 3 * K)), np.zeros((WORKERS, 3))
    for item, worker, label in x:
        products[worker * K + label] += share[item] * means[item].reshape(-1)
        seen[worker] += share[item] * present[item]
    np.testing.assert_allclose(result.references.products[0], products, atol=1e-12)
    np.testing.assert_allclose(result.references.seen[0], np.repeat(seen, K, axis=1), atol=1e-12)
    np.testing.assert_array_equal(result.references.allowed[0], np.repeat(group[:, None] != np.arange(3), K, axis=1))
    for g in range(3):
        mine = share * present[:, g]
        np.testing.assert_allclose(result.views.first[g][0], mine @ means[:, g] / mine.sum(), atol=1e-12)
    both = share * present[:, 0] * present[:, 2]
    pair = np.einsum("n,na,nb->ab", both, means[:, 0], means[:, 2]) / both.sum()
    np.testing.assert_allclose(result.views.second[1][0], pair, atol=1e-12)


def rare_workers():
    """Labels by twelve workers, and by four more who label three items of the first class each, one of them wrongly."""
    x, hidden = draw(6, random_model(6), items=ITEMS)
    first = np.flatnonzero(hidden == 0)
    extra = [(first[3 * w + i], WORKERS + w, int(i == w % 3)) for w in range(RARE) for i in range(3)]
    return Labels(np.concatenate([x, extra])), hidden


def test_a_worker_of_few_labels_is_like_its_group(float64):
    labels, hidden = rare_workers()
    result = crowd.fit(jax.random.key(0), labels, K, method="power", num_groupings=1)
    group, confusion = np.asarray(result.diagnostics.groups), np.asarray(result.params.confusion)
    # Those of many labels were dealt first.
    assert np.bincount(group[:WORKERS]).tolist() == [4, 4, 4]
    # Of four workers in three groups two are in one. Three labels beside 50 per class are 2 % of a matrix.
    same = [(a, b) for a in range(WORKERS, WORKERS + RARE) for b in range(a) if b >= WORKERS and group[a] == group[b]]
    assert same
    for a, b in same:
        np.testing.assert_allclose(confusion[a], confusion[b], atol=3 / 150)
    # Of 150 labels, about half is a worker's own: it differs from others of its group.
    others = [(a, b) for a in range(WORKERS) for b in range(a) if group[a] == group[b]]
    assert np.mean([np.max(np.abs(confusion[a] - confusion[b])) for a, b in others]) > 0.1
    # All items of the rare workers are of the first class, and hardly count: standard errors are 0.03.
    np.testing.assert_allclose(result.params.prior, np.bincount(hidden) / ITEMS, atol=0.1)


def test_the_rank_of_the_evidence_is_the_number_of_classes(float64):
    """Nobody tells the last two classes apart: the second direction is there, and no third one."""
    truth = random_model(6, strength=4.0)
    confusion = np.array(truth.confusion)
    confusion[:, 1:, 1:] = confusion[:, 1:, 1:].sum(axis=1, keepdims=True) / 2
    confusion[:, :, 2] = confusion[:, :, 1]
    blind = truth._replace(confusion=jnp.asarray(confusion))
    options = {"method": "power", "num_groupings": 1}
    fits = [crowd.fit(jax.random.key(0), Labels(draw(6, model, ITEMS)[0]), K, **options) for model in (truth, blind)]
    assert fits[0].diagnostics.evidence.rank > 5
    assert fits[1].diagnostics.evidence.rank < 2.5
    assert fits[1].status >= Status.RANK_DEFICIENT


def test_a_class_that_hardly_occurs_is_at_the_boundary(float64):
    truth = random_model(0, workers=30)._replace(prior=jnp.asarray([0.6, 0.3999, 1e-4]))
    result = crowd.fit_moments(jax.random.key(0), crowd.population_moments(truth), K, method="power")
    assert result.status == Status.BOUNDARY
    # A thousandth of an even share.
    np.testing.assert_allclose(result.params.prior[2], 1e-3 / K, rtol=1e-3)
