"""Latent-variable models: the third layer, one module a model, all with the same verbs.

`sample`, `population_moments`, `fit`, `log_likelihood`, `posterior`, `refine`, and a NamedTuple of parameters.
"""

from latensor.models import gamma_poisson, gaussian_mixture, hidden_markov, mixed_membership, naive_bayes
from latensor.models._partial import DependentMissingnessWarning, Dimensions

__all__ = [
    "DependentMissingnessWarning",
    "Dimensions",
    "gamma_poisson",
    "gaussian_mixture",
    "hidden_markov",
    "mixed_membership",
    "naive_bayes",
]
