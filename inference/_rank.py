"""How many components: candidates compared on rows that they were not learned from.

Two things can tell the number of components. The *spectrum* of the second moment has as many directions as there are
components; `fit` looks at the k-th direction of half of the rows in the other half (`latensor.models.evidence`), where
its size is a mean over independent rows, and its score is standard normal if there are fewer than k. That is a test of
a true model. On real data, of which no number of components is true, weak directions go on for ever, and the question
is which model predicts best. The *held-out likelihood* answers both: of too few components it is lower by a gap that
does not depend on the number of rows, of too many by what the superfluous parameters have learned of noise.

The rule looks at the held-out likelihood only:

    k̂ = the smallest k whose held-out log-likelihood is below the best one's by at most one standard error,

that of the mean over rows of the *differences* between the two (Breiman et al. 1984, section 3.4.3, with paired errors:
rows that are unlikely are so under both models, and their differences vary far less than they do). It favours few
components where there is no telling, and it errs upwards only if noise makes larger models better by more than one
error.
"""

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from latensor.base import check_bool, check_integer, check_key, is_concrete
from latensor.decompose import Status
from latensor.inference._checks import check_data, check_model, check_options, model_name
from latensor.inference._criteria import Information, summarize
from latensor.inference._data import has_exact_likelihood, with_weights
from latensor.inference._splits import Folds, Mean, check_split, draw_folds, mean_per_observation
from latensor.inference._table import Candidate, RankSelection
from latensor.models.results import Fit
from latensor.moments import Sequences
from latensor.moments.internal import choose_rows

# Models whose number of components is given.
_GIVEN = {"crowd": "as many classes as labels", "graphical": "its numbers of states in the graph"}
# Standard errors by which a candidate may be below the best one.
_ERRORS = 1.0
# Training rows by which `fit` and `refine` are compared where `refine` climbs a bound.
_NUM_COMPARED = 2048


class _Judged(NamedTuple):
    """A candidate on its own."""

    num_components: int
    fit: Fit
    """To all rows."""
    params: Any
    """The same after EM."""
    information: Information
    values: np.ndarray
    """Log-likelihoods of the rows that are held out, `(num_splits, m)`."""


class _Plan(NamedTuple):
    """What is done with every candidate."""

    model: ModuleType
    refine: bool
    options: Mapping[str, Any]
    refine_options: Mapping[str, Any]


def select_rank(
    key: Array,
    model: ModuleType,
    x: Any,
    candidates: Iterable[int],
    *,
    holdout: float = 0.2,
    num_splits: int = 5,
    refine: bool = True,
    options: Mapping[str, Any] | None = None,
    refine_options: Mapping[str, Any] | None = None,
    **data: Any,
) -> RankSelection:
    """Choose the number of components by the likelihood of rows that are held out.

    Every candidate is fitted (`fit`, then `refine`) without each of the groups of rows that are held out in turn, whose
    log-likelihood is taken. The smallest candidate is chosen that is below the best one by at most one standard error
    of their paired difference. Beside it stand AIC, BIC and the spectrum, of fits to all rows.

    Args:
      key: a random key.
      model: a package of `latensor.models`, but for `crowd` and `graphical`, whose components are given.
      x: data as for `fit`; concrete arrays.
      candidates: numbers of components, such as `range(1, 9)`.
      holdout: share of the rows that is held out at a time.
      num_splits: how many groups of rows are held out, one after the other; no row is held out twice, so at most
        `1 / holdout`. By default all rows are held out once.
      refine: whether to go on by EM from `fit`. Without it the moments are compared, which are no maxima of the
        likelihood: AIC and BIC then say little.
      options: further keywords of the model's `fit`.
      refine_options: further keywords of the model's `refine`.
      **data: keywords of the data, as for `fit`: `mask`, `row_weights`, `lengths`, `variables`, …

    Returns:
      `RankSelection`; `print(selection.message)` shows the table, `scree(selection)` draws it.

    Of sequences, whole ones are held out; of a single one, blocks of time. Where `refine` climbs a bound of the
    likelihood (`gamma_poisson`, `mixed_membership`) it can lose: the better of `fit` and `refine` is taken, by the
    training rows.

    How often it is wrong: see docs/inference.md, and the benchmark `rank_selection`.

    Cost: `num_splits + 1` fits per candidate. Each candidate has shapes of its own and is compiled once, for seconds;
    all divisions run the same code.

    """
    plan = _check_plan(model, refine, options, refine_options)
    ranks = _check_candidates(candidates)
    share, number = check_split(holdout, num_splits)
    key_folds, key_fits = jax.random.split(check_key(key))
    rows = check_data(plan.model, x, data, "select_rank")
    if not is_concrete(rows):
        raise ValueError("x: expected concrete arrays, since candidates have different shapes; got traced ones")
    folds = draw_folds(key_folds, rows, share, number, ranks[-1])
    # From the largest on: if it is too large for the model, nothing was done yet.
    judged = [_judge(jax.random.fold_in(key_fits, k), plan, folds, k) for k in ranks[::-1]][::-1]
    return _choose(judged, folds)


