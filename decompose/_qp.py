"""Nonnegative quadratic programs, `min ½ xᵀQx + zᵀx` over `x ≥ 0`: PQP updates between Newton steps (see `_pqp`)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.base import as_float, as_numbers, divide_by_largest, machine_epsilon, matmul, positive_or_one, small_jit
from latensor.decompose._pqp import accelerated_updates, linear_rate_phi, pqp_update, smallest_gamma, smallest_phi
from latensor.decompose._status import Status, status_if, worst

# Updates between two Newton steps of the accelerated solver.
_UPDATES_PER_STEP = 10
# Lengths of the Newton step that are tried at once.
_LENGTHS = tuple(0.5**i for i in range(8))


class QPSolution(NamedTuple):
    """A point `x ≥ 0`, its objective, and how far it is from optimal."""

    x: Float[Array, "*batch n"]
    objective: Float[Array, "*batch"]
    residual: Float[Array, "*batch"]
    """Violation of the optimality (KKT) conditions: `max_i |min(Q_ii x_i, (Qx + z)_i)| / max_i |z_i|`. Zero at the
    optimum and nowhere else."""
    num_iters: Int[Array, "*batch"]
    status: Int[Array, "*batch"]


class _Problem(NamedTuple):
    quadratic: Float[Array, "n n"]
    linear: Float[Array, " n"]
    gamma: Float[Array, " n"]
    phi: Float[Array, " n"]

    def gradient(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        return matmul(self.quadratic, x) + self.linear

    def objective(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        return jnp.sum(x * (matmul(self.quadratic, x) / 2 + self.linear))

    def residual(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the violation of the optimality conditions; see `QPSolution.residual`."""
        violation = jnp.max(jnp.abs(jnp.minimum(jnp.diagonal(self.quadratic) * x, self.gradient(x))))
        return violation / positive_or_one(jnp.max(jnp.abs(self.linear)))


def _newton_steps(problem: _Problem, x: Array) -> Float[Array, "2 n"]:
    """Return two Newton steps.

    One goes to the minimum of the face on which the coordinates are zero that a gradient step would take to zero: the
    solution, once these are the right ones. The other moves only the coordinates that are clear of zero or move away
    from it, and always leads downhill, at least until the first of them reaches zero.
    """
    gradient, diagonal = problem.gradient(x), jnp.diagonal(problem.quadratic)

    def step(free: Bool[Array, " n"], right: Array) -> Array:
        both = free[:, None] & free[None, :]
        inner = jnp.where(both, problem.quadratic, 0) + jnp.diag(jnp.where(free, 0, 1).astype(x.dtype))
        return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(inner), True), jnp.where(free, right, 0))

    stays = x * diagonal > gradient
    clear = x * diagonal > math.sqrt(machine_epsilon(x.dtype)) * jnp.max(jnp.abs(problem.linear))
    # As one batch: on a CPU, independent batched factorizations can deadlock.
    ends = jax.vmap(step)(jnp.stack([stays, clear | (gradient < 0)]), jnp.stack([-problem.linear, -gradient]))
    return jnp.stack([ends[0] - x, ends[1]])


def _newton(problem: _Problem, x: Array) -> Array:
    """Return the best point on the projected paths of both Newton steps, or `x` if none is better."""
    steps = _newton_steps(problem, x)
    lengths = jnp.asarray(_LENGTHS, x.dtype)
    points = jnp.maximum(x[None, None, :] + lengths[None, :, None] * steps[:, None, :], 0).reshape(-1, x.shape[0])
    # One more point: where the first coordinate on the downhill path reaches zero.
    downhill = steps[1]
    room = jnp.where(downhill < 0, -x / jnp.where(downhill < 0, downhill, 1), jnp.inf)
    length = jnp.minimum(jnp.min(room), 1)
    edge = jnp.where(room <= length, 0, jnp.maximum(x + length * downhill, 0))
    points = jnp.concatenate([points, edge[None, :]])
    objectives = jax.vmap(problem.objective)(points)
    best = jnp.argmin(jnp.where(jnp.isfinite(objectives), objectives, jnp.inf))
    return jnp.where(objectives[best] < problem.objective(x), points[best], x)


def _advance(problem: _Problem, x: Array, accelerate: bool) -> Array:
    """Return `x` after one iteration."""
    if accelerate:
        return _newton(problem, accelerated_updates(x, *problem, _UPDATES_PER_STEP))
    updated = pqp_update(x, *problem)
    return jnp.where(problem.objective(updated) <= problem.objective(x), updated, x)


class _State(NamedTuple):
    x: Float[Array, " n"]
    residual: Float[Array, ""]
    num_iters: Int[Array, ""]


