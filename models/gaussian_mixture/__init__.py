"""The mixture of Gaussians, also from tables with missing entries.

    h ~ Multinomial(π),              π (k,)
    x | h ~ Normal(a_h, Σ_h),        A = (a_1 … a_k) (d, k)

`Σ_h` is spherical (`σ_h² I`), diagonal or full, a covariance for each component or one for all. `fit` recovers `π`,
`A` and the `σ_h²` of spherical components from the first three moments of the data: globally, in a few passes, without
a starting point, and from rows that are not complete; for diagonal and full covariances it starts from there. `refine`
is EM on the exact likelihood of the observed entries.

Identifiable from moments when the means are affinely independent (`k ≤ d`); where the origin is does not matter.
Entries must be missing for reasons that do not depend on their values; see `fit` for dimensions that are missing
together.

    from latensor.models import gaussian_mixture

    mask = ~jnp.isnan(x)                                                # x (samples, dimensions)
    fit = gaussian_mixture.fit(jax.random.key(0), x, 3, mask=mask, covariance="full")
    better = gaussian_mixture.refine(fit.params, x, mask=mask)
    clusters = gaussian_mixture.posterior(better.params, x, mask=mask)  # (samples, 3)
"""

from latensor.models.gaussian_mixture.em import refine
from latensor.models.gaussian_mixture.likelihood import as_data, log_likelihood, posterior
from latensor.models.gaussian_mixture.params import (
    GaussianMixture,
    component_columns,
    num_parameters,
    permute,
    population_moments,
    sample,
)
from latensor.models.gaussian_mixture.reduced import reduce_fit as reduce_fit  # for derivatives, not for users
from latensor.models.gaussian_mixture.spectral import Diagnostics, fit, fit_moments

__all__ = [
    "Diagnostics",
    "GaussianMixture",
    "as_data",
    "component_columns",
    "fit",
    "fit_moments",
    "log_likelihood",
    "num_parameters",
    "permute",
    "population_moments",
    "posterior",
    "refine",
    "sample",
]
