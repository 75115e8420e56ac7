"""EM on crowdsourced labels against crowd-kit's `DawidSkene`; time and memory of a million labels.

trec: 88,385 labels of 19,033 items by 762 workers. 50 steps of EM from the shares of the votes, estimated frequencies
of the classes, no smoothing, double precision: crowd-kit's own start and M-step, except that it raises expected counts
below 1e-10 to that. crowd-kit has no likelihood among its results, and stops where its own bound falls, which need not
be a mistake: with `tol=-inf` it makes all steps. The log-likelihood of both is that of `crowd.log_likelihood`.

Claims (ours):

- at least 20 times faster, warm, in one process, checks of the input included;
- the log-likelihoods after 50 steps are equal within 1e-6, relative;
- a synthetic set of 1,000,000 labels (100,000 items, 2,000 workers, 5 classes; workers are right in 40 to 90 % of the
  cases): `fit` and `refine` need less than 2 GB in all;
- their cost is linear in the labels: per label, `fit` and a step of EM cost at most 1.25 times as much with 1,000,000
  labels as with 100,000.
"""

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.crowd_data import Crowd, read_crowd
from benchmarks.runner import BenchmarkError, Claim, Options, Report, double_precision, measure, peak_gigabytes
from latensor.decompose import Status
from latensor.models import crowd
from latensor.models.crowd import DawidSkene
from latensor.moments import Labels

_LEAST_COUNT = 1e-10
_EM_STEPS = 10


def _workers(key: jax.Array, num_workers: int, k: int) -> DawidSkene:
    """Return workers that are right in 40 to 90 % of the cases, and make all mistakes equally often."""
    right = jax.random.uniform(key, (num_workers, 1, 1), minval=0.4, maxval=0.9)
    return DawidSkene(jnp.full(k, 1 / k), jnp.where(jnp.eye(k, dtype=bool)[None], right, (1 - right) / (k - 1)))


def _scale(options: Options) -> tuple[list[list[Any]], list[Claim]]:
    k, per_item = 5, 10
    num_workers = 100 if options.quick else 2_000
    sizes = (500, 1_000) if options.quick else (10_000, 30_000, 100_000)
    truth = _workers(jax.random.key(3), num_workers, k)
    rows: list[list[Any]] = []
    costs = []
    for num_items in tqdm(sizes, desc="labels"):
        draw = crowd.sample(jax.random.key(4), truth, num_items, labels_per_item=per_item)
        labels = Labels(draw.x, num_items, num_workers)
        fit_time, fit = measure(partial(crowd.fit, jax.random.key(5), labels, k), 3)
        refine_time, refined = measure(partial(crowd.refine, fit.params, labels), 3)
        steps = partial(crowd.refine, fit.params, labels, tol=0.0, max_iters=_EM_STEPS)
        step_time, ten = measure(steps, 3)
        step = step_time.warm / max(int(ten.num_iters), 1)
        number = num_items * per_item
        costs.append(np.array([fit_time.warm, step]) / number)
        wrong = float(jnp.mean(jnp.argmax(crowd.posterior(refined.params, labels), axis=1) != draw.hidden))
        per_label = [1e9 * float(cost) for cost in costs[-1]]
        ending = [f"{100 * wrong:.2f} % wrong", Status(int(fit.status)).name]
        rows.append(
            [f"{number:,} labels", fit_time.warm, refine_time.warm, int(refined.num_iters), *per_label, *ending]
        )
    growth, peak = costs[-1] / costs[0], peak_gigabytes()
    claims = [
        Claim(f"{number:,} labels in less than 2 GB in all", f"{peak:.2f} GB", peak < 2),
        Claim(
            f"cost per label at {sizes[-1] * per_item:,} labels at most 1.25 times that at {sizes[0] * per_item:,}",
            f"{growth[0]:.2f} times (fit), {growth[1]:.2f} times (a step of EM)",
            bool(np.all(growth <= 1.25)),
        ),
    ]
    return rows, claims


