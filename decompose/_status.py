"""How a computation ended: the one list of outcomes that all of latensor reports."""

from enum import EnumType, IntEnum
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class _OneAtATime(EnumType):
    """The type of `Status`: says what to do with a batch of statuses, or with a traced one."""

    def __call__(cls, value: Any, *args: Any, **keywords: Any) -> Any:
        if getattr(value, "ndim", 0):
            raise ValueError(
                f"status: expected one status; got an array of shape {value.shape}: use "
                "[Status(int(one)).name for one in status.ravel()], or compare, status == Status.CONVERGED"
            )
        if isinstance(value, jax.core.Tracer):
            raise ValueError("status: expected a concrete one; got a traced one: compare, status == Status.CONVERGED")
        return super().__call__(value, *args, **keywords)


class Status(IntEnum, metaclass=_OneAtATime):
    """How a computation ended. Larger values are worse, so the worst of several statuses is their maximum.

    Traced code returns the value as an int32 array, one per lane under `vmap`. On the host,
    `Status(int(result.status))` is the member, and its `message` says what happened and what to do. Returned numbers
    are finite unless the status is `NON_FINITE`. The status of a model's `fit` is about the estimate that is returned,
    and about what to do next; how its stages ended is in the diagnostics:

    | status | the estimate | next step |
    | --- | --- | --- |
    | `CONVERGED` | can be used | use it; `refine` it where a likelihood counts |
    | `MAX_ITERS` | is close to what was sought | raise the limit |
    | `BOUNDARY` | has a parameter at the end of its range | `refine` it, or change what is fixed |
    | `POOR_FIT` | makes the data no likelier than one component | `refine` it; if that does not help, another model |
    | `DEGENERATE` | has two components that are one, or one that is empty | ask for fewer |
    | `RANK_DEFICIENT` | has a direction that half of the rows do not find again | ask for fewer, or bring more rows |
    | `UNOBSERVED` | has parameters that nothing was observed of | leave these variables out |
    | `NON_FINITE` | is not there | look for NaN in the input |

    `CONVERGED` does not prove that the model is right.
    """

    CONVERGED = 0
    MAX_ITERS = 1
    BOUNDARY = 2
    POOR_FIT = 3
    DEGENERATE = 4
    RANK_DEFICIENT = 5
    UNOBSERVED = 6
    NON_FINITE = 7

    @property
    def message(self) -> str:
        """A sentence that says what happened and what to do."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.CONVERGED: "the tolerance was met",
    Status.MAX_ITERS: (
        "the iteration limit was reached before the tolerance was met; the best iterate is returned: "
        "go on with refine, or raise the limit where the function takes one, or the tolerance"
    ),
    Status.BOUNDARY: (
        "a parameter is at the end of its range. After fit: a variance or a weight came out negative, and was moved, "
        "or the concentration is at the end of its grid; refine the estimate, or use more data or fewer components. "
        "After refine: a component has closed in on a few points or a plane, where the likelihood has no bound; use "
        "fewer components or a simpler covariance"
    ),
    Status.POOR_FIT: (
        "the estimate does not make the data clearly likelier than a single component does: refine it, and compare its "
        "log-likelihood with that of one component again; if it is still no better, use fewer components or another "
        "model, or transform the data"
    ),
    Status.DEGENERATE: (
        "two components coincide or a component vanished: the data do not tell them apart, and the components are "
        "arbitrary; ask for fewer components, or use more data or more restarts"
    ),
    Status.RANK_DEFICIENT: (
        "the second moment does not have the requested rank: its k-th direction is not clear of the noise; ask for "
        "fewer components or use more data"
    ),
    Status.UNOBSERVED: (
        "a variable or dimension is never observed, or two of them never together, so their parameters are arbitrary; "
        "leave one out or use more data"
    ),
    Status.NON_FINITE: (
        "the input, or a quantity computed from it, is NaN or infinite; check the input for NaN and for values near "
        "the ends of the floating-point range"
    ),
}


def worst(*statuses: Int[Array, ""] | Status) -> Int[Array, ""]:
    """Return the worst of several statuses."""
    result = jnp.asarray(Status.CONVERGED, jnp.int32)
    for status in statuses:
        result = jnp.maximum(result, jnp.asarray(status, jnp.int32))
    return result


def status_if(condition: Bool[Array, ""], status: Status) -> Int[Array, ""]:
    """Return `status` where the condition holds, else `CONVERGED`."""
    return jnp.where(condition, jnp.int32(status), jnp.int32(Status.CONVERGED))


def finite_status(*trees: Any) -> Int[Array, ""]:
    """Return `NON_FINITE` where any number in the trees is NaN or infinite, else `CONVERGED`."""
    finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(trees)])
    return status_if(~jnp.all(finite), Status.NON_FINITE)
