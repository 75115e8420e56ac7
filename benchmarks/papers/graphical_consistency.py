"""Graphical models, figures 1, 3(b) and 5 of the paper: errors of `fit` against the number of samples.

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods. Four graphs,
observed variables with 5 values, hidden ones with k = 2 and 3: the directed 2 × 2 grid of figure 1 and the undirected
3 × 3 grid of figure 5, with two leaves per node; the tree of figure 3(b), whose root has no leaves; a chain of six with
shared parameters. n = 10⁴ to 10⁶ samples, all from one draw of 10⁶ of each model; joint distributions by the composite
likelihood and by the pseudoinverse.

Eight random models per graph and k, seeds 0 to 7 (`draw_params` with `structure=0.5`): half of every column is from
Dirichlet(1); the other half of an emission is one value, different for each state, that of a transition the value of
the parent, that of a root uniform. Log-potentials between hidden variables are normal with deviation 0.7. Samples are
exact draws: of the undirected grid by enumeration of its hidden values.

The error of an estimate is the total variation (half of the sum of absolute differences) of the joint distributions of
cliques of hidden nodes, those that the parameters imply, and of `P(x | h)` of the leaves, its mean over states; the
mean over all of these. States are in the best order, found for each hidden variable by its leaves, for the root of the
tree by its cliques. Medians and quartiles are over models; slopes are those of a line through log median against log n,
by least squares.

Claims: errors fall as n^−1/2, which is the rate of moments: the slope of the composite likelihood is from −0.6 to −0.4
for each graph. The composite likelihood is no worse than the pseudoinverse at any n.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.graphical_models import NUM_VALUES, distributions, draw_exactly, draw_params, errors, figure_3b, relabel
from benchmarks.plotting import COLOURS, INK, figure
from benchmarks.runner import Claim, Options, Report
from latensor.decompose import Status
from latensor.models import graphical
from latensor.models.graphical import Graph

_METHODS = {"likelihood": "blue", "pseudoinverse": "orange"}
_SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)


def graphs(k: int) -> dict[str, Graph]:
    """Return the four graphs with `k` states per hidden variable."""
    return {
        "2 × 2 grid, directed": graphical.grid(2, 2, directed=True, num_states=k, num_values=NUM_VALUES),
        "3 × 3 grid, undirected": graphical.grid(3, 3, directed=False, num_states=k, num_values=NUM_VALUES),
        "tree of four": figure_3b(k),
        "chain of six": graphical.chain(6, num_states=k, num_values=NUM_VALUES),
    }


class _Curves(NamedTuple):
    """Errors of all models of one graph."""

    errors: np.ndarray
    """`(methods, sizes, models)`"""
    parts: np.ndarray
    """The same for cliques and for leaves, `(methods, sizes, models, 2)`."""
    num_converged: np.ndarray
    """`(methods, sizes)`"""

    @property
    def medians(self) -> np.ndarray:
        """Over models, `(methods, sizes)`."""
        return np.median(self.errors, axis=2)

    def slopes(self, sizes: tuple[int, ...]) -> np.ndarray:
        """Return those of log median error against log n, one per method."""
        return np.polyfit(np.log(sizes), np.log(self.medians).T, 1)[0]


def _measure(graph: Graph, sizes: tuple[int, ...], trials: int) -> _Curves:
    shape = (len(_METHODS), len(sizes), trials)
    total, parts, converged = np.zeros(shape), np.zeros((*shape, 2)), np.zeros(shape[:2], int)
    plan = graphical.plan(graph)
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        truth = draw_params(rng, graph, structure=0.5)
        x, true = draw_exactly(rng, truth, sizes[-1]), distributions(truth)
        for i, n in enumerate(sizes):
            for m, method in enumerate(_METHODS):
                fit = graphical.fit(jax.random.key(trial), x[:n], plan, marginals=method)  # type: ignore[arg-type]
                found = errors(true, distributions(relabel(truth, fit.params)))
                total[m, i, trial], parts[m, i, trial] = found.mean, (found.cliques, found.leaves)
                converged[m, i] += int(fit.status) == Status.CONVERGED
    return _Curves(total, parts, converged)


def run(options: Options) -> Report:
    """Fit every graph by both methods at every n."""
    trials = options.trials or (2 if options.quick else 8)
    sizes = (3_000, 10_000) if options.quick else _SIZES
    states = (2,) if options.quick else (2, 3)
    chosen = list(graphs(2))[: 2 if options.quick else None]
    curves: dict[tuple[str, int], _Curves] = {}
    for name, k in tqdm([(name, k) for k in states for name in chosen], desc="graphs"):
        curves[name, k] = _measure(graphs(k)[name], sizes, trials)
    rows: list[list[Any]] = []
    for (name, k), curve in curves.items():
        for i, n in enumerate(sizes):
            parts = np.median(curve.parts[:, i], axis=1)
            converged = " and ".join(str(number) for number in curve.num_converged[:, i])
            rows.append([name, k, f"{n:,}", *curve.medians[:, i], *parts[:, 0], parts[0, 1], converged])
    claims = [claim for (name, k), curve in curves.items() for claim in _claims(f"{name}, k = {k}", curve, sizes)]
    data = {
        "sizes": sizes,
        "errors": {f"{name}, k = {k}": curve.errors for (name, k), curve in curves.items()},
        "slopes": {f"{name}, k = {k}": curve.slopes(sizes) for (name, k), curve in curves.items()},
    }
    columns = ["graph", "k", "n", *_METHODS, *(f"cliques, {method}" for method in _METHODS), "leaves", "converged"]
    return Report(columns, rows, claims, data, _picture(curves, sizes, chosen))


def _claims(where: str, curve: _Curves, sizes: tuple[int, ...]) -> list[Claim]:
    slopes = curve.slopes(sizes)
    ratios = curve.medians[0] / curve.medians[1]
    worst = int(np.argmax(ratios))
    typical = np.exp(np.mean(np.log(curve.errors[0] / curve.errors[1])))
    return [
        Claim(
            f"{where}: the slope of the composite likelihood is from −0.6 to −0.4",
            f"{slopes[0]:.3f} (pseudoinverse {slopes[1]:.3f})",
            bool(-0.6 <= slopes[0] <= -0.4),
        ),
        Claim(
            f"{where}: no worse than the pseudoinverse at any n",
            f"{ratios.min():.3f} to {ratios[worst]:.3f} of its median error (the latter at n = {sizes[worst]:,}); "
            f"{typical:.3f} is the geometric mean over n and models",
            bool(np.all(ratios <= 1)),
        ),
    ]


def _picture(curves: dict[tuple[str, int], _Curves], sizes: tuple[int, ...], chosen: list[str]) -> Any:
    made, axes = figure(len(chosen), (3.1 * len(chosen), 3.2))
    for axis, name in zip(axes, chosen, strict=True):
        slopes = []
        for (other, k), curve in curves.items():
            if other != name:
                continue
            slopes.append(f"{curve.slopes(sizes)[0]:.2f} (k = {k})")
            for m, (method, colour) in enumerate(_METHODS.items()):
                style = {"color": COLOURS[colour], "linestyle": "-" if k == 2 else "--"}
                axis.loglog(sizes, curve.medians[m], marker="o", markersize=3, label=f"{method}, k = {k}", **style)
                if k == 2:
                    low, high = np.quantile(curve.errors[m], [0.25, 0.75], axis=1)
                    axis.fill_between(sizes, low, high, color=COLOURS[colour], alpha=0.15, linewidth=0)
        guide = curves[name, 2].medians[0, 0] / 2 * (np.array(sizes) / sizes[0]) ** -0.5
        axis.loglog(sizes, guide, color=INK, linewidth=0.6, label="n^−1/2")
        axis.set(xlabel="samples n", title=f"{name}\nslope {', '.join(slopes)}")
    axes[0].set_ylabel("total variation")
    axes[0].legend(frameon=False, fontsize=7)
    models = curves[chosen[0], 2].errors.shape[-1]
    made.suptitle(f"Medians of {models} models each, quartiles for k = 2", fontsize=10)
    return made
