"""Equal values are one class, category and group, in whatever spelling and format."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.columns.missing_texts import without_blanks_alone, without_trimmed
from kfp_distributed.components.prepare_data.columns.spelled_values import number_names, value_names
from kfp_distributed.components.prepare_data.preparation_options import CsvFormat
from kfp_distributed.storage.dataset import read_batches

pytestmark = pytest.mark.takes(10)

HELD_OUT = {"validation_fraction": 0, "test_fraction": 1}
FLAGS = [i % 3 == 0 for i in range(60)]
SPELLINGS = {"python": ("False", "True"), "r": ("FALSE", "TRUE"), "json": ("false", "true")}


def csv_text(spelling="python", *more):
    names = SPELLINGS[spelling]
    rows = [f"{i},{names[flag]},{names[flag]}\n" for i, flag in enumerate(FLAGS)]
    return "x,smokes,label\n" + "".join([*rows, *more])


@pytest.fixture
def parquet(tmp_path):
    pq.write_table(pa.table({"x": range(60), "smokes": FLAGS, "label": FLAGS}), tmp_path / "data.parquet")
    return tmp_path / "data.parquet"


def names_of(manifest):
    return manifest.label.classes, manifest.columns[1].vocabulary


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_csv_column_of_booleans_has_the_names_of_a_parquet_one(file, run, parquet, spelling):
    of_csv = run(file("data.csv", csv_text(spelling)), "csv")["train"]
    of_parquet = run(parquet, "parquet")["train"]
    assert names_of(of_csv) == names_of(of_parquet) == (("false", "true"), ("false", "true"))
    assert of_csv.shards == of_parquet.shards


@pytest.mark.parametrize("is_csv_first", [True, False])
def test_a_dataset_of_booleans_like_one_of_another_format(file, run, tmp_path, parquet, is_csv_first):
    sources = [file("data.csv", csv_text()), parquet]
    first, second = sources if is_csv_first else sources[::-1]
    earlier = run(first, "earlier")["train"]
    test = run(second, "new", like=earlier, **HELD_OUT)["test"]
    assert test.class_counts == (40, 20)
    for inputs, labels in read_batches(tmp_path / "new" / "test", test):
        assert (inputs[:, 1] - 1).tolist() == labels.tolist() == (inputs[:, 0] % 3 == 0).tolist()


def test_a_dataset_keeps_the_spelling_of_the_one_in_like(run, parquet):
    """Datasets of versions before this one have the spelling of their CSV file."""
    earlier = run(parquet, "earlier")["train"]
    spelled = ("False", "True")
    column = replace(earlier.columns[1], vocabulary=spelled)
    earlier = replace(earlier, columns=(earlier.columns[0], column), label=replace(earlier.label, classes=spelled))
    test = run(parquet, "new", like=earlier, **HELD_OUT)["test"]
    assert (names_of(test), test.class_counts) == ((spelled, spelled), (40, 20))


def test_the_files_of_splits_may_spell_booleans_differently(file, run, parquet):
    manifests = run(file("data.csv", csv_text()), sources={"test": str(parquet)})
    assert names_of(manifests["test"]) == (("false", "true"), ("false", "true"))
    assert manifests["test"].class_counts == (40, 20)


def test_a_column_with_other_texts_keeps_its_spelling(file, run):
    manifest = run(file("data.csv", csv_text("python", "60,maybe,maybe\n" * 10)))["train"]
    assert names_of(manifest) == (("False", "True", "maybe"), ("False", "True", "maybe"))


def test_a_constant_column_of_two_spellings_is_named(file, run, capsys):
    run(file("data.csv", "x,label\n" + "True,a\ntrue,b\n" * 20))
    assert "column 'x' has the same value in all 40 rows" in capsys.readouterr().out


WRITTEN = {
    "5": ("5", "5.0", "5.", "5.00", " 5", "5e+00"),
    "0": ("0", "-0", "0.0", "-0.0"),
    "-1.5": ("-1.5", "-1.5 ", "-15e-01"),
    "1000": ("1000", "1000.0", "1e+03"),
    "0.01": ("0.01", "1e-02"),
}
HAND_WRITTEN = {
    "5": ("+5", "5E0", "+5.0"),
    "-1.5": ("-1.50",),
    "0": (".0",),
    "1000": ("1e3", "1E3"),
    "0.01": ("1e-2", ".01"),
}
CODES = ("007", "-007", "00", "01.5", "1.2.3", "5 0", "0x5", "1_000", "five", "", "-", ".", "e+05", "5e+0000")


@pytest.mark.parametrize("of_any_form", [False, True])
def test_a_number_has_the_name_of_its_value(of_any_form):
    spelled = [(text, name) for name, texts in WRITTEN.items() for text in texts]
    by_hand = [(text, name) for name, texts in HAND_WRITTEN.items() for text in texts]
    others = [(text, text) for text in (*CODES, None)]
    pairs = [*spelled, *((text, name if of_any_form else text) for text, name in by_hand), *others]
    texts, names = zip(*pairs, strict=True)
    assert number_names(pa.array(texts), of_any_form=of_any_form).to_pylist() == [*names]


@pytest.mark.parametrize(
    ("texts", "known", "names"),
    [
        (["5", "+5.0", "1e1"], None, ["5", "5", "10"]),
        (["+49", "2E3", "2000.0", "1.10", "x"], None, ["+49", "2E3", "2000", "1.10", "x"]),
        (["5", "5.0", "+5", "7"], ["5.0", "8"], ["5.0", "5.0", "5.0", "7"]),
        (["5.0", "5"], ["5.0", "5"], ["5.0", "5"]),
        (["True", " FALSE"], ["true", "false"], ["true", "false"]),
        ([" Ulm", "Ulm", "New  York\t"], None, ["Ulm", "Ulm", "New  York"]),
        ([" Ulm", "Ulm", " x"], [" Ulm"], [" Ulm", " Ulm", " x"]),
    ],
    ids=["all are numbers", "some are codes", "like", "like one that has both", "booleans", "blanks", "like blanks"],
)
def test_values_have_the_names_of_their_column(texts, known, names):
    assert value_names(texts, known) == dict(zip(texts, names, strict=True))


ROWS = [
    {"x": float(i), "patient": (i * 7) % 40, "room": (i % 5) / 2 - 1, "label": (i // 3) % 3 - 1, "at": (i * 7) % 120}
    for i in range(240)
]


def spelled(rows, form):
    """The rows as CSV, in which each number is written by `form`."""
    lines = [",".join(form(value, i) for value in row.values()) for i, row in enumerate(rows)]
    return "\n".join([",".join(ROWS[0]), *lines])


def plain(value, _):
    return f"{value:g}"


def like_pandas(value, _):
    return str(float(value)).replace("0.0", "-0.0") if value == 0 else str(float(value))


def mixed(value, row):
    return [f"{value:g}", f"{value:.1f}", f"{value:.2f}", f"{value:.3e}"][row % 4]


def with_commas(value, row):
    return '"' + mixed(value, row).replace(".", ",") + '"'


def write_source(folder, kind):
    """Write ROWS in a format, and return the options that the format requires."""
    folder.mkdir()
    half = len(ROWS) // 2
    arrays = {name: np.array([row[name] for row in ROWS]) for name in ROWS[0]}
    floats = {name: values.astype(float) * np.where(values == 0, -1, 1) for name, values in arrays.items()}
    if kind == "csv":
        (folder / "data.csv").write_text(spelled(ROWS, plain))
    if kind == "csv of several spellings":
        (folder / "data.csv").write_text(spelled(ROWS, mixed))
    if kind == "csv with decimal commas":
        (folder / "data.csv").write_text(spelled(ROWS, with_commas))
        return {"csv_format": CsvFormat(decimal=",")}
    if kind == "csv files":
        (folder / "a.csv").write_text(spelled(ROWS[:half], plain))
        (folder / "b.csv").write_text(spelled(ROWS[half:], like_pandas))
    if kind == "json lines":
        lines = [json.dumps(row if i % 2 else {k: float(v) for k, v in row.items()}) for i, row in enumerate(ROWS)]
        (folder / "data.jsonl").write_text("\n".join(lines))
    if kind == "parquet":
        pq.write_table(pa.table(arrays), folder / "data.parquet")
    if kind == "parquet files":
        pq.write_table(pa.table(arrays).slice(0, half), folder / "a.parquet")
        pq.write_table(pa.table(floats).slice(half), folder / "b.parquet")
    if kind == "npz":
        np.savez(folder / "data.npz", **floats)
    return {}


@pytest.mark.parametrize("split_by", ["group_column", "time_column"])
@pytest.mark.parametrize(
    "kind",
    [
        "csv of several spellings",
        "csv with decimal commas",
        "csv files",
        "json lines",
        "parquet",
        "parquet files",
        "npz",
    ],
)
def test_the_same_rows_are_the_same_dataset(run, tmp_path, capsys, kind, split_by):
    column = {"group_column": "patient", "time_column": "at"}[split_by]
    found = []
    for number, format_ in enumerate(["csv", kind]):
        more = write_source(tmp_path / f"source-{number}", format_)
        unused = ({"at", "patient"} - {column}).pop()
        options = {"columns": {"room": "category"}, "drop_columns": (unused,), "task": "classification"}
        manifests = run(tmp_path / f"source-{number}", f"out-{number}", **{split_by: column}, **options, **more)
        rows = {}
        for split, manifest in manifests.items():
            batches = [*read_batches(tmp_path / f"out-{number}" / split, manifest)]
            rows[split] = sorted(
                (*row, label) for x, y in batches for row, label in zip(x.tolist(), y.tolist(), strict=True)
            )
        kept = [(manifest.columns, manifest.label, manifest.class_counts) for manifest in manifests.values()]
        lines = [line for line in capsys.readouterr().out.splitlines() if "source-" not in line]
        found.append((kept, rows, lines))
    for of_format, of_csv in zip(found[1], found[0], strict=True):
        assert of_format == of_csv
    train, other = ({row[0] for row in found[0][1][split]} for split in ("train", "test"))
    groups = {row["x"]: row["patient"] if split_by == "group_column" else row["at"] for row in ROWS}
    assert not {groups[x] for x in train} & {groups[x] for x in other}


FIRST_MERGED = {"float16": 2**11, "float32": 2**24, "float64": 2**53}


@pytest.mark.parametrize("use", ["label_column", "columns", "group_column"])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("jsonl", "float64"), *((kind, dtype) for kind in ("parquet", "npz") for dtype in FIRST_MERGED)],
)
def test_whole_numbers_that_floats_merge_are_refused(run, tmp_path, use, kind, dtype):
    """In JSON, a fraction in any line makes floats of a column's numbers; pandas makes them of one with gaps."""
    options = {"columns": {"id": "category"}} if use == "columns" else {use: "id"}

    def prepared(first):
        numbers = np.array([first + i % 3 for i in range(60)] + [5.5] * 2, dtype)
        columns = {"x": np.arange(62), "id": numbers, "label": np.array([*"ab"] * 31)}
        source = tmp_path / f"{first}.{kind}"
        if kind == "npz":
            np.savez(source, **columns)
        elif kind == "parquet":
            pq.write_table(pa.table(columns), source)
        else:
            write_texts(source, {name: values.tolist() for name, values in columns.items()})
        return run(source, f"out-{first}", task="classification", **options)

    first = FIRST_MERGED[dtype]
    assert sum(manifest.rows for manifest in prepared(first - 3).values()) == 62
    with pytest.raises(ValueError, match=r"rows 1, 2, 4.*: 'id' is .*, read as a float, in which different whole"):
        prepared(first)


