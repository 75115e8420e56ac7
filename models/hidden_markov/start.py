"""The spectral start: a hidden Markov model from the moments of three neighbours, without a starting point.

The middle of three neighbours has three views, independent given its state `h₂`: the observation before it, its own,
and the one after. `O = E[x₂ | h₂]` follows from their moments (`conditionals_from_views`). Pairs `x₁, x₂` are then
exclusive views of `h₁, h₂` with the same `O`, and give `Z = P(h₁, h₂)`; its rows, normalized, are the transitions.

If the triple table is small it is formed (`table_start`). Otherwise every view is projected to the k directions that it
shares with the others (`bases`), in passes over the data (`start_list`, and `start_vectors` for real vectors).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from latensor.base import divide, machine_epsilon, matmul, small_jit, smallest_normal
from latensor.decompose import (
    Conditionals,
    Status,
    composite_likelihood_em,
    conditionals_from_views,
    pseudoinverse_marginals,
)
from latensor.decompose.internal import ViewMethod, status_if, to_simplex, worst
from latensor.models.hidden_markov.emissions import divide_rows
from latensor.models.hidden_markov.params import HiddenMarkov
from latensor.models.results import Spectrum
from latensor.moments import CrossMoments
from latensor.moments.internal import Directions

MARGINALS = ("likelihood", "pseudoinverse")
# Differences below this many machine epsilons of the largest entry count as zero.
_EXACT = 1e3
# Singular values of a (d, d) matrix of noise of variance 1/n end at about 2√(d/n); those above this multiple are clear.
_CLEAR_OF_NOISE = 1.25
# Above this multiple of the noise the spectral estimate is near the best one, and polishing needs no other start.
_FAR_ABOVE_NOISE = 2.0


class Options(NamedTuple):
    """The options of `fit`; static."""

    num_components: int
    method: ViewMethod
    num_restarts: int
    marginals: str
    polish: bool
    num_starts: int


class Start(NamedTuple):
    """The spectral estimate, and how good it is."""

    params: HiddenMarkov
    """`initial` is the distribution of a window's first state."""
    status: Int[Array, ""]
    num_iters: Int[Array, ""]
    residual: Float[Array, ""]
    spectrum: Spectrum
    gap: Float[Array, ""] | None
    simplex_distance: Float[Array, ""] | None
    clear: Bool[Array, ""]
    """Whether the spectrum says that there are k states: the k-th singular value is far above the noise, and the next
    is not."""


def neighbour_conditionals(key: Array, moments: CrossMoments, options: Options, categorical: bool) -> Conditionals:
    """Return the conditionals of three neighbours given the middle one's state.

    The first two views are mapped to the third, which takes the pseudoinverse of `M₁₂`. In any other order it would be
    that of `M₁₃`, two transitions apart, whose last singular values are the first to drown in the noise.
    """
    return conditionals_from_views(
        key,
        moments.first,
        moments.second,
        moments.third,
        options.num_components,
        options.method,
        categorical=(categorical,) * 3,
        num_restarts=options.num_restarts,
    )


def noise_level(d: int | Int[Array, ""], weights: Float[Array, " windows"]) -> Float[Array, ""]:
    """Return the size of the singular values of sampling noise, in units in which all entries have variance 1/n."""
    number = divide(jnp.sum(weights) ** 2, jnp.sum(weights**2))
    return 2 * jnp.sqrt(d / jnp.maximum(number, 1))


def assemble(
    conditionals: Conditionals,
    emission: Float[Array, "d k"],
    variance: Float[Array, "d k"] | None,
    joint: Float[Array, "k k"],
    noise: Float[Array, ""],
    next_value: Float[Array, ""],
    gap: Float[Array, ""] | None,
    simplex_distance: Float[Array, ""] | None,
) -> Start:
    """Read `P(h₁)` and `P(h₂ | h₁)` off `P(h₁, h₂)`; a state that never comes first is followed as any other."""
    otherwise = jnp.broadcast_to(conditionals.weights[None, :], joint.shape)
    values = conditionals.singular_values
    status = worst(conditionals.status, status_if(values[-1] <= _CLEAR_OF_NOISE * noise, Status.RANK_DEFICIENT))
    rounding = _EXACT * machine_epsilon(values.dtype) * values[0]
    is_noise = next_value <= jnp.maximum(_CLEAR_OF_NOISE * noise, rounding)
    return Start(
        HiddenMarkov(jnp.sum(joint, axis=1), divide_rows(joint, otherwise), emission, variance),
        status,
        conditionals.num_iters,
        conditionals.residual,
        Spectrum(values, noise),
        gap,
        simplex_distance,
        (status == Status.CONVERGED) & (values[-1] > _FAR_ABOVE_NOISE * noise) & is_noise,
    )


class Projected(NamedTuple):
    """Moments of three neighbours in a basis of few directions for each."""

    bases: Directions
    moments: CrossMoments
    noise: Float[Array, ""]
    next_value: Float[Array, ""] | None
    """The singular value after the k-th; `None` if the bases are complete, and the moments tell."""


# Many small loops that run for a millisecond: compiling them is all that they cost.
@small_jit(static_argnames="options", optimize=False)
def table_start(key: Array, moments: CrossMoments, noise: Float[Array, ""], options: Options) -> Start:
    """Recover the model from the tables of symbols."""
    key, _ = jax.random.split(key)
    conditionals = neighbour_conditionals(key, moments, options, True)
    emission = conditionals.conditionals[1]
    pairs, gap = moments.second[0], None
    joint = to_simplex(pseudoinverse_marginals(pairs, (emission, emission)))
    if options.marginals == "likelihood":
        # If the pseudoinverse explains the table to the last digits it is the maximum, even where the likelihood is
        # flat. Otherwise EM starts at the uniform distribution and the gap stops it: flat directions stay even.
        fitted = matmul(emission, joint, emission.T)
        exact = jnp.max(jnp.abs(fitted - pairs)) <= _EXACT * machine_epsilon(pairs.dtype) * jnp.max(jnp.abs(pairs))
        begin = jnp.where(exact, jnp.maximum(joint, smallest_normal(pairs.dtype)), 1 / joint.size)
        best = composite_likelihood_em(pairs, (emission, emission), start=begin)
        joint, gap = best.table, best.gap
    distance = jnp.max(conditionals.simplex_distance[1])
    return assemble(conditionals, emission, None, joint, noise, conditionals.noise, gap, distance)
