"""The mixed-membership likelihood by importance sampling."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Num

from latensor.models._importance import LogLikelihood, average_ratios
from latensor.models._membership import MixedMembership, entry_likelihoods, floats_per_row, log_normalizer
from latensor.moments import Variables, map_over_rows

# The variational posterior is too narrow, and knows one of several modes. Draws come in turn from copies of it that
# count the entries as these shares of what they are, down to the prior, and are weighed against the mixture of all.
_SHARES = (1.0, 0.5, 0.2, 0.05, 0.0)


@partial(jax.jit, static_argnames=("variables", "num_samples"))
def importance_sample(
    key: Array,
    params: MixedMembership,
    x: Num[Array, "n p"],
    mask: Bool[Array, "n p"] | None,
    variables: Variables,
    gamma: Float[Array, "n k"],
    num_samples: int,
) -> LogLikelihood:
    """Estimate each row's `log ∫ Dirichlet(g | α) Π_j Σ_h g_h p(x_j | h) dg` from draws around `Dirichlet(γ)`."""
    dtype = params.tables.dtype
    alpha = params.concentration
    shares = jnp.asarray(_SHARES, dtype)

    def block(x: Array, mask: Array | None, gamma: Array, row: Array) -> LogLikelihood:
        entries = entry_likelihoods(params, x, mask, variables)
        proposals = alpha[None, None, :] + shares[:, None, None] * (gamma - alpha[None, :])[None, :, :]
        normalizers = log_normalizer(proposals)

        def draw(_: None, draw_of: tuple[Array, Array]) -> tuple[None, Array]:
            key, turn = draw_of
            # In logarithms throughout: with a small concentration most memberships are below the smallest number.
            log_value = jax.random.loggamma(key, proposals[turn], dtype=dtype)
            log_value = log_value - jax.nn.logsumexp(log_value, axis=1, keepdims=True)
            mixed = jnp.einsum("njk,nk->nj", entries.likelihoods, jnp.exp(log_value), precision="highest")
            # Every density has the factor `Π_h g_h^(α_h − 1)`, which cancels.
            evidence = jnp.sum((gamma - alpha[None, :]) * log_value, axis=1)
            densities = normalizers + shares[:, None] * evidence[None, :]
            proposal = jax.nn.logsumexp(densities, axis=0) - math.log(len(_SHARES))
            return None, jnp.sum(jnp.log(mixed), axis=1) + log_normalizer(alpha) - proposal

        keys = jax.random.split(jax.random.fold_in(key, row[0]), num_samples)
        _, ratios = lax.scan(draw, None, (keys, jnp.arange(num_samples) % len(_SHARES)))
        found = average_ratios(ratios)
        return found._replace(value=found.value + entries.log_scale)

    rows = jnp.arange(x.shape[0], dtype=jnp.int32)
    return map_over_rows(block, (x, mask, gamma, rows), floats_per_row=floats_per_row(params, variables))
