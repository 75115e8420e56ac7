import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.moments import Documents, Table, map_over_rows, sum_over_rows
from latensor.moments import _rows as rows_module
from latensor.moments.internal import average_weights
from tests.helpers import lowers

FOUR_ROWS = (1 << 20) // 4  # temporaries so large that a block has four rows
NUM_ROWS = pytest.mark.parametrize("num_rows", [1, 3, 4, 7, 8, 13])


def draw(num_rows):
    rng = np.random.default_rng(num_rows)
    return jnp.asarray(rng.normal(size=(num_rows, 3))), jnp.asarray(rng.random(num_rows))


def test_a_block_of_four():
    assert rows_module._FLOATS_PER_BLOCK // FOUR_ROWS == 4


@NUM_ROWS
def test_blocks_of_arrays_are_only_a_matter_of_speed(num_rows, float64):
    x, weights = draw(num_rows)
    sizes = []

    def sums(x, weights, nothing):
        assert nothing is None
        sizes.append(x.shape[0])
        return {"products": weights @ x, "total": jnp.sum(weights), "none": None}

    totals = sum_over_rows(sums, x, weights, None, floats_per_row=FOUR_ROWS)
    np.testing.assert_allclose(totals["products"], weights @ x, atol=1e-14)
    np.testing.assert_allclose(totals["total"], jnp.sum(weights), atol=1e-14)
    assert totals["none"] is None
    assert max(sizes) == min(num_rows, 4)
    mapped = map_over_rows(lambda x, w: (2 * x, w[:, None] * x), x, weights, floats_per_row=FOUR_ROWS)
    np.testing.assert_array_equal(mapped[0], 2 * x)
    np.testing.assert_array_equal(mapped[1], weights[:, None] * x)


@NUM_ROWS
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_of_tables_are_tables(masked, num_rows, float64):
    x, weights = draw(num_rows)
    mask = x > 0 if masked else None
    table = Table(x, mask, weights)
    filled = np.where(mask, x, 0) if masked else np.asarray(x)
    share = np.asarray(table.row_weights)

    def block(rows, extra):
        assert type(rows) is Table
        assert (rows.mask is None) == (not masked)
        assert rows.num_rows == extra.shape[0] <= 4
        values = rows.x if rows.mask is None else jnp.where(rows.mask, rows.x, 0)
        return rows.row_weights * extra, values

    def total(rows, extra):
        each, values = block(rows, extra)
        return each @ values

    totals = sum_over_rows(total, table, weights, floats_per_row=FOUR_ROWS)
    np.testing.assert_allclose(totals, (share * weights) @ filled, atol=1e-14)
    each, values = map_over_rows(block, table, weights, floats_per_row=FOUR_ROWS)
    np.testing.assert_array_equal(each, share * weights)
    np.testing.assert_array_equal(values, filled)


def test_static_fields_stay_with_every_block():
    documents = Documents(jnp.arange(22).reshape(11, 2), 30)

    def count(rows):
        assert (rows.num_words, rows.row_weights) == (30, None)
        return jnp.zeros(rows.num_words, jnp.int32).at[rows.x].add(1)

    totals = sum_over_rows(count, documents, floats_per_row=FOUR_ROWS)
    np.testing.assert_array_equal(totals, np.arange(30) < 22)


def test_no_temporaries_mean_one_block():
    x = jnp.ones((100, 3))
    sizes = []

    def sums(x):
        sizes.append(x.shape[0])
        return jnp.sum(x)

    assert sum_over_rows(sums, x, floats_per_row=0) == 300
    np.testing.assert_array_equal(map_over_rows(lambda x: 2 * x, x, floats_per_row=0), 2 * x)
    assert sizes == [100]


