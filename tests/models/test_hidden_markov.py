import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latensor.decompose import Status
from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov
from tests.helpers import best_order, largest

KEY = jax.random.key(0)
# Nearly all tests share these shapes, so that a fit compiles once.
N, TIME, K, D = 100, 100, 3, 12
EVERY = np.full(N, TIME)


def as_model(*parts, dtype=float):
    return HiddenMarkov(*(jnp.asarray(part, dtype) for part in parts))


def random_model(seed, d, k):
    """Return a model whose probabilities are from Dirichlet(½): many are nearly zero."""
    rng = np.random.default_rng(seed)
    return as_model(
        *(rng.dirichlet(np.full(size, 0.5), rows) for size, rows in ((k, None), (k, k))), _columns(rng, d, k)
    )


def _columns(rng, d, k, concentration=0.5):
    return rng.dirichlet(np.full(d, concentration), k).T


def clear_model(seed, d=D, k=K):
    """Return a model whose states stay for a while, which the noise of 10,000 symbols leaves in sight."""
    rng = np.random.default_rng(seed)
    transition = 0.6 * np.eye(k) + 0.4 * rng.dirichlet(np.ones(k), k)
    return as_model(rng.dirichlet(np.ones(k)), transition, _columns(rng, d, k))


def draw(params, seed, n=N, time=TIME):
    """Draw sequences by NumPy."""
    rng = np.random.default_rng(seed)
    initial, transition, emission = (np.asarray(part, float) for part in params[:3])
    (d, k), states = emission.shape, np.zeros((n, time), int)
    states[:, 0] = (rng.uniform(size=(n, 1)) > initial.cumsum()).sum(axis=1).clip(max=k - 1)
    for t in range(1, time):
        ends = transition.cumsum(axis=1)[states[:, t - 1]]
        states[:, t] = (rng.uniform(size=(n, 1)) > ends).sum(axis=1).clip(max=k - 1)
    if params.variance is not None:
        scale = np.sqrt(np.asarray(params.variance, float)).T[states]
        return emission.T[states] + scale * rng.normal(size=(n, time, d))
    return (rng.uniform(size=(n, time, 1)) > emission.cumsum(axis=0).T[states]).sum(axis=2).clip(max=d - 1)


def fit(x, lengths=EVERY, row_weights=None, **options):
    options = ({} if x.ndim == 3 else {"num_symbols": D}) | options
    row_weights = np.ones(len(lengths)) if row_weights is None else row_weights
    return hidden_markov.fit(KEY, x, K, lengths=lengths, row_weights=row_weights, **options)


def in_order(truth, estimate):
    """Return an estimate with its states in the order of the truth."""
    truth, estimate = (jax.tree.map(np.asarray, each) for each in (truth, estimate))
    columns = [np.concatenate([m.emission, *([] if m.variance is None else [m.variance])]) for m in (truth, estimate)]
    order = best_order(*columns)
    variance = None if estimate.variance is None else estimate.variance[:, order]
    parts = estimate.initial[order], estimate.transition[order][:, order], estimate.emission[:, order], variance
    return HiddenMarkov(*parts)


def errors(truth, estimate):
    """Return the largest errors of the initial distribution, the transitions, the emissions and the variances."""
    estimate = in_order(truth, estimate)
    return [largest(a - b) for a, b in zip(truth, estimate, strict=True) if a is not None]


def rmse(truth, estimate):
    return float(np.sqrt(np.mean((in_order(truth, estimate).emission - np.asarray(truth.emission)) ** 2)))


def assert_same(one, two, tol):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tol, atol=tol), one, two)


# Population moments: recovery without noise.
EXACT = [(5, 20, marginals, polish) for marginals in ("likelihood", "pseudoinverse") for polish in (True, False)]
EXACT += [(k, d, *how) for k, d in ((6, 6), (2, 50)) for how in (("likelihood", True), ("pseudoinverse", False))]


@pytest.mark.parametrize(("k", "d", "marginals", "polish"), EXACT)
def test_population_moments_give_the_model_back(k, d, marginals, polish, float64):
    for seed in range(3):
        truth = random_model(seed, d, k)
        moments = hidden_markov.population_moments(truth)
        estimate = hidden_markov.fit_moments(KEY, moments, k, marginals=marginals, polish=polish, num_starts=1)
        assert max(errors(truth, estimate.params)) < 1e-6
        assert estimate.status == estimate.diagnostics.start_status == Status.CONVERGED
        assert abs(float(estimate.diagnostics.log_likelihood)) < 1e-9
        assert (estimate.diagnostics.gap is None) == (marginals == "pseudoinverse")
        assert estimate.diagnostics.num_dropped is None


