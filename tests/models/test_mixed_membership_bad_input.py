"""What bad input gets: a ValueError that names the argument, what was expected and what came, before any work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models import mixed_membership
from latensor.models.mixed_membership import MixedMembership
from latensor.moments import Table, Variables, categorical_variables

KEY = jax.random.key(0)
X = np.random.default_rng(0).integers(0, 3, (30, 12)).astype(np.int32)
VARIABLES = categorical_variables(12, 3)
PARAMS = MixedMembership(jnp.full(2, 0.5), jnp.full((36, 2), 1 / 3))


def changed(row, column, value, dtype=np.int32):
    x = X.astype(dtype)
    x[row, column] = value
    return x


FIT = [
    ({"x": changed(4, 5, 3)}, r"x: expected category codes from 0 to 2; got 3 at row 4, column 5"),
    ({"x": changed(4, 5, -1)}, r"x: expected category codes from 0 to 2; got -1 at row 4, column 5"),
    ({"x": changed(4, 5, 0.5, float)}, r"x: expected whole category codes; got 0.5 at row 4, column 5"),
    ({"x": changed(4, 5, np.nan, float)}, r"x: expected finite numbers; got nan at row 4, column 5"),
    ({"x": X[:, :2], "variables": categorical_variables(2, 3)}, r"x: expected at least three variables.*got 2"),
    ({"x": X[:, :11]}, r"x: expected 12 columns, as in variables; got 11"),
    ({"x": X[0]}, r"x: expected .* two axes; got 1"),
    ({"x": X[:1]}, r"x: expected at least num_components = 2 samples; got 1"),
    ({"x": None}, r"x: expected .*; got None"),
    ({"concentration": 0.0}, r"concentration: expected .* above zero.*got 0.0"),
    ({"concentration": -1.0}, r"concentration: expected .* above zero.*got -1.0"),
    ({"concentration": np.nan}, r"concentration: expected .* above zero.*got nan"),
    ({"concentration": [0.1, 0.2]}, r"concentration: expected .*got shape \(2,\) \(pass its sum\)"),
    ({"num_partitions": 13}, r"num_partitions: expected an integer from 1 to 12 \(the number of variables\); got 13"),
    ({"num_partitions": 0}, r"num_partitions: expected an integer from 1 to 12"),
    (
        {"num_partitions": 10, "anchors": ((0,), (1,), (2,))},
        r"num_partitions: expected an integer from 1 to 9 \(the variables beside 3 anchors\); got 10",
    ),
    ({"anchors": ((0,), (1,), (0,))}, r"anchors: expected three groups that do not overlap; variables \[0\]"),
    ({"anchors": ((0,), (1,))}, r"anchors: expected three groups"),
    ({"anchors": ((0,), (1,), (12,))}, r"anchors: expected variables from 0 to 11; got 12"),
    ({"anchors": 3}, r"anchors: expected three groups of variable numbers; got 3"),
    (
        {"num_components": 6, "anchors": ((0, 3), (1, 4, 7), (2, 5, 8))},
        r"anchors: expected a group of rank at least num_components = 6; group 0 has 2 variables with 6 rows, which "
        r"reach rank 5: 1 more rows are needed",
    ),
    ({"num_components": 0}, r"num_components: expected an integer of at least 1; got 0"),
    ({"num_components": 40}, r"num_components: expected at most 9, the rank that 12 variables .* reach; got 40"),
    ({"method": "em"}, r"method: expected one of 'ptpqp'.*got 'em'"),
    ({"matching": "nearest"}, r"matching: expected one of .*got 'nearest'"),
    ({"polish": -1}, r"polish: expected an integer of at least 0; got -1"),
    ({"num_restarts": 0}, r"num_restarts: expected an integer of at least 1; got 0"),
    ({"key": None}, r"key: expected a random key"),
    ({"mask": np.ones((30, 11), bool)}, r"mask: expected the shape of x, \(30, 12\); got \(30, 11\)"),
    ({"mask": np.ones((30, 12))}, r"mask: expected True where observed"),
    ({"mask": np.arange(12)[None, :].repeat(30, 0) != 7}, r"mask: expected every variable.*; variable 7 never is"),
    ({"row_weights": np.ones(3)}, r"row_weights: expected one weight per row, shape \(30,\)"),
    ({"variables": "categorical"}, r"variables: expected a latensor.moments.Variables\(kinds, sizes\)"),
    (
        {"variables": Variables(("categorical",) * 12, (3,) * 11 + (1,))},
        r"variables.sizes: expected at least two categories; variable 11 has a single one",
    ),
    ({"variables": Variables(("ordinal",) * 12, (3,) * 12)}, r"variables.kinds: expected .*; variable 0 is 'ordinal'"),
    (
        {"variables": Variables(("categorical",) * 11 + ("real",), (3,) * 12)},
        r"variables.sizes: expected 1 for a real variable; variable 11 has 3",
    ),
    ({"x": X.astype(float), "variables": None}, r"variables: expected .* only where x holds integer codes"),
    ({"x": np.where(np.arange(12) == 3, 0, X), "variables": None}, r"x: expected at least two categories.*variable 3"),
]


@pytest.mark.parametrize(("change", "message"), FIT)
def test_fit(change, message, no_type_checks):
    arguments = {"key": KEY, "x": X, "num_components": 2, "concentration": 0.5, "variables": VARIABLES} | change
    with pytest.raises(ValueError, match=message):
        mixed_membership.fit(**arguments)


PARAMETERS = [
    (PARAMS._replace(concentration=jnp.array([0.5, 0.0])), r"params.concentration: expected numbers above zero; got 0"),
    (PARAMS._replace(tables=jnp.full((36, 2), 0.3)), r"params.tables: expected columns .* variable 0 are off by 0.1"),
    (PARAMS._replace(tables=jnp.full((36, 3), 1 / 3)), r"params.tables: expected shape \(36, 2\).*got \(36, 3\)"),
    (PARAMS._replace(tables=PARAMS.tables.at[0, 0].set(jnp.nan)), r"params.tables: expected finite numbers; got nan"),
    (
        PARAMS._replace(tables=PARAMS.tables.at[:2, 0].set(jnp.array([-0.1, 0.8]))),
        r"params.tables: expected probabilities ≥ 0; got -0.1",
    ),
    (PARAMS._replace(variances=jnp.ones(1)), r"params.variances: expected None where no variable is real"),
    (None, r"params: expected a MixedMembership; got NoneType"),
]


@pytest.mark.parametrize(("params", "message"), PARAMETERS)
def test_parameters(params, message, no_type_checks):
    calls = [
        lambda: mixed_membership.sample(KEY, params, 5, variables=VARIABLES),
        lambda: mixed_membership.population_moments(params, variables=VARIABLES),
        lambda: mixed_membership.posterior(params, X, variables=VARIABLES),
        lambda: mixed_membership.log_likelihood(params, X, key=KEY, variables=VARIABLES),
        lambda: mixed_membership.refine(params, X, variables=VARIABLES),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_likelihoods_need_a_key(no_type_checks):
    with pytest.raises(ValueError, match=r"key: expected a random key such as jax.random.key\(0\); got None"):
        mixed_membership.log_likelihood(PARAMS, X, variables=VARIABLES)


def test_a_table_carries_its_description(no_type_checks):
    with pytest.raises(ValueError, match=r"variables: expected None where x is a Table: make it a field of that"):
        mixed_membership.posterior(PARAMS, Table(X, variables=VARIABLES), variables=VARIABLES)
    with pytest.raises(ValueError, match=r"x: expected category codes from 0 to 2; got 3 at row 4, column 5"):
        mixed_membership.posterior(PARAMS, Table(changed(4, 5, 3), variables=VARIABLES))


def test_real_variables_need_variances(no_type_checks):
    variables = Variables(("real",) * 3 + ("categorical",) * 11, (1,) * 3 + (3,) * 11)
    with pytest.raises(ValueError, match=r"params.variances: expected 3, one per real variable; got None"):
        mixed_membership.sample(KEY, PARAMS, 5, variables=variables)


def test_fit_moments(no_type_checks):
    moments = mixed_membership.population_moments(PARAMS, variables=VARIABLES)
    for change, message in (
        (
            {"concentration": None},
            r"concentration: expected a number above zero, which dense moments do not tell",
        ),
        ({"method": "meld"}, r"method: expected one that factors tensors, since 'meld' needs the samples"),
        ({"variables": categorical_variables(12, 4)}, r"moments: expected 48 rows.*got \(36, 36\)"),
        ({"moments": None}, r"moments: expected Moments.*got NoneType"),
    ):
        arguments = {"key": KEY, "moments": moments, "num_components": 2, "concentration": 1.0, "variables": VARIABLES}
        with pytest.raises(ValueError, match=message):
            mixed_membership.fit_moments(**(arguments | change))


def test_under_a_trace_what_decides_shapes_must_be_given(no_type_checks):
    uneven = Variables(("categorical",) * 12, (3,) * 11 + (4,))
    with pytest.raises(ValueError, match=r"anchors: expected to be given under jit or vmap, where variables differ"):
        jax.jit(lambda x: mixed_membership.fit(KEY, x, 2, concentration=0.5, variables=uneven))(jnp.asarray(X))
    with pytest.raises(ValueError, match=r"variables: expected .* under jit or vmap; got None"):
        jax.jit(lambda x: mixed_membership.fit(KEY, x, 2, concentration=0.5))(jnp.asarray(X))
