"""Folders with splits of their own. They are written with pyarrow, in the documented form of `datasets`."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from prepare_data.test_huggingface import save_to_disk
from prepare_data.test_own_splits import SPLITS, numbers_of

from kfp_distributed.components.prepare_data.sources.folder_splits import splits_of


def rows(begin, count=20):
    return {"age": [*range(begin, begin + count)], "kind": [i % 2 for i in range(count)]}


@pytest.fixture
def parquet(tmp_path):
    """Write Parquet files of 20 rows each: parquet("repo/data", "train-0.parquet") -> folder. The ages are 0, 1, ..."""

    def write(folder, *names):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names):
            pq.write_table(pa.table(rows(20 * number)), tmp_path / folder / name)
        return tmp_path / folder

    return write


@pytest.fixture
def dictionary(tmp_path):
    """Write a `DatasetDict` with splits of 20 rows each."""

    def write(*names):
        folder = tmp_path / "saved"
        for number, name in enumerate(names):
            save_to_disk(folder / name, rows(20 * number))
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": names}))
        return folder

    return write


def ages(tmp_path, manifests):
    return {split: sorted(numbers.tolist()) for split, numbers in numbers_of(tmp_path, manifests).items()}


THREE = dict(zip(SPLITS, ([*range(20)], [*range(20, 40)], [*range(40, 60)]), strict=True))


def test_the_splits_of_a_saved_dictionary(dictionary, run, tmp_path, capsys):
    folder = dictionary("train", "validation", "test")
    manifests = run(folder, label_column="kind", shards=1)
    assert ages(tmp_path, manifests) == THREE
    assert manifests["train"].label.classes == ("cat", "dog")
    out = capsys.readouterr().out
    assert "validation: 1 file of the source, by their names: 'validation/data-00000-of-00001.arrow'\n" in out
    assert "left out" not in out


def test_a_dictionary_of_one_split_is_divided(dictionary, run):
    manifests = run(dictionary("train"), label_column="kind", shards=1)
    assert [manifests[split].rows for split in SPLITS] == [16, 2, 2]


def test_an_absent_split_is_drawn_from_the_training_rows(dictionary, run, tmp_path):
    manifests = run(dictionary("train", "test"), label_column="kind", shards=1, validation_fraction=0.2)
    assert [manifests[split].rows for split in SPLITS] == [16, 4, 20]
    assert ages(tmp_path, manifests)["test"] == [*range(20, 40)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("train", "unsupervised"), "'unsupervised' is no split that is known: give the files of each split"),
        (("train", "test_a", "test_b"), "'test_a', 'test_b' are 2 for one split"),
        (("validation", "test"), "has no split 'train', but"),
    ],
)
def test_unknown_splits_of_a_dictionary_are_refused(dictionary, run, names, message):
    with pytest.raises(ValueError, match=message):
        run(dictionary(*names), label_column="kind")


def test_a_dictionary_without_the_folder_of_a_split_is_refused(dictionary, run):
    folder = dictionary("train", "test")
    (folder / "test/state.json").unlink()
    with pytest.raises(ValueError, match=r"dataset_dict\.json lists the split 'test', but there is no folder 'test'"):
        run(folder, label_column="kind")


NAMES = ("train-00000-of-00001.parquet", "validation-00000-of-00001.parquet", "test-00000-of-00001.parquet")


@pytest.mark.parametrize("below", ["", "/data", "/plain_text"])
def test_the_splits_of_a_repository(parquet, run, file, tmp_path, capsys, below):
    parquet(f"repository{below}", *NAMES)
    for name in ("README.md", ".gitattributes", "dataset_infos.json"):
        file(f"repository/{name}", "{}")
    manifests = run(tmp_path / "repository", label_column="kind", shards=1)
    assert ages(tmp_path, manifests) == THREE
    prefix = below[1:] + "/" * bool(below)
    out = capsys.readouterr().out
    assert f"train: 1 file of the source, by their names: '{prefix}train-00000-of-00001.parquet'\n" in out
    assert "left out 2 descriptions of the data: 'README.md', 'dataset_infos.json'\n" in out


def test_a_repository_of_training_rows_is_one_table(parquet, run):
    parquet("repository/data", "train-00000-of-00002.parquet", "train-00001-of-00002.parquet")
    manifests = run(parquet("repository"), label_column="kind", shards=1)
    assert sum(manifests[split].rows for split in SPLITS) == 40


def test_the_source_of_a_split_comes_before_the_files_of_the_folder(parquet, run, tmp_path, capsys):
    folder = parquet("repository/data", *NAMES).parent
    other = parquet("other", "a.parquet", "b.parquet")
    manifests = run(folder, sources={"test": str(other)}, label_column="kind", shards=1)
    assert ages(tmp_path, manifests) == {**THREE, "test": [*range(40)]}
    assert "test: test_source, and not 1 file of the source: 'data/test-" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"test_source repository has splits of its own \(train, validation, test\)"):
        run(other, "refused", sources={"test": str(folder)}, label_column="kind")


@pytest.mark.parametrize("names", [("train.csv", "dev.csv", "test.csv"), ("Train_1.csv", "VAL_1.csv", "test-1.csv.gz")])
def test_files_by_their_names(file, names):
    for name in names:
        folder = file(f"rows/{name}", "x,label\n1,a\n").parent
    splits = splits_of(folder)
    assert [(split, [file.name for file in listing.files]) for split, listing in splits.items()] == [
        ("", [names[0]]),
        ("validation", [names[1]]),
        ("test", [names[2]]),
    ]


@pytest.mark.parametrize(
    "names",
    [
        ("train-1.csv", "train-2.csv"),
        ("test-1.csv", "validation-2.csv"),
        ("trains.csv", "tests.csv"),
        ("train.csv", "bus.csv"),
        ("train-1.png", "test-1.png"),
    ],
)
def test_other_files_are_one_table(file, names):
    for name in names:
        folder = file(f"rows/{name}", "x,label\n1,a\n").parent
    assert [*splits_of(folder)] == [""]
    assert [file.name for file in splits_of(folder)[""].files] == sorted(names)


@pytest.mark.parametrize("other", ["unsupervised-00000-of-00001.parquet", "notes.txt", "folder/x.parquet"])
def test_files_of_no_split_are_refused(parquet, run, file, other):
    folder = parquet("rows", *NAMES)
    file(f"rows/{other}", "x")
    name = other.removesuffix("x.parquet")
    with pytest.raises(ValueError, match=f"and '{name}', whose split the name does not tell: begin it with 'train-'"):
        run(folder, label_column="kind")


def write_images(folder, names):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 3), number).save(folder / name)


def test_folders_of_splits_with_folders_of_classes(tmp_path, run, capsys):
    folder = tmp_path / "pets"
    classes = ["cat", "dog"]
    write_images(folder, [f"train/{kind}/{number}.png" for kind in classes for number in range(6)])
    write_images(folder, [f"val/{kind}/{number}.png" for kind in classes for number in range(2)])
    write_images(folder, [f"test/{kind}/{number}.png" for kind in classes for number in range(3)])
    (folder / "README.md").write_text("pets")
    manifests = run(folder, shards=1)
    assert [manifests[split].rows for split in SPLITS] == [12, 4, 6]
    assert [manifests[split].class_counts for split in SPLITS] == [(6, 6), (2, 2), (3, 3)]
    assert manifests["train"].label.classes == ("cat", "dog")
    out = capsys.readouterr().out
    assert "test: 2 files of the source, by their names: 'test/cat/', 'test/dog/'\n" in out
    assert "left out 1 description of the data: 'README.md'\n" in out


def test_folders_of_splits_with_tables(parquet, run, tmp_path):
    parquet("repo/train", "a.parquet")
    pq.write_table(pa.table(rows(20)), parquet("repo/validation") / "a.parquet")
    pq.write_table(pa.table(rows(40)), parquet("repo/test") / "b.parquet")
    assert ages(tmp_path, run(tmp_path / "repo", label_column="kind", shards=1)) == THREE


def test_images_of_splits_without_classes_are_refused(tmp_path, run):
    """Their classes would be 'train' and 'test'."""
    write_images(tmp_path / "pets", [f"{split}/{number}.png" for split in ("train", "test") for number in range(6)])
    with pytest.raises(ValueError, match=r"source pets has \.png: it must be .* a folder of images for each class"):
        run(tmp_path / "pets")


def test_two_folders_of_one_split_are_refused(parquet, run, tmp_path):
    for name in ("train", "val", "dev"):
        parquet(f"repo/{name}", "a.parquet")
    with pytest.raises(ValueError, match=r"source repo: the folders 'dev', 'val' are 2 for one split: give the files"):
        run(tmp_path / "repo", label_column="kind")