def test_population_moments_against_enumeration(float64):
    truth = random_model(0, 3, 2)
    initial, transition, emission = (np.asarray(part) for part in truth[:3])
    table = np.zeros((3, 3, 3))
    for x, h in itertools.product(itertools.product(range(3), repeat=3), itertools.product(range(2), repeat=3)):
        chance = initial[h[0]] * transition[h[0], h[1]] * transition[h[1], h[2]]
        table[x] += chance * np.prod([emission[a, b] for a, b in zip(x, h, strict=True)])
    moments = hidden_markov.population_moments(truth)
    np.testing.assert_allclose(moments.third, table, atol=1e-15)
    for view, (first, others) in enumerate(zip(moments.first, ((1, 2), (0, 2), (0, 1)), strict=True)):
        np.testing.assert_allclose(first, table.sum(axis=others), atol=1e-15)
        np.testing.assert_allclose(moments.second[view], table.sum(axis=2 - view), atol=1e-15)


def test_sample_has_the_population_moments():
    truth, number = random_model(1, 4, K), 20_000
    x, hidden = jax.tree.map(np.asarray, hidden_markov.sample(KEY, truth, number, length=3))
    table = np.zeros((4, 4, 4))
    np.add.at(table, tuple(x.T), 1 / number)
    expected = np.asarray(hidden_markov.population_moments(truth).third, float)
    # 64 binomial frequencies: five standard errors, and one observation for the rarest.
    assert np.all(np.abs(table - expected) < 5 * np.sqrt(expected / number) + 2 / number)
    steps = np.zeros((K, K))
    np.add.at(steps, (hidden[:, 1], hidden[:, 2]), 1)
    standard = np.sqrt(0.25 / steps.sum(axis=1, keepdims=True))
    assert np.all(np.abs(steps / steps.sum(axis=1, keepdims=True) - truth.transition) < 5 * standard)
    assert x.dtype == hidden.dtype == np.int32


def test_sample_of_vectors_has_the_means_and_variances():
    truth = as_model([0.3, 0.7], [[0.9, 0.1], [0.2, 0.8]], [[0.0, 5.0]], [[1.0, 4.0]])
    x, hidden = jax.tree.map(np.asarray, hidden_markov.sample(KEY, truth, 2000, length=10))
    assert x.shape == (2000, 10, 1)
    for state in range(2):
        rows = x[hidden == state, 0]
        np.testing.assert_allclose(rows.mean(), truth.emission[0, state], atol=0.15)
        np.testing.assert_allclose(rows.var(), truth.variance[0, state], rtol=0.1)
    np.testing.assert_allclose(np.mean(hidden[:, 0]), 0.7, atol=0.05)


# Symbols.
@functools.cache
def trials():
    """Return for 8 models: the truth, symbols, and fits to few of them, to all, and to all without polishing."""
    few, many = (np.arange(N) < 5).astype(float), np.ones(N)
    results = []
    for seed in range(8):
        truth = clear_model(seed)
        x = draw(truth, seed)
        fits = [fit(x, row_weights=w, polish=polish) for w, polish in ((few, True), (many, True), (many, False))]
        results.append((truth, x, fits))
    return results


def test_more_data_are_better_and_so_is_polishing(float64):
    few, many, plain = np.mean([[rmse(truth, each.params) for each in fits] for truth, _, fits in trials()], axis=0)
    # Twenty times the data.
    assert many < few / 2
    assert many < plain
    # Were the states seen, some 3,000 symbols of each: standard errors of 0.005. Hidden ones cost a few times that.
    assert many < 0.02


def window_value(params, x):
    """Return the log-likelihood of a window of three on average, less its largest possible value."""
    transition, emission = np.asarray(params.transition), np.asarray(params.emission)
    usual = np.linalg.matrix_power(transition, 1000)[0]
    chance = np.einsum("h,ah,hi,bi,ij,cj->abc", usual, emission, transition, emission, transition, emission)
    table = np.zeros((D, D, D))
    np.add.at(table, (x[:, :-2], x[:, 1:-1], x[:, 2:]), 1 / (N * (TIME - 2)))
    seen = table > 0
    return np.sum(table[seen] * np.log(chance[seen] / table[seen]))


