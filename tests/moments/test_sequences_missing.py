"""Sequences with a mask: some observations are missing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.moments import Sequences, contract_sequence_moments, sequence_moments
from latensor.moments.internal import distinct_triples, find_windows, flatten_sequences
from tests.moments.sequence_cases import (
    LENGTHS,
    SYMBOLS,
    TOTAL,
    WINDOWS,
    agree,
    as_dict,
    counter,
    cut,
    dense_moments,
    draw,
    laid_out,
    parts_of,
    sequences_of,
)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("real", [False, True])
def test_windows_that_miss_an_observation_do_not_count(real, batched, precision):
    parts, rng = draw(15, real), np.random.default_rng(16)
    weights = rng.random(len(LENGTHS))
    masks = [rng.random(length) < 0.8 for length in LENGTHS]
    views, each = cut(parts, weights, masks)
    assert 0 < len(each) < WINDOWS
    # Masked values are not looked at.
    hidden = [
        np.where(m[:, None] if real else m, part, np.nan if real else 77) for part, m in zip(parts, masks, strict=True)
    ]
    hidden = [part.astype(parts[0].dtype) for part in hidden]
    whole = sequences_of(hidden, batched, weights=weights)
    mask = jnp.asarray(laid_out(masks, batched, padding=True))
    sequences = Sequences(whole.x, whole.lengths, mask, whole.row_weights, whole.num_symbols)
    tol = 1e-14 if precision == "float64" else 1e-6
    moments = contract_sequence_moments(sequences, jnp.eye(SYMBOLS))
    agree(parts_of(moments), dense_moments(views, each), tol)
    if not real:
        agree(parts_of(sequence_moments(sequences)), dense_moments(views, each), tol)
        assert as_dict(distinct_triples(find_windows(sequences), 70)).keys() == counter(parts, weights, masks).keys()
    flat = jax.jit(flatten_sequences)(sequences)
    np.testing.assert_array_equal(flat.observed, flat.valid & mask.reshape(-1))
    # A step whose observation is missing is still a step.
    assert int(flat.valid.sum()) == TOTAL
    assert not np.any(np.isnan(np.asarray(flat.x, float)))


def test_a_missing_observation_is_no_cut(float64):
    """Neighbours of a missing observation are not neighbours of each other, nor does a sequence begin there."""
    x, mask = np.array([0, 1, 2, 3, 0, 1, 2]), np.array([1, 1, 1, 0, 1, 1, 1], bool)
    sequences = Sequences(x, mask=jnp.asarray(mask))
    assert find_windows(sequences).weights.tolist() == [1, 0, 0, 0, 1]
    assert jax.jit(flatten_sequences)(sequences).first.tolist() == [True] + [False] * 6
    dropped = find_windows(Sequences(x[mask], num_symbols=4)).weights
    assert dropped.tolist() == [1, 1, 1, 1]
    # The windows are those of the pieces, but the pieces would have one weight each.
    pieces = find_windows(Sequences(x[mask], jnp.asarray([3, 3]), num_symbols=4)).weights
    assert pieces.sum() == find_windows(sequences).weights.sum()


def test_a_full_mask_changes_nothing(float64):
    sequences = sequences_of(draw(17), True, padding=1)
    masked = sequences._replace(mask=jnp.ones(sequences.x.shape, bool))
    agree(find_windows(masked), find_windows(sequences), 0)


def test_all_observations_missing_gives_zeros(float64):
    moments = sequence_moments(Sequences(np.zeros(9, int), mask=np.zeros(9, bool)))
    assert not any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(moments))
