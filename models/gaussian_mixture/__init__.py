"""The mixture of spherical Gaussians, also from tables with missing entries.

    h ~ Multinomial(π),              π (k,)
    x | h ~ Normal(a_h, σ² I),       A = (a_1 … a_k) (d, k)

`S = Σ_h π_h a_h a_hᵀ` and `T = Σ_h π_h a_h⊗a_h⊗a_h` follow from the cumulants of the data; `fit` recovers `π`, `A` and
`σ²` from them: globally, in a few passes over the data, without a starting point, and from rows that are not complete.
`refine` is EM from there, on the exact likelihood of the observed entries.

Identifiable when the columns of `A` are linearly independent (so `k ≤ d`). Entries must be missing for reasons that do
not depend on their values; see `fit` for dimensions that are missing together.

    from latensor.models import gaussian_mixture

    fit = gaussian_mixture.fit(jax.random.key(0), x, 3, mask=~jnp.isnan(x))      # x (samples, dimensions)
    better = gaussian_mixture.refine(fit.params, x, mask=~jnp.isnan(x))
    clusters = gaussian_mixture.posterior(better.params, x, mask=~jnp.isnan(x))  # (samples, 3)
"""

from latensor.models.gaussian_mixture.em import refine
from latensor.models.gaussian_mixture.likelihood import log_likelihood, posterior
from latensor.models.gaussian_mixture.params import GaussianMixture, permute, population_moments, sample
from latensor.models.gaussian_mixture.spectral import Diagnostics, fit, fit_moments

__all__ = [
    "Diagnostics",
    "GaussianMixture",
    "fit",
    "fit_moments",
    "log_likelihood",
    "permute",
    "population_moments",
    "posterior",
    "refine",
    "sample",
]
