import numpy as np
import pytest

from latensor.models import crowd

ROWS = [("q1", "ann", "cat"), ("q1", "bob", "dog"), ("q2", "ann", "dog"), ("q3", "cy", "ant")]


def write(folder, rows, separator="\t", end="\n"):
    path = folder / "labels.txt"
    path.write_bytes(end.join(separator.join(row) for row in rows).encode())
    return path


@pytest.mark.parametrize(("separator", "end"), [("\t", "\n"), (",", "\r\n"), (" ", "\n"), (", ", "\n"), ("  ", "\n\n")])
def test_ids_are_numbered(tmp_path, separator, end):
    file = crowd.read_labels(write(tmp_path, ROWS, separator, end))
    assert file.items == ("q1", "q2", "q3")
    assert file.workers == ("ann", "bob", "cy")
    assert file.classes == ("ant", "cat", "dog")
    np.testing.assert_array_equal(file.labels.x, [[0, 0, 1], [0, 1, 2], [1, 0, 2], [2, 2, 0]])


def test_whole_numbers_are_in_numerical_order(tmp_path):
    rows = [("1", "1", "10"), ("1", "2", "9"), ("2", "1", "-1")]
    assert crowd.read_labels(write(tmp_path, rows)).classes == ("-1", "9", "10")


def test_classes_that_nobody_uses(tmp_path):
    file = crowd.read_labels(write(tmp_path, ROWS), classes=["dog", "cat", "ant", "cow"])
    assert file.classes == ("dog", "cat", "ant", "cow")
    np.testing.assert_array_equal(file.labels.x[:, 2], [1, 0, 0, 2])
    with pytest.raises(ValueError, match=r"path: expected labels among classes = \['cat'\]; got 'dog' in line 2"):
        crowd.read_labels(write(tmp_path, ROWS), classes=["cat"])


def test_a_second_file_with_the_workers_of_the_first(tmp_path):
    first = crowd.read_labels(write(tmp_path, ROWS))
    path = write(tmp_path, [("q9", "cy", "dog"), ("q9", "ann", "cat")])
    second = crowd.read_labels(path, workers=first.workers, classes=first.classes)
    assert (second.workers, second.items) == (first.workers, ("q9",))
    np.testing.assert_array_equal(second.labels.x, [[0, 2, 2], [0, 0, 1]])
    assert second.labels.num_workers == 3
    with pytest.raises(ValueError, match="path: expected workers among those given; got 'cy' in line 1"):
        crowd.read_labels(path, workers=["ann", "bob"])


def test_a_header_is_skipped(tmp_path):
    path = write(tmp_path, [("item", "worker", "label"), *ROWS], ",")
    with pytest.raises(ValueError, match=r"line 1 of labels\.txt, .* looks like a header"):
        crowd.read_labels(path)
    assert crowd.read_labels(path, skip_rows=1).items == ("q1", "q2", "q3")
    with pytest.raises(ValueError, match="skip_rows: expected an integer of at least 0"):
        crowd.read_labels(path, skip_rows=-1)


def test_broken_rows_are_named_by_their_line(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("q1\tann\tcat\n\nq1\tbob\nq2\tann\tdog\textra\nq3\t\tdog\n")
    with pytest.raises(ValueError, match=r"got 3 other rows in labels.txt: line 3: 2 fields.*line 4: 4 fields.*line 5"):
        crowd.read_labels(path)


def test_an_empty_file(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("\n \n")
    with pytest.raises(ValueError, match=r"labels\.txt has none"):
        crowd.read_labels(path)


def test_duplicates_are_named_by_their_lines(tmp_path):
    path = write(tmp_path, [*ROWS, ("q2", "ann", "cat")])
    with pytest.raises(ValueError, match="worker 'ann' labels item 'q2' in lines 3 and 5"):
        crowd.read_labels(path)
    kept = np.asarray(crowd.read_labels(path, duplicates="last").labels.x)
    assert [1, 0, 1] in kept.tolist()
    assert len(kept) == 4


def test_bad_options(tmp_path, no_type_checks):
    with pytest.raises(ValueError, match="duplicates: expected one of"):
        crowd.read_labels(write(tmp_path, ROWS), duplicates="first")
