"""Variational inference for models in which every row has memberships or intensities of its own.

Each row has a distribution `q` with parameters `(k,)`, updated in closed form while the model stays as it is; EM
alternates a few such updates with an update of the model. Neither lowers the evidence bound.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.decompose.internal import Evaluation, expectation_maximization
from latensor.models.em import as_refined, better_start
from latensor.models.results import Refined

Params = TypeVar("Params")
Rows = TypeVar("Rows")
Sums = TypeVar("Sums")
LocalStep = Callable[[Params, Rows | None], tuple[Rows, Float[Array, ""]]]

# Updates of a row's distribution between two updates of the model: one is enough for EM to rise, more rise faster.
LOCAL_UPDATES = 3


def iterate_rows(
    update: Callable[[Float[Array, "n k"]], Float[Array, "n k"]],
    start: Float[Array, "n k"],
    tol: Float[Array, ""],
    max_iters: Int[Array, ""] | int,
) -> Float[Array, "n k"]:
    """Repeat an update of a block of rows until no entry moves by more than `tol` of the sum of its row."""

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return state[1] & (state[2] < max_iters)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rows = update(state[0])
        change = jnp.abs(rows - state[0])
        # A row that is NaN does not move, and leaves the others of its block to finish.
        return rows, jnp.any(change > tol * jnp.sum(rows, axis=1, keepdims=True)), state[2] + 1

    return lax.while_loop(unfinished, step, (start, jnp.array(True), jnp.int32(0)))[0]


class _State(NamedTuple):
    params: Any
    rows: Any
    """The rows' distributions."""


def variational_em(
    local: LocalStep[Params, Rows],
    collect: Callable[[Params, Rows], Sums],
    update: Callable[[Params, Sums], Params],
    given: Params,
    blended: Params,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
) -> Refined:
    """Climb the mean evidence bound of a row from the better of two starts.

    Args:
      local: updates the rows' distributions (`None`: starts them) and returns them, an array `(n, k)` or a tree with
        one, with the mean bound.
      collect: sums over rows that an update of the model needs.
      update: the model that is best for those sums.
      given: parameters to start from.
      blended: others, without zeros.
      tol: relative gain at which to stop.
      max_iters: limit on the steps.

    """

    def begin(params: Params) -> tuple[_State, Array]:
        rows, bound = local(params, None)
        return _State(params, rows), bound

    def step(state: _State) -> Evaluation:
        rows, bound = local(state.params, state.rows)
        return Evaluation(_State(update(state.params, collect(state.params, rows)), rows), bound)

    start = better_start(begin, given, blended)
    result = expectation_maximization(step, start, tol=tol, max_iters=max_iters)
    return as_refined(result, result.params.params)
