"""A symmetric tensor of order three, stored as the matrix of its distinct pairs: half of the flops of the full one."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latensor.base import matmul, positive_or_one


class Packed(NamedTuple):
    """`matrix[i, (j, l)] = T[i, j, l] / scale` for `j ≤ l`."""

    matrix: Float[Array, "k pairs"]
    multiplicity: Float[Array, " pairs"]
    """Number of entries that each pair stands for: one on the diagonal, two elsewhere."""
    scale: Float[Array, ""]


def symmetric_part(tensor: Float[Array, "k k k"]) -> Float[Array, "k k k"]:
    """Return the average of a tensor over all orders of its modes."""
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    return sum((jnp.transpose(tensor, order) for order in orders), jnp.zeros_like(tensor)) / len(orders)


def pack(tensor: Float[Array, "k k k"]) -> Packed:
    """Pack the symmetric part of a tensor, divided by its largest entry so that its squares stay in range."""
    scale = positive_or_one(jnp.max(jnp.abs(tensor)))
    tensor = symmetric_part(tensor / scale)
    first, second = np.triu_indices(tensor.shape[0])
    multiplicity = jnp.asarray(np.where(first == second, 1.0, 2.0), tensor.dtype)
    return Packed(tensor[:, first, second], multiplicity, scale)


def squares(vectors: Float[Array, "k r"]) -> Float[Array, "pairs r"]:
    """Return the products `v_j v_l`, `j ≤ l`, of each column."""
    first, second = np.triu_indices(vectors.shape[0])
    return vectors[first] * vectors[second]


def image(packed: Packed, vectors: Float[Array, "k r"]) -> Float[Array, "k r"]:
    """Return `T(I,v,v)` for each column."""
    return matmul(packed.matrix * packed.multiplicity[None, :], squares(vectors))


def values_at(packed: Packed, vectors: Float[Array, "k r"]) -> Float[Array, " r"]:
    """Return `T(v,v,v)` for each column."""
    return jnp.sum(vectors * image(packed, vectors), axis=0)


def unexplained(packed: Packed, values: Float[Array, " rank"], vectors: Float[Array, "k rank"]) -> Float[Array, ""]:
    """Return `|T − Σ λ v⊗v⊗v| / |T|`."""
    left = packed.matrix - matmul(vectors * values[None, :], squares(vectors).T)

    def norm(matrix: Array) -> Array:
        return jnp.sqrt(jnp.sum(packed.multiplicity[None, :] * matrix**2))

    return norm(left) / positive_or_one(norm(packed.matrix))
