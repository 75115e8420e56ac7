"""Latent-variable models: the third layer, one package per model, all with the same verbs.

`fit` (method of moments) and `refine` (EM) learn a model; `posterior` and `log_likelihood` apply it; `sample`,
`population_moments`, `fit_moments` and `permute` are for experiments; `num_parameters` counts what is free. The same
verb has the same signature and the same type of result in every model.
"""

from latensor.models import (
    crowd,
    gamma_poisson,
    gaussian_mixture,
    graphical,
    hidden_markov,
    latent_class,
    mixed_membership,
    naive_bayes,
)
from latensor.models.partial import DependentMissingnessWarning
from latensor.models.results import Fit, LogLikelihood, Refined, Sample, Spectrum

__all__ = [
    "DependentMissingnessWarning",
    "Fit",
    "LogLikelihood",
    "Refined",
    "Sample",
    "Spectrum",
    "crowd",
    "gamma_poisson",
    "gaussian_mixture",
    "graphical",
    "hidden_markov",
    "latent_class",
    "mixed_membership",
    "naive_bayes",
]
