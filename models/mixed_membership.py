"""Mixed membership (grade of membership, admixture, generalized Dirichlet latent variable model).

    g_i ~ Dirichlet(α),                      the membership of sample i in k components
    z_ij | g_i ~ Categorical(g_i),           every variable j of the sample draws a component of its own
    x_ij | z_ij = h ~ Categorical(Θ_j[:,h])  a category; or Normal(Θ_jh, σ_j²) for a real variable

A sample is a person with answers to a survey, a genome with alleles at its loci, a sequence with a letter at each
place. Mixtures are the limit of small `α`. The moments of three distinct variables, less what the Dirichlet adds, are
`Σ_h λ_h θ_jh⊗θ_sh⊗θ_th` with nonnegative `θ`. `fit` never forms the tensor of all variables: it factors many small ones
at once, which share anchor variables, and lines them up (PTPQP). `refine` is variational EM from there.

Identifiable when, in each of the three modes, the anchors' tables have rank `k`: since the columns of each variable's
block sum to one, variables of sizes `d_j` reach rank `1 + Σ (d_j − 1)`.

Source: Tan, Mukherjee (2017), Partitioned tensor factorizations for learning mixed membership models; Zhao, Engelhardt,
Mukherjee, Dunson (2016), Fast moment estimation for generalized latent Dirichlet models (MELD).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num

from latensor.models._checks import check_integer, check_key, check_number, check_row_weights, is_concrete
from latensor.models._em import em_limits
from latensor.models._importance import LogLikelihood
from latensor.models._membership import MixedMembership, memberships, sample_memberships
from latensor.models._membership_checks import (
    check_all_observed,
    check_concentration,
    check_membership_table,
    check_params,
    check_variables,
)
from latensor.models._membership_em import variational_em
from latensor.models._membership_fit import (
    DenseSource,
    Fit,
    Matching,
    TableSource,
    check_options,
    fit_to_moments,
    fit_to_table,
    settle_anchors,
)
from latensor.models._membership_likelihood import importance_sample
from latensor.models._membership_moments import scale_dense, scale_reals
from latensor.moments import Moments, Variables, as_float, categorical_variables

__all__ = [
    "Fit",
    "LogLikelihood",
    "MixedMembership",
    "Posterior",
    "Sample",
    "Variables",
    "categorical_variables",
    "fit",
    "fit_moments",
    "log_likelihood",
    "population_moments",
    "posterior",
    "refine",
    "sample",
]


class Sample(NamedTuple):
    """Samples in rows, and the membership of each."""

    x: Num[Array, "n p"]
    hidden: Float[Array, "n k"]


@partial(jax.jit, static_argnames="variables")
def population_moments(params: MixedMembership, variables: Variables) -> Moments:
    """Return the exact first moments and the corrected second and third ones of all variables' stacked rows.

    `Θa`, `Θ diag(η) Θᵀ` and `Σ_h λ_h θ_h⊗θ_h⊗θ_h`: what `dirichlet_cross_moments` estimates for distinct variables.
    """
    tables, total = params.tables, jnp.sum(params.concentration)
    share = params.concentration / total
    second = tables * (share / (total + 1))[None, :]
    third = tables * (2 * share / ((total + 1) * (total + 2)))[None, :]
    return Moments(
        first=jnp.matmul(tables, share, precision="highest"),
        second=jnp.matmul(second, tables.T, precision="highest"),
        third=jnp.einsum("ih,jh,lh->ijl", third, tables, tables, precision="highest"),
    )


def fit_moments(
    key: Array,
    moments: Moments,
    num_components: int,
    concentration: float,
    variables: Variables,
    method: str = "ptpqp",
    num_partitions: int | None = None,
    anchors: Sequence[Sequence[int]] | None = None,
    *,
    matching: Matching = "procrustes",
    num_restarts: int = 8,
) -> Fit:
    """Recover the model from dense moments, such as `population_moments`; exact where they are.

    Blocks of a variable with itself are never used. The variances of real variables are not in the moments: the
    parameters' `variances` is `None`. Arguments as for `fit`, which never forms these moments.
    """
    key = check_key(key)
    variables = check_variables(variables)
    total = check_concentration(concentration)
    if total is None:
        raise ValueError("concentration: expected a number above zero; dense moments do not tell it")
    if method == "meld":
        raise ValueError("method: expected one that factors tensors; 'meld' needs the samples")
    options = check_options(variables, num_components, method, num_partitions, anchors, matching, num_restarts, 0)
    if moments.second.shape != (variables.num_rows, variables.num_rows):
        raise ValueError(
            f"moments: expected {variables.num_rows} rows, those of all variables; got {moments.second.shape}"
        )
    total = jnp.asarray(total, moments.first.dtype)
    if options.anchors_on_host:
        scaled, _ = scale_dense(moments, total, variables, options.num_components)
        options = settle_anchors(key, DenseSource(scaled), options, total)
    return fit_to_moments(key, moments, total, variables, options)


def fit(
    key: Array,
    x: ArrayLike,
    num_components: int,
    concentration: float | None = None,
    method: str = "ptpqp",
    num_partitions: int | None = None,
    anchors: Sequence[Sequence[int]] | None = None,
    *,
    variables: Variables | None = None,
    mask: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    matching: Matching = "procrustes",
    num_restarts: int = 8,
    polish: int = 1,
) -> Fit:
    """Estimate the model by the method of moments.

    Args:
      key: a random key, for starts and projections.
      x: `(n, p)`: category codes `0, 1, …`, and numbers where a variable is real. Under a masked entry there may be
        anything.
      num_components: number of components `k`.
      concentration: `α₀ = Σ α_h`, the total concentration of the memberships: small where samples belong to one
        component each, large where all are alike mixtures. `None` tries a grid and keeps what makes the data likely; a
        dozen fits.
      method: `"ptpqp"`: nonnegative factors of all partitions by parallel quadratic programming; or, on the same
        partitions, `"hals"`, `"wnmf"`, `"multiplicative"` (see `latensor.decompose.nonnegative_cp`), the power method
        `"tpm"` and joint diagonalization `"ojd0"`, `"ojd1"`, `"nojd0"`, `"nojd1"` (see `decompose_views`). `"meld"` has
        no partitions: the generalized method of moments on all pairs and triples of variables.
      num_partitions: tensors that the variables are divided into. More are faster and noisier; default: eight
        variables a mode beside the anchors, so one for up to about fifty variables.
      anchors: three groups of columns that are in every partition, one group a mode, none in two of them. Default:
        chosen from the data so that components are far apart in them. Under `jit` or `vmap` they must be given where
        variables differ in their number of categories.
      variables: what the columns are, `Variables(kinds, sizes)`; may be left out where `x` holds integer codes and is
        no tracer, and then every variable has as many categories as its largest code tells.
      mask: `(n, p)` bool, True where observed. Entries must be missing for reasons that do not depend on their values.
      row_weights: a weight for each sample (default: equal).
      matching: how the components of partitions are matched; see `latensor.decompose.match_columns`.
      num_restarts: random starts of the first partition, from which the others start.
      polish: sweeps of `"meld"` from the result of the other methods: they use all pairs and triples of variables, not
        only those within a partition. Zero leaves the result as it is.

    Returns:
      `Fit`. Under `jit` or `vmap` values are not checked; `status` tells what went wrong.

    Cost: `O(n p r²)` for partitions of `r` rows a mode (about `12 + 4k` with four categories), and `O(n Σ rows k)` a
    sweep of polishing. Nothing larger than the data and the partitions' tensors is formed.

    """
    key = check_key(key)
    x, mask, variables = check_membership_table(x, mask, variables)
    check_all_observed(mask)
    options = check_options(variables, num_components, method, num_partitions, anchors, matching, num_restarts, polish)
    if x.shape[0] < options.num_components:
        raise ValueError(f"x: expected at least num_components = {options.num_components} samples; got {x.shape[0]}")
    row_weights = check_row_weights(row_weights, x.shape[0])
    total = check_concentration(concentration)
    total = None if total is None else jnp.asarray(total, as_float(x).dtype)
    if options.anchors_on_host:
        if not is_concrete(x, mask, row_weights, total):
            raise ValueError(
                "anchors: expected to be given under jit or vmap, where variables differ in size; got None"
            )
        scaled, _, _ = scale_reals(x, mask, row_weights, variables, options.num_components)
        guess = jnp.ones((), as_float(x).dtype) if total is None else total
        options = settle_anchors(key, TableSource(scaled, mask, row_weights), options, guess)
    return fit_to_table(key, x, mask, row_weights, total, variables, options)


def sample(key: Array, params: MixedMembership, num_samples: int, *, variables: Variables) -> Sample:
    """Draw samples: int32 codes if all variables are categorical, else floating numbers."""
    variables = check_variables(variables)
    params = check_params(params, variables, _hint(params))
    return Sample(*sample_memberships(check_key(key), params, variables, check_integer("num_samples", num_samples, 1)))


def _hint(params: Any) -> str:
    return " (pass its .params)" if isinstance(params, Fit) else ""


def _check_pair(
    params: Any, x: Any, mask: Any, variables: Any
) -> tuple[MixedMembership, Array, Array | None, Variables]:
    x, mask, variables = check_membership_table(x, mask, variables)
    return check_params(params, variables, _hint(params)), x, mask, variables


class Posterior(NamedTuple):
    """What is known of each sample's membership: a Dirichlet distribution (variational), and its mean."""

    mean: Float[Array, "n k"]
    concentration: Float[Array, "n k"]


