"""The errors of Arrow in one line."""

import pyarrow as pa
import pytest

from kfp_distributed.components.prepare_data import step
from kfp_distributed.components.prepare_data.sources.read_rows import RowsRefused, read_errors
from kfp_distributed.storage.errors import one_line

ARROW = pa.ArrowInvalid("Could not open file:\n  the footer is missing\n")


def test_an_error_with_line_ends_becomes_one_line():
    assert one_line(ARROW) == "Could not open file: the footer is missing"


def test_errors_of_reading_are_one_line():
    message = r"^a\.parquet cannot be read: Could not open file: the footer is missing$"
    with pytest.raises(ValueError, match=message), read_errors("a.parquet"):
        raise ARROW


def damaged(file, kind):
    """A file of which the format's library says with line ends what is wrong."""
    content = {"arrow": b"ARROW1\0\0" + b"\xff" * 100, "parquet": b"PAR1" + b"\xff" * 100 + b"PAR1"}[kind]
    return file(f"data.{kind}", content)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_damaged_files_are_one_line(file, run, kind):
    with pytest.raises(ValueError, match="write or copy it again") as error:
        run(damaged(file, kind))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ARROW, "\nArrowInvalid: Could not open file: the footer is missing"),
        (RowsRefused("row 2\nrow 3\nthese are 2 rows"), "\nRowsRefused: row 2\nrow 3\nthese are 2 rows"),
    ],
    ids=["Arrow", "rows"],
)
def test_the_last_line_of_the_step_is_the_error(monkeypatch, tmp_path, error, text):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(step, "prepare", fail)
    artifacts = {
        name: type("Artifact", (), {"path": str(tmp_path / name), "uri": str(tmp_path / name), "metadata": {}})()
        for name in ("train_dataset", "validation_dataset", "test_dataset", "overview")
    }
    parameters = {"label_column": "y", "split": {"validation_fraction": 0, "test_fraction": 0}, "shards": 1}
    with pytest.raises(SystemExit) as end:
        step.run_step(**artifacts, source="digits", **parameters, image_size="", drop_columns=[])
    assert str(end.value) == text
