"""Sequences of all lengths, and the moments of their triples, cut out one by one."""

import collections

import jax
import jax.numpy as jnp
import numpy as np

from latensor.moments import Sequences

# Sequences with no triple come first, last and in a row.
LENGTHS = np.array([0, 7, 2, 0, 1, 9, 0, 3, 12, 1, 0], np.int32)
TIME, TOTAL, SYMBOLS = 12, int(LENGTHS.sum()), 4
WINDOWS = int(np.maximum(LENGTHS - 2, 0).sum())


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


def sequences_of(parts, batched, padding=0, weights=None):
    """Return the data type; what is padded holds a value that could be an observation."""
    x = jnp.asarray(laid_out(parts, batched, padding))
    symbols = SYMBOLS if parts[0].ndim == 1 else None
    x = x if symbols else x.astype(float)
    weights = None if weights is None else jnp.asarray(weights, float)
    return Sequences(x, jnp.asarray(LENGTHS), row_weights=weights, num_symbols=symbols)


def cut(parts, weights=None, masks=None):
    """Return the explicit triples, and the weight of each, one window after the other."""
    triples, each = [], []
    for number, part in enumerate(parts):
        for t in range(len(part) - 2):
            if masks is None or all(masks[number][t : t + 3]):
                triples.append(part[t : t + 3])
                each.append(1.0 if weights is None else weights[number])
    return [np.stack([triple[place] for triple in triples]) for place in range(3)], np.asarray(each)


def dense_moments(views, each, directions=None):
    """Return the moments of triples, as the leaves of `CrossMoments` but for the number of unobserved entries."""
    directions = np.eye(SYMBOLS) if directions is None else directions
    a, b, c = (view @ directions if view.ndim == 2 else directions[view] for view in views)
    each = each / each.sum()
    return (
        *(each @ part for part in (a, b, c)),
        *(np.einsum("n,ni,nj->ij", each, *pair) for pair in ((a, b), (a, c), (b, c))),
        np.einsum("n,ni,nj,nl->ijl", each, a, b, c),
    )


def parts_of(moments):
    return (*moments.first, *moments.second, moments.third)


def agree(result, expected, tol):
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=tol, rtol=0)


def counter(parts, weights, masks=None):
    views, each = cut(parts, weights, masks)
    counts = collections.Counter()
    for triple, weight in zip(zip(*(view.tolist() for view in views), strict=True), each, strict=True):
        counts[triple] += weight
    return counts


def as_dict(codes_and_counts):
    """Return the triples that were seen, with their weights; each must have one place."""
    codes, counts = codes_and_counts
    seen = np.asarray(counts) > 0
    triples = [tuple(triple) for triple in np.stack(codes, axis=1)[seen].tolist()]
    assert len(set(triples)) == len(triples)
    return dict(zip(triples, np.asarray(counts)[seen].tolist(), strict=True))
