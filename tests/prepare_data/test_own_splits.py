"""Splits by group, by time, by file, and like another dataset."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.preparation_options import parse_options
from kfp_distributed.storage.dataset import read_batches

pytestmark = pytest.mark.takes(5)

SPLITS = ("train", "validation", "test")


def rows_file(file, name="data.csv", rows=1000, groups=60, shift=0):
    generator = np.random.default_rng(rows)
    lines = [
        f"{i},g{generator.integers(groups)},{2000 + i // 365:04}-01-01,{'ab'[(i + shift) % 2]}" for i in range(rows)
    ]
    return file(name, "x,group,day,label\n" + "\n".join(lines) + "\n")


def numbers_of(tmp_path, manifests, column=0, name="out"):
    """The first input of the rows of each split."""
    return {
        split: np.concatenate([inputs[:, column] for inputs, _ in read_batches(tmp_path / name / split, manifest)])
        for split, manifest in manifests.items()
        if manifest.rows
    }


def test_no_group_is_in_two_splits(file, run, tmp_path):
    source = rows_file(file)
    groups = np.array([line.split(",")[1] for line in source.read_text().splitlines()[1:]])
    splits = {}
    for seed in (0, 1):
        manifests = run(source, f"out{seed}", group_column="group", drop_columns=("day",), seed=seed)
        assert [column.name for column in manifests["train"].columns] == ["x"]
        numbers = numbers_of(tmp_path, manifests, name=f"out{seed}")
        splits[seed] = {split: {*groups[rows.astype(int)]} for split, rows in numbers.items()}
        assert sum(map(len, splits[seed].values())) == len({*groups})
        assert sum(map(len, numbers.values())) == 1000
        for split in ("validation", "test"):
            assert 80 <= manifests[split].rows <= 120
    assert splits[0] != splits[1]


def test_the_newest_rows_are_the_test(file, run, tmp_path):
    lines = [f"{i},{(i * 7919) % 1000 - 500},{'ab'[i % 2]}" for i in range(1000)]
    manifests = run(file("data.csv", "x,time,label\n" + "\n".join(lines) + "\n"), time_column="time")
    times = {split: (rows * 7919) % 1000 - 500 for split, rows in numbers_of(tmp_path, manifests).items()}
    assert (times["train"].max(), times["validation"].min(), times["validation"].max(), times["test"].min()) == (
        299,
        300,
        399,
        400,
    )


def test_rows_of_one_time_are_in_one_split(file, run, tmp_path):
    """365 rows of each of 2000 and 2001, and 270 of 2002."""
    options = {"time_column": "day", "drop_columns": ("group",)}
    with pytest.raises(ValueError, match="time_column 'day': the validation split gets no row, because too many"):
        run(rows_file(file), **options)
    manifests = run(rows_file(file), **options, validation_fraction=0.3)
    assert {split: (rows.min(), rows.max()) for split, rows in numbers_of(tmp_path, manifests).items()} == {
        "train": (0, 364),
        "validation": (365, 729),
        "test": (730, 999),
    }


def test_a_row_without_a_group_or_time_is_refused(file, run):
    with pytest.raises(ValueError, match=r"row 3 of data.csv: 'g' is missing, and it is the group_column"):
        run(file("data.csv", "x,g,label\n1,a,u\n2,,v\n"), group_column="g")
    with pytest.raises(ValueError, match=r"row 3 of data.csv: 't' is 'soon', which is no date"):
        run(file("data.csv", "x,t,label\n1,2024-01-01,u\n2,soon,v\n"), time_column="t")


def test_too_few_groups_are_refused(file, run):
    text = "x,g,label\n" + "1,a,u\n2,b,v\n" * 9
    with pytest.raises(ValueError, match="group_column 'g' has 2 different values, where 3 splits need one each"):
        run(file("data.csv", text), group_column="g")


def test_splits_of_separate_files(file, run, tmp_path):
    sources = {"test": str(rows_file(file, "test.csv", 50))}
    manifests = run(rows_file(file), sources=sources, drop_columns=("group", "day"), validation_fraction=0.2)
    assert [manifests[split].rows for split in SPLITS] == [800, 200, 50]
    assert sorted(numbers_of(tmp_path, manifests)["test"]) == list(range(50))
    sources["validation"] = str(rows_file(file, "validation.csv", 70))
    manifests = run(rows_file(file), sources=sources, drop_columns=("group", "day"))
    assert [manifests[split].rows for split in SPLITS] == [1000, 70, 50]
    assert [manifests[split].class_counts for split in SPLITS] == [(500, 500), (35, 35), (25, 25)]


def test_the_file_of_a_split_has_the_columns_of_the_main_one(file, run):
    source = file("data.csv", "x,town,label\n" + "1.5,Ulm,a\n2,Bern,b\n" * 20)
    test = file("test.csv", "town,x,label\n7,1,a\nUlm,2,b\n")
    manifests = run(source, sources={"test": str(test)})
    assert manifests["test"].columns == manifests["train"].columns
    with pytest.raises(ValueError, match=r"there is no column 'x' in test.csv"):
        run(source, sources={"test": str(file("test.csv", "town,label\nUlm,a\n"))})


def test_new_rows_like_an_earlier_dataset(file, run, tmp_path, capsys):
    earlier = run(file("data.csv", "x,town,label\n" + "1,Ulm,a\n2,Bern,b\n,Ulm,c\n" * 20), "earlier")["train"]
    new = file("new.csv", "label,town,x,more\nb,Bern,7,1\na,Rom,,2\nb,Ulm,8,3\n")
    manifests = run(new, "new", like=earlier, validation_fraction=0, test_fraction=1, label_column="label")
    test = manifests["test"]
    assert (test.columns, test.label, test.like) == (earlier.columns, earlier.label, earlier.preparation)
    assert ([manifests[split].rows for split in SPLITS], test.class_counts) == ([0, 0, 3], (1, 2, 0))
    rows = pq.read_table(tmp_path / "new" / "test" / "part-00000.parquet").to_pylist()
    town = ("", *earlier.columns[1].vocabulary)
    assert sorted((row["label"], row["x"], town[row["town"]]) for row in rows) == [
        (0, earlier.columns[0].fill, ""),
        (1, 7, "Bern"),
        (1, 8, "Ulm"),
    ]
    log = capsys.readouterr().out
    assert "column 'town' has 1 value in no training row, such as 'Rom'" in log
    assert "task: classification, because the dataset in like has it" in log
    with pytest.raises(ValueError, match=r"row 2 of other.csv: 'label' is 'd', which is no class of the dataset in"):
        run(file("other.csv", "x,town,label\n1,Ulm,d\n"), like=earlier, test_fraction=1, validation_fraction=0)


def test_what_contradicts_like_is_refused(file, run):
    earlier = run("digits")["train"]
    parameters = {
        "label_column": "label",
        "validation_fraction": 0,
        "test_fraction": 1,
        "shards": 1,
        "seed": 0,
        "image_size": "",
        "drop_columns": [],
    }
    assert parse_options(**parameters, like=earlier).task == "classification"
    with pytest.raises(ValueError, match="task is 'regression', but the dataset in like decides it"):
        parse_options(**parameters, like=earlier, task="regression")
    parameters["drop_columns"] = ["name"]
    assert parse_options(**parameters, like=earlier).drop_columns == ("name",)
    parameters["drop_columns"] = ["name", "image"]
    with pytest.raises(ValueError, match="drop_columns has 'image', which is an input of the dataset in like"):
        parse_options(**parameters, like=earlier)
    with pytest.raises(ValueError, match=r"test_fraction 1: their sum must be below 1 .1 only with like."):
        parse_options(**parameters)


def test_more_than_a_thousand_classes(file, run):
    source = file("data.csv", "x,label\n" + "".join(f"{i},c{i % 2000}\n" for i in range(6000)))
    manifests = run(source)
    assert len(manifests["train"].label.classes) == 2000
    assert sum(sum(manifest.class_counts) for manifest in manifests.values()) == 6000


def test_files_of_splits_may_have_other_columns_beside_the_inputs(run, tmp_path):
    """A dropped column may be missing, an index may have another order, and columns of other types are not read."""
    rows = np.random.default_rng(0).permutation(200)
    table = pa.table({"Unnamed: 0": rows, "id": rows, "x": rows, "label": ["ab"[row % 2] for row in rows]})
    pq.write_table(table, tmp_path / "data.parquet")
    first = table.slice(0, 30).drop_columns("id").set_column(0, "Unnamed: 0", pa.array([*range(30)]))
    pq.write_table(first.append_column("more", pa.array([[1]] * 30)), tmp_path / "validation.parquet")
    source = tmp_path / "data.parquet"
    manifests = run(source, sources={"validation": str(tmp_path / "validation.parquet")}, drop_columns=("id",))
    assert [column.name for column in manifests["validation"].columns] == ["Unnamed: 0", "x"]
    assert manifests["validation"].rows == 30


@pytest.mark.parametrize("name", ["\0file", "\0split", "a\0b"])
def test_names_with_nul_are_refused(run, tmp_path, name):
    pq.write_table(pa.table({name: [1, 2], "label": ["a", "b"]}), tmp_path / "data.parquet")
    with pytest.raises(ValueError, match="has a NUL character in its name"):
        run(tmp_path / "data.parquet", validation_fraction=0, test_fraction=0)


def test_gaps_stay_where_the_dataset_in_like_had_none(file, run, capsys):
    like = run(file("data.csv", "x,y,label\n" + "1,,a\n2,4,b\n3,5,a\n4,6,b\n" * 20))["train"]
    capsys.readouterr()
    options = {"like": like, "validation_fraction": 0.0, "test_fraction": 1.0}
    run(file("new.csv", "x,y,label\n" + ",,a\n2,2,b\n" * 20), "new", **options)
    log = capsys.readouterr().out
    assert "column 'x' has no value in 20 of 40 rows: they become NaN" in log
    assert "column 'y' has no value in 20 of 40 rows: they become the median" in log


def test_a_group_in_two_files_is_refused(file, run):
    text = "x,g,label\n" + "1,a,u\n2,b,v\n3,c,u\n4,d,v\n" * 9
    other = {"validation": str(file("validation.csv", "x,g,label\n5,d,u\n6,e,v\n"))}
    with pytest.raises(ValueError, match="group_column 'g': 1 of its values are in source and in validation_source"):
        run(file("data.csv", text), sources=other, group_column="g")
    other = {"validation": str(file("validation.csv", "x,g,label\n5,f,u\n6,e,v\n"))}
    assert run(file("data.csv", text), sources=other, group_column="g")["validation"].rows == 2


def test_a_class_without_a_training_row_is_named(file, run, capsys):
    text = "x,label\n" + "1,a\n2,b\n" * 20
    run(file("data.csv", text), sources={"test": str(file("test.csv", "x,label\n1,a\n2,c\n3,c\n"))})
    assert "label_column 'label' has 1 class in no training row, such as 'c'" in capsys.readouterr().out


def test_kept_columns_have_the_types_of_the_dataset_in_like(tmp_path, run):
    def write(name, kind, last=39):
        pq.write_table(pa.table({"a": pa.array([*range(39), last]).cast(kind)}), tmp_path / name)
        return tmp_path / name

    like = run(write("first.parquet", pa.int32()), "first", task="none", label_column="")["train"]
    run(write("second.parquet", pa.float64()), "second", like=like, label_column="", shards=1)
    assert pq.read_schema(tmp_path / "second" / "train" / "part-00000.parquet") == pa.schema({"a": pa.int32()})
    with pytest.raises(ValueError, match=r"row 40 of third\.parquet: 'a' is 39.5 .double., which does not fit"):
        run(write("third.parquet", pa.float64(), 39.5), "third", like=like, label_column="")
    like = run(write("fourth.parquet", pa.decimal128(19)), "fourth", task="none", label_column="")["train"]
    with pytest.raises(ValueError, match=r"column 'a' is of type int64, but the dataset in like keeps it as decimal"):
        run(write("fifth.parquet", pa.int64()), "fifth", like=like, label_column="")


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_split_without_a_class_of_the_training_rows_is_refused(file, run, split):
    source = file("data.csv", "x,label\n" + "1,<=50K\n2,>50K\n" * 20)
    other = file("other.csv", "x,label\n" + "1, <=50K.\n2, >50K.\n" * 5)
    with pytest.raises(ValueError, match=f"no row of the {split} split has a class of the training rows") as error:
        run(source, sources={split: str(other)})
    assert "has '<=50K.', '>50K.' there, and '<=50K', '>50K' in the training rows. Write the classes in one way" in (
        str(error.value)
    )


def test_a_test_of_later_classes_is_refused(file, run):
    rows = "".join(f"{i},{2000 + i},{'ab'[i % 2] if i < 80 else 'cd'[i % 2]}\n" for i in range(100))
    with pytest.raises(ValueError, match=r"no row of the test split has a class of .*has 'c', 'd' there, and 'a', 'b'"):
        run(file("data.csv", "x,year,label\n" + rows), time_column="year", test_fraction=0.2, validation_fraction=0)


def test_a_category_of_which_no_value_of_a_split_was_trained_is_prominent(file, run, capsys):
    text = "x,town,zone,label\n" + "1,Ulm,n,a\n2,Bern,s,b\n" * 20
    other = "x,town,zone,label\n" + "1,ULM,n,a\n2,BERN,w,b\n,,n,a\n"
    run(file("data.csv", text), sources={"test": str(file("test.csv", other))}, validation_fraction=0)
    lines = [line for line in capsys.readouterr().out.splitlines() if "in no training row" in line]
    assert [line.split(". ")[1][:39] for line in lines] == [
        "No value of the test rows is in a train",
        "Validation and test rows with them (1) ",
    ]


def test_a_category_of_which_no_value_is_in_the_dataset_of_like_is_prominent(file, run, capsys):
    like = run(file("data.csv", "x,town,label\n" + "1,Ulm,a\n2,Bern,b\n" * 20), "first")["train"]
    new = file("new.csv", "x,town,label\n1,ULM,a\n2,BERN,b\n")
    run(new, "new", like=like, validation_fraction=0, test_fraction=1)
    assert "No value of the new rows is in a training row" in capsys.readouterr().out


@pytest.mark.parametrize("split", ["validation", "test"])
def test_rows_of_a_source_that_are_older_than_training_rows_are_named(file, run, capsys, split):
    rows = [f"{i},2024-01-{i % 28 + 1:02},{'uv'[i % 2]}\n" for i in range(56)]
    source = file("data.csv", "x,day,label\n" + "".join(rows))
    fraction = {"validation": "test_fraction", "test": "validation_fraction"}[split]
    line = f"time_column 'day': the {split} rows begin at 2024-01-20 00:00:00+00:00, before the last training row, of"
    for day, is_named in (("2024-01-20", True), ("2024-02-01", False)):
        other = file("other.csv", f"x,day,label\n1,2024-03-01,u\n2,{day},v\n")
        run(source, day, sources={split: str(other)}, time_column="day", **{fraction: 0.1})
        assert (line in capsys.readouterr().out) == is_named


DAYS = [datetime.datetime(2024, 1, 1 + row % 28, tzinfo=datetime.UTC) for row in range(40)]
WRONG_DATE = "'d' is '2/5/2019', which is no date of the form 2024-01-31 or .*as the training rows have: correct it"
WRONG_VALUES = {
    "csv": [
        (
            {"d": "2/5/2019"},
            WRONG_DATE,
        ),
        ({"x": "soon"}, "'x' is 'soon', which is no number, but the column has numbers in the training data: correct"),
        ({"x": "1e300"}, "'x' is infinite or too large for a 32-bit number: correct it, or leave it empty"),
    ],
    "jsonl": [
        (
            {"d": "2/5/2019"},
            WRONG_DATE,
        ),
        (
            {"d": 7},
            "column 'd' has values of type double, where dates and times .* are needed: write dates",
        ),
        ({"x": "soon"}, "column 'x' has 'soon', but numbers in the training rows: write numbers"),
    ],
    "parquet": [
        (
            {"d": "2/5/2019"},
            WRONG_DATE,
        ),
        ({"d": 7}, "column 'd' has values of type int64, where dates and times .* are needed: write dates"),
        ({"x": "soon"}, "column 'x' has 'soon', but numbers in the training rows: write numbers"),
        ({"k": ["a"]}, "which does not fit the type of the column, list<.*: write this type in all files"),
        ({"k": 7}, "column 'k' has values of type int64, not list<.*Write this type in all files"),
    ],
}


@pytest.mark.parametrize("is_like", [True, False])
@pytest.mark.parametrize(
    ("ending", "wrong", "message"), [(ending, *case) for ending, cases in WRONG_VALUES.items() for case in cases]
)
def test_errors_about_rows_whose_kinds_are_given_name_no_parameter(file, run, is_like, ending, wrong, message):
    """The dataset in like, or the main source, decides the kinds: columns and drop_columns are refused there."""
    table = pa.table({"d": DAYS, "x": [i * 0.5 for i in range(40)], "k": [[i] for i in range(40)]})
    table = table.append_column("label", pa.array(["a", "b"] * 20))
    source = file("data.parquet", "")
    pq.write_table(table, source)
    other = file(f"other.{ending}", "d,x,k,label\n")
    row = {"d": "2024-01-05", "x": 1.5, "k": [1], "label": "a"} | wrong
    if ending == "csv":
        other.write_text("d,x,k,label\n" + "".join(f"{row['d']},{row['x']},[1],{row['label']}\n" for _ in range(3)))
    elif ending == "jsonl":
        other.write_text(3 * f"{json.dumps(row)}\n")
    else:
        pq.write_table(pa.Table.from_pylist([row]), other)
    kinds = {"columns": {"k": "list<int>"}}
    if is_like:
        like = run(source, **kinds)["train"]
        source, options = other, {"like": like, "validation_fraction": 0, "test_fraction": 1}
    else:
        options = {"sources": {"test": str(other)}, **kinds}
    with pytest.raises(ValueError, match=message) as error:
        run(source, "new", **options)
    assert "columns=" not in str(error.value)
    assert "drop_columns" not in str(error.value)


def test_a_label_that_is_no_class_is_shown_with_the_first_classes(file, run):
    text = "x,label\n" + "".join(f"{row},c{row % 6}\n" for row in range(60))
    like = run(file("data.csv", text), "first")["train"]
    classes = r"\('c0', 'c1', 'c2', 'c3', …\)"
    with pytest.raises(
        ValueError, match=rf"'label' is 'false', which is no class of the .* {classes}: write it as one"
    ):
        run(file("new.csv", "x,label\n1,false\n"), "new", like=like, validation_fraction=0, test_fraction=1)
