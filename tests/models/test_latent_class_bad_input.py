import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import latent_class
from latensor.moments import Table
from tests.models.latent_class_cases import CODES, MIXED, K, draw, random_model


@pytest.mark.parametrize(
    ("x", "keywords", "message"),
    [
        (np.tile([0, 1], (5, 1)), {}, "x: expected at least two categories"),
        (np.array([[0, 1], [1, 0], [1, 1]]), {}, "x: expected at least three columns; got 2"),
        (np.eye(4, dtype=int)[:, :3], {"variables": CODES}, "x: expected 9 columns"),
        (np.eye(4), {}, r"variables: expected a latensor.moments.Variables\(kinds, sizes\)"),
        (np.eye(4) / 3, {}, "variables: expected .* kind 'real' .* 0.333333 at row 0, column 0"),
        (np.eye(4, 9, dtype=int) - 1, {"variables": CODES}, "x: expected category codes from 0 to 2; got -1"),
        (np.eye(4, 9, dtype=int), {"variables": CODES, "mask": np.eye(4, 9) > 2}, "mask: expected every variable"),
        (
            np.eye(4, 9, dtype=int),
            {"variables": CODES, "mask": np.arange(9) > [[-1], [0], [0], [0]], "row_weights": np.array([0.0, 1, 1, 1])},
            "mask: expected every variable to be observed somewhere; variable 0 never is",
        ),
        (np.eye(2, 9, dtype=int), {"variables": CODES}, "x: expected at least num_components = 3 samples; got 2"),
    ],
)
def test_bad_input(x, keywords, message, no_type_checks):
    with pytest.raises(ValueError, match=message):
        latent_class.fit(jax.random.key(0), x, 3, **keywords)


def test_parameters_that_do_not_fit_the_table(no_type_checks):
    params, x = random_model(12, MIXED), draw(12, random_model(12, MIXED), 20, MIXED)
    with pytest.raises(ValueError, match=r"params\.variances: expected 3 rows"):
        latent_class.posterior(params._replace(variances=None), x, variables=MIXED)
    with pytest.raises(ValueError, match=r"params.variances: expected shape \(3, 3\); got shape \(2, 3\)"):
        latent_class.posterior(params._replace(variances=params.variances[:2]), x, variables=MIXED)
    codes, others = np.eye(9, dtype=int), random_model(0)
    with pytest.raises(ValueError, match=r"params\.variances: expected None"):
        latent_class.posterior(others._replace(variances=params.variances), codes, variables=CODES)
    with pytest.raises(ValueError, match=r"params\.tables: expected 27 rows"):
        latent_class.posterior(params._replace(variances=None), codes, variables=CODES)
    moments = latent_class.population_moments(random_model(0), variables=CODES)
    with pytest.raises(ValueError, match="moments: expected 29 rows"):
        latent_class.fit_moments(jax.random.key(0), moments, 3, variables=MIXED)


def test_codes_out_of_range_under_a_trace():
    params = random_model(13)
    x = draw(13, params, 50)
    bad = x.copy()
    bad[3, 2] = 7

    def run(x):
        table = Table(x, variables=CODES)
        return latent_class.fit(jax.random.key(0), table, K).status, latent_class.log_likelihood(params, table)

    status, values = jax.jit(run)(jnp.asarray(bad))
    assert status == Status.NON_FINITE
    np.testing.assert_array_equal(np.isnan(values), np.arange(50) == 3)
