"""Parameters, draws, likelihood and posterior of graphical models, against sums over all values of all nodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models.graphical.elimination import make_schedule
from latensor.models.graphical.em import refine
from latensor.models.graphical.factors import split_graph
from latensor.models.graphical.graph import directed, undirected
from latensor.models.graphical.likelihood import log_likelihood, posterior
from latensor.models.graphical.params import Graphical, check_params, permute
from latensor.models.graphical.sampling import sample
from latensor.moments import Table, categorical_variables
from tests.helpers import lowers
from tests.models.graphical_inference_cases import (
    GRAPHS,
    all_rows,
    chain,
    enumerate_params,
    lattice,
    random_params,
    some_rows,
)

every_graph = pytest.mark.parametrize("name", GRAPHS)
some_graphs = pytest.mark.parametrize("name", ["observed inside", "triangle"])


# Likelihood and posterior.
@every_graph
def test_likelihood_and_posterior_against_enumeration(name, precision):
    params, (x, mask) = random_params(GRAPHS[name]), some_rows(name)
    exact, rows = enumerate_params(params), np.where(mask, x, -1)
    tolerance = 1e-12 if precision == "float64" else 2e-5
    values = log_likelihood(params, x, mask=mask)
    assert values.dtype == params.tables[0].dtype
    np.testing.assert_allclose(values, exact.log_likelihood(rows), atol=tolerance)
    np.testing.assert_array_equal(log_likelihood(params, rows), values)
    states = posterior(params, x, mask=mask)
    assert tuple(states) == GRAPHS[name].hidden
    for node, table in states.items():
        np.testing.assert_allclose(table, exact.posterior(rows, node), atol=tolerance)


@pytest.mark.parametrize("name", ["observed inside", "undirected, observed inside", "shared grid"])
def test_probabilities_of_all_rows_sum_to_one(name, float64):
    params = random_params(GRAPHS[name])
    np.testing.assert_allclose(np.sum(np.exp(log_likelihood(params, all_rows(GRAPHS[name])))), 1, rtol=1e-12)


def test_leaves_are_not_summed_out():
    split = split_graph(GRAPHS["observed inside"])
    assert split.internal == ("r", "h", "u", "g", "v")
    assert sorted(leaf.column for stack in split.stacks for leaf in stack) == [3, 4]
    assert split_graph(GRAPHS["grid"]).internal == GRAPHS["grid"].hidden
    # The leaf of a shared potential is the same axis everywhere; where it is not, there is no leaf.
    mixed = undirected([("a", "x"), ("y", "a")], {"a": 2, "x": 2, "y": 2}, ["a"], shared=[[0, 1]])
    assert split_graph(mixed).internal == ("a", "x", "y")


@pytest.mark.parametrize("name", ["directed grid", "triangle"])
def test_many_rows_equal_few(name, float64):
    params, (x, mask) = random_params(GRAPHS[name]), some_rows(name)
    repeats = 20_000  # more than one block
    values = log_likelihood(params, np.tile(x, (repeats, 1)), mask=np.tile(mask, (repeats, 1)))
    expected = np.tile(log_likelihood(params, x, mask=mask), repeats)
    np.testing.assert_allclose(values, expected, rtol=1e-13, atol=1e-14)


@some_graphs
def test_jit_and_vmap_equal_eager(name, float64):
    graph, (x, mask) = GRAPHS[name], some_rows(name)
    several = [random_params(graph, seed) for seed in range(3)]
    batch = jax.tree.map(lambda *parts: jnp.stack(parts), *several)

    def values(params, x):
        return log_likelihood(params, Table(x, mask)), posterior(params, x, mask=mask)

    expected = [values(params, x) for params in several]
    result = jax.vmap(jax.jit(values), in_axes=(0, None))(batch, x)
    for i, one in enumerate(expected):
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-12, atol=1e-14), result, one)


@some_graphs
def test_lowers_for_accelerators(name, precision):
    params, (x, mask) = random_params(GRAPHS[name]), some_rows(name)
    lowers(lambda params, x: log_likelihood(params, x, mask=mask), params, jnp.asarray(x))


@some_graphs
def test_float32_stays_float32_where_x64_is_enabled(name, float64):
    params, (x, mask) = random_params(GRAPHS[name]), some_rows(name)
    params = jax.tree.map(lambda table: table.astype(jnp.float32), params)

    def verbs(params, x):
        refined = refine(params, x, mask=mask, row_weights=np.ones(len(x)))
        drawn = sample(jax.random.key(0), params, 4)
        return log_likelihood(params, x, mask=mask), posterior(params, x, mask=mask), refined, drawn

    leaves = jax.tree.leaves(jax.eval_shape(verbs, params, jnp.asarray(x)))
    assert {leaf.dtype.name for leaf in leaves} == {"float32", "int32"}


def test_traced_values_out_of_range_are_missing(float64):
    params, (x, _) = random_params(GRAPHS["chain"]), some_rows("chain")
    large = np.array(x)
    large[:, 1] = 7
    missing = np.where(large == 7, -1, large)
    np.testing.assert_array_equal(jax.jit(log_likelihood)(params, large), log_likelihood(params, missing))


@pytest.mark.parametrize("name", ["directed grid", "observed inside", "pairs"])
def test_hidden_values_in_another_order(name, float64):
    params, (x, mask) = random_params(GRAPHS[name]), some_rows(name)
    node = GRAPHS[name].hidden[0]
    order = np.roll(np.arange(GRAPHS[name].sizes[node]), 1)
    other = permute(params, {node: order})
    np.testing.assert_allclose(log_likelihood(other, x, mask=mask), log_likelihood(params, x, mask=mask), rtol=1e-12)
    before, after = posterior(params, x, mask=mask), posterior(other, x, mask=mask)
    np.testing.assert_allclose(after[node], before[node][:, order], rtol=1e-12)
    for rest in GRAPHS[name].hidden[1:]:
        np.testing.assert_allclose(after[rest], before[rest], rtol=1e-12)


def test_constants_in_potentials_change_nothing(float64):
    params, (x, mask) = random_params(GRAPHS["triangle"]), some_rows("triangle")
    moved = params._replace(tables=tuple(table + 100.0 * (i - 2) for i, table in enumerate(params.tables)))
    np.testing.assert_allclose(log_likelihood(moved, x, mask=mask), log_likelihood(params, x, mask=mask), rtol=1e-11)


def test_impossible_rows_have_finite_likelihoods(precision):
    params = random_params(chain())
    tables = list(params.tables)
    tables[1] = jnp.eye(2, dtype=tables[1].dtype)
    tables[3] = jnp.asarray([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], tables[3].dtype)
    tables[4] = tables[3]
    params = params._replace(tables=tuple(tables))
    values = log_likelihood(params, np.array([[2, 0, 0], [0, 1, 0], [0, 0, 0], [2, 2, 2]]))
    assert np.all(np.isfinite(values))
    assert values[0] < -80
    assert values[1] < -60
    assert values[2] > -20
    for table in posterior(params, np.array([[2, 2, 2], [0, 1, 0]])).values():
        np.testing.assert_allclose(np.sum(table, axis=1), 1, rtol=1e-5)


# Draws.
def assert_frequencies(draws, graph, exact, num_samples):
    """Compare the frequencies of all pairs of nodes with their probabilities, within five standard errors."""
    values = dict(zip(graph.observed, np.asarray(draws.x).T, strict=True))
    values |= dict(zip(graph.hidden, np.asarray(draws.hidden).T, strict=True))
    names = list(values)
    for i, one in enumerate(names):
        for other in names[:i]:
            expected = exact.marginal((one, other))
            counts = np.zeros(expected.shape)
            np.add.at(counts, (values[one], values[other]), 1)
            errors = np.sqrt(expected * (1 - expected) / num_samples)
            assert np.all(np.abs(counts / num_samples - expected) <= 5 * errors + 1e-9)


@every_graph
def test_draws_have_the_right_frequencies(name, float64):
    graph, num_samples = GRAPHS[name], 20_000
    params = random_params(graph)
    draws = sample(jax.random.key(0), params, num_samples, num_sweeps=40)
    assert draws.x.shape == (num_samples, len(graph.observed))
    assert draws.hidden.shape == (num_samples, len(graph.hidden))
    assert {draws.x.dtype, draws.hidden.dtype} == {jnp.dtype(jnp.int32)}
    assert_frequencies(draws, graph, enumerate_params(params), num_samples)


@pytest.mark.parametrize("name", ["directed grid", "pairs"])
def test_draws_under_vmap_equal_single_ones(name, float64):
    params, keys = random_params(GRAPHS[name]), jax.random.split(jax.random.key(0), 2)
    draws = jax.vmap(lambda key: sample(key, params, 5, num_sweeps=3))(keys)
    for i in range(2):
        one = sample(keys[i], params, 5, num_sweeps=3)
        np.testing.assert_array_equal(draws.x[i], one.x)
        np.testing.assert_array_equal(draws.hidden[i], one.hidden)


# Bad input.
def test_bad_parameters_are_named(no_type_checks):
    params = random_params(chain())
    tables = list(params.tables)

    def bad(expected, number=None, table=None, **changes):
        changed = [*tables]
        if number is not None:
            changed[number] = table
        with pytest.raises(ValueError, match=expected):
            check_params(params._replace(**{"tables": tuple(changed)} | changes))

    bad(r"params.tables\[1\] \(h1 given h0\): expected probabilities that sum to one", 1, tables[1] * 2)
    bad(r"params.tables\[0\] \(h0\): expected finite", 0, jnp.full(2, jnp.nan))
    bad(r"params.tables\[3\] \(x0 given h0\): expected shape \(3, 2\); got \(2, 2\)", 3, tables[1])
    bad(r"params.tables: expected 6 tables", tables=tuple(tables[:5]))
    bad(r"params.graph: expected a Graph", graph=None)
    with pytest.raises(ValueError, match="params: expected a Graphical"):
        check_params(tuple(tables))
    shared = GRAPHS["shared chain"]
    with pytest.raises(ValueError, match=r"\(x1 given h1\): expected the same as params.tables\[3\]"):
        check_params(Graphical(shared, random_params(chain()).tables))
    potentials = random_params(GRAPHS["pairs"])
    with pytest.raises(ValueError, match=r"params.tables\[0\] \(a, b\): expected finite"):
        check_params(potentials._replace(tables=(jnp.full((2, 3), -jnp.inf), *potentials.tables[1:])))
    for order in ([1, 0], {"x0": [0, 1, 2]}, {"h0": [0, 0]}):
        with pytest.raises(ValueError, match="order: expected"):
            permute(params, order)
    with pytest.raises(ValueError, match="num_sweeps: expected"):
        sample(jax.random.key(0), potentials, 3, num_sweeps=0)


def test_bad_data_are_named(no_type_checks):
    params, (x, _) = random_params(chain()), some_rows("chain")
    for data, expected in [
        (x[:, :2], r"x: expected 3 columns, the observed nodes of the graph \(x0, x1, x2\); got 2"),
        (np.where(x == 2, 3, x), "x: expected values from 0 to 2 for x[012] .*; got 3 at row"),
        (x + 0.5, r"x: expected whole numbers, .* got \d\.5 at row .*code them as 0, 1, 2"),
        (np.where(x == 2, np.nan, x), r"x: expected whole numbers, .* got nan at row .*pass mask=~np\.isnan"),
        (Table(x, variables=categorical_variables(3, 2)), "x: expected categorical variables of sizes"),
    ]:
        with pytest.raises(ValueError, match=expected):
            log_likelihood(params, data)
    same = Table(x, variables=categorical_variables(3, 3))
    np.testing.assert_array_equal(log_likelihood(params, same), log_likelihood(params, x))
    holes = np.where(x == 2, np.nan, x)
    expected = log_likelihood(params, np.where(x == 2, -1, x))
    np.testing.assert_array_equal(log_likelihood(params, holes, mask=~np.isnan(holes)), expected)


class Frame:
    """Stands in for a pandas DataFrame: some columns of it are an array."""

    def __init__(self, columns, values):
        self.columns, self.iloc = columns, values


def test_columns_of_a_frame_are_found_by_their_names(no_type_checks):
    params, (x, mask) = random_params(chain()), some_rows("chain")
    expected = log_likelihood(params, x, mask=mask)
    order, labels = [2, 0, 0, 1], ["x2", "x0", "other", "x1"]
    frame = Frame(labels, np.where(np.arange(4) == 2, 7, np.asarray(x)[:, order]))
    its = np.asarray(mask)[:, order]
    np.testing.assert_array_equal(log_likelihood(params, frame, mask=Frame(labels, its)), expected)
    np.testing.assert_array_equal(log_likelihood(params, frame, mask=its), expected)
    with pytest.raises(ValueError, match=r"x: expected a column for every observed node .* 'x1' is missing"):
        log_likelihood(params, Frame(["x0", "y", "x2"], x))


def test_nodes_are_summed_out_in_small_tables():
    """A star from its leaves, wherever the centre is in the list; a ladder rung by rung; a cycle."""
    stars = [tuple((centre, i) for i in range(9) if i != centre) for centre in (0, 8)]
    ladder = (*((i, i + 1) for i in range(0, 16, 2)), *((i, i + 2) for i in range(14)))
    cycle = tuple((i, (i + 1) % 8) for i in range(8))
    widths = [
        make_schedule((2,) * n, scopes).treewidth
        for n, scopes in ((9, stars[0]), (9, stars[1]), (16, ladder), (8, cycle))
    ]
    assert widths == [1, 1, 2, 2]


def test_too_large_treewidths_are_refused(no_type_checks):
    parents = {f"h{i}": [] for i in range(21)} | {"x": [f"h{i}" for i in range(3)], "y": ["h0"]}
    wide = directed(parents, dict.fromkeys(parents, 2), [f"h{i}" for i in range(21)])
    assert log_likelihood(random_params(wide), np.array([[0, 1]])).shape == (1,)
    grid = lattice(21, num_leaves=1)
    with pytest.raises(ValueError, match=r"graph: expected .* treewidth .* pseudolikelihood do not"):
        log_likelihood(random_params(grid), np.zeros((1, 441), int))
