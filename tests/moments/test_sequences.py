import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.moments import Sequences, contract_sequence_moments, cross_moments, sequence_moments
from latensor.moments import _rows as rows_module
from latensor.moments.internal import (
    Windows,
    contract_windows,
    count_distinct,
    distinct_triples,
    find_windows,
    flatten_sequences,
    observation_weights,
    pair_product,
    sequence_lengths,
    window_table,
)
from tests.helpers import lowers
from tests.moments.sequence_cases import (
    LENGTHS,
    SYMBOLS,
    TIME,
    TOTAL,
    WINDOWS,
    agree,
    as_dict,
    counter,
    cut,
    dense_moments,
    draw,
    parts_of,
    sequences_of,
)

# Compiled as a whole, which is faster than one operation at a time.
flatten = jax.jit(flatten_sequences)
product = jax.jit(pair_product, static_argnums=(2, 3))
distinct = jax.jit(distinct_triples, static_argnums=1)


def test_one_sequence_without_lengths(float64):
    sequences = Sequences(jnp.arange(5))
    flat = flatten(sequences)
    assert flat.x.tolist() == list(range(5))
    assert flat.first.tolist() == [True] + [False] * 4
    assert flat.valid.tolist() == flat.observed.tolist() == [True] * 5
    assert flat.owner.tolist() == [0] * 5
    assert find_windows(sequences).weights.tolist() == [1, 1, 1]
    assert sequence_lengths(sequences).tolist() == [5]


def test_many_of_the_same_length(float64):
    sequences = Sequences(jnp.arange(8).reshape(2, 4))
    flat = flatten(sequences)
    assert flat.x.tolist() == list(range(8))
    assert flat.first.tolist() == [True, False, False, False] * 2
    assert flat.valid.tolist() == [True] * 8
    assert flat.owner.tolist() == [0] * 4 + [1] * 4
    assert find_windows(sequences).weights.tolist() == [1, 1, 0, 0, 1, 1]
    assert sequence_lengths(sequences).tolist() == [4, 4]


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_lays_sequences_of_any_length_end_to_end(batched, real, float64):
    parts = draw(0, real)
    weights = np.random.default_rng(1).uniform(0.1, 1, len(LENGTHS))
    sequences = sequences_of(parts, batched, weights=weights)
    flat = jax.tree.map(np.asarray, flatten(sequences))
    assert flat.x.shape[0] == (len(LENGTHS) * TIME if batched else TOTAL)
    owner = [number for number, length in enumerate(LENGTHS) for _ in range(length)]
    np.testing.assert_array_equal(flat.x[flat.valid], np.concatenate(parts))
    np.testing.assert_array_equal(flat.owner[flat.valid], owner)
    np.testing.assert_array_equal(flat.first[flat.valid], [t == 0 for length in LENGTHS for t in range(length)])
    assert not np.any(flat.first[~flat.valid])
    np.testing.assert_array_equal(flat.observed, flat.valid)
    np.testing.assert_array_equal(flat.x[~flat.valid], 0 if real else -1)
    np.testing.assert_array_equal(sequence_lengths(sequences), LENGTHS)
    each = observation_weights(flatten(sequences), sequences.row_weights, jnp.dtype("float64"))
    np.testing.assert_allclose(each[flat.valid], (weights / weights.max())[owner])
    assert not np.any(each[~flat.valid])


def test_padding_at_the_end_of_the_flat_form(float64):
    """Traced lengths may sum to less than the length of `x`; an empty sequence does not begin in the padding."""

    @jax.jit
    def windows(lengths):
        sequences = Sequences(jnp.arange(9), lengths, num_symbols=9)
        return flatten_sequences(sequences), find_windows(sequences)

    flat, cut_out = windows(jnp.asarray([4, 0, 3, 0]))
    assert flat.valid.tolist() == [True] * 7 + [False] * 2
    assert cut_out.weights.tolist() == [1, 1, 0, 0, 1, 0, 0]
    assert flat.first.tolist() == [True] + [False] * 3 + [True] + [False] * 4


