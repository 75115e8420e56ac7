"""What users bring: pandas, masked, sparse and object arrays, numbers of other machines."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse
from scipy.sparse import csr_matrix

from latensor.base import as_numbers, check_key, check_mask, divide_by_largest, merge_missing, read_numbers, small_jit

pytestmark = pytest.mark.usefixtures("no_type_checks")

X = np.arange(6.0).reshape(3, 2)


class Column:
    """Stands in for a pandas Series."""

    def __init__(self, name, values, dtype=None):
        self.name, self._values = name, np.asarray(values)
        self.dtype = self._values.dtype if dtype is None else dtype
        self.shape = self._values.shape

    def isna(self):
        return np.array([entry is None or entry != entry for entry in self._values])

    def __array__(self, dtype=None, copy=None):
        return self._values

    def to_numpy(self, dtype=None, na_value=None):
        return np.array([na_value if entry is None else entry for entry in self._values]).astype(dtype)


class Nullable:
    """Stands in for a type of pandas' own."""

    def __init__(self, kind, name):
        self.kind, self.name = kind, name

    def __str__(self):
        return self.name


class Frame:
    """Stands in for a pandas DataFrame."""

    def __init__(self, *columns):
        self._columns = columns
        self.columns = [column.name for column in columns]
        self.shape = (len(columns[0]._values), len(columns))
        self.iloc = self

    def __getitem__(self, place):
        return self._columns[place[1]]

    def isna(self):
        return np.stack([column.isna() for column in self._columns], axis=1)

    def to_numpy(self):
        raise AssertionError("column by column, so that a message can name the column")


INT64 = Column("age", np.array([1, None, 3], object), Nullable("i", "Int64"))
SIZE = Column("size", [0.5, 1.5, 2.5])