@NUM_ROWS
@pytest.mark.parametrize("overlap", [1, 2, 5])
@pytest.mark.parametrize("floats_per_row", [0, FOUR_ROWS])
def test_windows_of_neighbours_are_met_once(floats_per_row, overlap, num_rows, float64):
    x, weights = draw(num_rows + overlap)
    rows, shares = np.asarray(x), np.asarray(weights)
    expected = sum(float(np.sum(rows[t] * rows[t + overlap]) * shares[t]) for t in range(num_rows))

    def windows(x, weights):
        size = x.shape[0] - overlap
        return jnp.sum(x[:size] * x[overlap:] * weights[:size, None])

    totals = sum_over_rows(windows, x, weights, floats_per_row=floats_per_row, overlap=overlap)
    np.testing.assert_allclose(totals, expected, atol=1e-13)


def test_temporaries_larger_than_a_block_go_row_by_row(float64):
    x, _ = draw(5)
    totals = sum_over_rows(lambda x: jnp.sum(x, axis=0), x, floats_per_row=1 << 30)
    np.testing.assert_allclose(totals, np.asarray(x).sum(axis=0), atol=1e-14)


def test_jit_vmap_and_derivatives(float64):
    x, weights = draw(13)

    def total(x, weights):
        return sum_over_rows(lambda x, w: w @ x**2, x, weights, floats_per_row=FOUR_ROWS)

    batch = jax.jit(jax.vmap(total))(jnp.stack([x, 2 * x]), jnp.stack([weights, weights]))
    np.testing.assert_allclose(batch, np.stack([weights @ x**2, 4 * weights @ x**2]), rtol=1e-12)
    gradient = jax.grad(lambda x: jnp.sum(total(x, weights)))(x)
    np.testing.assert_allclose(gradient, 2 * weights[:, None] * x, rtol=1e-12)


def test_lowers_for_accelerators():
    table = Table(jnp.ones((13, 3)), jnp.ones((13, 3), bool))

    def block(rows):
        return jnp.sum(jnp.where(rows.mask, rows.x, 0), axis=1)

    lowers(lambda t: sum_over_rows(lambda rows: jnp.sum(block(rows)), t, floats_per_row=FOUR_ROWS), table)
    lowers(lambda t: map_over_rows(block, t, floats_per_row=FOUR_ROWS), table)


@pytest.mark.parametrize("floats_per_row", [0, FOUR_ROWS])
def test_rows_that_do_not_fit_are_named(floats_per_row):
    def total(*rows):
        return sum(jnp.sum(part) for part in rows)

    for rows, message in (
        (
            (jnp.ones(5), jnp.ones(4)),
            r"one leading axis of the same length; got shapes \[\(5,\), \(4,\)\]",
        ),
        ((jnp.ones(5), jnp.float32(1)), r"rows: expected arrays with one leading axis"),
        ((jnp.float32(1),), r"rows: expected arrays with one leading axis"),
        ((None,), r"rows: expected arrays with one leading axis of the same length; got shapes \[\]"),
        ((jnp.ones((0, 2)),), r"rows: expected at least 1 rows; got 0"),
    ):
        for walk in (sum_over_rows, map_over_rows):
            with pytest.raises(ValueError, match=message):
                walk(total, *rows, floats_per_row=floats_per_row)
    with pytest.raises(ValueError, match=r"rows: expected at least 3 rows; got 2"):
        sum_over_rows(total, jnp.ones(2), floats_per_row=floats_per_row, overlap=2)


def test_weights_that_sum_to_one_over_usable_rows(precision):
    weights = jnp.asarray([1.0, 2.0, 5.0], jnp.float32)
    averaging = average_weights(weights, 3, precision, jnp.asarray([True, True, False]))
    assert averaging.dtype == precision
    np.testing.assert_allclose(averaging, [1 / 3, 2 / 3, 0], rtol=1e-6)
    np.testing.assert_allclose(average_weights(None, 4, precision), [0.25] * 4)
    assert average_weights(None, 2, precision, jnp.zeros(2, bool)).tolist() == [0, 0]
    assert np.isnan(average_weights(jnp.asarray([1.0, np.nan]), 2, precision)).any()