def _check_plan(model: Any, refine: Any, options: Any, refine_options: Any) -> _Plan:
    model = check_model(model, ("fit", "refine", "num_parameters"))
    if model_name(model) in _GIVEN:
        why = _GIVEN[model_name(model)]
        raise ValueError(f"model: expected one whose number of components is free; {model_name(model)} has {why}")
    options = check_options(model, "fit", options)
    refine_options = check_options(model, "refine", refine_options, "refine_options")
    if refine_options and not check_bool("refine", refine):
        raise ValueError("refine_options: expected None where refine is False")
    return _Plan(model, check_bool("refine", refine), options, refine_options)


def _check_candidates(candidates: Any) -> list[int]:
    """Return the candidates in increasing order."""
    if isinstance(candidates, str) or not isinstance(candidates, Iterable):
        raise ValueError(f"candidates: expected numbers of components, such as range(1, 9); got {candidates!r}")
    ranks = [check_integer("candidates", k, 1) for k in candidates]
    if not ranks:
        raise ValueError("candidates: expected at least one number of components; got none")
    repeated = next((k for k in ranks if ranks.count(k) > 1), None)
    if repeated is not None:
        raise ValueError(f"candidates: expected different numbers of components; got {repeated} more than once")
    return sorted(ranks)


def _judge(key: Array, plan: _Plan, folds: Folds, k: int) -> _Judged:
    """Fit a candidate to all rows, and without each of the groups that are held out."""
    keys, data = jax.random.split(key, len(folds.held_out) + 1), folds.data
    try:
        fit, params = _estimate(keys[-1], plan, with_weights(data, folds.weights), k)
    except ValueError as error:
        if str(error).startswith("num_components:"):
            raise ValueError(f"candidates: {str(error).removeprefix('num_components: ')}") from None
        raise
    values = _log_likelihoods(keys[-1], plan.model, params, data, None)
    information = summarize(plan.model, params, data, values)
    held_out = []
    for number, rows in enumerate(folds.held_out):
        _, learned = _estimate(keys[number], plan, with_weights(data, folds.training_weights(number)), k)
        held_out.append(_log_likelihoods(keys[number], plan.model, learned, data, rows))
    return _Judged(k, fit, params, information, np.stack(held_out))


def _estimate(key: Array, plan: _Plan, data: Any, k: int) -> tuple[Fit, Any]:
    key_fit, key_compare = jax.random.split(key)
    model = plan.model
    fit = model.fit(key_fit, data, k, **plan.options)
    if not plan.refine:
        return fit, fit.params
    refined = model.refine(fit.params, data, **plan.refine_options)
    if has_exact_likelihood(model):
        return fit, refined.params
    rows = choose_rows(data, _NUM_COMPARED)
    choices = (fit.params, refined.params)
    before, after = (jnp.mean(model.log_likelihood(params, rows, key=key_compare)) for params in choices)
    return fit, choices[int(after >= before)]


def _log_likelihoods(key: Array, model: ModuleType, params: Any, data: Any, rows: np.ndarray | None) -> np.ndarray:
    """Return the log-likelihoods of some rows, or of all of them."""
    if rows is None or isinstance(data, Sequences):
        # Sequences that lie end to end cannot be picked without new shapes.
        values = np.asarray(model.log_likelihood(params, data, key=key), np.float64)
        return values if rows is None else values[rows]
    picked = jax.tree.map(lambda leaf: leaf[rows], data)
    return np.asarray(model.log_likelihood(params, picked, key=key), np.float64)


def _choose(judged: list[_Judged], folds: Folds) -> RankSelection:
    """Return the smallest candidate that is not clearly below the best one."""
    rows = folds.held_out
    weights, sizes = folds.weights[rows], folds.sizes[rows]
    # Rows of weight zero do not count, whatever they are.
    values = [np.where(weights > 0, each.values, 0) for each in judged]
    means = [mean_per_observation(each, weights, sizes) for each in values]
    levels = np.array([mean.value if np.isfinite(mean.value) else -np.inf for mean in means])
    if not np.isfinite(levels).any():
        raise ValueError("x: expected data with a finite held-out likelihood for one of the candidates; got none")
    best = int(np.argmax(levels))
    gaps = [mean_per_observation(values[best] - each, weights, sizes) for each in values]
    chosen = next(i for i, gap in enumerate(gaps) if gap.value <= _ERRORS * gap.error or i == best)
    table = [_as_candidate(*each) for each in zip(judged, means, gaps, strict=True)]
    return RankSelection(judged[chosen].num_components, tuple(table))


def _as_candidate(judged: _Judged, held_out: Mean, shortfall: Mean) -> Candidate:
    spectrum, evidence = judged.fit.diagnostics.spectrum, judged.fit.diagnostics.evidence
    has_direction = spectrum.values.shape[0] > 0
    return Candidate(
        num_components=judged.num_components,
        status=Status(int(judged.fit.status)),
        value=float(spectrum.values[-1]) if has_direction else None,
        noise=float(spectrum.noise) if has_direction else None,
        score=None if evidence is None or evidence.rank is None else float(evidence.rank),
        held_out=held_out,
        shortfall=shortfall,
        num_parameters=judged.information.num_parameters,
        aic=judged.information.aic,
        bic=judged.information.bic,
        params=judged.params,
    )
