"""EM for graphical models, against sums over all values of all nodes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models.graphical.em import refine
from latensor.models.graphical.graph import undirected
from latensor.models.graphical.likelihood import log_likelihood
from latensor.models.graphical.params import Graphical
from tests.models.graphical_inference_cases import GRAPHS, all_rows, chain, enumerate_params, random_params, some_rows

# A grid of nine nodes takes as long to compile as all others together, and has nothing that these do not.
NAMES = [name for name in GRAPHS if name != "grid"]
every_graph = pytest.mark.parametrize("name", NAMES)
some_graphs = pytest.mark.parametrize("name", ["observed inside", "pairs"])


@functools.cache
def rows_of(name):
    """Return some rows, what was observed of them, and weights."""
    x, mask = some_rows(name, 12)
    return x, mask, np.random.default_rng(2).uniform(0.2, 1.0, 12)


def expected_counts(params, rows, weights):
    """Return the expected counts of every clique of a row, and of leaves only where they are observed."""
    exact, graph = enumerate_params(params), params.graph
    shares = weights / weights.sum()
    joint = sum(share * table / table.sum() for share, table in zip(shares, map(exact.conditional, rows), strict=True))
    exact.joint = joint
    return [exact.marginal(clique) for clique in graph.cliques]


@pytest.mark.parametrize("name", [name for name in NAMES if GRAPHS[name].is_directed])
def test_a_step_against_enumeration(name, float64):
    graph, (x, _, weights) = GRAPHS[name], rows_of(name)
    params = random_params(graph)
    result = refine(params, x, row_weights=weights, max_iters=1, tol=0.0, smoothing=0.0, accelerate=False)
    counts = expected_counts(params, x, weights)
    for group in graph.shared:
        total = sum(counts[number] for number in group)
        for number in group:
            counts[number] = total
    assert result.num_iters == 1
    for table, count, before in zip(result.params.tables, counts, params.tables, strict=True):
        totals = count.sum(axis=0, keepdims=True)
        expected = np.where(totals > 0, count / np.where(totals > 0, totals, 1), before)
        np.testing.assert_allclose(table, expected, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["observed inside", "shared chain", "triangle", "undirected, observed inside", "shared grid"]
)
def test_the_likelihood_never_falls(name, float64):
    x, mask, weights = rows_of(name)
    # Far apart, so that steps are long.
    params, values = random_params(GRAPHS[name], 3, scale=2.0), []
    slack = 1e-12
    for steps in (0, 1, 2, 3, 10):
        result = refine(params, x, mask=mask, row_weights=weights, max_iters=steps, tol=0.0)
        assert result.log_likelihood.dtype == params.tables[0].dtype
        expected = np.average(log_likelihood(result.params, x, mask=mask), weights=weights)
        np.testing.assert_allclose(result.log_likelihood, expected, rtol=max(slack, 1e-11))
        values.append(float(result.log_likelihood))
    assert np.all(np.diff(values) >= -slack * abs(values[0]))
    assert values[-1] > values[0] + 0.1


@every_graph
def test_the_truth_is_a_fixed_point_at_the_population(name, float64):
    params, x = random_params(GRAPHS[name]), all_rows(GRAPHS[name])
    weights = np.exp(log_likelihood(params, x))
    # A traced tolerance may be negative: five steps, even where the objective falls by rounding.
    result = jax.jit(lambda tol: refine(params, x, row_weights=weights, max_iters=5, tol=tol, smoothing=0.0))(-1e-10)
    assert result.num_iters == 5
    np.testing.assert_allclose(result.log_likelihood, weights @ np.log(weights), rtol=1e-12)
    for table, expected in zip(result.params.tables, params.tables, strict=True):
        np.testing.assert_allclose(table, expected, atol=1e-8)


@pytest.mark.parametrize("name", ["shared chain", "directed grid", "triangle", "shared grid"])
def test_from_close_to_the_truth_em_finds_the_distribution(name, float64):
    graph = GRAPHS[name]
    params, x = random_params(graph, 5), all_rows(graph)
    other = random_params(graph, 6)
    start = Graphical(graph, tuple(0.8 * one + 0.2 * two for one, two in zip(params.tables, other.tables, strict=True)))
    weights = np.exp(log_likelihood(params, x))
    entropy = weights @ np.log(weights)
    before = weights @ np.asarray(log_likelihood(start, x))
    result = refine(start, x, row_weights=weights, max_iters=1000, tol=1e-12)
    gap = entropy - float(result.log_likelihood)
    assert -1e-10 <= gap < 0.01 * (entropy - before)


def test_extrapolation_needs_fewer_steps(float64):
    params, x = random_params(GRAPHS["directed grid"], 5), all_rows(GRAPHS["directed grid"])
    weights = np.exp(log_likelihood(random_params(GRAPHS["directed grid"], 6), x))
    plain, fast = (
        refine(params, x, row_weights=weights, max_iters=60, tol=0.0, accelerate=accelerate)
        for accelerate in (False, True)
    )
    assert fast.log_likelihood > plain.log_likelihood


@pytest.mark.parametrize("name", ["shared chain", "shared grid"])
def test_shared_tables_stay_the_same(name, float64):
    x, mask, _ = rows_of(name)
    result = refine(random_params(GRAPHS[name]), x, mask=mask, max_iters=7)
    for first, *others in GRAPHS[name].shared:
        for number in others:
            np.testing.assert_allclose(result.params.tables[number], result.params.tables[first], rtol=1e-12)


def test_zeros_stay_zeros(float64):
    params, (x, mask, _) = random_params(chain()), rows_of("chain")
    tables = list(params.tables)
    tables[2] = jnp.asarray([[1.0, 0.3], [0.0, 0.7]])
    tables[4] = jnp.asarray([[0.0, 0.3], [0.5, 0.3], [0.5, 0.4]])
    for accelerate in (False, True):
        start = params._replace(tables=tuple(tables))
        result = refine(start, x, mask=mask, max_iters=9, tol=0.0, smoothing=0.0, accelerate=accelerate)
        for table, before in zip(result.params.tables, tables, strict=True):
            assert np.all((np.asarray(table) == 0) >= (np.asarray(before) == 0))
            np.testing.assert_allclose(np.sum(table, axis=0), 1, rtol=1e-12)


@some_graphs
def test_row_weights_are_repeated_rows(name, float64):
    params, (x, mask, _) = random_params(GRAPHS[name]), rows_of(name)
    numbers = np.arange(12) % 3
    options = {"max_iters": 5, "tol": 0.0}
    one = refine(params, x, mask=mask, row_weights=numbers, **options)
    many = refine(params, np.repeat(x, numbers, axis=0), mask=np.repeat(mask, numbers, axis=0), **options)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), one, many)


@some_graphs
def test_jit_and_vmap_equal_eager(name, float64):
    graph, (x, mask, weights) = GRAPHS[name], rows_of(name)
    several = [random_params(graph, seed) for seed in range(2)]

    def run(params, x, weights):
        return refine(params, x, mask=mask, row_weights=weights, max_iters=4, tol=0.0)

    spoiled = np.where(np.arange(12) == 0, np.nan, weights)
    batch = jax.tree.map(lambda *parts: jnp.stack(parts), *several, several[0])
    result = jax.jit(jax.vmap(run, in_axes=(0, None, 0)))(batch, x, np.stack([weights, weights, spoiled]))
    for i, params in enumerate(several):
        one = run(params, x, weights)
        compared = (one.params, one.log_likelihood), (result.params, result.log_likelihood)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(b[i], a, rtol=1e-9, atol=1e-9), *compared)
    assert result.status[2] == Status.NON_FINITE


def test_status(float64, no_type_checks):
    params, (x, mask, _) = random_params(chain()), rows_of("chain")
    assert refine(params, x, mask=mask, max_iters=1000).status == Status.CONVERGED
    assert refine(params, x, mask=mask, max_iters=2, tol=0.0).status == Status.MAX_ITERS
    never = np.array(mask)
    never[:, 1] = False
    result = refine(params, x, mask=never, max_iters=1000)
    assert result.status == Status.UNOBSERVED
    np.testing.assert_allclose(result.params.tables[4], params.tables[4], rtol=1e-12)
    with pytest.raises(ValueError, match="x: expected an observation in a row of positive weight"):
        refine(params, np.full_like(x, -1))
    traced = jax.jit(lambda x: refine(params, x))(np.full_like(x, -1))
    assert traced.status == Status.UNOBSERVED
    assert all(np.all(np.isfinite(table)) for table in traced.params.tables)


def test_a_hidden_node_with_nothing_but_leaves_is_a_mixture(float64):
    """Of an undirected star every parameter has a closed form: one step of EM is that of the directed model."""
    star = undirected([("s", "x"), ("y", "s"), ("s", "z")], {"s": 2, "x": 3, "y": 2, "z": 3}, ["s"])
    params = random_params(star)
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, size, 30) for size in (3, 2, 3)], axis=1)
    result = refine(params, x, max_iters=1, tol=0.0, smoothing=0.0, accelerate=False)
    counts = expected_counts(params, x, np.ones(30))
    after = enumerate_params(result.params)
    for clique, count in zip(star.cliques, counts, strict=True):
        np.testing.assert_allclose(after.marginal(clique), count, atol=1e-12)