def test_a_polished_fit_is_likelier_than_the_truth(float64):
    for truth, x, fits in trials():
        assert fits[1].diagnostics.log_likelihood > window_value(truth, x)
        assert fits[1].diagnostics.log_likelihood > fits[2].diagnostics.log_likelihood


def test_transitions_reach_the_maximum_of_their_likelihood(float64):
    """Also where the spectral step leaves no state that emits a symbol which occurs, as it does in one of these."""
    for truth, _, (_, _, plain) in trials():
        assert plain.diagnostics.gap < 1e-6
        alike = plain.params._replace(transition=jnp.full((K, K), 1 / K))
        assert errors(truth, plain.params)[1] < errors(truth, alike)[1]


def test_many_symbols_are_a_list_of_triples(float64):
    """Most of the symbols never occur; the others come out as from the table of them alone."""
    truth, x, (_, dense, _) = trials()[0]
    many = fit(x, num_symbols=60)
    emission = np.asarray(many.params.emission)
    np.testing.assert_array_equal(emission[D:], 0)
    few = many.params._replace(emission=emission[:D])
    # Ended by other limits, they are closer to each other than to the truth.
    assert rmse(dense.params, few) < rmse(truth, dense.params)
    assert max(errors(dense.params, few)) < max(errors(truth, dense.params))
    values = [np.asarray(each.diagnostics.log_likelihood) for each in (many, dense)]
    np.testing.assert_allclose(*values, atol=1e-3)


