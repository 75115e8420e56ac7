import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.base import (
    as_float,
    as_int32,
    divide,
    einsum,
    float_type,
    machine_epsilon,
    matmul,
    positive_or_one,
    smallest_normal,
)

RNG = np.random.default_rng(0)
A, B, C, V = RNG.normal(size=(3, 4)), RNG.normal(size=(4, 5)), RNG.normal(size=(5, 2)), RNG.normal(size=4)


# Products.
def test_products_from_left_to_right(precision):
    a, b, c, v = (jnp.asarray(part) for part in (A, B, C, V))
    tol = 1e-13 if precision == "float64" else 1e-5
    np.testing.assert_allclose(matmul(a), A, rtol=1e-6)
    np.testing.assert_allclose(matmul(a, b), A @ B, atol=tol)
    np.testing.assert_allclose(matmul(a, b, c), A @ B @ C, atol=tol)
    np.testing.assert_allclose(matmul(a, v), A @ V, atol=tol)
    np.testing.assert_allclose(matmul(v, b), V @ B, atol=tol)
    np.testing.assert_allclose(matmul(jnp.stack([a, a]), b)[1], A @ B, atol=tol)
    np.testing.assert_allclose(einsum("ij,jk,j->ik", a, b, v), np.einsum("ij,jk,j->ik", A, B, V), atol=tol)
    assert matmul(a, b, c).dtype == einsum("ij,jk->ik", a, b).dtype == precision


def test_products_ask_for_full_precision():
    a, b = jnp.asarray(A, jnp.float32), jnp.asarray(B, jnp.float32)
    for function in (lambda: matmul(a, b), lambda: einsum("ij,jk->ik", a, b), lambda: matmul(a, b, b.T)):
        text = str(jax.make_jaxpr(function)())
        assert text.count("dot_general[") == text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") > 0


# Division.
def test_division_where_the_denominator_is_positive(precision):
    numerator, denominator = jnp.asarray([1.0, 2.0, 3.0, 4.0]), jnp.asarray([2.0, 0.0, -1.0, np.nan])
    np.testing.assert_array_equal(divide(numerator, denominator), [0.5, 0, 0, 0])
    np.testing.assert_array_equal(divide(numerator, denominator, 7), [0.5, 7, 7, 7])
    np.testing.assert_array_equal(divide(numerator, denominator, -numerator), [0.5, -2, -3, -4])
    np.testing.assert_array_equal(divide(1, denominator), [0.5, 0, 0, 0])
    np.testing.assert_array_equal(positive_or_one(denominator), [2, 1, 1, 1])
    assert divide(numerator, denominator).dtype == divide(1, denominator, 1).dtype == precision
    assert positive_or_one(jnp.asarray([0, 3])).dtype == jnp.asarray([0, 3]).dtype
    assert np.isnan(divide(jnp.asarray([np.nan]), jnp.asarray([1.0])))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_division_keeps_the_type(dtype, float64):
    denominator = jnp.ones(2, dtype)
    assert divide(1, denominator, 0.5).dtype == dtype
    assert divide(jnp.ones(2, dtype), denominator).dtype == dtype
    assert divide(jnp.ones(2, dtype), jnp.asarray([1, 0])).dtype == dtype
    assert positive_or_one(denominator).dtype == dtype


def test_ranks_of_divided_arrays():
    """Scalars go with any rank; apart from them ranks have to agree, as everywhere in latensor."""
    matrix, vector, scalar = jnp.ones((2, 3)), jnp.asarray([0.0, 1.0, 2.0]), jnp.float32(4)
    assert divide(matrix, scalar).shape == divide(scalar, matrix).shape == (2, 3)
    assert divide(matrix, jnp.float32(0), 5).tolist() == [[5.0] * 3] * 2
    assert divide(scalar, scalar, scalar).shape == ()
    assert divide(1, scalar) == 0.25
    assert divide(matrix, vector[None, :]).tolist() == [[0, 1, 0.5]] * 2
    assert divide(vector, vector, jnp.float32(3)).tolist() == [3, 1, 1]
    with pytest.raises(ValueError, match="jax_numpy_rank_promotion"):
        divide(matrix, vector)
    with pytest.raises(ValueError, match="jax_numpy_rank_promotion"):
        divide(vector, matrix)


def test_derivatives_are_finite_where_the_denominator_vanishes(float64):
    denominator = jnp.asarray([2.0, 0.0, -1.0])
    for wrt, expected in ((0, [0.5, 0, 0]), (1, [-0.75, 0, 0])):
        gradient = jax.grad(lambda n, d: jnp.sum(divide(n, d)), wrt)(jnp.full(3, 3.0), denominator)
        np.testing.assert_array_equal(gradient, expected)
    second = jax.hessian(lambda d: jnp.sum(divide(1, d)))(denominator)
    np.testing.assert_array_equal(second, np.diag([0.25, 0, 0]))


# Types.
def test_floats_keep_their_type_and_others_become_the_default(precision):
    for dtype in ("int8", "uint8", "int32", "float16", "bfloat16"):
        assert as_float(jnp.ones(2, dtype)).dtype == precision
    assert as_float(jnp.ones(2, jnp.float32)).dtype == jnp.float32
    assert as_float(jnp.ones(2, precision)).dtype == precision
    x = jnp.ones(2)
    assert as_float(x) is x
    assert [float_type(dtype) for dtype in ("float32", jnp.int32, jnp.float16)] == ["float32", precision, precision]


def test_integers_become_32_bits_without_wrapping_around(float64):
    cases = {
        "int8": ([-128, 127], [-128, 127]),
        "uint8": ([0, 255], [0, 255]),
        "uint16": ([0, 65535], [0, 65535]),
        "int32": ([-5, 2**31 - 1], [-5, 2**31 - 1]),
        "uint32": ([7, 2**32 - 1], [7, 2**31 - 1]),
        "int64": ([-(2**40), 2**32 + 3], [-(2**31), 2**31 - 1]),
        "uint64": ([1, 2**64 - 1], [1, 2**31 - 1]),
    }
    for dtype, (values, expected) in cases.items():
        x = jnp.asarray(np.array(values, dtype))
        for integers in (as_int32(x), jax.jit(as_int32)(x), jax.vmap(as_int32)(x)):
            assert integers.dtype == jnp.int32
            assert integers.tolist() == expected


def test_concrete_integers_stay_concrete_in_a_trace(precision):
    @jax.jit
    def constant(y):
        for dtype in (np.int32, np.int16, np.uint32):
            with jax.ensure_compile_time_eval():
                x = jnp.asarray(np.arange(3, dtype=dtype))
            assert np.asarray(as_int32(x)).tolist() == [0, 1, 2]
        return y

    constant(1.0)


def test_constants_are_python_numbers():
    for dtype in ("float32", "float64"):
        assert type(machine_epsilon(dtype)) is type(smallest_normal(dtype)) is float
        assert machine_epsilon(dtype) == np.finfo(dtype).eps
        assert smallest_normal(dtype) == np.finfo(dtype).tiny
    assert (jnp.ones(1, jnp.float32) * machine_epsilon("float64")).dtype == jnp.float32
