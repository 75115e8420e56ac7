"""The naive Bayes mixture of documents: one topic per document.

    h ~ Multinomial(π),        π (k,)
    x_1, …, x_L | h ~ b_h,     B = (b_1 … b_k) (d, k), columns sum to one

A document is the counts of its words `(d,)`, or the list of their ids. Two and three *different* words of a document
have moments `M₂ = B diag(π) Bᵀ` and `M₃ = Σ_h π_h b_h⊗b_h⊗b_h`, from which `fit` recovers `π` and `B`: globally, in a
few passes over the data, without a starting point. `refine` is EM from there.

Identifiable when the columns of `B` are linearly independent (so `k ≤ d`) and documents have three words or more.

    from latensor.models import naive_bayes

    fit = naive_bayes.fit(jax.random.key(0), counts, 5)            # counts (documents, words)
    better = naive_bayes.refine(fit.params, counts)
    topics = naive_bayes.posterior(better.params, counts)          # (documents, 5)
"""

from latensor.models.naive_bayes.em import refine
from latensor.models.naive_bayes.likelihood import as_data, log_likelihood, posterior
from latensor.models.naive_bayes.params import (
    NaiveBayes,
    component_columns,
    num_parameters,
    permute,
    population_moments,
    sample,
)
from latensor.models.naive_bayes.spectral import Diagnostics, fit, fit_moments

__all__ = [
    "Diagnostics",
    "NaiveBayes",
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
