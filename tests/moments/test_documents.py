import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latensor.moments import Documents, contract_document_moments, document_moments
from latensor.moments.internal import (
    contract_third,
    document_pair_forms,
    document_second_moment,
    document_second_moment_operator,
    project_words,
    spread_words,
)
from tests.helpers import lowers

IDS = np.array([[0, 2, 2, 1, -1], [1, 1, 1, -1, -1], [3, 0, 2, 1, 3], [2, -1, 0, 3, -1]])
D = 4


def counts_of(ids, d=D):
    return np.stack([np.bincount(row[row >= 0], minlength=d) for row in ids]).astype(float)


def brute_force(ids, row_weights=None, d=D):
    """Average over all ordered pairs and triples of different positions, one document at a time."""
    weights = np.ones(len(ids)) if row_weights is None else np.asarray(row_weights)
    weights = weights / weights.sum()
    first, second, third = np.zeros(d), np.zeros((d, d)), np.zeros((d, d, d))
    for row, weight in zip(ids, weights, strict=True):
        words = row[row >= 0]
        for order, table in ((1, first), (2, second), (3, third)):
            tuples = list(itertools.permutations(words, order))
            for chosen in tuples:
                table[tuple(chosen)] += weight / len(tuples)
    return first, second, third


@pytest.fixture(params=["counts", "integer counts", "ids", "8-bit ids"])
def documents(request, float64):
    if "ids" in request.param:
        return Documents(jnp.asarray(IDS, jnp.int8 if "8-bit" in request.param else jnp.int32), D)
    return Documents(jnp.asarray(counts_of(IDS), float if request.param == "counts" else jnp.int32))


def weighted(documents, row_weights):
    row_weights = None if row_weights is None else jnp.asarray(row_weights)
    return Documents(documents.x, documents.num_words, row_weights)


@pytest.mark.parametrize("row_weights", [None, [1.0, 0.5, 2.0, 3.0]])
def test_dense_moments_are_averages_over_different_words(documents, row_weights):
    expected = brute_force(IDS, row_weights)
    for got, want in zip(document_moments(weighted(documents, row_weights)), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-14)


def test_single_moments_agree_with_the_full_ones(documents):
    moments = document_moments(documents)
    np.testing.assert_allclose(document_second_moment(documents), moments.second, atol=1e-15)
    # M₂ summed over its second word is M₁: what the model's weights rest on.
    np.testing.assert_allclose(moments.second.sum(axis=1), moments.first, atol=1e-15)
    np.testing.assert_allclose(moments.third.sum(axis=2), moments.second, atol=1e-15)


@pytest.mark.parametrize("row_weights", [None, [1.0, 0.5, 2.0, 3.0]])
def test_contracted_and_operator_forms_equal_the_dense_ones(documents, row_weights):
    documents = weighted(documents, row_weights)
    moments = document_moments(documents)
    directions = jax.random.normal(jax.random.key(0), (D, 3))
    contracted = contract_document_moments(documents, directions)
    expected = np.einsum("ijl,ia,jb,lc->abc", moments.third, directions, directions, directions)
    np.testing.assert_allclose(contracted, expected, atol=1e-14)
    np.testing.assert_allclose(contract_third(moments.third, directions), expected, atol=1e-14)
    apply = document_second_moment_operator(documents)
    np.testing.assert_allclose(apply(directions), moments.second @ directions, atol=1e-15)


@pytest.mark.parametrize("row_weights", [None, [1.0, 0.5, 2.0, 3.0]])
def test_pair_forms_are_those_of_each_document(documents, row_weights):
    """The quadratic forms of every document's own pairs of different words, which average to those of all."""
    documents = weighted(documents, row_weights)
    directions = np.asarray(jax.random.normal(jax.random.key(0), (D, 3)))
    forms, weights = document_pair_forms(documents, jnp.asarray(directions))
    each = [np.sum(directions * (brute_force(IDS[i : i + 1])[1] @ directions), axis=0) for i in range(len(IDS))]
    np.testing.assert_allclose(forms, each, atol=1e-14)
    share = np.ones(len(IDS)) if row_weights is None else np.asarray(row_weights)
    np.testing.assert_allclose(weights, share / share.sum(), atol=1e-15)


def test_contract_third_keeps_the_order_of_modes(float64):
    tensor = jax.random.normal(jax.random.key(0), (3, 3, 3))
    w = jax.random.normal(jax.random.key(1), (3, 2))
    np.testing.assert_allclose(contract_third(tensor, w), np.einsum("ijl,ia,jb,lc->abc", tensor, w, w, w), atol=1e-14)


def test_projection_and_spreading_are_adjoint(documents):
    v = jax.random.normal(jax.random.key(0), (D, 2))
    y = jax.random.normal(jax.random.key(1), (documents.num_rows, 2))
    np.testing.assert_allclose(jnp.sum(project_words(documents, v) * y), jnp.sum(v * spread_words(documents, y)))


