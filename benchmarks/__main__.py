"""The command line of the benchmarks."""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks import data_files
from benchmarks.report import report
from benchmarks.runner import BenchmarkError, Options, names, run, summary

# The exit status of a benchmark whose data, device or peers are absent.
_CANNOT_RUN = 2
_RESULTS = Path("results")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1; got {value}")
    return value


def main() -> int:
    """Parse the command line and run what it asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of latensor.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the benchmarks, a line each")
    runner = commands.add_parser("run", help="run one of them, or all")
    runner.add_argument("name", choices=[*names(), "all"], metavar="NAME", help=f"all, {', '.join(names())}")
    runner.add_argument("--quick", action="store_true", help="small sizes: does it run, not what does it show")
    runner.add_argument("--trials", type=_positive, metavar="N", help="number of random trials")
    runner.add_argument("--device", choices=["cpu", "gpu"], default="cpu", help="where to run (default: cpu)")
    runner.add_argument("--out", type=Path, metavar="DIR", help="default: results, or results/quick for a quick run")
    reporter = commands.add_parser("report", help="make docs/results.md from the last full runs")
    reporter.add_argument(
        "--results", type=Path, default=_RESULTS, metavar="DIR", help="what runs wrote (default: results)"
    )
    checker = commands.add_parser("data", help="say which data files are there and whether their checksums agree")
    for command in (runner, checker):
        command.add_argument(
            "--data",
            type=Path,
            metavar="DIR",
            help="real data (default: ../shared/data beside the checkout, $LATENSOR_DATA)",
        )
    arguments = parser.parse_args()

    if arguments.command == "list":
        for name in names():
            print(f"{name:24} {summary(name)}")
        return 0
    if arguments.command == "data":
        return data_files.check(arguments.data)
    if arguments.command == "report":
        return _report(arguments.results)

    if arguments.name == "all":
        codes = [_run_apart(name, arguments) for name in names()]
        # One that cannot run here is not one that failed, unless none can.
        return 1 if 1 in codes else min(codes)
    # A quick run does not overwrite what a full one has left.
    out = arguments.out or (_RESULTS / "quick" if arguments.quick else _RESULTS)
    options = Options(arguments.quick, arguments.trials, arguments.device, out / arguments.name, arguments.data)
    try:
        held = run(arguments.name, options)
    except BenchmarkError as error:
        print(f"{arguments.name}: {error}", file=sys.stderr)
        return _CANNOT_RUN
    return 0 if held else 1


def _report(results: Path) -> int:
    try:
        report(results)
    except BenchmarkError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


def _run_apart(name: str, arguments: argparse.Namespace) -> int:
    """Run a benchmark in a process of its own, and return its exit status: 0, 1, or that of one that cannot run.

    All in one process would fill the number of memory maps that Linux allows with compiled programs, and the memory
    that one reports would be that of those before it.
    """
    options = [f"--device={arguments.device}"]
    options += [f"--out={arguments.out}"] if arguments.out else []
    options += ["--quick"] if arguments.quick else []
    options += [f"--trials={arguments.trials}"] if arguments.trials else []
    options += [f"--data={arguments.data}"] if arguments.data else []
    code = subprocess.run([sys.executable, "-m", "benchmarks", "run", name, *options], check=False).returncode
    if code not in (0, 1, _CANNOT_RUN):
        print(f"{name}: ended with exit status {code}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
