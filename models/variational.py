"""Variational inference for models in which every row has memberships or intensities of its own.

Each row has a distribution `q` with parameters `a (k,)`, updated in closed form while the model stays as it is; EM
alternates a few such updates with an update of the model. Neither lowers the evidence bound.

In both models of this kind a row's entries `d`, of which there are `x_d`, are divided among the components by shares
`φ_dh ∝ L_dh exp(ψ(a_h))`, and `a_h ← c_h + Σ_d x_d φ_dh`. The derivative of that update is `S D`, with

    S = diag(Σ_d x_d φ_d) − Σ_d x_d φ_d φ_dᵀ,   D = diag(ψ'(a)),

so that Newton's step towards the fixed point is `D⁻¹ (D⁻¹ − S)⁻¹ (update − a)`: a few of them where updates take
hundreds. With `θ S` in place of `S` there is everything between the update (`θ = 0`) and Newton's step (`θ = 1`), and
since `D (update − a)` is the gradient of the bound, all of them lead uphill where `D⁻¹ − θ S` is positive definite.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.base import machine_epsilon
from latensor.decompose.internal import Evaluation, expectation_maximization
from latensor.models.em import as_refined, better_start
from latensor.models.results import Refined
from latensor.models.special import trigamma

Params = TypeVar("Params")

# Updates of a row's distribution between two updates of the model: one is enough for EM to rise, more rise faster.
LOCAL_UPDATES = 3
# Updates before Newton's steps begin, so that these end in the maximum that updates lead to.
_FIRST_UPDATES = 4
# The shares `θ` of `S` that are tried. The largest that leads uphill is taken; after a failure, at most the next one.
_SHARES = (1.0, 0.9, 0.6)
# A row ends with a Newton step of at most this many tolerances: what is left is then its square.
_LAST_STEP = 100
# Of looser tolerances that many would be a step whose bound has to be looked at.
_TIGHT = 1e-4
# Blocks of rows that `iterate_rows` is given are shorter than others by this factor: a block takes as many steps as its
# slowest row.
SHORTER_BLOCKS = 8
# With more components `S` costs more than the updates that it saves.
_MOST_COMPONENTS = 32
# No step shrinks a parameter by more than this factor.
LARGEST_SHRINKAGE = 10.0
# Differences of the bound below this many machine epsilons are rounding.
_ROUNDING = 10


class RowStep(NamedTuple):
    """An update of the distributions of a block of rows. Rows come last: what follows goes over all of them at once."""

    updated: Float[Array, "k n"]
    bound: Float[Array, " n"]
    """The evidence bound before the update, up to a constant."""
    spread: Float[Array, "k k n"] | None
    """`S`; `None` for plain updates."""


class _Climb(NamedTuple):
    rows: Float[Array, "k n"]
    """To be evaluated next; of finished rows the result."""
    fallback: Float[Array, "k n"]
    """The update of the best point so far, which cannot lower the bound."""
    is_newton: Bool[Array, " n"]
    """Whether `rows` may turn out to be worse."""
    caution: Int[Array, " n"]
    """The first of the shares `θ` that may be taken."""
    bound: Float[Array, " n"]
    """Of the best point so far."""
    unfinished: Bool[Array, " n"]
    num_iters: Int[Array, ""]


def allows_newton(num_components: int) -> bool:
    """Return whether `iterate_rows` can make use of `S`."""
    return num_components <= _MOST_COMPONENTS


def iterate_rows(
    evaluate: Callable[[Float[Array, "k n"]], RowStep],
    start: Float[Array, "k n"],
    tol: Float[Array, ""],
    max_iters: Int[Array, ""] | int,
) -> Float[Array, "k n"]:
    """Return a block of rows after so many steps that an update moves no entry by more than `tol` of its row's sum.

    Newton's steps, where they lead towards a maximum; a step that lowers the bound of its row is taken back, and the
    plain update taken. Finished rows stay as they are. Each step evaluates the update of all rows once.
    """
    slack = _ROUNDING * machine_epsilon(start.dtype)

    def unfinished(state: _Climb) -> Array:
        return jnp.any(state.unfinished) & (state.num_iters < max_iters)

    def step(state: _Climb) -> _Climb:
        at = evaluate(state.rows)
        lowest = state.bound - slack * jnp.maximum(jnp.abs(state.bound), 1)
        taken = ~state.is_newton | (at.bound >= lowest)
        limit = tol * jnp.sum(at.updated, axis=0)
        # A row that is NaN does not move, and leaves the others of its block to finish.
        moves = jnp.any(jnp.abs(at.updated - state.rows) > limit[None, :], axis=0)
        following, is_newton = at.updated, jnp.zeros_like(taken)
        bolder = jnp.where(state.is_newton, state.caution - 1, state.caution)
        caution = jnp.clip(jnp.where(taken, bolder, state.caution + 1), 0, len(_SHARES) - 1)
        if at.spread is not None:
            may = moves & taken & (state.num_iters >= _FIRST_UPDATES)
            # All at once, with one copy of the elimination to compile.
            spreads = jnp.asarray(_SHARES, start.dtype)[:, None, None, None] * at.spread[None]
            newton, exists = jax.vmap(_newton, in_axes=(None, None, 0))(state.rows, at.updated, spreads)
            chosen = exists & may[None, :] & (jnp.arange(len(_SHARES))[:, None] >= caution[None, :])
            # The last step of a row need not be evaluated where it is too small for the bound to notice.
            last = _LAST_STEP * jnp.minimum(tol, _TIGHT) * jnp.sum(at.updated, axis=0)
            small = jnp.all(jnp.abs(newton[0] - state.rows) <= last[None, :], axis=0)
            chosen = chosen.at[0].set(chosen[0] | (exists[0] & taken & ~moves & small))
            is_newton = jnp.any(chosen, axis=0)
            # Of those that lead uphill, the first.
            newton = jnp.take_along_axis(newton, jnp.argmax(chosen, axis=0)[None, None, :], axis=0)[0]
            following = jnp.where(is_newton[None, :], newton, following)
        following = jnp.where(taken[None, :], following, state.fallback)
        after = _Climb(
            rows=jnp.where(state.unfinished[None, :], following, state.rows),
            fallback=jnp.where(taken[None, :], at.updated, state.fallback),
            is_newton=is_newton,
            caution=caution,
            bound=jnp.where(taken, at.bound, state.bound),
            unfinished=state.unfinished & (moves | ~taken),
            num_iters=state.num_iters + 1,
        )
        return after

    num_rows = start.shape[1]
    first = _Climb(
        rows=start,
        fallback=start,
        is_newton=jnp.zeros(num_rows, bool),
        caution=jnp.zeros(num_rows, jnp.int32),
        bound=jnp.full(num_rows, -jnp.inf, start.dtype),
        unfinished=jnp.ones(num_rows, bool),
        num_iters=jnp.int32(0),
    )
    last = lax.while_loop(unfinished, step, first)
    # At the limit a Newton step has not been evaluated: what it would fall back on is no worse than all before.
    return jnp.where((last.unfinished & last.is_newton)[None, :], last.fallback, last.rows)


def _newton(
    rows: Float[Array, "k n"], updated: Float[Array, "k n"], spread: Float[Array, "k k n"]
) -> tuple[Float[Array, "k n"], Bool[Array, " n"]]:
    """Return where Newton's step leads, and whether that is towards a maximum: all pivots are positive."""
    k = rows.shape[0]
    inverse = 1 / trigamma(rows)
    matrix = jnp.eye(k, dtype=rows.dtype)[:, :, None] * inverse[None, :, :] - spread
    system = jnp.concatenate([matrix, (updated - rows)[:, None, :]], axis=1)

    def eliminate(i: Array | int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        # Gauss and Jordan: the matrix becomes the identity, and the last column the solution.
        system, exists = state
        pivot = system[i, i]
        line = system[i] / jnp.where(pivot > 0, pivot, 1)[None, :]
        others = system - system[:, i][:, None, :] * line[None, :, :]
        return others.at[i].set(line), exists & (pivot > 0)

    system, exists = lax.fori_loop(0, k, eliminate, (system, jnp.ones(rows.shape[1], bool)))
    target = rows + inverse * system[:, -1]
    return jnp.maximum(target, jnp.minimum(rows, updated) / LARGEST_SHRINKAGE), exists


class RowSums(Protocol):
    """Sums over rows that an update of the model needs, and the mean bound of a row."""

    @property
    def bound(self) -> Float[Array, ""]:
        """The mean bound."""


Sums = TypeVar("Sums", bound=RowSums)


class _State(NamedTuple):
    params: Any
    rows: Float[Array, "n k"]
    """The rows' distributions."""


def variational_em(
    local: Callable[[Params, Float[Array, "n k"] | None], Float[Array, "n k"]],
    collect: Callable[[Params, Float[Array, "n k"]], Sums],
    update: Callable[[Params, Sums], Params],
    feasible: Callable[[Params, Params], Params],
    size: Callable[[Params], Float[Array, ""]],
    weights: Float[Array, " n"],
    given: Params,
    blended: Params,
    tol: Float[Array, ""],
    max_iters: Int[Array, ""],
    history: int | None,
) -> Refined:
    """Climb the mean evidence bound of a row from the better of two starts, by EM with squared extrapolation.

    Args:
      local: updates the rows' distributions (`None`: starts them).
      collect: sums over rows, of which one is the bound.
      update: the model that is best for those sums.
      feasible: maps an extrapolated model, and the EM iterate closest to it, to a valid one.
      size: the squared length of a change of the model, in no units.
      weights: of the rows.
      given: parameters to start from.
      blended: others, without zeros.
      tol: relative gain at which to stop.
      max_iters: limit on the steps.
      history: see `expectation_maximization`.

    """

    def begin(params: Params) -> tuple[_State, Array]:
        rows = local(params, None)
        return _State(params, rows), collect(params, rows).bound

    def step(state: _State) -> Evaluation:
        rows = local(state.params, state.rows)
        sums = collect(state.params, rows)
        return Evaluation(_State(update(state.params, sums), rows), sums.bound)

    def valid(jump: _State, nearest: _State) -> _State:
        rows = jnp.maximum(jump.rows, nearest.rows / LARGEST_SHRINKAGE)
        return _State(feasible(jump.params, nearest.params), rows)

    def length(change: _State) -> Float[Array, ""]:
        # Weighted, so that rows of twice the weight are as long as two of them.
        return jnp.sqrt(size(change.params) + jnp.sum(weights * jnp.sum(change.rows**2, axis=1)))

    start = better_start(begin, given, blended)
    result = expectation_maximization(
        step, start, tol=tol, max_iters=max_iters, feasible=valid, length=length, history=history
    )
    return as_refined(result, result.params.params)
