"""The joint distribution of hidden variables, given what each looks like through a view of its own.

    M[x₁, …, x_m] = Σ_{h₁…h_m} Z[h₁, …, h_m] O₁[x₁, h₁] ⋯ O_m[x_m, h_m],   `M = Z(O₁, …, O_m)` for short

`Z` is the marginal of the hidden variables; `M` that of their exclusive views; `O_v[x, h] = P(x_v = x | h_v = h)`. Two
ways back: pseudoinverses mode by mode, linear and possibly negative; or the maximum of the composite likelihood

    L(Z) = Σ_x M[x] log Z(O[x])   over the simplex,

which is concave, so that EM, `Z ← Z ∘ Oᵀ(M / OZ)`, finds the global maximum. Its own multiplier says how near that is:
`max_h [Oᵀ(M / OZ)]_h − 1 ≥ L(Z*) − L(Z)`. `O = O₁⊗…⊗O_m` is never formed: products go mode by mode.

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods, §4.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.decompose._squarem import Evaluation, accelerated_em
from latensor.decompose._status import Status, status_if, worst
from latensor.decompose._views import pseudoinverse_of_rank

# A jump leaves at least this part of what the EM step has: zero would stay zero for ever.
_LEAST_PART = 0.01
# Each interior point step aims at this part of the complementarity that is left.
_CENTRING = 0.1
_START_SLACK = 0.01
# Joint states up to which Newton systems are solved; beyond, EM is extrapolated.
_NEWTON_UP_TO = 512


class Marginals(NamedTuple):
    """A joint distribution of hidden variables, and how near it is to the best."""

    table: Float[Array, "..."]
    log_likelihood: Float[Array, ""]
    """`Σ_x M[x] log Z(O[x])`, with `M` summing to one."""
    gap: Float[Array, ""]
    """No distribution has a log-likelihood that is larger by more than this."""
    num_iters: Int[Array, ""]
    """Times that the likelihood and its gradient were computed: for EM as it stands, its steps."""
    status: Int[Array, ""]


def _apply(tensor: Float[Array, "..."], matrices: tuple[Array, ...]) -> Float[Array, "..."]:
    """Return `T(A₁, …, A_m)`: mode v of the tensor meets the columns of `A_v`, one mode after the other."""
    for matrix in matrices:  # contracts the first mode and puts the new one last: after m turns the order is as before
        tensor = jnp.moveaxis(jnp.tensordot(matrix, tensor, axes=((1,), (0,)), precision="highest"), 0, -1)
    return tensor


def _check(counts_shape: tuple[int, ...], conditionals: tuple[Array, ...]) -> None:
    if not conditionals or any(matrix.ndim != 2 for matrix in conditionals):
        raise ValueError("conditionals: expected a tuple of matrices (categories, states), one for each mode")
    sizes = tuple(matrix.shape[0] for matrix in conditionals)
    if counts_shape != sizes:
        raise ValueError(f"counts: expected shape {sizes}, one mode for each of the conditionals; got {counts_shape}")


@jax.jit
def pseudoinverse_marginals(
    counts: Float[Array, "..."], conditionals: tuple[Float[Array, "_ _"], ...]
) -> Float[Array, "..."]:
    """Return `M(O₁⁺, …, O_m⁺)` for a table of frequencies; of counts it gives counts.

    Exact where the table is; with noise, entries may be negative and need not sum to one. Conditional means of
    real-valued views, with `M` the mean of their products, are as good.
    """
    _check(counts.shape, conditionals)
    return _apply(counts, tuple(pseudoinverse(matrix) for matrix in conditionals))


def pseudoinverse(matrix: Float[Array, "d k"]) -> Float[Array, "k d"]:
    """Return `(OᵀO)⁻¹Oᵀ`, without directions in which the columns are dependent."""
    return pseudoinverse_of_rank(matrix, min(matrix.shape))[0]


class _Objective(NamedTuple):
    """`L(Z) = Σ_x w_x log [predict(Z)]_x`; `predict` is linear, with the given adjoint."""

    predict: Callable[[Array], Array]
    adjoint: Callable[[Array], Array]
    weights: Float[Array, "..."]
    finite: Bool[Array, ""]

    def ratio(self, table: Array) -> tuple[Array, Array]:
        """Return `M / OZ`, zero where nothing was seen, and `OZ`."""
        fitted = jnp.maximum(self.predict(table), float(jnp.finfo(table.dtype).tiny))
        return jnp.where(self.weights > 0, self.weights / fitted, 0), fitted

    def multiplier(self, table: Array) -> tuple[Array, Array]:
        """Return `Oᵀ(M / OZ)`, whose product with `Z` is the EM step, and `L(Z)`."""
        ratio, fitted = self.ratio(table)
        return self.adjoint(ratio), jnp.sum(jnp.where(self.weights > 0, self.weights * jnp.log(fitted), 0))


def _objective(
    predict: Callable[[Array], Array],
    adjoint: Callable[[Array], Array],
    weights: Float[Array, "..."],
    shape: tuple[int, ...],
) -> _Objective:
    finite = jnp.all(jnp.isfinite(weights))
    # What no state can emit says nothing about them, and would make the gap look smaller than it is.
    possible = predict(_uniform(shape, weights.dtype)) > 0
    weights = jnp.where(possible, jnp.maximum(jnp.where(finite, weights, 1), 0), 0)
    total = jnp.sum(weights)
    return _Objective(predict, adjoint, weights / jnp.where(total > 0, total, 1), finite)


def _normalize(table: Array, otherwise: Array) -> Array:
    total = jnp.sum(table)
    # Where no state can have emitted anything there is nothing to learn.
    return jnp.where(total > 0, table / jnp.where(total > 0, total, 1), otherwise)


def _tolerance(tol: float | Array | None, dtype: jnp.dtype) -> Array:
    return jnp.asarray(max(1e-6, 100 * float(jnp.finfo(dtype).eps)) if tol is None else tol, dtype)


def _uniform(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    return jnp.full(shape, 1 / math.prod(shape), dtype)


def _marginals(objective: _Objective, table: Array, num_iters: Array, tol: Array) -> Marginals:
    gradient, value = objective.multiplier(table)
    gap = jnp.maximum(jnp.max(gradient) - 1, 0)
    status = worst(
        status_if(~(gap <= tol), Status.MAX_ITERS),
        status_if(~objective.finite | ~jnp.isfinite(gap), Status.NON_FINITE),
    )
    return Marginals(table, value, gap, num_iters, status)


def _extrapolated(
    objective: _Objective, start: Float[Array, "..."], tol: Array, max_iters: int | Array, accelerate: bool
) -> Marginals:
    """Maximize by EM, extrapolated where asked for."""

    def step(table: Array) -> Evaluation:
        gradient, value = objective.multiplier(table)
        return Evaluation(_normalize(table * gradient, table), value, jnp.max(gradient) - 1 <= tol)

    def feasible(jump: Array, back: Array) -> Array:
        return _normalize(jnp.maximum(jump, _LEAST_PART * back), back)

    # The gap alone decides: a gain too small to be seen in the objective may still be one in the gap.
    found = accelerated_em(step, start, feasible, -jnp.inf, max_iters, accelerate=accelerate)
    return _marginals(objective, found.params, found.num_iters, tol)


class _Interior(NamedTuple):
    table: Float[Array, "..."]
    slack: Float[Array, "..."]
    gradient: Float[Array, "..."]
    value: Float[Array, ""]
    num_iters: Int[Array, ""]


def _newton(
    objective: _Objective, curvature: Callable[[Array], Array], start: Float[Array, "..."], tol: Array, max_iters: Array
) -> Marginals:
    """Maximize by EM with Newton jumps through the interior.

    Without the constraint on the sum, `L(Z) − Σ Z` over `Z ≥ 0` has the same maximum. A primal-dual interior point step
    for it, with slacks `S` for the multipliers of `Z ≥ 0`, solves `(H + diag(S/Z)) δ = Oᵀ(M/OZ) − 1 + μ/Z`. Boundaries
    and flat directions, where EM crawls, cost it a few steps more. A step that would lower `L` is replaced by EM's.
    """
    shape, size, dtype = start.shape, start.size, start.dtype
    eps = float(jnp.finfo(dtype).eps)

    def unfinished(state: _Interior) -> Array:
        return (jnp.max(state.gradient) - 1 > tol) & (state.num_iters + 1 < max_iters)

    def room(steps: Array) -> Array:
        """Return how far one may go so that nothing loses more than 95 %."""
        return jnp.minimum(1, 0.95 / jnp.maximum(jnp.max(-steps), 0.95))

    def iterate(state: _Interior) -> _Interior:
        table, slack = state.table.reshape(size), state.slack.reshape(size)
        ratio, fitted = objective.ratio(state.table)
        hessian = curvature(ratio / fitted)
        barrier = _CENTRING * jnp.sum(table * slack) / size
        # In units of the table itself nothing becomes large where an entry goes to zero.
        system = table[:, None] * hessian * table[None, :] + jnp.diag(table * slack)
        system = system + jnp.diag(eps * jnp.diagonal(system))
        step = jnp.linalg.solve(system, table * (state.gradient.reshape(size) - 1) + barrier)
        step = jnp.where(jnp.all(jnp.isfinite(step)), step, 0)
        change = barrier / (table * slack) - 1 - step  # of the slacks, relative
        jump = _normalize((table * (1 + room(step) * step)).reshape(shape), state.table)
        slack = (slack * (1 + room(change) * change)).reshape(shape)
        em = _normalize(state.table * state.gradient, state.table)
        at_jump, at_em = objective.multiplier(jump), objective.multiplier(em)
        good = at_jump[1] >= state.value
        table, gradient, value = jax.tree.map(lambda a, b: jnp.where(good, a, b), (jump, *at_jump), (em, *at_em))
        return _Interior(table, slack, gradient, value, state.num_iters + 2)

    gradient, value = objective.multiplier(start)
    slack = jnp.maximum(1 - gradient, _START_SLACK)
    last = lax.while_loop(unfinished, iterate, _Interior(start, slack, gradient, value, jnp.int32(1)))
    return _marginals(objective, last.table, last.num_iters, tol)


def _curvature(weights: Array, conditionals: tuple[Array, ...]) -> Array:
    """Return `Oᵀ diag(weights) O`, `(K, K)` for `K = Π k`: each mode meets the products of two columns of `O_v`."""
    m, shape = len(conditionals), tuple(matrix.shape[1] for matrix in conditionals)
    squares = tuple(
        (matrix.T[:, None, :] * matrix.T[None, :, :]).reshape(-1, matrix.shape[0]) for matrix in conditionals
    )
    tensor = _apply(weights, squares).reshape([k for k in shape for _ in range(2)])
    tensor = jnp.transpose(tensor, (*range(0, 2 * m, 2), *range(1, 2 * m, 2)))
    return tensor.reshape(math.prod(shape), math.prod(shape))


@partial(jax.jit, static_argnames="accelerate")
def composite_likelihood_em(
    counts: Float[Array, "..."],
    conditionals: tuple[Float[Array, "_ _"], ...],
    *,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = 1_000,
    accelerate: bool = True,
    start: Float[Array, "..."] | None = None,
) -> Marginals:
    """Maximize the composite likelihood of a table over the joint distributions of hidden variables.

    Args:
      counts: `(d₁, …, d_m)`, counts or frequencies of the views; negative entries, which noisy moments may have, count
        as zero, as do those that no state can emit, and the rest is scaled to sum to one.
      conditionals: `O_v (d_v, k_v)`, `P(x_v | h_v)`, one matrix a mode; columns sum to one.
      tol: the gap at which to stop; default 1e-6, or what float32 can resolve.
      max_iters: limit on the EM steps.
      accelerate: jump ahead where that raises the likelihood: by Newton steps up to 512 joint states, by extrapolation
        beyond. False is EM as it stands.
      start: a distribution `(k₁, …, k_m)` without zeros to begin from; default: the uniform one.

    Returns:
      `Marginals` with a `table (k₁, …, k_m)`. Cost `O(Π d · k)` a step.

    """
    _check(counts.shape, conditionals)
    transposed = tuple(matrix.T for matrix in conditionals)
    shape, tol = tuple(matrix.shape[1] for matrix in conditionals), _tolerance(tol, counts.dtype)
    objective = _objective(
        lambda table: _apply(table, conditionals), lambda ratio: _apply(ratio, transposed), counts, shape
    )
    begin = _uniform(shape, counts.dtype) if start is None else _normalize(start, _uniform(shape, counts.dtype))
    if begin.shape != shape:
        raise ValueError(f"start: expected shape {shape}, the states of the conditionals; got {begin.shape}")
    if accelerate and math.prod(shape) <= _NEWTON_UP_TO:
        limit = jnp.asarray(max_iters, jnp.int32)
        return _newton(objective, lambda weights: _curvature(weights, conditionals), begin, tol, limit)
    return _extrapolated(objective, begin, tol, max_iters, accelerate)


@partial(jax.jit, static_argnames="accelerate")
def composite_likelihood_em_samples(
    likelihoods: tuple[Float[Array, "n _"], ...],
    row_weights: Float[Array, " n"] | None = None,
    *,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = 1_000,
    accelerate: bool = True,
) -> Marginals:
    """Maximize the composite likelihood of samples: `composite_likelihood_em` where no table is to be had.

    Args:
      likelihoods: `(n, k_v)` for each mode, `P(x_v | h_v)` of each sample's view for each state: rows of `O_v` for
        categorical views, densities for real ones. Each row may be scaled as you like.
      row_weights: how often each sample was seen (default: once); they need not sum to one.
      tol: as for `composite_likelihood_em`.
      max_iters: likewise.
      accelerate: likewise.

    Returns:
      `Marginals`; its `log_likelihood` is that of the likelihoods as given. Cost `O(n k^m)` a step.

    """
    rows = {part.shape[0] for part in likelihoods}
    if not likelihoods or len(rows) != 1:
        raise ValueError(f"likelihoods: expected one matrix (n, states) for each mode, all with n rows; got {rows}")
    n, first = rows.pop(), likelihoods[0]
    weights = jnp.ones(n, first.dtype) if row_weights is None else row_weights.astype(first.dtype)

    def predict(table: Array) -> Array:
        fitted = jnp.matmul(first, table.reshape(table.shape[0], -1), precision="highest")
        for part in likelihoods[1:]:
            fitted = jnp.sum(part[:, :, None] * fitted.reshape(n, part.shape[1], -1), axis=1)
        return fitted.reshape(n)

    def adjoint(ratio: Array) -> Array:
        spread = jnp.ones((n, 1), first.dtype)
        for part in likelihoods[1:]:
            spread = (spread[:, :, None] * part[:, None, :]).reshape(n, -1)
        return jnp.matmul((ratio[:, None] * first).T, spread, precision="highest").reshape(shape)

    shape = tuple(part.shape[1] for part in likelihoods)
    objective = _objective(predict, adjoint, weights, shape)
    tol = _tolerance(tol, weights.dtype)
    return _extrapolated(objective, _uniform(shape, weights.dtype), tol, max_iters, accelerate)
