"""The hidden Markov model: a chain of hidden states, each seen through one observation.

    h₁ ~ π,   h_{t+1} | h_t = i ~ T[i],        π (k,), T (k, k), rows sum to one
    x_t | h_t = j ~ O[:, j],                   O (d, k), symbols: columns sum to one
    x_t | h_t = j ~ N(O[:, j], diag(V[:, j]))  real vectors: means O (d, k), variances V (d, k)

`fit` needs no starting point and one pass over the data. The moments of three neighbours give `O` by a tensor
decomposition, and their pairs give `T` by a convex likelihood. EM on the table of triples, whose cost does not grow
with the data, then removes most of the remaining error. `refine` is Baum–Welch from there.

Sequences are symbols, integers `(time,)`, one sequence or several end to end with their `lengths`; or
`(sequences, time)`, shorter ones padded at the end. For real vectors, add a trailing axis of dimensions. A `mask` marks
the observations that were made; the others are missing. `latensor.moments.Sequences` holds all of these.

Identifiable when the columns of `O` and the rows of `T` are linearly independent and all states occur.

    from latensor.models import hidden_markov

    fit = hidden_markov.fit(jax.random.key(0), x, 3)         # x (sequences, time), integers
    better = hidden_markov.refine(fit.params, x)             # Baum–Welch
    states = hidden_markov.posterior(better.params, x)       # (sequences, time, 3)
    path = hidden_markov.viterbi(better.params, x).states    # (sequences, time)

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods.
"""

from latensor.models.hidden_markov.data import as_data
from latensor.models.hidden_markov.em import refine
from latensor.models.hidden_markov.likelihood import log_likelihood, posterior
from latensor.models.hidden_markov.params import (
    HiddenMarkov,
    component_columns,
    num_parameters,
    permute,
    population_moments,
    sample,
)
from latensor.models.hidden_markov.spectral import Diagnostics, fit, fit_moments
from latensor.models.hidden_markov.viterbi import Path, viterbi

__all__ = [
    "Diagnostics",
    "HiddenMarkov",
    "Path",
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
    "viterbi",
]
