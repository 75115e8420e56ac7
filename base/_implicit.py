"""Derivatives of solutions that iterations or factorizations find, by implicit differentiation.

A solver finds `z` with `F(z, a) = 0`. Its steps need no derivatives: `dz` solves `F_z dz = −F_a da` at the solution,
however it was found. `attach_tangent` gives a solution this derivative, in forward and in reverse mode; without
differentiation it costs nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import gmres

Solution = TypeVar("Solution")


def freeze(tree: Solution) -> Solution:
    """Return the same values, as constants: what a solver gets, so that nothing differentiates its steps."""
    return jax.tree.map(lax.stop_gradient, tree)


def attach_tangent(tangent: Callable[[Any, Any, Any], Any], solution: Solution, inputs: Any) -> Solution:
    """Return a solution with a derivative.

    Args:
      tangent: maps `(solution, inputs, changes)` to the change of the solution, linear in the `changes` of the inputs.
        A change has the type of what changes; integers have changes of type float0, to be left alone. It must not use
        arrays of its surroundings: everything that may be differentiated is in `inputs`.
      solution: arrays of floating numbers, found from frozen inputs.
      inputs: what the solution depends on.

    Derivatives of higher order are right where `tangent` computes with its `solution` and `inputs` only.

    """
    return _attach(tangent, freeze(solution), inputs)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attach(tangent: Callable[[Any, Any, Any], Any], solution: Any, inputs: Any) -> Any:
    return solution


@_attach.defjvp
def _(tangent: Callable[[Any, Any, Any], Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    solution, inputs = primals
    # Itself with a derivative, so that the tangent has one.
    solution = _attach(tangent, solution, inputs)
    return solution, tangent(solution, inputs, tangents[1])


def open_function(function: Callable[..., Any], *examples: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function of the arrays that another one holds, and these: `opened(parts, *arguments)`.

    A rule for derivatives must not hold arrays of a trace that may be over when it is used, so it gets them as inputs.

    Args:
      function: any function of arrays.
      *examples: arguments of the shapes and types that it will be called with.

    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*examples)
    structure = jax.tree.structure(shape)

    def opened(parts: Any, *arguments: Any) -> Any:
        leaves = jax.core.eval_jaxpr(closed.jaxpr, parts, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(structure, leaves)

    return opened, list(closed.consts)


def solve_fixed_point(
    step: Callable[[Any, Any], Any], solution: Solution, parts: Any, tolerance: float, max_iters: int = 100
) -> Solution:
    """Return a solution of `z = step(parts, z)` with its derivative, `(I − ∂step/∂z) dz = ∂step/∂parts dparts`.

    The linear system is solved by GMRES, each step of which takes one derivative of `step`.
    """

    def tangent(solution: Any, parts: Any, changes: Any) -> Any:
        _, right = jax.jvp(lambda parts: step(parts, solution), (parts,), (changes,))
        # One vector: JAX cannot transpose a solve of several unknowns of which one is not asked for (0.5.3).
        flat, unravel = ravel_pytree(right)

        def matvec(move: Any) -> Any:
            _, image = jax.jvp(lambda at: step(parts, at), (solution,), (unravel(move),))
            return move - ravel_pytree(image)[0]

        def solve(matvec: Any, right: Any) -> Any:
            restart = min(right.size, 30)
            return gmres(matvec, right, tol=tolerance, restart=restart, maxiter=-(-max_iters // restart))[0]

        # Within a solve of our own: JAX cannot transpose `gmres` itself (0.10.2).
        return unravel(lax.custom_linear_solve(matvec, flat, solve, solve))

    return attach_tangent(tangent, solution, parts)
