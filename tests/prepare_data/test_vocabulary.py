"""Vocabularies of the training rows alone, and the marks of a run of prepare_data."""

import numpy as np
import pyarrow.parquet as pq
from numpy.random import default_rng

from kfp_distributed.storage.provenance import find_contamination, training_data


def towns_file(file, name="data.csv", order=range(60)):
    """A table in which each of thirty towns has two rows, so that some are in no training row."""
    rows = [f"town {row // 2},{row},{'ab'[row % 2]}" for row in order]
    return file(name, "town,x,label\n" + "\n".join(rows) + "\n")


def test_values_that_only_other_splits_have_count_as_missing(file, run, tmp_path, capsys):
    manifests = run(towns_file(file), shards=2, validation_fraction=0.3, test_fraction=0.3)
    towns = {}
    for split, manifest in manifests.items():
        vocabulary = (None, *manifest.columns[0].vocabulary)
        tables = [pq.read_table(tmp_path / "out" / split / shard.path) for shard in manifest.shards]
        rows = [row for table in tables for row in table.to_pylist()]
        towns[split] = {int(row["x"]): vocabulary[row["town"]] for row in rows}
    train = {row: f"town {row // 2}" for row in towns["train"]}
    assert towns["train"] == train
    assert manifests["train"].columns[0].vocabulary == tuple(sorted({*train.values()}))
    for split in ("validation", "test"):
        expected = {row: f"town {row // 2}" for row in towns[split]}
        assert towns[split] == {row: town if town in train.values() else None for row, town in expected.items()}
        assert None in towns[split].values()
        assert manifests[split].columns == manifests["train"].columns
    unseen = [*towns["validation"].values(), *towns["test"].values()].count(None)
    assert f"Validation and test rows with them ({unseen}) count as rows without a value" in capsys.readouterr().out


def test_splits_of_one_run_are_told_from_another_split_of_the_same_rows(file, run):
    source = towns_file(file)
    first, again, other = run(source, "first"), run(source, "again"), run(source, "other", seed=1)
    trained = [training_data(first["train"])]
    assert find_contamination(first["test"], trained) == find_contamination(again["test"], trained) == ""
    assert "with the seed 1 instead of 0" in find_contamination(other["test"], trained)
    copy = towns_file(file, "copy.csv", default_rng(0).permutation(60))
    assert "another split of the same rows" in find_contamination(run(copy, "copy")["test"], trained)
    lines = [line.split(",") for line in source.read_text().splitlines()]
    reordered = file("reordered.csv", "\n".join(f"{x},{town},{label}" for town, x, label in lines) + "\n")
    assert "another split of the same rows" in find_contamination(run(reordered, "reordered", seed=1)["test"], trained)
    more = file("more.csv", source.read_text() + "town 1,60,a\n")
    assert find_contamination(run(more, "more")["test"], trained) == ""


def test_the_statistics_are_those_of_the_training_rows(file, run, tmp_path):
    manifest = run(towns_file(file), shards=1)["train"]
    rows = pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet")["x"].to_numpy()
    np.testing.assert_allclose(
        (manifest.columns[1].mean, manifest.columns[1].std), (rows.mean(), rows.std()), rtol=1e-6
    )
