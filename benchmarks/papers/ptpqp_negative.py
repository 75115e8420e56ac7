"""The 2 × 2 × 2 example of the paper on PTPQP (§4.4): a positive tensor whose only decomposition has a negative entry.

The unfolding `[1 3 | 2 2; 2 2 | 2 2]` is `Σ_j A_j⊗B_j⊗C_j` with `A = C = [1 1; 1 0]` and `B = [2 −1; 2 1]`. All factors
have full rank, so this is the only decomposition of rank two (Kruskal), but for order and scale. So rounding negative
entries of a *tensor* to zero does not make the factors of a general decomposition nonnegative.

Factored from 50 random starts by alternating least squares, whose negative entries are then cut off, and by the four
nonnegative methods. Claims: least squares finds these factors whenever it explains the tensor; all nonnegative methods
find the same optimum from every start. What cutting off leaves unexplained is in the table. In float64.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from benchmarks.runner import Claim, Options, Report, double_precision
from latensor.decompose import column_angles, cp_als, nonnegative_cp, reconstruct

_A, _B = np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([[2.0, -1.0], [2.0, 1.0]])
_METHODS: tuple[Any, ...] = ("pqp", "hals", "wnmf", "multiplicative")
_LIMITS: dict[str, Any] = {"tol": 1e-14, "max_iters": 20_000}
# Unexplained shares of the tensor below the first are zero; those that differ by less than the second are the same.
_EXPLAINED, _SAME = 1e-4, 1e-3


def _example() -> Float[Array, "2 2 2"]:
    return jnp.einsum("ih,jh,lh->ijl", _A, _B, _A)


def _unexplained(tensor: Array, weights: Array, factors: Any) -> Array:
    made = jnp.einsum("h,ih,jh,lh->ijl", weights, *factors)
    return jnp.linalg.norm(tensor - made) / jnp.linalg.norm(tensor)


def _best_weights(tensor: Array, factors: Any) -> Array:
    """Return the nonnegative least-squares weights of two components: the better of both, or of one alone."""
    parts = jnp.stack([jnp.einsum("i,j,l->ijl", *(f[:, h] for f in factors)).ravel() for h in range(2)], axis=1)
    both = jnp.linalg.lstsq(parts, tensor.ravel())[0]
    alone = jnp.maximum(parts.T @ tensor.ravel() / jnp.maximum(jnp.sum(parts**2, axis=0), 1e-30), 0)
    choices = jnp.stack([jnp.maximum(both, 0), jnp.diag(alone)[0], jnp.diag(alone)[1]])
    losses = jax.vmap(lambda w: jnp.linalg.norm(parts @ w - tensor.ravel()))(choices)
    return choices[jnp.argmin(losses)]


@partial(jax.jit, static_argnames="trials")
def _by_least_squares(key: Array, tensor: Array, trials: int) -> tuple[Array, Array, Array, Array]:
    """Return unexplained shares, the smallest entry of B, its angle from the example's, and shares after cutting."""

    def one(key: Array) -> tuple[Array, Array, Array, Array]:
        found = cp_als(key, tensor, 2, **_LIMITS)
        # Signs of two factors can change together: A and C of the example are nonnegative.
        signs = [jnp.where(jnp.sum(f, axis=0) < 0, -1.0, 1.0) for f in found.factors]
        a, c = found.factors[0] * signs[0][None, :], found.factors[2] * signs[2][None, :]
        b = found.factors[1] * (signs[0] * signs[2])[None, :]
        cut = tuple(jnp.maximum(factor, 0) for factor in (a, b, c))
        angle = jnp.max(column_angles(jnp.asarray(_B), b))
        left = _unexplained(tensor, _best_weights(tensor, cut), cut)
        return found.unexplained, jnp.min(b), angle, left

    return jax.vmap(one)(jax.random.split(key, trials))


@partial(jax.jit, static_argnames=("method", "trials"))
def _nonnegative(key: Array, tensor: Array, method: Any, trials: int) -> tuple[Array, Array]:
    """Return the shares of the tensor that nonnegative factors leave unexplained, and their smallest entries."""

    def one(key: Array) -> tuple[Array, Array]:
        found = nonnegative_cp(key, tensor, 2, method, **_LIMITS)
        left = jnp.linalg.norm(tensor - reconstruct(found.weights, found.factors)) / jnp.linalg.norm(tensor)
        return left, jnp.min(jnp.concatenate([jnp.ravel(f) for f in found.factors]))

    return jax.vmap(one)(jax.random.split(key, trials))


def run(options: Options) -> Report:
    """Factor the example by all methods."""
    trials = options.trials or (5 if options.quick else 50)
    with double_precision():
        tensor = _example()
        key = jax.random.key(44)
        least, smallest, angle, cut = (np.asarray(part) for part in _by_least_squares(key, tensor, trials))
        results = {m: [np.asarray(part) for part in _nonnegative(key, tensor, m, trials)] for m in _METHODS}
    exact = least < _EXPLAINED
    rows = [
        ["least squares", float(least.min()), float(np.median(least)), float(np.median(smallest))],
        ["least squares, cut off", float(cut.min()), float(np.median(cut)), 0.0],
        *([name, float(v.min()), float(np.median(v)), float(entry.min())] for name, (v, entry) in results.items()),
    ]
    best = {name: float(values.min()) for name, (values, _) in results.items()}
    reached = {name: float(np.mean(values < min(best.values()) + _SAME)) for name, (values, _) in results.items()}
    claims = [
        Claim(
            "least squares that explains the tensor has the example's factors, B with a negative entry",
            f"explained from {int(exact.sum())} of {trials} starts; largest angle {angle[exact].max(initial=0):.1e}, "
            f"largest smallest entry {smallest[exact].max(initial=-1):.3f}",
            bool(exact.any() and angle[exact].max() < 1e-2 and smallest[exact].max() < 0),
        ),
        Claim(
            "all nonnegative methods reach the same optimum from every start",
            ", ".join(f"{name} from {share:.0%}" for name, share in reached.items())
            + f"; {min(best.values()):.4f} unexplained at best",
            all(share == 1 for share in reached.values()),
        ),
    ]
    data = {"tensor": np.asarray(tensor), "unexplained": {n: v for n, (v, _) in results.items()} | {"cut": cut}}
    return Report(["", "unexplained, best start", "median", "smallest entry"], rows, claims, data)
