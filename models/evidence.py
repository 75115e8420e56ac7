"""What the data say about an estimate: whether its rank is there, and whether it explains more than one component does.

A status should tell what to do next, so it is about the estimate that is returned and its own noise.

*Rank.* The k-th eigenvector of a second moment is the one that fits its noise best, so its eigenvalue is above zero
even where there are k − 1 components. Bounds on the noise of all directions are far too large for real data, in which
a few columns are much noisier than the others. So the direction is taken from half of the rows and looked at in the
other half: there its quadratic form is a mean over independent rows, zero if the direction is noise, with a standard
error.

*Gain.* The log-likelihood of some rows, less that of the best single component, with its standard error: what a few
rows make alone, other rows may not have. The rows are those that the model was fitted to, so the gain is lowered by
what as many parameters gain on noise, their number divided by that of the rows (Akaike).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from latensor.base import divide, freeze, machine_epsilon, matmul, small_jit
from latensor.decompose import Status, Whitening
from latensor.decompose.internal import last_direction, status_if, worst
from latensor.models.components import Correction, SecondMoments
from latensor.models.results import CLEAR, Fit
from latensor.moments import map_over_rows
from latensor.moments.internal import Centred, residuals, second_cumulant, second_cumulant_operator

Data = TypeVar("Data", bound=Any)
_Product = Callable[[Float[Array, "d r"]], Float[Array, "d r"]]

# Beyond any doubt, and finite.
_CERTAIN = 1e6
# Columns that differ by less of their length are the same.
_SAME = 1e-3
# Subspace iterations: products with a small matrix, or with the data.
_DENSE_ITERS, IMPLICIT_ITERS = 10, 3
# A whitening whose residual is beyond this share of the k-th eigenvalue has not come near.
_UNSETTLED = 0.1


class Evidence(NamedTuple):
    """What the data say about an estimate."""

    rank: Float[Array, ""] | None
    """How far the k-th direction of half of the rows is above zero in the other half, in standard errors; at most a
    million. `None` where there is no such direction, or no second moment."""
    gain: Float[Array, ""] | None
    """Mean log-likelihood of a row, or of an observation of a sequence, less that of a single component, and less what
    as many more parameters gain on noise. `None` for an estimate that is one component."""
    gain_error: Float[Array, ""] | None
    """Its standard error."""
    status_before: Int[Array, ""] | None = None
    """The status of the estimate but for what the rank and the gain say."""


def evidence_status(evidence: Evidence) -> Int[Array, ""]:
    """Return what the evidence says."""
    status = worst()
    if evidence.gain is not None and evidence.gain_error is not None:
        # The rank says whether the components are noise. Where it is not judged, the gain has to.
        least = 0 if evidence.rank is not None else CLEAR * evidence.gain_error
        status = worst(status, status_if(~(evidence.gain > least), Status.POOR_FIT))
    if evidence.rank is not None:
        status = worst(status, status_if(~(evidence.rank > CLEAR), Status.RANK_DEFICIENT))
    return status


def judge_gain(
    rank: Float[Array, ""] | None,
    gains: Float[Array, " n"],
    num_parameters: int | Num[Array, ""],
    num_rows: Float[Array, ""],
    weights: Float[Array, " n"] | None = None,
) -> Evidence:
    """Return the evidence of how much likelier rows are than under one component.

    Args:
      rank: see `Evidence`.
      gains: of some of the rows.
      num_parameters: how many more there are than in one component.
      num_rows: those that the parameters were estimated from; see `effective_rows`.
      weights: of the gains (default: equal).

    """
    weights = jnp.ones_like(gains) if weights is None else weights
    share = _normalize(weights)
    gains = jnp.where(weights > 0, gains, 0)
    mean = jnp.sum(share * gains)
    by_noise = divide(jnp.asarray(num_parameters, mean.dtype), num_rows)
    return Evidence(rank, mean - by_noise, _standard_error(gains, share, mean))


def effective_rows(weights: Float[Array, " n"]) -> Float[Array, ""]:
    """Return how many rows of equal weight say as much as these."""
    # By the largest first: squares may leave the floating range.
    weights = divide(weights, jnp.max(weights))
    return divide(jnp.sum(weights) ** 2, jnp.sum(weights**2))


def whitening_status(whitening: Whitening) -> Int[Array, ""]:
    """Return what is left of a whitening's status where evidence says whether its rank is there."""
    values = whitening.eigenvalues
    if values.shape[0] == 0:
        return whitening.status
    rounding = whitening.whitener.shape[0] * machine_epsilon(values.dtype) * values[0]
    return worst(
        status_if(~(whitening.residual <= _UNSETTLED), Status.MAX_ITERS),
        status_if(values[-1] <= rounding, Status.RANK_DEFICIENT),
        jnp.where(whitening.status >= Status.UNOBSERVED, whitening.status, Status.CONVERGED),
    )