def posterior(
    params: MixedMembership,
    x: ArrayLike,
    *,
    variables: Variables | None = None,
    mask: ArrayLike | None = None,
    tol: float | None = None,
    max_iters: int = 500,
) -> Posterior:
    """Return each sample's membership given its observed variables, by closed-form variational updates.

    Args:
      params: the model.
      x: samples as for `fit`.
      variables: what the columns are; as for `fit`.
      mask: `(n, p)` bool, True where observed.
      tol: a sample has converged when an update moves no concentration by more than this share of their sum; default:
        10 machine epsilons in float32 and 1e-8 in float64.
      max_iters: limit on the updates.

    """
    params, x, mask, variables = _check_pair(params, x, mask, variables)
    gamma = memberships(params, x, mask, variables, *em_limits(tol, max_iters, params.tables.dtype))
    return Posterior(gamma / jnp.sum(gamma, axis=1, keepdims=True), gamma)


def log_likelihood(
    key: Array,
    params: MixedMembership,
    x: ArrayLike,
    *,
    variables: Variables | None = None,
    mask: ArrayLike | None = None,
    num_samples: int = 200,
) -> LogLikelihood:
    """Return an importance-sampled estimate of each sample's log-probability, and its standard error.

    Memberships are drawn from widened copies of the variational posterior and from the prior, weighed against their
    mixture. The estimate of the probability is unbiased, its logarithm low by about half the squared standard error.

    Args:
      key: a random key.
      params: the model.
      x: samples as for `fit`.
      variables: what the columns are; as for `fit`.
      mask: `(n, p)` bool, True where observed: the probability is that of the observed entries.
      num_samples: draws for each sample.

    """
    key = check_key(key)
    params, x, mask, variables = _check_pair(params, x, mask, variables)
    num_samples = check_integer("num_samples", num_samples, 2)
    gamma = memberships(params, x, mask, variables, *em_limits(1e-3, 100, params.tables.dtype))
    return importance_sample(key, params, x, mask, variables, gamma, num_samples)


