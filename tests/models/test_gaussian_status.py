"""Statuses of Gaussian mixtures: about what is returned, in every family."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import gaussian_mixture
from latensor.moments import Table
from latensor.moments.internal import choose_rows
from tests.models.gaussian_cases import random_mixture

KEY = jax.random.key(0)


def two_clusters(n=300):
    rng = np.random.default_rng(0)
    own = np.arange(n) % 5 < 3
    return own, rng.normal(size=(n, 5)) + 4 * own[:, None] * np.array([1, 1, -1, 0, 0])


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_constant_column_changes_nothing(covariance, precision):
    own, x = two_clusters()
    for constant in (9.1, 0.1, 1013.25):
        table = np.c_[x, np.full(len(x), constant)].astype(precision)
        fit = gaussian_mixture.fit(KEY, table, 2, covariance=covariance)
        assert fit.status == Status.CONVERGED
        for params in (fit.params, gaussian_mixture.refine(fit.params, table).params):
            found = np.argmax(gaussian_mixture.posterior(params, table), axis=1)
            assert max(np.mean(found == own), np.mean(found != own)) > 0.98, constant


def test_the_status_is_about_the_family_that_is_returned():
    rng = np.random.default_rng(1)
    # One Gaussian whose columns are correlated: several spherical components explain it, but not as full ones.
    x = rng.normal(size=(1000, 6)) @ rng.normal(size=(6, 6))
    fit = gaussian_mixture.fit(KEY, x, 2, covariance="full")
    assert fit.status == Status.POOR_FIT
    assert fit.diagnostics.evidence.gain < 0
    # A value whose square no float32 holds.
    _, table = two_clusters()
    table[3, 3] = 1e25
    for covariance in ("spherical", "diagonal", "full"):
        assert gaussian_mixture.fit(KEY, table, 2, covariance=covariance).status == Status.NON_FINITE


def test_a_dimension_never_observed_under_a_trace_in_refine():
    params = random_mixture(0, d=5, k=2)
    _, x = two_clusters()
    mask = np.ones(x.shape, bool)
    mask[:, 2] = False
    refined = jax.jit(lambda mask: gaussian_mixture.refine(params, x, mask=mask, max_iters=2))(mask)
    assert refined.status == Status.UNOBSERVED


def test_rows_with_a_period_are_chosen_evenly():
    x = np.zeros((20480, 1))
    x[5::10] = 1
    share = float(jnp.mean(choose_rows(Table(x), 2048).x))
    # A draw of 2,048 has a standard error of 0.007; every tenth row would give 0 or 1.
    assert abs(share - 0.1) < 0.03


def test_lists_of_masked_arrays_are_refused(no_type_checks):
    rows = [np.ma.MaskedArray([1.0, 99.0], mask=[0, 1]), np.ma.MaskedArray([0.0, 1.0], mask=[0, 0])]
    with pytest.raises(ValueError, match=r"x: expected numbers .samples, dimensions.; got a list of masked arrays"):
        gaussian_mixture.fit(KEY, rows, 1)