def _solve(
    quadratic: Array,
    linear: Array,
    start: Array | None,
    gamma: Array | None,
    phi: Array | None,
    accelerate: bool,
    tol: Array,
    max_iters: Array,
) -> QPSolution:
    finite = jnp.all(jnp.isfinite(quadratic)) & jnp.all(jnp.isfinite(linear))
    # LAPACK may hang on a NaN.
    quadratic = jnp.where(finite, quadratic, jnp.eye(linear.shape[0], dtype=linear.dtype))
    linear = jnp.where(finite, linear, 0)
    if gamma is None:
        gamma = smallest_gamma(quadratic)
    if phi is None:
        phi = jnp.broadcast_to(smallest_phi(linear), linear.shape) if accelerate else linear_rate_phi(quadratic, linear)
    if start is None:
        # The minimum of each coordinate alone, plus the mean: updates could never leave zero.
        alone = jnp.abs(linear) / positive_or_one(jnp.diagonal(quadratic))
        start = alone + jnp.mean(alone)
    problem = _Problem(quadratic, linear, gamma, phi)

    def unfinished(state: _State) -> Array:
        return (state.residual > tol) & (state.num_iters < max_iters)

    def step(state: _State) -> _State:
        x = _advance(problem, state.x, accelerate)
        return _State(x, problem.residual(x), state.num_iters + 1)

    last = lax.while_loop(unfinished, step, _State(start, problem.residual(start), jnp.int32(0)))
    # Along a ray on which the quadratic part does not rise and the linear part falls there is no minimum.
    ray = divide_by_largest(last.x)
    unbounded = (jnp.sum(ray * matmul(quadratic, ray)) <= 0) & (jnp.sum(ray * linear) < 0)
    objective = problem.objective(last.x)
    return QPSolution(
        last.x,
        objective,
        jnp.where(finite, last.residual, jnp.nan),
        last.num_iters,
        worst(
            status_if(~(last.residual <= tol), Status.MAX_ITERS),
            status_if(
                ~finite | ~jnp.all(jnp.isfinite(last.x)) | unbounded | ~jnp.isfinite(objective), Status.NON_FINITE
            ),
        ),
    )


@small_jit(static_argnames="accelerate")
def solve_nonnegative_qp(
    quadratic: Float[Array, "*batch n n"],
    linear: Float[Array, "*batch n"],
    *,
    start: Float[Array, "*batch n"] | None = None,
    gamma: Float[Array, "*batch n"] | None = None,
    phi: Float[Array, "*batch n"] | None = None,
    accelerate: bool = True,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = 1000,
) -> QPSolution:
    """Minimize `½ xᵀQx + zᵀx` over `x ≥ 0`, for one problem or a batch of them. The objective never rises.

    Args:
      quadratic: `Q`, symmetric and positive definite; leading axes are a batch.
      linear: `z`.
      start: first iterate, positive: multiplicative updates never leave zero.
      gamma: `γ ≥ (−Q)₊1`; default: equal to it.
      phi: `φ ≥ 0`. Default: that of Theorem 6, with which the plain iteration converges linearly from everywhere; at
        rounding level if `accelerate`, because a small `φ` allows long steps.
      accelerate: each iteration consists of ten updates with momentum, then a Newton step in the coordinates that are
        not held at zero, as long as the objective falls. Otherwise of one update (17), which for a condition number `c`
        needs about `c` iterations per digit.
      tol: the KKT residual at which to stop; default: the square root of the machine epsilon.
      max_iters: limit on the iterations.

    Returns:
      `QPSolution`. The status is `MAX_ITERS` where the residual is above `tol`, `NON_FINITE` where the objective is
      unbounded below, which a `Q` that is not positive definite allows: `x` and the objective then mean nothing.

    Cost: `O(n²)` per iteration, `O(n³)` if `accelerate`. A batch runs to its slowest member.

    Source: Brand, Chen (2011); Tan, Mukherjee (2017), eq. (16)–(19) and Theorem 6.

    """
    quadratic = as_float(as_numbers("quadratic", quadratic, "matrices (…, n, n)"))
    linear = as_float(as_numbers("linear", linear, "vectors (…, n)"))
    n = linear.shape[-1] if linear.ndim else 0
    if n == 0:
        raise ValueError(f"linear: expected vectors (…, n), not empty; got shape {linear.shape}")
    if quadratic.shape != (*linear.shape, n):
        raise ValueError(f"linear: expected one vector per quadratic {quadratic.shape}; got shape {linear.shape}")
    dtype = linear.dtype
    tol = jnp.asarray(math.sqrt(machine_epsilon(dtype)) if tol is None else tol, dtype)
    limit = jnp.asarray(max_iters, jnp.int32)

    def solve(
        quadratic: Array, linear: Array, start: Array | None, gamma: Array | None, phi: Array | None
    ) -> QPSolution:
        return _solve(quadratic, linear, start, gamma, phi, accelerate, tol, limit)

    for _ in linear.shape[:-1]:
        solve = jax.vmap(solve)
    return solve(quadratic, linear, start, gamma, phi)
