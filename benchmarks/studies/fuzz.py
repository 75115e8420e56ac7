"""Fuzzing: 20,000 seeded cases of bad, degenerate and extreme input over all public functions.

Two kinds. Calls without a trace, in which one or two arguments of a public function are replaced by something else:
they return, or raise a `ValueError` that begins with the name of an argument. And lanes of a `vmap` under `jit`, where
nothing can be raised: `fit`, `refine`, `log_likelihood` and `posterior` of tables, documents and sequences with NaN,
infinities, constant columns, repeated rows, scales of 1e±30, masks and row weights of all kinds.

Claims: a number that is not finite comes with the status NON_FINITE; `fit` and `refine` do not say CONVERGED about
invalid data, nor `fit` about data that cannot tell two components apart (fewer than two distinct rows, a column that is
never observed); every error names its argument; EM never lowers the likelihood; bad lanes do not disturb others.

`LATENSOR_FUZZ=gaussian_mixture,decompose` runs only some of: the models, `moments`, `decompose`. `--trials` is the
number of cases. The first case of each kind that fails is printed with its seed.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks import fuzz_calls, fuzz_lanes
from benchmarks.runner import BenchmarkError, Claim, Options, Report

# Lanes are cheap for all models but this one, whose factorizations of degenerate tables run to their limit.
_SLOW = {"mixed_membership": 0.2}
# Calls compile for every new shape and type, hundreds of lanes once.
_CALLS_SHARE = 0.1
_SEED = 1_000_000
PROPERTIES = (*fuzz_calls.PROPERTIES, *(name for name in fuzz_lanes.PROPERTIES if name not in fuzz_calls.PROPERTIES))


class Failure(NamedTuple):
    """A case that violates a property."""

    group: str
    kind: str
    case: str


def _chosen() -> set[str] | None:
    named = os.environ.get("LATENSOR_FUZZ")
    if not named:
        return None
    chosen = {name.strip() for name in named.split(",")}
    known = {name.split(",")[0] for name in fuzz_lanes.ENTRIES} | {"moments", "decompose"}
    if not chosen <= known:
        raise BenchmarkError(f"LATENSOR_FUZZ: expected some of {', '.join(sorted(known))}; got {named}")
    return chosen


def _run_calls(chosen: set[str] | None, num_cases: int, counts: Counter[str]) -> Iterator[Failure]:
    calls = [call for call in fuzz_calls.all_calls() if chosen is None or call.group in chosen]
    cases = fuzz_calls.fuzz_calls(calls, num_cases, _SEED)
    for number, (call, changes, violated) in enumerate(tqdm(cases, total=num_cases, desc="calls")):
        counts[call.group] += 1
        for what in violated:
            kind, _, detail = what.partition(": ")
            yield Failure(call.group, kind, f"call {number}: {call.group}.{call.name}({changes}) {detail}".strip())


def _run_lanes(chosen: set[str] | None, num_cases: int, counts: Counter[str]) -> Iterator[Failure]:
    names = [name for name in fuzz_lanes.ENTRIES if chosen is None or name.split(",")[0] in chosen]
    shares = {name: _SLOW.get(name, 1.0) for name in names}
    for name in names:
        number = round(num_cases * shares[name] / sum(shares.values()))
        for case, violated in tqdm(fuzz_lanes.fuzz_lanes(name, number, _SEED), total=number, desc=name):
            counts[name] += 1
            for kind in violated:
                yield Failure(name, kind, f"{name}, seed {case.seed}: {case.recipe}")


def run(options: Options) -> Report:
    """Run all cases, and count what each group of functions violates."""
    chosen = _chosen()
    total = options.trials or (600 if options.quick else 20_000)
    counts: Counter[str] = Counter()
    num_calls = round(_CALLS_SHARE * total)
    failures = list(_run_calls(chosen, num_calls, counts))
    lanes: Counter[str] = Counter()
    if chosen is None or chosen - {"moments", "decompose"}:
        failures += _run_lanes(chosen, total - num_calls, lanes)
    rows: list[list[Any]] = []
    for label, group in (("calls", counts), ("lanes", lanes)):
        for name, number in sorted(group.items()):
            own = [one for one in failures if one.group == name and one.case.startswith("call ") == (label == "calls")]
            rows.append([f"{name} ({label})", number, *(sum(one.kind == kind for one in own) for kind in PROPERTIES)])
    first = {(one.group, one.kind): one.case for one in reversed(failures)}
    for (_, kind), case in sorted(first.items()):
        print(f"{kind}: {case}")
    number = sum(counts.values()) + sum(lanes.values())
    claims = [
        Claim(
            f"no {kind}" if kind == "silent NaN" else f"never: {kind}",
            f"{bad} of {number:,} cases",
            bad == 0,
            any_size=True,
        )
        for kind in PROPERTIES
        for bad in [sum(one.kind == kind for one in failures)]
    ]
    return Report(["functions", "cases", *PROPERTIES], rows, claims, {"failures": [one._asdict() for one in failures]})
