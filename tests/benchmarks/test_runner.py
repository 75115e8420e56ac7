import json
import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks import report_origin, runner
from benchmarks.runner import BenchmarkError, Claim, Options, Report


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "benchmarks", *arguments], capture_output=True, text=True, check=False)


def test_list_has_a_line_for_each():
    result = command("list")
    assert result.returncode == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == runner.names()
    assert {"demo", "naive_bayes_vs_em", "speed_power_method", "wtpm_fig2", "wtpm_fig6_icu", "wtpm_fig8"} <= set(
        runner.names()
    )


def test_unknown_names_and_numbers_are_refused():
    assert "invalid choice: 'nothing'" in command("run", "nothing").stderr
    assert "at least 1; got 0" in command("run", "demo", "--trials", "0").stderr


def run_made_up(monkeypatch, out, claims, quick=False, trials=None, **parts):
    """Run a benchmark that finds these claims, and return whether it succeeded and what it wrote."""
    report = Report(["k", "k"], [[1, 2.5]], claims, **parts)
    module = type("Module", (), {"__doc__": "A made-up benchmark.", "run": staticmethod(lambda options: report)})
    monkeypatch.setattr(runner, "load", lambda name: module)
    succeeded = runner.run("made_up", Options(quick, trials, "cpu", out))
    return succeeded, json.loads((out / "data.json").read_text())


@pytest.mark.parametrize("held", [True, False])
def test_numbers_and_a_picture_are_written_and_a_claim_that_fails_is_said(held, tmp_path, monkeypatch, capsys):
    figure = Figure()
    figure.subplots().plot([1, 2])
    # A name that the runner uses too does no harm.
    data = {"errors": jnp.ones((3, 2)), "seconds": [1.0]}
    claims = [Claim("it is fast", "7 times", np.bool_(held))]
    succeeded, record = run_made_up(monkeypatch, tmp_path, claims, trials=4, data=data, figure=figure)
    assert succeeded is held
    assert ("[held] it is fast: 7 times" if held else "[DID NOT HOLD] it is fast: 7 times") in capsys.readouterr().out
    assert record["benchmark"] == "made_up"
    assert record["claims"] == [{"statement": "it is fast", "measured": "7 times", "held": held}]
    assert (record["columns"], record["rows"]) == (["k", "k"], [[1, 2.5]])
    assert np.shape(record["data"]["errors"]) == (3, 2)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (record["quick"], record["trials"], record["device"]) == (False, 4, "cpu")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record["date"])
    assert {"python", "latensor", "jax", "numpy"} <= set(record["versions"])
    assert isinstance(record["seconds"], float)


def test_quick_runs_judge_only_claims_about_any_size(tmp_path, monkeypatch, capsys):
    claims = [Claim("it is fast", "slow", False), Claim("it is exact", "yes", True, any_size=True)]
    succeeded, record = run_made_up(monkeypatch, tmp_path, claims, quick=True)
    assert succeeded
    assert [claim["held"] for claim in record["claims"]] == [None, True]
    printed = capsys.readouterr().out
    assert "[not judged] it is fast: slow" in printed
    assert "[held] it is exact: yes" in printed
    assert "DID NOT HOLD" not in printed
    # One that fails is about this run, and the run fails.
    succeeded, record = run_made_up(monkeypatch, tmp_path, [claims[1]._replace(held=False)], quick=True)
    assert not succeeded
    assert record["claims"][0]["held"] is False


def test_the_commit_is_that_of_the_checkout_or_absent(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(report_origin, "ROOT", tmp_path)
    assert report_origin.commit() is None
    git("init", "--quiet")
    for folder in ("base", "moments", "decompose", "models", "benchmarks", "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file.py").write_text("1")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    name = git("rev-parse", "--short", "HEAD")
    (tmp_path / "docs" / "file.py").write_text("2")
    assert report_origin.commit() == name
    (tmp_path / "models" / "new.py").write_text("2")
    assert report_origin.commit() == f"{name}+"
    # A copy inside another repository is not its checkout.
    monkeypatch.setattr(report_origin, "ROOT", tmp_path / "models")
    assert report_origin.commit() is None


def test_settings_of_the_environment_are_written_but_not_where_the_data_are(monkeypatch):
    monkeypatch.setenv("LATENSOR_FUZZ", "moments")
    monkeypatch.setenv("LATENSOR_DATA", "somewhere")
    assert report_origin.settings() == {"LATENSOR_FUZZ": "moments"}


def test_a_device_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BenchmarkError, match="no abacus that JAX can use"):
        runner.run("demo", Options(True, None, "abacus", tmp_path))
    assert not list(tmp_path.iterdir())


def test_measure_reports_the_median_of_warm_calls():
    calls = []
    timing, result = runner.measure(lambda: calls.append(1) or len(calls), repeats=3)
    assert result == 1
    assert len(calls) == 4
    assert timing.first >= 0
    assert timing.warm >= 0
