"""What bad input gets: a ValueError that names the argument, what was expected and what came, before any work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.models.results import Fit
from latensor.moments import CrossMoments, Documents, Sequences

pytestmark = pytest.mark.usefixtures("no_type_checks")

KEY = jax.random.key(0)
X = np.random.default_rng(0).integers(0, 4, (5, 8))
REALS = np.random.default_rng(1).normal(size=(5, 8, 2))
TRANSITION = jnp.array([[0.9, 0.1], [0.2, 0.8]])
PARAMS = HiddenMarkov(jnp.array([0.5, 0.5]), TRANSITION, jnp.full((4, 2), 0.25))
REAL_PARAMS = HiddenMarkov(jnp.array([0.5, 0.5]), TRANSITION, jnp.array([[0.0, 1.0], [2.0, 3.0]]), jnp.ones((2, 2)))


def changed(x, place, value):
    x = x.copy()
    x[place] = value
    return x


# What `fit` and the verbs that take a model say of sequences.
SEQUENCES = [
    ({"x": changed(X, (2, 3), 4)}, r"x: expected symbols below num_symbols = 4; got 4 at x\[2, 3\]"),
    ({"x": X[None]}, r"x: expected symbols \(time,\) or \(sequences, time\).*; got shape \(1, 5, 8\)"),
    ({"x": np.int32(3)}, r"x: expected symbols .*; got shape \(\)"),
    ({"x": X[:0]}, r"x: expected symbols .* not empty; got shape \(0, 8\)"),
    ({"x": X[:, :0]}, r"x: expected symbols .* not empty; got shape \(5, 0\)"),
    ({"x": None}, r"x: expected symbols \(integers\) or real vectors; got None"),
    ({"x": "abc"}, r"x: expected symbols .*; got str"),
    ({"x": X + 2**40}, r"x: expected symbols .* within int32; got values from 1099511627776"),
    ({"lengths": [8, 8, 9, 8, 8]}, r"lengths: expected at most 8, the second axis of x; got 9 at position 2"),
    ({"lengths": [8, 8, -1, 8, 8]}, r"lengths: expected numbers ≥ 0; got -1 at position 2"),
    ({"lengths": [8, 8]}, r"lengths: expected one for each of the 5 sequences of x; got 2"),
    ({"lengths": np.full(5, 8.0)}, r"lengths: expected whole numbers.*; got shape \(5,\) and type float"),
    ({"lengths": np.full((5, 1), 8)}, r"lengths: expected whole numbers.*; got shape \(5, 1\)"),
    ({"lengths": 8}, r"lengths: expected whole numbers.*; got shape \(\)"),
    ({"lengths": "eight"}, r"lengths: expected the length of each sequence; got str"),
    ({"x": X[0], "lengths": [3, 4]}, r"lengths: expected a sum of 8, the length of x; got 7"),
    ({"x": X[0], "lengths": [3, 6]}, r"lengths: expected a sum of 8, the length of x; got 9"),
    ({"x": X[0], "lengths": [9, -1]}, r"lengths: expected numbers ≥ 0; got -1 at position 1"),
    ({"x": X[0], "lengths": np.zeros(0, int)}, r"lengths: expected whole numbers.*; got shape \(0,\)"),
    ({"x": X[0], "lengths": np.array([2**63 - 1, 2**63 - 1, 10])}, r"lengths: expected .* within int32; got values"),
    ({"mask": np.ones((5, 7), bool)}, r"mask: expected the shape of x.*, \(5, 8\); got \(5, 7\)"),
    ({"mask": np.ones(8, bool)}, r"mask: expected the shape of x.*, \(5, 8\); got \(8,\)"),
    ({"mask": np.ones((5, 8))}, r"mask: expected True where observed .*; got values of type float"),
    ({"mask": [True] * 8}, r"mask: expected the shape of x, \(5, 8\); got \(8,\)"),
    ({"x": Documents(X)}, r"x: expected an array or a latensor.moments.Sequences; got Documents"),
    ({"x": Sequences(X, num_symbols=4), "lengths": np.full(5, 8)}, r".*: expected None where x is a Sequences"),
]
WEIGHTS = [
    ({"row_weights": np.ones(4)}, r"row_weights: expected one weight per sequence, shape \(5,\); got shape \(4,\)"),
    ({"row_weights": [1, 1, -1, 1, 1]}, r"row_weights: expected numbers ≥ 0, not all zero; got values from -1"),
    ({"row_weights": np.zeros(5)}, r"row_weights: expected numbers ≥ 0, not all zero"),
    ({"row_weights": [1, 1, np.nan, 1, 1]}, r"row_weights: expected finite numbers; got nan"),
    ({"x": X[0], "lengths": [4, 4], "row_weights": np.ones(5)}, r"row_weights: .*shape \(2,\); got shape \(5,\)"),
]


@pytest.mark.parametrize(("change", "message"), SEQUENCES + WEIGHTS)
def test_sequences_to_fit(change, message):
    more = {} if isinstance(change.get("x"), Sequences) else {"num_symbols": 4}
    with pytest.raises(ValueError, match=message):
        hidden_markov.fit(**({"key": KEY, "x": X, "num_components": 2} | more | change))


@pytest.mark.parametrize("verb", ["log_likelihood", "posterior", "viterbi", "refine"])
def test_sequences_to_a_model(verb):
    for change, message in SEQUENCES + (WEIGHTS if verb == "refine" else []):
        with pytest.raises(ValueError, match=message):
            getattr(hidden_markov, verb)(PARAMS, **({"x": X} | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": changed(REALS, (2, 3, 1), np.nan)},
            r"x: expected finite numbers where observed; got nan at x\[2, 3, 1\] \(pass a mask",
        ),
        ({"x": changed(REALS, (4, 7, 0), -np.inf)}, r"x: expected finite numbers where .*; got -inf at x\[4, 7, 0\]"),
        ({"x": REALS[:, 0, 0]}, r"x: expected real vectors \(time, d\) or \(sequences, time, d\).*; got shape \(5,\)"),
        ({"x": REALS[None]}, r"x: expected real vectors .*; got shape \(1, 5, 8, 2\)"),
        ({"x": REALS[:, :, :0]}, r"x: expected real vectors .* not empty; got shape \(5, 8, 0\)"),
        ({"x": REALS.astype(complex)}, r"x: expected symbols .* or real vectors; got values of type complex"),
        ({"num_symbols": 4}, r"num_symbols: expected None for real vectors; got 4"),
        ({"num_components": 6}, r"num_components: expected an integer from 1 to 5 \(twice the dimensions plus one\)"),
        (
            {"x": changed(REALS, (2, 3, 1), np.nan), "mask": np.ones((5, 8), bool)},
            r"x: .* observed; got nan at x\[2, 3, 1\]",
        ),
        ({"mask": np.ones((5, 8, 2), bool)}, r"mask: expected the shape of x without its last axis, \(5, 8\)"),
        ({"x": REALS[:, :2]}, r"x: expected sequences of at least 3 observations.*; got 5, all of them shorter"),
    ],
)
def test_vectors_to_fit(change, message):
    with pytest.raises(ValueError, match=message):
        hidden_markov.fit(**({"key": KEY, "x": REALS, "num_components": 2} | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_components": 0}, r"num_components: expected an integer from 1 to 4 \(the number of symbols\); got 0"),
        ({"num_components": 5}, r"num_components: expected an integer from 1 to 4 \(the number of symbols\); got 5"),
        ({"num_components": 2.0}, r"num_components: expected an integer .*; got 2.0 of type float"),
        ({"marginals": "em"}, r"marginals: expected one of 'likelihood', 'pseudoinverse'; got 'em'"),
        ({"method": "als"}, r"method: expected one of 'power'.*; got 'als'"),
        ({"polish": 1}, r"polish: expected True or False; got 1"),
        ({"polish": None}, r"polish: expected True or False; got None"),
        ({"num_starts": 0}, r"num_starts: expected an integer of at least 1; got 0"),
        ({"num_restarts": 0}, r"num_restarts: expected an integer of at least 1; got 0"),
        ({"num_symbols": 0}, r"num_symbols: expected an integer of at least 1; got 0"),
        ({"num_symbols": "4"}, r"num_symbols: expected an integer of at least 1; got '4' of type str"),
        ({"key": None}, r"key: expected a random key .*; got None"),
        ({"key": 0}, r"key: expected a random key .*; got int"),
        ({"key": jax.random.split(KEY, 3)}, r"key: expected a random key .*; got \(3,\) keys"),
        ({"x": X[:, :2]}, r"x: expected sequences of at least 3 observations.*; got 5, all of them shorter.* of 2"),
        ({"x": X[0, :2]}, r"x: expected sequences of at least 3 observations.*; got one shorter, the longest of 2"),
        ({"lengths": [2, 1, 0, 2, 2]}, r"x: expected sequences of at least 3 .*; got 5, all of them shorter"),
        ({"x": X[0], "lengths": [2] * 4}, r"x: expected sequences of at least 3 .*; got 4, all of them shorter"),
        ({"x": X[:1, :4], "num_components": 3}, r"x: expected at least num_components = 3 triples; got 2"),
        ({"lengths": [3, 2, 0, 0, 0]}, r"x: expected at least num_components = 2 triples; got 1"),
        ({"mask": np.arange(40).reshape(5, 8) % 3 > 0}, r"x: expected .* = 2 triples without a missing .*; got 0"),
        ({"x": X[0], "lengths": [3, 5], "mask": np.arange(8) < 4}, r"x: expected .* = 2 triples without .*; got 1"),
    ],
)
def test_options_of_fit(change, message):
    with pytest.raises(ValueError, match=message):
        hidden_markov.fit(**({"key": KEY, "x": X, "num_components": 2, "num_symbols": 4} | change))


def test_the_number_of_symbols_is_found_where_it_is_not_given():
    with pytest.raises(ValueError, match=r"num_components: expected an integer from 1 to 4 \(the number of symbols\)"):
        hidden_markov.fit(KEY, X, 5)
    with pytest.raises(ValueError, match=r"x: expected symbols below num_symbols = 3; got 3 at x\["):
        hidden_markov.fit(KEY, X, 2, num_symbols=3)


def test_observations_of_the_other_kind():
    for verb in (hidden_markov.log_likelihood, hidden_markov.posterior, hidden_markov.viterbi, hidden_markov.refine):
        with pytest.raises(ValueError, match=r"x: expected symbols \(integers\), as params are for; got type float"):
            verb(PARAMS, X.astype(float))
        with pytest.raises(ValueError, match=r"x: expected real vectors \(floating\), as params are for; got type int"):
            verb(REAL_PARAMS, X)
        with pytest.raises(ValueError, match=r"x: expected vectors of 2 dimensions, as in params.emission; got 1"):
            verb(REAL_PARAMS, REALS[:, :, :1])
        with pytest.raises(ValueError, match=r"x: expected at most 4 symbols, as in params.emission; got 9"):
            verb(PARAMS, Sequences(X, num_symbols=9))
        with pytest.raises(ValueError, match=r"x: expected real vectors \(floating\), as params are for; got type int"):
            verb(REAL_PARAMS, Sequences(X))


def test_under_a_trace_the_number_of_symbols_must_be_given():
    with pytest.raises(ValueError, match=r"num_symbols: expected the number of symbols where x is traced; got None"):
        jax.jit(lambda x: hidden_markov.fit(KEY, x, 2))(X)


def test_concrete_data_inside_a_trace_are_checked():
    with pytest.raises(ValueError, match=r"x: expected symbols below num_symbols = 4; got 7"):
        jax.jit(lambda params: hidden_markov.log_likelihood(params, X + 4))(PARAMS)


FIT = Fit(PARAMS, *[jnp.zeros(())] * 4)
PARAMETERS = [
    (FIT, r"params: expected a HiddenMarkov; got Fit \(pass its .params\)"),
    (None, r"params: expected a HiddenMarkov; got NoneType"),
    (tuple(PARAMS), r"params: expected a HiddenMarkov; got tuple"),
    (PARAMS._replace(initial=jnp.array([0.5, 0.4])), r"params.initial: .* sum to one; the sum is off by 0.1"),
    (PARAMS._replace(initial=jnp.array([1.5, -0.5])), r"params.initial: expected probabilities ≥ 0; got -0.5"),
    (PARAMS._replace(initial=jnp.array([0.5, jnp.nan])), r"params.initial: expected finite probabilities; got nan"),
    (PARAMS._replace(initial=None), r"params.initial: expected probabilities; got None"),
    (PARAMS._replace(transition=None), r"params.transition: expected probabilities; got None"),
    (PARAMS._replace(emission=None), r"params.emission: expected probabilities; got None"),
    (
        PARAMS._replace(transition=TRANSITION.T),
        r"params.transition.*: expected probabilities that sum to one; the sum is off by 0.1",
    ),
    (PARAMS._replace(transition=None), r"params.transition: expected probabilities; got None"),
    (PARAMS._replace(transition=TRANSITION[0]), r"params.transition.*: expected probabilities with 2 axes"),
    (
        PARAMS._replace(transition=jnp.full((3, 3), 1 / 3)),
        r"params: expected .*; got shapes \(2,\), \(3, 3\), \(4, 2\)",
    ),
    (
        PARAMS._replace(transition=jnp.full((2, 3), 1 / 3)),
        r"params: expected .*; got shapes \(2,\), \(2, 3\), \(4, 2\)",
    ),
    (PARAMS._replace(emission=jnp.full((4, 2), 0.2)), r"params.emission: .* sum to one; the sum is off by 0.2"),
    (PARAMS._replace(emission=jnp.full((4, 3), 0.25)), r"params: expected .*; got shapes \(2,\), \(2, 2\), \(4, 3\)"),
    (REAL_PARAMS._replace(variance=jnp.zeros((2, 2))), r"params.variance: expected numbers above zero; got 0"),
    (REAL_PARAMS._replace(variance=-jnp.ones((2, 2))), r"params.variance: expected numbers above zero; got -1"),
    (REAL_PARAMS._replace(variance=jnp.ones(2)), r"params.variance: expected .* 2 axes, .*; got shape \(2,\)"),
    (REAL_PARAMS._replace(variance=jnp.ones((3, 2))), r"params: expected .*; got shapes .*, \(2, 2\), \(3, 2\)"),
    (REAL_PARAMS._replace(emission=jnp.full((2, 2), jnp.inf)), r"params.emission: expected finite numbers; got inf"),
]


@pytest.mark.parametrize(("params", "message"), PARAMETERS)
def test_parameters(params, message):
    x = REALS if isinstance(params, HiddenMarkov) and params.variance is not None else X
    calls = [
        lambda: hidden_markov.sample(KEY, params, 5),
        lambda: hidden_markov.population_moments(params),
        lambda: hidden_markov.permute(params, [1, 0]),
        lambda: hidden_markov.log_likelihood(params, x),
        lambda: hidden_markov.posterior(params, x),
        lambda: hidden_markov.viterbi(params, x),
        lambda: hidden_markov.refine(params, x),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_options_of_the_other_verbs():
    calls = [
        (
            lambda: hidden_markov.log_likelihood(PARAMS, X, form="parallel"),
            r"form: expected one of 'auto', 'sequential'",
        ),
        (lambda: hidden_markov.posterior(PARAMS, X, form="parallel"), r"form: expected one of .*; got 'parallel'"),
        (lambda: hidden_markov.refine(PARAMS, X, form=None), r"form: expected one of .*; got None"),
        (lambda: hidden_markov.refine(PARAMS, X, tol=-1.0), r"tol: expected a number of at least 0; got -1.0"),
        (lambda: hidden_markov.refine(PARAMS, X, tol="small"), r"tol: expected a number of at least 0; got 'small'"),
        (lambda: hidden_markov.refine(PARAMS, X, max_iters=-1), r"max_iters: expected an integer .* 0; got -1"),
        (lambda: hidden_markov.refine(PARAMS, X, max_iters=2.5), r"max_iters: expected an integer .* 0; got 2.5"),
        (
            lambda: hidden_markov.refine(PARAMS, X, mask=np.zeros(X.shape, bool)),
            r"x: expected an observation in a sequence of positive weight; got none",
        ),
        (
            lambda: hidden_markov.refine(PARAMS, X[0], lengths=[8, 0], row_weights=[0.0, 1.0]),
            r"x: expected an observation in a sequence of positive weight; got none",
        ),
        (lambda: hidden_markov.refine(PARAMS, X, accelerate=1), r"accelerate: expected True or False; got 1"),
        (lambda: hidden_markov.permute(PARAMS, [1, 1]), r"order: expected each of 0 to 1 once; got \[1, 1\]"),
        (lambda: hidden_markov.sample(None, PARAMS, 5), r"key: expected a random key .*; got None"),
        (lambda: hidden_markov.sample(KEY, PARAMS, 0), r"num_samples: expected an integer of at least 1; got 0"),
        (lambda: hidden_markov.sample(KEY, PARAMS, 5, length=0), r"length: expected an integer of at least 1; got 0"),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_moments():
    moments = CrossMoments((jnp.full(4, 0.25),) * 3, (jnp.full((4, 4), 1 / 16),) * 3, jnp.full((4, 4, 4), 1 / 64), None)
    for change, message in (
        ({"num_components": 5}, r"num_components: expected an integer from 1 to 4 \(the number of symbols\); got 5"),
        ({"key": None}, r"key: expected a random key .*; got None"),
        ({"marginals": "em"}, r"marginals: expected one of"),
        ({"polish": "yes"}, r"polish: expected True or False; got 'yes'"),
        ({"num_starts": 0}, r"num_starts: expected an integer of at least 1; got 0"),
        (
            {"moments": moments._replace(third=jnp.zeros((4, 4, 3)))},
            r"moments: expected tables of three modes with the same symbols; got shapes .*, \(4, 4, 3\)",
        ),
        ({"moments": None}, r"moments: expected CrossMoments.*; got NoneType"),
        ({"moments": tuple(moments)}, r"moments: expected CrossMoments.*; got tuple"),
        ({"moments": moments._replace(third=jnp.full((4, 4, 4), jnp.nan))}, r"moments: expected finite numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            hidden_markov.fit_moments(**({"key": KEY, "moments": moments, "num_components": 2} | change))


def test_symbols_stored_as_floats_are_warned_of():
    x = np.random.default_rng(0).integers(0, 4, (50, 6))
    with pytest.warns(UserWarning, match=r"one sequence of 50 vectors of 6 dimensions; pass x.astype\(int\)"):
        hidden_markov.fit(jax.random.key(0), x.astype(np.float32), 2)
