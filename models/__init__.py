"""Latent-variable models: the third layer, one module a model, all with the same verbs.

`sample`, `population_moments`, `fit`, `log_likelihood`, `posterior`, `refine`, and a NamedTuple of parameters.
"""

from latensor.models import naive_bayes

__all__ = ["naive_bayes"]
