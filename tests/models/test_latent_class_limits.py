"""What `fit` does where the moments say too little: categories that were not seen, variances and weights of noise."""

import jax
import jax.numpy as jnp
import numpy as np

from latensor.decompose import Status
from latensor.models import latent_class
from latensor.moments import Variables
from tests.models.latent_class_cases import CODES, MIXED, K, draw, random_model

KEY = jax.random.key(0)
NUMBERS = Variables(("real",) * 6, (1,) * 6)


def test_no_category_is_ruled_out(float64):
    """As if one more sample of each class had the overall frequencies."""
    n = 500
    x = draw(3, random_model(3, concentration=0.2), n)
    params = latent_class.fit(KEY, x, K, variables=CODES, num_groupings=1).params
    overall = np.concatenate([np.bincount(column, minlength=3) / n for column in x.T])
    least = overall[:, None] / (1 + n * np.asarray(params.weights))[None, :]
    tables = np.asarray(params.tables)
    assert np.all(tables >= least * (1 - 1e-9))
    # Many have nothing else.
    assert np.sum(np.isclose(tables, least, rtol=1e-6)) > 5
    np.testing.assert_allclose(tables.reshape(9, 3, K).sum(axis=1), 1, atol=1e-9)


def test_a_variance_of_noise_is_replaced_by_the_average(float64):
    """None is below a tenth of the average variance within classes; those that came out so are the average."""
    replaced = 0
    for seed in range(5):
        truth = random_model(seed, NUMBERS)
        x = draw(seed, truth, 60, NUMBERS)
        weights, means, variances = map(np.asarray, latent_class.fit(KEY, x, K, variables=NUMBERS).params)
        between = (means - (means @ weights)[:, None]) ** 2 @ weights
        pooled = np.maximum(x.var(axis=0) - between, 0.01 * x.var(axis=0))[:, None]
        assert np.all(variances >= 0.1 * pooled * (1 - 1e-9))
        replaced += np.sum(np.isclose(variances, pooled, rtol=1e-9))
    assert replaced > 5


def test_a_class_that_hardly_occurs_is_at_the_boundary(float64):
    truth = random_model(0, MIXED, concentration=1.0)._replace(weights=jnp.asarray([0.6, 0.3999, 1e-4]))
    moments = latent_class.population_moments(truth, variables=MIXED)
    result = latent_class.fit_moments(KEY, moments, K, variables=MIXED)
    assert result.status == Status.BOUNDARY
    # A thousandth of an even share.
    np.testing.assert_allclose(result.params.weights[2], 1e-3 / K, rtol=1e-3)


def test_the_rank_of_the_evidence_is_the_number_of_classes(float64):
    x = draw(9, random_model(9), 2_000)
    enough, more = (latent_class.fit(KEY, x, k, variables=CODES, num_groupings=1) for k in (K, K + 1))
    assert enough.diagnostics.evidence.rank > 5
    assert more.diagnostics.evidence.rank < 2.5
    assert more.status == Status.RANK_DEFICIENT
