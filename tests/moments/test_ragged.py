"""Lists of sequences and documents of different lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models import hidden_markov
from latensor.moments import Documents, Sequences, Table

pytestmark = pytest.mark.usefixtures("no_type_checks")

VECTORS = np.arange(6.0).reshape(3, 2)


def test_symbols_are_padded_and_lengths_read_off():
    for parts in ([[0, 1, 2], [1]], ((0, 1, 2), np.array([1])), np.array([np.arange(3), np.array([1])], object)):
        sequences = Sequences(parts)
        assert sequences.x.tolist() == [[0, 1, 2], [1, 0, 0]]
        assert sequences.lengths.tolist() == [3, 1]
        assert sequences.num_symbols == 3
    assert Sequences([[0, 1], []]).lengths.tolist() == [2, 0]
    assert Sequences([[0, 1], [2, 1]]).lengths is None


def test_vectors_and_masks():
    sequences = Sequences([VECTORS, VECTORS[:1]], mask=[[1, 1, 0], [1]])
    assert sequences.x.shape == (2, 3, 2)
    assert sequences.lengths.tolist() == [3, 1]
    assert sequences.mask.tolist() == [[True, True, False], [True, False, False]]
    assert Sequences([VECTORS, VECTORS]).x.shape == (2, 3, 2)


def test_word_ids_are_padded_below_zero():
    assert Documents([[4, 2], [1]], 5).x.tolist() == [[4, 2], [1, -1]]
    assert Documents([np.array([4, 2], np.uint8), [1]], 5).x.tolist() == [[4, 2], [1, -1]]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Sequences([[0, 1], [1]], lengths=[2, 1]), "lengths: expected None where x is a list of sequences"),
        (lambda: Sequences([[0, 1], [1]], mask=[[1], [1, 0]]), "mask: expected a list with the lengths"),
        (lambda: Sequences([[0.5, 1], [1]]), r"x: expected symbols or real vectors .* got series of numbers"),
        (lambda: Sequences([VECTORS, VECTORS[0]]), r"x: expected sequences \(time,\), or all of them \(time, d\)"),
        (lambda: Sequences([["a", "b"], ["a"]]), r"x: expected sequences .* got values of type <U1 in x\[0\]"),
        (lambda: Sequences([[[0], [1, 2]], [1]]), r"x: expected sequences .* got a ragged list in x\[0\]"),
        (lambda: Sequences(VECTORS[:, 0]), r"x: expected real vectors .* pass x\[:, None\] for a series of numbers"),
        (lambda: Table(VECTORS[:, 0]), r"x: expected numbers .* pass x\[:, None\] for a single column"),
        (
            lambda: jax.jit(lambda a: Sequences([a, a[:1]], num_symbols=3).x)(jnp.zeros(2, int)),
            "x: expected an array, and lengths=, under jit",
        ),
    ],
)
def test_what_cannot_be_padded_is_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_verbs_of_the_hidden_markov_model_take_lists():
    columns = np.array([[0.7, 0.1], [0.2, 0.2], [0.1, 0.7]], np.float32)
    half = np.full(2, 0.5, np.float32)
    params = hidden_markov.HiddenMarkov(half, np.full((2, 2), 0.5, np.float32), columns)
    parts = [[0, 1, 2, 0], [1, 2]]
    expected = [np.sum(np.log(columns @ half)[part]) for part in parts]
    np.testing.assert_allclose(hidden_markov.log_likelihood(params, parts), expected, rtol=1e-5)
    mask = [[1, 0, 1, 1], [1, 1]]
    hidden = [
        np.sum((np.log(columns @ half)[part])[np.array(seen) == 1]) for part, seen in zip(parts, mask, strict=True)
    ]
    np.testing.assert_allclose(hidden_markov.log_likelihood(params, parts, mask=mask), hidden, rtol=1e-5)
