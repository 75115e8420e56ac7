"""What enters the lanes of a chain: found by overlap, or step by step where the chain does not forget."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from latensor.models.hidden_markov import boundaries as rooms
from latensor.models.hidden_markov.chain import (
    Schedule,
    _backward_walk,
    _forward_walk,
    choose_schedule,
    forward,
)
from latensor.models.hidden_markov.lanes import Chain, cut_into_lanes, join_lanes, lanes_of
from latensor.models.hidden_markov.products import boundaries_by_products
from latensor.moments import Sequences
from tests.models.chain_cases import K, chain, model, observations

SIZE, LENGTH = 1_000, 100


def one_chain():
    return chain(model("symbols"), observations("symbols", (SIZE,)), np.array([SIZE]))


def never_left():
    """Return a chain whose states are never left, and look alike but for a few observations."""
    rng = np.random.default_rng(3)
    likelihoods = np.where(rng.uniform(size=(SIZE, 1)) < 0.01, rng.uniform(0.3, 1.0, (SIZE, K)), 1.0)
    return Chain(jnp.full(K, 1 / K), jnp.maximum(jnp.eye(K), 1e-30), jnp.asarray(likelihoods), jnp.arange(SIZE) == 0)


def slow():
    """Return a chain that forgets, but not within an overlap."""
    rng = np.random.default_rng(4)
    likelihoods = rng.uniform(0.9, 1.0, (SIZE, K))
    transition = 0.85 * np.eye(K) + 0.15 / K
    return Chain(jnp.full(K, 1 / K), jnp.asarray(transition), jnp.asarray(likelihoods), jnp.arange(SIZE) == 0)


def by_hand(one):
    """Return the states' probabilities before each lane and what comes from after it, by the definition."""
    transition, likelihoods = np.asarray(one.transition), np.asarray(one.likelihoods)
    state, before = np.asarray(one.initial), []
    for t in range(SIZE):
        if t % LENGTH == 0:
            before.append(state)
        state = (np.asarray(one.initial) if t == 0 else transition.T @ state) * likelihoods[t]
        state = state / state.sum()
    back, after = np.ones(K), []
    for t in reversed(range(SIZE)):
        if (t + 1) % LENGTH == 0:
            after.append(back)
        back = transition @ (likelihoods[t] * back)
        back = back / back.sum()
    return np.stack(before, axis=1), np.stack(after[::-1], axis=1)


def directions(columns):
    columns = np.asarray(columns)
    return columns / columns.sum(axis=0)


@pytest.mark.parametrize("make", [one_chain, never_left, slow])
def test_boundaries_are_those_of_the_whole_chain(make, float64):
    one = make()
    lanes, (before, after) = lanes_of(one, LENGTH), by_hand(one)
    filtered = rooms.walk_by_overlap(_forward_walk(one, lanes))
    states, _ = filtered.outputs
    smoothed = rooms.walk_by_overlap(_backward_walk(one, lanes, states, states))
    by_products = boundaries_by_products(one, lanes)
    for found in (filtered.entering, by_products.before):
        np.testing.assert_allclose(directions(found), directions(before), rtol=1e-9)
    for found in (smoothed.entering, by_products.after):
        np.testing.assert_allclose(directions(found), directions(after), rtol=1e-9)


def count_calls(make):
    """Return the number of sweeps, and whether the chain then went step by step."""
    one, calls = make(), {"sweep": 0, "exact": 0}
    walk = _forward_walk(one, lanes_of(one, LENGTH))

    def run(lanes, entering):
        # The guess runs over an overlap, a sweep over whole lanes, an exact walk over one lane at a time.
        kind = None if lanes.first.shape[0] < LENGTH else "sweep" if lanes.first.shape[1] > 1 else "exact"
        if kind:
            jax.debug.callback(lambda: calls.__setitem__(kind, calls[kind] + 1))
        return walk.run(lanes, entering)

    jax.block_until_ready(rooms.walk_by_overlap(walk._replace(run=run)))
    jax.effects_barrier()
    return calls


def test_a_chain_that_forgets_takes_one_sweep(float64):
    assert count_calls(one_chain) == {"sweep": 1, "exact": 0}


def test_a_chain_that_forgets_slowly_takes_several_sweeps(float64):
    calls = count_calls(slow)
    assert calls["exact"] == 0
    assert 1 < calls["sweep"] <= 4


def test_a_chain_that_does_not_forget_goes_step_by_step(float64):
    assert count_calls(never_left) == {"sweep": 5, "exact": SIZE // LENGTH}


def test_a_left_to_right_model_in_lanes(precision):
    """No state is ever returned to: what a lane begins in is never forgotten."""
    transition = jnp.array([[0.999, 0.001, 0.0], [0.0, 0.999, 0.001], [0.0, 0.0, 1.0]])
    params = HiddenMarkov(jnp.array([1.0, 0.0, 0.0]), transition, jnp.array([[0.3, 0.25, 0.3], [0.7, 0.75, 0.7]]))
    x = hidden_markov.sample(jax.random.key(0), params, 2, length=1_500).x
    for verb in (hidden_markov.log_likelihood, hidden_markov.posterior):
        expected = verb(params, x, form="sequential")
        tol = {"rtol": 1e-10, "atol": 1e-10} if precision == "float64" else {"rtol": 1e-4, "atol": 1e-4}
        np.testing.assert_allclose(verb(params, x, form="overlapping"), expected, **tol)


def test_derivatives_are_those_of_the_steps(float64):
    params, x = model("symbols"), observations("symbols", (2_500,))

    def value(params, form):
        return hidden_markov.log_likelihood(params, x, form=form)[0]

    expected = jax.grad(value)(params, "sequential")
    for derivative in (jax.grad, jax.jacfwd):
        found = derivative(value)(params, "overlapping")
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8), found, expected)