def test_ids_beyond_the_vocabulary_do_not_wrap_around(float64):
    ids = jnp.asarray([[0, 1, 2**32, 2**32 + 1]])
    np.testing.assert_array_equal(project_words(Documents(ids, D), jnp.eye(D)), [[1, 1, 0, 0]])
    spread = spread_words(Documents(ids, D), jnp.ones((1, 1)))
    np.testing.assert_array_equal(spread[:, 0], [1, 1, 0, 0])


def test_many_blocks_give_the_same_sums(float64, monkeypatch):
    x = jnp.asarray(np.random.default_rng(0).poisson(1.0, (203, 7)) + 3 * np.eye(7)[:1], float)
    directions = jax.random.normal(jax.random.key(1), (7, 3))
    whole = document_moments(x), contract_document_moments(x, directions)
    monkeypatch.setattr("latensor.moments._rows._FLOATS_PER_BLOCK", 500)
    # An empty document more is left out, and makes a shape that is not compiled yet.
    x = jnp.concatenate([x, jnp.zeros((1, 7))])
    blocks = document_moments(x), contract_document_moments(x, directions)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-14), whole, blocks)


def test_documents_too_short_for_a_triple_are_left_out(float64):
    x = jnp.asarray(counts_of(IDS))
    short = jnp.zeros((2, D)).at[0, 1].set(2)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-15),
        document_moments(jnp.concatenate([x, short])),
        document_moments(x),
    )
    assert all(bool(jnp.all(part == 0)) for part in document_moments(short))


def test_sample_moments_approach_the_population(float64):
    n, length, rng = 20_000, 20, np.random.default_rng(1)
    weights, words = np.array([0.3, 0.7]), rng.dirichlet(np.ones(6), 2)
    x = jnp.asarray(rng.multinomial(length, words[rng.choice(2, n, p=weights)]), float)
    tables = [(b, np.outer(b, b), np.einsum("i,j,l->ijl", b, b, b)) for b in words]
    share = np.sqrt(weights[0] * weights[1] / n)
    for got, one, two in zip(document_moments(x), *tables, strict=True):
        want = weights[0] * one + weights[1] * two
        # Five standard errors: of the share of the two topics, and of the words within a document.
        error = share * np.max(np.abs(one - two)) + np.sqrt(np.max(want) / (n * length))
        np.testing.assert_allclose(got, want, atol=5 * error)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(D)))
def test_relabelling_words_relabels_moments(order):
    order = np.array(order)
    x = counts_of(IDS)
    plain, moved = document_moments(jnp.asarray(x)), document_moments(jnp.asarray(x[:, order]))
    np.testing.assert_allclose(moved.second, np.asarray(plain.second)[np.ix_(order, order)], atol=1e-6)
    np.testing.assert_allclose(moved.third, np.asarray(plain.third)[np.ix_(order, order, order)], atol=1e-6)


def test_precision_in_is_precision_out(precision):
    x = jnp.asarray(counts_of(IDS), precision)
    assert {leaf.dtype.name for leaf in document_moments(x)} == {precision}
    assert document_second_moment_operator(Documents(x))(jnp.ones((D, 1), precision)).dtype == precision
    assert contract_document_moments(x, jnp.ones((D, 2), precision)).dtype == precision


def test_float32_stays_float32_under_x64(float64):
    x = Documents(jnp.asarray(counts_of(IDS), jnp.float32), row_weights=jnp.asarray([1.0, 2.0, 3.0, 4.0]))
    assert x.row_weights.dtype == jnp.float64
    directions = jnp.ones((D, 2), jnp.float32)
    assert {leaf.dtype.name for leaf in document_moments(x)} == {"float32"}
    assert contract_document_moments(x, directions).dtype == jnp.float32
    assert document_second_moment_operator(x)(directions).dtype == jnp.float32


def test_directions_that_do_not_fit_are_named(no_type_checks):
    for data in (Documents(jnp.asarray(IDS), D), jnp.asarray(counts_of(IDS))):
        with pytest.raises(ValueError, match=r"directions: expected 4 rows, one per dimension; got shape \(3, 2\)"):
            contract_document_moments(data, jnp.ones((3, 2)))


def test_vmap_equals_loop(float64):
    x = jnp.asarray(np.random.default_rng(0).poisson(2.0, (3, 5, D)) + 1, float)
    w = jax.random.normal(jax.random.key(1), (3, D, 2))
    batch = jax.vmap(contract_document_moments)(x, w)
    loop = jnp.stack([contract_document_moments(x[i], w[i]) for i in range(3)])
    np.testing.assert_allclose(batch, loop, atol=1e-14)
    with jax.disable_jit():
        np.testing.assert_allclose(contract_document_moments(x[0], w[0]), loop[0], atol=1e-14)


def test_lowers_for_accelerators():
    x, ids, w = jnp.ones((8, D)), jnp.zeros((8, 5), jnp.int32), jnp.ones((D, 2))
    for data in (Documents(x), Documents(ids, D)):
        lowers(document_moments, data)
        lowers(document_second_moment, data)
        lowers(lambda a, v: document_second_moment_operator(a)(v), data, w)
        lowers(contract_document_moments, data, w)
        lowers(project_words, data, w)
        lowers(spread_words, data, jnp.ones((8, 2)))
    lowers(contract_third, jnp.ones((D, D, D)), w)
