"""The draw of the split, the statistics and the shards."""

import json
import tracemalloc
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan.scanner import scan
from kfp_distributed.components.prepare_data.split.drawn_rows import RowsLeft, draw_piece, draw_rows, drawn_order
from kfp_distributed.components.prepare_data.split.plan import dealt
from kfp_distributed.components.prepare_data.split.strata import StrataRows, plan_strata
from kfp_distributed.components.prepare_data.tables.open_source import array_source
from kfp_distributed.components.prepare_data.writing.write import write_splits
from kfp_distributed.storage.dataset import DatasetManifest, parts_of_rank, read_batches, whole_shard

pytestmark = pytest.mark.takes(10)


def rows_file(file, rows, name="data.csv", kinds="ab"):
    """A file sorted by class, whose column x numbers the rows."""
    lines = [f"{i},{i % 7},{kinds[i * len(kinds) // rows]}" for i in range(rows)]
    return file(name, "x,y,label\n" + "\n".join(lines) + "\n")


def values_of(folder, manifest, part=None):
    batches = list(read_batches(folder, manifest, part))
    return np.concatenate([inputs for inputs, _ in batches]), np.concatenate([labels for _, labels in batches])


def rows_of_strata(strata):
    """The rows of each stratum in a piece."""
    found, counts = np.unique(strata, return_counts=True)
    return StrataRows(found.astype(np.uint32), counts.astype(np.uint32))


def files_of(left, pieces, seed):
    """The file of each row of pieces, whose strata are given."""
    generator, files = np.random.default_rng(seed), []
    for piece, strata in enumerate(pieces):
        drawn = draw_piece(left, rows_of_strata(strata), generator)
        files.append(draw_rows(strata, drawn, np.random.default_rng((seed, 3, piece))))
    return np.concatenate([*files, np.empty(0, np.uint16)])


@given(
    plan=st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=4),
    cut=st.integers(1, 50),
    seed=st.integers(0, 5),
)
def test_a_draw_fills_exactly_the_plan(plan, cut, seed):
    generator = np.random.default_rng(seed)
    strata = generator.permutation(np.repeat(np.arange(len(plan)), [sum(rows) for rows in plan]))
    left = np.array(plan)
    files = files_of(left, [strata[begin : begin + cut] for begin in range(0, len(strata), cut)], seed)
    counts = [[int(((strata == s) & (files == t)).sum()) for t in range(3)] for s in range(len(plan))]
    assert (counts, left.any()) == (plan, False)


def test_every_row_is_equally_likely_in_each_split():
    seen = np.zeros(20)
    for seed in range(1000):
        seen += files_of(np.array([[15, 5]]), [np.zeros(n, np.int32) for n in (1, 7, 12)], seed)
    # Binomial with n = 1000 and p = 1/4: five standard deviations.
    assert np.abs(seen - 250).max() < 5 * np.sqrt(1000 * 0.25 * 0.75)


def test_every_arrangement_is_equally_likely():
    """Two strata of four and two rows in three pieces: 6 * 2 arrangements in two files."""
    pieces = [np.array(strata) for strata in ([0, 1], [0, 0], [1, 0])]
    seen = Counter(tuple(files_of(np.array([[2, 2], [1, 1]]), pieces, seed).tolist()) for seed in range(4800))
    assert len(seen) == 12
    # Chi-squared of 11 degrees of freedom: 1 of 100,000 is above 44.
    assert sum((count - 400) ** 2 / 400 for count in seen.values()) < 44


def test_a_draw_refuses_more_rows_than_were_planned():
    with pytest.raises(ValueError, match="nsample > sum"):
        draw_piece(np.array([[1, 1]]), rows_of_strata(np.zeros(3, np.int32)), np.random.default_rng(0))


@settings(max_examples=30)
@given(
    train=st.lists(st.integers(0, 3000), min_size=1, max_size=4),
    shards=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_a_draw_of_few_bytes_is_that_of_a_table(train, shards, seed):
    held_out = np.arange(2 * len(train)).reshape(-1, 2)
    plan = dealt(np.array(train), held_out, shards)
    table = np.array([plan[stratum] for stratum in range(len(plan))])
    strata = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(plan)), table.sum(axis=1)))
    left = RowsLeft(plan)
    few, many = (files_of(rows, np.array_split(strata, 5), seed) for rows in (left, table))
    np.testing.assert_array_equal(few, many)
    assert not any(left[stratum].any() for stratum in range(len(plan)))


