import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.base import _compile, small_jit
from tests.helpers import lowers


def power(matrix, exponent, scale=1.0):
    """Return `scale · Aⁿ`; the exponent has to be static."""
    product = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    for _ in range(exponent):
        product = product @ matrix
    return scale * product


MATRIX = np.array([[0.5, 0.25, 0.1], [0.0, -1.0, 0.3], [0.7, 0.2, 0.4]])


@pytest.fixture
def ways(monkeypatch):
    """Return the list of ways that calls take, which fills as they are made: `cheap` or `plain`."""
    taken, jit = [], jax.jit

    def recording(function, **options):
        compiled = jit(function, **options)
        way = "cheap" if options.get("compiler_options") else "plain"

        def call(*args, **kwargs):
            taken.append(way)
            return compiled(*args, **kwargs)

        return call

    monkeypatch.setattr(_compile.jax, "jit", recording)
    yield taken
    monkeypatch.undo()


@pytest.mark.parametrize("optimize", [True, False])
def test_same_values_as_jit(optimize, precision):
    matrix = jnp.asarray(MATRIX)
    small = small_jit(static_argnames="exponent", optimize=optimize)(power)
    plain = jax.jit(power, static_argnames="exponent")
    for exponent in (1, 4):
        value = small(matrix, exponent)
        assert value.dtype == precision
        np.testing.assert_allclose(value, plain(matrix, exponent), rtol=1e-12 if precision == "float64" else 1e-6)


def test_static_arguments_by_keyword_and_by_position():
    matrix = jnp.asarray(MATRIX)
    small = small_jit(static_argnames=("exponent",))(power)
    expected = 2 * np.linalg.matrix_power(MATRIX, 3)
    for call in (
        lambda m: small(m, 3, 2.0),
        lambda m: small(m, exponent=3, scale=2.0),
        lambda m: small(scale=2.0, exponent=3, matrix=m),
    ):
        np.testing.assert_allclose(call(matrix), expected, rtol=1e-5)
        np.testing.assert_allclose(jax.jit(call)(matrix), expected, rtol=1e-5)


def test_decorates_with_and_without_arguments():
    @small_jit
    def double(x):
        """Return twice `x`."""
        return jax.tree.map(lambda leaf: 2 * leaf, x)

    assert double.__name__ == "double"
    assert double.__doc__ == "Return twice `x`."
    assert double({"a": 1.5, "b": None}) == {"a": 3.0, "b": None}
    assert double(x=2.0) == 4.0
    assert small_jit(static_argnames="n")(lambda x, n: x * n)(2.0, n=3) == 6.0


def test_compiles_once_for_a_shape():
    traces = []

    @small_jit
    def square(x):
        traces.append(x.shape)
        return x * x

    for size in (2, 3, 2, 3):
        square(jnp.ones(size))
    assert traces == [(2,), (3,)]


@pytest.mark.skipif(_compile._cheap_options(True) is None, reason="this release of JAX does not know the options")
def test_steps_aside_under_a_trace(ways):
    small = small_jit(lambda x: jnp.sin(x) * 2)
    x = jnp.ones(3)
    outer = jax.make_jaxpr  # traces as `jit` does
    transforms = {
        "top level": ("cheap", lambda: small(x)),
        "jit": ("plain", lambda: outer(small)(x)),
        "constants in a jit": ("plain", lambda: outer(lambda y: y + small(np.ones(3)))(x)),
        "vmap": ("plain", lambda: jax.vmap(small)(x)),
        "grad": ("plain", lambda: jax.grad(lambda x: small(x).sum())(x)),
        "jvp": ("plain", lambda: jax.jvp(small, (x,), (x,))),
        "jit of vmap": ("plain", lambda: outer(jax.vmap(small))(x)),
        "constants in a jit of vmap": ("plain", lambda: outer(jax.vmap(lambda y: y + small(1.0)))(x)),
        "scan": ("plain", lambda: jax.lax.scan(lambda c, _: (small(c), small(2.0)), x, None, length=2)),
        "evaluation at once": ("cheap", lambda: outer(lambda y: y + evaluated(small))(x)),
    }
    for name, (expected, run) in transforms.items():
        ways.clear()
        run()
        assert set(ways) == {expected}, name


def evaluated(function):
    with jax.ensure_compile_time_eval():
        result = function(np.ones(3))
    assert not isinstance(result, jax.core.Tracer)
    return result


def test_same_values_under_every_transformation(float64):
    small = small_jit(lambda x: jnp.sin(x) * 2)
    x = jnp.asarray([0.1, 0.2, 0.3])
    expected = 2 * np.sin(np.asarray(x))
    constant = 2 * np.sin(1.0)
    np.testing.assert_allclose(jax.jit(small)(x), expected)
    np.testing.assert_allclose(jax.vmap(small)(x), expected)
    np.testing.assert_allclose(jax.jit(jax.vmap(small))(x), expected)
    np.testing.assert_allclose(jax.vmap(jax.jit(small))(x), expected)
    np.testing.assert_allclose(jax.grad(lambda x: small(x).sum())(x), 2 * np.cos(np.asarray(x)))
    np.testing.assert_allclose(jax.hessian(lambda x: small(x).sum())(x), np.diag(-expected))
    # A constant is computed at once under `vmap` or `grad` alone.
    np.testing.assert_allclose(jax.vmap(lambda y: y + small(1.0))(x), x + constant)
    np.testing.assert_allclose(jax.grad(lambda y: y * small(1.0))(0.5), constant)
    np.testing.assert_allclose(jax.jit(lambda y: y + evaluated(small))(x), x + constant)
    with jax.disable_jit():
        np.testing.assert_allclose(small(x), expected)


def test_one_inside_the_other():
    inner = small_jit(lambda x: x + 1)
    outer = small_jit(lambda x: inner(x) * inner(2 * x))
    assert outer(3.0) == 28.0


def test_lowers_for_accelerators():
    small = small_jit(static_argnames="exponent")(power)
    lowers(lambda m: small(m, 2) + small(m, exponent=3), jnp.asarray(MATRIX, jnp.float32))
    lowers(jax.vmap(lambda m: small(m, 2)), jnp.ones((2, 3, 3)))


def test_works_where_the_options_are_not_known(monkeypatch):
    monkeypatch.setattr(_compile, "_cheap_options", lambda optimize: None)
    assert small_jit(lambda x: x + 1)(1.0) == 2.0
