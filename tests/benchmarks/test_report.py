import json
from pathlib import Path

import pytest

from benchmarks import report, report_page
from benchmarks.runner import BenchmarkError, names

RUN = {
    "benchmark": "wtpm_fig2",
    "quick": False,
    "trials": None,
    "device": "cpu",
    "seconds": 12.34,
    "date": "2026-01-02T03:04:05Z",
    "versions": {"python": "3.12.0", "latensor": "0.1.0", "jax": "0.9.0"},
    "commit": "abc1234",
    "hardware": "x86_64, 2 cores",
    "settings": {},
    "claims": [
        {"statement": "errors fall, |e| < 1", "measured": "from 0.5 to 0.1", "held": True},
        {"statement": "it is twice as fast", "measured": "1.9 times", "held": False},
    ],
    "columns": ["n", "error"],
    "rows": [[100, 0.123456], [1000, float("nan")]],
    "data": {"errors": [1, 2, 3]},
}


def write(folder, run):
    path = folder / run["benchmark"] / "data.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run))


def test_the_page_is_what_the_committed_records_render_to():
    expected = report_page.page(report.read_records(report.RECORDS))
    assert report.PAGE.read_text() == expected, (
        "run `python -m benchmarks report`; nobody edits docs/results.md by hand"
    )


def test_links_of_the_page_lead_somewhere():
    text = report.PAGE.read_text()
    for target in [part.split(")")[0] for part in text.split("](")[1:]]:
        if target.startswith("#"):
            assert f"\n### {target[1:]}\n" in text
        else:
            assert (report.PAGE.parent / target).is_file(), target


def test_a_record_keeps_claims_and_short_tables():
    record = report.make_record(RUN)
    assert record["claims"] == RUN["claims"]
    assert record["rows"] == [[100, "0.1235"], [1000, "nan"]]
    assert not {"data", "quick"} & set(record)
    assert "rows" not in report.make_record({**RUN, "rows": 41 * [[1, 2]]})


def test_a_quick_run_is_refused(tmp_path):
    with pytest.raises(BenchmarkError, match="a quick run"):
        report.make_record({**RUN, "quick": True})
    results, records = tmp_path / "results", tmp_path / "records"
    write(results, {**RUN, "quick": True})
    assert report.collect(results, records) == ["wtpm_fig2: refused: a quick run, which says nothing about the claims"]
    assert not records.exists()
    # Nor does one get in by hand.
    records.mkdir()
    claims = [{"statement": "a", "measured": "b", "held": None}]
    (records / "wtpm_fig2.json").write_text(json.dumps({**report.make_record(RUN), "claims": claims}))
    with pytest.raises(BenchmarkError, match=r"wtpm_fig2.json: of a quick run"):
        report.read_records(records)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("wtpm_fig2", {"note": "by hand"}, "not a record"),
        ("wtpm_fig3", {}, "not a record"),
        ("nothing", {}, "no benchmark of this name"),
    ],
)
def test_other_files_among_the_records_are_refused(name, changes, message, tmp_path):
    (tmp_path / f"{name}.json").write_text(json.dumps({**report.make_record(RUN), **changes}))
    with pytest.raises(BenchmarkError, match=message):
        report.read_records(tmp_path)


def test_runs_of_earlier_releases_and_broken_files_are_refused(tmp_path):
    write(tmp_path, {key: value for key, value in RUN.items() if key != "date"})
    assert "without date: run it again" in report.collect(tmp_path, tmp_path / "records")[0]
    (tmp_path / "wtpm_fig2" / "data.json").write_text("{")
    assert "wtpm_fig2: refused: " in report.collect(tmp_path, tmp_path / "records")[0]


def test_newer_runs_replace_records_unless_their_options_are_unusual(tmp_path):
    results, records = tmp_path / "results", tmp_path / "records"

    def collected(**changes):
        write(results, {**RUN, **changes})
        lines = report.collect(results, records)
        return lines[0], report.read_records(records)["wtpm_fig2"]

    line, record = collected(trials=3)
    assert line == "wtpm_fig2: taken, of 2026-01-02T03:04:05Z"
    assert record["trials"] == 3
    assert collected(date="2026-01-01T00:00:00Z")[1]["date"] == RUN["date"]
    line, record = collected(date="2026-01-03T00:00:00Z")
    assert "taken" in line
    assert record["trials"] is None
    line, record = collected(date="2026-01-04T00:00:00Z", settings={"LATENSOR_FUZZ": "moments"})
    assert "kept the record of the usual options" in line
    assert record["date"] == "2026-01-03T00:00:00Z"
    # The file is the record, a claim and a row on each line.
    text = (records / "wtpm_fig2.json").read_text()
    assert json.loads(text) == record
    assert len(text.splitlines()) == len(record) + 2 + 2 * 3


def test_a_page_says_what_held_and_what_was_not_run(monkeypatch):
    monkeypatch.setattr(report_page, "why", lambda name: "Why: because.")
    record = report.make_record({**RUN, "trials": 3, "device": "gpu"})
    page = report_page.page({"wtpm_fig2": record})
    assert "| `papers` | " in page
    assert "| all | " in page
    assert "- [`wtpm_fig2`](#wtpm_fig2): it is twice as fast: **1.9 times**" in page
    section = page.split("### wtpm_fig2\n")[1].split("## Not run")[0]
    assert "python -m benchmarks run wtpm_fig2 --trials 3 --device gpu" in section
    assert "The options differ from the usual ones: 3 trials, on a gpu." in section
    assert r"| yes | errors fall, \|e\| &lt; 1 | from 0.5 to 0.1 |" in section
    assert "| **no** | it is twice as fast | 1.9 times |" in section
    assert "Why: because." in section
    assert "2026-01-02, 12.3 s, gpu: x86_64, 2 cores; latensor 0.1.0 (abc1234), Python 3.12.0, jax 0.9.0." in section
    for name in names():
        assert (f"- `python -m benchmarks run {name}`: " in page.split("## Not run")[1]) is (name != "wtpm_fig2")


def test_explanations_are_paragraphs_of_docstrings(monkeypatch):
    module = type("Module", (), {"__doc__": "A benchmark.\n\nWhy: it is\nso.\n\nMore.\n"})
    monkeypatch.setattr(report_page, "load", lambda name: module)
    assert report_page.why("made_up") == "Why: it is so."
    module.__doc__ = "A benchmark."
    assert report_page.why("made_up") == ""


def test_records_are_committed_where_the_page_says():
    assert Path("benchmarks/records") == report.RECORDS.relative_to(report.ROOT)
