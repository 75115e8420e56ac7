"""Options of `fit`, checked once."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from latensor.base import as_numbers, check_integer, check_option, is_concrete
from latensor.decompose.internal import VIEW_METHODS, anchor_capacity, check_anchors
from latensor.models.shares import as_shares
from latensor.moments import Variables

Matching = Literal["procrustes", "angle", "assignment"]
# Our names of the methods of `latensor.decompose.nonnegative_cp`.
NONNEGATIVE: dict[str, Any] = {"ptpqp": "pqp", "hals": "hals", "wnmf": "wnmf", "multiplicative": "multiplicative"}
METHODS = (*NONNEGATIVE, *VIEW_METHODS, "meld")
MATCHINGS = ("procrustes", "angle", "assignment")

# Variables per mode that each partition has beside the anchors, by default.
_OTHERS_PER_MODE = 8
# Anchors reach this many times the rank, where there are enough variables: the rank alone leaves no room for noise.
ANCHOR_ROOM = 1.5


class Options(NamedTuple):
    """Everything that is static."""

    variables: Variables
    num_components: int
    method: Any
    num_restarts: int
    num_partitions: int | None
    """`None`: according to the number of variables."""
    anchors: tuple[tuple[int, ...], ...] | None
    """Three groups of variables; `None`: chosen from the data."""
    num_anchors: int
    """How many to choose for each mode."""
    matching: Matching
    polish: int

    @property
    def shares(self) -> Variables:
        """The variables after real ones have become shares."""
        return as_shares(self.variables)

    @property
    def is_uneven(self) -> bool:
        """Whether variables differ in their number of rows, so that shapes depend on the choice of anchors."""
        return len(set(self.shares.sizes)) > 1


def check_options(
    variables: Variables,
    num_components: Any,
    method: Any,
    num_restarts: Any,
    num_partitions: Any,
    anchors: Any,
    matching: Any,
    polish: Any,
) -> Options:
    """Return the options if they are valid for these variables."""
    shares = as_shares(variables)
    p = shares.num_variables
    if p < 3:
        raise ValueError(f"x: expected at least three variables; got {p}")
    k = check_integer("num_components", num_components, 1)
    check_option("method", method, METHODS)
    check_option("matching", matching, MATCHINGS)
    num_restarts = check_integer("num_restarts", num_restarts, 1)
    polish = check_integer("polish", polish, 0)
    largest = sorted(shares.sizes)[::-1]
    reach = min(anchor_capacity(largest[mode::3]) for mode in range(3))
    if reach < k:
        raise ValueError(
            f"num_components: expected at most {reach}, the rank that {p} variables in three groups reach; got {k}"
        )
    if num_partitions is not None:
        num_partitions = check_integer("num_partitions", num_partitions, 1, p, " (the number of variables)")
    groups = None if anchors is None else check_anchors(shares.sizes, _as_groups(anchors), k)
    num_anchors = _num_anchors(shares, k)
    options = Options(variables, k, method, num_restarts, num_partitions, groups, num_anchors, matching, polish)
    if groups is not None:
        count_partitions(options, sum(map(len, groups)))
    elif not options.is_uneven:
        count_partitions(options, 3 * num_anchors)
    return options


def count_partitions(options: Options, num_anchors: int) -> int:
    """Return the number of partitions: the default one, or the given one if there are variables for so many."""
    num_others = options.variables.num_variables - num_anchors
    number = options.num_partitions or max(1, num_others // (3 * _OTHERS_PER_MODE))
    return check_integer(
        "num_partitions", number, 1, max(1, num_others), f" (the variables beside {num_anchors} anchors)"
    )


def _num_anchors(shares: Variables, k: int) -> int:
    """Return how many anchors each mode gets: enough for rank `k` with room, as far as there are variables."""
    smallest = min(shares.sizes)
    enough = -(-(k - 1) // (smallest - 1))
    room = -(-math.ceil(ANCHOR_ROOM * k) // (smallest - 1))
    return max(1, min(max(enough, room), shares.num_variables // 3))


def _as_groups(anchors: Any) -> Sequence[Any]:
    try:
        groups = [as_numbers("anchors", group, "three groups of variable numbers") for group in anchors]
    except TypeError:
        raise ValueError(f"anchors: expected three groups of variable numbers; got {anchors!r}") from None
    if not all(jnp.issubdtype(group.dtype, jnp.integer) for group in groups):
        raise ValueError("anchors: expected three groups of variable numbers; got numbers that are not integers")
    return [np.asarray(group).reshape(-1).tolist() for group in groups]


def check_concentration(concentration: Any) -> Any:
    """Return a total concentration above zero, or `None` where it is to be estimated."""
    if concentration is None:
        return None
    expected = "concentration: expected the sum α₀ of the Dirichlet's parameters, a number above zero, or None"
    if is_concrete(concentration):
        if isinstance(concentration, list | tuple) or np.ndim(concentration) != 0:
            shape = as_numbers("concentration", concentration, "one number").shape
            raise ValueError(f"{expected}; got shape {shape} (pass its sum)")
        try:
            number = float(concentration)
        except (TypeError, ValueError):
            raise ValueError(f"{expected}; got {concentration!r}") from None
        if not (number > 0 and np.isfinite(number)):
            raise ValueError(f"{expected}; got {concentration!r}")
    return concentration
