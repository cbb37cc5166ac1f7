"""What the readers deliver, and what they refuse, for files as people have them."""

import io
import re
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from kfp_distributed.components.prepare_data.plan import Options
from kfp_distributed.components.prepare_data.sources import open_source
from kfp_distributed.components.prepare_data.split import scan
from kfp_distributed.storage.dataset import Column, Label

LABELLED = Options(label_column="kind")


def rows_of(path, options=LABELLED):
    """The columns of a source and its rows as lists of values, label first."""
    source = open_source(path, options, Path(tempfile.mkdtemp(dir=path and path.parent)))
    tables = [pa.Table.from_batches([batch]) for _, batch in source.batches()]
    return source.columns, pa.concat_tables(tables).to_pydict() if tables else {}


def number(name):
    return Column(name, "number", "float32")


def category(name):
    return Column(name, "category", "int32")


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        (
            "age,kind,town\n1,a,Ulm\n2.5,b,Bern\n",
            (number("age"), category("town")),
            {"kind": ["a", "b"], "age": [1.0, 2.5], "town": ["Ulm", "Bern"]},
        ),
        ("\ufeffage,kind\r\n1,a\r\n\r\n2,b", (number("age"),), {"kind": ["a", "b"], "age": [1, 2]}),
        ("age,kind\n 1 ,a\n+2,b\n,c\n", (number("age"),), {"kind": ["a", "b", "c"], "age": [1, 2, None]}),
        ("age,kind\nNA,a\n,b\nnan,c\n", (number("age"),), {"kind": ["a", "b", "c"], "age": [None] * 3}),
        (
            'town,kind\n"a ""b"",\nc",1\nnull,2\n',
            (category("town"),),
            {"kind": ["1", "2"], "town": ['a "b",\nc', None]},
        ),
        ("ok,kind\ntrue,1.0\nfalse,2\n", (category("ok"),), {"kind": ["1", "2"], "ok": ["true", "false"]}),
        (
            "day,kind\n2024-01-31,007\n,-7.00\n",
            (category("day"),),
            {"kind": ["007", "-7"], "day": ["2024-01-31", None]},
        ),
    ],
)
def test_csv(file, text, columns, rows):
    assert rows_of(file("data.csv", text)) == (columns, rows)


def test_columns_can_be_dropped(file):
    path = file("data.csv", "id,age,kind\nx,4,a\n")
    assert rows_of(path, Options("kind", drop_columns=("id",))) == ((number("age"),), {"kind": ["a"], "age": [4]})


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        (
            "a,Kind",
            Options("kind"),
            r"'kind', .*: there is no column 'kind' in data.csv; it has \['a', 'Kind'\]",
        ),
        (
            "age,kind",
            Options("kind", drop_columns=("agee",)),
            r"there is no column 'agee' in .*; it has \['age', 'kind'\]",
        ),
        ("a,kind,a", Options("kind"), r"the column 'a' is there 2 times in .*; it has \['a', 'kind', 'a'\]"),
        ("kind", Options("kind"), r"there is no column beside these in .*; it has \['kind'\]"),
    ],
)
def test_columns_that_do_not_fit_are_refused(file, tmp_path, header, options, message):
    with pytest.raises(ValueError, match=message):
        open_source(file("data.csv", header + "\n" + re.sub("[A-Za-z]+", "1", header)), options, tmp_path)


def test_a_folder_of_csv_files_is_read_in_order_whatever_the_order_of_columns(file):
    file("rows/b.csv", "kind,age\nb,2\n")
    file("rows/.hidden.csv", "nothing")
    folder = file("rows/a.csv", "age,kind\n1,a\n").parent
    assert rows_of(folder) == ((number("age"),), {"kind": ["a", "b"], "age": [1, 2]})


