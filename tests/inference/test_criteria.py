import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.inference import aic, bic
from latensor.models import gamma_poisson, gaussian_mixture, graphical, hidden_markov, latent_class, naive_bayes
from latensor.moments import Sequences, Table, Variables
from tests.models.contract import call, data_of, params_of
from tests.models.contract_models import MODELS

MEANS = np.array([[0.0, 3.0], [1.0, -1.0]])
MIXTURE = gaussian_mixture.GaussianMixture(np.array([0.6, 0.4]), MEANS, np.array([1.0, 2.0]))


def rows(seed, n=40):
    return np.random.default_rng(seed).normal(size=(n, 2))


def log_densities(x):
    """Log-likelihoods of the rows under `MIXTURE`, by hand."""
    squares = ((x[:, :, None] - MEANS) ** 2).sum(axis=1)
    variance = np.asarray(MIXTURE.variance)
    return np.log(np.sum(MIXTURE.weights * np.exp(-squares / (2 * variance)) / (2 * np.pi * variance), axis=1))


def test_definition(precision):
    x = rows(0)
    total, number = log_densities(x).sum(), 1 + 4 + 2
    tolerance = 1e-12 if precision == "float64" else 1e-6
    assert aic(gaussian_mixture, MIXTURE, x) == pytest.approx(-2 * total + 2 * number, rel=tolerance)
    assert bic(gaussian_mixture, MIXTURE, x) == pytest.approx(-2 * total + number * math.log(40), rel=tolerance)


def test_missing_entries_are_left_out(float64):
    x = rows(1)
    mask = np.ones(x.shape, bool)
    mask[:20] = False
    # Rows without an observation have a log-density of zero, and still count as rows.
    expected = -2 * log_densities(x[20:]).sum() + 7 * math.log(40)
    assert bic(gaussian_mixture, MIXTURE, np.where(mask, x, np.nan), mask=mask) == pytest.approx(expected)


def test_weighted_rows_count_as_the_effective_number_of_equal_ones(float64):
    x, weights = rows(2), np.random.default_rng(2).uniform(size=40)
    effective = weights.sum() ** 2 / (weights**2).sum()
    total = effective * np.average(log_densities(x), weights=weights)
    for given in ({"x": x, "row_weights": weights}, {"x": Table(x, row_weights=weights)}):
        assert aic(gaussian_mixture, MIXTURE, **given) == pytest.approx(-2 * total + 14)
        assert bic(gaussian_mixture, MIXTURE, **given) == pytest.approx(-2 * total + 7 * math.log(effective))
    # Scale does not matter, and rows of weight zero are not there.
    zeros = np.append(np.full(20, 7.0), np.zeros(20))
    assert bic(gaussian_mixture, MIXTURE, x, row_weights=zeros) == pytest.approx(bic(gaussian_mixture, MIXTURE, x[:20]))


def test_of_sequences_observations_count(float64):
    params = hidden_markov.HiddenMarkov(np.array([1.0]), np.ones((1, 1)), np.array([[0.25], [0.75]]))
    x, lengths = np.array([0, 1, 1, 0, 1, 1, 1]), np.array([3, 4])
    total = 2 * math.log(0.25) + 5 * math.log(0.75)
    expected = -2 * total + math.log(7)
    assert bic(hidden_markov, params, x, lengths=lengths) == pytest.approx(expected)
    padded = np.array([[0, 1, 1, 0], [0, 1, 1, 1]])
    assert bic(hidden_markov, params, Sequences(padded, lengths=lengths)) == pytest.approx(expected)
    mask = np.array([True] * 6 + [False])
    expected = -2 * (total - math.log(0.75)) + math.log(6)
    assert bic(hidden_markov, params, x, lengths=lengths, mask=mask) == pytest.approx(expected)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_every_model(model):
    params, data = params_of(model), data_of(model)
    key = jax.random.key(0)
    values = np.asarray(model.module.log_likelihood(params, data, key=key), np.float64)
    weights = np.asarray(data.row_weights, np.float64)
    total = weights.sum() ** 2 / (weights**2).sum() * np.average(values, weights=weights)
    number = call(model, "num_parameters", params=params)
    assert aic(model.module, params, data, key=key) == pytest.approx(-2 * total + 2 * number, rel=1e-9)


def test_columns_of_a_frame_are_found_by_name_as_in_the_likelihood():
    pandas = pytest.importorskip("pandas")
    graph = graphical.latent_tree({"h": []}, {"h": ["a", "b", "c"]}, num_states=2, num_values=3)
    rng = np.random.default_rng(3)
    params = graphical.Graphical(graph, tuple(jnp.asarray(_columns(rng, shape)) for shape in graph.shapes))
    x = np.asarray(graphical.sample(jax.random.key(0), params, 30).x)
    frame = pandas.DataFrame(x, columns=list(graph.observed))[["c", "a", "b"]]
    assert aic(graphical, params, frame) == pytest.approx(aic(graphical, params, x))


def _columns(rng, shape):
    values = rng.gamma(1.0, size=shape)
    return values / values.sum(axis=0)


# Bad input.
def test_models_without_a_closed_form_need_a_key():
    params = gamma_poisson.GammaPoisson(np.full((3, 1), 1 / 3), np.ones(1), np.array(1.0))
    with pytest.raises(ValueError, match="key: expected a random key, since gamma_poisson estimates"):
        aic(gamma_poisson, params, np.ones((4, 3)))


@pytest.mark.usefixtures("no_type_checks")
def test_bad_input():
    x = rows(4)
    with pytest.raises(ValueError, match=r"model: expected a module of latensor\.models"):
        aic("gaussian_mixture", MIXTURE, x)
    with pytest.raises(ValueError, match=r"model: expected a module of latensor\.models.*got math"):
        bic(math, MIXTURE, x)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lengths'; the data of gaussian_mixture have"):
        aic(gaussian_mixture, MIXTURE, x, lengths=[40])
    with pytest.raises(ValueError, match="x: expected 2 dimensions"):
        aic(gaussian_mixture, MIXTURE, x[:, :1])
    with pytest.raises(ValueError, match="params"):
        aic(naive_bayes, MIXTURE, np.full((4, 3), 2.0))
    with pytest.raises(ValueError, match=r"params\.tables"):
        aic(latent_class, latent_class.LatentClass(np.ones(1), np.ones((3, 1))), x.astype(int) % 2, variables=PAIR)


PAIR = Variables(("categorical",) * 2, (2, 2))
