"""The states of a model: how often they occur, what they look like, and how two that are the same are parted."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from latensor.base import divide, machine_epsilon, matmul, positive_or_one
from latensor.models.hidden_markov.params import HiddenMarkov

# States whose signatures have a cosine closer to one than this are the same; those that occur less often are none.
_SAME, _NEVER = 1e-5, 1e-6
# A state whose variance is a smaller share of the overall one has closed in on a single value.
_CLOSED = 1e-10
# Share of even transitions that states which were drawn anew bring with them: from nowhere they would stay unused.
_EVEN = 0.1


def occurrence(params: HiddenMarkov) -> Float[Array, " k"]:
    """Return how often each state occurs among the three of a window; `initial` is that of a window."""
    second = matmul(params.initial, params.transition)
    return (params.initial + second + matmul(second, params.transition)) / 3


def _signatures(params: HiddenMarkov, often: Float[Array, " k"]) -> Float[Array, "f k"]:
    """Return what states look like in the moments, as unit vectors.

    `P(x | h)/√P(x)` of symbols; means and squares in standard units, and a constant, of real vectors.
    """
    usual = matmul(params.emission, often)[:, None]
    if params.variance is None:
        columns = divide(params.emission, jnp.sqrt(usual))
    else:
        means = params.emission - usual
        squares = means * means + params.variance
        scale = positive_or_one(matmul(squares, often))[:, None]
        columns = jnp.concatenate([means / jnp.sqrt(scale), squares / scale, jnp.ones_like(often)[None, :]])
    return columns / positive_or_one(jnp.linalg.norm(columns, axis=0))[None, :]


def are_independent(params: HiddenMarkov) -> Bool[Array, ""]:
    """Return whether the signatures of the states are linearly independent, beyond rounding."""
    columns = _signatures(params, occurrence(params))
    gram = matmul(columns.T, columns)
    k, finite = gram.shape[0], jnp.all(jnp.isfinite(gram))
    smallest = jnp.linalg.eigvalsh(jnp.where(finite, gram, jnp.eye(k, dtype=gram.dtype)))[0]
    return smallest > 10 * k * machine_epsilon(gram.dtype)


def has_closed_in(params: HiddenMarkov) -> Bool[Array, ""]:
    """Return whether a state of real vectors has closed in on one value, on which the likelihood has no bound."""
    if params.variance is None:
        return jnp.zeros((), bool)
    often = occurrence(params)
    usual = matmul(params.emission, often)[:, None]
    overall = matmul((params.emission - usual) ** 2 + params.variance, often)[:, None]
    return jnp.any(params.variance <= _CLOSED * overall)


def part_states(key: Array, params: HiddenMarkov) -> HiddenMarkov:
    """Return a start for EM in which no two states are the same and all occur.

    EM treats identical states alike and never parts them, and a state that does not occur never comes back. Such states
    are drawn anew around the distribution of all observations; the others stay as they are.
    """
    often = occurrence(params)
    columns = _signatures(params, often)
    same = jnp.tril(matmul(columns.T, columns) > 1 - _SAME, -1)
    anew = jnp.any(same, axis=1) | ~(often > _NEVER)
    usual = matmul(params.emission, often)[:, None]
    if params.variance is None:
        draws = usual * jax.random.exponential(key, params.emission.shape, usual.dtype)
        fresh, variance = draws / positive_or_one(jnp.sum(draws, axis=0))[None, :], None
    else:
        spread = matmul((params.emission - usual) ** 2 + params.variance, often)[:, None]
        fresh = usual + jnp.sqrt(spread) * jax.random.normal(key, params.emission.shape, usual.dtype)
        variance = jnp.where(anew[None, :], positive_or_one(spread), params.variance)
    share = jnp.where(jnp.any(anew), _EVEN, 0).astype(usual.dtype)
    k = often.shape[0]
    return HiddenMarkov(
        (1 - share) * params.initial + share / k,
        jnp.where(anew[:, None], 1 / k, (1 - share) * params.transition + share / k),
        jnp.where(anew[None, :], fresh, params.emission),
        variance,
    )
