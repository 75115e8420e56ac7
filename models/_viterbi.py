"""The likeliest sequence of states."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.models._chain import Chain

# A state that cannot emit what was seen is on no path, unless all are such.
_IMPOSSIBLE = -1e6


@jax.jit
def viterbi_path(chain: Chain, valid: Bool[Array, " N"]) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
    """Return the likeliest states of all sequences, and what each step adds to the log-probability of its sequence.

    Forward, the best way into every state, and where it came from; then back along it. Logarithms of whole sequences
    would lose digits: the best score is taken off at every step.
    """
    steps = jnp.log(chain.transition)
    initial = jnp.log(chain.initial)
    k = initial.shape[0]

    def ahead(score: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array, Array]]:
        likelihood, first, valid = inputs
        ways = score[:, None] + steps
        source = jnp.argmax(ways, axis=0)
        arrive = jnp.where(first, initial, jnp.max(ways, axis=0))
        reached = arrive + jnp.where(likelihood > 0, jnp.log(jnp.where(likelihood > 0, likelihood, 1)), _IMPOSSIBLE)
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
