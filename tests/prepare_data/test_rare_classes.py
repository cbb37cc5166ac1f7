"""Classes of one row, which are refused or left out."""

import html

import numpy as np
import pytest

from kfp_distributed.components.prepare_data.preparation_options import parse_options
from kfp_distributed.storage.dataset import read_batches

pytestmark = pytest.mark.takes(5)


def table(file, rows=900):
    """A table in which every thirtieth row has a class of its own."""
    labels = (f"only {row}" if row % 30 == 7 else "ab"[row % 2] for row in range(rows))
    text = "".join(f"{row},{row // 20},{2000 + row},{label}\n" for row, label in enumerate(labels))
    return file("data.csv", "x,patient,year,label\n" + text)


def numbers_of(tmp_path, manifests, name="out"):
    parts = [
        inputs[:, 0]
        for split, manifest in manifests.items()
        for inputs, _ in read_batches(tmp_path / name / split, manifest)
    ]
    return sorted(np.concatenate(parts).astype(int).tolist())


EXPECTED = [row for row in range(900) if row % 30 != 7]


@pytest.mark.parametrize("options", [{}, {"group_column": "patient"}, {"time_column": "year"}], ids=str)
def test_rows_of_classes_of_one_row_are_left_out(file, run, tmp_path, capsys, small, options):
    manifests = run(table(file), rare_classes="drop", **options)
    assert numbers_of(tmp_path, manifests) == EXPECTED
    assert manifests["train"].label.classes == ("a", "b")
    assert sum(sum(manifest.class_counts) for manifest in manifests.values()) == len(EXPECTED)
    line = "left out the rows of 30 classes of one row (rare_classes), such as 'only 7'"
    assert f"warning: {line}" in capsys.readouterr().out
    assert f"<li>{line}" in html.unescape((tmp_path / "out" / "overview.html").read_text())


def test_the_fractions_are_those_of_the_other_rows(file, run):
    """The newest rows have classes of one row, which would be the whole test split."""
    rows = "".join(f"{row},{2000 + row},{'ab'[row % 2] if row < 80 else row}\n" for row in range(100))
    options = {"time_column": "year", "validation_fraction": 0, "rare_classes": "drop"}
    manifests = run(file("data.csv", "x,year,label\n" + rows), **options)
    assert [manifests[split].rows for split in ("train", "test")] == [72, 8]


def test_rows_of_rare_classes_of_a_test_file_are_left_out(file, run, tmp_path):
    test = file("test.csv", "x,patient,year,label\n1000,0,1,a\n1001,0,1,other\n")
    manifests = run(table(file), sources={"test": str(test)}, rare_classes="drop")
    assert numbers_of(tmp_path, manifests) == [*EXPECTED, 1000]


@pytest.mark.takes(20)
def test_tasks_leave_the_same_rows_out(file, outputs, small):
    source = table(file)
    _, expected = outputs(source, 0, rare_classes="drop")
    assert outputs(source, "shared", rare_classes="drop")[1] == expected


def test_without_other_classes_nothing_is_left_to_learn(file, run):
    source = file("data.csv", "x,label\n" + "1,a\n" * 20 + "2,b\n")
    with pytest.raises(ValueError, match=r"'b' has one row only .*: add rows, or set rare_classes to"):
        run(source)
    with pytest.raises(ValueError, match=r"has the classes \['a'\]: two or more are needed"):
        run(source, rare_classes="drop")
    source = file("data.csv", "x,label\n" + "".join(f"{row},{row}kg\n" for row in range(20)))
    with pytest.raises(ValueError, match=r"each of the 20 values of label_column 'label' has one row: .* task to"):
        run(source, rare_classes="drop")


def test_another_value_is_refused():
    parameters = {"label_column": "y", "validation_fraction": 0, "test_fraction": 0, "shards": 1, "seed": 0}
    with pytest.raises(ValueError, match="rare_classes is 'keep': allowed are 'refuse', 'drop'"):
        parse_options(**parameters, image_size="", drop_columns=[], rare_classes="keep")