MISSING = ("", " ", "\u00a0 ", "\u202f", " " * 300)
"""Missing values of each format."""
CSV_MISSING = (*MISSING, "NA", "NA ", " null", "\u00a0NaN", "?", "? ", "\u2009?", "-999", "-999.0", " -9990e-1")
"""Missing values of CSV files."""
USES = {
    "category": {},
    "number": {"columns": {"number": "number"}},
    "date": {"columns": {"date": "date"}},
    "group": {"group_column": "group"},
    "time": {"time_column": "time"},
    "label": {},
}


def texts_with_gaps(use, spelled):
    """Rows of texts by column. Each fifth value of one column is missing, in one of some spellings."""
    columns = {
        "x": [str(i / 2) for i in range(300)],
        "category": ["A", "b", "7", "c"] * 75,
        "number": [str(i % 7) for i in range(300)],
        "date": [f"2024-01-{i % 28 + 1:02}" for i in range(300)],
        "group": [f"p{i % 40}" for i in range(300)],
        "time": [f"2024-{i % 12 + 1:02}-{i % 28 + 1:02}" for i in range(300)],
        "label": ["a", "b", "1"] * 100,
    }
    columns[use][::5] = [spelled[i % len(spelled)] for i in range(60)]
    return {name: columns[name] for name in dict.fromkeys(["x", "category", use, "label"])}


