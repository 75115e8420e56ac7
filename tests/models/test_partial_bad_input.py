"""What a user of tables with missing entries sees who passes the wrong thing: a ValueError that names the argument.

What is wrong for any model is in test_contract.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models import gamma_poisson, gaussian_mixture
from latensor.models.gamma_poisson import GammaPoisson
from latensor.models.gaussian_mixture import GaussianMixture

pytestmark = pytest.mark.usefixtures("no_type_checks")

X = np.random.default_rng(0).poisson(4.0, (12, 4)).astype(float)
MASK = np.ones((12, 4), bool)
MIXTURE = GaussianMixture(np.array([0.5, 0.5]), np.zeros((4, 2)), np.array(1.0))
TOPICS = GammaPoisson(np.full((4, 2), 0.25), np.ones(2), np.array(0.5))
MODELS = [gaussian_mixture, gamma_poisson]


def changed(array, row, column, value):
    array = array.copy()
    array[row, column] = value
    return array


def fit(model, x=X, num_components=2, **options):
    return model.fit(jax.random.key(0), x, num_components, **options)


def never_together():
    mask = MASK.copy()
    mask[:6, 1] = False
    mask[6:, 2] = False
    return mask


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (X[0], None, r"x: expected numbers \(samples, dimensions\), two axes; got 1"),
        (X[:1], None, r"x: expected at least num_components = 2 rows; got 1"),
        (changed(X, 3, 1, np.nan), None, r"x: expected finite .* got nan at row 3, column 1 \(pass mask=isfinite\(x\)"),
        (changed(X, 3, 1, np.inf), MASK, r"x: expected finite .* where observed; got inf at row 3, column 1"),
        (changed(X, 3, 1, np.nan), changed(MASK, 0, 0, False), r"x: expected finite .* got nan at row 3, column 1"),
        (X, MASK[:, :3], r"mask: expected the shape of x, \(12, 4\); got \(12, 3\)"),
        (X, MASK.astype(float), r"mask: expected True where observed and False .* got values of type float"),
        (changed(X, 3, 1, np.nan), ~changed(MASK, 3, 1, False), r"got nan at row 3, column 1 \(all missing .* ~mask\?"),
        (X, changed(MASK, slice(None), 2, False), r"mask: expected every dimension .*; dimension 2 never is; leave"),
        (X, changed(MASK, slice(None), slice(1, 3), False), r"dimension 1 never is \(2 such dimensions in all\)"),
        (X, never_together(), r"mask: expected every pair of dimensions .*; 1 and 2 never are"),
    ],
)
def test_tables_and_masks(model, x, mask, message):
    with pytest.raises(ValueError, match=message):
        fit(model, x, mask=mask)


def test_nan_under_a_masked_entry_is_fine():
    x, mask = changed(X, 3, 1, np.nan), changed(MASK, 3, 1, False)
    for model in MODELS:
        for result in (fit(model, x, mask=mask), fit(model, x, mask=jnp.asarray(mask), third="available")):
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result))
    # A negative or fractional count that nobody observed does no harm either.
    fit(gamma_poisson, changed(X, 3, 1, -0.5), mask=mask)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (changed(X, 2, 3, -1), r"x: expected counts ≥ 0; got -1.0 at row 2, column 3"),
        (changed(X, 2, 3, 1.5), r"x: expected whole counts; got 1.5 at row 2, column 3"),
    ],
)
def test_counts(x, message):
    for call in (
        lambda: fit(gamma_poisson, x),
        lambda: fit(gamma_poisson, x, mask=MASK),
        lambda: gamma_poisson.posterior(TOPICS, x),
        lambda: gamma_poisson.posterior_intensities(TOPICS, x),
        lambda: gamma_poisson.refine(TOPICS, x, mask=MASK),
        lambda: gamma_poisson.log_likelihood(TOPICS, x, key=jax.random.key(0)),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": np.ones(3)}, r"weights: expected one weight per dimension, shape \(4,\); got shape \(3,\)"),
        ({"weights": np.array([1, 1, -0.5, 1])}, r"weights: expected numbers ≥ 0; got -0.5 for dimension 2"),
        ({"weights": np.array([1, np.nan, 1, 1])}, r"weights: expected finite numbers; got nan"),
        (
            {"weights": np.array([1.0, 0, 0, 0])},
            r"weights: expected at least num_components = 2 positive weights; got 1",
        ),
        ({"missing": "drop"}, r"missing: expected one of 'weighted', 'full', 'partial'; got 'drop'"),
        ({"third": "dense"}, r"third: expected one of 'implicit', 'available'; got 'dense'"),
        ({"second": "none"}, r"second: expected one of"),
        ({"complete_rate": 1.5}, r"complete_rate: expected a number from 0 to 1; got 1.5"),
        ({"row_weights": np.ones(3)}, r"row_weights: expected one weight per row, shape \(12,\)"),
        ({"num_components": 5}, r"num_components: expected an integer from 1 to 4"),
    ],
)
def test_options(model, options, message):
    with pytest.raises(ValueError, match=message):
        fit(model, **options)


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_pairs_matter_by_the_ratios_of_weights(scale):
    with pytest.raises(ValueError, match=r"mask: expected every pair of dimensions .*; 1 and 2 never are"):
        fit(gamma_poisson, mask=never_together(), weights=scale * np.array([1.0, 1.0, 0.5, 1.0]))


@pytest.mark.parametrize("model", MODELS)
def test_partial_needs_as_many_complete_dimensions_as_components(model):
    mask = changed(MASK, 0, slice(0, 3), False)
    with pytest.raises(ValueError, match=r'missing: expected, for "partial", at least num_components = 2 .*; got 1'):
        fit(model, mask=mask, missing="partial")
    fit(model, mask=mask, missing="partial", complete_rate=0.9)


def test_a_dimension_that_only_weightless_rows_observe():
    mask = changed(MASK, slice(6, None), 0, False)
    with pytest.raises(ValueError, match="dimension 0 never is"):
        fit(gaussian_mixture, mask=mask, row_weights=(np.arange(12) >= 6).astype(float))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (MIXTURE._replace(weights=np.array([0.5, 0.6])), r"params.weights: expected probabilities that sum to one"),
        (MIXTURE._replace(variance=np.array(0.0)), r"params.variance: expected numbers above zero; got 0.0"),
        (MIXTURE._replace(means=np.zeros((4, 3))), r"params: expected weights \(k,\) and means \(d, k\)"),
        (MIXTURE._replace(means=np.zeros((5, 2))), r"x: expected 5 dimensions, as in params.means; got 4"),
    ],
)
def test_parameters_of_the_mixture(params, message):
    for call in (gaussian_mixture.log_likelihood, gaussian_mixture.posterior, gaussian_mixture.refine):
        with pytest.raises(ValueError, match=message):
            call(params, X)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (MIXTURE, r"params: expected a GammaPoisson; got GaussianMixture"),
        (TOPICS._replace(topics=np.ones((4, 2))), r"params.topics: expected probabilities that sum to one"),
        (TOPICS._replace(shapes=np.array([1.0, 0.0])), r"params.shapes: expected numbers above zero; got 0.0"),
        (TOPICS._replace(rate=np.array(-1.0)), r"params.rate: expected numbers above zero; got -1.0"),
        (TOPICS._replace(shapes=np.ones(3)), r"params: expected topics \(d, k\) and shapes \(k,\)"),
        (TOPICS._replace(topics=np.full((5, 2), 0.2)), r"x: expected 5 dimensions, as in params.topics; got 4"),
    ],
)
def test_parameters_of_the_topics(params, message):
    for call in (gamma_poisson.posterior, gamma_poisson.posterior_intensities, gamma_poisson.refine):
        with pytest.raises(ValueError, match=message):
            call(params, X)


def test_concrete_data_inside_a_traced_function_are_checked():
    mask = changed(MASK, slice(None), 2, False)
    for model in MODELS:
        with pytest.raises(ValueError, match="mask: expected every dimension"):
            jax.jit(lambda key, model=model: model.fit(key, X, 2, mask=mask))(jax.random.key(0))
