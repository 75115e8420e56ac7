"""Canonical polyadic (CP) decompositions of a third-order tensor, nonnegative or not, with restarts as a batch.

    M ≈ Σ_h w_h a_h⊗b_h⊗c_h,   the columns of A (d₁, k), B (d₂, k), C (d₃, k)

All methods alternate: with two factors fixed, each row `x` of the third is best where `½ xᵀQx + zᵀx` is smallest, with
`Q = (CᵀC)∘(BᵀB)` for all rows and `z` a row of `Z = −M₍₁₎(C⊙B)`. What differs is how far and by which steps this is
solved. `M` may have negative entries, however many; nonnegative methods keep `x ≥ 0`.

Source: Tan, Mukherjee (2017), Partitioned tensor factorizations for learning mixed membership models, Algorithm 1,
Theorems 2 and 3; HALS: Kim, He, Park (2014).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.decompose._qp import accelerated_updates, linear_rate_phi, pqp_update
from latensor.decompose._status import Status, status_if, worst

METHODS = ("pqp", "hals", "wnmf", "multiplicative")
Factors = tuple[Array, Array, Array]
# Changes the rows of one factor, given how the tensor and the other two make their quadratic programs.
ModeUpdate = Callable[[Array, Array, Array], Array]

# Solving one mode further costs k² for every row of a factor, setting up the next one d² k.
_UPDATES_PER_MODE = {"pqp": 5, "hals": 3, "wnmf": 1, "multiplicative": 1}
_EXACT_PASSES = 2
_REGRESSION_PASSES = 20
# The objective takes half as long as a sweep: it is looked at after so many of them.
_SWEEPS_PER_CHECK = 5
# What is left of the tensor at so many roundings of it is nothing.
_ROUNDING = 30.0


class CPFactors(NamedTuple):
    """Weights in decreasing order, and factors. Columns sum to one where nonnegative, else they have length one."""

    weights: Float[Array, " k"]
    factors: tuple[Float[Array, "d1 k"], Float[Array, "d2 k"], Float[Array, "d3 k"]]
    unexplained: Float[Array, ""]
    """`|M − M̃| / |M|`, over the entries that the method looks at."""
    residual: Float[Array, ""]
    """What the last sweep took off the objective, as a share of it."""
    num_iters: Int[Array, ""]
    """Sweeps over the three modes."""
    status: Int[Array, ""]


def _gram(factor: Array) -> Array:
    return jnp.matmul(factor.T, factor, precision="highest")


def _sweep(tensor: Float[Array, "d1 d2 d3"], factors: Factors, update: ModeUpdate) -> Factors:
    """Update all three factors in turn.

    The product of the tensor with `C` serves both `A` and `B`: two large products a sweep in place of three.
    """
    a, b, c = factors
    with_c = jnp.einsum("ijl,lh->ijh", tensor, c, precision="highest")
    gram_c = _gram(c)
    a = update(a, gram_c * _gram(b), -jnp.sum(with_c * b[None, :, :], axis=1))
    b = update(b, gram_c * _gram(a), -jnp.sum(with_c * a[:, None, :], axis=0))
    # Components first: the order in which the product comes, without a transposition.
    with_a = jnp.einsum("ijl,ih->hjl", tensor, a, precision="highest")
    return a, b, update(c, _gram(a) * _gram(b), -jnp.sum(with_a * b.T[:, :, None], axis=1).T)


def _pqp_rows(accelerate: bool, num_updates: int | Int[Array, ""]) -> ModeUpdate:
    """Every row is a PQP of its own, with one `Q`; `γ = 0` because `Q ≥ 0`."""

    def update(rows: Array, quadratic: Array, linear: Array) -> Array:
        gamma = jnp.zeros(rows.shape[1], rows.dtype)
        if accelerate:
            # No φ: long steps. What they take to zero, the exact passes can bring back.
            run = jax.vmap(partial(accelerated_updates, nonnegative=True), in_axes=(0, None, 0, None, None, None))
            rows = run(rows, quadratic, linear, gamma, gamma, num_updates)
            return _hals_rows(_EXACT_PASSES)(rows, quadratic, linear)
        phi = linear_rate_phi(quadratic, linear)
        step = jax.vmap(pqp_update, in_axes=(0, None, 0, None, 0))
        return lax.fori_loop(0, num_updates, lambda _, rows: step(rows, quadratic, linear, gamma, phi), rows)

    return update


def _hals_rows(num_updates: int | Int[Array, ""]) -> ModeUpdate:
    """Exact minimization of one column after the other."""

    def update(rows: Array, quadratic: Array, linear: Array) -> Array:
        diagonal = jnp.diagonal(quadratic)
        scale = jnp.where(diagonal > 0, diagonal, 1)

        def column(h: Array, rows: Array) -> Array:
            gradient = jnp.matmul(rows, quadratic[:, h], precision="highest") + linear[:, h]
            return rows.at[:, h].set(jnp.maximum(rows[:, h] - gradient / scale[h], 0))

        def once(_: Array, rows: Array) -> Array:
            return lax.fori_loop(0, rows.shape[1], column, rows)

        return lax.fori_loop(0, num_updates, once, rows)

    return update


def _multiplicative_rows(num_updates: int | Int[Array, ""]) -> ModeUpdate:
    """Lee and Seung: PQP with `γ = φ = 0` on a tensor without negative entries."""

    def update(rows: Array, quadratic: Array, linear: Array) -> Array:
        zero = jnp.zeros(rows.shape[1], rows.dtype)
        step = jax.vmap(pqp_update, in_axes=(0, None, 0, None, None))
        return lax.fori_loop(0, num_updates, lambda _, rows: step(rows, quadratic, linear, zero, zero), rows)

    return update


def _wnmf_sweep(tensor: Float[Array, "d1 d2 d3"], factors: Factors, num_updates: int | Int[Array, ""]) -> Factors:
    """One sweep of weighted NMF, which ignores the negative entries: PQP with `γ = φ = 0` and a `Q` for every row.

    Row `i` sees only its nonnegative entries `Ω_i`: `Q_i = H diag(Ω_i) Hᵀ`, `z_i = −H (Ω_i ∘ M_i)`, `H = (C⊙B)ᵀ`.
    """
    seen = (tensor >= 0).astype(tensor.dtype)
    zero = jnp.zeros(factors[0].shape[1], tensor.dtype)
    step = jax.vmap(pqp_update, in_axes=(0, 0, 0, None, None))
    made = list(factors)
    for mode in range(3):
        first, second = (made[other] for other in range(3) if other != mode)
        omega, values = jnp.moveaxis(seen, mode, 0), jnp.moveaxis(tensor, mode, 0)
        outer_first = first[:, :, None] * first[:, None, :]
        outer_second = second[:, :, None] * second[:, None, :]
        half = jnp.einsum("ijl,lhg->ijhg", omega, outer_second, precision="highest")
        quadratic = jnp.einsum("ijhg,jhg->ihg", half, outer_first, precision="highest")
        linear = -jnp.einsum("ijl,jh,lh->ih", omega * values, first, second, precision="highest")
        made[mode] = lax.fori_loop(
            0, num_updates, lambda _, rows, q=quadratic, z=linear: step(rows, q, z, zero, zero), made[mode]
        )
    return made[0], made[1], made[2]


def _als_rows(rows: Array, quadratic: Array, linear: Array) -> Array:
    """Return the unconstrained minimum `X = −Z Q⁻¹`, with a ridge of a few roundings for a singular `Q`."""
    k = rows.shape[1]
    ridge = 10 * k * float(jnp.finfo(rows.dtype).eps) * jnp.trace(quadratic) / k + float(jnp.finfo(rows.dtype).tiny)
    factor = jnp.linalg.cholesky(quadratic + ridge * jnp.eye(k, dtype=rows.dtype))
    return jax.scipy.linalg.cho_solve((factor, True), -linear.T).T


def regress_modes(tensor: Float[Array, "d1 d2 d3"], factors: Factors, known: tuple[Array, Array, Array]) -> Factors:
    """Return nonnegative factors whose `known` rows are given, the others regressed on them.

    Every row of a mode is the best one for the part of the tensor that has known rows in both other modes.
    """
    trusted = [jnp.where(m[:, None], f, 0) for f, m in zip(factors, known, strict=True)]
    solve = _hals_rows(_REGRESSION_PASSES)
    made = []
    for mode, letters in enumerate(("jh,lh->ih", "ih,lh->jh", "ih,jh->lh")):
        first, second = (trusted[other] for other in range(3) if other != mode)
        linear = -jnp.einsum(f"ijl,{letters}", tensor, first, second, precision="highest")
        start = jnp.broadcast_to(jnp.mean(trusted[mode], axis=0, keepdims=True), trusted[mode].shape)
        found = solve(start, _gram(first) * _gram(second), linear)
        # Regression leaves exact zeros, which multiplicative updates could not leave.
        found = found + 1e-3 * jnp.mean(found, axis=0, keepdims=True)
        made.append(jnp.where(known[mode][:, None], trusted[mode], found))
    return made[0], made[1], made[2]


def reconstruct(weights: Float[Array, " k"], factors: Factors) -> Float[Array, "d1 d2 d3"]:
    """Return `Σ_h w_h a_h⊗b_h⊗c_h`."""
    a, b, c = factors
    left = (a * weights[None, :])[:, None, :] * b[None, :, :]
    return jnp.einsum("ijh,lh->ijl", left, c, precision="highest")


class _State(NamedTuple):
    factors: Factors
    objective: Float[Array, ""]
    decrease: Float[Array, ""]
    num_iters: Int[Array, ""]


def _balance(factors: Factors) -> Factors:
    """Give the three columns of every component the same length: products of unequal ones leave the floating range."""
    norms = [jnp.linalg.norm(factor, axis=0) for factor in factors]
    alive = (norms[0] > 0) & (norms[1] > 0) & (norms[2] > 0)
    lengths = [jnp.where(alive, norm, 1) for norm in norms]
    common = jnp.cbrt(lengths[0]) * jnp.cbrt(lengths[1]) * jnp.cbrt(lengths[2])
    a, b, c = (f * jnp.where(alive, common / length, 1)[None, :] for f, length in zip(factors, lengths, strict=True))
    return a, b, c


class _Problem(NamedTuple):
    """A tensor divided by its largest entry, the entries that count, and when to stop."""

    tensor: Float[Array, "d1 d2 d3"]
    seen: Float[Array, "d1 d2 d3"] | None
    scale: Float[Array, ""]
    finite: Bool[Array, ""]
    tol: Float[Array, ""]
    max_iters: Int[Array, ""]

    def unexplained(self, weights: Float[Array, " k"], factors: Factors) -> Float[Array, ""]:
        """Return `|M − M̃| / |M|`."""
        missed = self.tensor - reconstruct(weights, factors)
        tensor = self.tensor
        if self.seen is not None:
            tensor, missed = tensor * self.seen, missed * self.seen
        size = jnp.linalg.norm(tensor)
        return jnp.linalg.norm(missed) / jnp.where(size > 0, size, 1)


def _problem(tensor: Array, tol: Any, max_iters: Any) -> _Problem:
    finite = jnp.all(jnp.isfinite(tensor))
    tensor = jnp.where(finite, tensor, 1)
    scale = jnp.max(jnp.abs(tensor))
    scale = jnp.where(scale > 0, scale, 1)
    tol = jnp.asarray(1e-6 if tol is None else tol, tensor.dtype)
    return _Problem(tensor / scale, None, scale, finite, tol, jnp.asarray(max_iters, jnp.int32))


def _iterate(problem: _Problem, sweep: Callable[[Factors], Factors], start: Factors) -> _State:
    """Sweep until a sweep takes no more than `tol` off the objective, or nothing is left of it."""
    ones = jnp.ones(start[0].shape[1], start[0].dtype)
    nothing = (_ROUNDING * float(jnp.finfo(ones.dtype).eps)) ** 2

    def unfinished(state: _State) -> Array:
        return (state.decrease > problem.tol) & (state.num_iters < problem.max_iters)

    def advance(state: _State) -> _State:
        num_sweeps = jnp.minimum(_SWEEPS_PER_CHECK, problem.max_iters - state.num_iters)
        factors = lax.fori_loop(0, num_sweeps, lambda _, factors: _balance(sweep(factors)), state.factors)
        objective = problem.unexplained(ones, factors) ** 2
        decrease = (state.objective - objective) / jnp.maximum(objective, nothing) / num_sweeps
        decrease = jnp.where(jnp.isfinite(state.objective), jnp.where(objective <= nothing, 0, decrease), 1)
        return _State(factors, objective, decrease, state.num_iters + num_sweeps)

    infinite = jnp.full((), jnp.inf, ones.dtype)
    return lax.while_loop(unfinished, advance, _State(start, infinite, jnp.ones_like(infinite), jnp.int32(0)))


def _finish(problem: _Problem, state: _State, order: int) -> CPFactors:
    """Scale the columns (to norm `order`), sort by weight and say how well the tensor is explained."""
    lengths = [jnp.linalg.norm(factor, ord=order, axis=0) for factor in state.factors]
    alive = (lengths[0] > 0) & (lengths[1] > 0) & (lengths[2] > 0)
    weights = jnp.where(alive, lengths[0] * lengths[1] * lengths[2], 0)
    sort = jnp.argsort(-weights)
    # The column of a component that died has no direction: a flat one is a direction like any other, at weight zero.
    flat = [1 / f.shape[0] ** (1 / order) for f in state.factors]
    a, b, c = (
        jnp.where(alive[None, :], f / jnp.where(alive, length, 1)[None, :], one)[:, sort]
        for f, length, one in zip(state.factors, lengths, flat, strict=True)
    )
    weights = weights[sort]
    # A tensor with a NaN was replaced by another, which may well have been explained.
    unexplained = jnp.where(problem.finite, problem.unexplained(weights, (a, b, c)), jnp.nan)
    status = worst(
        status_if(~(state.decrease <= problem.tol), Status.MAX_ITERS),
        status_if(~jnp.all(alive), Status.DEGENERATE),
        status_if(~problem.finite | ~jnp.isfinite(unexplained), Status.NON_FINITE),
    )
    return CPFactors(weights * problem.scale, (a, b, c), unexplained, state.decrease, state.num_iters, status)


def _check(tensor: Array, rank: int, num_restarts: int, start: Factors | None) -> None:
    if tensor.ndim != 3 or 0 in tensor.shape:
        raise ValueError(f"tensor: expected three axes, none of them empty; got shape {tensor.shape}")
    if rank < 1:
        raise ValueError(f"rank: expected an integer of at least 1; got {rank}")
    if num_restarts < 1:
        raise ValueError(f"num_restarts: expected an integer of at least 1; got {num_restarts}")
    if start is not None and [f.shape for f in start] != [(d, rank) for d in tensor.shape]:
        raise ValueError(f"start: expected three factors with {rank} columns; got shapes {[f.shape for f in start]}")


def _best_of(run: Callable[[Factors], CPFactors], starts: Factors) -> CPFactors:
    """Run all starts as a batch and keep the one that explains most."""
    tried = jax.vmap(run)(starts)
    best = jnp.argmin(jnp.where(jnp.isfinite(tried.unexplained), tried.unexplained, jnp.inf))
    return jax.tree.map(lambda leaf: leaf[best], tried)


def _starts(
    key: Array, tensor: Array, rank: int, num_restarts: int, start: Factors | None, draw: Callable[..., Array]
) -> Factors:
    """Return `num_restarts` random starts, or the given one and the others random."""
    num_random = num_restarts if start is None else num_restarts - 1
    # One draw for all, and none where none is needed: random numbers take longest to compile.
    ends = [tensor.shape[0], tensor.shape[0] + tensor.shape[1]]
    parts = []
    if num_random:
        parts.append(jnp.split(draw(key, (num_random, sum(tensor.shape), rank), tensor.dtype), ends, axis=1))
    if start is not None:
        parts.insert(0, [factor[None] for factor in start])
    a, b, c = (jnp.concatenate(mode) for mode in zip(*parts, strict=True))
    return a, b, c


@partial(jax.jit, static_argnames=("rank", "method", "num_restarts", "accelerate"))
def nonnegative_cp(
    key: Array,
    tensor: Float[Array, "d1 d2 d3"],
    rank: int,
    method: Literal["pqp", "hals", "wnmf", "multiplicative"] = "pqp",
    *,
    num_restarts: int = 1,
    accelerate: bool = True,
    start: Factors | None = None,
    num_updates: int | Int[Array, ""] | None = None,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = 1000,
) -> CPFactors:
    """Find nonnegative factors whose CP tensor is nearest to `tensor`, which may have negative entries.

    Args:
      key: a random key, for the starts.
      tensor: `(d1, d2, d3)`, entries of either sign.
      rank: number of components `k`.
      method: `"pqp"`, parallel quadratic programming; `"hals"`, exact minimization column by column;
        `"wnmf"`, which leaves negative entries out of the objective; `"multiplicative"`, Lee and Seung's updates on the
        tensor with its negative entries set to zero. The objective of none of them ever rises (beyond rounding).
      num_restarts: random starts, run as one batch; the best is returned.
      accelerate: for `"pqp"`: on every mode five updates with momentum, then two passes in which each coordinate in
        turn goes to the limit of its own updates. Otherwise Algorithm 1 of the paper as it stands: one update with the
        `φ` of Theorem 6.
      start: factors to begin with, entries above zero, in place of the first random start.
      num_updates: updates of a mode before the next one; default: 5 for accelerated `"pqp"`, 3 for `"hals"`, else 1.
      tol: stop when a sweep takes no more than this share off the objective; default: 1e-6.
      max_iters: limit on the sweeps.

    Returns:
      `CPFactors`. Its status is `DEGENERATE` where a component died out.

    Cost: `4 d³ k` flops a sweep and restart, and `d² k²` for solving. A batch runs to its slowest member.

    """
    _check(tensor, rank, num_restarts, start)
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(map(repr, METHODS))}; got {method!r}")
    problem = _problem(tensor, tol, max_iters)
    if num_updates is None:
        num_updates = 1 if method == "pqp" and not accelerate else _UPDATES_PER_MODE[method]
    if method == "multiplicative":
        problem = problem._replace(tensor=jnp.maximum(problem.tensor, 0))
    elif method == "wnmf":
        problem = problem._replace(seen=(problem.tensor >= 0).astype(tensor.dtype))
    updates = {
        "pqp": _pqp_rows(accelerate, num_updates),
        "hals": _hals_rows(num_updates),
        "multiplicative": _multiplicative_rows(num_updates),
    }

    def sweep(factors: Factors) -> Factors:
        if method == "wnmf":
            return _wnmf_sweep(problem.tensor, factors, num_updates)
        return _sweep(problem.tensor, factors, updates[method])

    if start is not None:
        start = _scale_start(start, problem.tensor)
    starts = _starts(key, tensor, rank, num_restarts, start, jax.random.uniform)
    return _best_of(lambda factors: _finish(problem, _iterate(problem, sweep, factors), 1), starts)


def _scale_start(start: Factors, tensor: Array) -> Factors:
    """Scale given factors so that their tensor, not only its shape, is near: one number, by least squares."""
    start = _balance(start)
    made = reconstruct(jnp.ones(start[0].shape[1], tensor.dtype), start)
    ratio = jnp.sum(made * tensor) / jnp.maximum(jnp.sum(made**2), float(jnp.finfo(tensor.dtype).tiny))
    root = jnp.cbrt(jnp.where(ratio > 0, ratio, 1))
    a, b, c = (factor * root for factor in start)
    return a, b, c


@partial(jax.jit, static_argnames=("rank", "num_restarts"))
def cp_als(
    key: Array,
    tensor: Float[Array, "d1 d2 d3"],
    rank: int,
    *,
    num_restarts: int = 1,
    start: Factors | None = None,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = 1000,
) -> CPFactors:
    """Find factors of either sign whose CP tensor is nearest to `tensor`, by alternating least squares.

    Arguments and result as for `nonnegative_cp`; columns have length one and the weights are positive.
    """
    _check(tensor, rank, num_restarts, start)
    problem = _problem(tensor, tol, max_iters)

    def sweep(factors: Factors) -> Factors:
        return _sweep(problem.tensor, factors, _als_rows)

    starts = _starts(key, tensor, rank, num_restarts, start, jax.random.normal)
    return _best_of(lambda factors: _finish(problem, _iterate(problem, sweep, factors), 2), starts)
