"""Maximization of a composite likelihood `L(Z) = Σ_x w_x log [O Z]_x` over the simplex, by EM or by Newton steps.

`L` is concave, so EM, `Z ← Z ∘ Oᵀ(w / OZ)`, converges to the global maximum, and its multiplier bounds the distance:
`max_h [Oᵀ(w / OZ)]_h − 1 ≥ L(Z*) − L(Z)`. `O` enters only through products with it and with its transpose.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Bool, Float, Int

from latensor.base import attach_tangent, divide, divide_by_largest, machine_epsilon, positive_or_one, smallest_normal
from latensor.decompose._em import Evaluation, expectation_maximization

# A jump keeps at least this fraction of the entries of the EM iterate: an entry of zero would stay zero.
_LEAST_PART = 0.01
# Each interior point step aims at this fraction of the remaining complementarity.
_CENTRING = 0.1
# A Newton step takes at most this fraction off an entry or a slack.
_LARGEST_LOSS = 0.95
_START_SLACK = 0.01


class Maximum(NamedTuple):
    """The best distribution of a run, and the number of evaluations of the likelihood and its gradient."""

    table: Float[Array, "..."]
    num_evaluations: Int[Array, ""]


class Objective(NamedTuple):
    """`L(Z) = Σ_x w_x log [predict(Z)]_x`; `predict` is linear, with the given adjoint."""

    predict: Callable[[Array], Array]
    adjoint: Callable[[Array], Array]
    weights: Float[Array, "..."]
    finite: Bool[Array, ""]

    def ratio(self, table: Array) -> tuple[Array, Array]:
        """Return `w / OZ`, zero where the weight is zero, and `OZ`."""
        smallest = smallest_normal(table.dtype)
        fitted = jnp.maximum(self.predict(table), smallest)
        # A weight of zero still has a derivative, unless its division would leave the floating range.
        counts = (self.weights > 0) | (fitted > math.sqrt(smallest))
        return jnp.where(counts, self.weights / jnp.where(counts, fitted, 1), 0), fitted

    def multiplier(self, table: Array) -> tuple[Array, Array]:
        """Return `Oᵀ(w / OZ)`, whose product with `Z` is the EM step, and `L(Z)`."""
        ratio, fitted = self.ratio(table)
        return self.adjoint(ratio), jnp.sum(jnp.where(self.weights > 0, self.weights * jnp.log(fitted), 0))


def make_objective(
    predict: Callable[[Array], Array],
    adjoint: Callable[[Array], Array],
    weights: Float[Array, "..."],
    shape: tuple[int, ...],
) -> Objective:
    """Scale the weights to sum to one; negative ones, and those of observations that no state can emit, become zero."""
    finite = jnp.all(jnp.isfinite(weights))
    # Impossible observations tell nothing about the states, and would make the gap look smaller than it is.
    possible = predict(uniform(shape, weights.dtype)) > 0
    # By the largest first: the sum of large numbers leaves the floating range.
    weights = divide_by_largest(jnp.where(finite, weights, 1))
    weights = jnp.where(possible & (weights >= 0), weights, 0)
    return Objective(predict, adjoint, weights / positive_or_one(jnp.sum(weights)), finite)


def uniform(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Return the uniform distribution.

    Not as a constant of the program: XLA on CPU (jaxlib 0.10.2) makes a wrong sum of a product with one, from a few
    thousand rows on.
    """
    return lax.optimization_barrier(jnp.full(shape, 1 / math.prod(shape), dtype))


def attach_maximum(
    gradient: Callable[[Any, Array], Array], table: Float[Array, "..."], parts: Any
) -> Float[Array, "..."]:
    """Return the table at which `L` is largest with its derivative by `parts`; `gradient(parts, Z)` is `Oᵀ(w / OZ)`.

    At the maximum `Z > 0` where the gradient is one, and `Z = 0` where it is less, by a slack `s`. In units of `√Z`
    the change solves `(√Z H √Z + s) y = √Z d(gradient)`, `H = Oᵀ diag(w / (OZ)²) O`, so that entries at the boundary
    stay there.
    """
    return attach_tangent(partial(_maximum_tangent, gradient), table, parts)


def _maximum_tangent(gradient: Callable[[Any, Array], Array], table: Array, parts: Any, changes: Any) -> Array:
    root, slack = jnp.sqrt(table), jnp.maximum(1 - gradient(parts, table), 0)
    _, change = jax.jvp(lambda parts: gradient(parts, table), (parts,), (changes,))

    def matvec(move: Array) -> Array:
        _, image = jax.jvp(lambda table: gradient(parts, table), (table,), (root * move,))
        return slack * move - root * image

    def solve(matvec: Any, right: Array) -> Array:
        return cg(matvec, right, tol=10 * machine_epsilon(right.dtype), maxiter=2 * right.size + 20)[0]

    return root * lax.custom_linear_solve(matvec, root * change, solve, symmetric=True)


