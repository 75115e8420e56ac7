import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as reference

from latensor.models import special

CASES = {
    "digamma": (special.digamma, reference.digamma, 10),
    "trigamma": (special.trigamma, lambda x: reference.polygamma(1, x), 10),
    # `jax.scipy.special.gammaln` errs by 19 (float32) and 17 (float64).
    "log_gamma": (special.log_gamma, reference.gammaln, 50),
}


@pytest.mark.parametrize("name", CASES)
def test_values_over_the_whole_range(name, precision):
    own, exact, roundings = CASES[name]
    # Small and large arguments, and both sides of where they are moved.
    x = jnp.asarray(np.concatenate([np.logspace(-6, 8, 20_001), np.linspace(0.01, 15, 20_001)]))
    expected = exact(np.asarray(x, np.float64))
    error = np.abs(np.asarray(own(x), np.float64) - expected) / np.maximum(np.abs(expected), 1)
    assert own(x).dtype == precision
    assert error.max() < roundings * float(jnp.finfo(x.dtype).eps)


def test_recurrences_and_derivatives(float64):
    x = jnp.linspace(0.05, 20, 400)
    np.testing.assert_allclose(special.digamma(x + 1) - special.digamma(x), 1 / x, rtol=1e-11)
    np.testing.assert_allclose(special.log_gamma(x + 1) - special.log_gamma(x), jnp.log(x), atol=1e-13)
    np.testing.assert_allclose(jax.vmap(jax.grad(special.log_gamma))(x), special.digamma(x), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(jax.vmap(jax.grad(special.digamma))(x), special.trigamma(x), rtol=1e-9)
