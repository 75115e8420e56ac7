"""Parameters of the hidden Markov model, their checks, draws from it, and its exact moments."""

from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import as_numbers, check_integer, check_key, einsum, is_concrete, matmul, small_jit
from latensor.models.checks import check_order, check_probabilities, check_reals, check_type
from latensor.models.results import Sample
from latensor.models.sampling import check_num_samples, inverse_cdf
from latensor.moments import CrossMoments
from latensor.moments.internal import finite_moments

# A number of symbols or dimensions, or a traced one of those that occur.
Count = TypeVar("Count", int, Array)


class HiddenMarkov(NamedTuple):
    """Parameters of a hidden Markov model of symbols or of real vectors."""

    initial: Float[Array, " k"]
    """`P(h₁)`."""
    transition: Float[Array, "k k"]
    """`transition[i, j] = P(h_{t+1} = j | h_t = i)`; rows sum to one."""
    emission: Float[Array, "d k"]
    """`P(x | h)`, columns sum to one; for real vectors, the means `E[x | h]`."""
    variance: Float[Array, "d k"] | None = None
    """For real vectors, the variance of each dimension in each state; `None` for symbols."""


def is_real(params: HiddenMarkov) -> bool:
    """Return whether the observations are real vectors."""
    return params.variance is not None


def check_params(params: Any) -> HiddenMarkov:
    """Return parameters whose shapes agree and whose values are valid."""
    params = check_type(params, HiddenMarkov)
    initial = check_probabilities("params.initial", params.initial, 1)
    transition = as_numbers("params.transition", params.transition, "probabilities")
    rows = np.asarray(transition) if is_concrete(transition) else transition
    check_probabilities("params.transition (its rows)", rows.T, 2)
    if is_real(params):
        emission = check_reals("params.emission", params.emission, 2)
        variance = check_reals("params.variance", params.variance, 2, positive=True)
    else:
        emission, variance = check_probabilities("params.emission", params.emission, 2), None
    k = initial.shape[0]
    shapes = [part.shape for part in (initial, transition, emission, variance) if part is not None]
    if shapes != [(k,), (k, k), *[(emission.shape[0], k)] * (len(shapes) - 2)]:
        raise ValueError(
            "params: expected initial (k,), transition (k, k), emission (d, k) and, for real vectors, variance (d, k); "
            f"got shapes {', '.join(map(str, shapes))}"
        )
    dtype = emission.dtype
    variance = None if variance is None else variance.astype(dtype)
    return HiddenMarkov(initial.astype(dtype), transition.astype(dtype), emission, variance)


def num_parameters(params: HiddenMarkov) -> int:
    """Return the number of free parameters.

    `k − 1` of the first state, `k − 1` transitions per state, and per state `d − 1` probabilities of symbols, or `d`
    means and `d` variances.
    """
    params = check_params(params)
    return params.initial.shape[0] - 1 + count_parameters(params, params.emission.shape[0])


def count_parameters(params: HiddenMarkov, num_features: Count) -> Count:
    """Return the number of free parameters but for `initial`; of symbols or dimensions, that of some of them."""
    k = params.initial.shape[0]
    return k * (k - 1) + k * (2 * num_features if is_real(params) else num_features - 1)


def reorder(params: HiddenMarkov, order: Int[Array, " k"]) -> HiddenMarkov:
    """Return the same model with its states in another order, unchecked."""
    return HiddenMarkov(
        params.initial[order],
        params.transition[order][:, order],
        params.emission[:, order],
        None if params.variance is None else params.variance[:, order],
    )


def permute(params: HiddenMarkov, order: ArrayLike) -> HiddenMarkov:
    """Return the same model with its states in another order: state `i` is the old `order[i]`."""
    params = check_params(params)
    return reorder(params, check_order(order, params.initial.shape[0]))


def component_columns(params: HiddenMarkov) -> Float[Array, "d k"]:
    """Return one column per state, by which the states of two estimates are matched: the emissions."""
    return check_params(params).emission


def sample(key: Array, params: HiddenMarkov, num_samples: int, *, length: int = 100) -> Sample:
    """Draw sequences and their states.

    Args:
      key: a random key.
      params: the model.
      num_samples: number of sequences.
      length: number of observations in each of them.

    Returns:
      `Sample(x, hidden)`: symbols `(num_samples, length)` or real vectors `(num_samples, length, d)`; states
      `(num_samples, length)`.

    """
    key, params = check_key(key), check_params(params)
    length = check_integer("length", length, 1)
    numbers = length * (params.emission.shape[0] if is_real(params) else 1)
    return _sample(key, params, check_num_samples(num_samples, numbers), length)


@partial(jax.jit, static_argnames=("num_samples", "length"))
def _sample(key: Array, params: HiddenMarkov, num_samples: int, length: int) -> Sample:
    key_states, key_noise = jax.random.split(key)
    dtype = params.emission.dtype
    uniforms = jax.random.uniform(key_states, (length, num_samples), dtype)
    columns = params.transition.T

    def step(state: Array, uniform: Array) -> tuple[Array, Array]:
        return inverse_cdf(uniform, columns, state), state

    start = inverse_cdf(uniforms[0], params.initial[:, None])
    _, hidden = lax.scan(step, start, jnp.roll(uniforms, -1, axis=0))
    hidden = hidden.T
    if params.variance is None:
        draws = jax.random.uniform(key_noise, hidden.shape, dtype)
        return Sample(inverse_cdf(draws, params.emission, hidden), hidden)
    noise = jax.random.normal(key_noise, (*hidden.shape, params.emission.shape[0]), dtype)
    return Sample(params.emission.T[hidden] + jnp.sqrt(params.variance).T[hidden] * noise, hidden)


def population_moments(params: HiddenMarkov) -> CrossMoments:
    """Return the exact moments of the first three observations of a sequence, which those of a sample estimate."""
    return finite_moments("params", _population_moments(check_params(params)))


@small_jit
def _population_moments(params: HiddenMarkov) -> CrossMoments:
    o, transition = params.emission, params.transition
    before, after = matmul(o * params.initial[None, :], transition), matmul(o, transition.T)
    second = matmul(params.initial, transition)
    return CrossMoments(
        first=(matmul(o, params.initial), matmul(o, second), matmul(after, second)),
        second=(matmul(before, o.T), matmul(before, after.T), matmul(o * second[None, :], after.T)),
        third=einsum("ih,jh,lh->ijl", before, o, after),
        num_unobserved=jnp.int32(0),
    )