@given(seed=st.integers(0, 5), rows=st.integers(1, 50))
def test_the_files_of_rows_depend_on_their_keys_and_not_on_their_place_in_the_piece(seed, rows):
    generator = np.random.default_rng(seed)
    strata, keys, places = generator.integers(0, 3, rows), generator.random(rows), generator.permutation(rows)
    drawn = draw_piece(np.full((3, 4), 30), rows_of_strata(strata), generator)
    first = drawn_order(strata, keys, drawn, 4, (seed, 3, 0))
    second = drawn_order(strata[places], keys[places], drawn, 4, (seed, 3, 0))
    np.testing.assert_array_equal(first.order, places[second.order])
    np.testing.assert_array_equal(first.rows, second.rows)


def test_the_memory_of_a_draw_with_many_classes_and_the_most_shards():
    """A table of 64-bit integers would take 67 MB, and so would one of the files of a piece."""
    tracemalloc.start()
    try:
        plan = dealt(np.full(16_384, 1000), np.full((16_384, 2), 100), 512)
        classes = StrataRows(np.arange(16_384, dtype=np.uint32), np.full(16_384, 3, np.uint32))
        drawn = draw_piece(RowsLeft(plan), classes, np.random.default_rng(0))
        assert plan.rows_of_files().sum() == 16_384 * 1200
        assert drawn.rows.sum() == 3 * 16_384
        assert tracemalloc.get_traced_memory()[1] < 15_000_000
    finally:
        tracemalloc.stop()


