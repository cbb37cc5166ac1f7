"""The pipeline `tune_train_and_export` on this machine."""

import json

import pyarrow.parquet as pq
import pytest

from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.tune_train_and_export import tune_train_and_export

pytestmark = pytest.mark.takes(40)


def rows_of(folder):
    return (str(row) for file in folder.glob("*.parquet") for row in pq.read_table(file).to_pylist())


def test_the_last_training_has_the_best_parameters_and_all_rows_but_those_of_the_test(tmp_path):
    with local_run(tmp_path) as run:
        task = tune_train_and_export(
            trials=2,
            search_space={"learning_rate": {"choices": [1e-6, 1e-2]}},
            search={"sampler": "grid"},
            train_parameters={"epochs": 3, "hidden_units": [16]},
        )
    (folder,) = [path for path in run.artifacts.iterdir() if path.name.startswith("tune-train-and-export")]
    outputs = json.loads((folder / "tune" / "executor_output.json").read_text())["parameterValues"]
    assert outputs["best_parameters"] == {"epochs": 3, "hidden_units": [16], "learning_rate": 1e-2}
    first, last = (sorted(rows_of(folder / name / "test_dataset")) for name in ("prepare-data", "prepare-data-2"))
    assert first == last
    assert len([*rows_of(folder / "prepare-data-2" / "train_dataset")]) == 1797 - len(last)
    assert task.output > 0.5