LONG = "".join(f"{i},a\n" for i in range(300_000))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data.csv cannot be read: Empty CSV file"),
        ("age,kind\n", "data.csv cannot be read: it has no rows"),
        ("age,kind\n1,a\n\n2\n", "data.csv cannot be read: .*Row #3: Expected 2 columns, got 1"),
        ("age,kind\n1,a\n2,b,c\n", "data.csv cannot be read: .*Row #3: Expected 2 columns, got 3"),
        ('age,kind,x\n1,"a\nb",1\n2,b\n', "Row #3: Expected 3 columns, got 2"),
        ("age,kind\n" + LONG + "1,2,3\n", "Row #300002: Expected 2 columns, got 3"),
        ("age,kind\n1,a\n2,b\nthree,c\n", "data.csv cannot be read: In 'age': Row #4: .*invalid value 'three'"),
        ("id,kind,age\nx,a,1\nx,b,1\nx,a,two\n", "In 'age': Row #4: .*invalid value 'two'"),
        ("age,kind\n" + LONG + "three,c\n", "In 'age': Row #300002: .*invalid value 'three'"),
        ("age,kind\n" + LONG + "3,\n", "row 300002 of data.csv: 'kind' is missing"),
        ("age,kind\n1,a\n2,\n", "row 3 of data.csv: 'kind' is missing"),
        ("age,kind\n1,a\ninf,b\n", "row 3 of data.csv: 'age' is infinite or too large"),
        ("age,kind\n1,a\n1e39,b\n", "row 3 of data.csv: 'age' is infinite or too large"),
        (b"town,kind\nUlm,a\nZ\xfcrich,b\n", "In 'town': Row #3: .*invalid UTF8"),
        ("town,kind\n" + "".join(f"t{i},a\n" for i in range(1001)), "column 'town' has more than 1000 .*drop_columns"),
        (
            "age,kind\n" + "".join(f"1,k{i}\n" for i in range(1001)),
            "'kind' has more than 1000 .*another label_column .a regression",
        ),
        ("age;kind\n1;a\n2;b\n", "data.csv cannot be read: its columns are separated by ';', where ',' is needed"),
        ("age;kind\r\n1,5;a\r\n2;b\r\n", "its columns are separated by ';'"),
        ("age\tkind\n1\ta\n2\tb\n", r"its columns are separated by '\\t'"),
        ("age,kind\n1,0.5\n2,1\n", "has the value 0.5 .a regression"),
        (f"age,kind\n1,{'x' * 140_000}\n2\n", "Row #3: Expected 2 columns, got 1"),
    ],
)
def test_a_csv_that_cannot_be_used_is_refused_with_its_row(file, text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        scan(open_source(file("data.csv", text), LABELLED, tmp_path))


def test_files_of_a_folder_that_do_not_fit_are_named(file, tmp_path):
    folder = file("rows/a.csv", "age,kind\n1,a\n").parent
    file("rows/b.csv", "size,kind\n1,a\n")
    with pytest.raises(ValueError, match=r"b.csv cannot be read: .*'age' in include_columns does not exist"):
        scan(open_source(folder, LABELLED, tmp_path))
    file("rows/c.parquet", "")
    with pytest.raises(ValueError, match=r"source rows has .csv, .parquet: it must be"):
        open_source(folder, LABELLED, tmp_path)
    file("rows/more/d.csv", "age,kind\n1,a\n")
    with pytest.raises(ValueError, match=r"source rows has .csv, .parquet, folders: it must be"):
        open_source(folder, LABELLED, tmp_path)


def parquet(file, name, **columns):
    path = file(name, "")
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet(file):
    path = parquet(
        file,
        "data.parquet",
        kind=pa.array([1.0, 2.0]),
        age=pa.array([1, None], pa.int16()),
        ratio=pa.array([float("nan"), 0.5]),
        ok=pa.array([True, False]),
        town=pa.array(["Ulm", None]).dictionary_encode(),
        code=pa.array(["7", "08"]),
        big=pa.array([2**40 + 1, 2**53 + 1]),
        price=pa.array([Decimal("1.5"), None]),
        nothing=pa.nulls(2),
    )
    columns, rows = rows_of(path)
    assert columns == (
        *(number(name) for name in ("age", "ratio")),
        *(category(name) for name in ("ok", "town", "code")),
        *(number(name) for name in ("big", "price", "nothing")),
    )
    assert np.isnan(rows["ratio"][0])
    assert rows | {"ratio": 0} == {
        "kind": ["1", "2"],
        "age": [1, None],
        "ratio": 0,
        "ok": ["true", "false"],
        "town": ["Ulm", None],
        "code": ["7", "08"],
        "big": [2**40, 2**53],
        "price": [1.5, None],
        "nothing": [None, None],
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"kind": ["a"], "words": [["x"]]}, "data.parquet cannot be read: column 'words' cannot be read: .*list"),
        ({"kind": ["a", None], "age": [1, 2]}, "row 2 of data.parquet: 'kind' is missing"),
        ({"kind": [1.0, float("nan")], "age": [1, 2]}, "row 2 of data.parquet: 'kind' is missing"),
        ({"kind": ["a", "b"], "ratio": [1.0, float("inf")]}, "row 2 of data.parquet: 'ratio' is infinite"),
    ],
)
def test_a_parquet_file_that_cannot_be_used_is_refused(file, columns, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        scan(open_source(parquet(file, "data.parquet", **columns), LABELLED, tmp_path))


def test_parquet_files_that_do_not_fit_or_are_damaged_are_named(file, tmp_path):
    folder = parquet(file, "rows/a.parquet", kind=["a"], age=[1]).parent
    damaged = parquet(file, "rows/b.parquet", kind=["a"], age=["old"])
    with pytest.raises(ValueError, match=r"b\.parquet cannot be read: column 'age' cannot be read: .*'old'"):
        scan(open_source(folder, LABELLED, tmp_path))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"b\.parquet cannot be read"):
        scan(open_source(folder, LABELLED, tmp_path))
    parquet(file, "rows/b.parquet", kind=["a"], size=[1])
    with pytest.raises(ValueError, match=r"b\.parquet cannot be read: .*age"):
        scan(open_source(folder, LABELLED, tmp_path))