@small_jit
def bounded(value: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return evidence as a finite number; what is not a number speaks against the estimate."""
    return jnp.clip(jnp.nan_to_num(freeze(value), nan=-_CERTAIN), -_CERTAIN, _CERTAIN)


@small_jit
def add_evidence(estimate: Fit, evidence: Evidence, whitening: Whitening | None = None) -> Fit:
    """Return an estimate that says in its status, and in its diagnostics, what the data say about it."""
    before = estimate.status if whitening is None else worst(estimate.status, whitening_status(whitening))
    status = worst(before, evidence_status(evidence))
    evidence = jax.tree.map(bounded, evidence)._replace(status_before=before)
    return estimate._replace(status=status, diagnostics=estimate.diagnostics._replace(evidence=evidence))


def coincide(columns: Float[Array, "d k"]) -> Bool[Array, ""]:
    """Return whether two columns are the same, up to a thousandth of the longer one."""
    squares = jnp.sum((columns[:, :, None] - columns[:, None, :]) ** 2, axis=0)
    lengths = jnp.sum(columns**2, axis=0)
    longer = jnp.maximum(lengths[:, None], lengths[None, :])
    return jnp.any((squares <= _SAME**2 * longer) & ~jnp.eye(columns.shape[1], dtype=bool))


class Halves(NamedTuple):
    """A division of the rows into two halves: of every two neighbours one, at random."""

    chosen: Int[Array, " m"]
    """Rows of the first half."""
    is_chosen: Bool[Array, " n"]

    def first(self, data: Data) -> Data:
        """Return the rows of the first half."""
        return jax.tree.map(lambda leaf: leaf[self.chosen], data)

    def weights(self, weights: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Return weights that sum to one over the first half, and over the second; those of other rows are zero."""
        return _normalize(jnp.where(self.is_chosen, weights, 0)), _normalize(jnp.where(self.is_chosen, 0, weights))

    def judge(self, values: Float[Array, "n c"], weights: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the weighted mean of values, in its standard errors.

        The first values are those of a direction of the first half, and are judged in the second; of two, the others
        the other way round, and the two are joined.
        """
        parts = self.weights(weights)[::-1][: values.shape[1]]
        scores = [_in_standard_errors(values[:, i], part) for i, part in enumerate(parts)]
        return jnp.sum(jnp.stack(scores)) / math.sqrt(len(scores))


def _in_standard_errors(values: Float[Array, " n"], weights: Float[Array, " n"]) -> Float[Array, ""]:
    mean = jnp.sum(weights * values)
    error = _standard_error(values, weights, mean)
    # Without any spread, what is above zero is clear of it.
    return jnp.where(error > 0, divide(mean, error), jnp.where(mean > 0, jnp.inf, -jnp.inf))


def _standard_error(values: Float[Array, " n"], share: Float[Array, " n"], mean: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum((share * (values - mean)) ** 2))


def _normalize(weights: Float[Array, " n"]) -> Float[Array, " n"]:
    return divide(weights, jnp.sum(weights))


def after(key: Array, result: Array) -> Array:
    """Return a key that is the same whatever the result, unless that is NaN, but is known only after it.

    JAX on CPU can hang where two batched `eigh` run side by side: what takes this key runs afterwards.
    """
    return jax.random.fold_in(key, jnp.any(jnp.isnan(result)).astype(jnp.uint32))


def draw_halves(key: Array, num_rows: int) -> Halves:
    """Divide the rows at random."""
    pairs = jnp.arange(max(num_rows // 2, 1), dtype=jnp.int32)
    chosen = jnp.minimum(2 * pairs + jax.random.bernoulli(key, shape=pairs.shape), num_rows - 1)
    return Halves(chosen, jnp.zeros(num_rows, bool).at[chosen].set(True))


def last_directions(
    key: Array, first: Float[Array, "d d"], second: Float[Array, "d d"], rank: int
) -> Float[Array, "d 2"]:
    """Return the `rank`-th direction of each of two estimates of a second moment, to be tested in the other."""

    def one(pair: tuple[Array, Array]) -> Float[Array, " d"]:
        here, there = (partial(matmul, part) for part in pair)
        return last_direction(key, here, there, first.shape[0], rank, num_iters=_DENSE_ITERS, dtype=first.dtype)

    both = jnp.stack([first, second])
    return lax.map(one, (both, both[::-1])).T


def last_singular_vectors(
    moments: Float[Array, "2 d1 d2"], rank: int
) -> tuple[Float[Array, "2 d1"], Float[Array, "2 d2"]]:
    """Return the `rank`-th singular vectors of each of two estimates of a pair moment, to be tested in the other.

    What the right one has of the directions before it is taken out, according to the other estimate, as in
    `last_direction`.
    """
    # LAPACK may hang on a NaN.
    moments = jnp.where(jnp.all(jnp.isfinite(moments)), moments, jnp.nan_to_num(moments) * 0)

    def one(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        u, values, v = jnp.linalg.svd(pair[0], full_matrices=False)
        usable = jnp.where(values > machine_epsilon(values.dtype) * values[0], values, 0)
        common = divide(matmul(u[:, : rank - 1].T, matmul(pair[1], v[rank - 1])), usable[: rank - 1])
        # Where one half has nothing in this direction, there is none.
        return jnp.where(usable[rank - 1] > 0, u[:, rank - 1], 0), v[rank - 1] - matmul(common, v[: rank - 1])

    return lax.map(one, (moments, moments[::-1]))


def table_rank(
    key: Array,
    data: Centred,
    moments: SecondMoments,
    correction: Correction,
    weights: Float[Array, " d"],
    rank: int,
) -> Float[Array, ""] | None:
    """Return `Evidence.rank` for the weighted second moment of a table.

    The quadratic form of a row is `(zᵀv)² − Σ_i (1 − p_i) z_i² v_i² + vᵀ(S − C)v`, with `z` the row's residuals divided
    by the rates. A rank of zero, that of a single centred component, is not judged. Cost: half of a dense covariance,
    or five products with the data, and one pass.
    """
    if rank == 0:
        return None
    key_halves, key_start = jax.random.split(key)
    weigh, halves = weights[:, None], draw_halves(key_halves, data.table.num_rows)
    one, other = halves.weights(data.weights)
    d = weights.shape[0]

    def weighted(product: _Product) -> _Product:
        return lambda vectors: weigh * (product(weigh * vectors) + correction.adjust(weigh * vectors))

    if moments.covariance is not None:
        half = Centred(halves.first(data.table), one[halves.chosen], data.mean, data.rates)
        first, every = (
            weighted(partial(matmul, part))(jnp.eye(d, dtype=weights.dtype))
            for part in (second_cumulant(half)[0], moments.covariance)
        )
        vectors = last_directions(key_start, first, 2 * every - first, rank)
    else:
        parts = (data._replace(weights=part) for part in (one, other))
        here, there = (weighted(second_cumulant_operator(part, moments.variances)) for part in parts)
        vector = last_direction(key_start, here, there, d, rank, num_iters=IMPLICIT_ITERS, dtype=weights.dtype)
        vectors = vector[:, None]
    directions = weigh * vectors
    inverse = divide(1, data.rates)
    hidden = ((1 - data.rates) * inverse**2)[:, None] * directions**2

    def forms(rows: Any) -> Float[Array, "n c"]:
        values = residuals(rows, data.mean)
        squares = matmul(values, inverse[:, None] * directions) ** 2
        return squares if rows.mask is None else squares - matmul(values**2, hidden)

    constants = jnp.sum(directions * correction.adjust(directions), axis=0)
    values = map_over_rows(forms, data.table, floats_per_row=2 * d)
    return halves.judge(values + constants[None, :], data.weights)
