import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latensor.decompose import CPFactors, Status, choose_anchors, partition_variables, partitioned_nonnegative_cp
from latensor.decompose.internal import anchor_capacity, check_anchors, line_up
from tests.helpers import lowers

MATCHINGS = ("procrustes", "angle", "assignment")
RANK = 3


@st.composite
def dealings(draw, equal=None):
    """Draw sizes, a number of partitions, and three groups of anchors that do not overlap."""
    p = draw(st.integers(3, 30))
    shared = draw(st.booleans()) if equal is None else equal
    sizes = (
        (draw(st.integers(1, 5)),) * p if shared else tuple(draw(st.lists(st.integers(1, 6), min_size=p, max_size=p)))
    )
    counts = draw(st.tuples(*[st.integers(1, p // 3)] * 3)) if not equal else (draw(st.integers(1, p // 3)),) * 3
    order = draw(st.permutations(range(p)))
    ends = np.cumsum([0, *counts])
    anchors = [list(order[ends[m] : ends[m + 1]]) for m in range(3)]
    return sizes, draw(st.integers(1, max(1, p - int(ends[-1])))), anchors


@settings(max_examples=40, deadline=None)
@given(dealings())
def test_every_variable_is_dealt_once_and_anchors_always(dealing):
    sizes, num_partitions, anchors = dealing
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows_of = [list(range(offsets[j], offsets[j + 1])) for j in range(len(sizes))]
    partitions = partition_variables(sizes, num_partitions, anchors)
    dealt = []
    for mode in range(3):
        rows, is_anchor = np.asarray(partitions.rows[mode]), np.asarray(partitions.is_anchor[mode])
        shared = [row for j in anchors[mode] for row in rows_of[j]]
        assert rows.shape == (num_partitions, len(is_anchor))
        assert is_anchor.tolist() == [True] * len(shared) + [False] * (rows.shape[1] - len(shared))
        for part in rows.tolist():
            assert part[: len(shared)] == shared
            own = part[len(shared) :]
            filled = [row for row in own if row >= 0]
            assert own == filled + [-1] * (len(own) - len(filled))
            dealt += filled
        # No column is padding in all partitions.
        assert np.all(np.max(rows, axis=0) >= 0)
    others = set(range(len(sizes))) - {j for group in anchors for j in group}
    assert sorted(dealt) == sorted(row for j in others for row in rows_of[j])
    # A variable is never torn apart: its rows follow each other.
    starts = [rows_of[j][0] for j in others]
    assert all(dealt[dealt.index(start) :][: sizes[j]] == rows_of[j] for j, start in zip(others, starts, strict=True))


@settings(max_examples=30, deadline=None)
@given(dealings(equal=True))
def test_padding_is_little_where_sizes_are_equal(dealing):
    """Partitions differ by one variable per mode, and so do the modes."""
    sizes, num_partitions, anchors = dealing
    partitions = partition_variables(sizes, num_partitions, anchors)
    lengths = np.stack([np.sum(np.asarray(rows) >= 0, axis=1) for rows in partitions.rows]) // sizes[0]
    assert np.max(lengths) - np.min(lengths) <= 1


@pytest.mark.parametrize(("p", "num_partitions", "q"), [(9, 2, 2), (13, 3, 1), (6, 1, 2)])
def test_traced_anchors_are_dealt_alike(p, num_partitions, q):
    anchors = np.random.default_rng(p).permutation(p)[: 3 * q].reshape(3, q)
    concrete = partition_variables((4,) * p, num_partitions, anchors.tolist())
    traced = jax.jit(lambda a: partition_variables((4,) * p, num_partitions, a))(jnp.asarray(anchors))
    jax.tree.map(np.testing.assert_array_equal, concrete, traced)
    jax.tree.map(
        np.testing.assert_array_equal, concrete, partition_variables((4,) * p, num_partitions, jnp.asarray(anchors))
    )


def test_traced_anchors_of_unequal_sizes_are_refused():
    with pytest.raises(ValueError, match=r"anchors: expected concrete numbers if variables differ in size"):
        jax.jit(lambda a: partition_variables((2, 3, 3, 3), 1, a))(jnp.array([[0], [1], [2]]))


def test_number_of_partitions_out_of_range_is_named():
    for number in (0, 5):
        with pytest.raises(ValueError, match=rf"num_partitions: expected an integer from 1 to 4 .*; got {number}"):
            partition_variables((2,) * 7, number, [[0], [1], [2]])
    assert [rows.shape for rows in partition_variables((2,) * 3, 1, [[0], [1], [2]]).rows] == [(1, 2)] * 3


def test_anchors_that_do_not_do_are_named():
    sizes = (2, 3, 2, 3, 2, 3, 4)
    assert check_anchors(sizes, jnp.array([[0, 1], [2, 3], [4, 5]]), 4) == ((0, 1), (2, 3), (4, 5))
    assert check_anchors(sizes, [[6], [2, 3], (4, 5)], 4) == ((6,), (2, 3), (4, 5))
    with pytest.raises(ValueError, match=r"anchors: expected three groups of variables, one per mode; got 2"):
        check_anchors(sizes, [[0], [1]], 2)
    with pytest.raises(ValueError, match=r"anchors: expected variables from 0 to 6; got 7"):
        check_anchors(sizes, [[0], [1], [7]], 2)
    with pytest.raises(ValueError, match=r"anchors: expected variables from 0 to 6; got -1"):
        check_anchors(sizes, [[0], [1], [-1]], 2)
    with pytest.raises(ValueError, match=r"anchors: .* do not overlap; variables \[1\] appear twice"):
        check_anchors(sizes, [[0, 1], [1, 2], [3]], 2)
    message = (
        r"num_components = 5; group 1 has 2 variables with 5 rows, which reach rank 4: 1 more rows are needed, not "
        r"counting the first of each further variable"
    )
    with pytest.raises(ValueError, match=message):
        check_anchors((2, 3, 2, 3, 2, 3, 4, 4), [[6, 0], [2, 3], [4, 5, 7]], 5)
    with pytest.raises(ValueError, match=r"group 2 has 0 variables with 0 rows, which reach rank 0"):
        check_anchors(sizes, [[0], [1], []], 1)


@pytest.mark.parametrize("sizes", [(), (4,), (2, 3), (2, 2, 2, 5)])
def test_capacity_is_the_rank_that_stacked_tables_have(sizes):
    rng = np.random.default_rng(0)
    tables = [np.zeros((0, 20)), *(rng.dirichlet(np.ones(size), 20).T for size in sizes)]
    assert anchor_capacity(sizes) == (np.linalg.matrix_rank(np.concatenate(tables)) if sizes else 0)


def half_uninformative(seed, sizes):
    """Return tables of which every second one is the same for all components, and the loadings that show through."""
    rng = np.random.default_rng(seed)
    blocks = [rng.dirichlet(np.full(d, 0.5), RANK).T for d in sizes]
    blocks = [np.repeat(b[:, :1], RANK, axis=1) if j % 2 else b for j, b in enumerate(blocks)]
    return blocks, np.concatenate(blocks) @ rng.normal(size=(RANK, RANK))


def smallest_singular_value(blocks, group):
    return np.linalg.svd(np.concatenate([blocks[j] for j in group]), compute_uv=False)[RANK - 1]


def test_chosen_anchors_tell_components_apart(float64):
    """At least half of what the best of 300 random choices has, and five times their average."""
    sizes = (3, 4, 5) * 8
    for seed in range(5):
        blocks, loadings = half_uninformative(seed, sizes)
        chosen = np.asarray(choose_anchors(jnp.asarray(loadings), sizes, 2))
        assert chosen.shape == (3, 2)
        assert len(set(chosen.reshape(-1).tolist())) == 6
        rng = np.random.default_rng(seed)
        drawn = [rng.permutation(len(sizes))[:6].reshape(3, 2) for _ in range(300)]
        random = [min(smallest_singular_value(blocks, group) for group in groups) for groups in drawn]
        result = min(smallest_singular_value(blocks, group) for group in chosen)
        assert result > 5 * np.mean(random)
        assert result > np.max(random) / 2


def test_anchors_are_chosen_greedily(float64):
    """Turn by turn, the variable with which the mode's `log det` becomes largest."""
    sizes = (3, 4, 5) * 8
    _, loadings = half_uninformative(9, sizes)
    chosen = np.asarray(choose_anchors(jnp.asarray(loadings), sizes, 2))
    grams = [block.T @ block for block in np.split(loadings, np.cumsum(sizes)[:-1])]
    sums = [np.eye(RANK) * 1e-2 * max(np.trace(gram) for gram in grams) / RANK] * 3
    left = set(range(len(sizes)))
    for turn in range(6):
        mode = turn % 3
        best = max(left, key=lambda j, total=sums[mode]: np.linalg.slogdet(total + grams[j])[1])
        assert chosen[mode, turn // 3] == best
        sums[mode] = sums[mode] + grams[best]
        left.remove(best)


def test_too_many_anchors_are_named():
    with pytest.raises(ValueError, match=r"num_anchors: expected at most 2 for 8 variables; got 3"):
        choose_anchors(jnp.ones((16, RANK)), (2,) * 8, 3)


def exact_partitions(seed):
    """Return partitions of exact tensors of thirteen variables with unequal sizes, and their factors."""
    rng = np.random.default_rng(seed)
    sizes = (4, 3, 4, 3, 4, 3, 2, 5, 3, 2, 4, 3, 3)
    tables = [rng.dirichlet(np.full(d, 0.5), RANK).T for d in sizes]
    tables = np.concatenate([*tables, np.zeros((1, RANK))])
    partitions = partition_variables(sizes, 3, [[0, 1], [2, 3], [4, 5]])
    factors = [tables[np.asarray(rows)] for rows in partitions.rows]
    tensors = np.einsum("h,pih,pjh,plh->pijl", [0.5, 0.3, 0.2], *factors)
    return jnp.asarray(tensors), partitions.is_anchor, factors


def assert_lined_up(result, factors, lanes=(0, 1, 2), tolerance=1e-6):
    """Assert that one order of the columns fits all modes of all partitions."""
    lanes = np.array(lanes)
    truth = [factor / np.sum(factor, axis=1, keepdims=True) for factor in factors]
    errors = {
        order: max(
            np.max(np.abs(np.asarray(f)[lanes] - t[lanes][:, :, order]))
            for f, t in zip(result.factors, truth, strict=True)
        )
        for order in itertools.permutations(range(RANK))
    }
    order = list(min(errors, key=errors.get))
    assert min(errors.values()) < tolerance
    weights = np.array([0.5, 0.3, 0.2]) * np.prod([np.sum(factor, axis=1) for factor in factors], axis=0)
    np.testing.assert_allclose(np.asarray(result.weights)[lanes], weights[lanes][:, order], rtol=tolerance)


@pytest.mark.parametrize(("start", "matching"), [("pilot", "procrustes"), ("random", "angle")])
def test_partitions_of_exact_tensors_are_recovered_and_lined_up(start, matching, float64):
    key, options = jax.random.key(0), {"matching": matching, "start": start, "num_restarts": 4}
    for seed in range(3):
        tensors, is_anchor, factors = exact_partitions(seed)
        result = partitioned_nonnegative_cp(key, tensors, is_anchor, RANK, "hals", **options, tol=1e-13, max_iters=3000)
        assert result.status.tolist() == [Status.CONVERGED] * 3
        assert np.all(result.matched)
        assert np.max(result.unexplained) < 1e-10
        assert_lined_up(result, factors)
    # A partition with a NaN is flagged. The others do not follow it, though nothing fits better than nothing.
    broken = tensors.at[2, 0, 0, 0].set(jnp.nan)
    result = partitioned_nonnegative_cp(key, broken, is_anchor, RANK, "hals", **options, tol=1e-13, max_iters=3000)
    assert result.status.tolist() == [Status.CONVERGED, Status.CONVERGED, Status.NON_FINITE]
    assert_lined_up(result, factors, (0, 1))


def shuffled(seed):
    """Return exact factors of three partitions, every one in an order of its own, as a decomposition finds them."""
    _, is_anchor, factors = exact_partitions(seed)
    rng = np.random.default_rng(seed)
    orders = np.stack([rng.permutation(RANK) for _ in range(3)])
    weights = np.array([0.5, 0.3, 0.2]) * np.prod([np.sum(factor, axis=1) for factor in factors], axis=0)
    made = [factor / np.sum(factor, axis=1, keepdims=True) for factor in factors]
    made = [np.take_along_axis(factor, orders[:, None, :], axis=2) for factor in made]
    zeros = jnp.zeros(3, jnp.int32)
    result = CPFactors(
        jnp.asarray(np.take_along_axis(weights, orders, axis=1)),
        tuple(jnp.asarray(factor) for factor in made),
        jnp.array([0.3, 0.1, 0.2]),
        jnp.zeros(3),
        zeros,
        zeros,
    )
    return result, is_anchor, factors


LINE_UP = {matching: jax.jit(lambda f, a, m=matching: line_up(f, a, m)) for matching in MATCHINGS}


@pytest.mark.parametrize("matching", MATCHINGS)
def test_columns_are_lined_up_with_those_of_the_best_partition(matching, float64):
    for seed in range(5):
        result, is_anchor, factors = shuffled(seed)
        lined = LINE_UP[matching](result, is_anchor)
        assert np.all(lined.matched)
        assert_lined_up(lined, factors, tolerance=1e-12)
        np.testing.assert_array_equal(lined.factors[0][1], result.factors[0][1])
        # Nothing is explained as well as what a NaN was replaced by: it is not what the others go by. Nor is a
        # partition without full rank.
        for status in (Status.NON_FINITE, Status.RANK_DEFICIENT):
            spoiled = result._replace(
                factors=tuple(factor.at[1].set(1.0) for factor in result.factors),
                unexplained=jnp.array([0.3, 0.0, 0.2]),
                status=jnp.array([0, status, 0], jnp.int32),
            )
            lined = LINE_UP[matching](spoiled, is_anchor)
            assert_lined_up(lined, factors, (0, 2), tolerance=1e-12)
            np.testing.assert_array_equal(lined.factors[0][2], result.factors[0][2])


@pytest.mark.parametrize("matching", MATCHINGS)
def test_where_matching_fails_the_assignment_is_taken_and_flagged(matching, float64):
    result, is_anchor, _ = shuffled(0)
    # In the last partition the first two columns are one, half and half, and the second is mostly the third: by angle,
    # both of the reference's first columns claim the first.
    a, b, c = (np.array(factor) for factor in result.factors)
    for factor in (a, b, c):
        first, second, third = factor[1].T
        factor[2] = np.stack([(first + second) / 2, 0.25 * second + 0.75 * third, third], axis=1)
    doubtful = result._replace(factors=tuple(jnp.asarray(factor) for factor in (a, b, c)))
    lined = LINE_UP[matching](doubtful, is_anchor)
    np.testing.assert_array_equal(lined.factors[0][2], a[2])
    if matching != "procrustes":
        assert lined.matched.tolist() == [True, True, matching == "assignment"]
    # Nothing matches a NaN; the columns are still a permutation of what they were, and the others are not spoiled.
    broken = result._replace(factors=tuple(factor.at[2].set(jnp.nan) for factor in result.factors))
    lined = LINE_UP[matching](broken, is_anchor)
    assert lined.matched.tolist() == [True, True, False]
    assert sorted(lined.weights[2].tolist()) == sorted(result.weights[2].tolist())
    assert bool(jnp.all(jnp.isfinite(lined.factors[0][:2])))


def test_lowers_for_accelerators():
    is_anchor = tuple(jnp.arange(4) < 2 for _ in range(3))
    lowers(
        lambda key, x: partitioned_nonnegative_cp(key, x, is_anchor, 2, "hals", num_restarts=2),
        jax.random.key(0),
        jnp.ones((2, 4, 4, 4)),
    )
    lowers(lambda x: choose_anchors(x, (2,) * 4, 1), jnp.ones((8, 2)))
