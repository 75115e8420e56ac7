"""The alternation of a CP decomposition: sweeps over the three modes until the objective stops falling."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from latensor.base import check_axes, einsum, machine_epsilon, positive_or_one, smallest_normal
from latensor.decompose._cp_updates import Factors
from latensor.decompose._linalg import check_three
from latensor.decompose._status import Status, status_if, worst

# The objective costs half of a sweep: it is computed once per this number of sweeps.
_SWEEPS_PER_CHECK = 5
# Residuals below this many machine epsilons, relative to the tensor, count as zero.
_ROUNDING = 30.0


class CPFactors(NamedTuple):
    """Weights in decreasing order, and factors. Columns sum to one if nonnegative, else they have length one."""

    weights: Float[Array, " k"]
    factors: tuple[Float[Array, "d1 k"], Float[Array, "d2 k"], Float[Array, "d3 k"]]
    unexplained: Float[Array, ""]
    """`|M − M̃| / |M|`, over the entries that the method uses."""
    residual: Float[Array, ""]
    """Relative decrease of the objective per sweep, over the last few sweeps."""
    num_iters: Int[Array, ""]
    """Sweeps over the three modes."""
    status: Int[Array, ""]


def reconstruct(weights: Float[Array, " k"], factors: Factors) -> Float[Array, "d1 d2 d3"]:
    """Return the tensor `Σ_h w_h a_h⊗b_h⊗c_h` of CP factors `(d1, k)`, `(d2, k)`, `(d3, k)`."""
    weights = check_axes("weights", weights, "k")
    a, b, c = check_three("factors", factors, "d k")
    if not a.shape[1] == b.shape[1] == c.shape[1] == weights.shape[0]:
        raise ValueError(
            f"factors: expected {weights.shape[0]} columns, one per weight; got shapes {a.shape}, {b.shape}, {c.shape}"
        )
    left = (a * weights[None, :])[:, None, :] * b[None, :, :]
    return einsum("ijh,lh->ijl", left, c)


class Problem(NamedTuple):
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
        return jnp.linalg.norm(missed) / positive_or_one(jnp.linalg.norm(tensor))


def make_problem(tensor: Array, tol: Any, max_iters: Any) -> Problem:
    """Scale the tensor, replace it if it is not finite, and fill in the default tolerance."""
    finite = jnp.all(jnp.isfinite(tensor))
    tensor = jnp.where(finite, tensor, 1)
    scale = positive_or_one(jnp.max(jnp.abs(tensor)))
    tol = jnp.asarray(1e-6 if tol is None else tol, tensor.dtype)
    return Problem(tensor / scale, None, scale, finite, tol, jnp.asarray(max_iters, jnp.int32))


class State(NamedTuple):
    """Factors whose components are balanced, and how the objective fell in the last sweeps."""

    factors: Factors
    objective: Float[Array, ""]
    decrease: Float[Array, ""]
    num_iters: Int[Array, ""]


def balance(factors: Factors) -> Factors:
    """Give the three columns of each component the same length: products of unequal ones leave the floating range."""
    norms = [jnp.linalg.norm(factor, axis=0) for factor in factors]
    alive = (norms[0] > 0) & (norms[1] > 0) & (norms[2] > 0)
    lengths = [jnp.where(alive, norm, 1) for norm in norms]
    common = jnp.cbrt(lengths[0]) * jnp.cbrt(lengths[1]) * jnp.cbrt(lengths[2])
    a, b, c = (f * jnp.where(alive, common / length, 1)[None, :] for f, length in zip(factors, lengths, strict=True))
    return a, b, c


def scale_start(start: Factors, tensor: Array) -> Factors:
    """Scale given factors by one number, found by least squares, such that their tensor has the right size."""
    start = balance(start)
    product = reconstruct(jnp.ones(start[0].shape[1], tensor.dtype), start)
    ratio = jnp.sum(product * tensor) / jnp.maximum(jnp.sum(product**2), smallest_normal(tensor.dtype))
    root = jnp.cbrt(positive_or_one(ratio))
    a, b, c = (factor * root for factor in start)
    return a, b, c


def alternate(problem: Problem, sweep: Callable[[Factors], Factors], start: Factors) -> State:
    """Sweep until a sweep lowers the objective by no more than `tol` of it, or the objective is zero up to rounding."""
    ones = jnp.ones(start[0].shape[1], start[0].dtype)
    negligible = (_ROUNDING * machine_epsilon(ones.dtype)) ** 2

    def unfinished(state: State) -> Array:
        return (state.decrease > problem.tol) & (state.num_iters < problem.max_iters)

    def advance(state: State) -> State:
        num_sweeps = jnp.minimum(_SWEEPS_PER_CHECK, problem.max_iters - state.num_iters)
        factors = lax.fori_loop(0, num_sweeps, lambda _, factors: balance(sweep(factors)), state.factors)
        objective = problem.unexplained(ones, factors) ** 2
        decrease = (state.objective - objective) / jnp.maximum(objective, negligible) / num_sweeps
        decrease = jnp.where(jnp.isfinite(state.objective), jnp.where(objective <= negligible, 0, decrease), 1)
        return State(factors, objective, decrease, state.num_iters + num_sweeps)

    infinite = jnp.full((), jnp.inf, ones.dtype)
    return lax.while_loop(unfinished, advance, State(start, infinite, jnp.ones_like(infinite), jnp.int32(0)))


def finish(problem: Problem, state: State, order: int) -> CPFactors:
    """Scale the columns (to norm `order`), sort by weight and compute how well the tensor is explained."""
    lengths = [jnp.linalg.norm(factor, ord=order, axis=0) for factor in state.factors]
    alive = (lengths[0] > 0) & (lengths[1] > 0) & (lengths[2] > 0)
    weights = jnp.where(alive, lengths[0] * lengths[1] * lengths[2], 0)
    sort = jnp.argsort(-weights)
    # The column of a vanished component has no direction: it gets weight zero and a flat column.
    flat = [1 / f.shape[0] ** (1 / order) for f in state.factors]
    a, b, c = (
        jnp.where(alive[None, :], f / jnp.where(alive, length, 1)[None, :], one)[:, sort]
        for f, length, one in zip(state.factors, lengths, flat, strict=True)
    )
    weights = weights[sort]
    # A tensor with a NaN was replaced by another one, whose fit says nothing.
    unexplained = jnp.where(problem.finite, problem.unexplained(weights, (a, b, c)), jnp.nan)
    status = worst(
        status_if(~(state.decrease <= problem.tol), Status.MAX_ITERS),
        status_if(~jnp.all(alive), Status.DEGENERATE),
        status_if(~problem.finite | ~jnp.isfinite(unexplained), Status.NON_FINITE),
    )
    return CPFactors(weights * problem.scale, (a, b, c), unexplained, state.decrease, state.num_iters, status)
