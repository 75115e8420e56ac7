"""Hidden Markov models by latensor, hmmlearn and dynamax: seconds of a step of EM, of posteriors, of best paths."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.runner import BenchmarkError, measure
from latensor.models import hidden_markov
from latensor.models.hidden_markov import HiddenMarkov

VERBS = ("EM step", "posterior", "viterbi")
_FEW, _MANY = 1, 11


def _seconds(function: Callable[[], Any], repeats: int) -> float:
    """Return the median time of warm calls."""
    return measure(function, repeats)[0].warm


def ours(model: HiddenMarkov, start: HiddenMarkov, x: Array, repeats: int) -> dict[str, float]:
    """Return seconds of each verb; a step of EM is a tenth of the difference between eleven and one."""

    def refine(steps: int) -> Callable[[], Any]:
        return partial(hidden_markov.refine, start, x, max_iters=steps, tol=0.0, accelerate=False)

    return {
        "EM step": (_seconds(refine(_MANY), repeats) - _seconds(refine(_FEW), repeats)) / (_MANY - _FEW),
        "posterior": _seconds(partial(hidden_markov.posterior, model, x), repeats),
        "viterbi": _seconds(partial(hidden_markov.viterbi, model, x), repeats),
    }


def hmmlearn(model: HiddenMarkov, start: HiddenMarkov, x: Array, repeats: int) -> dict[str, float]:
    """Return the same of hmmlearn's `CategoricalHMM`, in its faster implementation."""
    try:
        from hmmlearn.hmm import CategoricalHMM
    except ImportError:
        raise BenchmarkError("needs hmmlearn: pip install -e '.[bench,peers]'") from None
    column, lengths = np.asarray(x).reshape(-1, 1), [x.shape[1]] * x.shape[0]

    def make(params: HiddenMarkov, steps: int = 1) -> Any:
        d, k = params.emission.shape
        peer = CategoricalHMM(
            n_components=k, n_features=d, n_iter=steps, tol=-np.inf, init_params="", implementation="scaling"
        )
        for name, rows in (
            ("startprob_", params.initial[None]),
            ("transmat_", params.transition),
            ("emissionprob_", params.emission.T),
        ):
            exact = np.asarray(rows, float)
            exact = exact / exact.sum(axis=1, keepdims=True)
            setattr(peer, name, exact[0] if name == "startprob_" else exact)
        return peer

    def timed(function: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - begin)
        return float(np.median(seconds))

    known = make(model)

    def refine(steps: int) -> None:
        make(start, steps).fit(column, lengths)

    many, few = (timed(partial(refine, steps)) for steps in (_MANY, _FEW))
    return {
        "EM step": (many - few) / (_MANY - _FEW),
        "posterior": timed(lambda: known.predict_proba(column, lengths)),
        "viterbi": timed(lambda: known.decode(column, lengths)),
    }


def dynamax(model: HiddenMarkov, start: HiddenMarkov, x: Array, repeats: int) -> dict[str, float]:
    """Return the same of dynamax's `CategoricalHMM`, jitted, all sequences under one `vmap`."""
    try:
        from dynamax.hidden_markov_model import CategoricalHMM
    except ImportError:
        raise BenchmarkError("needs dynamax: pip install -e '.[bench,peers]'") from None
    d, k = model.emission.shape
    peer = CategoricalHMM(num_states=k, emission_dim=1, num_classes=d)
    emissions = jnp.asarray(x)[:, :, None]

    def make(params: HiddenMarkov) -> Any:
        return peer.initialize(
            jax.random.key(0),
            initial_probs=params.initial,
            transition_matrix=params.transition,
            emission_probs=params.emission.T[:, None, :],
        )

    params, properties = make(start)
    known, _ = make(model)

    @jax.jit
    def step(params: Any, state: Any, emissions: Array) -> Any:
        statistics, values = jax.vmap(partial(peer.e_step, params))(emissions)
        return peer.m_step(params, properties, statistics, state), jnp.sum(values)

    smooth = jax.jit(jax.vmap(lambda row: peer.smoother(known, row).smoothed_probs))
    decode = jax.jit(jax.vmap(lambda row: peer.most_likely_states(known, row)))
    state = peer.initialize_m_step_state(params, properties)
    return {
        "EM step": _seconds(partial(step, params, state, emissions), repeats),
        "posterior": _seconds(partial(smooth, emissions), repeats),
        "viterbi": _seconds(partial(decode, emissions), repeats),
    }
