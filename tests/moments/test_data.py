import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.moments import Documents, Sequences, Table, categorical_variables, cumulants, sequence_moments
from latensor.moments.internal import as_documents, as_sequences, as_table

X = np.arange(12.0).reshape(4, 3)
MASK = X % 5 != 0
WEIGHTS = np.array([1.0, 4.0, 0.0, 2.0])
SYMBOLS = np.array([0, 2, 1, 1, 0, 2])


def examples():
    """Return one of each type, with all of its fields."""
    return (
        Table(jnp.asarray(X), jnp.asarray(MASK), jnp.asarray(WEIGHTS), categorical_variables(3, 12)),
        Documents(jnp.asarray(X, jnp.int32), 12, jnp.asarray(WEIGHTS)),
        Sequences(jnp.asarray(SYMBOLS), jnp.asarray([4, 2]), jnp.ones(6, bool), jnp.asarray([1.0, 0.5]), 3),
    )


EXAMPLES = pytest.mark.parametrize("place", range(3), ids=["Table", "Documents", "Sequences"])


def fields_of(data):
    return {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}


def same(first, second):
    assert type(first) is type(second)
    for name, value in fields_of(first).items():
        np.testing.assert_array_equal(value, getattr(second, name))


# Construction.
def test_arrays_become_those_of_jax(precision):
    table = Table(X, MASK, WEIGHTS)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(table))
    assert table.x.dtype == table.row_weights.dtype == table.dtype == precision
    np.testing.assert_array_equal(table.row_weights, WEIGHTS / 4)  # only ratios matter: the largest is one
    assert (table.num_rows, table.num_dimensions) == (4, 3)
    assert Table(X.astype(np.int32)).x.dtype == jnp.int32
    assert Table(X.astype(np.int32)).dtype == precision
    assert Table(jnp.asarray(X, jnp.float32)).dtype == jnp.float32
    assert Table(X, row_weights=np.array([1, 2, 3, 4])).row_weights.dtype == precision


def test_nested_lists_are_arrays_too(no_type_checks):
    same(Table([[1.0, 2.0]], row_weights=[3]), Table(jnp.asarray([[1.0, 2.0]]), row_weights=jnp.ones(1)))
    assert Sequences([0, 1, 5]).num_symbols == 6
    assert isinstance(Documents(X.astype(int), np.int64(20)).num_words, int)


def test_documents_are_counts_or_ids(precision):
    counts, ids = Documents(X), Documents(X.astype(int), 20, WEIGHTS)
    assert (counts.num_rows, counts.vocabulary_size, counts.dtype) == (4, 3, precision)
    assert (ids.num_rows, ids.vocabulary_size, ids.dtype) == (4, 20, precision)
    assert Documents(X.astype(np.float32)).dtype == jnp.float32


def test_sequences_know_their_shapes(precision):
    one, many = Sequences(SYMBOLS), Sequences(SYMBOLS.reshape(2, 3))
    assert (one.is_symbolic, one.is_batched, one.num_sequences, one.num_features) == (True, False, 1, 3)
    assert (many.is_symbolic, many.is_batched, many.num_sequences, many.num_features) == (True, True, 2, 3)
    assert (one.x.dtype, one.dtype) == (jnp.int32, precision)
    assert Sequences(SYMBOLS, np.array([4, 0, 2])).num_sequences == 3
    one, many = Sequences(X), Sequences(X[None])
    assert (one.is_symbolic, one.is_batched, one.num_sequences, one.num_features) == (False, False, 1, 3)
    assert (many.is_symbolic, many.is_batched, many.num_sequences, many.num_features) == (False, True, 1, 3)
    assert one.num_symbols is None
    assert Sequences(X.astype(np.float32)).dtype == jnp.float32


def test_an_array_or_the_data_type_itself():
    table, documents, sequences = examples()
    assert as_table(table) is table
    assert as_table(table, mask=None, row_weights=None) is table
    assert as_documents(documents, num_words=None) is documents
    assert as_sequences(sequences, lengths=None) is sequences
    same(as_table(X, mask=MASK, row_weights=WEIGHTS), Table(X, MASK, WEIGHTS))
    same(as_documents(X.astype(int), num_words=12), Documents(X.astype(int), 12))
    same(as_sequences(SYMBOLS, lengths=np.array([3, 3])), Sequences(SYMBOLS, np.array([3, 3])))


# The number of symbols.
def test_number_of_symbols_is_read_off_what_is_observed():
    assert Sequences(np.array([0, 3, -1])).num_symbols == 4
    assert Sequences(np.array([-1, -1])).num_symbols == 1
    assert Sequences(np.array([0, 1, 9]), mask=np.array([True, True, False])).num_symbols == 2
    assert Sequences(np.array([0, 9]), mask=np.zeros(2, bool)).num_symbols == 1
    padded = Sequences(np.array([[0, 1, 9], [2, 9, 9]]), np.array([2, 1]))
    assert padded.num_symbols == 3
    np.testing.assert_array_equal(padded.observed_on_host(), [[True, True, False], [True, False, False]])
    assert Sequences(SYMBOLS, num_symbols=7).num_symbols == 7


