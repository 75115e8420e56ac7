"""Graphical models from moments: `fit` and `fit_moments`."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from latensor.base import check_integer, check_key, check_option, divide, is_concrete
from latensor.decompose.internal import VIEW_METHODS
from latensor.models.evidence import effective_rows
from latensor.models.graphical.data import check_any_observed, check_codes
from latensor.models.graphical.estimate import Options, estimate
from latensor.models.graphical.evidence import judge
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.marginals import MARGINALS
from latensor.models.graphical.moments import GraphData, GraphMoments, check_graph_moments, data_moments
from latensor.models.graphical.plan import Plan
from latensor.models.graphical.plan import plan as make_plan
from latensor.models.results import Fit
from latensor.moments import Table
from latensor.moments.internal import average_weights


def _check_options(marginals: Any, method: Any, num_restarts: Any) -> Options:
    check_option("marginals", marginals, MARGINALS)
    check_option("method", method, VIEW_METHODS)
    return Options(marginals, method, check_integer("num_restarts", num_restarts, 1))


def _check_plan(graph: Any, parameters: Any) -> Plan:
    if not isinstance(graph, Graph | Plan):
        raise ValueError(f"graph: expected a Graph or a Plan; got {type(graph).__name__}")
    if isinstance(graph, Graph):
        return make_plan(graph, parameters=parameters)
    if parameters not in ("auto", graph.parameters):
        raise ValueError(f"parameters: expected 'auto' or {graph.parameters!r}, as in the plan; got {parameters!r}")
    return graph


def fit(
    key: Array,
    x: Table | ArrayLike,
    graph: Graph | Plan,
    *,
    mask: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    method: Literal["power", "ojd0", "ojd1", "nojd0", "nojd1"] = "power",
    num_restarts: int = 20,
    marginals: Literal["likelihood", "pseudoinverse"] = "likelihood",
    parameters: Literal["auto", "normalize", "likelihood", "pseudolikelihood"] = "auto",
) -> Fit:
    """Estimate the parameters of a graph with hidden variables.

    Args:
      key: a random key, for the restarts.
      x: a `Table`, or integers `(n, p)`: the values of the observed nodes, in the order of `graph.observed`; below zero
        where missing.
      graph: a `Graph`, or its `Plan`.
      mask: `(n, p)` bool, True where observed. Values must be missing for reasons that do not depend on them.
      row_weights: one weight per sample (default: equal).
      method: the decomposition of three views; see `latensor.decompose.conditionals_from_views`.
      num_restarts: random starts of the decomposition per state, or random projections.
      marginals: how joint distributions of hidden variables follow from those of their views: by the composite
        `"likelihood"`, or by the `"pseudoinverse"`, which is linear and less efficient.
      parameters: how parameters follow from joint distributions; see `plan`.

    Returns:
      `Fit` with `Diagnostics`. States of a hidden variable are in decreasing order of their probability. The status is
      `RANK_DEFICIENT` where the views of a hidden variable do not tell all its states apart from noise, `POOR_FIT`
      where independent variables would explain the data as well.

    Cost: one pass over the data for each hidden variable, and one for each clique; some more, `O(n Π k)` each, for
    cliques whose views have many values together.

    """
    key, options = check_key(key), _check_options(marginals, method, num_restarts)
    plan = _check_plan(graph, parameters)
    codes, given = check_codes(plan.graph, x, mask=mask, row_weights=row_weights)
    check_any_observed(codes, given)
    data = _prepare(codes, given)
    complete = is_concrete(codes) and not np.any(np.asarray(codes) < 0)
    result, found = estimate(key, data_moments(plan, data, complete), options, data)
    return judge(key, result, found, plan, data)


def fit_moments(
    key: Array,
    moments: GraphMoments,
    graph: Graph | Plan,
    *,
    method: Literal["power", "ojd0", "ojd1", "nojd0", "nojd1"] = "power",
    num_restarts: int = 20,
    marginals: Literal["likelihood", "pseudoinverse"] = "likelihood",
) -> Fit:
    """Estimate the parameters from moments such as `population_moments` gives; arguments as for `fit`.

    The plan is that of the moments, and `graph` is its graph, or the plan itself. What the data say about the estimate
    is not judged.
    """
    key, options = check_key(key), _check_options(marginals, method, num_restarts)
    moments = check_graph_moments(moments)
    if _check_plan(graph, "auto") != moments.plan and graph != moments.plan.graph:
        raise ValueError("graph: expected the graph that the moments are of; got another one")
    return estimate(key, moments, options, None)[0]


@jax.jit
def _prepare(codes: Int[Array, "n p"], row_weights: Float[Array, " n"] | None) -> GraphData:
    weights = average_weights(row_weights, codes.shape[0], jnp.result_type(float))
    return GraphData(codes, weights, divide(1, effective_rows(weights)))
