"""Undirected grids of growing treewidth by pseudolikelihood: time, memory and error up to 10 × 10 hidden variables.

Grids as in figure 5 of Chaganty and Liang (2014), with 3 × 3 to 10 × 10 hidden variables of 2 values, two leaves of 5
values each, 100,000 samples. One random model per grid, with the side of the grid as its seed: emissions are half from
Dirichlet(1) and half one value per state, log-potentials are normal with deviation 0.7. Samples come from 60 sweeps of
Gibbs sampling. (Where sums over all hidden values are possible, their distributions of edges are as far from the exact
ones as those of independent samples: 0.002 in total variation.)

Parameters by "pseudolikelihood", for which the joint distribution of every variable with its up to four neighbours is
recovered; and by "likelihood", from the distributions of edges, in grids of up to 5 × 5. First times include the plan
and compilation; warm ones are medians of two further calls. Memory is the most that the process has had so far, samples
included. Errors after the states are in the best order: mean total variation of `P(x | h)` of the leaves, and of the
exact joint distributions of edges; the mean absolute difference of log-potentials, the means of their rows and columns
taken out, which is the part that has no gauge.

Nodes at the border have fewer neighbours, and a star with m neighbours has 2^(m + 1) joint values. So the time per node
should grow with the share of inner nodes, as the mean of 2^(m + 1) does: 14.2 per node (3 × 3), 24.5 (8 × 8) and 25.9
(10 × 10).

Claims: the first fit of the 10 × 10 grid takes less than 300 s and 4 GB. Its time per node is at most 1.2 times that of
the 8 × 8 grid.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.graphical_models import NUM_VALUES, distributions, draw_params, errors, relabel
from benchmarks.plotting import COLOURS, INK, figure
from benchmarks.runner import Claim, Options, Report, Timing, measure, peak_gigabytes
from latensor.decompose import Status
from latensor.models import graphical
from latensor.models.graphical import Graph, Graphical

_SIDES = (3, 4, 5, 6, 8, 10)
_LIKELIHOOD_UP_TO = 5
_SWEEPS = 60
_LOOKS = {"pseudolikelihood": "blue", "likelihood": "orange"}


class _Case(NamedTuple):
    """One estimate."""

    side: int
    parameters: str
    truth: Graphical
    estimate: Graphical
    timing: Timing
    gigabytes: float
    status: Status

    @property
    def seconds_per_node(self) -> float:
        """Warm."""
        return self.timing.warm / self.side**2


def _grid(side: int) -> Graph:
    return graphical.grid(side, side, directed=False, num_states=2, num_values=NUM_VALUES)


def _fit(truth: Graphical, x: np.ndarray, side: int, parameters: str) -> _Case:
    def once() -> Any:
        plan = graphical.plan(truth.graph, parameters=parameters)  # type: ignore[arg-type]
        return graphical.fit(jax.random.key(side), x, plan)

    timing, fit = measure(once, 2)
    return _Case(side, parameters, truth, fit.params, timing, peak_gigabytes(), Status(int(fit.status)))


def _potential_error(truth: Graphical, estimate: Graphical) -> float:
    """Return the mean absolute difference of interactions: log-potentials of edges, centred along both axes."""

    def interactions(params: Graphical) -> np.ndarray:
        hidden = set(params.graph.hidden)
        pairs = zip(params.graph.cliques, params.tables, strict=True)
        tables = np.stack([np.asarray(table) for clique, table in pairs if hidden.issuperset(clique)])
        tables = tables - tables.mean(axis=1, keepdims=True)
        return tables - tables.mean(axis=2, keepdims=True)

    return float(np.mean(np.abs(interactions(truth) - interactions(estimate))))


def _entries_per_node(side: int) -> float:
    """Return the mean number of joint values of a node and its neighbours."""
    inner = side - 2
    return (4 * 2**3 + 4 * inner * 2**4 + inner**2 * 2**5) / side**2


def run(options: Options) -> Report:
    """Fit all grids by pseudolikelihood, from small to large, then the small ones by likelihood, then compare."""
    sides = (2, 3) if options.quick else _SIDES
    num_samples = 10_000 if options.quick else 100_000
    cases: list[_Case] = []
    small: dict[int, tuple[Graphical, np.ndarray]] = {}
    for side in tqdm(sides, desc="sides"):
        truth = draw_params(np.random.default_rng(side), _grid(side), structure=0.5)
        x = np.asarray(graphical.sample(jax.random.key(side), truth, num_samples, num_sweeps=_SWEEPS).x)
        cases.append(_fit(truth, x, side, "pseudolikelihood"))
        if side <= (2 if options.quick else _LIKELIHOOD_UP_TO):
            small[side] = truth, x
    for side, (truth, x) in tqdm(small.items(), desc="likelihood"):
        cases.append(_fit(truth, x, side, "likelihood"))
    rows, edges = [], []
    for case in tqdm(cases, desc="errors"):
        estimate = relabel(case.truth, case.estimate)
        error = errors(distributions(case.truth), distributions(estimate))
        edges.append(error.cliques)
        times = [case.timing.first, case.timing.warm, 1e3 * case.seconds_per_node]
        found = [error.leaves, error.cliques, _potential_error(case.truth, estimate), case.status.name]
        rows.append([f"{case.side} × {case.side}", case.parameters, *times, case.gigabytes, *found])
    columns = ["grid", "parameters", "first s", "warm s", "ms per node", "GB so far", "leaves", "edges", "potentials"]
    claims = _claims(cases[len(sides) - 2 : len(sides)])
    return Report([*columns, "status"], rows, claims, {"sides": sides}, _picture(cases, edges))


def _claims(last: list[_Case]) -> list[Claim]:
    before, largest = last
    ratio = largest.seconds_per_node / before.seconds_per_node
    expected = _entries_per_node(largest.side) / _entries_per_node(before.side)
    return [
        Claim(
            f"{largest.side} × {largest.side}: the first fit takes less than 300 s and 4 GB",
            f"{largest.timing.first:.0f} s (then {largest.timing.warm:.0f} s), {largest.gigabytes:.2f} GB",
            largest.timing.first < 300 and largest.gigabytes < 4,
        ),
        Claim(
            f"{largest.side} × {largest.side}: the time per node is at most 1.2 times that of {before.side} × "
            f"{before.side}",
            f"{ratio:.2f} times ({expected:.2f} times as many entries of stars per node)",
            ratio <= 1.2,
        ),
    ]


def _picture(cases: list[_Case], edges: list[float]) -> Any:
    made, (left, right) = figure(2, (7.4, 3.0))
    for parameters, colour in _LOOKS.items():
        chosen = [(case, edge) for case, edge in zip(cases, edges, strict=True) if case.parameters == parameters]
        sides = [case.side for case, _ in chosen]
        style = {"color": COLOURS[colour], "marker": "o", "markersize": 3, "label": parameters}
        left.plot(sides, [1e3 * case.seconds_per_node for case, _ in chosen], **style)
        right.plot(sides, [edge for _, edge in chosen], **style)
        if parameters == "pseudolikelihood":
            last = chosen[-1][0]
            scale = 1e3 * last.seconds_per_node / _entries_per_node(last.side)
            expected = [scale * _entries_per_node(side) for side in sides]
            left.plot(sides, expected, color=INK, linewidth=0.6, label="as the entries of stars")
            for axis in (left, right):
                axis.set(xlabel="side of the grid", xticks=sides)
    left.set(ylabel="milliseconds per hidden variable, warm", ylim=(0, None))
    right.set(ylabel="total variation of edges", ylim=(0, None))
    left.legend(frameon=False, fontsize=8)
    return made
