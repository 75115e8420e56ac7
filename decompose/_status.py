"""How a computation ended: the one list of outcomes that all of latensor reports."""

from enum import IntEnum

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Status(IntEnum):
    """How a computation ended. A larger value is a worse end, so the worst of several is their maximum.

    Traced code returns the value as an int32 array, one for every lane under `vmap`. On the host,
    `Status(int(result.status))` is the member and `.message` says what it means. Whatever the status, returned numbers
    are finite unless the status is `NON_FINITE`. `CONVERGED` says that the computation did what it should, not that the
    model is right: noise alone can look like one component too many.
    """

    CONVERGED = 0
    MAX_ITERS = 1
    DEGENERATE = 2
    RANK_DEFICIENT = 3
    NON_FINITE = 4

    @property
    def message(self) -> str:
        """A sentence for people."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.CONVERGED: "the tolerance was met",
    Status.MAX_ITERS: "the iteration limit came before the tolerance was met; the last iterate is returned",
    Status.DEGENERATE: (
        "the problem does not determine its components: two of them coincide, or an eigenvalue that should be positive "
        "or apart from the others is not; the components are arbitrary"
    ),
    Status.RANK_DEFICIENT: (
        "the second moment does not have the rank asked for: its k-th eigenvalue is not clear of the noise; "
        "ask for fewer components or bring more data"
    ),
    Status.NON_FINITE: "the input, or a quantity computed from it, is NaN or infinite",
}


def worst(*statuses: Int[Array, ""] | Status) -> Int[Array, ""]:
    """Return the worst of several statuses."""
    result = jnp.asarray(Status.CONVERGED, jnp.int32)
    for status in statuses:
        result = jnp.maximum(result, jnp.asarray(status, jnp.int32))
    return result


def check_rank(rank: int, size: int) -> None:
    """Raise unless `rank` is between 1 and `size`."""
    if not 1 <= rank <= size:
        raise ValueError(f"rank: expected an integer from 1 to {size} (the dimension); got {rank}")


def status_if(condition: Bool[Array, ""], status: Status) -> Int[Array, ""]:
    """Return `status` where the condition holds, else `CONVERGED`."""
    return jnp.where(condition, jnp.int32(status), jnp.int32(Status.CONVERGED))
