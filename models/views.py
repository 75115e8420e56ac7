"""Three views of a hidden class, and every column of a table by regression on them.

A view is a vector per sample: the indicators of a group of columns, or their mean. Given the class, views of different
groups are independent, so their pair and triple moments give the conditional means `O` of each view. A column `j` that
is not in view `v` then has the moment `E[b_j⊗v] = Θ_j diag(π) O_vᵀ`, linear in what is sought: `Θ_j diag(π)` is the
least-squares solution over all views of other groups, and its column sums are `π`.
"""

from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from latensor.base import divide, einsum, machine_epsilon, matmul, positive_or_one, square_root
from latensor.decompose import Status, conditionals_from_views, nonnegative_cp
from latensor.decompose.internal import ViewMethod, finite_status, inverse_root, least_squares, status_if, worst
from latensor.models.results import Spectrum
from latensor.moments import CrossMoments, Moments

NonnegativeMethod = Literal["ptpqp", "hals"]
NONNEGATIVE: dict[str, Any] = {"ptpqp": "pqp", "hals": "hals"}
# Nonnegative factors of exact moments are found to rounding; those of data are not better known than so.
_CP_EXACT, _CP_NOISY = 1e-12, 1e-7
_CP_SWEEPS = 3000
_PAIRS = ((0, 1), (0, 2), (1, 2))


@runtime_checkable
class ThreeViews(Protocol):
    """First, second and third moments of three views."""

    @property
    def first(self) -> tuple[Float[Array, " d1"], Float[Array, " d2"], Float[Array, " d3"]]:
        """The means."""

    @property
    def second(self) -> tuple[Float[Array, "d1 d2"], Float[Array, "d1 d3"], Float[Array, "d2 d3"]]:
        """The pairs 12, 13 and 23."""

    @property
    def third(self) -> Float[Array, "d1 d2 d3"]:
        """The triple."""


class Factored(NamedTuple):
    """The conditional means of three views given a hidden class, whose states are in the same order in all of them."""

    rows: Float[Array, "d k"]
    """`E[v | h]`, the three views one below the other; where they are indicators, `P(x = value | h)`. Not projected."""
    weights: Float[Array, " k"]
    """`P(h)`."""
    spectrum: Spectrum
    """Of the pair of views that is least clear of its noise, in units of `√p`."""
    residual: Float[Array, ""]
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def _spectrum(pairs: list[Float[Array, "_ _"]], sizes: list[Array], variance: Array, rank: int) -> Spectrum:
    """Return the spectrum of the pair whose k-th singular value is least above that of noise."""
    values = jnp.stack([jnp.linalg.svd(pair, compute_uv=False)[:rank] for pair in pairs])
    # Singular values of a (d1, d2) matrix of noise of variance 1/n end at about (√d1 + √d2)/√n.
    noise = jnp.stack([jnp.sqrt(sizes[a]) + jnp.sqrt(sizes[b]) for a, b in _PAIRS])
    noise = noise * jnp.sqrt(variance)
    worst = jnp.argmin(divide(values[:, -1], noise, values[:, -1]))
    return Spectrum(values[worst], noise[worst])


def factor_views(
    key: Array,
    moments: ThreeViews,
    variance: Float[Array, ""],
    rank: int,
    method: ViewMethod | NonnegativeMethod,
    num_restarts: int,
    *,
    exact: bool = False,
) -> Factored:
    """Decompose the moments of three views, whose noise has a `variance` of one divided by the number of samples.

    Views are decomposed as real vectors, in units of `√p` in which indicators have sampling noise of similar size.
    `"ptpqp"` and `"hals"` find nonnegative factors of the triple moment, to rounding where it is `exact`; other methods
    also use the pairs.
    """
    # LAPACK may hang on a NaN, which the status shows all the same.
    finite = finite_status(moments) == Status.CONVERGED
    means, second, third = (
        jax.tree.map(lambda part: jnp.where(finite, part, 0), part)
        for part in (moments.first, moments.second, moments.third)
    )
    units = [square_root(mean) for mean in means]
    one, two, three = (divide(1, unit) for unit in units)
    inverse = (one, two, three)
    first = (one * means[0], two * means[1], three * means[2])
    m12, m13, m23 = (
        pair * inverse[a][:, None] * inverse[b][None, :] for pair, (a, b) in zip(second, _PAIRS, strict=True)
    )
    third = third * one[:, None, None] * two[None, :, None] * three[None, None, :]
    if method == "ptpqp" or method == "hals":
        result = _nonnegative_views(key, first, third, rank, method, num_restarts, exact)
    else:
        found = conditionals_from_views(
            key,
            first,
            (m12, m13, m23),
            third,
            rank,
            method,
            categorical=(False, False, False),
            num_restarts=num_restarts,
        )
        result = _Views(found.conditionals, found.weights, found.residual, found.num_iters, found.status)
    rows = [unit[:, None] * part for unit, part in zip(units, result.conditionals, strict=True)]
    sizes = [jnp.sum(unit > 0).astype(unit.dtype) for unit in units]
    return Factored(
        jnp.concatenate(rows),
        result.weights,
        _spectrum([m12, m13, m23], sizes, variance, rank),
        result.residual,
        result.num_iters,
        worst(result.status, status_if(~finite, Status.NON_FINITE)),
    )


class _Views(NamedTuple):
    conditionals: tuple[Array, Array, Array]
    weights: Float[Array, " k"]
    residual: Float[Array, ""]
    num_iters: Int[Array, ""]
    status: Int[Array, ""]