def test_a_file_without_an_ending_is_refused(file, tmp_path):
    with pytest.raises(ValueError, match="source download has no ending: it must be"):
        open_source(file("download", "x,kind\n1,a\n"), LABELLED, tmp_path)


def npz(file, **arrays):
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)
    return file("data.npz", data.getvalue())


def test_npz(file):
    path = npz(
        file,
        kind=np.array([3.0, np.nan], ">f8"),
        image=np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
        vector=np.array([[0.5, 1], [2, np.nan]]),
        mask=np.array([[True, False], [False, True]]),
        age=np.array([1, 2], ">i4"),
        town=np.array(["Ulm", "Bern"]),
    )
    columns, rows = rows_of(path)
    assert columns == (
        Column("image", "tensor", "uint8", (2, 2)),
        Column("vector", "tensor", "float32", (2,)),
        Column("mask", "tensor", "uint8", (2,)),
        number("age"),
        category("town"),
    )
    assert np.isnan(rows.pop("vector")[1][1])
    assert rows == {
        "kind": ["3", None],
        "image": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "mask": [[1, 0], [0, 1]],
        "age": [1, 2],
        "town": ["Ulm", "Bern"],
    }


def test_npz_is_read_in_parts(file, tmp_path):
    values = np.random.default_rng(0).normal(size=(3000, 100))
    path = npz(file, x=values, kind=np.arange(3000) % 2)
    source = open_source(path, LABELLED, tmp_path)
    batches = [batch for _, batch in source.batches()]
    assert len(batches) > 2
    read = np.concatenate([batch.column("x").flatten().to_numpy().reshape(-1, 100) for batch in batches])
    np.testing.assert_array_equal(read, values.astype(np.float32))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"kind": [1, 2], "x": [1, 2, 3]},
            r"array 'x' is int64 \[3\]: it must be .*as many as the labels 'kind' \[2\]",
        ),
        ({"kind": [[0, 1]], "x": [1]}, r"array 'kind' is int64 \[1, 2\]"),
        ({"kind": [1], "x": np.array([{}], object)}, "data.npz cannot be read: .*(Python objects|allow_pickle)"),
        ({"kind": [1], "x": np.array([1j])}, r"array 'x' is complex128 \[1\]: it must be numbers or 1-D texts"),
        ({"kind": [1, 2], "x": 3}, r"array 'x' is int64 \[\]"),
        (
            {"kind": [1], "x": np.array([["a"]])},
            r"data.npz: array 'x' is <U1 \[1, 1\]: it must be numbers or 1-D texts",
        ),
        ({"x": [1]}, r"no column 'kind' in data.npz; it has \['x'\]"),
    ],
)
def test_an_npz_that_cannot_be_used_is_refused(file, arrays, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        open_source(npz(file, **arrays), LABELLED, tmp_path)


def test_a_damaged_npz_is_refused(file, tmp_path):
    path = npz(file, kind=np.arange(1000), x=np.random.default_rng(0).normal(size=1000))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"data\.npz cannot be read"):
        scan(open_source(path, LABELLED, tmp_path))
    path.write_bytes(data[:100])
    with pytest.raises(ValueError, match=r"data\.npz cannot be read"):
        open_source(path, LABELLED, tmp_path)


