"""Intervals of parameters."""

from typing import Any, NamedTuple


class Intervals(NamedTuple):
    """Lower and upper ends of intervals, each shaped like the parameters."""

    lower: Any
    upper: Any
