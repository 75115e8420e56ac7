"""The robust tensor power method, with all restarts as one batch.

`T = Σ_h λ_h v_h⊗v_h⊗v_h` with orthonormal `v_h` and `λ_h > 0`. Every `v_h` is an attracting fixed point of
`v ↦ T(I,v,v)/|T(I,v,v)|`, and nothing else is. For one component after the other: many random starts take a few steps,
the one with the largest `T(v,v,v)` is iterated until it stops moving, and is deflated, `T ← T − λ v⊗v⊗v`. At the end
every `v_h` is polished on the *undeflated* tensor, which removes the errors that deflation accumulates.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky (2014), Tensor decompositions for learning latent variable models,
Algorithm 1.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from latensor.base import check_axes, check_key, divide, freeze, machine_epsilon, matmul, small_jit
from latensor.decompose._linalg import check_number_of, check_rank, nearest_orthonormal
from latensor.decompose._packed import Packed, image, pack, squares, unexplained, values_at
from latensor.decompose._power_tangents import attach_eigenpairs
from latensor.decompose._status import Status, status_if, worst

# Two eigenvectors of an orthogonal tensor are at 90°; closer than 60° they are the same one, found twice.
_LARGEST_COSINE = 0.5
_MAX_ITERS = 200
# The largest distance of two unit vectors.
_LARGEST_CHANGE = 2.0


class Eigenpairs(NamedTuple):
    """Eigenvalues in decreasing order and eigenvectors (columns) of a symmetric tensor."""

    values: Float[Array, " rank"]
    vectors: Float[Array, "k rank"]
    residual: Float[Array, ""]
    """Largest violation `|T(I,v,v)/|T(I,v,v)| − v|` of the fixed-point equation. For `orthogonal` vectors, the largest
    change in the last step."""
    unexplained: Float[Array, ""]
    """`|T − Σ λ v⊗v⊗v| / |T|`: the part of the tensor that the eigenpairs do not account for."""
    num_iters: Int[Array, ""]
    """Steps of the longest lane, summed over the components and the polishing."""
    status: Int[Array, ""]


class _Iterates(NamedTuple):
    vectors: Float[Array, "k r"]
    change: Float[Array, ""]
    """Distance by which the vector that moved most has moved."""
    num_iters: Int[Array, ""]


def _normalize(vectors: Float[Array, "k r"], fallback: Float[Array, "k r"]) -> Float[Array, "k r"]:
    return divide(vectors, jnp.linalg.norm(vectors, axis=0)[None, :], fallback)


def _largest_move(vectors: Float[Array, "k r"], before: Float[Array, "k r"]) -> Float[Array, ""]:
    return jnp.max(jnp.linalg.norm(vectors - before, axis=0))


def _default_tolerance(dtype: jnp.dtype) -> float:
    return 256 * machine_epsilon(dtype)


def _iterate(packed: Packed, start: Float[Array, "k r"], tol: Array, max_iters: Array | int) -> _Iterates:
    """Iterate all columns until the one that moves most moves by at most `tol`."""
    # Multiplied once, instead of in every step as `image` would.
    matrix = packed.matrix * packed.multiplicity[None, :]

    def unfinished(state: _Iterates) -> Array:
        return (state.change > tol) & (state.num_iters < max_iters)

    def step(state: _Iterates) -> _Iterates:
        vectors = _normalize(matmul(matrix, squares(state.vectors)), state.vectors)
        return _Iterates(vectors, _largest_move(vectors, state.vectors), state.num_iters + 1)

    return lax.while_loop(unfinished, step, _Iterates(start, jnp.array(_LARGEST_CHANGE, start.dtype), jnp.int32(0)))


def _iterate_together(packed: Packed, start: Float[Array, "k r"], max_iters: Array | int) -> _Iterates:
    """Maximize `Σ_h T(v_h,v_h,v_h)²` over orthonormal columns, by repeated projection of its gradient.

    Near the solution each step squares the error of an orthogonal tensor, so a small change means an exact answer.
    """
    tol = math.sqrt(machine_epsilon(start.dtype))

    def unfinished(state: _Iterates) -> Array:
        return (state.change > tol) & (state.num_iters < max_iters)

    def step(state: _Iterates) -> _Iterates:
        images = image(packed, state.vectors)
        gradient = images * jnp.sum(state.vectors * images, axis=0)[None, :]
        finite = jnp.all(jnp.isfinite(gradient))  # LAPACK may hang on a NaN
        vectors = nearest_orthonormal(jnp.where(finite, gradient, state.vectors))
        return _Iterates(vectors, _largest_move(vectors, state.vectors), state.num_iters + 1)

    first = _Iterates(nearest_orthonormal(start), jnp.array(_LARGEST_CHANGE, start.dtype), jnp.int32(0))
    last = lax.while_loop(unfinished, step, first)
    signs = jnp.where(values_at(packed, last.vectors) < 0, -1, 1).astype(start.dtype)
    return last._replace(vectors=last.vectors * signs[None, :])


def _orthogonal(packed: Packed, pairs: Eigenpairs, start: Float[Array, "k rank"], max_iters: Array | int) -> Eigenpairs:
    """Replace eigenvectors by the orthonormal vectors that explain the tensor best."""
    identity = jnp.eye(start.shape[0], start.shape[1], dtype=start.dtype)
    last = _iterate_together(packed, jnp.where(jnp.all(jnp.isfinite(start)), start, identity), max_iters)
    values = values_at(packed, last.vectors)
    order = jnp.argsort(-values)
    values, vectors = values[order], last.vectors[:, order]
    # Values are positive by the choice of signs; one that is nothing beside the others belongs to no component.
    vanished = ~(values[-1] > machine_epsilon(values.dtype) * values[0])
    return pairs._replace(
        values=values * packed.scale,
        vectors=vectors,
        residual=last.change,
        unexplained=unexplained(packed, values, vectors),
        num_iters=pairs.num_iters + last.num_iters,
        # That eigenvectors which are not returned coincide, or have not converged, does not matter.
        status=worst(
            status_if(~(last.change <= math.sqrt(machine_epsilon(vectors.dtype))), Status.MAX_ITERS),
            status_if(vanished, Status.DEGENERATE),
            status_if(pairs.status == Status.NON_FINITE, Status.NON_FINITE),
        ),
    )


def _polish(packed: Packed, start: Float[Array, "k rank"], tol: Array, max_iters: Array | int) -> Eigenpairs:
    """Iterate all vectors on the whole tensor, and complete them to eigenpairs."""
    polished = _iterate(packed, start, tol, max_iters)
    # A weak component may slide into a stronger one on the full tensor: then the vector before polishing is better.
    stayed = jnp.sum(polished.vectors * start, axis=0) > _LARGEST_COSINE
    vectors = jnp.where(stayed[None, :], polished.vectors, start)
    images = image(packed, vectors)
    values = jnp.sum(vectors * images, axis=0)
    # A vector that was put back has not stopped moving; the others have, up to the change that ended the loop.
    away = jnp.max(jnp.where(stayed, 0, jnp.linalg.norm(_normalize(images, vectors) - vectors, axis=0)))
    residual = jnp.maximum(polished.change, away)
    order = jnp.argsort(-values)
    values, vectors = values[order], vectors[:, order]
    gram = matmul(vectors.T, vectors)
    overlap = jnp.max(jnp.abs(gram - jnp.diag(jnp.diag(gram))))
    missing = unexplained(packed, values, vectors)
    finite = jnp.all(jnp.isfinite(vectors)) & jnp.all(jnp.isfinite(values * packed.scale)) & jnp.isfinite(missing)
    return Eigenpairs(
        values=values * packed.scale,
        vectors=vectors,
        residual=residual,
        unexplained=missing,
        num_iters=polished.num_iters,
        status=worst(
            status_if(~(residual <= tol), Status.MAX_ITERS),
            status_if((overlap > _LARGEST_COSINE) | ~jnp.all(stayed & (values > 0)), Status.DEGENERATE),
            status_if(~finite, Status.NON_FINITE),
        ),
    )


@small_jit(static_argnames=("rank", "num_restarts", "orthogonal"))
def power_method(
    key: Array,
    tensor: Float[Array, "k k k"],
    rank: int,
    num_restarts: int = 20,
    *,
    orthogonal: bool = False,
    tol: float | Float[Array, ""] | None = None,
    max_iters: int | Int[Array, ""] = _MAX_ITERS,
    restart_iters: int | Int[Array, ""] = 15,
) -> Eigenpairs:
    """Find the eigenpairs of a symmetric, nearly orthogonal tensor of order three.

    Args:
      key: a random key, for the starts.
      tensor: `(k, k, k)`; its symmetric part is decomposed.
      rank: number of eigenpairs, at most k.
      num_restarts: number of random starts per component, run as one batch.
      orthogonal: return the orthonormal vectors that maximize `Σ_h T(v_h,v_h,v_h)²`, starting from those of the power
        method, instead of individual eigenvectors. The two agree for an orthogonal tensor; for a noisy one the errors
        are smaller (by a tenth to a quarter in our trials) and no two vectors coincide.
      tol: a vector has converged when a step moves it by at most this; default: 256 machine epsilons.
      max_iters: limit on the steps of the chosen start, and again on those of the polishing.
      restart_iters: limit on the steps of all starts before the best is chosen.

    Returns:
      `Eigenpairs`. The status is `DEGENERATE` where two vectors coincide, one slides into another on the whole tensor,
      or a value is not positive; `MAX_ITERS` where the polishing has not met `tol`.

    Derivatives of values and vectors are those of the equations that they solve, not of the iterations.

    Cost: `O(k³ · num_restarts)` per step. A batch (restarts, or lanes under `vmap`) runs to its slowest member.

    """
    key, tensor = check_key(key), check_axes("tensor", tensor, "k k k")
    k = tensor.shape[0]
    check_rank(rank, k)
    check_number_of("num_restarts", num_restarts)
    dtype = tensor.dtype
    tol = jnp.asarray(_default_tolerance(dtype) if tol is None else tol, dtype)
    packed = pack(freeze(tensor))

    def next_component(deflated: Packed, key: Array) -> tuple[Packed, tuple[Array, Array]]:
        starts = jax.random.normal(key, (k, num_restarts), dtype)
        tried = _iterate(deflated, starts / jnp.linalg.norm(starts, axis=0)[None, :], tol, restart_iters)
        best = jnp.argmax(values_at(deflated, tried.vectors))
        component = _iterate(deflated, lax.dynamic_slice_in_dim(tried.vectors, best, 1, axis=1), tol, max_iters)
        value = values_at(deflated, component.vectors)[0]
        matrix = deflated.matrix - value * component.vectors * squares(component.vectors).T
        return deflated._replace(matrix=matrix), (component.vectors[:, 0], tried.num_iters + component.num_iters)

    _, (rows, num_iters) = lax.scan(next_component, packed, jax.random.split(key, rank))
    pairs = _polish(packed, rows.T, tol, max_iters)
    pairs = pairs._replace(num_iters=pairs.num_iters + jnp.sum(num_iters, dtype=jnp.int32))
    return _finish(tensor, packed, pairs, rows.T, max_iters, orthogonal)


def _finish(
    tensor: Float[Array, "k k k"],
    packed: Packed,
    pairs: Eigenpairs,
    start: Float[Array, "k rank"],
    max_iters: Array | int,
    orthogonal: bool,
) -> Eigenpairs:
    """Make the vectors orthonormal, if they are to be, and attach the derivatives."""
    pairs = _orthogonal(packed, pairs, start, max_iters) if orthogonal else pairs
    values, vectors = attach_eigenpairs(tensor, pairs.values, pairs.vectors, orthogonal)
    return pairs._replace(values=values, vectors=vectors)


def polish_vectors(
    tensor: Float[Array, "k k k"],
    vectors: Float[Array, "k rank"],
    orthogonal: bool = False,
    max_iters: int = _MAX_ITERS,
) -> Eigenpairs:
    """Polish the vectors of another method; signs are chosen such that `λ > 0`."""
    packed, vectors = pack(freeze(tensor)), freeze(vectors)
    signs = jnp.where(values_at(packed, vectors) < 0, -1, 1).astype(vectors.dtype)
    tol = jnp.asarray(_default_tolerance(vectors.dtype), vectors.dtype)
    pairs = _polish(packed, vectors * signs[None, :], tol, max_iters)
    return _finish(tensor, packed, pairs, vectors, max_iters, orthogonal)
