"""Which files and columns of a source folder are used, and the lines about the others."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pages import Page
from prepare_data.test_images import image
from prepare_data.test_sources import LABELLED, category, number, parquet, rows_of

from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources.left_out import reason_to_leave_out
from kfp_distributed.components.prepare_data.tables.open_source import open_source


def notes_of(path, tmp_path, options=LABELLED):
    return open_source(path, options, tmp_path).notes


def test_images_whose_names_begin_with_an_underscore_are_used(file, tmp_path):
    for index in range(30):
        image(file, f"photos/{'cat' if index % 2 else 'dog'}/{index}.png", colour=index)
    for index in range(30, 40):
        folder = image(file, f"photos/cat/_MG_{index}.JPG", colour=index).parents[1]
    rows = rows_of(folder)[1]
    assert sorted(pixels[0] for pixels in rows["image"]) == list(range(40))
    assert notes_of(folder, tmp_path) == ()


def test_a_folder_whose_name_begins_with_an_underscore_is_a_class(file):
    image(file, "photos/cat/1.png", colour=1)
    folder = image(file, "photos/_background_/1.png", colour=2).parents[1]
    assert sorted(zip(*rows_of(folder)[1].values(), strict=True)) == [("_background_", [2] * 8), ("cat", [1] * 8)]


def test_tables_are_used_whatever_the_case_and_first_letter_of_their_name(file):
    file("rows/_part.csv", "age,kind\n1,a\n")
    folder = file("rows/Part.CSV", "age,kind\n2,b\n").parent
    assert rows_of(folder) == ((number("age"),), {"kind": ["b", "a"], "age": [2, 1]})
    parquet(file, "more/_part.parquet", kind=["a"], age=[1])
    folder = parquet(file, "more/PART.PARQUET", kind=["b"], age=[2]).parent
    assert rows_of(folder) == ((number("age"),), {"kind": ["b", "a"], "age": [2, 1]})


@pytest.mark.parametrize(
    ("reason", "files", "folders"),
    [
        (
            "system",
            [
                "_SUCCESS",
                ".part-0.crc",
                "._1.png",
                "Thumbs.db",
                "_metadata",
                "_started_12",
                "rows_$folder$",
                ".gitkeep",
            ],
            ["_temporary", "__MACOSX", ".git", "@eaDir", "lost+found", "..data", "#recycle"],
        ),
        ("table log", [], ["_delta_log", ".hoodie"]),
        ("hidden", [".hidden.csv", ".1.png"], [".draft"]),
        # A system creates _metadata as a file only, and _temporary as a folder only.
        (None, ["_MG_1.JPG", "_success", "_started_late.csv", "_temporary", "1.png"], ["_background_", "_metadata"]),
    ],
)
def test_why_a_name_is_left_out(reason, files, folders):
    assert {name: reason_to_leave_out(name, is_folder=False) for name in files} == dict.fromkeys(files, reason)
    assert {name: reason_to_leave_out(name, is_folder=True) for name in folders} == dict.fromkeys(folders, reason)


def test_what_is_left_out_of_images_is_named_with_its_number(file, tmp_path):
    image(file, "photos/cat/1.png")
    for name in ("cat/.DS_Store", "cat/._1.png", "README.txt", "top.png", ".draft/1.png", "bird/Thumbs.db"):
        file(f"photos/{name}", "x")
    folder = image(file, "photos/dog/1.png").parents[1]
    assert len(rows_of(folder)[1]["kind"]) == 2
    system, hidden, no_class, no_images = notes_of(folder, tmp_path)
    assert system.startswith("left out 3 ")
    assert [name in system for name in ("'bird/Thumbs.db'", "'cat/.DS_Store'", "'cat/._1.png'")] == [True] * 3
    assert hidden.startswith("left out 1 ")
    assert "'.draft/'" in hidden
    assert no_class.startswith("left out 2 ")
    assert [name in no_class for name in ("'README.txt'", "'top.png'")] == [True] * 2
    assert no_images.startswith("left out 1 ")
    assert "'bird/'" in no_images


def test_a_line_has_the_number_of_all_names_and_is_short(file, tmp_path):
    for index in range(2000):
        folder = file(f"rows/.{index:04}{'x' * 200}.csv", "x").parent
    file("rows/a.csv", "age,kind\n1,a\n")
    (line,) = notes_of(folder, tmp_path)
    assert line.startswith("left out 2,000 ")
    assert len(line) < 500


def test_a_folder_without_data_is_refused_with_what_was_left_out(file, tmp_path):
    folder = file("rows/.hidden.csv", "age,kind\n1,a\n").parent
    with pytest.raises(ValueError, match=r"source rows has no files: .*; left out 1 .*'\.hidden\.csv'"):
        open_source(folder, LABELLED, tmp_path)
    folder = file("photos/cat/.1.png", "x").parents[1]
    with pytest.raises(ValueError, match=r"source photos has folders: .*; left out 1 .*'cat/\.1\.png'"):
        open_source(folder, LABELLED, tmp_path)
    # A file that is refused is not called left out.
    with pytest.raises(ValueError, match=r"source data\.xls has \.xls: .* for each class$"):
        open_source(file("data.xls", "x"), LABELLED, tmp_path)


@pytest.fixture(params=["csv", "parquet"])
def table(request, file):
    """Write a table of one row in one of the two formats: table("rows/a", ["age", "kind"], [1, "a"])."""

    def write(name, names, values):
        if request.param == "csv":
            return file(f"{name}.csv", f"{','.join(names)}\n{','.join(map(str, values))}\n")
        path = file(f"{name}.parquet", "")
        pq.write_table(pa.table([[value] for value in values], names=names), path)
        return path

    return write


def test_columns_that_the_first_file_lacks_are_left_out_and_named(table, tmp_path):
    table("rows/a", ["kind", "age"], ["a", 1])
    table("rows/b", ["kind", "age", "size", "note"], ["b", 2, "x", "y"])
    folder = table("rows/c", ["size", "kind", "age"], ["z", "c", 3]).parent
    assert rows_of(folder) == ((number("age"),), {"kind": ["a", "b", "c"], "age": [1, 2, 3]})
    (line,) = notes_of(folder, tmp_path)
    assert line.startswith("left out 2 columns ")
    assert re.findall(r"'\w+'", line) == ["'size'", "'note'"]
    assert "2 of 3 files" in line
    assert re.findall(r"\b([abc])\.(?:csv|parquet)", line) == ["a", "b", "c"]
    (line,) = notes_of(folder, tmp_path, Options("kind", drop_columns=("note",)))
    assert re.findall(r"'\w+'", line) == ["'size'"]
    assert notes_of(folder, tmp_path, Options("kind", drop_columns=("note", "size"))) == ()
    with pytest.raises(ValueError, match=r"drop_columns \['none'\]: there is no column 'none' in"):
        open_source(folder, Options("kind", drop_columns=("none",)), tmp_path)
    with pytest.raises(ValueError, match=r"label_column 'size', .*: there is no column 'size' in a\."):
        open_source(folder, Options("size"), tmp_path)


def test_a_column_that_occurs_twice_can_be_dropped(table, tmp_path):
    table("rows/a", ["kind", "note", "age", "note"], ["a", "x", 1, "y"])
    folder = table("rows/b", ["note", "note", "kind", "age"], ["x", 5, "b", 2]).parent
    expected = ((number("age"),), {"kind": ["a", "b"], "age": [1, 2]})
    assert rows_of(folder, Options("kind", drop_columns=("note",))) == expected
    with pytest.raises(ValueError, match=r"the column 'note' occurs 2 times in a\."):
        open_source(folder, LABELLED, tmp_path)


def test_a_used_column_that_occurs_twice_in_a_later_file_is_refused(table, tmp_path):
    table("rows/a", ["kind", "age"], ["a", 1])
    folder = table("rows/b", ["kind", "age", "age"], ["b", 2, 3]).parent
    with pytest.raises(ValueError, match=r"b\.\w+ cannot be read: the column 'age' occurs 2 times"):
        open_source(folder, LABELLED, tmp_path)


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_first_file_with_rows_sets_the_columns(file, tmp_path, end):
    file("rows/a.csv", f"kind,town,size{end}")
    folder = file("rows/b.csv", "town,kind\nUlm,a\n").parent
    assert rows_of(folder) == ((category("town"),), {"kind": ["a"], "town": ["Ulm"]})
    (line,) = notes_of(folder, tmp_path)
    assert re.findall(r"'\w+'", line) == ["'size'"]
    file("rows/a.csv", f"kind{end}")
    with pytest.raises(ValueError, match=r"a\.csv cannot be read: it has no column 'town', which b\.csv has"):
        open_source(folder, LABELLED, tmp_path)


def test_the_lines_are_logged_and_shown_in_the_overview(run, file, tmp_path, capsys):
    rows = "x,label\n" + "1,a\n2,b\n" * 9
    file("rows/a.csv", rows)
    file("rows/_SUCCESS", "")
    folder = file("rows/b.csv", "y," + rows.rstrip().replace("\n", "\n7,")).parent
    notes = notes_of(folder, tmp_path, Options())
    assert run(folder, shards=1)["train"].rows == 28
    printed = capsys.readouterr().out.splitlines()
    assert len(notes) == 2
    # They precede the passes, because a pass may fail because of what is left out.
    assert printed[:2] == [f"warning: {line}" for line in notes]
    page = Page((tmp_path / "out" / "overview.html").read_text())
    assert [line in page.texts for line in notes] == [True, True]


@pytest.mark.parametrize("label", ["label", "kind"])
def test_a_missing_label_says_how_to_keep_rows_without_one(file, run, label):
    source = file("data.csv", "x,c\n" + "1,a\n2,b\n" * 20)
    with pytest.raises(ValueError, match=f"there is no column '{label}' in data.csv") as error:
        run(source, label_column=label)
    way = 'Set label_column to the column of the labels, or to "" to keep rows without a label. Rows '
    way += "for a language model have messages, conversations, prompt and completion, instruction and output, chosen "
    way += "and rejected, or text"
    assert (way in str(error.value)) == (label == "label")
    assert run(source, label_column="", task="none")["train"].rows == 32
