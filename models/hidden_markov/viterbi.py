"""The likeliest sequence of states."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import positive_or_one
from latensor.models.hidden_markov.chain import Chain
from latensor.models.hidden_markov.data import check_pair
from latensor.models.hidden_markov.emissions import chain_of
from latensor.models.hidden_markov.likelihood import shape_as, sum_by_sequence
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.moments import Sequences
from latensor.moments.internal import flatten_sequences

# A state that cannot emit what was seen is on no path, unless all states are such.
_IMPOSSIBLE = -1e6


class Path(NamedTuple):
    """The likeliest states of each sequence."""

    states: Int[Array, "*time"]
    """One state per time step, observed or missing; −1 at padding."""
    log_probability: Float[Array, " sequences"]
    """`log P(x, states)` of each sequence."""


def viterbi(
    params: HiddenMarkov,
    x: Sequences | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
) -> Path:
    """Return the likeliest states of each sequence. Arguments as for `log_likelihood`."""
    return _viterbi(*check_pair(params, x, mask=mask, lengths=lengths))


@jax.jit
def _viterbi(params: HiddenMarkov, sequences: Sequences) -> Path:
    observations = flatten_sequences(sequences)
    chain, logs = chain_of(params, observations)
    states, steps = _likeliest_states(chain, observations.valid)
    return Path(
        shape_as(sequences, jnp.where(observations.valid, states, -1)),
        sum_by_sequence(steps + logs, sequences, observations),
    )


def _likeliest_states(chain: Chain, valid: Bool[Array, " N"]) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
    """Return the likeliest states of all sequences, and what each step adds to the log-probability of its sequence.

    Forward: the best way into every state, and where it came from. Then back along the best way. Logarithms of whole
    sequences would lose digits: the best score is subtracted at every step.
    """
    steps = jnp.log(chain.transition)
    initial = jnp.log(chain.initial)
    k = initial.shape[0]

    def ahead(score: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array, Array]]:
        likelihood, first, valid = inputs
        ways = score[:, None] + steps
        source = jnp.argmax(ways, axis=0)
        arrive = jnp.where(first, initial, jnp.max(ways, axis=0))
        reached = arrive + jnp.where(likelihood > 0, jnp.log(positive_or_one(likelihood)), _IMPOSSIBLE)
        # A sequence that begins here leaves the best end of the one before.
        source = jnp.where(first, jnp.argmax(score), source)
        top = jnp.max(reached)
        # Padding is no step: every state stays what it was.
        source, top = jnp.where(valid, source, jnp.arange(k)), jnp.where(valid, top, 0)
        score = jnp.where(valid, reached - top, score)
        return score, (source, top, score)

    start = jnp.zeros(k, chain.likelihoods.dtype)
    _, (sources, tops, scores) = lax.scan(ahead, start, (chain.likelihoods, chain.first, valid))

    def back(state: Array, source: Array) -> tuple[Array, Array]:
        return source[state], state

    _, states = lax.scan(back, jnp.argmax(scores[-1]), sources, reverse=True)
    return states.astype(jnp.int32), tops
