"""Whether the pair moment of two views has the rank that is asked for, judged in the other half of the samples."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from latensor.base import matmul
from latensor.models.evidence import draw_halves, last_singular_vectors
from latensor.moments import map_over_rows, sum_over_rows


def pair_rank(
    key: Array,
    features: Callable[..., tuple[Float[Array, "n r1"], Float[Array, "n r2"]]],
    weights: Float[Array, " n"],
    *rows: Any,
    rank: int,
    shrink: Float[Array, ""] | float = 0.0,
    floats_per_row: int,
) -> Float[Array, ""]:
    """Return `Evidence.rank` for the pair moment `E[a⊗b] − shrink E a⊗E b` of two views.

    Its k-th singular vectors `u, v` in each half of the samples are looked at in the other half: `uᵀMv` is a mean over
    samples there.

    Args:
      key: a random key, for the halves.
      features: maps blocks of rows to the two views.
      weights: of the rows.
      *rows: what `features` is given blocks of.
      rank: the number of components.
      shrink: how much of the product of the means is taken out.
      floats_per_row: see `sum_over_rows`.

    """
    halves = draw_halves(key, weights.shape[0])

    def moments(both: Any, *rows: Any) -> Any:
        a, b = features(*rows)
        pairs = [matmul((part[:, None] * a).T, b) for part in both]
        return jnp.stack(pairs), jnp.stack([matmul(part, a) for part in both]), jnp.stack([matmul(p, b) for p in both])

    raw, left, right = sum_over_rows(moments, halves.weights(weights), *rows, floats_per_row=floats_per_row)
    corrected = raw - shrink * left[:, :, None] * right[:, None, :]
    u, v = last_singular_vectors(corrected, rank)

    def forms(*rows: Any) -> Float[Array, "n 2"]:
        a, b = features(*rows)
        return matmul(a, u.T) * matmul(b, v.T)

    constants = shrink * jnp.sum(left[::-1] * u, axis=1) * jnp.sum(right[::-1] * v, axis=1)
    values = map_over_rows(forms, *rows, floats_per_row=floats_per_row) - constants[None, :]
    return halves.judge(values, weights)