def write_texts(path, columns):
    is_binary = "binary" in path.stem
    if path.suffix == ".npz":
        columns = {name: [text.encode() for text in texts] if is_binary else texts for name, texts in columns.items()}
        np.savez(path, **{name: np.array(values) for name, values in columns.items()})
    elif path.suffix == ".parquet":
        kind = pa.large_binary() if "large" in path.stem else pa.binary() if is_binary else pa.string()
        pq.write_table(pa.table({name: pa.array(texts).cast(kind) for name, texts in columns.items()}), path)
    elif path.suffix == ".jsonl":
        rows = zip(*columns.values(), strict=True)
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    else:
        separator = "\t" if path.suffix == ".tsv" else ","
        rows = [columns, *zip(*columns.values(), strict=True)]
        path.write_text("".join(separator.join(f'"{value}"' for value in row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("blank", list(filter(str.isspace, map(chr, range(0x110000)))))
def test_each_blank_is_left_out_before_a_text_is_compared(blank):
    spelled = ["NA", f"NA{blank}", f"{blank}NA", f"x{blank}NA", blank, "", None, "x"]
    for texts in (pa.array(spelled), pa.array(["NA ", *spelled, " NA"])[1:-1]):
        found = without_trimmed(texts, ["NA", ""])
        assert [text for text in found[0].to_pylist() if text] == ["NA", f"x{blank}NA", "x"]
        assert found[1] == {"NA", ""}
        for kind in (pa.string(), pa.large_string()):
            assert without_blanks_alone(texts.cast(kind)).to_pylist() == [*spelled[:4], None, None, None, "x"]
    assert without_trimmed(pa.array([], pa.string()), ["NA"])[0].to_pylist() == []


@pytest.mark.parametrize("missing", ["impute", "drop"])
@pytest.mark.parametrize("use", USES)
def test_blanks_around_a_missing_value_are_no_part_of_it(run, tmp_path, capsys, use, missing):
    options = {**USES[use], "columns": {"x": "number", **USES[use].get("columns", {})}}
    expected = None
    names = ["plain.csv", "rows.csv", "rows.tsv", "rows.jsonl", "rows.parquet", "rows.npz"]
    # Dates are texts.
    names += [] if use in ("date", "time") else ["binary.parquet", "large_binary.parquet", "binary.npz"]
    for name in names:
        is_csv = name in ("rows.csv", "rows.tsv")
        given = {"csv_format": CsvFormat(missing=("?", "-999"), separator="\t" if name == "rows.tsv" else ",")}
        spelled = [""] if name == "plain.csv" else CSV_MISSING if is_csv else MISSING
        source = write_texts(tmp_path / name, texts_with_gaps(use, spelled))
        manifests = run(
            source, f"out-{name}", on_bad_row="skip", missing=missing, **options, **(given if is_csv else {})
        )
        rows = {
            split: sorted(
                row for x, _ in read_batches(tmp_path / f"out-{name}" / split, manifest) for row in map(tuple, x)
            )
            for split, manifest in manifests.items()
        }
        kept = [(manifest.columns, manifest.label, manifest.class_counts) for manifest in manifests.values()]
        expected = expected or (kept, rows)
        np.testing.assert_equal((kept, rows), expected, err_msg=name)
        assert "which no value is" not in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "npz"])
@pytest.mark.parametrize("is_like", [True, False])
def test_blanks_around_a_missing_value_of_another_source(run, tmp_path, ending, is_like):
    csv_format = {"csv_format": CsvFormat(missing=("?", "-999"))} if ending == "csv" else {}
    options = {"on_bad_row": "skip", **csv_format}
    spelled = CSV_MISSING if ending == "csv" else MISSING
    first = write_texts(tmp_path / f"first.{ending}", texts_with_gaps("category", spelled))
    columns = texts_with_gaps("category", spelled)
    columns["label"][::3] = [spelled[i % len(spelled)] for i in range(100)]
    other = write_texts(tmp_path / f"other.{ending}", columns)
    columns = {"columns": {"x": "number"}}
    if is_like:
        test = run(other, "new", like=run(first, "first", **columns, **csv_format)["train"], **HELD_OUT, **options)
    else:
        test = run(first, sources={"test": str(other)}, **columns, **options)
    manifest = test["test"]
    assert names_of(manifest) == (("1", "a", "b"), ("7", "A", "b", "c"))
    assert manifest.class_counts == (100, 0, 100)
    codes = [
        code for x, _ in read_batches(tmp_path / ("new" if is_like else "out") / "test", manifest) for code in x[:, 1]
    ]
    assert codes.count(0) == 40