def test_short_sequences_tell_the_initial_distribution(float64):
    # Each state has four symbols of its own that it emits 80% of the time.
    emission = np.where(np.arange(D)[:, None] // 4 == np.arange(K), 0.2, 0.025)
    truth = as_model([0.05, 0.9, 0.05], 0.6 * np.eye(K) + 0.4 / K, emission)
    estimate = fit(draw(truth, 3, 2500, 4).reshape(-1), np.full(2500, 4), polish=False)
    # 2,500 first symbols: the standard error of a frequency is 0.006, a little more through the emissions; windows
    # begin with the middle state half of the time.
    assert errors(truth, estimate.params)[0] < 0.03
    assert estimate.status == Status.CONVERGED
    assert estimate.diagnostics.num_dropped == 0


def test_layouts_agree(float64):
    x = draw(clear_model(0), 0)
    lengths = np.random.default_rng(1).integers(0, TIME + 1, N)
    padded = np.where(np.arange(TIME) < lengths[:, None], x, 99)
    # As many sequences and symbols as in the test above, for which a fit is compiled: what is left over is one more.
    flat = np.concatenate([row[:length] for row, length in zip(x, lengths, strict=True)])
    rest = N * TIME - flat.size
    flat, flat_lengths = np.concatenate([flat, np.zeros(rest, int)]), np.zeros(2500, int)
    flat_lengths[:N], flat_lengths[-1] = lengths, rest
    weights = (np.arange(2500) < N).astype(float)
    one, two = fit(padded, lengths, polish=False), fit(flat, flat_lengths, weights, polish=False)
    assert_same(one.params, two.params, 1e-9)
    assert one.diagnostics.num_dropped == np.sum(lengths < 3)
    assert two.diagnostics.num_dropped == np.sum(flat_lengths < 3)


def test_sequences_without_a_triple_are_counted_and_left_out(float64):
    x = draw(clear_model(0), 0)
    lengths = np.where(np.arange(N) < 30, np.arange(N) % 3, TIME)
    with_them, without = fit(x, lengths), fit(x, lengths, (lengths > 2).astype(float))
    assert with_them.diagnostics.num_dropped == without.diagnostics.num_dropped == 30
    assert_same(with_them.params[1:3], without.params[1:3], 1e-9)
    # Their first observations do count for the initial distribution.
    assert largest(with_them.params.initial - without.params.initial) > 1e-4


def test_row_weights_select_sequences(float64):
    x = draw(clear_model(0), 0)
    half = np.arange(N) < N // 2
    weighted, shortened = fit(x, row_weights=half.astype(float)), fit(x, np.where(half, TIME, 0))
    assert_same(weighted[:4], shortened[:4], 1e-7)
    assert_same(weighted.diagnostics[:5], shortened.diagnostics[:5], 1e-7)
    # The half twice is the half, but for the weight of the first observations.
    twice = fit(np.concatenate([x[: N // 2]] * 2))
    assert_same(weighted.params[1:3], twice.params[1:3], 1e-7)
    assert largest(weighted.params.emission - fit(x).params.emission) > 1e-3


def occurrence(params):
    return np.linalg.matrix_power(np.asarray(params.transition), 1000)[0]


def test_states_come_in_decreasing_order_of_how_often_they_occur(float64):
    """Also of equal models with their states in another order, and where polishing changes which state is frequent."""
    moved = 0
    for _, _, (_, polished, plain) in trials():
        for estimate in (polished, plain):
            assert np.all(np.diff(occurrence(estimate.params)) < 0)
        # The states of the polished estimate, in the order of the spectral one that it began from.
        moved += not np.all(np.diff(occurrence(in_order(plain.params, polished.params))) < 0)
    assert moved > 0


def test_states_of_a_model_that_changes_with_time_are_in_the_order_of_windows(float64):
    """Sequences of three: the stationary distribution says little about windows."""
    emission = np.where(np.arange(D)[:, None] // 4 == np.arange(K), 0.2, 0.025)
    truth = as_model([0.9, 0.07, 0.03], [[0.1, 0.8, 0.1], [0.05, 0.15, 0.8], [0.2, 0.0, 0.8]], emission)
    params = hidden_markov.fit_moments(KEY, hidden_markov.population_moments(truth), K, num_starts=1).params
    steps = [np.asarray(truth.initial) @ np.linalg.matrix_power(np.asarray(truth.transition), t) for t in range(3)]
    expected = hidden_markov.permute(truth, np.argsort(-np.mean(steps, axis=0)))
    assert_same(params, expected, 1e-5)
    assert np.any(np.diff(occurrence(expected)) > 0)


def twins(which, d, k):
    """Return a model of which two states are the same, or look the same."""
    truth = clear_model(0, d, k)
    transition, emission = np.array(truth.transition), np.array(truth.emission)
    emission[:, 1] = emission[:, 0]
    if which == "states":
        transition[1] = transition[0]
    return as_model(truth.initial, transition, emission)


def assert_finite(tree):
    for leaf in jax.tree.leaves(tree):
        assert np.all(np.isfinite(leaf))


@pytest.mark.parametrize("which", ["states", "emissions"])
def test_states_that_are_the_same_are_noticed(which, float64):
    """In the diagnostics, where polishing tells them apart by the noise; in the status, where nothing does."""
    x = draw(twins(which, D, K), 0)
    moments = hidden_markov.population_moments(twins(which, 20, 5))
    exact = hidden_markov.fit_moments(KEY, moments, 5, polish=False, num_starts=1)
    for estimate in (fit(x, polish=False), exact):
        assert estimate.status == estimate.diagnostics.start_status >= Status.RANK_DEFICIENT
        assert_finite(estimate)
    polished = fit(x)
    assert polished.diagnostics.start_status >= Status.RANK_DEFICIENT
    assert polished.status <= Status.MAX_ITERS
    assert_finite(polished)


def test_returned_states_that_look_the_same_are_told(float64):
    """One symbol alone, or one vector: EM has nothing to do and converges, to states that are the same."""
    for x in (np.zeros((N, TIME), int), np.full((N, TIME, 2), 0.5)):
        estimate = fit(x)
        assert estimate.status == Status.RANK_DEFICIENT
        assert_finite(estimate)


def test_status_of_a_polished_fit_is_that_of_polishing(float64):
    x = draw(clear_model(0), 0)
    clear, few = fit(x), fit(x, row_weights=(np.arange(N) < 2).astype(float))
    assert clear.status == clear.diagnostics.start_status == Status.CONVERGED
    # 200 symbols: three states are not clear of the noise, and EM on their triples still converges.
    assert few.diagnostics.start_status == Status.RANK_DEFICIENT
    assert few.diagnostics.spectrum.values[-1] < 1.25 * few.diagnostics.spectrum.noise
    assert few.status == Status.CONVERGED
    # The iterations are those of the step that the estimate is from.
    assert clear.num_iters != fit(x, polish=False).num_iters


# Real vectors.
def vectors(dtype=float):
    transition = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6]]
    means, variances = [[0.0, 3.0, -2.0], [1.0, -2.0, 4.0]], [[1.0, 0.5, 2.0], [0.3, 1.0, 1.5]]
    return as_model([0.1, 0.2, 0.7], transition, means, variances, dtype=dtype)


def test_vectors_give_means_and_variances_back(float64):
    truth = vectors()
    estimate = fit(draw(truth, 0))
    # 10,000 vectors, some 2,500 in the rarest state: standard errors of means and variances are 0.02 to 0.06.
    initial, transition, means, variances = errors(truth, estimate.params)
    assert means < 0.15
    assert variances < 0.3
    assert transition < 0.06
    # 100 first vectors: standard errors below 0.05.
    assert initial < 0.2
    assert estimate.status == Status.CONVERGED
    assert estimate.diagnostics.simplex_distance is None
    assert np.all(np.diff(occurrence(estimate.params)) < 0)


@pytest.mark.parametrize("kind", ["list", "vectors"])
def test_the_pseudoinverse_is_a_start_too(kind, float64):
    truth = vectors() if kind == "vectors" else clear_model(0)
    x, options = draw(truth, 0), {} if kind == "vectors" else {"num_symbols": 60}
    linear, likely = (fit(x, polish=False, marginals=each, **options) for each in ("pseudoinverse", "likelihood"))
    assert linear.diagnostics.gap is None
    assert 0 <= likely.diagnostics.gap < 1e-6
    # The same emissions, and another estimate of the transitions.
    assert_same(in_order(likely.params, linear.params).emission, likely.params.emission, 1e-9)
    assert 1e-4 < errors(likely.params, linear.params)[1] < 0.1
    truth = truth if kind == "vectors" else truth._replace(emission=np.pad(truth.emission, ((0, 60 - D), (0, 0))))
    alike = linear.params._replace(transition=jnp.full((K, K), 1 / K))
    assert errors(truth, linear.params)[1] < errors(truth, alike)[1] / 2
    for estimate in (linear, likely):
        assert estimate.status == Status.CONVERGED
        assert_finite(estimate)


def test_padding_of_vectors_does_not_matter(float64):
    x, lengths = draw(vectors(), 0), np.full(N, TIME - 7)
    expected = fit(x, lengths)
    for value in (0.0, 1e6, np.nan):
        other = x.copy()
        other[:, TIME - 7 :] = value
        assert_same(fit(other, lengths), expected, 1e-7)


def test_vectors_without_memory_stay_finite(float64):
    """Nothing tells three states apart: regression on vanishing states finds means beyond all data."""
    for seed in range(5):
        estimate = fit(np.random.default_rng(seed).normal(size=(N, TIME, 2)), polish=False)
        assert estimate.status >= Status.DEGENERATE
        assert_finite(estimate)
        assert largest(estimate.params.emission) < np.sqrt(N * TIME) + 1


def test_vectors_of_no_weight_do_not_matter(float64):
    x = draw(vectors(), 0)
    half = np.arange(N) < N // 2
    expected = fit(x, np.where(half, TIME, 0))
    for scale in (1.0, 100.0):
        estimate = fit(np.where(half[:, None, None], x, scale * x), row_weights=half.astype(float))
        assert estimate.status == expected.status == Status.CONVERGED
        assert_same(estimate.params, expected.params, 1e-6)


def test_states_that_differ_in_variance_alone(float64):
    """And float32 stays float32 where x64 is enabled."""
    truth = as_model([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[1.0, 1.0]], [[0.2, 4.0]], dtype=jnp.float32)
    x = draw(truth, 0).astype(np.float32)
    estimate = hidden_markov.fit(KEY, x, 2, num_starts=1)
    _, transition, means, variances = errors(truth, estimate.params)
    assert means < 0.2
    assert variances < 0.5
    assert transition < 0.05
    assert {leaf.dtype.name for leaf in jax.tree.leaves(estimate)} == {"float32", "int32"}


# Baum–Welch.
SMALL = np.array([5, 1, 3, 2, 5, 0])


@functools.cache
def small(real):
    """Return a start and a few short sequences, for sums over all paths."""
    rng = np.random.default_rng(0)
    parts = [rng.dirichlet(np.ones(2)), rng.dirichlet(np.ones(2), 2)]
    if real:
        parts += [rng.normal(size=(2, 2)), rng.uniform(0.5, 2.0, (2, 2))]
        return parts, rng.normal(size=(6, 5, 2))
    return [*parts, _columns(rng, 3, 2, 1.0)], rng.integers(0, 3, (6, 5))


def enumerate_step(parts, x, row_weights):
    """Return the parameters after a step of Baum–Welch, and the log-likelihood before it, by sums over all paths."""
    initial, transition, emission, *variance = parts
    first, pairs, states, value = np.zeros(2), np.zeros((2, 2)), np.zeros((*x.shape[:2], 2)), 0.0
    if variance:
        logs = -((x[..., None] - emission) ** 2) / (2 * variance[0]) - np.log(2 * np.pi * variance[0]) / 2
        density = np.exp(logs.sum(axis=2))
    else:
        density = emission[x]
    for row, (length, weight) in enumerate(zip(SMALL, row_weights, strict=True)):
        paths = list(itertools.product(range(2), repeat=int(length))) if length else []
        chances = np.array(
            [
                initial[path[0]]
                * np.prod([transition[pair] for pair in itertools.pairwise(path)])
                * np.prod([density[row, t, state] for t, state in enumerate(path)])
                for path in paths
            ]
        )
        value += weight * np.log(chances.sum()) if length else 0
        for path, share in zip(paths, weight * chances / chances.sum(), strict=True):
            first[path[0]] += share
            for pair in itertools.pairwise(path):
                pairs[pair] += share
            for t, state in enumerate(path):
                states[row, t, state] += share
    initial, transition = first / first.sum(), pairs / pairs.sum(axis=1, keepdims=True)
    share = states / states.sum(axis=(0, 1))
    if not variance:
        return as_model(initial, transition, np.stack([share[x == word].sum(axis=0) for word in range(3)])), value
    means = np.einsum("rtd,rth->dh", x, share)
    spread = np.einsum("rtdh,rth->dh", (x[..., None] - means) ** 2, share)
    return as_model(initial, transition, means, spread), value


def baum_welch(real, row_weights, **options):
    parts, x = small(real)
    return hidden_markov.refine(as_model(*parts), x, lengths=SMALL, row_weights=row_weights, **options)


@pytest.mark.parametrize("real", [False, True])
def test_a_step_of_baum_welch_against_enumeration(real, float64):
    parts, x = small(real)
    for row_weights in (np.ones(6), np.array([1.0, 0.5, 0.0, 0.25, 1.0, 1.0])):
        after, value = enumerate_step(parts, x, row_weights)
        start = baum_welch(real, row_weights, tol=0.0, max_iters=0, accelerate=False)
        assert start.num_iters == 0
        assert_same(start.params, as_model(*parts), 1e-15)
        np.testing.assert_allclose(start.log_likelihood, value / row_weights.sum(), rtol=1e-12)
        one = baum_welch(real, row_weights, tol=0.0, max_iters=1, accelerate=False)
        assert one.num_iters == 1
        assert_same(one.params, after, 1e-10)
        _, next_value = enumerate_step([np.asarray(part) for part in after if part is not None], x, row_weights)
        np.testing.assert_allclose(one.log_likelihood, next_value / row_weights.sum(), rtol=1e-10)
        np.testing.assert_allclose(one.gain, (next_value - value) / abs(value), rtol=1e-8)
        assert one.status == Status.MAX_ITERS


@pytest.mark.parametrize("real", [False, True])
def test_refining_never_makes_the_data_less_likely(real, precision):
    _, x = small(real)
    for row_weights in (np.ones(6), np.array([1.0, 0.5, 0.0, 0.25, 1.0, 1.0])):
        values = []
        for steps in (0, 2, 4, 10, 30, 100):
            refined = baum_welch(real, row_weights, tol=0.0, max_iters=steps)
            values.append(float(refined.log_likelihood))
            each = hidden_markov.log_likelihood(refined.params, x, lengths=SMALL)
            again = np.average(np.asarray(each, float), weights=row_weights)
            np.testing.assert_allclose(values[-1], again, rtol=1e-10 if precision == "float64" else 1e-5, atol=1e-5)
            assert np.isfinite(refined.gain)
        slack = 1e-10 if precision == "float64" else 1e-5
        assert np.all(np.diff(values) >= -slack), values
        assert values[-1] > values[0] + 0.02
        assert {leaf.dtype.name for leaf in jax.tree.leaves(refined)} == {precision, "int32"}


def test_refining_a_fit(float64):
    truth, x, (_, start, _) = trials()[0]
    refined = hidden_markov.refine(start.params, x)
    assert refined.status == Status.CONVERGED
    for other in (start.params, truth):
        assert refined.log_likelihood > float(np.mean(hidden_markov.log_likelihood(other, x)))


def test_refining_with_an_outlier_never_lowers_the_likelihood(precision):
    """An observation of 1e15 leaves the others no digits: a step that falls is not taken."""
    parts, x = small(True)
    x = x.copy()
    x[0, 0] = 1e15
    values = [hidden_markov.refine(as_model(*parts), x, max_iters=steps).log_likelihood for steps in (0, 5, 50)]
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(np.asarray(values, float)) >= 0), values
