import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.moments import _rows as rows_module
from latensor.moments import (
    contract_sequence_moments,
    count_distinct,
    cross_moments,
    distinct_triples,
    flatten_sequences,
    pair_product,
    sequence_moments,
    window_weights,
)
from tests.helpers import lowers

# Sequences with no triple come first, last and in a row.
LENGTHS = np.array([0, 7, 2, 0, 1, 9, 0, 3, 12, 1, 0], np.int32)
TIME, TOTAL, SYMBOLS = 12, int(LENGTHS.sum()), 4
SINGLE, DOUBLE = jnp.dtype("float32"), jnp.dtype("float64")
WINDOWS = int(np.maximum(LENGTHS - 2, 0).sum())

# Compiled as a whole, which is faster than one operation at a time.
flatten_jit = jax.jit(flatten_sequences, static_argnums=2)
weigh = jax.jit(window_weights, static_argnums=(2, 3))
product = jax.jit(pair_product, static_argnums=3)
distinct = jax.jit(distinct_triples, static_argnums=2)


def draw(seed, real=False):
    """Return sequences of `LENGTHS`, in a list."""
    rng = np.random.default_rng(seed)
    if real:
        return [rng.normal(size=(length, SYMBOLS)) for length in LENGTHS]
    return [rng.integers(0, SYMBOLS, length).astype(np.int32) for length in LENGTHS]


def laid_out(parts, batched, padding=0):
    """Return all sequences end to end, or padded into one array."""
    if not batched:
        return np.concatenate(parts)
    x = np.full((len(parts), TIME, *parts[0].shape[1:]), padding, parts[0].dtype)
    for row, part in zip(x, parts, strict=True):
        row[: len(part)] = part
    return x


def flatten(parts, batched, padding=0):
    return flatten_jit(jnp.asarray(laid_out(parts, batched, padding)), jnp.asarray(LENGTHS), batched)


def cut(parts, weights=None):
    """Return the explicit triples, and the weight of each."""
    triples = [part[t : t + 3] for part in parts for t in range(len(part) - 2)]
    owners = [number for number, part in enumerate(parts) for _ in range(len(part) - 2)]
    views = [np.stack([triple[place] for triple in triples]) for place in range(3)]
    return views, np.ones(len(owners)) if weights is None else weights[owners]


def agree(found, expected, tol):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=tol, rtol=0)


def test_one_sequence_without_lengths(float64):
    x = np.arange(5)
    found = flatten_jit(jnp.asarray(x), None, False)
    assert found.x.tolist() == x.tolist()
    assert found.first.tolist() == [True] + [False] * 4
    assert found.valid.tolist() == [True] * 5
    assert found.owner.tolist() == [0] * 5
    assert weigh(found, None, DOUBLE).tolist() == [1, 1, 1]


