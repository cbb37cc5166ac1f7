import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, parts_of_rank
from kfp_distributed.storage.files import sha256_of
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import (
    Epoch,
    describe_batch,
    fills,
    number_of_epochs,
    plan_epoch,
    scaling,
    steps_of_epoch,
)
from kfp_distributed.trainers.runtime.data_loading.rank_part import keep_rows
from kfp_distributed.trainers.runtime.data_loading.target import weights_of_classes


@pytest.mark.parametrize(
    ("rows", "batch_size", "ranks", "devices", "expected"),
    [
        (1300, 32, 1, 1, Epoch(41, 32, 1312)),
        (1300, 32, 3, 1, Epoch(44, 10, 440)),
        (1300, 32, 2, 2, Epoch(41, 8, 656)),
        (10, 32, 1, 1, Epoch(1, 10, 10)),
        (33, 32, 1, 1, Epoch(2, 17, 34)),
        (2, 32, 3, 1, Epoch(1, 1, 1)),
        (5, 3, 3, 1, Epoch(2, 1, 2)),
    ],
)
def test_plan_epoch(rows, batch_size, ranks, devices, expected):
    assert plan_epoch(rows, batch_size, ranks, devices) == expected


@given(st.integers(1, 10**7), st.integers(1, 10**5), st.integers(1, 50), st.integers(1, 8))
def test_all_ranks_have_the_same_number_of_steps(rows, batch_size, ranks, devices):
    assume(batch_size >= ranks * devices)
    plan = plan_epoch(rows, batch_size, ranks, devices)
    largest = -(-rows // ranks)
    assert plan.steps * plan.batch * devices == plan.records >= largest
    assert plan.records - largest < plan.steps * devices, "fewer than one filler for each device and step"
    assert plan.batch * ranks * devices <= batch_size


@given(st.integers(1, 500), st.integers(1, 600), st.integers(1, 9))
def test_a_step_has_exactly_the_rows_of_the_batch_for_any_number_of_ranks(rows, batch_size, ranks):
    assume(batch_size >= ranks)
    of_ranks = [steps_of_epoch(rows, batch_size, ranks, rank) for rank in range(ranks)]
    parts = [range(rows * rank // ranks, rows * (rank + 1) // ranks) for rank in range(ranks)]
    batches = [[part[step.part] for step in steps] for part, steps in zip(parts, of_ranks, strict=True)]
    assert sorted(row for part in batches for batch in part for row in batch) == list(range(rows))
    sizes = [[len(batch) for batch in step] for step in zip(*batches, strict=True)]
    together = [sum(of_step) for of_step in sizes]
    assert together == [batch_size] * (rows // batch_size) + [rows % batch_size] * (rows % batch_size > 0)
    assert all([step.rows for step in steps] == together for steps in of_ranks)
    assert all(max(of_step) - min(of_step) <= 1 for of_step in sizes)


@pytest.mark.parametrize(("batch_size", "ranks", "devices"), [(4, 8, 1), (4, 2, 4), (1, 2, 1)])
def test_a_batch_without_a_row_for_each_rank_is_refused(batch_size, ranks, devices):
    with pytest.raises(ValueError, match=rf"batch_size is {batch_size}, but {ranks * devices} ranks"):
        plan_epoch(1000, batch_size, ranks, devices)
    with pytest.raises(ValueError, match=rf"batch_size is {batch_size}, but {ranks * devices} ranks"):
        steps_of_epoch(1000, batch_size, ranks * devices, 0)


@pytest.mark.parametrize(
    ("rows", "batch_size", "devices", "numbers"),
    [(1300, 32, 1, (32, 1, 32, 41)), (1300, 32, 3, (32, 3, 30, 44)), (10, 32, 1, (32, 1, 10, 1))],
)
def test_the_log_has_the_rows_of_an_update(rows, batch_size, devices, numbers):
    line = describe_batch(plan_epoch(rows, batch_size, devices), batch_size, devices)
    assert tuple(map(int, re.findall(r"\d+", line))) == numbers


@pytest.fixture
def dataset(tmp_path, write_dataset):
    """Eleven rows in three shards. The first column has the number of the row."""
    columns = [Column("number", "number", "float32"), Column("kind", "category", "int32", (), ("a", "b"))]
    numbers = [float(row) for row in range(11)]
    arrays = [pa.array([None, *numbers[1:]], pa.float32()), pa.array([row % 3 for row in range(11)], pa.int32())]
    labels = np.array([row % 2 for row in range(11)])
    folder = tmp_path / "dataset"
    return folder, write_dataset(folder, columns, arrays, labels, ["even", "odd"], [4, 1, 6])


def test_each_element_has_its_own_scaling_and_a_category_none(dataset):
    columns = (
        Column("number", "number", "float32", mean=1.5, std=2.0),
        Column("kind", "category", "int32", vocabulary=("a", "b")),
        Column("series", "tensor", "float32", (2,), mean=(10.0, 20.0), std=(3.0, 4.0)),
        Column("grey", "tensor", "uint8", (1, 2), mean=5.0, std=6.0),
        Column("amount", "number", "float32", mean=1e6, std=1e9, log_unit=0.5, log_mean=7.0, log_std=8.0),
    )
    expected = ([1.5, 0, 10, 20, 5, 5, 7], [2, 1, 3, 4, 6, 6, 8], [1, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0.5])
    scales = scaling(replace(dataset[1], columns=columns))
    assert tuple(values.tolist() for values in scales) == expected
    assert {values.dtype for values in scales} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("epochs", "rows", "batch_size", "expected"),
    [
        (None, 105, 32, 100),
        (None, 400, 32, 31),
        (None, 1258, 32, 10),
        (None, 10**9, 32, 10),
        (None, 10, 32, 100),
        (None, 0, 32, 100),
        (3, 105, 32, 3),
    ],
)
def test_small_tables_have_more_epochs(epochs, rows, batch_size, expected):
    assert number_of_epochs(epochs, rows, batch_size) == expected


@pytest.mark.filterwarnings("error")
def test_a_gap_in_large_numbers_is_filled_without_a_warning(dataset):
    column = Column("x", "number", "float32", mean=1e9, std=2.0)
    assert fills(replace(dataset[1], columns=(column,))).tolist() == [1e9]


def test_a_gap_is_filled_with_the_number_of_the_manifest_or_the_mean(dataset):
    columns = (
        Column("number", "number", "float32", mean=1.5, std=2.0, fill=0.0),
        Column("kind", "category", "int32", vocabulary=("a", "b")),
        Column("series", "tensor", "float32", (2,), mean=(10.0, 20.0), std=(3.0, 4.0)),
        Column("grey", "tensor", "uint8", (1, 2), mean=5.0, std=6.0, fill=4.0),
    )
    values = fills(replace(dataset[1], columns=columns))
    assert (values.tolist(), values.dtype) == ([0, 0, 10, 20, 4, 4], np.float32)


@pytest.mark.parametrize(("log_mean", "expected"), [(2.0, 0.5 * (np.e**2 - 1)), (-2.0, -0.5 * (np.e**2 - 1)), (0.0, 0)])
def test_a_gap_of_a_column_of_logarithms_is_scaled_to_0(dataset, log_mean, expected):
    column = Column("amount", "number", "float32", mean=1e6, std=1e9, log_unit=0.5, log_mean=log_mean, log_std=3.0)
    manifest = replace(dataset[1], columns=(column,))
    assert fills(manifest).tolist() == pytest.approx([expected])
    assert fills(replace(manifest, columns=(replace(column, fill=4.0),))).tolist() == [4]


NUMBER = Label("price", (), "regression", 1e9, 0.5)
NO_LABEL = Label("", task="none")


@pytest.fixture
def unclassified(tmp_path, write_dataset):
    """Return a function that writes seven rows in two shards with a label that has no classes."""

    def write(label):
        columns = [Column("number", "number", "float32"), Column("text", "kept", "string")]
        arrays = [pa.array(range(7), pa.float32()), pa.array([f"text {row}" for row in range(7)])]
        numbers = [1e9 + row / 4 for row in range(7)]
        folder = tmp_path / "unclassified"
        return folder, write_dataset(folder, columns, arrays, numbers, (), [4, 3], label=label)

    return write


def test_balanced_weights_are_those_of_scikit_learn(dataset):
    manifest = dataset[1]
    # A class without rows.
    label = replace(manifest.label, classes=("even", "absent", "odd"))
    balanced = weights_of_classes(replace(manifest, label=label, class_counts=(6, 0, 5)), "balanced")
    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=np.array([0] * 6 + [1] * 5))
    assert balanced.tolist() == [expected[0], 0, expected[1]]


def test_numbers_cannot_be_balanced(unclassified):
    _, manifest = unclassified(NUMBER)
    with pytest.raises(ValueError, match=r"class_weights is 'balanced', .*'regression'.* allowed is 'none'"):
        weights_of_classes(manifest, "balanced")


@pytest.mark.parametrize("label", [NUMBER, NO_LABEL], ids=["regression", "none"])
def test_rows_without_a_class_are_cut_to_those_of_a_rank(unclassified, label):
    folder, manifest = unclassified(label)
    keep_rows(folder, manifest, parts_of_rank(manifest, 0, 2))
    own = DatasetManifest.from_json((folder / "dataset.json").read_text())
    assert own == replace(manifest, shards=own.shards)
    (shard,) = own.shards
    table = pq.read_table(folder / shard.path)
    assert (shard.rows, shard.sha256) == (3, sha256_of(folder / shard.path))
    rows = [int(number) for number in table["number"].to_pylist()]
    assert len(rows) == 3
    assert table["text"].to_pylist() == [f"text {row}" for row in rows]
    if label.name:
        assert table["price"].to_pylist() == [1e9 + row / 4 for row in rows]


def test_a_whole_shard_without_classes_stays_as_it_is(unclassified):
    folder, manifest = unclassified(NO_LABEL)
    keep_rows(folder, manifest, parts_of_rank(manifest, 0, 1))
    assert DatasetManifest.from_json((folder / "dataset.json").read_text()) == manifest


@pytest.mark.parametrize(("rank", "expected"), [(0, [0, 1, 3]), (1, [2, 4, 6, 9]), (2, [5, 7, 8, 10])])
def test_a_folder_is_cut_to_the_rows_of_a_rank(dataset, rank, expected):
    folder, manifest = dataset
    keep_rows(folder, manifest, parts_of_rank(manifest, rank, 3))
    own = DatasetManifest.from_json((folder / "dataset.json").read_text())
    labels = [row % 2 for row in expected]
    assert own == replace(manifest, shards=own.shards, class_counts=(labels.count(0), labels.count(1)))
    table = pa.concat_tables(pq.read_table(folder / shard.path) for shard in own.shards)
    assert table["label"].to_pylist() == labels
    assert table["number"].to_pylist() == [row or None for row in expected]
    assert sum(shard.size for shard in own.shards) == sum((folder / shard.path).stat().st_size for shard in own.shards)


def test_a_rank_without_rows_has_an_empty_dataset(dataset):
    folder, manifest = dataset
    keep_rows(folder, manifest, parts_of_rank(manifest, 0, 50))
    own = DatasetManifest.from_json((folder / "dataset.json").read_text())
    assert (own.shards, own.class_counts, own.rows) == ((), (0, 0), 0)
