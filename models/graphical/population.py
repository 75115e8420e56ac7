"""The exact moments of a model, for every plan that exact inference is possible for.

Views are independent given their hidden variable, so all moments of them follow from `P(h)` and `P(x | h)`; joint
distributions of exclusive views, from that of their set. Both are derivatives of one log-partition function: by tables
of zeros over the sets, and by the evidence of nodes, while another node is held at each of its values.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latensor.base import einsum, small_jit
from latensor.models.graphical.elimination import log_partition, make_schedule
from latensor.models.graphical.factors import IMPOSSIBLE, factors_of, make_evidence, split_graph
from latensor.models.graphical.groups import GroupMoments, PairMoments
from latensor.models.graphical.layout import Regression, SetBatch, TripleBatch, make_layout
from latensor.models.graphical.marginals import joint_views
from latensor.models.graphical.moments import GraphMoments
from latensor.models.graphical.params import Graphical, check_params
from latensor.models.graphical.plan import Plan
from latensor.models.graphical.plan import plan as make_plan

# The joint distribution of the views of a set is a table of at most this many cells.
_LARGEST_TABLE = 2**22


def population_moments(
    params: Graphical, *, parameters: Literal["auto", "normalize", "likelihood", "pseudolikelihood"] = "auto"
) -> GraphMoments:
    """Return the moments of the observed variables that `fit_moments` needs, exactly.

    Args:
      params: the model. Its graph must qualify, and be of a treewidth that allows for exact inference.
      parameters: how they will be estimated; see `plan`.

    """
    params = check_params(params)
    plan = make_plan(params.graph, parameters=parameters)
    layout = make_layout(plan)
    for batch in layout.sets:
        cells = (layout.size + 1) ** sum(batch.kept)
        if cells > _LARGEST_TABLE:
            names = " ".join(plan.subsets[batch.subsets[0]].hidden)
            raise ValueError(
                f"params.graph: expected sets of hidden variables whose views have at most {_LARGEST_TABLE} values "
                f"together; those of ({names}) have {cells}: use samples"
            )
    return _population_moments(params, plan)


class _Distributions(NamedTuple):
    """Distributions of the internal nodes of a graph, and of leaves given them."""

    nodes: dict[str, Float[Array, " _"]]
    given: dict[str, dict[str, Float[Array, "_ _"]]]
    """`P(b | a)` by `a` and `b`: a column for each value of `a`."""
    subsets: tuple[Float[Array, "..."], ...]
    leaves: dict[str, tuple[str, Float[Array, "_ _"]]]
    """The internal node of each observed variable, and `P(x | node)`."""


@small_jit
def _population_moments(params: Graphical, plan: Plan) -> GraphMoments:
    layout = make_layout(plan)
    known = {star: name for name, star in plan.replaced}
    found = _distributions(params, plan, known)

    def given(hidden: str, column: int) -> Float[Array, "size k"]:
        """Return `P(x | h)` of a column of the data, with room for as many values as any; zero for padding."""
        node = known.get(hidden, hidden)
        k = found.nodes[node].shape[0]
        if column < 0:
            return jnp.zeros((layout.size, k), found.nodes[node].dtype)
        home, table = found.leaves[plan.graph.observed[column]]
        conditional = table if home == node else einsum("xb,bh->xh", table, found.given[node][home])
        return jnp.zeros((layout.size, k), conditional.dtype).at[: conditional.shape[0]].set(conditional)

    def stacked(hidden: str, group: np.ndarray) -> Float[Array, "d k"]:
        return jnp.concatenate([given(hidden, int(column)) for column in group])

    def triples(batch: TripleBatch) -> GroupMoments:
        owners = [name for name, count in zip(batch.hidden, batch.num_candidates, strict=True) for _ in range(count)]
        views = [
            jnp.stack([stacked(name, group) for name, group in zip(owners, part, strict=True)])
            for part in batch.columns
        ]
        return _moments_of_views(views, jnp.stack([found.nodes[name] for name in owners]))

    def pairs(part: Regression) -> PairMoments:
        names = [hidden for hidden, _ in part.pairs]
        weights = jnp.stack([found.nodes[name] for name in names])
        variables = jnp.stack([stacked(h, group) for h, group in zip(names, part.columns[:, None], strict=True)])
        references = jnp.stack([stacked(h, group) for h, group in zip(names, part.references, strict=True)])
        return PairMoments(
            einsum("pdk,pk->pd", references, weights), einsum("pxk,pdk,pk->pxd", variables, references, weights)
        )

    def sets(batch: SetBatch) -> Float[Array, "sets ..."]:
        return jnp.stack([table(batch, place) for place in range(len(batch.subsets))])

    def table(batch: SetBatch, place: int) -> Float[Array, "..."]:
        subset = batch.subsets[place]
        joint = found.subsets[subset]
        for hidden, part, number in zip(plan.subsets[subset].hidden, batch.columns, batch.kept, strict=True):
            group = part[place, :number]
            views = joint_views(jnp.stack([given(hidden, int(column)) for column in group]))
            # Nothing is missing, apart from views that are padding.
            cells = jnp.arange(views.shape[0])
            for column in group[::-1]:
                missing = cells % (layout.size + 1) == layout.size
                views = jnp.where((missing == (column < 0))[:, None], views, 0)
                cells = cells // (layout.size + 1)
            # The first axis is contracted, and the new one comes last: after all of them the order is as before.
            joint = einsum("xh,h...->...x", views, joint)
        return joint

    return GraphMoments(
        plan,
        tuple(triples(batch) if batch.hidden else None for batch in layout.triples),
        tuple(tuple(pairs(part) for part in batch.regressed) for batch in layout.triples),
        tuple(sets(batch) for batch in layout.sets),
        jnp.zeros((), params.tables[0].dtype),
    )


def _moments_of_views(views: list[Float[Array, "t _ k"]], weights: Float[Array, "t k"]) -> GroupMoments:
    one, two, three = views
    first = [einsum("tdk,tk->td", view, weights) for view in views]
    weighted = weights[:, None, :] * one
    return GroupMoments(
        (first[0], first[1], first[2]),
        (
            einsum("tik,tjk->tij", weighted, two),
            einsum("tik,tjk->tij", weighted, three),
            einsum("tik,tjk,tk->tij", two, three, weights),
        ),
        einsum("tik,tjk,tlk->tijl", weighted, two, three),
    )


def _distributions(params: Graphical, plan: Plan, known: dict[str, str]) -> _Distributions:
    graph, dtype = params.graph, params.tables[0].dtype
    split, factors = split_graph(graph), factors_of(params)
    place = {name: number for number, name in enumerate(split.internal)}
    wanted = [tuple(place[known.get(name, name)] for name in subset.hidden) for subset in plan.subsets]
    schedule = make_schedule(split.sizes, (*split.scopes, *wanted))
    nothing = jnp.full((1, max(len(graph.observed), 1)), -1, jnp.int32)
    evidence = tuple(part[0] for part in make_evidence(split, factors, nothing))
    zeros = tuple(jnp.zeros([split.sizes[node] for node in scope], dtype) for scope in wanted)

    def partition(zeros: tuple[Array, ...], evidence: tuple[Array, ...]) -> Array:
        return log_partition((*factors.tables, *zeros), evidence, schedule)

    subsets, nodes = jax.grad(partition, argnums=(0, 1))(zeros, evidence)

    def hold(node: int, value: Array) -> tuple[Array, ...]:
        held = list(evidence)
        held[node] = jnp.where(jnp.arange(split.sizes[node]) == value, evidence[node], IMPOSSIBLE)
        return tuple(held)

    # One batch: every node at each of its values.
    states = [jax.vmap(lambda value, node=node: hold(node, value))(jnp.arange(k)) for node, k in enumerate(split.sizes)]
    batch = jax.tree.map(lambda *parts: jnp.concatenate(parts), *states)
    conditionals = jax.vmap(jax.grad(lambda held: partition(zeros, held)))(batch)
    ends = [sum(split.sizes[: node + 1]) for node in range(len(split.sizes))]
    given = {
        one: {
            other: part[ends[a] - split.sizes[a] : ends[a]].T
            for other, part in zip(split.internal, conditionals, strict=True)
        }
        for a, one in enumerate(split.internal)
    }
    leaves = {
        graph.observed[leaf.column]: (split.internal[leaf.node], jnp.exp(table))
        for stack, logs in zip(split.stacks, factors.leaves, strict=True)
        for leaf, table in zip(stack, logs, strict=True)
    }
    for name, column in zip(split.internal, split.columns, strict=True):
        if column is not None:
            leaves[name] = (name, jnp.eye(graph.sizes[name], dtype=dtype))
    return _Distributions(dict(zip(split.internal, nodes, strict=True)), given, subsets, leaves)