def test_number_of_symbols_is_required_under_a_trace(precision):
    with pytest.raises(ValueError, match="num_symbols: expected the number of symbols where x is traced; got None"):
        jax.jit(sequence_moments)(jnp.asarray(SYMBOLS))
    with pytest.raises(ValueError, match="num_symbols: expected the number of symbols"):
        jax.vmap(Sequences)(jnp.asarray(SYMBOLS).reshape(2, 3))
    with pytest.raises(ValueError, match="num_symbols: expected the number of symbols"):
        jax.jit(lambda mask: Sequences(SYMBOLS, mask=mask))(jnp.ones(6, bool))

    @jax.jit
    def concrete(y):  # constants are concrete in a trace too
        sequences = Sequences(SYMBOLS, np.array([4, 2]), np.ones(6, bool))
        assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(sequences))
        return y + sequences.num_symbols

    assert concrete(1) == 4


def test_under_a_trace_values_are_not_checked(precision):
    @jax.jit
    def build(weights, lengths):
        table = Table(X, row_weights=weights)
        sequences = Sequences(SYMBOLS, lengths, num_symbols=3)
        return table.row_weights, sequences.lengths

    for bad in (-WEIGHTS, WEIGHTS * np.nan, WEIGHTS + np.inf, 0 * WEIGHTS, np.array([1.0, 1.0, -1e-9, 1.0])):
        # Nothing can be raised: all weights become NaN, which every status shows.
        weights, lengths = build(jnp.asarray(bad), jnp.asarray([9, 9]))
        assert np.all(np.isnan(weights))
        assert lengths.tolist() == [9, 9]
    weights, _ = build(jnp.asarray(WEIGHTS), jnp.asarray([3, 3]))
    np.testing.assert_array_equal(weights, WEIGHTS / 4)


def test_symbols_beyond_32_bits_do_not_wrap_around_under_a_trace(float64):
    symbols = jax.jit(lambda x: Sequences(x, num_symbols=3).x)(jnp.asarray([0, 2**32 + 1, -(2**32)]))
    assert symbols.tolist() == [0, 2**31 - 1, -(2**31)]


# Pytrees.
@EXAMPLES
def test_cannot_be_changed(place):
    data = examples()[place]
    for name in fields_of(data):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(data, name, None)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(data, name)


@EXAMPLES
def test_a_changed_copy_is_not_checked(place):
    data = examples()[place]
    changed = data._replace(x="anything")
    assert changed.x == "anything"
    assert type(changed) is type(data)
    assert changed.row_weights is data.row_weights
    same(data, examples()[place])
    with pytest.raises(TypeError, match="has no field rowweights"):
        data._replace(rowweights=None)


@EXAMPLES
def test_passes_through_jit_and_trees(place, precision):
    data = examples()[place]
    same(jax.jit(lambda data: data)(data), data)
    same(jax.tree.map(lambda leaf: leaf, data), data)
    same(pickle.loads(pickle.dumps(data)), data)
    same(copy.deepcopy(data), data)
    for other in (None, object()):
        changed = jax.tree.map(lambda _, other=other: other, data)
        assert type(changed) is type(data)
        assert changed.x is other
    leaves, structure = jax.tree.flatten(data)
    same(jax.tree.unflatten(structure, leaves), data)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(data)]
    assert paths == [f".{name}" for name, value in fields_of(data).items() if isinstance(value, jax.Array)]


@EXAMPLES
def test_passes_through_vmap(place, precision):
    data = examples()[place]
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), data)

    def check(lane):
        assert type(lane) is type(data)
        assert [leaf.shape for leaf in jax.tree.leaves(lane)] == [leaf.shape for leaf in jax.tree.leaves(data)]
        return lane

    same(jax.vmap(check)(batch), batch)


def test_static_fields_are_part_of_the_type():
    traces = []

    @jax.jit
    def count(data):
        traces.append(data)
        return data.x

    ids = X.astype(int)
    for documents in (Documents(ids, 12), Documents(ids, 12), Documents(ids, 13), Documents(ids + 1, 12)):
        count(documents)
    assert len(traces) == 2


def test_a_batch_of_tables(float64):
    rng = np.random.default_rng(0)
    xs, masks = jnp.asarray(rng.normal(size=(2, 9, 3))), jnp.asarray(rng.random((2, 9, 3)) < 0.8)
    weights = rng.random((2, 9))
    batch = jax.vmap(Table)(xs, masks, jnp.asarray(weights))
    assert batch.x.shape == (2, 9, 3)
    np.testing.assert_allclose(batch.row_weights.max(axis=1), 1)
    batched = jax.vmap(cumulants)(batch)
    for lane in range(2):
        expected = cumulants(Table(xs[lane], masks[lane], jnp.asarray(weights[lane])))
        for a, b in zip(batched, expected, strict=True):
            np.testing.assert_allclose(a[lane], b, atol=1e-13)
    assert jax.vmap(Table)(xs).mask is None


@EXAMPLES
def test_representation_is_short(place):
    data = examples()[place]
    assert len(repr(data)) < 250
    assert repr(data).startswith(type(data).__name__ + "(x=")
    assert f"{data.x.dtype}{list(data.x.shape)}" in repr(data)


def test_representation_names_every_field(float64):
    assert repr(Table(X, MASK)) == "Table(x=float64[4, 3], mask=bool[4, 3], row_weights=None, variables=None)"
    assert repr(jax.tree.map(lambda _: 7, Documents(X))) == "Documents(x=7, num_words=None, row_weights=None)"
