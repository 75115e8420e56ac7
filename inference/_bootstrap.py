"""The bootstrap: an estimate on resampled data, many times at once."""

from collections.abc import Hashable
from functools import partial
from types import ModuleType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from latensor.base import check_bool, check_integer, check_key, check_option, divide
from latensor.decompose import Status
from latensor.inference._align import align_components
from latensor.inference._checks import (
    check_data,
    check_estimate,
    check_level,
    check_model,
    check_options,
    split_options,
)
from latensor.inference._intervals import Intervals
from latensor.inference._resample import DRAWS, Draw, as_resampled_rows, num_units, reweight
from latensor.models import Fit, Refined
from latensor.moments.internal import Rows

# Fewer do not tell a standard deviation within a quarter.
_FEWEST_REPLICATES = 10
# The size of the data times the replicates of a batch: beyond, their temporaries leave the cache of common CPUs.
_NUMBERS_PER_BATCH = 1 << 21
# The statuses of estimates that are none: components that cannot be matched, or numbers that nothing was seen of.
_FAILURES = (Status.DEGENERATE, Status.UNOBSERVED, Status.NON_FINITE)


class Bootstrap(NamedTuple):
    """Estimates on resampled data."""

    replicates: Any
    """Parameters with a leading axis of replicates, components in the order of the original estimate."""
    standard_errors: Any
    """Shaped like the parameters: the standard deviation of each over the replicates that did not fail; NaN where
    fewer than two are left."""
    failed: Bool[Array, " r"]
    """Replicates that are left out of all summaries: with a number that is not finite, or of status `DEGENERATE`,
    `UNOBSERVED` or `NON_FINITE`."""
    statuses: Int[Array, " r"]
    """How each replicate ended: see `latensor.decompose.Status`. Whether its components are noise is not asked."""
    num_failed: Int[Array, ""]
    """Number of failed replicates. Where they are many, the others flatter the estimate."""