def refine(
    params: MixedMembership,
    x: ArrayLike,
    *,
    variables: Variables | None = None,
    mask: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    update_concentration: bool = False,
    tol: float | None = None,
    max_iters: int = 200,
    smoothing: float = 1e-2,
) -> Fit:
    """Improve `params` by variational EM. The evidence lower bound never falls.

    The bound is not the likelihood: with few variables it is loose, and its optimum can be worse than the `fit` that it
    started from. Compare `log_likelihood` before and after. Above all the concentration comes out too large then (from
    0.9 to 20 with 16 variables of four categories, from 0.9 to 0.8 with 200), so it is left alone unless asked for.

    Args:
      params: where to start: `fit(...).params`, or anything else.
      x: samples as for `fit`.
      variables: what the columns are; as for `fit`.
      mask: `(n, p)` bool, True where observed.
      row_weights: a weight for each sample (default: equal).
      update_concentration: also learn the concentration.
      tol: stop when a step gains less than this share of the bound; default: 10 machine epsilons in float32 and 1e-8 in
        float64.
      max_iters: limit on the steps.
      smoothing: share of the overall frequencies that is mixed into the tables of the start, where that raises its
        bound.

    Returns:
      `Fit`, of the same type as that of `fit`, with no partitions and no anchors.

    """
    params, x, mask, variables = _check_pair(params, x, mask, variables)
    dtype = params.tables.dtype
    share = jnp.asarray(check_number("smoothing", smoothing, 0.0, 1.0), dtype)
    row_weights = check_row_weights(row_weights, x.shape[0])
    limits = em_limits(tol, max_iters, dtype)
    result = variational_em(params, x, mask, row_weights, variables, *limits, share, bool(update_concentration))
    none = jnp.zeros(0, jnp.int32)
    return Fit(
        result.params,
        result.status,
        result.num_iters,
        result.gain,
        jnp.ones(0, bool),
        (none, none, none),
        jnp.int32(0),
    )
