"""Row weights of replicates, blocks of time, and the order of components."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.inference._align import align_components
from latensor.inference._resample import DRAWS, as_resampled_rows, cut_into_blocks
from latensor.models import hidden_markov
from latensor.moments import Sequences
from latensor.moments.internal import find_windows


@pytest.mark.parametrize("kind", ["multinomial", "bayesian"])
def test_weights_have_mean_and_variance_one(kind, precision):
    n, number = 100, 2000
    dtype = jnp.dtype(precision)
    weights = jax.vmap(lambda key: DRAWS[kind](key, n, dtype))(jax.random.split(jax.random.key(0), number))
    assert weights.dtype == dtype
    np.testing.assert_allclose(weights.sum(axis=1), n, rtol=1e-5)
    # Over replicates, for each row; four standard errors are 0.09 of the mean, and up to 0.25 of the variance.
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=0.1)
    np.testing.assert_allclose(weights.var(axis=0).mean(), 1, atol=0.05)


def windows_of(sequences):
    """Return the triples that have weight, sorted, and their weights."""
    windows = find_windows(sequences)
    x, weights = np.asarray(windows.x), np.asarray(windows.weights)
    triples = np.stack([x[:-2], x[1:-1], x[2:]], axis=-1)[weights > 0]
    order = np.lexsort(triples.reshape(len(triples), -1).T)
    return triples[order], weights[weights > 0][order]


CASES = {
    "one": lambda x: Sequences(x[0]),
    "end to end": lambda x: Sequences(x[0], lengths=np.array([1, 59, 2, 138])),
    "padded and masked": lambda x: Sequences(x, np.array([200, 33, 100]), x % 7 > 0, np.array([1.0, 0.5, 0.25])),
    "vectors": lambda x: Sequences(x[0][:, None].astype(float)),
}


@pytest.mark.parametrize("case", CASES)
def test_blocks_have_every_window_once(case):
    # All values differ, so that triples do.
    x = np.random.default_rng(0).permutation(600).reshape(3, 200)
    sequences = CASES[case](x)
    blocks = as_resampled_rows(sequences, 7)
    assert blocks.num_sequences > 20
    assert blocks.is_batched
    assert blocks.lengths.max() <= 7 + 2
    for actual, expected in zip(windows_of(blocks), windows_of(sequences), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_many_sequences_are_not_cut_unless_asked():
    many = Sequences(np.zeros((30, 100), int))
    assert as_resampled_rows(many, None) is many
    assert as_resampled_rows(many, 10).num_sequences == 300
    few = as_resampled_rows(Sequences(np.zeros((29, 100), int)), None)
    assert few.num_sequences == 4 * 29


@pytest.mark.parametrize(("length", "expected"), [(100, 5), (1_000, 30), (64_000, 40)])
def test_default_block_length(length, expected):
    blocks = cut_into_blocks(Sequences(np.zeros(length, int)), None)
    np.testing.assert_allclose(blocks.lengths, expected + 2, atol=1)


def test_bad_blocks(no_type_checks):
    with pytest.raises(ValueError, match=r"^x: expected at least 60 observations to be cut into 20 blocks of time"):
        cut_into_blocks(Sequences(np.zeros(59, int)), None)
    for bad in (2, 51, 2.5):
        with pytest.raises(ValueError, match=r"^block_length: expected an integer from 3 to 50, for 20 blocks"):
            cut_into_blocks(Sequences(np.zeros(1000, int)), bad)


def test_components_are_matched_by_distance(float64):
    # On a line, and far from the origin: angles would tell nothing. The second dimension is noise, in another unit.
    rng = np.random.default_rng(0)
    means = np.array([[1e3, 1e3 + 1, 1e3 + 1.6, 1e3 + 4], [0.0, 0.0, 0.0, 0.0]])
    uniform = np.full((4, 4), 0.25)
    noise = rng.normal(size=(50, 2, 4)) * np.array([0.1, 1e6])[None, :, None]
    orders = np.stack([rng.permutation(4) for _ in range(50)])
    emissions = np.take_along_axis(means + noise, orders[:, None, :], axis=2)

    def chain(emission, batch=()):
        every = [np.broadcast_to(part, (*batch, *part.shape)) for part in (uniform[0], uniform, np.ones((2, 4)))]
        return hidden_markov.HiddenMarkov(*(jnp.asarray(part) for part in (every[0], every[1], emission, every[2])))

    aligned = align_components(hidden_markov, chain(means), chain(emissions, (50,)))
    np.testing.assert_allclose(aligned.emission, means + noise)


def test_spoilt_estimates_do_not_disturb_the_others(float64):
    params = hidden_markov.HiddenMarkov(
        jnp.full((3, 2), 0.5), jnp.full((3, 2, 2), 0.5), jnp.array([[[0.2, 0.8], [0.8, 0.2]]] * 3).at[1].set(jnp.nan)
    )
    reference = hidden_markov.HiddenMarkov(jnp.full(2, 0.5), jnp.full((2, 2), 0.5), jnp.array([[0.8, 0.2], [0.2, 0.8]]))
    aligned = align_components(hidden_markov, reference, params)
    np.testing.assert_array_equal(aligned.emission[0], reference.emission)
    np.testing.assert_array_equal(aligned.emission[2], reference.emission)
    assert np.all(np.isnan(aligned.emission[1]))
