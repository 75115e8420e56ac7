"""Nonnegative quadratic programs by multiplicative updates: parallel quadratic programming (PQP).

    minimize F(x) = ½ xᵀQx + zᵀx   subject to x ≥ 0,   Q positive definite, entries of Q and z of either sign

Split `Q = Q⁺ − Q⁻` and `z = z⁺ − z⁻` into nonnegative parts, with something added to both: `Q^± = (±Q)₊ + diag γ` and
`z^± = (±z)₊ + φ`. The update is `x ← x ∘ (Q⁻x + z⁻) / (Q⁺x + z⁺)`: every coordinate for itself, no step size, never
negative. It minimizes a separable quadratic that lies above `F` and touches it at `x`, for `γ ≥ (−Q)₊1` and any
`φ ≥ 0`, so `F` never rises. Large `γ` and `φ` make the steps short; Theorem 6 has the `φ` for which convergence is
linear from everywhere. Lee and Seung's updates and weighted NMF are this with `γ = φ = 0` and particular `Q` and `z`.

Source: Brand, Chen (2011), Parallel quadratic programming for image processing; Tan, Mukherjee (2017), Partitioned
tensor factorizations for learning mixed membership models, eq. (16)–(19).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

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
    """Of the optimality (KKT) conditions: `max_i |min(Q_ii x_i, (Qx + z)_i)| / max_i |z_i|`. Zero at the optimum and
    nowhere else."""
    num_iters: Int[Array, "*batch"]
    status: Int[Array, "*batch"]


def pqp_update(
    x: Float[Array, " n"],
    quadratic: Float[Array, "n n"],
    linear: Float[Array, " n"],
    gamma: Float[Array, " n"],
    phi: Float[Array, " n"],
) -> Float[Array, " n"]:
    """Return one multiplicative update (17) of `x`. A coordinate whose denominator is zero stays as it is."""
    shift = gamma * x + phi
    above = _product(jnp.maximum(quadratic, 0), x) + jnp.maximum(linear, 0) + shift
    below = _product(jnp.maximum(-quadratic, 0), x) + jnp.maximum(-linear, 0) + shift
    return jnp.where(above > 0, x * (below / jnp.where(above > 0, above, 1)), x)


def smallest_gamma(quadratic: Float[Array, "n n"]) -> Float[Array, " n"]:
    """Return `(−Q)₊1`, the smallest `γ` for which the updates are known to be monotone."""
    return jnp.sum(jnp.maximum(-quadratic, 0), axis=1)


def linear_rate_phi(quadratic: Float[Array, "n n"], linear: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """Return the `φ` of Theorem 6, `½(√(zᵀQ⁻¹z / λ_min) diag Q − |z|)₊` and a little more; for one `z` or rows of them.

    The smallest eigenvalue is taken to be at least rounding: a singular `Q` has no such `φ`.
    """
    values, vectors = jnp.linalg.eigh(quadratic)
    values = jnp.maximum(values, float(jnp.finfo(values.dtype).eps) * values[-1])
    rotated = jnp.matmul(linear, vectors, precision="highest")
    energy = jnp.sum(rotated**2 / jnp.broadcast_to(values, linear.shape), axis=-1, keepdims=True)
    size = jnp.sqrt(energy / values[0])
    phi = jnp.maximum(size * jnp.broadcast_to(jnp.diagonal(quadratic), linear.shape) - jnp.abs(linear), 0) / 2
    return phi + _little(linear)


def _little(linear: Float[Array, "*rows n"]) -> Float[Array, "*rows 1"]:
    """Return what keeps a coordinate from becoming zero, where it could never leave again."""
    eps = float(jnp.finfo(linear.dtype).eps)
    return eps * jnp.max(jnp.abs(linear), axis=-1, keepdims=True) + float(jnp.finfo(linear.dtype).tiny)


def _product(quadratic: Array, x: Array) -> Array:
    return jnp.matmul(quadratic, x, precision="highest")


def qp_objective(x: Float[Array, " n"], quadratic: Float[Array, "n n"], linear: Float[Array, " n"]) -> Float[Array, ""]:
    """Return `½ xᵀQx + zᵀx`."""
    return jnp.sum(x * (_product(quadratic, x) / 2 + linear))


class _Momentum(NamedTuple):
    x: Float[Array, " n"]
    product: Float[Array, " n"]
    """`Qx`."""
    before: Float[Array, " n"]
    objective: Float[Array, ""]
    speed: Float[Array, ""]


def accelerated_updates(
    x: Float[Array, " n"],
    quadratic: Float[Array, "n n"],
    linear: Float[Array, " n"],
    gamma: Float[Array, " n"],
    phi: Float[Array, " n"],
    num_updates: int | Int[Array, ""],
    nonnegative: bool = False,
) -> Float[Array, " n"]:
    """Return `x` after multiplicative updates with Nesterov's momentum, under which the objective never rises.

    Every update starts from `x` carried on in its last direction; if that is worse than `x`, from `x` itself, and the
    momentum starts anew. `nonnegative` says that `Q ≥ 0`: then `Q⁻ = 0` needs no product.
    """
    above, below = jnp.maximum(linear, 0), jnp.maximum(-linear, 0)
    negative = jnp.maximum(-quadratic, 0)

    def value(x: Array, product: Array) -> Array:
        return jnp.sum(x * (product / 2 + linear))

    def update(_: Array | int, state: _Momentum) -> _Momentum:
        faster = (1 + jnp.sqrt(1 + 4 * state.speed**2)) / 2
        ahead = jnp.maximum(state.x + (state.speed - 1) / faster * (state.x - state.before), 0)
        product = _product(quadratic, ahead)
        good = value(ahead, product) <= state.objective
        start, product = jnp.where(good, ahead, state.x), jnp.where(good, product, state.product)
        # The update (17), with `Q⁺x = Qx + Q⁻x`.
        shift = gamma * start + phi if nonnegative else gamma * start + phi + _product(negative, start)
        bottom = product + above + shift
        x = jnp.where(bottom > 0, start * ((below + shift) / jnp.where(bottom > 0, bottom, 1)), start)
        product = _product(quadratic, x)
        objective = value(x, product)
        # Rounding alone can make an update rise.
        fell = objective <= state.objective
        return _Momentum(
            jnp.where(fell, x, state.x),
            jnp.where(fell, product, state.product),
            state.x,
            jnp.where(fell, objective, state.objective),
            jnp.where(good & fell, faster, 1),
        )

    product = _product(quadratic, x)
    first = _Momentum(x, product, x, value(x, product), jnp.ones((), x.dtype))
    return lax.fori_loop(0, num_updates, update, first).x


def _newton(x: Array, quadratic: Array, linear: Array) -> Array:
    """Return the best point on the projected paths of two Newton steps, or `x` if none is better.

    One goes to the minimum of the face on which the coordinates that a gradient step would take to zero are zero: the
    solution, once these are the right ones. The other moves only the coordinates that are clear of zero or want to
    leave it, and always leads downhill, at least until the first of them reaches zero: one of the lengths ends there.
    """
    gradient = _product(quadratic, x) + linear
    diagonal = jnp.diagonal(quadratic)

    def step(free: Array, right: Array) -> Array:
        both = free[:, None] & free[None, :]
        inner = jnp.where(both, quadratic, 0) + jnp.diag(jnp.where(free, 0, 1).astype(x.dtype))
        return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(inner), True), jnp.where(free, right, 0))

    stays = x * diagonal > gradient
    clear = (x * diagonal > math.sqrt(float(jnp.finfo(x.dtype).eps)) * jnp.max(jnp.abs(linear))) | (gradient < 0)
    # As one batch: on a CPU, independent batched factorizations run at once and can wait for each other forever.
    ends = jax.vmap(step)(jnp.stack([stays, clear]), jnp.stack([-linear, -gradient]))
    steps = jnp.stack([ends[0] - x, ends[1]])
    lengths = jnp.asarray(_LENGTHS, x.dtype)
    points = jnp.maximum(x[None, None, :] + lengths[None, :, None] * steps[:, None, :], 0).reshape(-1, x.shape[0])
    downhill = steps[1]
    room = jnp.where(downhill < 0, -x / jnp.where(downhill < 0, downhill, 1), jnp.inf)
    first = jnp.min(room)
    edge = jnp.where(room <= jnp.minimum(first, 1), 0, jnp.maximum(x + jnp.minimum(first, 1) * downhill, 0))
    points = jnp.concatenate([points, edge[None, :]])
    objectives = jax.vmap(lambda point: qp_objective(point, quadratic, linear))(points)
    best = jnp.argmin(jnp.where(jnp.isfinite(objectives), objectives, jnp.inf))
    better = objectives[best] < qp_objective(x, quadratic, linear)
    return jnp.where(better, points[best], x)


def kkt_residual(x: Float[Array, " n"], quadratic: Float[Array, "n n"], linear: Float[Array, " n"]) -> Float[Array, ""]:
    """Return how far `x ≥ 0` is from the optimality conditions; see `QPSolution.residual`."""
    gradient = _product(quadratic, x) + linear
    scale = jnp.max(jnp.abs(linear))
    violation = jnp.max(jnp.abs(jnp.minimum(jnp.diagonal(quadratic) * x, gradient)))
    return violation / jnp.where(scale > 0, scale, 1)


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
    # LAPACK may not return from a NaN.
    quadratic = jnp.where(finite, quadratic, jnp.eye(linear.shape[0], dtype=linear.dtype))
    linear = jnp.where(finite, linear, 0)
    if gamma is None:
        gamma = smallest_gamma(quadratic)
    if phi is None:
        phi = jnp.broadcast_to(_little(linear), linear.shape) if accelerate else linear_rate_phi(quadratic, linear)
    if start is None:
        # The minimum of every coordinate alone, and a little more: zero could never be left.
        diagonal = jnp.diagonal(quadratic)
        alone = jnp.abs(linear) / jnp.where(diagonal > 0, diagonal, 1)
        start = alone + jnp.mean(alone)

    def unfinished(state: _State) -> Array:
        return (state.residual > tol) & (state.num_iters < max_iters)

    def step(state: _State) -> _State:
        if accelerate:
            x = accelerated_updates(state.x, quadratic, linear, gamma, phi, _UPDATES_PER_STEP)
            x = _newton(x, quadratic, linear)
        else:
            x = pqp_update(state.x, quadratic, linear, gamma, phi)
            fell = qp_objective(x, quadratic, linear) <= qp_objective(state.x, quadratic, linear)
            x = jnp.where(fell, x, state.x)
        return _State(x, kkt_residual(x, quadratic, linear), state.num_iters + 1)

    first = _State(start, kkt_residual(start, quadratic, linear), jnp.int32(0))
    last = lax.while_loop(unfinished, step, first)
    return QPSolution(
        last.x,
        qp_objective(last.x, quadratic, linear),
        jnp.where(finite, last.residual, jnp.nan),
        last.num_iters,
        worst(
            status_if(~(last.residual <= tol), Status.MAX_ITERS),
            status_if(~finite | ~jnp.all(jnp.isfinite(last.x)), Status.NON_FINITE),
        ),
    )


@partial(jax.jit, static_argnames="accelerate")
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
      start: where to begin, above zero: multiplicative updates never leave a zero.
      gamma: `γ ≥ (−Q)₊1` (default: equal to it).
      phi: `φ ≥ 0`. Default: that of Theorem 6, with which the plain iteration converges linearly from everywhere; next
        to nothing where `accelerate`, since a small `φ` makes long steps.
      accelerate: every iteration is ten updates with momentum, then a Newton step in the coordinates that are not held
        at zero, taken as far as it helps. Otherwise one update (17), which for a condition number `c` needs about `c`
        iterations a digit.
      tol: an optimum is reached when the KKT residual is no larger; default: the root of machine epsilon.
      max_iters: limit on the iterations.

    Returns:
      `QPSolution`.

    Cost: `O(n²)` an iteration, `O(n³)` where `accelerate`. A batch runs to its slowest member.

    """
    n = linear.shape[-1]
    if quadratic.shape != (*linear.shape, n):
        raise ValueError(f"linear: expected one vector for each quadratic {quadratic.shape}; got shape {linear.shape}")
    dtype = linear.dtype
    tol = jnp.asarray(math.sqrt(float(jnp.finfo(dtype).eps)) if tol is None else tol, dtype)
    limit = jnp.asarray(max_iters, jnp.int32)

    def solve(
        quadratic: Array, linear: Array, start: Array | None, gamma: Array | None, phi: Array | None
    ) -> QPSolution:
        return _solve(quadratic, linear, start, gamma, phi, accelerate, tol, limit)

    for _ in linear.shape[:-1]:
        solve = jax.vmap(solve)
    return solve(quadratic, linear, start, gamma, phi)
