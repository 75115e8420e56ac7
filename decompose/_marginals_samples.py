"""The joint distribution of hidden variables from samples of their views, without a table: see `_marginals`."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from latensor.base import check_axes, einsum, freeze, matmul, name_bad_arguments
from latensor.decompose._composite import (
    Objective,
    attach_maximum,
    make_objective,
    maximize_by_em,
    maximize_by_newton,
    uniform,
)
from latensor.decompose._marginals import Marginals, certify, check_matrices, tolerance_of

# Rows that are summed at a time.
_BLOCK = 1024


def _sum_of_products(left: Float[Array, "n a"], right: Float[Array, "n b"]) -> Float[Array, "a b"]:
    """Return `leftᵀ right`, summed block by block.

    XLA on CPU adds the rows of small products up one by one: in float32 a hundred thousand of them cost two digits.
    """
    n = left.shape[0]
    whole = n - n % _BLOCK
    blocks = (part[:whole].reshape(-1, _BLOCK, part.shape[1]) for part in (left, right))
    return jnp.sum(einsum("cna,cnb->cab", *blocks), axis=0) + matmul(left[whole:].T, right[whole:])


def _spread(parts: tuple[Float[Array, "n _"], ...]) -> Float[Array, "n _"]:
    """Return the products of one entry of each part, for every row."""
    n = parts[0].shape[0]
    product = parts[0]
    for part in parts[1:]:
        product = (product[:, :, None] * part[:, None, :]).reshape(n, -1)
    return product


def _curvature(likelihoods: tuple[Array, ...], ratio: Float[Array, " n"]) -> Float[Array, "K K"]:
    rows = _spread(likelihoods)
    return _sum_of_products(ratio[:, None] * rows, rows)


def _objective(likelihoods: tuple[Array, ...], weights: Float[Array, " n"]) -> Objective:
    n, first = weights.shape[0], likelihoods[0]
    shape = tuple(part.shape[1] for part in likelihoods)

    def predict(table: Array) -> Array:
        fitted = matmul(first, table.reshape(table.shape[0], -1))
        for part in likelihoods[1:]:
            fitted = jnp.sum(part[:, :, None] * fitted.reshape(n, part.shape[1], -1), axis=1)
        return fitted.reshape(n)

    def adjoint(ratio: Array) -> Array:
        others = _spread(likelihoods[1:]) if len(likelihoods) > 1 else jnp.ones((n, 1), first.dtype)
        return _sum_of_products(ratio[:, None] * first, others).reshape(shape)

    return make_objective(predict, adjoint, weights, shape)


def _gradient(parts: tuple[tuple[Array, ...], Array], table: Array) -> Array:
    return _objective(*parts).multiplier(table)[0]


@name_bad_arguments(("accelerate", "newton"))
@partial(jax.jit, static_argnames=("accelerate", "newton"))
def composite_likelihood_em_samples(
    likelihoods: tuple[Float[Array, "n _"], ...],
    row_weights: Float[Array, " n"] | None = None,
    *,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = 1_000,
    accelerate: bool = True,
    newton: bool = False,
) -> Marginals:
    """Maximize the composite likelihood of samples: `composite_likelihood_em` without a table.

    Args:
      likelihoods: `(n, k_v)` per mode, `P(x_v | h_v)` of each sample's view for each state: rows of `O_v` for
        categorical views, densities for real ones. Rows may be scaled arbitrarily.
      row_weights: `(n,)`, how often each sample was seen; default: once. They need not sum to one.
      tol: as for `composite_likelihood_em`.
      max_iters: as for `composite_likelihood_em`.
      accelerate: extrapolate wherever that raises the likelihood. False: plain EM.
      newton: take Newton steps instead, `O(n K²)` each for `K` joint states: a dozen, where EM takes hundreds.

    Returns:
      `Marginals`; its `log_likelihood` is that of the likelihoods as given.

    Cost: `O(n Π k)` per evaluation.

    """
    likelihoods = check_matrices("likelihoods", likelihoods, "n states")
    rows = {part.shape[0] for part in likelihoods}
    if len(rows) != 1:
        raise ValueError(f"likelihoods: expected one matrix (n, states) per mode, all with n rows; got {rows}")
    n, first = rows.pop(), likelihoods[0]
    shape = tuple(part.shape[1] for part in likelihoods)
    weights = jnp.ones(n, first.dtype) if row_weights is None else check_axes("row_weights", row_weights, "n")
    if weights.shape != (n,):
        raise ValueError(f"row_weights: expected one per row, shape ({n},); got shape {weights.shape}")
    weights = weights.astype(first.dtype)

    given = (likelihoods, weights)
    likelihoods, weights = freeze(given)
    objective = _objective(likelihoods, weights)
    tol, begin = tolerance_of(tol, weights.dtype), uniform(shape, weights.dtype)
    if newton:
        best = maximize_by_newton(
            objective, partial(_curvature, likelihoods), begin, tol, jnp.asarray(max_iters, jnp.int32)
        )
    else:
        best = maximize_by_em(objective, begin, tol, max_iters, accelerate)
    marginals = certify(objective, best, tol)
    return marginals._replace(table=attach_maximum(_gradient, marginals.table, given))
