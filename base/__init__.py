"""Internals that every layer of latensor shares: checks of arguments, products, guarded division, compilation.

Not for users: it may change without notice.
"""

from latensor.base._arrays import (
    as_float,
    as_int32,
    divide,
    divide_by_largest,
    einsum,
    float_type,
    machine_epsilon,
    matmul,
    positive_or_one,
    smallest_normal,
    square_root,
)
from latensor.base._checks import (
    as_numbers,
    check_axes,
    check_bool,
    check_integer,
    check_key,
    check_mask,
    check_matrix,
    check_number,
    check_option,
    first_entry,
    is_concrete,
    merge_missing,
    read_numbers,
)
from latensor.base._compile import name_bad_arguments, small_jit
from latensor.base._implicit import attach_tangent, freeze, open_function, solve_fixed_point
from latensor.base._input import missing_hint

__all__ = [
    "as_float",
    "as_int32",
    "as_numbers",
    "attach_tangent",
    "check_axes",
    "check_bool",
    "check_integer",
    "check_key",
    "check_mask",
    "check_matrix",
    "check_number",
    "check_option",
    "divide",
    "divide_by_largest",
    "einsum",
    "first_entry",
    "float_type",
    "freeze",
    "is_concrete",
    "machine_epsilon",
    "matmul",
    "merge_missing",
    "missing_hint",
    "name_bad_arguments",
    "open_function",
    "positive_or_one",
    "read_numbers",
    "small_jit",
    "smallest_normal",
    "solve_fixed_point",
    "square_root",
]