def test_each_row_is_in_one_split_with_equal_shares_of_the_classes(file, run, tmp_path):
    manifests = run(rows_file(file, 1000, kinds="aab"), shards=3)
    assert {split: (m.rows, m.class_counts, [s.rows for s in m.shards]) for split, m in manifests.items()} == {
        "train": (800, (533, 267), [267, 267, 266]),
        "validation": (100, (67, 33), [100]),
        "test": (100, (67, 33), [100]),
    }
    read = {split: values_of(tmp_path / "out" / split, manifest) for split, manifest in manifests.items()}
    numbers = np.concatenate([inputs[:, 0] for inputs, _ in read.values()])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(1000))
    for inputs, labels in read.values():
        np.testing.assert_array_equal(labels, inputs[:, 0] * 3 // 1000 == 2)
    inputs, labels = read["train"]
    column = manifests["train"].columns[0]
    assert (column.mean, column.std) == (pytest.approx(inputs[:, 0].mean()), pytest.approx(inputs[:, 0].std()))
    # The file is sorted by class. A shard is shuffled, so that many neighbors are of different classes.
    changes = int((np.diff(labels[:267]) != 0).sum())
    assert 80 < changes < 160


def test_the_returned_manifest_is_written_beside_the_shards(file, run, tmp_path):
    manifests = run(rows_file(file, 100))
    for split, manifest in manifests.items():
        assert DatasetManifest.from_json((tmp_path / "out" / split / "dataset.json").read_text()) == manifest
        assert (manifest.split, manifest.seed, manifest.source) == (split, 0, str(tmp_path / "data.csv"))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_split(file, run):
    source = rows_file(file, 500)
    first, again, other = run(source, "first"), run(source, "again"), run(source, "other", seed=1)
    assert first == again
    assert [shard.sha256 for shard in first["train"].shards] != [shard.sha256 for shard in other["train"].shards]


def test_the_split_does_not_depend_on_the_file_format(file, run):
    source = rows_file(file, 3000)
    table = pa.csv.read_csv(source)
    for name, groups in (("one", 3000), ("many", 70)):
        pq.write_table(table, file(f"{name}.parquet", ""), row_group_size=groups)
    runs = [run(source.with_name(f"{name}.parquet"), name) for name in ("one", "many")]
    assert runs[0]["train"].shards == runs[1]["train"].shards == run(source, "csv")["train"].shards


@pytest.fixture
def write_sorted(tmp_path):
    """Write a source that is sorted by class and by time: write_sorted(shards=1) -> folders, manifests."""

    def write(**options):
        options = Options(**options)
        times, labels = (
            np.arange(SORTED_ROWS, dtype=np.float32),
            np.repeat([0, 1], [SORTED_ROWS // 4, 3 * SORTED_ROWS // 4]),
        )
        source = array_source("sorted", {"label": labels, "time": times}, options)
        # Pieces of a fiftieth of the rows, as in a source of some hundred megabytes.
        size = SORTED_ROWS // 50
        pieces = Pieces(tmp_path / "pieces", 8 * SORTED_ROWS, options.seed, 8 * size)
        found = scan(source, pieces)
        folders = {split: tmp_path / split for split in ("train", "validation", "test")}
        for folder in folders.values():
            folder.mkdir()
        strata, counts = plan_strata(pieces.files(), found, source.split_by, options, frozenset())
        manifests, _ = write_splits(pieces.files(), found, strata, counts, options, "sorted", folders)
        return folders, manifests

    return write


SORTED_ROWS = 40_000


def assert_random(values, population):
    """Check that each tenth of some values is a random sample of a population.

    The mean of m of n values without replacement has the variance s^2/m (n - m)/(n - 1). A correct shuffle exceeds five
    standard deviations in one of two million means.
    """
    for tenth in np.array_split(values, 10):
        n, m = len(population), len(tenth)
        error = population.std() * np.sqrt((n - m) / (n - 1) / m)
        assert abs(tenth.mean() - population.mean()) < 5 * error + 1e-9


@pytest.mark.parametrize("shards", [1, 4])
def test_each_tenth_of_each_shard_and_rank_is_a_random_sample_of_a_sorted_source(write_sorted, shards):
    folders, manifests = write_sorted(shards=shards)
    everything = []
    for split, manifest in manifests.items():
        inputs, labels = values_of(folders[split], manifest)
        everything.append(inputs[:, 0])
        parts = [parts_of_rank(manifest, rank, world) for world in (1, 2, 3, 16) for rank in range(world)]
        parts += [(whole_shard(shard),) for shard in manifest.shards]
        for part in parts:
            rows = values_of(folders[split], manifest, part)
            assert_random(rows[0][:, 0], inputs[:, 0])
            assert_random(rows[1], labels)
        # Neighbors are not closer in time than any two rows.
        assert np.abs(np.diff(inputs[:, 0])).mean() == pytest.approx(SORTED_ROWS / 3, rel=0.1)
    np.testing.assert_array_equal(np.sort(np.concatenate(everything)), np.arange(SORTED_ROWS))


def test_values_and_types_in_the_shards(file, run, tmp_path):
    rows = "2.5,Ulm,no\n,Bern,yes\n1,,no\n4,Ulm,yes\n"
    manifest = run(file("data.csv", "age,town,label\n" + rows), shards=1, validation_fraction=0, test_fraction=0)[
        "train"
    ]
    table = pq.read_table(tmp_path / "out" / "train" / manifest.shards[0].path)
    assert table.schema.remove_metadata() == pa.schema(
        {"label": pa.int32(), "age": pa.float32(), "town": pa.int32()}.items()
    )
    assert sorted(table.to_pylist(), key=lambda row: json.dumps(row, sort_keys=True)) == sorted(
        [
            {"age": 2.5, "town": 2, "label": 0},
            {"age": 2.5, "town": 1, "label": 1},
            {"age": 1.0, "town": 0, "label": 0},
            {"age": 4.0, "town": 2, "label": 1},
        ],
        key=lambda row: json.dumps(row, sort_keys=True),
    )
    assert [(column.mean, column.fill, column.vocabulary) for column in manifest.columns] == [
        (2.5, 2.5, ()),
        (0, None, ("Bern", "Ulm")),
    ]


def test_constant_and_empty_columns_have_the_standard_deviation_1(file, run):
    manifests = run(file("data.csv", "a,b,label\n" + ",3,x\n,3,y\n" * 20), shards=1)
    assert [(column.mean, column.std) for column in manifests["train"].columns] == [(0, 1), (3, 1)]
