"""What `fit` of graphical models says about its estimate, and what it makes of missing values."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from latensor.decompose import Status
from latensor.models import graphical
from latensor.models.graphical import latent_tree
from latensor.models.graphical.conditionals import choose_triples
from latensor.models.graphical.moments import GraphData, data_moments
from latensor.models.results import Spectrum
from latensor.models.views import Factored
from tests.models.test_graphical_moments import random_params, sorted_states

KEY = jax.random.key(0)
TREE = latent_tree({"h1": ["h2"]}, {"h1": ["a", "b"], "h2": ["c", "d"]}, num_values=3)


def exact_rows(params, patterns):
    """Return all values with their probabilities, once for every pattern of what is observed."""
    rows = np.array(list(itertools.product(range(3), repeat=4)))
    weights = np.exp(graphical.log_likelihood(params, rows))
    x = np.concatenate([np.where(pattern, rows, -1) for pattern in patterns])
    return jnp.asarray(x, jnp.int32), jnp.asarray(np.tile(weights, len(patterns)) / len(patterns))


PATTERNS = np.array([[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 0], [1, 0, 1, 1]], bool)


def test_entries_are_averages_over_the_rows_that_have_them(float64):
    params = random_params(TREE, 3)
    exact = graphical.population_moments(params)
    x, weights = exact_rows(params, PATTERNS)
    moments = data_moments(exact.plan, GraphData(x, weights, jnp.zeros(())), complete=False)
    for one, other in zip(jax.tree.leaves(moments[1:3]), jax.tree.leaves(exact[1:3]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    for marginals in ("likelihood", "pseudoinverse"):
        fit = graphical.fit(KEY, x, TREE, row_weights=weights, marginals=marginals)
        # Half a row is added to every cell, and 324 rows of these weights count as fewer.
        for one, other in zip(fit.params.tables, sorted_states(params).tables, strict=True):
            np.testing.assert_allclose(one, other, atol=0.05)


def test_gain_is_that_over_independent_variables_less_its_price(float64):
    params = random_params(TREE, 4)
    x = np.asarray(graphical.sample(KEY, params, 400).x)
    fit = graphical.fit(KEY, x, TREE)
    frequencies = [np.bincount(column, minlength=3) / len(x) for column in x.T]
    independent = sum(np.log(frequency)[column] for frequency, column in zip(frequencies, x.T, strict=True))
    gains = np.asarray(graphical.log_likelihood(fit.params, x)) - independent
    assert graphical.num_parameters(params) == 1 + 2 + 4 * 4
    price = (graphical.num_parameters(params) - 4 * 2) / len(x)
    np.testing.assert_allclose(fit.diagnostics.evidence.gain, gains.mean() - price, atol=1e-12)
    np.testing.assert_allclose(fit.diagnostics.evidence.gain_error, gains.std() / np.sqrt(len(x)), rtol=1e-9)


def test_an_undirected_tree_has_as_many_parameters_as_a_directed_one():
    undirected = latent_tree({"h1": ["h2"]}, {"h1": ["a", "b"], "h2": ["c", "d"]}, num_values=3, directed=False)
    numbers = [graphical.num_parameters(random_params(each, 0)) for each in (undirected, TREE)]
    # Of every node, and of every edge.
    assert numbers[0] == (2 * 1 + 4 * 2) + (1 + 4 * 2) == numbers[1]


def test_noise_has_no_rank(float64):
    """Its rank is about normal, the least of a few pairs: one of 160 is above 2.5. Of 20 none may be, so none is."""
    rng = np.random.default_rng(0)
    fits = [graphical.fit(KEY, rng.integers(0, 3, (500, 4)), TREE) for _ in range(20)]
    ranks = np.array([[fit.diagnostics.rank[name] for name in ("h1", "h2")] for fit in fits])
    assert np.all(ranks.min(axis=1) < 2.5)
    # Each half by its own direction would give about 5.
    assert ranks.mean() < 0.5
    assert all(fit.status == Status.RANK_DEFICIENT for fit in fits)


def test_a_column_that_is_never_observed_shows_in_the_status():
    x = np.array(graphical.sample(KEY, random_params(TREE, 5), 300).x)
    x[:, 3] = -1
    assert graphical.fit(KEY, x, TREE).status == Status.UNOBSERVED


def test_no_zeros(float64):
    """Projected estimates have them: some rows would be impossible, and EM would never leave them."""
    tables = [np.array([0.7, 0.3]), np.array([[0.9, 0.2], [0.1, 0.8]])]
    tables += 4 * [np.array([[0.0, 0.6], [0.5, 0.4], [0.5, 0.0]])]
    params = graphical.Graphical(TREE, tuple(jnp.asarray(table) for table in tables))
    x = graphical.sample(KEY, params, 2_000).x
    fit = graphical.fit(KEY, x, TREE)
    assert min(float(jnp.min(table)) for table in fit.params.tables) > 0
    for table in fit.params.tables:
        np.testing.assert_allclose(jnp.sum(table, axis=0), 1, rtol=1e-12)
    start = fit.params._replace(tables=tuple(jnp.where(table < 0.01, 0, table) for table in fit.params.tables))
    start = start._replace(tables=tuple(table / jnp.sum(table, axis=0, keepdims=True) for table in start.tables))
    stuck, free = (graphical.refine(start, x, smoothing=share).log_likelihood for share in (0.0, 1e-2))
    assert free >= stuck


def test_the_candidate_that_is_clearest_of_noise_is_chosen():
    values = jnp.array([[1.0, 0.2], [1.0, 0.5], [1.0, 0.4], [1.0, 0.3]])
    spectrum = Spectrum(values, jnp.array([0.1, 0.5, 0.1, 0.1]))
    nothing = jnp.zeros(4)
    found = Factored(jnp.zeros((4, 1, 2)), jnp.zeros((4, 2)), spectrum, nothing, nothing, nothing)
    chosen = choose_triples(found, jnp.array([0, 2], jnp.int32), jnp.array([2, 2], jnp.int32))
    assert chosen.tolist() == [0, 2]


def test_marginals_by_likelihood_are_not_those_by_pseudoinverse(float64):
    x = graphical.sample(KEY, random_params(TREE, 6), 2_000).x
    one, other = (graphical.fit(KEY, x, TREE, marginals=method) for method in ("likelihood", "pseudoinverse"))
    assert np.max(np.abs(one.params.tables[1] - other.params.tables[1])) > 1e-6
    assert one.diagnostics.gap < 1e-12
