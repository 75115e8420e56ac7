import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks import runner
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


@pytest.mark.parametrize("held", [True, False])
def test_numbers_and_a_picture_are_written_and_a_claim_that_fails_is_said(held, tmp_path, monkeypatch, capsys):
    figure = Figure()
    figure.subplots().plot([1, 2])
    report = Report(["k"], [[1]], [Claim("it is fast", "7 times", held)], {"errors": jnp.ones((3, 2))}, figure)
    module = type("Module", (), {"__doc__": "A made-up benchmark.", "run": staticmethod(lambda options: report)})
    monkeypatch.setattr(runner, "load", lambda name: module)
    assert runner.run("made_up", Options(False, None, "cpu", tmp_path)) is held
    assert ("[held] it is fast: 7 times" if held else "[DID NOT HOLD] it is fast: 7 times") in capsys.readouterr().out
    record = json.loads((tmp_path / "data.json").read_text())
    assert record["benchmark"] == "made_up"
    assert record["claims"][0]["held"] is held
    assert record["table"] == [{"k": 1}]
    assert np.shape(record["errors"]) == (3, 2)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


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


def test_data_that_are_absent_are_named(tmp_path, monkeypatch):
    result = command("run", "wtpm_fig6_icu", "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    assert result.returncode == 2
    assert "needs the data file physionet2012/PhysionetChallenge2012-set-a.csv.gz" in result.stderr
    assert "pass --data DIR or set LATENSOR_DATA" in result.stderr
    assert not (tmp_path / "out").exists()
    # The variable is looked at where nothing lies beside the checkout.
    (tmp_path / "some.csv").write_text("1")
    monkeypatch.setenv("LATENSOR_DATA", str(tmp_path))
    assert Options(True, None, "cpu", tmp_path).data_file("some.csv") == tmp_path / "some.csv"
