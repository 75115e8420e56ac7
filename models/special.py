"""Special functions of the Gamma distribution, for positive numbers.

Recurrences move a small argument up to where a few terms of the asymptotic (Stirling) series are
exact to rounding. Several times faster on CPUs than the functions of the same name in `jax.scipy`, whose expansions
serve the whole real line, and faster to compile. Errors are a few roundings of the largest term: absolute, not
relative, near the zeros of `digamma` (1.46) and `log_gamma` (1 and 2).
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

# Bernoulli numbers `B_2, B_4, …`: the coefficients of all three series.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
# How far arguments are moved up, and the number of terms: the first one left out is below rounding.
_SHIFTS, _TERMS = {32: 5, 64: 9}, {32: 4, 64: 8}


def _precision(x: Array) -> tuple[int, int]:
    bits = jnp.finfo(x.dtype).bits
    return _SHIFTS[bits], _TERMS[bits]


def _moved(x: Float[Array, "*shape"], shift: int) -> tuple[Array, Array]:
    """Return which arguments are moved, and all of them after that."""
    small = x < shift
    return small, jnp.where(small, x + shift, x)


def _series(inverse: Array, coefficients: list[float]) -> Array:
    """Return `Σ_i c_i u^i` for `u = inverse²`, by Horner's rule."""
    square, total = inverse * inverse, jnp.zeros_like(inverse)
    for coefficient in reversed(coefficients):
        total = total * square + coefficient
    return total


def digamma(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return `ψ(x) = d log Γ(x) / dx`: `ψ(x) = ψ(x + s) − Σ_(i<s) 1/(x + i)`."""
    shift, terms = _precision(x)
    small, y = _moved(x, shift)
    inverse = 1 / y
    series = _series(inverse, [b / (2 * i) for i, b in enumerate(_BERNOULLI[:terms], 1)])
    below = sum(1 / (x + i) for i in range(shift))
    return jnp.log(y) - inverse / 2 - inverse * inverse * series - jnp.where(small, below, 0)


def trigamma(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return `ψ'(x)`: `ψ'(x) = ψ'(x + s) + Σ_(i<s) 1/(x + i)²`."""
    shift, terms = _precision(x)
    small, y = _moved(x, shift)
    inverse = 1 / y
    series = inverse + inverse**2 / 2 + inverse**3 * _series(inverse, list(_BERNOULLI[:terms]))
    below = sum((1 / (x + i)) ** 2 for i in range(shift))
    return series + jnp.where(small, below, 0)


def log_gamma(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return `log Γ(x)`: `log Γ(x) = log Γ(x + s) − log Π_(i<s) (x + i)`."""
    shift, terms = _precision(x)
    small, y = _moved(x, shift)
    inverse = 1 / y
    series = _series(inverse, [b / (2 * i * (2 * i - 1)) for i, b in enumerate(_BERNOULLI[:terms], 1)])
    # One where nothing was moved: the product of large factors would leave the floating range.
    factors = math.prod((jnp.where(small, x + i, 1) for i in range(shift)), start=jnp.ones_like(x))
    # `(y − ½) log y − y + ½ log 2π`, with terms half as large.
    main = (y - 0.5) * (jnp.log(y) - 1)
    return main - jnp.log(factors) + ((math.log(2 * math.pi) - 1) / 2 + inverse * series)