def bootstrap(
    key: Array,
    model: ModuleType,
    fit: Fit | Refined,
    x: Rows | ArrayLike,
    num_replicates: int = 200,
    *,
    weights: Literal["multinomial", "bayesian"] = "multinomial",
    block_length: int | None = None,
    refine: bool = False,
    options: dict[str, Any] | None = None,
    batch_size: int | None = None,
    allow_unconverged: bool = False,
    **data: Any,
) -> Bootstrap:
    """Estimate again on resampled rows, many times: the spread is that of the estimate over other data.

    A replicate gives every row a random weight, times its own, and calls `model.fit` with these row weights; or, for a
    `Refined`, `model.refine` from the original parameters. Its components are then matched to the original ones.

        errors = bootstrap(key, gaussian_mixture, fit, x, mask=mask).standard_errors.means

    Rows must be independent: for documents, items of `crowd` and 30 sequences or more they are those. Fewer sequences
    are cut into blocks of time, which are resampled in their place. Every window of three neighbours belongs to one
    block, so that `fit` loses none; blocks count as independent sequences, which is right if they are several times
    as long as states last. Their first observations stand for those of a sequence, so `initial` is that of any time.

    Args:
      key: a random key.
      model: the module of the model, such as `latensor.models.gaussian_mixture`.
      fit: the estimate: what `model.fit` or `model.refine` returned.
      x: the data of the estimate.
      num_replicates: at least 10. A hundred give standard errors within 7 percent; percentiles need a thousand.
      weights: `"multinomial"`: how often a row is drawn with replacement; or `"bayesian"`, continuous weights from the
        uniform Dirichlet distribution: no row gets none, which matters where few rows have a word, a worker or an
        entry.
      block_length: windows of three per block of time, for sequences. Default: the cube root of the number of
        observations, at least 30 and at most a twentieth of them; `None` for 30 sequences or more: no blocks.
      refine: whether replicates are those of `model.refine`, from the parameters of `fit`; always so for a `Refined`.
      options: keywords of `model.fit`, or of `model.refine`: those that the estimate was made with.
      batch_size: replicates at a time; default: as many as have 2 million numbers together, each those of the data.
      allow_unconverged: go on although the status of `fit` is not `CONVERGED`.
      **data: `mask`, `row_weights`, `lengths` and so on: the keywords about the data that `model.fit` takes.

    Returns:
      `Bootstrap`. Replicates that ended in `MAX_ITERS` or `BOUNDARY` count: the estimate has such values too. They are
      not tested for `POOR_FIT`, nor for `RANK_DEFICIENT` unless a direction is missing altogether. In float32 the
      tolerance of `refine` is coarse: where rows are many, replicates stop short of their optimum and spread too
      little, unless `options={"tol": 0.0}`.

    Cost: as many estimates, in batches under `vmap`: loops run until the last of a batch has converged, and both
    branches of a choice are taken.

    """
    key, model = check_key(key), check_model(model)
    number = check_integer("num_replicates", num_replicates, _FEWEST_REPLICATES)
    check_option("weights", weights, tuple(DRAWS))
    fit = check_estimate(model, fit, check_bool("allow_unconverged", allow_unconverged))
    verb = "refine" if check_bool("refine", refine) or isinstance(fit, Refined) else "fit"
    static, traced = split_options(check_options(model, verb, options))
    rows = as_resampled_rows(check_data(model, x, data, "bootstrap"), block_length)
    if batch_size is None:
        size = sum(leaf.size for leaf in jax.tree.leaves(rows))
        batch_size = max(1, min(number, _NUMBERS_PER_BATCH // size))
    batch_size = min(check_integer("batch_size", batch_size, 1), number)
    plan = _Plan(model, verb, DRAWS[weights], static, number, batch_size)
    return _summarize(model, fit.params, *_replicate(key, fit.params, rows, traced, plan))


def percentile_intervals(bootstrap: Bootstrap, level: float = 0.95) -> Intervals:
    """Return intervals between percentiles of the replicates, each with the given probability.

    Args:
      bootstrap: the replicates; those that failed are left out.
      level: above 0 and below 1. At least one replicate must be beyond each end: 40 for 0.95.

    Returns:
      `Intervals(lower, upper)`, each shaped like the parameters; NaN where all replicates failed.

    """
    if not isinstance(bootstrap, Bootstrap):
        raise ValueError(f"bootstrap: expected what bootstrap(...) returns; got {type(bootstrap).__name__}")
    share = check_level(level)
    number = bootstrap.failed.shape[0]
    # A little less than one, for rounding: 0.95 of 40 leaves 1 - 2e-15.
    if number * (1 - share) / 2 < 1 - 1e-6:
        raise ValueError(f"level: expected at most {1 - 2 / number:.4g} with {number} replicates; got {level!r}")
    return _percentiles(bootstrap.replicates, bootstrap.failed, np.asarray([(1 - share) / 2, (1 + share) / 2]))


class _Plan(NamedTuple):
    """What is static."""

    model: ModuleType
    verb: str
    draw: Draw
    options: tuple[tuple[str, Hashable], ...]
    num_replicates: int
    batch_size: int


@partial(jax.jit, static_argnames="plan")
def _replicate(key: Array, params: Any, rows: Any, traced: dict[str, Any], plan: _Plan) -> tuple[Any, Int[Array, " r"]]:
    """Return the estimates on resampled data, and their statuses."""
    options = dict(plan.options) | traced
    num_components = plan.model.component_columns(params).shape[1]

    def one(key: Array) -> tuple[Any, Array]:
        key_rows, key_fit = jax.random.split(key)
        resampled = reweight(rows, plan.draw(key_rows, num_units(rows), rows.dtype))
        if plan.verb == "refine":
            found = plan.model.refine(params, resampled, **options)
        else:
            found = plan.model.fit(key_fit, resampled, num_components, **options)
        # Not the status itself, for which half of the work would be done to test rank and gain.
        return found.params, found.status if plan.verb == "refine" else found.diagnostics.evidence.status_before

    # Whole batches only: a shorter one would be compiled apart.
    num_batches = -(-plan.num_replicates // plan.batch_size)
    keys = jax.random.split(key, (num_batches, plan.batch_size))
    if plan.batch_size == 1:
        # Not a batch of one, in which both branches of a choice would be taken.
        return lax.map(one, keys[:, 0])
    batches = lax.map(jax.vmap(one), keys)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[: plan.num_replicates], batches)


@partial(jax.jit, static_argnames="model")
def _summarize(model: ModuleType, params: Any, estimates: Any, statuses: Int[Array, " r"]) -> Bootstrap:
    failed = jnp.any(jnp.stack([statuses == status for status in _FAILURES]), axis=0)
    for leaf in jax.tree.leaves(estimates):
        failed = failed | ~jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim)))
    replicates = align_components(model, params, estimates)
    num_failed = jnp.sum(failed, dtype=jnp.int32)
    good = failed.shape[0] - num_failed

    def deviation(leaf: Float[Array, "r ..."]) -> Float[Array, "..."]:
        kept = ~failed.reshape(-1, *[1] * (leaf.ndim - 1))
        mean = divide(jnp.sum(jnp.where(kept, leaf, 0), axis=0), good)
        squares = jnp.sum(jnp.where(kept, leaf - mean[None], 0) ** 2, axis=0)
        return jnp.sqrt(divide(squares, good - 1, jnp.nan)).astype(leaf.dtype)

    return Bootstrap(replicates, jax.tree.map(deviation, replicates), failed, statuses, num_failed)


@jax.jit
def _percentiles(replicates: Any, failed: Bool[Array, " r"], shares: Float[Array, " 2"]) -> Intervals:
    def ends(leaf: Float[Array, "r ..."]) -> Float[Array, "2 ..."]:
        kept = jnp.where(failed.reshape(-1, *[1] * (leaf.ndim - 1)), jnp.nan, leaf)
        return jnp.nanquantile(kept, shares.astype(leaf.dtype), axis=0)

    both = jax.tree.map(ends, replicates)
    return Intervals(jax.tree.map(lambda leaf: leaf[0], both), jax.tree.map(lambda leaf: leaf[1], both))
