import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.moments import Documents, Sequences, Table, Variables, categorical_variables
from latensor.moments.internal import as_documents, as_sequences, as_table

X = np.arange(12.0).reshape(4, 3)
MASK = X % 5 != 0
WEIGHTS = np.array([1.0, 4.0, 0.0, 2.0])
SYMBOLS = np.array([0, 2, 1, 1, 0, 2])
# The sum of these wraps around to 20 in 64 bits.
WRAPPING = [2**63 - 1, 2**63 - 1, 22]

TABLES = {
    "x: expected numbers (samples, dimensions); got None": lambda: Table(None),
    "x: expected numbers (samples, dimensions), two axes; got 1, shape (3,)": lambda: Table(X[0]),
    "x: expected numbers (samples, dimensions), two axes; got 3, shape (1, 4, 3)": lambda: Table(X[None]),
    "x: expected numbers (samples, dimensions), at least one row and one column; got shape (0,": lambda: Table(X[:0]),
    "x: expected numbers (samples, dimensions); got values of type complex": lambda: Table(X + 1j),
    "x: expected numbers (samples, dimensions); got str": lambda: Table("x"),
    "mask: expected the shape of x, (4, 3); got (4, 2)": lambda: Table(X, MASK[:, :2]),
    "mask: expected True where observed and False elsewhere, or 1 and 0; got 2": lambda: Table(X, 2 * MASK.astype(int)),
    "mask: expected True where observed and False elsewhere, or 1 and 0; got values of type float": lambda: Table(X, X),
    "row_weights: expected one weight per row, shape (4,); got shape (3,)": lambda: Table(X, row_weights=WEIGHTS[:3]),
    "row_weights: expected one weight per row, shape (4,); got shape (4, 1)": lambda: Table(X, None, WEIGHTS[:, None]),
    "row_weights: expected one weight per row; got values of type bool": lambda: Table(X, None, WEIGHTS > 0),
    "row_weights: expected numbers ≥ 0, not all zero; got values from -1.0 to 3.0": lambda: Table(X, None, WEIGHTS - 1),
    "row_weights: expected numbers ≥ 0, not all zero; got values from 0.0 to 0.0": lambda: Table(X, None, 0 * WEIGHTS),
    "row_weights: expected finite numbers; got nan": lambda: Table(X, None, WEIGHTS * np.nan),
    "row_weights: expected finite numbers; got inf": lambda: Table(X, None, WEIGHTS + np.inf),
    "x: expected 2 columns, as in variables; got 3": lambda: Table(X, variables=categorical_variables(2, 12)),
    "variables: expected a latensor.moments.Variables(kinds, sizes)": lambda: Table(X, variables=("real",) * 3),
    "one of each per variable; got Variables(kinds=('real',), sizes=(1, 1, 1))": lambda: Table(
        X, variables=Variables(("real",), (1, 1, 1))
    ),
    "variables.kinds: expected 'categorical', 'real' or 'share'; variable 2 is 'ordinal'": lambda: Table(
        X, variables=Variables(("real", "real", "ordinal"), (1, 1, 3))
    ),
    "variables.sizes: expected 1 for a real variable; variable 1 has 3": lambda: Table(
        X, variables=Variables(("share", "real", "categorical"), (2, 3, 3))
    ),
    "variables.sizes: expected 2 for a share variable; variable 0 has 1": lambda: Table(
        X, variables=Variables(("share", "real", "categorical"), (1, 1, 3))
    ),
    "variables.sizes: expected 1 for a categorical variable; variable 2 has 0": lambda: Table(
        X, variables=Variables(("share", "real", "categorical"), (2, 1, 0))
    ),
}
DOCUMENTS = {
    "x: expected counts (documents, words), two axes; got 1, shape (3,)": lambda: Documents(X[0]),
    "x: expected word ids (documents, words of a document), two axes; got 1": lambda: Documents(SYMBOLS, 3),
    "x: expected integer word ids where num_words is given; got type float": lambda: Documents(X, 12),
    "num_words: expected an integer of at least 1; got 0": lambda: Documents(X.astype(int), 0),
    "num_words: expected an integer of at least 1; got 3.5 of type float": lambda: Documents(X.astype(int), 3.5),
    "row_weights: expected one weight per document, shape (4,)": lambda: Documents(X, row_weights=WEIGHTS[1:]),
}
SEQUENCES = {
    "x: expected symbols (time,) or (sequences, time), not empty; got shape (1, 2, 3)": lambda: Sequences(
        SYMBOLS.reshape(1, 2, 3)
    ),
    "x: expected symbols (time,) or (sequences, time), not empty; got shape (0,)": lambda: Sequences(SYMBOLS[:0]),
    "x: expected real vectors (time, d) or (sequences, time, d), not empty; got shape (3,)": lambda: Sequences(X[0]),
    "x: expected symbols within int32; got values from 0 to 4294967295": lambda: Sequences(
        np.array([0, 2**32 - 1], np.uint32)
    ),
    "within int32; got values from 0 to 4294967296": lambda: Sequences(np.array([0, 2**32])),
    "lengths: expected a sum of 6, the length of x; got 5": lambda: Sequences(SYMBOLS, np.array([3, 2])),
    "lengths: expected numbers ≥ 0; got -1 at position 1": lambda: Sequences(SYMBOLS, np.array([7, -1])),
    "lengths: expected at most 3, the second axis of x; got 4 at position 0": lambda: Sequences(
        SYMBOLS.reshape(2, 3), np.array([4, 3])
    ),
    "lengths: expected one for each of the 2 sequences of x; got 3": lambda: Sequences(
        SYMBOLS.reshape(2, 3), np.array([1, 2, 3])
    ),
    "lengths: expected whole numbers, one per sequence; got shape (2,) and type float": lambda: Sequences(
        SYMBOLS, np.array([3.0, 3.0])
    ),
    "lengths: expected whole numbers, one per sequence; got shape ()": lambda: Sequences(SYMBOLS, 6),
    "lengths: expected whole numbers, one per sequence; got shape (0,)": lambda: Sequences(SYMBOLS, np.zeros(0, int)),
    "mask: expected the shape of x, (6,); got (5,)": lambda: Sequences(SYMBOLS, mask=np.ones(5, bool)),
    "mask: expected the shape of x without its last axis, (4,); got (4, 3)": lambda: Sequences(X, mask=MASK),
    "row_weights: expected one weight per sequence, shape (1,); got shape (6,)": lambda: Sequences(
        SYMBOLS, row_weights=np.ones(6)
    ),
    "row_weights: expected one weight per sequence, shape (2,)": lambda: Sequences(
        SYMBOLS, np.array([3, 3]), row_weights=np.ones(3)
    ),
    "num_symbols: expected None for real vectors; got 3": lambda: Sequences(X, num_symbols=3),
    "num_symbols: expected an integer of at least 1; got 0": lambda: Sequences(SYMBOLS, num_symbols=0),
}
GIVEN_TWICE = {
    "mask: expected None where x is a Table: make it a field of that; got both": lambda: as_table(Table(X), mask=MASK),
    "x: expected one Sequences, x with 1 axes; got a batch, (2, 3): use jax.vmap": lambda: as_sequences(
        jax.vmap(lambda x: Sequences(x, num_symbols=3))(jnp.zeros((2, 3), int))
    ),
    "x: expected one Table, x with two axes; got a batch, (2, 4, 3)": lambda: as_table(
        jax.vmap(Table)(jnp.asarray([X, X]))
    ),
    "row_weights: expected None where x is a Table": lambda: as_table(Table(X), mask=None, row_weights=WEIGHTS),
    "num_words: expected None where x is a Documents": lambda: as_documents(Documents(X), num_words=12),
    "lengths: expected None where x is a Sequences": lambda: as_sequences(Sequences(SYMBOLS), lengths=np.array([6])),
    "x: expected an array or a latensor.moments.Table; got Documents": lambda: as_table(Documents(X)),
    "x: expected an array or a latensor.moments.Documents; got Table": lambda: as_documents(Table(X)),
    "x: expected an array or a latensor.moments.Sequences; got Table": lambda: as_sequences(Table(X)),
}


CASES = list({**TABLES, **DOCUMENTS, **SEQUENCES, **GIVEN_TWICE}.items())


@pytest.mark.parametrize(("message", "build"), CASES, ids=[message.split(":")[0] for message, _ in CASES])
def test_wrong_arguments_are_named(message, build, no_type_checks, precision):
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


@pytest.mark.parametrize("kind", [list, np.array])
def test_lengths_whose_sum_wraps_around_are_refused(kind, no_type_checks, precision):
    with pytest.raises(ValueError, match=r"lengths: expected (a sum of 20|the length of each sequence)"):
        Sequences(np.zeros(20, int), kind(WRAPPING))
