import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.moments import Labels
from latensor.moments.internal import as_labels, sum_by_item, sum_by_label, valid_labels

TRIPLES = np.array([[0, 1, 2], [0, 0, 1], [1, 2, 0], [2, 1, 1], [2, 0, 0]])


def dense(values, num_items, num_workers, num_classes):
    """The indicator of each label, with all zeros that the sparse form leaves out."""
    table = np.zeros((num_items, num_workers * num_classes))
    for item, worker, label in values:
        table[item, worker * num_classes + label] = 1
    return table


def test_sums_are_those_of_the_dense_table(precision):
    labels, rng = Labels(TRIPLES), np.random.default_rng(0)
    table = dense(TRIPLES, 3, 3, 3)
    values, rows = rng.normal(size=(9, 2)), rng.normal(size=(3, 2))
    tolerance = 1e-12 if precision == "float64" else 1e-6
    np.testing.assert_allclose(sum_by_item(labels, jnp.asarray(values), 3), table @ values, atol=tolerance)
    np.testing.assert_allclose(sum_by_label(labels, jnp.asarray(rows), 3), table.T @ rows, atol=tolerance)


def test_padding_is_ignored():
    padded = Labels(np.concatenate([TRIPLES, [[-1, 7, 9], [-1, -1, -1]]]), 3, 3)
    values = jnp.arange(9.0)[:, None]
    np.testing.assert_array_equal(sum_by_item(padded, values, 3), sum_by_item(Labels(TRIPLES), values, 3))
    np.testing.assert_array_equal(valid_labels(padded, 3), [True] * 5 + [False] * 2)


def test_sizes_are_read_off():
    labels = Labels(TRIPLES)
    assert (labels.num_items, labels.num_workers, labels.num_rows, labels.num_labels) == (3, 3, 3, 5)
    assert Labels(TRIPLES, 7, 8).num_items == 7


def test_under_a_trace_sizes_are_needed():
    def number(x, **sizes):
        return Labels(x, **sizes).x.sum()

    assert jax.jit(lambda x: number(x, num_items=3, num_workers=3))(jnp.asarray(TRIPLES)) == TRIPLES.sum()
    with pytest.raises(ValueError, match="num_items: expected a number, which cannot be read off x under jit"):
        jax.jit(number)(jnp.asarray(TRIPLES))
    with pytest.raises(ValueError, match="num_workers: expected a number"):
        jax.jit(lambda x: number(x, num_items=3))(jnp.asarray(TRIPLES))


def test_duplicates_are_an_error_or_corrections():
    twice = np.concatenate([TRIPLES, [[0, 1, 0], [2, 0, 2]]])
    with pytest.raises(ValueError, match=r"x: .* worker 1 labels item 0 2 times \(2 such pairs in all\)"):
        Labels(twice)
    kept = np.asarray(Labels(twice, duplicates="last").x)
    assert sorted(map(tuple, kept)) == [(0, 0, 1), (0, 1, 0), (1, 2, 0), (2, 0, 2), (2, 1, 1)]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (TRIPLES[:, :2], "x: expected integers"),
        (TRIPLES.astype(float), "x: expected integers"),
        (TRIPLES[:0], "at least one row"),
        ([[0, -1, 1]], "x: expected workers and labels ≥ 0; got .0, -1, 1. at row 0"),
        ([[-1, 0, 0]], "x: expected at least one label"),
        ([[0, 0, 0], [2, 0, 1]], "x: expected items numbered 0, 1, … without gaps; item 1 has no label"),
        ([[0, 0, 0], [1, 2, 1]], "worker 1 has no label"),
        ([["a", 0, 0]], "x: expected integers"),
    ],
)
def test_bad_triples(x, message, no_type_checks):
    with pytest.raises(ValueError, match=message):
        Labels(x)


def test_bad_fields(no_type_checks):
    with pytest.raises(ValueError, match="x: expected items below num_items = 2; got 2"):
        Labels(TRIPLES, 2)
    with pytest.raises(ValueError, match="row_weights: expected one weight per item"):
        Labels(TRIPLES, row_weights=np.ones(5))
    with pytest.raises(ValueError, match="duplicates: expected one of"):
        Labels(TRIPLES, duplicates="first")
    with pytest.raises(ValueError, match="got a batch"):
        as_labels(jax.tree.map(lambda leaf: leaf[None], Labels(TRIPLES)))
