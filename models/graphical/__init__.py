"""Graphical models of categorical variables, some of them hidden: directed or undirected, loopy, of high treewidth.

    P(v) = Π_a P(v_a | v_parents(a))            directed: one table for every node given its parents
    P(v) ∝ exp Σ_c θ_c[v_c]                     undirected: one table of log-potentials for every clique

The user draws a graph and says which nodes are hidden; `plan` says how its parameters can be estimated, or which hidden
variable lacks which view. `fit` goes three steps. Every hidden variable with three views, groups of observed variables
that are independent given it, is decomposed, which gives the distributions of observed variables given it. With these
known, the likelihood of a clique's views is concave in the joint distribution of the clique, and its maximum is found.
Joint distributions become parameters: by division in directed graphs, by a second concave maximization, of the
likelihood or of the pseudolikelihood, in undirected ones. Nothing depends on a starting point, and with the
pseudolikelihood nothing on the treewidth. `refine` is EM from there, where exact inference is possible.

    from latensor.models import graphical

    graph = graphical.latent_tree({"h1": ["h2", "h3", "h4"]}, {"h2": ["a", "b"], "h3": ["c", "d"], "h4": ["e", "f"]},
                                  num_states=2, num_values=5)
    print(graphical.plan(graph))
    graphical.draw(graph)
    fit = graphical.fit(jax.random.key(0), x, graph)                    # x (samples, 6), integers
    better = graphical.refine(fit.params, x)
    states = graphical.posterior(better.params, x)["h1"]                # (samples, 2)

Hidden variables are known up to the order of their values, potentials up to what cancels between cliques. If only some
cliques have exclusive views, the paper suggests posterior regularization; its objectives have local optima, and `plan`
refuses such graphs instead. Joint distributions of different cliques are estimated apart, so they may disagree about
the nodes that they have in common (they are outside the marginal polytope): a directed graph does not mind, and for the
likelihood of an undirected one they are made to agree first.

Source: Chaganty, Liang (2014), Estimating latent-variable graphical models using moments and likelihoods.
"""

from latensor.models.graphical.build import chain, grid, latent_tree
from latensor.models.graphical.em import refine
from latensor.models.graphical.estimate import Diagnostics
from latensor.models.graphical.graph import Graph, Node, directed, undirected
from latensor.models.graphical.likelihood import log_likelihood, posterior
from latensor.models.graphical.moments import GraphMoments
from latensor.models.graphical.params import Graphical, num_parameters, permute
from latensor.models.graphical.picture import draw
from latensor.models.graphical.plan import Plan, plan
from latensor.models.graphical.population import population_moments
from latensor.models.graphical.sampling import sample
from latensor.models.graphical.spectral import fit, fit_moments

__all__ = [
    "Diagnostics",
    "Graph",
    "GraphMoments",
    "Graphical",
    "Node",
    "Plan",
    "chain",
    "directed",
    "draw",
    "fit",
    "fit_moments",
    "grid",
    "latent_tree",
    "log_likelihood",
    "num_parameters",
    "permute",
    "plan",
    "population_moments",
    "posterior",
    "refine",
    "sample",
    "undirected",
]
