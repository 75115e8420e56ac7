"""Graphs that are asked for often: latent trees, grids and chains."""

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase

from latensor.base import check_integer
from latensor.models.graphical.graph import Graph
from latensor.models.graphical.graph import directed as directed_graph
from latensor.models.graphical.graph import undirected as undirected_graph


def latent_tree(
    branches: Mapping[str, Sequence[str]],
    leaves: Mapping[str, Sequence[str]],
    *,
    num_states: int | Mapping[str, int] = 2,
    num_values: int | Mapping[str, int] = 5,
    directed: bool = True,
) -> Graph:
    """Return a tree of hidden variables with observed leaves.

    The tree of figure 3(b) of Chaganty and Liang (2014), whose root has no leaves:

        latent_tree({"h1": ["h2", "h3", "h4"]}, {h: [f"{h}.a", f"{h}.b"] for h in ["h2", "h3", "h4"]})

    Args:
      branches: the hidden children of hidden variables; `{}` for a single hidden variable.
      leaves: the observed leaves of hidden variables. Columns of data are in this order.
      num_states: the number of values of hidden variables, of all of them or of each.
      num_values: the number of values of observed variables, of all of them or of each.
      directed: whether edges lead from parents to children, with conditional distributions; otherwise they have
        potentials.

    """
    for argument, below in (("branches", branches), ("leaves", leaves)):
        if not isinstance(below, Mapping) or not all(isinstance(each, Iterable) for each in below.values()):
            raise ValueError(f"{argument}: expected lists of names below hidden variables, a dict; got {below!r}")
    above: dict[str, list[str]] = {}
    for argument, below in (("branches", branches), ("leaves", leaves)):
        for parent, children in below.items():
            if isinstance(children, str):
                raise ValueError(f"{argument}[{parent!r}]: expected a list of names; got the text {children!r}")
            for child in children:
                if child in above:
                    raise ValueError(f"{argument}[{parent!r}]: expected names below no other node; got {child!r}")
                above[child] = [parent]
    observed = [leaf for group in leaves.values() for leaf in group]
    inner = next((name for name in observed if name in branches or name in leaves), None)
    if inner is not None:
        raise ValueError(f"leaves: expected observed variables with nothing below them; got {inner!r}")
    roots = [name for name in dict.fromkeys((*branches, *leaves)) if name not in above]
    if not roots:
        raise ValueError("branches: expected a tree with one root; got a cycle, in which every node is below another")
    if len(roots) != 1:
        raise ValueError(
            f"branches: expected a tree with one root; got {len(roots)} roots: {roots}. "
            "Graphs of several trees are made by `directed`"
        )
    hidden = list(roots)
    for name in hidden:
        hidden += branches.get(name, ())
    lost = next((name for name in above if name not in hidden and name not in observed), None)
    if lost is not None:
        raise ValueError(f"branches: expected a tree; got {lost!r}, which does not lead to the root {roots[0]!r}")
    sizes = _sizes("num_states", hidden, num_states) | _sizes("num_values", observed, num_values)
    return _make({name: above.get(name, []) for name in sizes}, sizes, hidden, directed)


def grid(
    rows: int, columns: int, *, directed: bool, num_states: int = 2, num_values: int = 5, leaves: int = 2
) -> Graph:
    """Return a grid of hidden variables, each with the same number of observed leaves.

    Chaganty and Liang (2014): figure 1 if directed, where the parents of a hidden variable are the ones above and to
    the left; figure 5 if undirected. Variables are called `h1,1` (row, column), their leaves `x1,1.a` and so on.
    """
    rows, columns = check_integer("rows", rows, 1), check_integer("columns", columns, 1)
    parents: dict[str, list[str]] = {}
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            above, left = [f"h{i - 1},{j}"] * (i > 1), [f"h{i},{j - 1}"] * (j > 1)
            parents[f"h{i},{j}"] = above + left
    hidden = list(parents)
    for name in hidden:
        parents |= {leaf: [name] for leaf in _leaf_names(name, leaves, single=False)}
    observed = [name for name in parents if name not in set(hidden)]
    sizes = _sizes("num_states", hidden, num_states) | _sizes("num_values", observed, num_values)
    return _make(parents, sizes, hidden, directed)


def chain(length: int, *, num_states: int, num_values: int, leaves: int = 1, share: bool = True) -> Graph:
    """Return the directed graph of a hidden Markov model.

    Variables are called `h1`, `h2` and so on, their leaves `x1`, or `x1.a` and `x1.b` if there are several.

    Args:
      length: number of hidden variables.
      num_states: number of values of each of them.
      num_values: number of values of the observed variables.
      leaves: number of observed variables per hidden one.
      share: whether all transitions are the same, and all emissions.

    """
    length = check_integer("length", length, 1)
    hidden = [f"h{t}" for t in range(1, length + 1)]
    parents = {name: hidden[max(t - 1, 0) : t] for t, name in enumerate(hidden)}
    emitted = [_leaf_names(name, leaves, single=True) for name in hidden]
    parents |= {leaf: [name] for name, own in zip(hidden, emitted, strict=True) for leaf in own}
    sizes = _sizes("num_states", hidden, num_states)
    sizes |= _sizes("num_values", [leaf for own in emitted for leaf in own], num_values)
    groups = [hidden[1:], *map(list, zip(*emitted, strict=True))] if share else []
    return directed_graph(parents, sizes, hidden, shared=[group for group in groups if len(group) > 1])


def _leaf_names(hidden: str, count: int, *, single: bool) -> list[str]:
    count = check_integer("leaves", count, 1, len(ascii_lowercase))
    name = f"x{hidden[1:]}"
    return [name] if single and count == 1 else [f"{name}.{letter}" for letter in ascii_lowercase[:count]]


def _sizes(argument: str, names: Sequence[str], size: int | Mapping[str, int]) -> dict[str, int]:
    if not isinstance(size, Mapping):
        return dict.fromkeys(names, check_integer(argument, size, 2))
    missing = next((name for name in names if name not in size), None)
    if missing is not None:
        raise ValueError(f"{argument}: expected the number of values of {missing!r}; it is missing")
    return {name: check_integer(f"{argument}[{name!r}]", size[name], 2) for name in names}


def _make(
    parents: Mapping[str, Sequence[str]], sizes: Mapping[str, int], hidden: Sequence[str], directed: bool
) -> Graph:
    if directed:
        return directed_graph(parents, sizes, hidden)
    edges = [(child, parent) for child, above in parents.items() for parent in above]
    return undirected_graph(edges, sizes, hidden)