def _nonnegative_views(
    key: Array,
    first: tuple[Array, Array, Array],
    third: Float[Array, "d1 d2 d3"],
    rank: int,
    method: NonnegativeMethod,
    num_restarts: int,
    exact: bool,
) -> _Views:
    """Return conditionals from nonnegative factors `a_gh = o_gh / s_gh` of the triple moment, scaled by the means.

    With `c_gh` that explain the means, `E[v_g] = Σ_h c_gh a_gh`, each is `π_h s_gh`; and a component's weight in the
    triple moment is `π_h s_1h s_2h s_3h`. So `π_h² = c_1h c_2h c_3h / weight_h`.
    """
    cp = nonnegative_cp(
        key,
        third,
        rank,
        NONNEGATIVE[method],
        num_restarts=num_restarts,
        tol=max(_CP_EXACT, machine_epsilon(third.dtype)) if exact else _CP_NOISY,
        max_iters=_CP_SWEEPS,
    )
    scaled = [jnp.maximum(least_squares(factor, mean), 0) for factor, mean in zip(cp.factors, first, strict=True)]
    weights = jnp.sqrt(divide(scaled[0] * scaled[1] * scaled[2], cp.weights))
    a, b, c = (factor * divide(part, weights)[None, :] for factor, part in zip(cp.factors, scaled, strict=True))
    vanished = ~jnp.all(weights > 0)
    # A tolerance at rounding level may not be met: what counts is how much of the tensor is explained.
    status = jnp.where(cp.status == Status.MAX_ITERS, Status.CONVERGED, cp.status)
    return _Views(
        (a, b, c),
        weights / positive_or_one(jnp.sum(weights)),
        cp.unexplained,
        cp.num_iters,
        worst(status, status_if(vanished, Status.DEGENERATE)),
    )


class References(NamedTuple):
    """What regression on three views needs: weighted sums over the samples, the views one beside the other."""

    products: Float[Array, "rows d"]
    """Of the indicator of each stacked row, times the views."""
    seen: Float[Array, "columns d"]
    """Of the samples that observe both the column and the part of a view."""
    allowed: Bool[Array, "columns d"]
    """Whether the view is of another group of columns."""


def regress_columns(
    references: References, rows: Float[Array, "d k"], unit: Float[Array, " d"], owner: Int[Array, " rows"] | Any
) -> Float[Array, "rows k"]:
    """Return `Θ diag(π)` for the stacked rows of all columns.

    `X_j = (Σ_r s_jr M_jr⊗o_r) (Σ_r s_jr o_r⊗o_r)⁻¹`, sums over the parts `r` of the views, whose conditional means are
    `o_r`, each weighted by how often it is observed with the column. Zeros where nothing is.

    Args:
      references: sums over samples.
      rows: conditional means of the views, as in `Factored`.
      unit: of the views; entries have sampling noise of similar size in these units.
      owner: the column of each stacked row.

    """
    inverse = divide(1, unit)
    scaled = rows * inverse[:, None]
    seen = jnp.where(references.allowed, references.seen, 0)
    products = jnp.where(references.allowed[owner], references.products, 0) * inverse[None, :]
    gram = einsum("cd,da,db->cab", seen, scaled, scaled)
    k = rows.shape[1]
    # Relative to the size of the matrix; where there is none, the root is that of the identity, times zero.
    size = jnp.trace(gram, axis1=1, axis2=2)[:, None, None] / k
    unit_matrix = jnp.eye(k, dtype=rows.dtype)[None]
    gram = jnp.where(size > 0, gram / positive_or_one(size), unit_matrix)
    root = inverse_root(gram + 10 * machine_epsilon(rows.dtype) * unit_matrix)
    solver = divide(einsum("cai,caj->cij", root, root), jnp.broadcast_to(size, gram.shape))
    return einsum("ri,rij->rj", matmul(products, scaled), solver[owner])


def combine_moments(moments: Moments, views: Float[Array, "3 d rows"]) -> tuple[CrossMoments, Float[Array, "rows m"]]:
    """Return the moments of three views that are linear combinations of stacked rows, and the rows' moments with them.

    `moments` are those of distinct columns; blocks of a column with itself are never used where views share none.
    """
    one, two, three = views
    third = einsum("ijl,ai->ajl", moments.third, one)
    third = einsum("ajl,bj->abl", third, two)
    first = (matmul(one, moments.first), matmul(two, moments.first), matmul(three, moments.first))
    products = [matmul(moments.second, view.T) for view in views]
    second = (matmul(one, products[1]), matmul(one, products[2]), matmul(two, products[2]))
    cross = CrossMoments(first, second, einsum("abl,cl->abc", third, three), jnp.int32(0))
    return cross, jnp.concatenate(products, axis=1)


def order_by_size(key: Array, sizes: Float[Array, " p"]) -> Int[Array, " p"]:
    """Return the columns in decreasing order of size, those of the same size in random order."""
    shuffled = jax.random.permutation(key, sizes.shape[0])
    return shuffled[jnp.argsort(-sizes[shuffled], stable=True)].astype(jnp.int32)


def deal(key: Array, sizes: Float[Array, " p"], num_rounds: int) -> Int[Array, "3 q"]:
    """Deal columns into three groups, the largest first: one to each group in every round; −1 where none is left.

    Columns of the same size are in random order, and so are the groups of each round.
    """
    key_order, key_rounds = jax.random.split(key)
    order = order_by_size(key_order, sizes)
    padded = jnp.concatenate([order, jnp.full(3 * num_rounds, -1, jnp.int32)])[: 3 * num_rounds]
    places = jnp.argsort(jax.random.uniform(key_rounds, (num_rounds, 3)), axis=1)
    return jnp.take_along_axis(padded.reshape(num_rounds, 3), places, axis=1).T
