"""Latent classes: a table whose columns are independent given a hidden class.

    h_i ~ Categorical(π),                    the class of sample i
    x_ij | h_i = h ~ Categorical(Θ_j[:,h])   a category of column j; or Normal(μ_jh, σ_jh²) for a real column

A sample is a person with answers to a survey, a patient with findings, some of which may be missing. With real columns
only it is latent profile analysis, a mixture of Gaussians with diagonal covariances.

`fit` deals the columns into three groups, which are independent views of the class, decomposes their pair and triple
moments, and finds every column by regression on the views; of several groupings the likeliest estimate is kept.
`refine` is EM from there.

Identifiable when each of three groups tells the classes apart: columns with `d_j` categories together reach rank
`1 + Σ (d_j − 1)`, where a real column counts as one with two categories.

    from latensor.models import latent_class

    fit = latent_class.fit(jax.random.key(0), codes, 4)               # codes (samples, columns)
    better = latent_class.refine(fit.params, codes)
    classes = latent_class.posterior(better.params, codes)            # (samples, 4)

Where columns are real, or some categories do not occur, pass `variables=Variables(kinds, sizes)` to every verb.

Source: Lazarsfeld, Henry (1968), Latent structure analysis; views as in Anandkumar, Ge, Hsu, Kakade, Telgarsky (2014),
Tensor decompositions for learning latent variable models, §3.3.
"""

from latensor.models.columns import as_data
from latensor.models.latent_class.em import refine
from latensor.models.latent_class.likelihood import log_likelihood, posterior
from latensor.models.latent_class.params import (
    LatentClass,
    component_columns,
    num_parameters,
    permute,
    population_moments,
    sample,
)
from latensor.models.latent_class.spectral import Diagnostics, fit, fit_moments

__all__ = [
    "Diagnostics",
    "LatentClass",
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
