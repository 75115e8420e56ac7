"""Free parameters, against the dimension of the set of distributions that a model has, and against counts by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models import (
    crowd,
    gamma_poisson,
    gaussian_mixture,
    graphical,
    hidden_markov,
    latent_class,
    mixed_membership,
    naive_bayes,
)
from latensor.moments import Variables


def columns(seed, *shape):
    values = np.random.default_rng(seed).gamma(1.0, size=shape)
    return values / values.sum(axis=0)


def test_gaussian_mixtures_of_every_family():
    d, k = 4, 3
    shapes = {(): 1, (k,): k, (d, 1): d, (d, k): d * k, (d, d, 1): 10, (d, d, k): 30}
    for shape, number in shapes.items():
        variance = np.broadcast_to(np.eye(d)[:, :, None], shape) if len(shape) == 3 else np.ones(shape)
        params = gaussian_mixture.GaussianMixture(columns(0, k), np.zeros((d, k)), variance)
        assert gaussian_mixture.num_parameters(params) == 2 + 12 + number


def test_models_of_counts_and_of_labels():
    topics = columns(1, 5, 3)
    assert naive_bayes.num_parameters(naive_bayes.NaiveBayes(columns(2, 3), topics)) == 2 + 3 * 4
    params = gamma_poisson.GammaPoisson(topics, np.ones(3), np.array(1.0))
    assert gamma_poisson.num_parameters(params) == 3 * 4 + 3 + 1
    params = crowd.DawidSkene(columns(3, 3), np.swapaxes(columns(4, 3, 6, 3), 0, 1))
    assert crowd.num_parameters(params) == 2 + 6 * 3 * 2


def test_hidden_markov_models_of_symbols_and_of_vectors():
    chain = (columns(5, 3), columns(6, 3, 3).T)
    assert hidden_markov.num_parameters(hidden_markov.HiddenMarkov(*chain, columns(7, 5, 3))) == 2 + 6 + 3 * 4
    real = hidden_markov.HiddenMarkov(*chain, np.zeros((5, 3)), np.ones((5, 3)))
    assert hidden_markov.num_parameters(real) == 2 + 6 + 2 * 15


def test_tables_of_categories_and_numbers():
    variables = Variables(("categorical", "real", "categorical"), (3, 1, 2))
    tables = np.concatenate([columns(8, 3, 2), np.zeros((1, 2)), columns(9, 2, 2)])
    params = latent_class.LatentClass(columns(10, 2), tables, np.ones((1, 2)))
    assert latent_class.num_parameters(params, variables=variables) == 1 + 2 * (2 + 2 + 1)
    params = mixed_membership.MixedMembership(np.ones(2), tables, np.ones(1))
    assert mixed_membership.num_parameters(params, variables=variables) == 2 + 2 * (2 + 1 + 1) + 1
    # The memberships of a single component are known: its concentration is none.
    one = mixed_membership.MixedMembership(np.ones(1), tables[:, :1], np.ones(1))
    assert mixed_membership.num_parameters(one, variables=variables) == 2 + 1 + 1 + 1
    with pytest.raises(ValueError, match=r"params\.tables: expected shape"):
        mixed_membership.num_parameters(one, variables=Variables(("categorical",) * 2, (3, 2)))


def test_shared_tables_of_a_graph_count_once():
    graph = graphical.chain(3, num_states=2, num_values=4)
    tables = tuple(jnp.asarray(columns(11, *shape)) for shape in graph.shapes)
    for first, *others in graph.shared:
        tables = tuple(tables[first] if number in others else table for number, table in enumerate(tables))
    distinct = {next((group[0] for group in graph.shared if i in group), i) for i in range(len(tables))}
    expected = sum((graph.shapes[i][0] - 1) * int(np.prod(graph.shapes[i][1:])) for i in distinct)
    assert graphical.num_parameters(graphical.Graphical(graph, tables)) == expected


def test_a_latent_class_model_has_as_many_dimensions(float64):
    """The rank of the derivative of all probabilities by what is free: nothing is counted that cancels."""
    variables, k = Variables(("categorical",) * 4, (2, 3, 2, 3)), 2
    free = np.random.default_rng(12).normal(size=(k - 1) + k * sum(size - 1 for size in variables.sizes))

    def probabilities(free):
        weights = jax.nn.softmax(jnp.append(free[: k - 1], 0.0))
        place, joint = k - 1, weights
        for size in variables.sizes:
            logits = free[place : place + k * (size - 1)].reshape(size - 1, k)
            place += k * (size - 1)
            table = jax.nn.softmax(jnp.concatenate([logits, jnp.zeros((1, k))]), axis=0)
            joint = joint[..., None, :] * table[(None,) * (joint.ndim - 1)]
        return jnp.sum(joint, axis=-1).reshape(-1)

    rank = np.linalg.matrix_rank(jax.jacfwd(probabilities)(jnp.asarray(free)))
    tables = np.concatenate([columns(13 + size, size, k) for size in variables.sizes])
    params = latent_class.LatentClass(columns(14, k), tables)
    assert latent_class.num_parameters(params, variables=variables) == rank