def test_a_lane_that_fails_leaves_the_others_as_they_are(float64):
    """Under vmap, a chain that does not forget beside one that does."""
    chains = jax.tree.map(lambda *parts: jnp.stack(parts), one_chain(), never_left())
    schedule = Schedule(LENGTH, "overlap")
    batch = jax.vmap(lambda one: forward(one, schedule))(chains)
    for row, one in zip(batch, (one_chain(), never_left()), strict=True):
        np.testing.assert_allclose(row, forward(one, Schedule(SIZE, "known")), rtol=1e-10, atol=1e-12)


def test_lanes_there_and_back():
    values = jnp.arange(14.0).reshape(7, 2)
    lanes = cut_into_lanes(values, 3, beyond=-1)
    assert lanes.shape == (3, 2, 3)
    np.testing.assert_array_equal(lanes[:, :, 2], [[12, 13], [-1, -1], [-1, -1]])
    np.testing.assert_array_equal(join_lanes(lanes, 7), values)


def test_how_chains_are_cut():
    def schedule(*shape, form="auto"):
        return choose_schedule(form, Sequences(np.zeros(shape, int), num_symbols=2))

    # A short chain is one lane, a long one many; rows of a batch are lanes where that takes no more steps.
    assert schedule(1_000) == Schedule(1_000, "known")
    assert schedule(100_000) == Schedule(250, "overlap")
    assert schedule(1_000, 100) == Schedule(300, "known")
    assert schedule(50, 20) == Schedule(20, "known")
    assert schedule(10, 10_000) == Schedule(250, "overlap")
    assert schedule(100_000, form="sequential") == Schedule(100_000, "known")
    assert schedule(100_000, form="associative").entry == "products"
    assert schedule(1_000, 100, form="associative") == Schedule(100, "known")


@pytest.mark.parametrize("form", ["overlapping", "associative"])
def test_rows_of_a_batch_as_lanes(form, float64):
    """Several rows in a lane, some of them shorter or empty."""
    params, rows = model("symbols"), 900
    x = observations("symbols", (rows, 7))
    lengths = np.random.default_rng(6).integers(0, 8, rows)
    lengths[:3] = [0, 7, 0]
    assert choose_schedule(form, Sequences(x, lengths=lengths, num_symbols=9)).entry == "known"
    for verb in (hidden_markov.log_likelihood, hidden_markov.posterior):
        expected = verb(params, x, lengths=lengths, form="sequential")
        np.testing.assert_allclose(verb(params, x, lengths=lengths, form=form), expected, rtol=1e-10, atol=1e-12)
    path = hidden_markov.viterbi(params, x, lengths=lengths)
    for row in range(20):
        alone = hidden_markov.viterbi(params, x[row, : max(lengths[row], 1)])
        if lengths[row]:
            np.testing.assert_array_equal(path.states[row, : lengths[row]], alone.states)
            np.testing.assert_allclose(path.log_probability[row], alone.log_probability[0], rtol=1e-12)
        np.testing.assert_array_equal(path.states[row, lengths[row] :], -1)


def sticky(stay, k=4):
    rng = np.random.default_rng(5)
    transition = stay * np.eye(k) + (1 - stay) * rng.dirichlet(np.ones(k), k)
    return HiddenMarkov(
        *(jnp.asarray(part) for part in (np.full(k, 1 / k), transition, rng.dirichlet(np.ones(6), k).T))
    )


@pytest.mark.parametrize("stay", [0.0, 0.9, 0.9999])
def test_the_likeliest_path_in_lanes_is_that_of_one_lane(stay, float64):
    """With 0.9999 states are hardly ever left, and lanes have to go one after the other."""
    params = sticky(stay)
    x = hidden_markov.sample(jax.random.key(1), params, 3, length=800).x
    lengths = np.array([800, 650, 800])
    path = hidden_markov.viterbi(params, x, lengths=lengths)
    for row, length in enumerate(lengths):
        alone = hidden_markov.viterbi(params, x[row, :length])
        np.testing.assert_array_equal(path.states[row, :length], alone.states)
        np.testing.assert_allclose(path.log_probability[row], alone.log_probability[0], rtol=1e-12)


def test_ways_back_that_do_not_meet_go_step_by_step(float64):
    """States are never left and look alike until the very last observation, which decides all of them."""
    transition = jnp.eye(2)
    params = HiddenMarkov(jnp.array([0.6, 0.4]), transition, jnp.array([[0.5, 0.5], [0.5, 0.1], [0.0, 0.4]]))
    x = np.zeros(3_000, int)
    x[-1] = 2
    np.testing.assert_array_equal(hidden_markov.viterbi(params, x).states, 1)
    x[-1] = 1
    np.testing.assert_array_equal(hidden_markov.viterbi(params, x).states, 0)
