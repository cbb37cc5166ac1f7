"""A number that stands for a missing value does so in each of its spellings, and no other text does."""

import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.csv_format import CsvFormat, parse_csv_format

ALL_FOR_TRAINING = {"validation_fraction": 0, "test_fraction": 0, "shards": 1}


def test_a_number_that_means_a_missing_value_is_found_in_each_spelling(file, run, capsys):
    rows = "".join(f"{'-200,0' if i % 4 else '2,5'};{'-200' if i % 4 else 20};{'ab'[i % 2]}\n" for i in range(40))
    options = {"csv_format": parse_csv_format({"missing": ["-200"], "decimal": ","}), "missing": "keep"}
    train = run(file("air.csv", "CO;NOx;label\n" + rows), **options, **ALL_FOR_TRAINING)["train"]
    assert [column.mean for column in train.columns] == [2.5, 20]
    assert "which no value" not in capsys.readouterr().out


def test_whole_numbers_beyond_floats_may_be_beside_a_number_that_means_a_missing_value(file, run):
    rows = "".join(f"{2**60 + row},{row - 5},{'ab'[row % 2]}\n" for row in range(40))
    csv_format = parse_csv_format({"missing": ["-5", "0.5", "1e300"]})
    train = run(file("data.csv", "t,x,label\n" + rows), time_column="t", csv_format=csv_format, missing="drop")
    assert sum(manifest.rows for manifest in train.values()) == 39


@pytest.mark.parametrize(
    ("missing", "declared", "values"),
    [
        ("007", "category", ("7", "x")),
        ("7", "category", ("007", "x")),
        ("7", "text", (None, "007", "7.0", "x")),
        ("9", "category", ("007", "7", "x")),
    ],
    ids=["a code means a missing value", "a number", "kept texts", "another number"],
)
def test_other_spellings_of_a_number_that_means_a_missing_value(file, run, tmp_path, missing, declared, values):
    source = file(
        "data.csv", "x,c,label\n" + "".join(f"{i},{['7', '7.0', '007', 'x'][i % 4]},{'ab'[i % 2]}\n" for i in range(80))
    )
    options = {"columns": {"c": declared}, "csv_format": CsvFormat(missing=(missing,)), **ALL_FOR_TRAINING}
    manifest = run(source, **options)["train"]
    texts = pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet")["c"].unique().to_pylist()
    found = manifest.columns[1].vocabulary or sorted(texts, key=lambda text: (text is not None, text))
    assert tuple(found) == values


@pytest.mark.parametrize("use", ["category", "number", "label", "group_column"])
@pytest.mark.parametrize(("missing", "rows"), [("-9,5", 6), ("-9.5", 2)])
def test_a_number_with_a_point_is_another_text_where_decimals_have_commas(file, run, use, missing, rows):
    """Each of the spellings of -9.5 is in two rows, and the text -9.5, which may mean -95, is in two."""
    spelled = ["-9,5", "-9,50", "-95e-1", "7", "8", *["-9.5"] * (use != "number")] * 2
    lines = "".join(f"{i};{text};{'ab'[i // len(spelled) % 2]}\n" for i, text in enumerate(spelled * 4))
    options = {"columns": {"x": "number"}, "task": "classification"}
    if use in ("category", "number"):
        options["columns"]["c"] = use
    else:
        options["label_column" if use == "label" else use] = "c"
    csv_format = CsvFormat(separator=";", decimal=",", missing=(missing,))
    manifests = run(
        file("data.csv", "x;c;label\n" + lines), csv_format=csv_format, missing="drop", on_bad_row="skip", **options
    )
    gone = 0 if use == "number" and missing == "-9.5" else rows * 4
    assert sum(manifest.rows for manifest in manifests.values()) == len(spelled) * 4 - gone
