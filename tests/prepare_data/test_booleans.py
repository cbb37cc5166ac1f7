"""Booleans of all formats are the classes and categories "false" and "true"."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.storage.dataset import read_batches

pytestmark = pytest.mark.takes(4)

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


def test_the_files_of_splits_may_spell_booleans_differently(file, run, parquet, capsys):
    manifests = run(file("data.csv", csv_text()), sources={"test": str(parquet)})
    assert names_of(manifests["test"]) == (("false", "true"), ("false", "true"))
    assert manifests["test"].class_counts == (40, 20)
    assert "has the texts 'True' and 'true', which become the class 'true'" in capsys.readouterr().out


def test_a_column_with_other_texts_keeps_its_spelling(file, run):
    manifest = run(file("data.csv", csv_text("python", "60,maybe,maybe\n" * 10)))["train"]
    assert names_of(manifest) == (("False", "True", "maybe"), ("False", "True", "maybe"))


def test_a_constant_column_of_two_spellings_is_named(file, run, capsys):
    run(file("data.csv", "x,label\n" + "True,a\ntrue,b\n" * 20))
    assert "column 'x' has the same value in all 40 rows" in capsys.readouterr().out