@pytest.mark.parametrize("batched", [False, True])
def test_windows_count_within_one_sequence_only(batched, precision):
    parts = draw(1)
    weights = np.random.default_rng(2).random(len(LENGTHS))
    starts = [t for length in LENGTHS for t in range(length)] if not batched else np.tile(np.arange(TIME), len(LENGTHS))
    owner = np.repeat(np.arange(len(LENGTHS)), TIME if batched else LENGTHS)
    inside = (np.asarray(starts) + 2 < LENGTHS[owner])[:-2]
    assert inside.sum() == WINDOWS
    inside_windows = find_windows(sequences_of(parts, batched)).weights
    assert inside_windows.dtype == precision
    np.testing.assert_array_equal(inside_windows, inside)
    inside_windows = find_windows(sequences_of(parts, batched, weights=weights)).weights
    np.testing.assert_allclose(inside_windows, inside * (weights / weights.max())[owner[:-2]], rtol=1e-6)


def test_windows_with_an_unknown_symbol_do_not_count(float64):
    x = jnp.asarray([0, 1, 2, 3, 0, 1, -1, 2, 2, 2, 9, 1, 1])
    inside_windows = find_windows(Sequences(x, jnp.asarray([11, 2]), num_symbols=SYMBOLS)).weights
    assert inside_windows.tolist() == [1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("length", [1, 2])
def test_too_short_for_a_window(length):
    with pytest.raises(ValueError, match=rf"x: expected at least 3 observations; got {length}"):
        sequence_moments(np.zeros(length, np.int32))
    # Short sequences that are padded or many have no window either, but may come with others that have.
    moments = sequence_moments(jnp.zeros((4, length), jnp.int32))
    assert not any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(moments))


@pytest.mark.parametrize("batched", [False, True])
def test_tables_are_those_of_the_triples_cut_out(batched, precision):
    parts = draw(3)
    weights = np.random.default_rng(4).random(len(LENGTHS))
    moments = sequence_moments(sequences_of(parts, batched, padding=1, weights=weights))
    views, each = cut(parts, weights)
    expected = cross_moments(*map(jnp.asarray, views), SYMBOLS, jnp.asarray(each, float))
    assert {leaf.dtype.name for leaf in parts_of(moments)} == {precision}
    agree(moments, expected, 1e-15 if precision == "float64" else 1e-6)


@pytest.mark.parametrize("per_block", [None, 7])
@pytest.mark.parametrize("real", [False, True])
def test_contraction_is_the_dense_one_contracted(real, per_block, float64, monkeypatch):
    parts = draw(5, real)
    rng = np.random.default_rng(6)
    width = 5 if per_block else 3  # shapes of their own: functions compiled before do not see the patch
    weights, directions = rng.random(len(LENGTHS)), rng.normal(size=(SYMBOLS, width))
    if per_block:
        monkeypatch.setattr(rows_module, "_FLOATS_PER_BLOCK", per_block * width**2)
    arguments = (sequences_of(parts, True, padding=1, weights=weights), jnp.asarray(directions))
    assert ("scan[" in str(jax.make_jaxpr(contract_sequence_moments)(*arguments))) == (per_block is not None)
    moments = contract_sequence_moments(*arguments)
    agree(parts_of(moments), dense_moments(*cut(parts, weights), directions), 1e-14)


@pytest.mark.parametrize("real", [False, True])
def test_float32_stays_float32_under_x64(real, float64):
    sequences = sequences_of(draw(5, real), False, weights=np.ones(len(LENGTHS)))
    if real:
        sequences = Sequences(sequences.x.astype(jnp.float32), sequences.lengths, row_weights=sequences.row_weights)
    moments = contract_sequence_moments(sequences, jnp.eye(SYMBOLS, dtype=jnp.float32))
    assert {part.dtype.name for part in parts_of(moments)} == {"float32"}
    agree(parts_of(moments), dense_moments(*cut(draw(5, real))), 1e-6)


def test_no_window_that_counts_gives_zeros(float64):
    windows = Windows(jnp.asarray(draw(7)[8]), jnp.zeros(len(draw(7)[8]) - 2))
    for moments in (window_table(windows, SYMBOLS), contract_windows(windows, jnp.eye(SYMBOLS))):
        assert not any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(moments))


