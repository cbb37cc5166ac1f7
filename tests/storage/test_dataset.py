"""The manifest of a dataset, the rows of each rank, and reading the shards."""

import dataclasses
import hashlib
import json
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.storage.dataset import (
    DATASET_MANIFEST,
    Column,
    DatasetManifest,
    Label,
    Shard,
    ShardPart,
    input_shape,
    mean_and_std,
    parts_of_rank,
    read_batches,
    whole_shard,
    width,
)
from kfp_distributed.storage.errors import ChecksumMismatch
from kfp_distributed.storage.shards import fetch_manifest, fetch_shards

AGE = Column("age", "number", "float32", mean=2.5, std=1.5)
TOWN = Column("town", "category", "int32", vocabulary=("Bern", "Ulm"))
IMAGE = Column("image", "tensor", "uint8", shape=(2, 2, 1))


def manifest_of(*rows, columns=(AGE, TOWN, IMAGE)):
    shards = tuple(Shard(f"train-{i}.parquet", n, 10, "0" * 64) for i, n in enumerate(rows))
    return DatasetManifest("train", columns, Label("kind", ("a", "b")), shards, (sum(rows), 0), 7, "data.csv")


@pytest.fixture
def dataset(tmp_path):
    """Two shards of 5 and 3 rows in row groups of 2, with a missing age and a missing town."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    table = pa.table(
        {
            "kind": pa.array([0, 1, 0, 1, 0, 1, 0, 1], pa.int32()),
            "age": pa.array([0, 1, None, 3, 4, 5, 6, 7], pa.float32()),
            "town": pa.array([0, 1, 2, 0, 1, 2, 0, 1], pa.int32()),
            "image": pa.FixedSizeListArray.from_arrays(pa.array(range(32), pa.uint8()), 4),
        }
    )
    shards = []
    for index, part in enumerate((table.slice(0, 5), table.slice(5))):
        file = folder / f"train-{index}.parquet"
        pq.write_table(part, file, row_group_size=2)
        data = file.read_bytes()
        shards.append(Shard(file.name, part.num_rows, len(data), hashlib.sha256(data).hexdigest()))
    manifest = dataclasses.replace(manifest_of(), shards=tuple(shards), class_counts=(4, 4))
    (folder / DATASET_MANIFEST).write_text(manifest.to_json())
    return folder, manifest


EXPECTED_X = np.array(
    [[i, i % 3, 4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3] if i != 2 else [np.nan, 2, 8, 9, 10, 11] for i in range(8)],
    np.float32,
)


def test_manifest_round_trip():
    manifest = manifest_of(3, 2)
    assert DatasetManifest.from_json(manifest.to_json()) == manifest


def test_manifests_without_classes_make_the_round_trip():
    review = Column("review", "kept", "string")
    number = manifest_of(3, 2, columns=(AGE, review))
    number = dataclasses.replace(number, label=Label("price", (), "regression", 2.5, 0.5), class_counts=())
    no_label = dataclasses.replace(number, label=Label("", task="none"))
    for manifest in (number, no_label):
        assert DatasetManifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (lambda: Label("", ("a", "b")), "'none' alone has no label"),
        (lambda: Label("price", task="none"), "'none' alone has no label"),
        (lambda: Label("price", (), "ranking"), "the tasks are classification, regression, none"),
        (lambda: Label("price", ("a", "b"), "regression"), "the task 'regression' has no classes"),
    ],
)
def test_a_label_that_does_not_fit_its_task_is_refused(label, message):
    with pytest.raises(ValueError, match=message):
        label()


def test_a_dataset_without_a_form_as_numbers_is_refused():
    review = Column("review", "kept", "string")
    with pytest.raises(ValueError, match="the columns 'review' are kept as they are"):
        width(manifest_of(3, columns=(AGE, review)))
    no_label = dataclasses.replace(manifest_of(3), label=Label("", task="none"), class_counts=())
    with pytest.raises(ValueError, match="the dataset has no label"):
        next(read_batches("folder", no_label))


def test_a_manifest_of_format_1_is_read():
    data = json.loads(manifest_of(3, 2).to_json())
    for name in ("shuffled", "preparation", "content", "source_fingerprint", "like"):
        del data[name]
    for name in ("task", "mean", "std"):
        del data["label"][name]
    for column in data["columns"]:
        del column["fill"], column["source_type"]
    assert DatasetManifest.from_json(json.dumps({**data, "format": "kfp-distributed-dataset-1"})) == manifest_of(3, 2)


SERIES = Column("series", "tensor", "float32", (2, 2), mean=(1.0, 2.0, 3.0, 4.0), std=(0.5, 1.0, 1.5, 2.0))
PHOTO = Column("photo", "tensor", "uint8", (1, 2, 3), mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0))
GREY = Column("grey", "tensor", "uint8", (1, 2), mean=7.0, std=8.0)


def test_mean_and_std_of_each_value_of_a_row():
    manifest = manifest_of(3, 2, columns=(AGE, TOWN, SERIES, PHOTO, GREY))
    assert DatasetManifest.from_json(manifest.to_json()) == manifest
    np.testing.assert_array_equal(
        mean_and_std(manifest),
        np.array(
            [
                [2.5, 0, 1, 2, 3, 4, 1, 2, 3, 1, 2, 3, 7, 7],
                [1.5, 1, 0.5, 1, 1.5, 2, 4, 5, 6, 4, 5, 6, 8, 8],
            ],
            np.float32,
        ),
    )


def manifest_text(change):
    data = json.loads(manifest_of(3, 2).to_json())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "dataset.json .*Expecting property name"),
        ("[]", "dataset.json "),
        ("{}", r"KeyError\('format'\)"),
        (manifest_text(lambda d: d.update(format="x")), "format is 'x', not kfp-distributed-dataset-1 or"),
        (manifest_text(lambda d: d.pop("label")), r"KeyError\('label'\)"),
        (manifest_text(lambda d: d.pop("seed")), "'seed'"),
        (manifest_text(lambda d: d.update(speed=1)), "'speed'"),
        (manifest_text(lambda d: d["columns"][0].update(kind="word")), "column 'age': kind 'word' .*'float32'"),
        (
            manifest_text(lambda d: d["columns"][2].update(shape=[])),
            r"column 'image': kind 'tensor' .*'uint8' .* \[\] ",
        ),
        (
            manifest_text(lambda d: d["columns"][0].update(mean=[1.0])),
            r"column 'age': mean has 1 numbers for the shape \[\]: allowed are one number\"",
        ),
        (
            manifest_text(lambda d: d["columns"][2].update(std=[1.0, 2.0])),
            r"column 'image': std has 2 numbers for the shape \[2, 2, 1\]: .* a list of 1, or a list of 4\"",
        ),
        (manifest_text(lambda d: d["shards"][0].update(path="../x")), "'../x' is not a file name"),
        (manifest_text(lambda d: d["shards"][0].update(rows=4)), r"class_counts \[5, 0\] .* 6, the number of rows"),
    ],
)
def test_invalid_manifest(text, message):
    with pytest.raises(ValueError, match=message):
        DatasetManifest.from_json(text)


def test_parts_of_three_ranks():
    manifest = manifest_of(5, 0, 3)
    first, _, last = manifest.shards
    assert [parts_of_rank(manifest, rank, 3) for rank in range(3)] == [
        (ShardPart(first, (2, 3), 0),),
        (ShardPart(first, (2, 3), 1),),
        (ShardPart(last, (3,), 0),),
    ]


def test_ranks_that_share_a_shard_take_turns():
    parts = [parts_of_rank(manifest_of(6, 2), rank, 4) for rank in range(4)]
    assert [[part.row_numbers().tolist() for part in of_rank] for of_rank in parts] == [
        [[0, 3]],
        [[1, 4]],
        [[2, 5]],
        [[0, 1]],
    ]
    (part,) = parts_of_rank(manifest_of(9), 1, 2)
    assert part.row_numbers().tolist() == [0, 2, 4, 6, 8]


@given(st.lists(st.integers(0, 20), max_size=6), st.integers(1, 9))
def test_each_row_belongs_to_one_rank_and_sizes_differ_by_at_most_one(rows, world):
    manifest = manifest_of(*rows)
    ranks = [parts_of_rank(manifest, rank, world) for rank in range(world)]
    rank_rows = [(part.shard.path, row) for parts in ranks for part in parts for row in part.row_numbers().tolist()]
    assert sorted(rank_rows) == [(shard.path, row) for shard in manifest.shards for row in range(shard.rows)]
    counts = [sum(part.rows for part in parts) for parts in ranks]
    assert max(counts) - min(counts) <= 1


@given(st.integers(1, 400), st.integers(1, 9))
def test_each_rank_has_its_share_of_each_piece_of_a_shard(rows, world):
    for rank in range(world):
        for part in parts_of_rank(manifest_of(rows), rank, world):
            before = np.searchsorted(part.row_numbers(), np.arange(rows + 1))
            share = np.arange(rows + 1) * part.rows / rows
            assert np.abs(before - share).max() <= 1.5


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 50), st.integers(0, 50))
def test_rows_are_dealt_in_the_order_of_their_positions(counts, start, stop):
    positions = sorted((Fraction(2 * row + 1, rows), rank) for rank, rows in enumerate(counts) for row in range(rows))
    shard = Shard("train.parquet", sum(counts), 10, "0" * 64)
    for index in range(len(counts)):
        expected = [number for number, (_, rank) in enumerate(positions) if rank == index]
        part = ShardPart(shard, tuple(counts), index)
        assert part.row_numbers().tolist() == expected
        assert part.row_numbers(start, stop).tolist() == expected[start:stop]


def test_a_part_of_a_long_shard_needs_no_memory_for_its_rows():
    """A shard of a billion rows has about 8 GB, of which a rank holds one batch."""
    shard = Shard("train.parquet", 10**9, 10, "0" * 64)
    assert whole_shard(shard).row_numbers(10**9 - 2, 10**9 + 5).tolist() == [10**9 - 2, 10**9 - 1]
    part = ShardPart(shard, (400_000_000, 600_000_000), 0)
    assert part.row_numbers(399_999_998, 400_000_003).tolist() == [999_999_996, 999_999_998]


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_rank_out_of_range(rank, world):
    with pytest.raises(ValueError, match=f"rank {rank} of {world}"):
        parts_of_rank(manifest_of(3), rank, world)


@pytest.mark.parametrize(
    ("columns", "size", "shape"),
    [((AGE, TOWN, IMAGE), 6, (6,)), ((IMAGE,), 4, (2, 2, 1)), ((AGE,), 1, (1,)), ((IMAGE, IMAGE), 8, (8,))],
)
def test_width_and_input_shape(columns, size, shape):
    manifest = manifest_of(1, columns=columns)
    assert (width(manifest), input_shape(manifest)) == (size, shape)


@pytest.mark.parametrize("batch_rows", [1, 3, 4096])
def test_read_batches_yields_all_rows_in_order(dataset, batch_rows):
    batches = list(read_batches(*dataset, batch_rows=batch_rows))
    inputs, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    np.testing.assert_array_equal(inputs, EXPECTED_X)
    np.testing.assert_array_equal(labels, [0, 1, 0, 1, 0, 1, 0, 1])
    assert (inputs.dtype, labels.dtype) == (np.float32, np.int32)
    assert max(len(labels) for _, labels in batches) <= batch_rows


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8, 11])
def test_ranks_read_each_row_once(dataset, world):
    folder, manifest = dataset
    parts = [parts_of_rank(manifest, rank, world) for rank in range(world)]
    ages = [inputs[:, 0] for part in parts for inputs, _ in read_batches(folder, manifest, part, batch_rows=2)]
    np.testing.assert_array_equal(np.sort(np.concatenate(ages)), np.sort(EXPECTED_X[:, 0]))


def test_fetch_shards_downloads_the_manifest_and_the_requested_shards(dataset, tmp_path):
    folder, manifest = dataset
    assert fetch_manifest(str(folder)) == manifest
    assert fetch_shards(str(folder), tmp_path / "all") == manifest
    fetch_shards(str(folder), tmp_path / "last", parts_of_rank(manifest, 3, 4))
    names = {name: sorted(file.name for file in (tmp_path / name).iterdir()) for name in ("all", "last")}
    assert names == {
        "all": [DATASET_MANIFEST, "train-0.parquet", "train-1.parquet"],
        "last": [DATASET_MANIFEST, "train-1.parquet"],
    }


def test_damaged_shard_is_named_and_not_kept(dataset, tmp_path):
    folder, _ = dataset
    shard = folder / "train-1.parquet"
    data = bytearray(shard.read_bytes())
    data[10] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ChecksumMismatch, match=r"train-1\.parquet: .*SHA-256 "):
        fetch_shards(str(folder), tmp_path / "here")
    assert [file.name for file in (tmp_path / "here").iterdir()] in (["train-0.parquet"], [])
