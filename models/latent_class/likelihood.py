"""The likelihood of samples under latent classes, and the posterior of their classes."""

import jax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from latensor.models.latent_class.data import check_pair
from latensor.models.latent_class.density import log_joint
from latensor.models.latent_class.params import LatentClass
from latensor.moments import Table, Variables


def log_likelihood(
    params: LatentClass,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    variables: Variables | None = None,
    key: Array | None = None,
) -> Float[Array, " n"]:
    """Return the log-probability of each sample's observed entries.

    Args:
      params: the model.
      x: samples as for `fit`.
      mask: `(n, p)` bool, True where observed.
      variables: what the columns are; as for `fit`.
      key: ignored, since the likelihood is exact.

    Returns:
      `(n,)`. Probabilities of zero count as the smallest number, so that nothing is infinite.

    """
    del key
    return _log_likelihood(*check_pair(params, x, mask, variables))


@jax.jit
def _log_likelihood(params: LatentClass, table: Table) -> Float[Array, " n"]:
    return jax.nn.logsumexp(log_joint(params, table), axis=1)


def posterior(
    params: LatentClass,
    x: Table | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    variables: Variables | None = None,
) -> Float[Array, "n k"]:
    """Return the probability of each class given each sample's observed entries. Arguments as for `log_likelihood`."""
    return _posterior(*check_pair(params, x, mask, variables))


@jax.jit
def _posterior(params: LatentClass, table: Table) -> Float[Array, "n k"]:
    return jax.nn.softmax(log_joint(params, table), axis=1)