def test_many_of_the_same_length(float64):
    found = flatten_jit(jnp.asarray(np.arange(8).reshape(2, 4)), None, True)
    assert found.x.tolist() == list(range(8))
    assert found.first.tolist() == [True, False, False, False] * 2
    assert found.valid.tolist() == [True] * 8
    assert found.owner.tolist() == [0] * 4 + [1] * 4
    assert weigh(found, None, DOUBLE).tolist() == [1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_lays_sequences_of_any_length_end_to_end(batched, real, float64):
    parts = draw(0, real)
    found = jax.tree.map(np.asarray, flatten(parts, batched))
    assert found.x.shape[0] == (len(LENGTHS) * TIME if batched else TOTAL)
    owner = [number for number, length in enumerate(LENGTHS) for _ in range(length)]
    np.testing.assert_array_equal(found.x[found.valid], np.concatenate(parts))
    np.testing.assert_array_equal(found.owner[found.valid], owner)
    np.testing.assert_array_equal(found.first[found.valid], [t == 0 for length in LENGTHS for t in range(length)])
    assert not np.any(found.first[~found.valid])


def test_padding_at_the_end_of_the_flat_form(float64):
    """The sum of the lengths may be less than there is; a sequence of no length does not begin in the padding."""
    found = flatten_jit(jnp.asarray(np.arange(9)), jnp.asarray([4, 0, 3, 0]), False)
    assert found.valid.tolist() == [True] * 7 + [False] * 2
    assert weigh(found, None, DOUBLE).tolist() == [1, 1, 0, 0, 1, 0, 0]
    assert found.first.tolist() == [True] + [False] * 3 + [True] + [False] * 4


@pytest.mark.parametrize("batched", [False, True])
def test_windows_count_within_one_sequence_only(batched, precision):
    parts = draw(1)
    weights = np.random.default_rng(2).random(len(LENGTHS))
    sequences = flatten(parts, batched)
    starts = [t for length in LENGTHS for t in range(length)] if not batched else np.tile(np.arange(TIME), len(LENGTHS))
    owner = np.repeat(np.arange(len(LENGTHS)), TIME if batched else LENGTHS)
    inside = (np.asarray(starts) + 2 < LENGTHS[owner])[:-2]
    assert inside.sum() == WINDOWS
    found = weigh(sequences, None, jnp.dtype(precision))
    assert found.dtype == precision
    np.testing.assert_array_equal(found, inside)
    found = weigh(sequences, jnp.asarray(weights, float), jnp.dtype(precision))
    np.testing.assert_allclose(found, inside * weights[owner[:-2]], rtol=1e-6)


def test_windows_with_an_unknown_symbol_do_not_count(float64):
    x = np.array([0, 1, 2, 3, 0, 1, -1, 2, 2, 2, 9, 1, 1])
    sequences = flatten_jit(jnp.asarray(x), jnp.asarray([11, 2]), False)
    found = weigh(sequences, None, DOUBLE, SYMBOLS)
    assert found.tolist() == [1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("length", [1, 2])
def test_too_short_for_a_window(length, float64):
    found = flatten_jit(jnp.asarray(np.zeros(length, np.int32)), None, False)
    assert weigh(found, None, DOUBLE, SYMBOLS).shape == (0,)


@pytest.mark.parametrize("batched", [False, True])
def test_tables_are_those_of_the_triples_cut_out(batched, precision):
    parts = draw(3)
    weights = np.random.default_rng(4).random(len(LENGTHS))
    sequences = flatten(parts, batched, padding=1)  # a symbol that there is
    found, total = sequence_moments(
        sequences.x, weigh(sequences, jnp.asarray(weights, float), jnp.dtype(precision)), SYMBOLS
    )
    views, each = cut(parts, weights)
    expected = cross_moments(*map(jnp.asarray, views), SYMBOLS, jnp.asarray(each, float))
    agree(found, expected, 1e-15 if precision == "float64" else 1e-6)
    np.testing.assert_allclose(total, each.sum(), rtol=1e-6)


@pytest.mark.parametrize("per_block", [None, 7])
@pytest.mark.parametrize("real", [False, True])
def test_contraction_is_the_dense_one_contracted(real, per_block, float64, monkeypatch):
    parts = draw(5, real)
    rng = np.random.default_rng(6)
    weights, directions = rng.random(len(LENGTHS)), rng.normal(size=(SYMBOLS, 3))
    if per_block:
        monkeypatch.setattr(rows_module, "_FLOATS_PER_BLOCK", per_block * directions.shape[1] ** 2)
    sequences = flatten(parts, True, padding=1)
    share = weigh(sequences, jnp.asarray(weights), DOUBLE)
    function = jax.jit(lambda *arguments: contract_sequence_moments.__wrapped__(*arguments))
    arguments = (sequences.x, share, jnp.asarray(directions))
    assert ("scan[" in str(jax.make_jaxpr(function)(*arguments))) == (per_block is not None)
    found = function(*arguments)
    views, each = cut(parts, weights)
    a, b, c = (view @ directions if real else directions[view] for view in views)
    each = each / each.sum()
    expected = (
        *(each @ part for part in (a, b, c)),
        *(np.einsum("n,ni,nj->ij", each, *pair) for pair in ((a, b), (a, c), (b, c))),
        np.einsum("n,ni,nj,nl->ijl", each, a, b, c),
    )
    agree((*found.first, *found.second, found.third), expected, 1e-14)


def test_contraction_in_float32():
    parts = draw(5)
    sequences = flatten(parts, False)
    weights = weigh(sequences, None, SINGLE)
    found = contract_sequence_moments(sequences.x, weights, jnp.asarray(np.eye(SYMBOLS, dtype=np.float32)))
    assert found.third.dtype == jnp.float32
    agree(found, sequence_moments(sequences.x, weights, SYMBOLS)[0], 1e-6)


def test_no_window_that_counts_gives_zeros(float64):
    x = jnp.asarray(draw(7)[8])
    nothing = jnp.asarray(np.zeros(len(x) - 2))
    for found in (
        sequence_moments(x, nothing, SYMBOLS)[0],
        contract_sequence_moments(x, nothing, jnp.asarray(np.eye(SYMBOLS))),
    ):
        assert not any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("shift", [1, 2, -1, -2])
@pytest.mark.parametrize("real", [False, True])
def test_pair_products_are_those_of_dense_matrices(real, shift, float64):
    parts = draw(8, real)
    rng = np.random.default_rng(9)
    weights, vectors = rng.random(len(LENGTHS)), rng.normal(size=(SYMBOLS, 3))
    sequences = flatten(parts, True, padding=1)
    share = weigh(sequences, jnp.asarray(weights), DOUBLE)
    found = product(sequences.x, share, jnp.asarray(vectors), shift)
    views, each = cut(parts, weights)
    first, second = (view if real else np.eye(SYMBOLS)[view] for view in (views[0], views[abs(shift)]))
    dense = np.einsum("n,ni,nj->ij", each, first, second)
    np.testing.assert_allclose(found, (dense if shift > 0 else dense.T) @ vectors, atol=1e-13)


def counter(parts, weights):
    views, each = cut(parts, weights)
    counts = collections.Counter()
    for triple, weight in zip(zip(*(view.tolist() for view in views), strict=True), each, strict=True):
        counts[triple] += weight
    return counts


def as_dict(found):
    """Return the triples that were seen, with their weights; each must have one place."""
    codes, counts = found
    seen = np.asarray(counts) > 0
    triples = [tuple(triple) for triple in np.stack(codes, axis=1)[seen].tolist()]
    assert len(set(triples)) == len(triples)
    return dict(zip(triples, np.asarray(counts)[seen].tolist(), strict=True))


@pytest.mark.parametrize("batched", [False, True])
def test_distinct_triples_and_their_weights(batched, float64):
    parts = draw(10)
    weights = np.random.default_rng(11).uniform(0.5, 2, len(LENGTHS))
    sequences = flatten(parts, batched)
    share = weigh(sequences, jnp.asarray(weights), DOUBLE)
    expected = counter(parts, weights)
    assert len(expected) < WINDOWS
    # Windows that do not count share one place.
    places = int(count_distinct(sequences.x, share))
    assert places == len(expected) + 1
    for size in (places, places + 5):
        codes, counts = found = distinct(sequences.x, share, size)
        assert [part.shape for part in (*codes, counts)] == [(size,)] * 4
        np.testing.assert_array_equal(np.asarray(codes)[:, np.asarray(counts) == 0], -1)
        found = as_dict(found)
        assert found.keys() == expected.keys()
        np.testing.assert_allclose([found[triple] for triple in expected], list(expected.values()), rtol=1e-12)


def test_distinct_triples_where_all_windows_count(float64):
    x = np.random.default_rng(12).integers(0, 3, 40).astype(np.int32)
    triples, counts = np.unique(np.stack([x[:-2], x[1:-1], x[2:]]), axis=1, return_counts=True)
    weights = jnp.asarray(np.ones(38))
    assert int(count_distinct(jnp.asarray(x), weights)) == len(counts) < 38
    codes, found = distinct(jnp.asarray(x), weights, len(counts))
    np.testing.assert_array_equal(np.stack(codes), triples)  # in order
    np.testing.assert_array_equal(found, counts)


def test_vmap_over_weights_is_a_loop(float64):
    x = jnp.asarray(np.concatenate(draw(13)))
    weights = np.random.default_rng(14).random((2, TOTAL - 2))
    directions = jnp.asarray(np.eye(SYMBOLS))
    batch = jax.jit(jax.vmap(lambda w: contract_sequence_moments(x, w, directions)))(jnp.asarray(weights))
    for lane in range(2):
        single, _ = sequence_moments(x, jnp.asarray(weights[lane]), SYMBOLS)
        agree(jax.tree.map(lambda part, at=lane: part[at], batch), single, 1e-14)


def test_lowers_for_accelerators():
    x, lengths = jnp.asarray(laid_out(draw(0), True)), jnp.asarray(LENGTHS)
    vectors = jnp.asarray(np.eye(SYMBOLS, dtype=np.float32))

    def everything(x, lengths):
        sequences = flatten_sequences(x, lengths, True)
        weights = window_weights(sequences, None, SINGLE, SYMBOLS)
        return (
            sequence_moments(sequences.x, weights, SYMBOLS),
            contract_sequence_moments(sequences.x, weights, vectors),
            pair_product(sequences.x, weights, vectors, 1),
            count_distinct(sequences.x, weights),
            distinct_triples(sequences.x, weights, 30),
        )

    lowers(everything, x, lengths)
