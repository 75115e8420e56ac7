"""The Gamma-Poisson topic model (discrete ICA), also from tables with missing entries.

    α_h ~ Gamma(c_h, b),             shapes c (k,), rate b
    x_d | α ~ Poisson((A α)_d),      A = (a_1 … a_k) (d, k), columns sum to one

A row is a document or a patient: counts of words, of codes, of reads. Its mean length is `Σ c_h / b`. The cumulants of
counts, less what a Poisson variable adds of its own, are `S = Σ_h s_h a_h a_hᵀ` with `s_h = c_h / b²` and
`T = Σ_h t_h a_h⊗a_h⊗a_h` with `t_h = 2 c_h / b³`; `fit` recovers all parameters from them: globally, in a few passes
over the data, without a starting point, and from rows that are not complete. `refine` is variational EM from there.

Identifiable when the columns of `A` are linearly independent (so `k ≤ d`). Entries must be missing for reasons that do
not depend on their values; see `fit` for dimensions that are missing together.

    from latensor.models import gamma_poisson

    fit = gamma_poisson.fit(jax.random.key(0), counts, 5)               # counts (documents, words)
    better = gamma_poisson.refine(fit.params, counts)
    shares = gamma_poisson.posterior(better.params, counts)             # (documents, 5)
    value = gamma_poisson.log_likelihood(better.params, counts, key=jax.random.key(1))

Source: Podosinnikova, Bach, Lacoste-Julien (2015), Rethinking LDA; with partial data: Gottesman, Pan, Doshi-Velez.
"""

from latensor.models.gamma_poisson.em import refine
from latensor.models.gamma_poisson.likelihood import (
    Intensities,
    as_data,
    estimate_log_likelihood,
    log_likelihood,
    posterior,
    posterior_intensities,
)
from latensor.models.gamma_poisson.params import (
    GammaPoisson,
    component_columns,
    num_parameters,
    permute,
    population_moments,
    sample,
)
from latensor.models.gamma_poisson.reduced import reduce_fit as reduce_fit  # for derivatives, not for users
from latensor.models.gamma_poisson.spectral import Diagnostics, fit, fit_moments

__all__ = [
    "Diagnostics",
    "GammaPoisson",
    "Intensities",
    "as_data",
    "component_columns",
    "estimate_log_likelihood",
    "fit",
    "fit_moments",
    "log_likelihood",
    "num_parameters",
    "permute",
    "population_moments",
    "posterior",
    "posterior_intensities",
    "refine",
    "sample",
]