def normalize(table: Array, otherwise: Array) -> Array:
    """Scale a table to sum to one; return `otherwise` if it sums to zero, as without any possible observation."""
    return divide(table, jnp.sum(table), otherwise)


def maximize_by_em(
    objective: Objective, start: Float[Array, "..."], tol: Array, max_evaluations: int | Array, accelerate: bool
) -> Maximum:
    """Maximize by EM, with extrapolation if `accelerate`, until the gap is at most `tol`."""

    def step(table: Array) -> Evaluation:
        gradient, value = objective.multiplier(table)
        return Evaluation(normalize(table * gradient, table), value, jnp.max(gradient) - 1 <= tol)

    def feasible(jump: Array, back: Array) -> Array:
        return normalize(jnp.maximum(jump, _LEAST_PART * back), back)

    # Only the gap decides: it may still shrink when gains are too small to be seen in the objective.
    best = expectation_maximization(
        step,
        start,
        tol=-jnp.inf,
        max_iters=jnp.maximum(max_evaluations, 1) - 1,
        feasible=feasible if accelerate else None,
    )
    return Maximum(best.params, best.num_iters + 1)


class _Interior(NamedTuple):
    table: Float[Array, "..."]
    slack: Float[Array, "..."]
    gradient: Float[Array, "..."]
    value: Float[Array, ""]
    num_evaluations: Int[Array, ""]


def _room(steps: Array) -> Array:
    """Return the largest length up to one at which no entry loses more than 95 %."""
    return jnp.minimum(1, _LARGEST_LOSS / jnp.maximum(jnp.max(-steps), _LARGEST_LOSS))


def _newton_step(objective: Objective, curvature: Callable[[Array], Array], state: _Interior) -> tuple[Array, Array]:
    """Return the table and the slacks after an interior point step."""
    shape, size = state.table.shape, state.table.size
    table, slack = state.table.reshape(size), state.slack.reshape(size)
    ratio, fitted = objective.ratio(state.table)
    hessian = curvature(ratio / fitted)
    barrier = _CENTRING * jnp.sum(table * slack) / size
    # In units of the table, so that entries near zero cause no large numbers.
    system = table[:, None] * hessian * table[None, :] + jnp.diag(table * slack)
    system = system + jnp.diag(machine_epsilon(table.dtype) * jnp.diagonal(system))
    step = jnp.linalg.solve(system, table * (state.gradient.reshape(size) - 1) + barrier)
    step = jnp.where(jnp.all(jnp.isfinite(step)), step, 0)
    change = barrier / (table * slack) - 1 - step  # relative change of the slacks
    jump = normalize((table * (1 + _room(step) * step)).reshape(shape), state.table)
    return jump, (slack * (1 + _room(change) * change)).reshape(shape)


def maximize_by_newton(
    objective: Objective,
    curvature: Callable[[Array], Array],
    start: Float[Array, "..."],
    tol: Array,
    max_evaluations: Array,
) -> Maximum:
    """Maximize by interior point steps, each replaced by an EM step if it would lower `L`.

    Without the constraint on the sum, `L(Z) − Σ Z` over `Z ≥ 0` has the same maximum. A primal-dual interior point step
    for it, with slacks `S` for the multipliers of `Z ≥ 0`, solves `(H + diag(S/Z)) δ = Oᵀ(w/OZ) − 1 + μ/Z`. Boundaries
    and flat directions, which slow EM down, cost only a few more steps. `curvature(w / (OZ)²)` returns `H (K, K)`.
    """

    def unfinished(state: _Interior) -> Array:
        return (jnp.max(state.gradient) - 1 > tol) & (state.num_evaluations + 1 < max_evaluations)

    def iterate(state: _Interior) -> _Interior:
        jump, slack = _newton_step(objective, curvature, state)
        em = normalize(state.table * state.gradient, state.table)
        at_jump, at_em = objective.multiplier(jump), objective.multiplier(em)
        good = at_jump[1] >= state.value
        table, gradient, value = jax.tree.map(lambda a, b: jnp.where(good, a, b), (jump, *at_jump), (em, *at_em))
        return _Interior(table, slack, gradient, value, state.num_evaluations + 2)

    gradient, value = objective.multiplier(start)
    slack = jnp.maximum(1 - gradient, _START_SLACK)
    last = lax.while_loop(unfinished, iterate, _Interior(start, slack, gradient, value, jnp.int32(1)))
    return Maximum(last.table, last.num_evaluations)
