"""The derivative of an estimate by the weight of every row, in one of two ways.

*Forward*, where the model says through which few moments `φ` the rows enter (`reduce_fit`): row i moves the estimate by
`w_i J φ_i`, with `J` the derivative of the small function that follows the moments. It costs as many derivatives of
that function as there are moments, none of which depends on n, and products of `(n, moments)` matrices.

*Backward* otherwise: one pass back through the whole estimate per parameter.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from latensor.base import freeze, matmul
from latensor.models.results import ReducedFit
from latensor.moments import map_over_rows, sum_over_rows

# The numbers of all temporaries of a batch of derivatives: beyond, they leave the cache of common CPUs.
_NUMBERS_PER_BATCH = 1 << 22


class RowDerivative:
    """An estimate, and its derivative by the multiplier of the weight of every row."""

    estimate: Any

    def influence(self) -> Float[Array, "n p"]:
        """Return the derivatives, a row each."""
        raise NotImplementedError

    def covariance(self) -> Float[Array, "p p"]:
        """Return the sum of their squares."""
        rows = self.influence()
        return matmul(rows.T, rows)

    def variances(self) -> Float[Array, " p"]:
        """Return its diagonal."""
        return jnp.sum(self.influence() ** 2, axis=0)


class Backward(RowDerivative):
    """One pass back per parameter; `data_size` is the number of numbers that one of them reads."""

    def __init__(self, estimate: Callable[[Array], Any], multipliers: Float[Array, " n"], data_size: int):
        again, self._pull = jax.vjp(estimate, multipliers)
        self.estimate, self._size = freeze(again), data_size

    def influence(self) -> Float[Array, "n p"]:
        """Return the derivatives, a row each."""
        flat, unravel = ravel_pytree(self.estimate)
        batch = max(1, min(flat.size, _NUMBERS_PER_BATCH // self._size))
        identity = jnp.eye(flat.size, dtype=flat.dtype)
        return lax.map(lambda row: self._pull(unravel(row))[0], identity, batch_size=batch).T


class Forward(RowDerivative):
    """Moments of rows times the derivative by moments."""

    def __init__(self, reduced: ReducedFit, finish: Callable[[Any], Any]):
        flat, unravel = ravel_pytree(reduced.unchanged)

        def estimate(shift: Array) -> tuple[Array, Any]:
            params = finish(reduced.estimate(unravel(shift)))
            return ravel_pytree(params)[0], params

        _, push, again = jax.linearize(estimate, flat, has_aux=True)
        # Second moments are the largest temporary.
        batch = max(1, min(flat.size, _NUMBERS_PER_BATCH // reduced.data.mean.size**2))
        self._jacobian = lax.map(push, jnp.eye(flat.size, dtype=flat.dtype), batch_size=batch)
        self.estimate, self._reduced, self._num_moments = freeze(again), reduced, flat.size

    def _moments(self, rows: Any, weights: Float[Array, " b"]) -> Float[Array, "b m"]:
        each = jax.tree.leaves(self._reduced.describe(rows))
        return weights[:, None] * jnp.concatenate([leaf.reshape(weights.shape[0], -1) for leaf in each], axis=1)

    def influence(self) -> Float[Array, "n p"]:
        """Return the derivatives, a row each."""
        table, weights = self._reduced.data.table, self._reduced.data.weights
        return map_over_rows(
            lambda rows, weights: matmul(self._moments(rows, weights), self._jacobian),
            table,
            weights,
            floats_per_row=2 * self._num_moments,
        )

    def _half(self) -> tuple[Float[Array, "m p"], Float[Array, "m p"]]:
        """Return `Cov[φ] J` and `J`, both with moments in rows."""

        def block_sum(rows: Any, weights: Array) -> Array:
            moments = self._moments(rows, weights)
            return matmul(moments.T, moments)

        table, weights = self._reduced.data.table, self._reduced.data.weights
        gram = sum_over_rows(block_sum, table, weights, floats_per_row=2 * self._num_moments)
        return matmul(gram, self._jacobian), self._jacobian

    def covariance(self) -> Float[Array, "p p"]:
        """Return the sum of squares, by that of the moments."""
        half, jacobian = self._half()
        return matmul(jacobian.T, half)

    def variances(self) -> Float[Array, " p"]:
        """Return its diagonal."""
        half, jacobian = self._half()
        return jnp.sum(jacobian * half, axis=0)
