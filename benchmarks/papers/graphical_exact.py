"""Graphical models from exact moments: what theory says is exact, in float64.

Source: Chaganty, Liang (2014), theorems 1 and 2. The graphs of `graphical_consistency`, k = 2 and 3 states, 5 values,
four random models each: two with `structure=0.5` and two with all columns from Dirichlet(1), seeds 0 to 3. For the
undirected grid by likelihood and by pseudolikelihood. States are in the best order.

Claims: no joint distribution of a clique is farther than 1e-6 from the true one, in any entry; the joint distribution
of all variables, hidden and observed, is within a total variation of 1e-5 wherever it can be enumerated (for the
undirected grid that of the hidden ones, and the largest error of a leaf's distribution).
"""

import itertools
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.graphical_models import distributions, draw_params, relabel
from benchmarks.papers.graphical_consistency import graphs
from benchmarks.runner import Claim, Options, Report, double_precision
from latensor.decompose import Status
from latensor.models import graphical
from latensor.models.graphical import Graphical

_STRUCTURES = (0.5, 0.5, 0.0, 0.0)


def _clique_error(truth: Graphical, estimate: Graphical) -> float:
    one, other = distributions(truth), distributions(estimate)
    pairs = [*zip(one.cliques.values(), other.cliques.values(), strict=True)]
    pairs += [*zip(one.leaves.values(), other.leaves.values(), strict=True)]
    return max(float(np.max(np.abs(a - b))) for a, b in pairs)


def _directed_variation(truth: Graphical, estimate: Graphical) -> float:
    """Return the total variation of all variables, one set of values of the hidden ones at a time."""
    graph, total = truth.graph, 0.0
    for values in itertools.product(*(range(graph.sizes[name]) for name in graph.hidden)):
        at = dict(zip(graph.hidden, values, strict=True))
        joints = []
        for params in (truth, estimate):
            product = np.ones(())
            for clique, table in zip(graph.cliques, params.tables, strict=True):
                product = np.multiply.outer(product, np.asarray(table)[tuple(at.get(n, slice(None)) for n in clique)])
            joints.append(product)
        total += float(np.sum(np.abs(joints[0] - joints[1])))
    return total / 2


def _hidden_joint(params: Graphical) -> np.ndarray:
    """Return the joint distribution of the hidden variables of an undirected graph."""
    graph = params.graph
    place = {name: axis for axis, name in enumerate(graph.hidden)}
    logs = np.zeros([graph.sizes[name] for name in graph.hidden])
    for clique, table in zip(graph.cliques, params.tables, strict=True):
        values = np.asarray(table)
        for axis, name in reversed(list(enumerate(clique))):
            if name not in place:
                top = values.max(axis=axis, keepdims=True)
                values = np.log(np.exp(values - top).sum(axis=axis)) + top.squeeze(axis)
        inside = [place[name] for name in clique if name in place]
        values = values.transpose(np.argsort(inside))
        logs = logs + values.reshape([size if axis in inside else 1 for axis, size in enumerate(logs.shape)])
    joint = np.exp(logs - logs.max())
    return joint / joint.sum()


def _variation(truth: Graphical, estimate: Graphical) -> float:
    if truth.graph.is_directed:
        return _directed_variation(truth, estimate)
    hidden = np.abs(_hidden_joint(truth) - _hidden_joint(estimate)).sum() / 2
    one, other = distributions(truth).leaves, distributions(estimate).leaves
    return float(max(hidden, *(np.abs(table - other[pair]).sum(axis=0).max() / 2 for pair, table in one.items())))


def run(options: Options) -> Report:
    """Fit every graph from its exact moments."""
    states, structures = ((2,), _STRUCTURES[:1]) if options.quick else ((2, 3), _STRUCTURES)
    rows: list[list[Any]] = []
    with double_precision():
        cases = [(name, k, graph) for k in states for name, graph in graphs(k).items()]
        for name, k, graph in tqdm(cases[: 2 if options.quick else None], desc="graphs"):
            ways = ("normalize",) if graph.is_directed else ("likelihood", "pseudolikelihood")
            for parameters, (seed, structure) in itertools.product(ways, enumerate(structures)):
                truth = draw_params(np.random.default_rng(seed), graph, structure=structure)
                moments = graphical.population_moments(truth, parameters=parameters)  # type: ignore[arg-type]
                fit = graphical.fit_moments(jax.random.key(seed), moments, moments.plan)
                estimate = relabel(truth, fit.params)
                status = Status(int(fit.status)).name
                measured = (_clique_error(truth, estimate), _variation(truth, estimate))
                rows.append([name, k, parameters, structure, seed, *measured, status])
    cliques, joints = (max(row[column] for row in rows) for column in (5, 6))
    claims = [
        Claim(
            "joint distributions of cliques and leaves to 1e-6",
            f"{cliques:.1e} at most",
            cliques <= 1e-6,
            any_size=True,
        ),
        Claim(
            "the joint distribution of all variables to 1e-5 in total variation",
            f"{joints:.1e} at most",
            joints <= 1e-5,
            any_size=True,
        ),
    ]
    columns = ["graph", "k", "parameters", "structure", "seed", "cliques, leaves", "joint", "status"]
    return Report(columns, rows, claims, {})