def test_frames_become_arrays_column_by_column():
    np.testing.assert_array_equal(as_numbers("x", Frame(SIZE, SIZE), "numbers"), [[0.5, 0.5], [1.5, 1.5], [2.5, 2.5]])
    array, plain = read_numbers("x", Frame(INT64, INT64), "numbers")
    assert jnp.issubdtype(array.dtype, jnp.integer)  # codes stay codes; zero where there is none
    assert array.tolist() == [[1, 1], [0, 0], [3, 3]]
    mask = ~plain.missing
    assert merge_missing("x", check_mask(mask, (3, 2)), plain, 2).tolist() == mask.tolist()
    assert as_numbers("x", SIZE, "numbers").tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            Frame(SIZE, INT64),
            "x: expected numbers, none of them missing; got no value at row 1, column 'age' (1 missing",
        ),
        (INT64, "got no value at row 1, column 'age'"),
        (Frame(SIZE, Column("city", ["a", "b", "c"], Nullable("O", "category"))), "column 'city' is of type category"),
        (
            Frame(SIZE, Column("city", ["a", "b", "c"], Nullable("O", "str"))),
            "column 'city' is of type str: pass numbers",
        ),
        (
            Frame(SIZE, Column("mixed", np.array([1, "b", 2], object))),
            "x: expected numbers; got 'b' at row 1, column 'mixed'",
        ),
    ],
)
def test_what_is_wrong_with_a_frame_names_the_column(frame, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        as_numbers("x", frame, "numbers")
    assert len(str(error.value)) < 200  # and does not print the table


def test_missing_values_of_a_frame_must_be_masked():
    _, plain = read_numbers("x", Frame(SIZE, INT64), "numbers")
    for mask in (None, np.ones((3, 2), bool)):
        with pytest.raises(
            ValueError, match=r"got no value at row 1, column 'age' \(1 missing in all\): pass mask=x.notna"
        ):
            merge_missing("x", mask, plain, 2)


def test_pandas_itself():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": pandas.array([1, None, 3], "Int64"), "b": pandas.array([1, 2, 3], "Int64")})
    array, plain = read_numbers("x", frame, "numbers")
    assert jnp.issubdtype(array.dtype, jnp.integer)
    mask = merge_missing("x", check_mask(frame.notna(), (3, 2)), plain, 2)
    np.testing.assert_array_equal(mask, [[True, True], [False, True], [True, True]])
    assert np.isnan(read_numbers("x", frame.astype("Float64"), "numbers")[0][1, 0])
    with pytest.raises(ValueError, match=r"x: .* no value at row 1, column 'a'"):
        as_numbers("x", frame, "numbers")
    for column in (["x", "y", "z"], pandas.Categorical(["x", "y", "x"])):
        with pytest.raises(ValueError, match=r"x: expected numbers; column 'city' is of type"):
            as_numbers("x", frame.assign(city=column), "numbers")


@pytest.mark.parametrize("kind", [">f8", "<f4", np.longdouble, np.float16, object, ">i2"])
def test_numbers_of_other_machines_and_objects(kind, precision):
    array = as_numbers("x", X.astype(kind), "numbers")
    np.testing.assert_array_equal(array, X)
    assert array.dtype.itemsize <= (8 if precision == "float64" else 4)


def test_objects_that_are_not_numbers():
    assert jnp.issubdtype(as_numbers("x", X.astype(int).astype(object), "numbers").dtype, jnp.integer)
    for bad, message in (
        (np.array([1, "2"], object), "'2' at position 1"),
        (np.array([[1, [2]]], object), r"\[2\] at row 0"),
    ):
        with pytest.raises(ValueError, match=f"x: expected numbers; got {message}"):
            as_numbers("x", bad, "numbers")
    with pytest.raises(ValueError, match=r"x: .* none of them missing; got no value at row 0, column 1"):
        as_numbers("x", np.array([[1, None], [2, 3]], object), "numbers")


def test_masked_arrays_bring_their_mask():
    array, plain = read_numbers("x", np.ma.masked_array(X, X == 3), "numbers")
    np.testing.assert_array_equal(merge_missing("x", None, plain, 2), X != 3)
    both = merge_missing("x", check_mask(X != 0, (3, 2)), plain, 2)
    np.testing.assert_array_equal(both, (X != 0) & (X != 3))
    np.testing.assert_array_equal(jax.jit(lambda mask: merge_missing("x", mask, plain, 2))(X != 0), both)
    np.testing.assert_array_equal(merge_missing("x", None, plain, 1), [True, False, True])
    assert array.shape == X.shape
    with pytest.raises(ValueError, match=r"row_weights: .* none of them missing; got no value at position 2"):
        as_numbers("row_weights", np.ma.masked_array([1, 2, 3], [False, False, True]), "weights")


def test_sparse_matrices_are_refused_at_once():
    for matrix, advice in ((csr_matrix(X), "x.toarray()"), (sparse.BCOO.fromdense(X), "x.todense()")):
        with pytest.raises(ValueError, match=re.escape("x: expected counts, dense; got a sparse")) as error:
            as_numbers("x", matrix, "counts")
        assert advice in str(error.value)
        with pytest.raises(ValueError, match=r"mask: .* dense; got a sparse"):
            check_mask(matrix, X.shape)


def test_numbers_beyond_float32_are_named(precision):
    if precision == "float64":
        assert as_numbers("x", np.array([1e60]), "numbers") == 1e60
        return
    with pytest.raises(
        ValueError, match=r"x: expected numbers within float32, up to 3.4e\+38; got 1e\+60: .*jax_enable_x64"
    ):
        as_numbers("x", np.array([1.0, 1e60]), "numbers")
    assert np.isinf(as_numbers("x", np.array([np.inf]), "numbers"))  # said elsewhere


def test_masks_of_ones_and_zeros_and_lists():
    mask = X != 3
    for given in (mask.astype(int), mask.astype(np.uint8), mask.tolist(), jnp.asarray(mask), mask.astype(object)):
        assert check_mask(given, (3, 2)).dtype == bool
        np.testing.assert_array_equal(check_mask(given, (3, 2)), mask)
    np.testing.assert_array_equal(jax.jit(lambda m: check_mask(m, (3, 2)))(mask.astype(int)), mask)


def test_keys_of_all_kinds():
    for key in (jax.random.PRNGKey(1, impl="rbg"), jax.random.key(1, impl="rbg"), jax.random.key(1, impl="unsafe_rbg")):
        assert jax.random.normal(check_key(key), (2,)).shape == (2,)
    assert str(jax.random.key_impl(check_key(np.asarray(jax.random.PRNGKey(1, impl="rbg"))))) == "rbg"


def test_weights_of_any_scale(precision):
    weights = np.array([1, 2, 0, 4], precision)
    scales = [1, 1e-44, 1e-40, 1e-38, 8e37] if precision == "float32" else [1, 1e-322, 1e-310, 1e-308, 4e307]
    with jax.disable_jit(False):
        scaled = jax.jit(jax.vmap(divide_by_largest))(np.stack([(weights * s).astype(precision) for s in scales]))
    np.testing.assert_allclose(scaled, np.tile(weights / 4, (5, 1)), rtol=1e-6)
    np.testing.assert_array_equal(jax.jit(divide_by_largest)(0 * weights), 0)


def test_what_jax_cannot_take_is_converted_or_named():
    @small_jit(static_argnames="size")
    def total(x, size, max_iters=3):
        return jnp.sum(jnp.asarray(x)) * size + max_iters

    assert total(X.astype(">f8"), 2) == total(np.ma.masked_array(X), 2) == total(X.astype(np.longdouble), 2) == 33
    for arguments, message in (
        ((X, {}), "size: expected a value that is known before tracing; got dict"),
        ((X, jnp.ones(2)), "size: expected a value that is known before tracing"),
        (("x", 2), "x: expected numbers; got str"),
        ((csr_matrix(X), 2), "x: expected numbers, dense; got a sparse"),
        ((X, 2, 2**70), "max_iters: expected numbers; got int"),
        ((X, 2, [1, "a"]), r"max_iters: expected one number; got shape \(2,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            total(*arguments)


def test_text_is_told_to_be_text():
    with pytest.raises(ValueError, match=r"x: expected numbers; got text \('cat'\): number words"):
        as_numbers("x", np.array([["cat", "dog"]]), "numbers")
