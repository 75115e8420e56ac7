import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import data_files
from benchmarks.data_files import DataFile
from benchmarks.runner import BenchmarkError, Options

ROOT = Path(__file__).parents[2]
# The checksum of a file that holds one letter, a.
SUM_OF_A = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"


@pytest.fixture
def two_files(tmp_path, monkeypatch):
    """Two files that should be there, of which one is, and the folder."""
    files = [DataFile("letters/a.txt", SUM_OF_A), DataFile("letters/b.txt", SUM_OF_A)]
    monkeypatch.setattr(data_files, "expected", lambda: files)
    monkeypatch.delenv("LATENSOR_DATA", raising=False)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("a")
    return tmp_path


def test_files_that_are_there_absent_or_changed_are_told_apart(two_files, capsys):
    assert data_files.check(two_files) == 2
    printed = capsys.readouterr().out
    assert f"letters: {two_files / 'letters'}" in printed
    assert re.search(r"agrees +a.txt\n +absent +b.txt\n1 agree, 1 absent, 0 differ", printed)
    assert "docs/data.md" in printed
    (two_files / "letters" / "b.txt").write_text("b")
    assert data_files.check(two_files) == 1
    assert re.search(r"DIFFERS +b.txt", capsys.readouterr().out)
    (two_files / "letters" / "b.txt").write_text("a")
    assert data_files.check(two_files) == 0
    assert "2 agree, 0 absent, 0 differ" in capsys.readouterr().out


def test_files_are_found_in_the_given_folder_or_in_that_of_the_environment(two_files, monkeypatch):
    assert data_files.find("letters/a.txt", two_files) == two_files / "letters" / "a.txt"
    assert data_files.find("letters/a.txt", None) is None
    # The variable is looked at where nothing lies beside the checkout.
    monkeypatch.setenv("LATENSOR_DATA", str(two_files))
    assert Options(True, None, "cpu", two_files).data_file("letters/a.txt") == two_files / "letters" / "a.txt"


def test_an_absent_file_is_named_without_folders(tmp_path):
    with pytest.raises(
        BenchmarkError, match=r"needs the data file letters/a.txt.*docs/data.md.*LATENSOR_DATA"
    ) as error:
        Options(True, None, "cpu", tmp_path, tmp_path).data_file("letters/a.txt")
    assert "pass --data DIR" in str(error.value)
    assert str(tmp_path) not in str(error.value)


def test_a_benchmark_without_its_data_says_so_and_writes_nothing(tmp_path):
    out = tmp_path / "out"
    arguments = ["run", "wtpm_fig6_icu", "--data", str(tmp_path), "--out", str(out)]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "needs the data file physionet2012/PhysionetChallenge2012-set-a.csv.gz" in result.stderr
    assert not out.exists()


def as_pattern(node):
    """Return a string, or an f-string, of a program as a pattern of what it can be; `None` for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else "[^/]+" for part in node.values)
    return None


def mentioned_files(sets):
    """Return, as patterns, the strings in the benchmarks that name a file of a data set."""
    patterns = set()
    for path in (ROOT / "benchmarks").glob("**/*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        pieces = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        patterns |= {as_pattern(node) for node in nodes if id(node) not in pieces} - {None}
    return {each for each in patterns if each.startswith(tuple(re.escape(f"{name}/") for name in sets))}


def test_every_file_that_benchmarks_read_has_a_checksum_and_a_description():
    names = [file.name for file in data_files.expected()]
    assert names == sorted(names)
    sets = sorted({name.split("/")[0] for name in names})
    patterns = mentioned_files(sets)
    assert [p for p in patterns if not any(re.fullmatch(p, name) for name in names)] == []
    assert [name for name in names if not any(re.fullmatch(p, name) for p in patterns)] == []
    page = (ROOT / "docs" / "data.md").read_text()
    assert [each for each in sets if f"## {each}" not in page] == []
    assert [name for name in names if name.split("/")[1] not in page] == []
