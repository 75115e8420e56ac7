"""The likelihood of samples, estimated by importance sampling, and the posterior of their memberships."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.base import check_integer, check_key, matmul
from latensor.models.em import em_limits
from latensor.models.importance import (
    Draw,
    draw_tents,
    fit_tents,
    importance_sample,
    mixture_log_density,
    tent_log_densities,
)
from latensor.models.mixed_membership.data import check_pair
from latensor.models.mixed_membership.inference import (
    entry_likelihoods,
    floats_per_row,
    infer_memberships,
    log_normalizer,
    mix_entries,
)
from latensor.models.mixed_membership.params import MixedMembership
from latensor.models.results import LogLikelihood
from latensor.moments import Table, Variables

# The variational posterior is too narrow, and knows one of several modes. Draws come in turn from copies of it that
# count the entries as these shares of what they are, down to the prior.
_SHARES = (1.0, 0.5, 0.2, 0.05, 0.0)
# How well the variational posterior is known that draws come from.
_TOL, _MAX_ITERS = 1e-3, 100


class Memberships(NamedTuple):
    """The variational posterior of each sample's membership: a Dirichlet distribution, and its mean."""

    mean: Float[Array, "n k"]
    concentration: Float[Array, "n k"]


def log_likelihood(
    params: MixedMembership,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    variables: Variables | None = None,
    key: Array | None = None,
    num_samples: int = 200,
) -> Float[Array, " n"]:
    """Return an estimate of each sample's log-probability, that of its observed entries.

    Memberships are drawn from widened copies of the variational posterior and from the prior, and weighed against their
    mixture. The estimate of the probability is unbiased, its logarithm low by about half the squared standard error;
    `estimate_log_likelihood` also returns that.

    Args:
      params: the model.
      x: samples as for `fit`.
      mask: `(n, p)` bool, True where observed.
      variables: what the columns are; as for `fit`.
      key: a random key; required, since the likelihood is estimated.
      num_samples: draws per sample.

    """
    return estimate_log_likelihood(key, params, x, mask=mask, variables=variables, num_samples=num_samples).value


def estimate_log_likelihood(
    key: Array | None,
    params: MixedMembership,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    variables: Variables | None = None,
    num_samples: int = 200,
) -> LogLikelihood:
    """Return an estimate of each sample's log-probability and its standard error; see `log_likelihood`."""
    key = check_key(key)
    params, table = check_pair(params, x, mask, variables)
    return sample_likelihoods(key, params, table, check_integer("num_samples", num_samples, 2))


@partial(jax.jit, static_argnames="num_samples")
def sample_likelihoods(key: Array, params: MixedMembership, table: Table, num_samples: int) -> LogLikelihood:
    """Estimate each row's `log ∫ Dirichlet(g | α) Π_j Σ_h g_h p(x_j | h) dg`, from draws around its `Dirichlet(γ)`."""
    dtype = params.tables.dtype
    gamma = infer_memberships(params, table, *em_limits(_TOL, _MAX_ITERS, dtype))
    return likelihoods_around(key, params, table, gamma, num_samples)


def likelihoods_around(
    key: Array, params: MixedMembership, table: Table, gamma: Float[Array, "n k"], num_samples: int
) -> LogLikelihood:
    """Estimate each row's log-probability from draws around a given `Dirichlet(γ)`."""
    dtype, alpha = params.tables.dtype, params.concentration[:, None]
    shares = jnp.asarray(_SHARES, dtype)[:, None, None]
    rest = _rest(alpha)

    def prepare(rows: Table, gamma: Array) -> Draw:
        entries = entry_likelihoods(params, rows)
        proposals = alpha[None] + shares * (gamma.T - alpha)[None]
        tents = fit_tents(proposals[:, :-1], _rest(proposals))
        ones = jnp.ones(table.num_dimensions, dtype)

        def draw(key: Array, turn: Array) -> Float[Array, " n"]:
            # Membership by breaking a stick: `g_1 = v_1`, `g_2 = (1 − v_1) v_2`, …, with independent Beta variables
            # `v_h`. In logarithms: with a small concentration most memberships are below the smallest number.
            odds = draw_tents(key, jax.tree.map(lambda part: part[turn], tents))
            broken, left = -jax.nn.softplus(-odds), -jax.nn.softplus(odds)
            none = jnp.zeros_like(entries.log_scale)[None]
            log_value = jnp.concatenate([broken, none]) + jnp.cumsum(jnp.concatenate([none, left]), axis=0)
            mixed = mix_entries(entries, jnp.exp(log_value))
            # As a product: the loop that XLA makes of a sum along the last axis adds one number at a time.
            words = matmul(jnp.log(mixed), ones) + entries.log_scale
            prior = jnp.sum(alpha[:-1] * broken + rest * left, axis=0) + log_normalizer(params.concentration)
            return words + prior - mixture_log_density(jnp.sum(tent_log_densities(tents, odds[None]), axis=1))

        return draw

    return importance_sample(
        key,
        prepare,
        table,
        gamma,
        num_proposals=len(_SHARES),
        num_samples=num_samples,
        floats_per_row=floats_per_row(params, table),
    )


def _rest(concentration: Float[Array, "*s k n"]) -> Float[Array, "*s sticks n"]:
    """Return `Σ_(l>h) α_l` for all components `h` but the last."""
    return jnp.cumsum(concentration[..., ::-1, :], axis=-2)[..., -2::-1, :]


def posterior_memberships(
    params: MixedMembership,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    variables: Variables | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 500,
) -> Memberships:
    """Return the distribution of each sample's membership given its observed variables, by variational updates.

    Args:
      params: the model.
      x: samples as for `fit`.
      mask: `(n, p)` bool, True where observed.
      variables: what the columns are; as for `fit`.
      tol: a sample has converged when an update moves no concentration by more than this share of their sum; default:
        10 machine epsilons in float32 and 1e-8 in float64.
      max_iters: limit on the updates.

    """
    params, table = check_pair(params, x, mask, variables)
    return _memberships(params, table, *em_limits(tol, max_iters, params.tables.dtype))


@jax.jit
def _memberships(params: MixedMembership, table: Table, tol: Array, max_iters: Array) -> Memberships:
    gamma = infer_memberships(params, table, tol, max_iters)
    return Memberships(gamma / jnp.sum(gamma, axis=1, keepdims=True), gamma)


def posterior(
    params: MixedMembership,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    variables: Variables | None = None,
    tol: float | Array | None = None,
    max_iters: int | Array = 500,
) -> Float[Array, "n k"]:
    """Return each sample's expected membership given its observed variables: rows sum to one.

    Arguments as for `posterior_memberships`.
    """
    return posterior_memberships(params, x, mask=mask, variables=variables, tol=tol, max_iters=max_iters).mean
