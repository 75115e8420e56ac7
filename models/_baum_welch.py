"""Baum–Welch: EM on the likelihood of whole sequences, extrapolated and monotone."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from latensor.decompose import Evaluation, Status, accelerated_em, status_if, worst
from latensor.models._chain import forward, forward_backward
from latensor.models._markov import Fit, HiddenMarkov, chain_of, feasible, reestimate
from latensor.moments import flatten_sequences


@partial(jax.jit, static_argnames=("batched", "block_length", "accelerate"))
def baum_welch(
    params: HiddenMarkov,
    x: Array,
    lengths: Array | None,
    row_weights: Array | None,
    tol: Array,
    max_iters: Array,
    batched: bool,
    block_length: int | None,
    accelerate: bool,
) -> Fit:
    """Run EM on whole sequences from `params`; see `hidden_markov.refine`."""
    sequences = flatten_sequences(x, lengths, batched)
    dtype = params.emission.dtype
    weights = sequences.valid.astype(dtype)
    if row_weights is not None:
        weights = weights * row_weights.astype(dtype)[sequences.owner]
    number = jnp.maximum(jnp.sum(weights), 1)
    chain, logs = chain_of(params, sequences)
    # Relative to where it begins: a sum over a million steps has no digits left in float32 for what EM gains.
    usual = jnp.sum(weights * (forward(chain, block_length) + logs)) / number

    def step(params: HiddenMarkov) -> Evaluation:
        chain, logs = chain_of(params, sequences)
        smoothed = forward_backward(chain, weights, block_length)
        states = smoothed.posterior * weights[:, None]
        first = jnp.sum(jnp.where(sequences.first[:, None], states, 0), axis=0)
        updated = reestimate(params, sequences.x, states, first, smoothed.pairs)
        value = jnp.sum(weights * (smoothed.log_scales + logs - usual))
        return Evaluation(updated, value, jnp.asarray(False))

    found = accelerated_em(step, params, feasible, tol * jnp.abs(usual) * number, max_iters, accelerate=accelerate)
    total = usual * number + found.objective
    k = params.initial.shape[0]
    zero = jnp.zeros((), dtype)
    return Fit(
        params=found.params,
        status=worst(
            status_if(~(found.gain <= tol * jnp.abs(usual) * number), Status.MAX_ITERS),
            status_if(~jnp.isfinite(total), Status.NON_FINITE),
        ),
        num_iters=found.num_iters,
        residual=found.gain / jnp.maximum(jnp.abs(total), 1),
        gap=zero,
        log_likelihood=total,
        simplex_distance=jnp.zeros(k, dtype),
        singular_values=jnp.zeros(k, dtype),
        noise=zero,
        num_dropped=jnp.int32(0),
    )
