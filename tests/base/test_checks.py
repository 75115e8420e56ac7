import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.base import (
    as_numbers,
    check_axes,
    check_bool,
    check_integer,
    check_key,
    check_mask,
    check_matrix,
    check_number,
    check_option,
    first_entry,
    is_concrete,
)

BAD = [
    ("x: expected counts; got None", lambda: as_numbers("x", None, "counts")),
    ("x: expected counts; got str", lambda: as_numbers("x", "abc", "counts")),
    ("x: expected counts; got list", lambda: as_numbers("x", [[1], [1, 2]], "counts")),
    ("x: expected counts; got object", lambda: as_numbers("x", object(), "counts")),
    ("x: expected counts; got values of type bool", lambda: as_numbers("x", True, "counts")),
    ("x: expected counts; got values of type complex", lambda: as_numbers("x", 1j, "counts")),
    ("key: expected a random key such as jax.random.key(0); got None", lambda: check_key(None)),
    ("key: expected a random key such as jax.random.key(0); got int", lambda: check_key(3)),
    ("key: expected a random key such as jax.random.key(0); got an array of type", lambda: check_key(jnp.ones(2))),
    ("got (3,) keys (use vmap for many)", lambda: check_key(jax.random.split(jax.random.key(0), 3))),
    ("n: expected an integer of at least 1; got 0", lambda: check_integer("n", 0, 1)),
    (
        "n: expected an integer from 1 to 3, the dimension; got 4",
        lambda: check_integer("n", 4, 1, 3, ", the dimension"),
    ),
    ("n: expected an integer of at least 1; got True", lambda: check_integer("n", True, 1)),
    ("n: expected an integer of at least 1; got 2.0 of type float", lambda: check_integer("n", 2.0, 1)),
    ("method: expected one of 'a', 'b'; got 'c'", lambda: check_option("method", "c", ("a", "b"))),
    ("polish: expected True or False; got 1", lambda: check_bool("polish", 1)),
    ("tol: expected a number of at least 0; got -1", lambda: check_number("tol", -1, 0)),
    ("tol: expected a number from 0 to 1; got nan", lambda: check_number("tol", np.nan, 0, 1)),
    ("tol: expected a number from 0 to 1; got 'x'", lambda: check_number("tol", "x", 0, 1)),
    ("tol: expected a number from 0 to 1; got array", lambda: check_number("tol", np.ones(2), 0, 1)),
    ("x: expected a matrix, two axes; got 1, shape (3,)", lambda: check_matrix("x", np.ones(3), "a matrix")),
    ("x: expected a matrix, at least one row and one column", lambda: check_matrix("x", np.ones((3, 0)), "a matrix")),
    ("mask: expected True where observed and False elsewhere, or 1 and 0; got 2", lambda: check_mask([2], (1,))),
    ("or 1 and 0; got values of type float", lambda: check_mask(np.ones(1), (1,))),
    (
        "n: expected an integer of at least 1, known before tracing",
        lambda: jax.jit(lambda n: check_integer("n", n, 1))(2),
    ),
    (
        "m: expected numbers (d, d), none of the axes empty; got shape (2, 3)",
        lambda: check_axes("m", np.ones((2, 3)), "d d"),
    ),
    ("m: expected numbers (d,), none of the axes empty; got shape (0,)", lambda: check_axes("m", np.ones(0), "d")),
    ("mask: expected the shape of y, (2,); got (1,)", lambda: check_mask(np.ones(1, bool), (2,), "y")),
]


@pytest.mark.parametrize(("message", "call"), BAD, ids=[message.split(":")[0] for message, _ in BAD])
def test_messages_name_the_argument(message, call, no_type_checks):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_good_values_come_back():
    assert check_integer("n", np.int32(3), 1, 3) == 3
    assert type(check_integer("n", np.int64(3), 1)) is int
    assert check_bool("polish", np.bool_(True)) is True
    assert check_number("tol", 0.5, 0.0, 1.0) == 0.5
    assert check_option("method", "a", ("a", "b")) is None
    assert check_mask(None, (3,)) is None
    assert check_mask(np.ones(3, bool), (3,)).dtype == bool
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        assert check_key(key) is key


def test_integers_that_do_not_fit_are_refused_where_jax_would_wrap_them(precision):
    wide = np.array([0, 2**40])
    if precision == "float64":
        assert as_numbers("x", wide, "counts").tolist() == [0, 2**40]
    else:
        with pytest.raises(ValueError, match=r"x: expected counts within int32; got values from 0 to 1099511627776"):
            as_numbers("x", wide, "counts")


def test_concrete_values_stay_concrete_in_a_trace():
    @jax.jit
    def traced(y):
        for value in (np.ones(2), [1, 2], 3):
            assert is_concrete(as_numbers("x", value, "numbers"))
        assert is_concrete(check_mask(np.ones(2, bool), (2,)))
        assert not is_concrete(as_numbers("y", y, "numbers"))
        assert not is_concrete(as_numbers("y", [y, 1.0], "numbers"))
        assert not is_concrete(None, {"y": y})
        assert check_number("y", y, 0.0) is y
        return y

    assert traced(1.0) == 1.0
    assert is_concrete(None, 3, np.ones(2), jnp.ones(2))


def test_the_first_bad_entry_is_named():
    x = jnp.asarray([[1.0, 2.0], [3.0, -4.0]])
    assert first_entry(x, 1, lambda values: values < 0) == "-4.0 at row 1, column 1"