def _start(data: Crowd) -> DawidSkene:
    """Return crowd-kit's start: shares of the votes, and confusion matrices from them.

    Labels that a worker never gave have probability zero; expected counts of others are at least 1e-10.
    """
    k, triples = data.num_classes, np.asarray(data.labels.x)
    shares = np.asarray(crowd.majority_vote(data.labels, k))
    shape = (data.labels.num_workers, k, k)
    counts, given = np.zeros(shape), np.zeros(shape[:2], bool)
    np.add.at(counts, (triples[:, 1], triples[:, 2]), shares[triples[:, 0]])
    given[triples[:, 1], triples[:, 2]] = True
    counts = np.where(given[:, :, None], np.maximum(counts, _LEAST_COUNT), 0)
    return DawidSkene(jnp.asarray(shares.mean(axis=0)), jnp.asarray(counts / counts.sum(axis=1, keepdims=True)))


def _read_peer(peer: Any, data: Crowd) -> DawidSkene:
    """Return crowd-kit's parameters as ours."""
    k = data.num_classes
    confusion = np.zeros((data.labels.num_workers, k, k))
    worker, label = (peer.errors_.index.get_level_values(level).to_numpy() for level in ("worker", "label"))
    confusion[worker, label] = peer.errors_[list(range(k))].to_numpy()
    return DawidSkene(jnp.asarray(peer.priors_[list(range(k))].to_numpy()), jnp.asarray(confusion))


def _against_peer(options: Options, peer_type: Any) -> tuple[list[list[Any]], list[Claim]]:
    import pandas

    name, num_steps = ("bluebird", 5) if options.quick else ("trec", 50)
    data = read_crowd(options, name)
    frame = pandas.DataFrame(np.asarray(data.labels.x), columns=["task", "worker", "label"])
    with double_precision():
        start = _start(data)
        given: dict[str, Any] = {"pseudo_count": 0.0, "class_prior": "estimated", "tol": 0.0, "max_iters": num_steps}
        timing, ours = measure(partial(crowd.refine, start, data.labels, **given), 5)
        peer_times = []
        for _ in range(3):
            peer = peer_type(n_iter=num_steps, tol=-np.inf)
            begin = time.perf_counter()
            peer.fit(frame)
            peer_times.append(time.perf_counter() - begin)
        theirs = float(np.median(peer_times))
        values = [
            float(jnp.sum(crowd.log_likelihood(params, data.labels)))
            for params in (ours.params, _read_peer(peer, data))
        ]
    steps = (int(ours.num_iters), len(peer.loss_history_))
    difference = (values[0] - values[1]) / abs(values[1])
    label = f"{name}, {num_steps} steps of EM"
    rows = [
        [label, "", timing.warm, steps[0], "", "", f"log-likelihood {values[0]:.4f}", f"compile {timing.first:.2f} s"],
        [f"{label}, crowd-kit", "", theirs, steps[1], "", "", f"log-likelihood {values[1]:.4f}", ""],
    ]
    claims = [
        Claim(
            f"{label} at least 20 times faster than crowd-kit",
            f"{theirs / timing.warm:.0f} times, {timing.warm:.3f} against {theirs:.2f} s",
            theirs >= 20 * timing.warm,
        ),
        Claim(
            "with the same log-likelihood, within 1e-6",
            f"relative difference {difference:+.1e} after {steps[0]} and {steps[1]} steps",
            abs(difference) <= 1e-6 and steps == (num_steps, num_steps),
        ),
    ]
    return rows, claims


def run(options: Options) -> Report:
    """Time both sides on the same labels."""
    try:
        from crowdkit.aggregation import DawidSkene as Peer
    except ImportError:
        raise BenchmarkError("needs crowd-kit: pip install -e '.[bench,peers]'") from None
    before = peak_gigabytes()
    # First, while the process is small: its peak memory is one of the claims.
    rows, claims = _scale(options)
    more_rows, more_claims = _against_peer(options, Peer)
    columns = ["", "fit s", "refine s", "EM steps", "fit ns/label", "EM step ns/label", "", "status"]
    return Report(columns, rows + more_rows, more_claims + claims, {"peak_before_gb": before})
