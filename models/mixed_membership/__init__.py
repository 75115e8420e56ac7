"""Mixed membership (grade of membership, admixture, generalized Dirichlet latent variable model).

    g_i ~ Dirichlet(α),                      the membership of sample i in k components
    z_ij | g_i ~ Categorical(g_i),           every variable j of the sample draws a component of its own
    x_ij | z_ij = h ~ Categorical(Θ_j[:,h])  a category; or Normal(Θ_jh, σ_j²) for a real variable

A sample is a person with answers to a survey, a genome with alleles at its loci, a sequence with a letter at each
position. Mixtures are the limit of small `α`. The moments of three distinct variables, less what the Dirichlet adds,
are `Σ_h λ_h θ_jh⊗θ_sh⊗θ_th` with nonnegative `θ`. `fit` never forms the tensor of all variables: it factors many small
ones at once, which share anchor variables, and lines them up (PTPQP). `refine` is variational EM from there.

Identifiable when, in each of the three modes, the anchors' tables have rank `k`: since the columns of each variable's
block sum to one, variables of sizes `d_j` reach rank `1 + Σ (d_j − 1)`.

    from latensor.models import mixed_membership

    fit = mixed_membership.fit(jax.random.key(0), codes, 5, concentration=0.5)   # codes (samples, variables)
    better = mixed_membership.refine(fit.params, codes)
    memberships = mixed_membership.posterior(better.params, codes)               # (samples, 5)

Where columns are real, or some categories do not occur, pass `variables=Variables(kinds, sizes)` to every verb.

Source: Tan, Mukherjee (2017), Partitioned tensor factorizations for learning mixed membership models; Zhao, Engelhardt,
Mukherjee, Dunson (2016), Fast moment estimation for generalized latent Dirichlet models (MELD).
"""

from latensor.models.columns import as_data
from latensor.models.mixed_membership.arrange import Diagnostics
from latensor.models.mixed_membership.concentration import ConcentrationWarning
from latensor.models.mixed_membership.em import refine
from latensor.models.mixed_membership.likelihood import (
    Memberships,
    estimate_log_likelihood,
    log_likelihood,
    posterior,
    posterior_memberships,
)
from latensor.models.mixed_membership.params import (
    MixedMembership,
    component_columns,
    num_parameters,
    permute,
    population_moments,
    sample,
)
from latensor.models.mixed_membership.spectral import fit, fit_moments

__all__ = [
    "ConcentrationWarning",
    "Diagnostics",
    "Memberships",
    "MixedMembership",
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
    "posterior_memberships",
    "refine",
    "sample",
]
