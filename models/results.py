"""What the verbs of all models return."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int, Num

# Standard errors above zero that the k-th direction needs, and the gain: noise gets there in one of 160 data sets.
# Set by synthetic corpora. On real data a direction can be worth having and miss it: house-votes-84, k = 4, has 2.497.
CLEAR = 2.5


class Sample(NamedTuple):
    """Draws from a model, and the hidden variables behind them."""

    x: Num[Array, "n ..."]
    hidden: Num[Array, "n ..."]


class Fit(NamedTuple):
    """An estimate by the method of moments. Its components are in decreasing order of how often they occur."""

    params: Any
    status: Int[Array, ""]
    """What to think of `params`: see `latensor.decompose.Status`."""
    num_iters: Int[Array, ""]
    """Iterations of the decomposition, or of EM on moments after it."""
    residual: Float[Array, ""]
    """The part of the third moment that the decomposition leaves unexplained (relative norm), before any polishing."""
    diagnostics: Any
    """The model's own: the spectrum with its noise, how the stages ended, and what else there is to know."""


class ReducedFit(NamedTuple):
    """A fit to a table as a function of few moments, for its derivatives: see `latensor.models.reduced`."""

    estimate: Callable[[Any], Any]
    """Maps a change of the moments to parameters; right to first order."""
    unchanged: Any
    """No change: zeros."""
    describe: Callable[[Any], Any]
    """Maps a block of rows to what each of them changes, per unit of its weight."""
    data: Any
    """The table with its `weights`, which sum to one."""


class Refined(NamedTuple):
    """Parameters after EM on the data."""

    params: Any
    status: Int[Array, ""]
    """How EM ended: see `latensor.decompose.Status`."""
    num_iters: Int[Array, ""]
    """EM steps."""
    gain: Float[Array, ""]
    """Rise of `log_likelihood` in the last step, relative to its size."""
    log_likelihood: Float[Array, ""]
    """Of `params`: the weighted mean over rows, or over sequences. Where the model has no closed form for it, this is
    the evidence lower bound, with the posteriors that EM has come to; a new call starts those anew, and may begin
    lower."""
    history: Float[Array, " steps"] | None = None
    """With `history=True`, `log_likelihood` at the start and after each step, in an array of `max_iters + 1`; entries
    beyond `num_iters` repeat the last."""


class Spectrum(NamedTuple):
    """What the second moment says about the number of components."""

    values: Float[Array, " k"]
    """The k largest eigenvalues or singular values, in decreasing order."""
    noise: Float[Array, ""]
    """The size that such values have from sampling noise alone; the last of `values` should stand well above it."""


class LogLikelihood(NamedTuple):
    """An estimate of each row's log-probability, and its standard error."""

    value: Float[Array, " n"]
    standard_error: Float[Array, " n"]
