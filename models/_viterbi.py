"""The likeliest sequence of states."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.models._chain import Chain


@jax.jit
def viterbi_path(chain: Chain) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
    """Return the likeliest states of all sequences, and what each step adds to the log-probability of its sequence.

    Forward, the best way into every state, and where it came from; then back along it. Logarithms of whole sequences
    would lose digits: the best score is taken off at every step.
    """
    tiny = float(jnp.finfo(chain.likelihoods.dtype).tiny)
    steps = jnp.log(chain.transition)
    initial = jnp.log(chain.initial)
    k = initial.shape[0]

    def ahead(score: Array, inputs: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array, Array]]:
        likelihood, first = inputs
        ways = score[:, None] + steps
        source = jnp.argmax(ways, axis=0)
        arrive = jnp.where(first, initial, jnp.max(ways, axis=0))
        reached = arrive + jnp.log(jnp.maximum(likelihood, tiny))
        # A sequence that begins here leaves the best end of the one before.
        source = jnp.where(first, jnp.argmax(score), source)
        top = jnp.max(reached)
        return reached - top, (source, top, reached - top)

    start = jnp.zeros(k, chain.likelihoods.dtype)
    _, (sources, tops, scores) = lax.scan(ahead, start, (chain.likelihoods, chain.first))

    def back(state: Array, source: Array) -> tuple[Array, Array]:
        return source[state], state

    _, states = lax.scan(back, jnp.argmax(scores[-1]), sources, reverse=True)
    return states.astype(jnp.int32), tops