def test_wrong_arguments_are_named(no_type_checks):
    symbols, reals = jnp.zeros(5, jnp.int32), jnp.zeros((5, 2))
    with pytest.raises(ValueError, match="data: expected sequences of symbols; contract_sequence_moments takes real"):
        sequence_moments(reals)
    with pytest.raises(ValueError, match=r"directions: expected 3 rows, one per dimension; got shape \(2, 2\)"):
        contract_sequence_moments(Sequences(symbols, num_symbols=3), jnp.ones((2, 2)))
    with pytest.raises(ValueError, match=r"directions: expected 2 rows, one per dimension; got shape \(3, 2\)"):
        contract_sequence_moments(reals, jnp.ones((3, 2)))


@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (2, 1)])
@pytest.mark.parametrize("real", [False, True])
def test_pair_products_are_those_of_dense_matrices(real, pair, float64):
    parts = draw(8, real)
    rng = np.random.default_rng(9)
    weights, vectors = rng.random(len(LENGTHS)), rng.normal(size=(SYMBOLS, 3))
    windows = find_windows(sequences_of(parts, True, padding=1, weights=weights))
    products = product(windows, jnp.asarray(vectors), *pair)
    views, each = cut(parts, weights / weights.max())
    first, second = (view if real else np.eye(SYMBOLS)[view] for view in (views[place] for place in pair))
    dense = np.einsum("n,ni,nj->ij", each, first, second)
    np.testing.assert_allclose(products, dense @ vectors, atol=1e-13)


@pytest.mark.parametrize("batched", [False, True])
def test_distinct_triples_and_their_weights(batched, float64):
    parts = draw(10)
    weights = np.random.default_rng(11).uniform(0.5, 2, len(LENGTHS))
    windows = find_windows(sequences_of(parts, batched, weights=weights))
    expected = counter(parts, weights / weights.max())
    assert len(expected) < WINDOWS
    # Windows that do not count share one place.
    places = int(count_distinct(windows))
    assert places == len(expected) + 1
    for size in (places, places + 5):
        codes, counts = triples = distinct(windows, size)
        assert [part.shape for part in (*codes, counts)] == [(size,)] * 4
        np.testing.assert_array_equal(np.asarray(codes)[:, np.asarray(counts) == 0], -1)
        triples = as_dict(triples)
        assert triples.keys() == expected.keys()
        np.testing.assert_allclose([triples[triple] for triple in expected], list(expected.values()), rtol=1e-12)


def test_distinct_triples_where_all_windows_count(float64):
    x = np.random.default_rng(12).integers(0, 3, 40).astype(np.int32)
    triples, counts = np.unique(np.stack([x[:-2], x[1:-1], x[2:]]), axis=1, return_counts=True)
    windows = find_windows(Sequences(x))
    assert int(count_distinct(windows)) == len(counts) < 38
    codes, numbers = distinct(windows, len(counts))
    np.testing.assert_array_equal(np.stack(codes), triples)  # in order
    np.testing.assert_array_equal(numbers, counts)


def test_vmap_over_weights_is_a_loop(float64):
    x, lengths = jnp.asarray(np.concatenate(draw(13))), jnp.asarray(LENGTHS)
    weights = np.random.default_rng(14).random((2, len(LENGTHS)))

    def both(weights):
        sequences = Sequences(x, lengths, row_weights=weights, num_symbols=SYMBOLS)
        return contract_sequence_moments(sequences, jnp.eye(SYMBOLS)), sequence_moments(sequences)

    contracted, dense = jax.jit(jax.vmap(both))(jnp.asarray(weights))
    for lane in range(2):
        expected = dense_moments(*cut(draw(13), weights[lane]))
        for batch in (contracted, dense):
            agree(parts_of(jax.tree.map(lambda part, at=lane: part[at], batch)), expected, 1e-14)


def test_vmap_over_sequences_is_a_loop(float64):
    both = [
        sequences_of(draw(seed), True, weights=np.random.default_rng(seed).random(len(LENGTHS))) for seed in (18, 19)
    ]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *both)
    batched = jax.vmap(sequence_moments)(batch)
    for lane, sequences in enumerate(both):
        agree(jax.tree.map(lambda part, at=lane: part[at], batched), sequence_moments(sequences), 1e-15)


def test_lowers_for_accelerators():
    def everything(sequences):
        windows, vectors = find_windows(sequences), jnp.eye(SYMBOLS)
        return (
            sequence_moments(sequences),
            contract_sequence_moments(sequences, vectors),
            pair_product(windows, vectors, 0, 1),
            count_distinct(windows),
            distinct_triples(windows, 30),
        )

    lowers(everything, sequences_of(draw(0), True))
