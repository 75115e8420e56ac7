"""The code of docs/real-data.md runs, on made-up files of the same form."""

import csv
import gzip
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from latensor.decompose import Status

PAGE = Path(__file__).parents[2] / "docs" / "real-data.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an incomplete table of two groups of stays, and votes of two parties."""
    rng = np.random.default_rng(0)
    names = re.findall(r'"(\w+_(?:median|first))"', BLOCKS[0])
    columns = list(dict.fromkeys(names))
    group = rng.integers(0, 2, 400)
    values = np.exp(0.1 * rng.normal(size=(400, len(columns))) + 0.3 * group[:, None] * rng.normal(size=len(columns)))
    (tmp_path / "physionet2012").mkdir()
    path = tmp_path / "physionet2012" / "PhysionetChallenge2012-set-a.csv.gz"
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in values:
            writer.writerow([f"{value:.6f}" if rng.random() < 0.9 else "" for value in row])
    party = rng.integers(0, 2, 200)
    yes = rng.random((200, 16)) < np.where(party[:, None] == 0, 0.8, 0.2)
    votes = np.where(rng.random(yes.shape) < 0.05, "?", np.where(yes, "y", "n"))
    lines = [",".join([["democrat", "republican"][p], *row]) for p, row in zip(party, votes, strict=True)]
    (tmp_path / "house-votes-84").mkdir()
    (tmp_path / "house-votes-84" / "house-votes-84.data").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_code_runs_from_top_to_bottom(folder, capsys, no_type_checks):
    space = {}
    # As users have it: the tests refuse arrays that broadcast by rank. Fewer components compile faster.
    with jax.numpy_rank_promotion("allow"):
        for number, block in enumerate(BLOCKS):
            code = block.replace("(1, 2, 4, 8)", "(2,)").replace("moved, 4", "moved, 2")
            exec(compile(code, f"docs/real-data.md, block {number}", "exec"), space)
    printed = capsys.readouterr().out
    assert "True" in printed.splitlines()  # what was saved is what was loaded
    assert (folder / "model.npz").is_file()


def test_every_status_is_explained():
    rows = re.findall(r"^\| `([A-Z_]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [status.name for status in Status]