def image(file, name, mode="L", size=(4, 2), colour=None, **options):
    data = io.BytesIO()
    Image.new(mode, size, colour or 0).save(data, "PNG", **options)
    return file(name, data.getvalue())


def test_grey_images_have_the_size_of_the_first(file):
    image(file, "photos/dog/1.png", size=(8, 8), colour=9)
    folder = image(file, "photos/cat/1.png", colour=7).parents[1]
    file("photos/cat/.DS_Store", "x")
    file("photos/readme.txt", "x")
    assert rows_of(folder) == (
        (Column("image", "tensor", "uint8", (2, 4, 1)),),
        {"kind": ["cat", "dog"], "image": [[7] * 8, [9] * 8]},
    )


def test_images_come_in_an_order_that_mixes_the_classes_and_depends_on_the_seed_alone(file):
    for label in "abc":
        for number in range(30):
            folder = image(file, f"photos/{label}/{number}.png").parents[1]
    orders = ["".join(rows_of(folder, Options("kind", seed=seed))[1]["kind"]) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert "a" * 10 not in orders[0]


def test_all_images_become_as_the_first_one_or_have_the_size_that_is_given(file):
    image(file, "photos/cat/1.png", "RGB", colour=(1, 2, 3))
    folder = image(file, "photos/dog/1.png", size=(8, 8), colour=7).parents[1]
    assert rows_of(folder, Options("kind", image_size=(1, 1))) == (
        (Column("image", "tensor", "uint8", (1, 1, 3)),),
        {"kind": ["cat", "dog"], "image": [[1, 2, 3], [7, 7, 7]]},
    )
    assert rows_of(folder)[0][0].shape == (2, 4, 3)


def test_an_image_is_turned_as_its_camera_says(file):
    turned = Image.Exif()
    turned[0x0112] = 6
    folder = image(file, "photos/cat/1.png", size=(4, 2), exif=turned).parents[1]
    assert rows_of(folder)[0] == (Column("image", "tensor", "uint8", (4, 2, 1)),)


def test_images_that_cannot_be_used_are_named(file, tmp_path):
    good = image(file, "photos/cat/1.png", size=(64, 64))
    folder = good.parents[1]
    with pytest.raises(ValueError, match=r"label_column 'image'.* no column beside these in .*; it has \['image'\]"):
        open_source(folder, Options("image"), tmp_path)
    bad = file("photos/dog/2.png", "no image")
    with pytest.raises(ValueError, match=r"image dog/2.png cannot be read"):
        scan(open_source(folder, LABELLED, tmp_path))
    bad.write_bytes(good.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"image dog/2.png cannot be read"):
        scan(open_source(folder, LABELLED, tmp_path))
    image(file, "photos/dog/2.png", "I;16")
    with pytest.raises(ValueError, match=r"image dog/2.png cannot be read: it has more than 8 bits"):
        scan(open_source(folder, LABELLED, tmp_path))


@pytest.mark.parametrize("name", ["data.xls", "folder/notes.txt"])
def test_what_is_no_data_is_refused_with_what_is_allowed(file, name, tmp_path):
    path = file(name, "x")
    with pytest.raises(ValueError, match=r"\.csv|CSV"):
        open_source(path if name == "data.xls" else path.parent, LABELLED, tmp_path)


def test_digits():
    columns, rows = rows_of(None)
    assert columns == (Column("image", "tensor", "uint8", (8, 8, 1)),)
    assert (len(rows["kind"]), rows["kind"][:3], max(map(max, rows["image"]))) == (1797, ["0", "1", "2"], 16)


def test_a_scan_has_the_vocabularies_and_the_class_counts(file, tmp_path):
    scanned = scan(open_source(file("data.csv", "town,kind\nUlm,b\nBern,a\n,b\nUlm,a\n"), LABELLED, tmp_path))
    assert scanned == (
        (Column("town", "category", "int32", vocabulary=("Bern", "Ulm")),),
        Label("kind", ("a", "b")),
        (2, 2),
    )
